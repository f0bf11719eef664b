//! House rules that the compiler does not know.

use std::path::{Path, PathBuf};

/// Rooms under `engine/src` that may hold unsafe code, and the few files elsewhere.
const UNSAFE_ROOMS: [&str; 9] = [
    "driver/",
    "memory/",
    "progress/lanes.rs",
    "progress/bulk.rs",
    "progress/completions.rs",
    "progress/post.rs",
    "api/endpoint.rs",
    "proto/mod.rs",
    "wire/mod.rs",
];

/// Files longer than [`LINES_MAX`], with a ceiling of their own that only goes down.
const LONG_FILES: [(&str, usize); 5] = [
    ("api/endpoint.rs", 800),
    ("proto/core.rs", 730),
    ("driver/uring/mod.rs", 640),
    ("bootstrap/tcp/server.rs", 700),
    ("bootstrap/directory.rs", 700),
];
const LINES_MAX: usize = 600;

/// What must not stand in `proto` and `wire` (R2), and what to use instead.
const SANS_IO: [(&str, &str); 4] = [
    ("Instant::now", "time comes in as an argument"),
    ("SystemTime", "time comes in as an argument"),
    ("rand::", "randomness comes in as an argument"),
    ("std::net::Tcp", "sockets live in driver/"),
];

/// What must not stand anywhere in the engine.
const NOWHERE: [(&str, &str); 6] = [
    ("println!", "use tracing"),
    ("dbg!", "remove it"),
    ("todo!", "write it"),
    ("unimplemented!", "write it"),
    ("FIXME", "mend it"),
    ("XXX", "say what is meant"),
];

/// Rooms that a room may use (R1); others need `crate::` paths that are not listed.
const MAY_USE: [(&str, &[&str]); 2] = [("wire/", &["wire"]), ("proto/", &["proto", "wire"])];

/// All complaints about the tree at `root`.
pub(crate) fn complaints(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for file in files(root, root) {
        let Ok(text) = std::fs::read_to_string(root.join(&file)) else { continue };
        let name = file.to_string_lossy().replace('\\', "/");
        if name.ends_with(".rs") {
            rust(&name, &text, &mut found);
        } else if name.ends_with(".md") {
            markdown(&name, &text, &mut found);
        }
    }
    found
}

fn files(root: &Path, folder: &Path) -> Vec<PathBuf> {
    let mut list = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return list };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            if name != "target" && name != ".git" {
                list.extend(files(root, &path));
            }
        } else if let Ok(relative) = path.strip_prefix(root) {
            list.push(relative.to_path_buf());
        }
    }
    list.sort();
    list
}

fn rust(name: &str, text: &str, found: &mut Vec<String>) {
    for (number, line) in (1..).zip(text.lines()) {
        if line.chars().count() > 100 {
            found.push(format!("{name}:{number}: longer than 100 columns"));
        }
    }
    let Some(room) = name.strip_prefix("engine/src/") else { return };
    let limit = LONG_FILES.iter().find(|(file, _)| *file == room).map_or(LINES_MAX, |f| f.1);
    let is_test = room.ends_with("tests.rs");
    let lines = text.lines().count();
    if lines > limit && !is_test {
        found.push(format!("{name}: {lines} lines, over {limit}: split it by concept"));
    }
    for (number, line) in (1..).zip(text.lines()) {
        let code = line.split("//").next().unwrap_or("");
        for (word, instead) in NOWHERE {
            // `eprintln!` of a test that says why it skips is fine.
            if code.replace("eprintln!", "").contains(word) {
                found.push(format!("{name}:{number}: `{word}`: {instead}"));
            }
        }
        if room.starts_with("proto/") || room.starts_with("wire/") {
            for (word, instead) in SANS_IO {
                if code.contains(word) {
                    found.push(format!("{name}:{number}: `{word}`: {instead}"));
                }
            }
        }
        let has_unsafe = code.contains("unsafe {") || code.contains("unsafe fn");
        if has_unsafe && !UNSAFE_ROOMS.iter().any(|allowed| room.starts_with(allowed)) {
            found.push(format!("{name}:{number}: unsafe code outside its rooms (R3)"));
        }
        for (prefix, allowed) in MAY_USE {
            let Some(used) = code.split("crate::").nth(1) else { continue };
            let target = used.split(|c: char| !c.is_alphanumeric() && c != '_').next();
            let target = target.unwrap_or("");
            let is_room = !target.is_empty() && !code.contains("pub(crate)");
            if room.starts_with(prefix) && is_room && !allowed.contains(&target) {
                found.push(format!("{name}:{number}: uses `crate::{target}` against R1"));
            }
        }
    }
}

fn markdown(name: &str, text: &str, found: &mut Vec<String>) {
    let mut in_code = false;
    let mut headings = 0;
    for line in text.lines() {
        in_code ^= line.starts_with("```");
        headings += usize::from(!in_code && line.starts_with("# "));
    }
    if headings != 1 {
        found.push(format!("{name}: {headings} headings of the first level, one is right"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complain(name: &str, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        if name.ends_with(".md") {
            markdown(name, text, &mut found);
        } else {
            rust(name, text, &mut found);
        }
        found
    }

    #[test]
    fn each_rule_bites_and_lets_good_code_pass() {
        let bad = [
            ("engine/src/proto/a.rs", "let now = Instant::now();\n"),
            ("engine/src/proto/a.rs", "use crate::driver::Driver;\n"),
            ("engine/src/wire/a.rs", "use crate::proto::core;\n"),
            ("engine/src/api/a.rs", "unsafe { run() }\n"),
            ("engine/src/api/a.rs", "println!(\"x\");\n"),
            ("README.md", "# One\n# Two\n"),
            ("perf/src/main.rs", &format!("// {}\n", "x".repeat(100))),
            ("engine/src/api/a.rs", &"\n".repeat(601)),
        ];
        for (name, text) in bad {
            assert_eq!(complain(name, text).len(), 1, "{name}: {text}");
        }
        let good = [
            ("engine/src/proto/a.rs", "use crate::wire::Eager;\npub(crate) fn f() {}\n"),
            ("engine/src/driver/a.rs", "unsafe { run() }\n"),
            ("README.md", "# One\n```\n# a comment\n```\n"),
        ];
        for (name, text) in good {
            assert!(complain(name, text).is_empty(), "{name}: {text}");
        }
    }
}
