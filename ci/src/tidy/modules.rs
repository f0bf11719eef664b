//! Which Rust files a crate reaches from its roots, and which of these are tests.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, is_name, words};

/// Folders of a crate below which files are crates of their own, and whether those are tests.
const ROOT_FOLDERS: [(&str, bool); 4] =
    [("src/bin/", false), ("tests/", true), ("benches/", true), ("examples/", true)];

/// Folders that a compile-fail test reads by pattern.
const READ_BY_PATTERN: [&str; 3] = ["/ui/", "/compile_fail/", "/compile-fail/"];

/// Reached files, with whether they are tests.
pub(super) fn reached(
    files: &BTreeMap<String, Source>,
    crates: &[String],
) -> BTreeMap<String, bool> {
    let mut reached: BTreeMap<String, bool> = BTreeMap::new();
    let mut queue = Vec::new();
    for name in files.keys() {
        let Some(below) = home(name, crates) else { continue };
        if matches!(below, "src/lib.rs" | "src/main.rs" | "build.rs") {
            queue.push((name.clone(), false, true));
        }
        for (folder, is_test) in ROOT_FOLDERS {
            let Some(rest) = below.strip_prefix(folder) else { continue };
            let by_pattern = READ_BY_PATTERN.iter().any(|part| name.contains(part));
            if !rest.contains('/') || rest.ends_with("/main.rs") || by_pattern {
                queue.push((name.clone(), is_test, true));
            }
        }
    }
    while let Some((name, is_test, is_root)) = queue.pop() {
        // Reached twice, it is a test only if both say so.
        match reached.get(&name) {
            Some(&already) if !already || is_test => continue,
            _ => reached.insert(name.clone(), is_test),
        };
        let source = &files[&name];
        for module in modules(&name, source, is_root) {
            let path = module.paths.into_iter().find(|path| files.contains_key(path));
            queue.extend(path.map(|path| (path, is_test || module.is_test, false)));
        }
    }
    reached
}

/// The part of `name` below the folder of its crate, the innermost one.
fn home<'a>(name: &'a str, crates: &[String]) -> Option<&'a str> {
    let inside = |folder: &&String| name.starts_with(folder.as_str());
    let folder = crates.iter().filter(inside).max_by_key(|folder| folder.len())?;
    Some(&name[folder.len()..])
}

/// A module in a file of its own.
struct Module {
    /// Where it can be.
    paths: Vec<String>,
    is_test: bool,
}

/// The modules that `name` declares without a body.
fn modules(name: &str, source: &Source, is_root: bool) -> Vec<Module> {
    let code = &source.code;
    let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent);
    let is_own_folder = is_root || name.ends_with("/mod.rs");
    let folder = if is_own_folder { parent } else { name.trim_end_matches(".rs") };
    let mut found = Vec::new();
    for at in words(code, "mod") {
        let rest = code[at + 3..].trim_start();
        let end = rest.bytes().take_while(|&byte| is_name(byte) || byte == b'#').count();
        let module = rest[..end].trim_start_matches("r#");
        if module.is_empty() || !rest[end..].trim_start().starts_with(';') {
            continue;
        }
        let around = enclosing(code, at);
        let inner = around.iter().fold(folder.to_owned(), |path, part| format!("{path}/{part}"));
        let is_test = source.is_test_at(at);
        let paths = match explicit_path(source, at) {
            Some(path) => vec![resolve(parent, &path)],
            None => vec![format!("{inner}/{module}.rs"), format!("{inner}/{module}/mod.rs")],
        };
        found.push(Module { paths, is_test });
    }
    found
}

/// The names of the modules with a body around byte `at`, outermost first.
fn enclosing(code: &str, at: usize) -> Vec<&str> {
    let mut stack = Vec::new();
    for (brace, byte) in code[..at].bytes().enumerate() {
        if byte == b'{' {
            let mut before = code[..brace].split_whitespace().rev();
            let name = before.next();
            stack.push(name.filter(|_| before.next() == Some("mod")));
        } else if byte == b'}' {
            stack.pop();
        }
    }
    stack.into_iter().flatten().collect()
}

/// What `#[path = "..."]` in front of the declaration at `at` says.
fn explicit_path(source: &Source, at: usize) -> Option<String> {
    let start = source.code[..at].rfind([';', '}', '{']).map_or(0, |end| end + 1);
    let from = start + source.code[start..at].find("#[path")?;
    source.text[from..at].split('"').nth(1).map(str::to_owned)
}

/// `path` as seen from `folder`.
fn resolve(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// Rust files that no crate reaches.
pub(super) fn dead<'a>(
    files: &'a BTreeMap<String, Source>,
    reached: &BTreeMap<String, bool>,
) -> BTreeSet<&'a str> {
    files.keys().filter(|name| !reached.contains_key(*name)).map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_followed() {
        let text = [
            ("e/src/lib.rs", "mod a; mod r#b;\n#[cfg(test)]\nmod t;\nmod c { pub mod d; }"),
            ("e/src/a.rs", "mod deep; #[path = \"../e.rs\"] mod far;"),
            ("e/src/a/deep.rs", ""),
            ("e/e.rs", ""),
            ("e/src/b/mod.rs", "mod x; // mod y;"),
            ("e/src/b/x.rs", ""),
            ("e/src/b/y.rs", ""),
            ("e/src/c/d.rs", ""),
            ("e/src/t.rs", "mod more;"),
            ("e/src/t/more.rs", ""),
            ("e/src/lost.rs", ""),
            ("e/tests/one.rs", "mod common;"),
            ("e/tests/common/mod.rs", ""),
            ("e/tests/ui/wrong.rs", ""),
            ("e/tests/lost/mod.rs", ""),
            ("e/src/bin/tool.rs", ""),
        ];
        let files: BTreeMap<String, Source> =
            text.map(|(name, text)| (name.to_owned(), Source::new(text.to_owned()))).into();
        let reached = reached(&files, &["e/".to_owned()]);
        let dead = dead(&files, &reached);
        let expected = ["e/src/b/y.rs", "e/src/lost.rs", "e/tests/lost/mod.rs"];
        assert_eq!(dead, BTreeSet::from(expected));
        let tests: Vec<&str> =
            reached.iter().filter(|(_, is_test)| **is_test).map(|(name, _)| &**name).collect();
        let expected = [
            "e/src/t.rs",
            "e/src/t/more.rs",
            "e/tests/common/mod.rs",
            "e/tests/one.rs",
            "e/tests/ui/wrong.rs",
        ];
        assert_eq!(tests, expected);
    }
}
