//! The wire protocol's requirements: each MUST of `engine/SPEC.md` is cited by the code that keeps
//! it and by a test that would see it broken, and nothing cites what is not there.
//!
//! A requirement begins a line with its bold name, `**RR-ROOM-1**`, and goes on to the next
//! requirement, blank line or heading. A citation is the plain name in a comment.

use std::collections::BTreeMap;

use super::Tree;
use super::source::is_name;

const SPEC: &str = "engine/SPEC.md";
const PREFIX: &str = "RR-";

/// Where something is cited.
#[derive(Default)]
struct Cited {
    by_code: bool,
    by_test: bool,
}

/// Checks all citations. `reached` says of each file whether it is for tests only.
pub(super) fn check(tree: &Tree, reached: &BTreeMap<String, bool>, found: &mut Vec<String>) {
    let Some(spec) = tree.other.get(SPEC) else { return };
    let requirements = requirements(spec, found);
    let mut cited: BTreeMap<&str, Cited> = BTreeMap::new();
    for (name, source) in &tree.rust {
        if !name.starts_with("engine/") && !name.starts_with("tests/") {
            continue;
        }
        let is_test_file =
            !name.starts_with("engine/src/") || reached.get(name).copied().unwrap_or(false);
        for (at, id) in names(&source.comments) {
            let Some((known, _)) = requirements.get_key_value(id) else {
                let line = source.line_of(at);
                found.push(format!("{name}:{line}: {id} is no requirement of {SPEC}"));
                continue;
            };
            let cited = cited.entry(known).or_default();
            if is_test_file || source.is_test_at(at) {
                cited.by_test = true;
            } else {
                cited.by_code = true;
            }
        }
    }
    let nowhere = Cited::default();
    for (id, text) in &requirements {
        if !text.contains("MUST") {
            continue;
        }
        let cited = cited.get(id.as_str()).unwrap_or(&nowhere);
        if !cited.by_code {
            found.push(format!("{SPEC}: no code cites {id}: name it where it is kept"));
        }
        if !cited.by_test {
            found
                .push(format!("{SPEC}: no test cites {id}: name it where it would be seen broken"));
        }
    }
}

/// The requirements by name, with their texts.
fn requirements(spec: &str, found: &mut Vec<String>) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut open: Option<String> = None;
    for (number, line) in (1..).zip(spec.lines()) {
        if let Some((id, text)) = line.strip_prefix("**").and_then(|rest| rest.split_once("**"))
            && id.starts_with(PREFIX)
        {
            if all.insert(id.to_owned(), text.to_owned()).is_some() {
                found.push(format!("{SPEC}:{number}: {id} is there twice"));
            }
            open = Some(id.to_owned());
        } else if line.is_empty() || line.starts_with('#') {
            open = None;
        } else if let Some(text) = open.as_ref().and_then(|id| all.get_mut(id)) {
            text.push(' ');
            text.push_str(line);
        }
    }
    all
}

/// Names of requirements in a text, with where they begin.
fn names(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.match_indices(PREFIX).filter_map(|(at, _)| {
        let rest = &text[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        let name = &rest[..end.unwrap_or(rest.len())];
        let stands_alone = text[..at].bytes().last().is_none_or(|byte| !is_name(byte));
        let is_numbered = name.ends_with(|c: char| c.is_ascii_digit());
        (stands_alone && is_numbered).then_some((at, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "# Title\n\n**RR-A-1** A sender\nMUST count.\n\n**RR-A-2** It SHOULD sing.\n";

    fn complaints(spec: &str, code: &str) -> Vec<String> {
        let mut tree = Tree::default();
        tree.add(SPEC.into(), spec.into());
        tree.add("engine/src/lib.rs".into(), code.into());
        let mut found = Vec::new();
        check(&tree, &BTreeMap::new(), &mut found);
        found
    }

    #[test]
    fn a_must_is_cited_by_code_and_by_a_test() {
        let code = "// RR-A-1\nfn f() {}\n";
        let test = "#[cfg(test)]\nmod tests {\n    // See RR-A-1.\n    fn g() {}\n}\n";
        assert_eq!(complaints(TEXT, &format!("{code}{test}")), Vec::<String>::new());
        assert!(complaints(TEXT, code)[0].contains("no test cites RR-A-1"));
        assert!(complaints(TEXT, test)[0].contains("no code cites RR-A-1"));
        assert_eq!(complaints(TEXT, "").len(), 2);
    }

    #[test]
    fn citations_of_nothing_and_names_used_twice_are_seen() {
        let unknown = complaints("# T\n", "// RR-B-9 it is\nfn f() {}\n");
        assert_eq!(unknown, ["engine/src/lib.rs:1: RR-B-9 is no requirement of engine/SPEC.md"]);
        let twice = complaints("**RR-A-1** may\n**RR-A-1** can\n", "");
        assert!(twice[0].contains("twice"));
        assert!(complaints("# T\n", "// XRR-B-9 RR-BIG-WORDS\n").is_empty());
    }
}
