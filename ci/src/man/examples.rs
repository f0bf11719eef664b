//! Examples of the C API, and the piece of one that shows a call.

use std::fs;
use std::path::Path;

/// Lines of an example that a page shows at most.
const LINES_MAX: usize = 24;

/// Lines around a call where the function that it stands in is longer than that.
const LINES_AROUND: usize = 8;

/// The programs, by their names.
pub(crate) struct Examples {
    programs: Vec<(String, String)>,
}

impl Examples {
    /// The C programs of a folder, in the order of their names.
    pub(crate) fn read(folder: &Path) -> Result<Self, String> {
        let failed = |error| format!("{}: {error}", folder.display());
        let mut programs = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|kind| kind == "c") {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                programs.push((name, fs::read_to_string(&path).map_err(failed)?));
            }
        }
        programs.sort();
        Ok(Self { programs })
    }

    #[cfg(test)]
    pub(super) fn of(name: &str, text: &str) -> Self {
        Self { programs: vec![(name.to_owned(), text.to_owned())] }
    }

    /// Names and texts.
    pub(crate) fn programs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.programs.iter().map(|(name, text)| (&**name, &**text))
    }

    /// The shortest piece of a program that calls `call`, and the name of that program.
    pub(super) fn showing(&self, call: &str) -> Option<(&str, String)> {
        let pieces = self.programs().filter_map(|(name, text)| Some((name, piece(text, call)?)));
        pieces.min_by_key(|(_, piece)| piece.len())
    }
}

/// The function that a call stands in, or the lines around the call where that is long.
fn piece(text: &str, call: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let opened = format!("{call}(");
    let calls = |line: &str| {
        line.match_indices(&opened).any(|(at, _)| {
            !line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
        })
    };
    // A function begins at the margin, and so does its last brace.
    let is_inside = |line: &str| line.starts_with(' ');
    let at = lines.iter().position(|line| is_inside(line) && calls(line))?;
    let first = lines[..at].iter().rposition(|line| *line == "{")?.saturating_sub(1);
    let last = at + lines[at..].iter().position(|line| *line == "}")?;
    if last - first < LINES_MAX {
        return Some(lines[first..=last].join("\n"));
    }
    let from = at.saturating_sub(LINES_AROUND).max(first);
    let to = (at + LINES_AROUND).min(last);
    Some(lines[from..=to].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_around_a_call_is_shown() {
        let text =
            "int other(void);\n\nstatic void f(int a)\n{\n    my_rr_do(a);\n    rr_do(a);\n}\n";
        let piece = piece(text, "rr_do").unwrap();
        assert_eq!(piece, "static void f(int a)\n{\n    my_rr_do(a);\n    rr_do(a);\n}");
        assert_eq!(super::piece(text, "do"), None);
    }

    #[test]
    fn of_a_long_function_a_part_is_shown() {
        let many = "    step();\n".repeat(100);
        let text = format!("int main(void)\n{{\n{many}    rr_do();\n{many}}}\n");
        let piece = piece(&text, "rr_do").unwrap();
        assert_eq!(piece.lines().count(), 2 * LINES_AROUND + 1);
        assert!(piece.contains("rr_do();"));
    }
}
