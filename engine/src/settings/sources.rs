//! Files and environment: the values that they assign, their places, and unknown names.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use zeroize::Zeroizing;

use super::error::nearest;
use super::secret::OTHERS;
use super::table::{ROWS, position};
use super::{CONFIG_VARIABLE, JOB_VARIABLES, Origin, PREFIX, SettingsError, glob};

/// One value that a source gives to one setting.
pub(crate) struct Assignment {
    /// The row of the table.
    pub(crate) row: usize,
    /// The value as text: it may be the job's secret.
    pub(crate) text: Zeroizing<String>,
    /// Its place.
    pub(crate) origin: Origin,
    /// Whether it applies to this host; it is checked either way.
    pub(crate) applies: bool,
}

/// A settings file is small; this bounds what a wrong path (a device, a core dump) can cost.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The variables of an environment, by name.
pub(crate) type Environment = Vec<(OsString, OsString)>;

/// Finds a variable, which must be UTF-8.
pub(crate) fn lookup(
    environment: &Environment,
    name: &str,
) -> Result<Option<String>, SettingsError> {
    let Some((_, value)) = environment.iter().find(|(known, _)| known == name) else {
        return Ok(None);
    };
    match value.to_str() {
        Some(value) => Ok(Some(value.into())),
        None => Err(SettingsError::NotUnicode { variable: name.into() }),
    }
}

/// Returns the values that the `RINGRAIL_` variables assign.
pub(crate) fn read_environment(
    environment: &Environment,
) -> Result<Vec<Assignment>, SettingsError> {
    let mut assignments = Vec::new();
    for (variable, value) in environment {
        // The prefix is ASCII, so replacing what is not UTF-8 cannot make or break it.
        let shown = variable.to_string_lossy();
        let Some(rest) = shown.strip_prefix(PREFIX) else { continue };
        if shown == CONFIG_VARIABLE || JOB_VARIABLES.contains(&&*shown) {
            continue;
        }
        let origin = Origin::Environment { variable: shown.clone().into_owned() };
        let Some(row) = ROWS.iter().position(|row| row.variable() == shown) else {
            let known = nearest(rest, ROWS.iter().map(|row| row.name));
            return Err(SettingsError::UnknownName {
                name: shown.clone().into_owned(),
                place: Box::new(origin),
                nearest: known.and_then(position).map(|row| ROWS[row].variable()),
            });
        };
        let Some(text) = value.to_str() else {
            return Err(SettingsError::NotUnicode { variable: shown.into_owned() });
        };
        assignments.push(Assignment {
            row,
            text: text.trim().to_owned().into(),
            origin,
            applies: true,
        });
    }
    Ok(assignments)
}

/// Returns the files to read, lowest precedence first, each with whether it was named explicitly
/// and so must exist.
pub(crate) fn find_files(
    environment: &Environment,
    system_file: &Path,
) -> Result<Vec<(PathBuf, bool)>, SettingsError> {
    if let Some(path) = lookup(environment, CONFIG_VARIABLE)? {
        // Set but empty: no file at all.
        return Ok(if path.is_empty() { Vec::new() } else { vec![(path.into(), true)] });
    }
    let directory = |name: &str| {
        let found = environment.iter().find(|(known, _)| known == name);
        // The XDG specification wants relative paths ignored.
        found.map(|(_, value)| PathBuf::from(value)).filter(|path| path.is_absolute())
    };
    let user = directory("XDG_CONFIG_HOME").or_else(|| Some(directory("HOME")?.join(".config")));
    let mut files = vec![(system_file.to_path_buf(), false)];
    files.extend(user.map(|directory| (directory.join("ringrail.toml"), false)));
    Ok(files)
}

/// Returns what a file assigns, lowest precedence first: its top level, then the sections of this
/// host in file order. A default file that cannot be opened assigns nothing: `HOME` may be that of
/// another user.
pub(crate) fn read_file(
    path: &Path,
    required: bool,
    host: &str,
) -> Result<Vec<Assignment>, SettingsError> {
    let opened = File::open(path);
    if let Err(error) = &opened
        && !required
    {
        // A home that is no directory has no file either.
        if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) {
            tracing::warn!("goes on without the settings file {}: {error}", path.display());
        }
        return Ok(Vec::new());
    }
    let (text, mode) = match opened.and_then(read_bounded) {
        Ok(read) => read,
        Err(source) => {
            let cure = if source.kind() == io::ErrorKind::NotFound {
                "correct the path or create the file"
            } else {
                "make it a readable UTF-8 file of at most 1 MiB, or name another in RINGRAIL_CONFIG"
            };
            return Err(SettingsError::Unreadable { path: path.into(), source, cure });
        }
    };
    FileReader { path, text: &text, mode, host, assignments: Vec::new() }.read()
}

