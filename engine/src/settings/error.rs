//! Errors of settings, and where a value comes from.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// Built in.
    Default,
    /// Built in, then adjusted to fit a setting that was set explicitly.
    Fitted {
        /// The setting that it was adjusted to.
        to: &'static str,
    },
    /// A settings file.
    File {
        /// The file.
        path: PathBuf,
        /// The pattern of the host section, or `None` for the top level.
        section: Option<String>,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Environment {
        /// Its name.
        variable: String,
    },
    /// The program, through the builder.
    Builder,
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => out.write_str("default"),
            Self::Fitted { to } => write!(out, "default, fitted to {to}"),
            Self::File { path, section: None, line } => write!(out, "{}:{line}", path.display()),
            Self::File { path, section: Some(section), line } => {
                write!(out, "{}:{line} [host.\"{section}\"]", path.display())
            }
            Self::Environment { variable } => write!(out, "environment variable {variable}"),
            Self::Builder => out.write_str("builder"),
        }
    }
}

/// Why settings could not be put together. The message names the place and the cure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// There is no setting of this name.
    #[error("{place}: there is no setting `{name}`{}", hint(.nearest))]
    UnknownName {
        /// The name as it is written there.
        name: String,
        /// Where it is written.
        place: Box<Origin>,
        /// The most similar known name, spelled as it would have to be there.
        nearest: Option<String>,
    },
    /// The value cannot be read as what the setting is, or lies outside its range.
    #[error("{place}: {name} = `{value}`: {problem}; {name} takes {expected}")]
    InvalidValue {
        /// The setting.
        name: &'static str,
        /// The value as it is written there.
        value: String,
        /// Where it is written.
        place: Box<Origin>,
        /// What is wrong with it.
        problem: String,
        /// The values that are accepted.
        expected: String,
    },
    /// Two values contradict each other.
    #[error(
        "{lesser} = {lesser_value} ({lesser_place}) is too large for \
         {greater} = {greater_value} ({greater_place}): {why}; lower the first or raise the second"
    )]
    Conflict {
        /// The setting that would have to be smaller.
        lesser: &'static str,
        /// Its value.
        lesser_value: String,
        /// Where its value comes from.
        lesser_place: Box<Origin>,
        /// The setting that would have to be larger.
        greater: &'static str,
        /// Its value.
        greater_value: String,
        /// Where its value comes from.
        greater_place: Box<Origin>,
        /// What ties them together.
        why: &'static str,
    },
    /// Two choices exclude each other.
    #[error("{problem}")]
    Exclusive {
        /// Which, where they are made, and what helps.
        problem: String,
    },
    /// There is no job secret, or it contradicts another setting.
    #[error("{problem}")]
    Secret {
        /// What is wrong, and what helps.
        problem: String,
    },
    /// An environment variable of ours that is not UTF-8.
    #[error("environment variable {variable} is not valid UTF-8; set it again or unset it")]
    NotUnicode {
        /// Its name, as far as it can be shown.
        variable: String,
    },
    /// A settings file that cannot be read.
    #[error("cannot read the settings file {}: {source}; {cure}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error that the system returned.
        source: io::Error,
        /// What to do about it.
        cure: &'static str,
    },
    /// A settings file that is not TOML, or not laid out as a settings file.
    #[error("{}:{line}: {problem}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what would be right.
        problem: String,
    },
}

fn hint(nearest: &Option<String>) -> String {
    match nearest {
        Some(name) => format!("; the nearest is `{name}`"),
        None => "; `Settings::definitions()` lists all of them".into(),
    }
}

/// Returns the name among `known` that is most similar to `name`.
///
/// Candidates are those within a third of the name's length in edits (Levenshtein), and those
/// that one of the two names begins or ends with; the fewest edits win.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_ascii_lowercase();
    let budget = (name.len() / 3).max(1);
    let related = |known: &str| {
        let (short, long) =
            if known.len() < name.len() { (known, &*name) } else { (&*name, known) };
        short.len() >= 3 && (long.starts_with(short) || long.ends_with(short))
    };
    known
        .map(|known| (distance(&name, known), known))
        .filter(|(edits, known)| *edits <= budget || related(known))
        .min()
        .map(|(_, known)| known)
}

/// Levenshtein distance, in bytes.
fn distance(from: &str, to: &str) -> usize {
    let to = to.as_bytes();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (deleted, a) in from.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = deleted + 1;
        for (column, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("lanes", "lanes"), 0);
    }

    #[test]
    fn nearest_is_found_or_not() {
        let known = ["lanes", "bulk_lanes", "eager_limit_bytes", "inject_limit_bytes"];
        let nearest = |name| nearest(name, known.into_iter());
        assert_eq!(nearest("lane"), Some("lanes"));
        assert_eq!(nearest("eager_limit"), Some("eager_limit_bytes"));
        assert_eq!(nearest("EAGER_LIMT_BYTES"), Some("eager_limit_bytes"));
        assert_eq!(nearest("zebra"), None);
        assert_eq!(nearest(""), None);
    }
}