/// Returns the content of a file and its mode.
fn read_bounded(file: File) -> io::Result<(String, u32)> {
    let mut text = String::new();
    let status = file.metadata()?;
    if !status.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok((text, status.mode()))
}

struct FileReader<'a> {
    path: &'a Path,
    text: &'a str,
    mode: u32,
    host: &'a str,
    assignments: Vec<Assignment>,
}

/// Returns the entries of a table in file order.
fn in_order<'a, 'i>(
    table: &'a DeTable<'i>,
) -> Vec<(&'a Spanned<std::borrow::Cow<'i, str>>, &'a DeValue<'i>)> {
    let mut entries: Vec<_> = table.iter().map(|(key, value)| (key, value.get_ref())).collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

impl FileReader<'_> {
    fn read(mut self) -> Result<Vec<Assignment>, SettingsError> {
        let document = match DeTable::parse(self.text) {
            Ok(document) => document,
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                return Err(self.syntax(at, format!("not TOML: {}", error.message())));
            }
        };
        let mut hosts = None;
        for (key, value) in in_order(document.get_ref()) {
            match value {
                DeValue::Table(table) if key.get_ref() == "host" => hosts = Some(table),
                _ if key.get_ref() == "host" => {
                    return Err(self.syntax(key.span().start, HOST_FORM.into()));
                }
                _ => self.assign(key, value, None)?,
            }
        }
        for (pattern, section) in hosts.map(in_order).unwrap_or_default() {
            let DeValue::Table(section) = section else {
                return Err(self.syntax(pattern.span().start, HOST_FORM.into()));
            };
            for (key, value) in in_order(section) {
                self.assign(key, value, Some(pattern.get_ref()))?;
            }
        }
        Ok(self.assignments)
    }

    fn line(&self, offset: usize) -> usize {
        1 + self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
    }

    fn syntax(&self, offset: usize, problem: String) -> SettingsError {
        SettingsError::Syntax { path: self.path.into(), line: self.line(offset), problem }
    }

    fn assign(
        &mut self,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &DeValue<'_>,
        section: Option<&str>,
    ) -> Result<(), SettingsError> {
        let offset = key.span().start;
        let name = key.get_ref();
        let place = Origin::File {
            path: self.path.into(),
            section: section.map(str::to_string),
            line: self.line(offset),
        };
        let Some(row) = position(name) else {
            let known = nearest(name, ROWS.iter().map(|row| row.name));
            return Err(SettingsError::UnknownName {
                name: name.to_string(),
                place: Box::new(place),
                nearest: known.map(str::to_string),
            });
        };
        if ROWS[row].is_secret && self.mode & OTHERS != 0 {
            let mode = self.mode & 0o7777;
            return Err(self.syntax(
                offset,
                format!(
                    "{name} stands in a file of mode {mode:04o}, so others can get at it: take a \
                     new secret, in a file of its own that job_secret_file names, or chmod 600"
                ),
            ));
        }
        let text = match value {
            DeValue::Array(items) => {
                let items: Option<Vec<_>> =
                    items.iter().map(|item| scalar(item.get_ref())).collect();
                // One text per item: a comma inside would make two of it.
                items
                    .filter(|items| items.iter().all(|item| !item.contains(',')))
                    .map(|items| items.join(","))
            }
            single => scalar(single),
        };
        let Some(text) = text else {
            return Err(self.syntax(
                offset,
                format!(
                    "{name} is a {}; write a string, a whole number, true or false, \
                     or a list of these without commas inside",
                    value.type_str()
                ),
            ));
        };
        let applies = section.is_none_or(|pattern| glob::matches_host(pattern, self.host));
        self.assignments.push(Assignment { row, text: text.into(), origin: place, applies });
        Ok(())
    }
}

const HOST_FORM: &str = "`host` holds sections only: [host.\"node*\"] and settings below it";

/// Returns the text of a single value; `None` for a type that no setting has.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.trim().to_string()),
        DeValue::Boolean(value) => Some(value.to_string()),
        DeValue::Integer(number) => {
            Some(i128::from_str_radix(number.as_str(), number.radix()).ok()?.to_string())
        }
        _ => None,
    }
}
