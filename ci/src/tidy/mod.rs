//! House rules that the compiler does not know.
//!
//! Rules see code without comments and literals, and know tests from the rest. Each has a line in
//! the tests below that it complains about, and one that it leaves alone.

mod commands;
mod cycles;
mod links;
mod modules;
mod numbers;
mod rules;
pub(crate) mod source;
mod spec;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use source::Source;

/// Tests that the swarm runs in its optimised build, and what they share with unit tests.
const TESTS_OF_THE_SWARM: [&str; 4] = [
    "engine/src/swarm/figures/",
    "engine/src/swarm/known_seeds.rs",
    "engine/src/swarm/scenarios.rs",
    "engine/src/snapshot.rs",
];

/// The repository as the rules see it: paths from its top, with `/`.
#[derive(Default)]
struct Tree {
    rust: BTreeMap<String, Source>,
    /// Texts of another kind.
    other: BTreeMap<String, String>,
    /// Names of files that are no texts.
    binary: BTreeSet<String>,
}

impl Tree {
    fn add(&mut self, name: String, text: String) {
        if name.ends_with(".rs") {
            self.rust.insert(name, Source::new(text));
        } else {
            self.other.insert(name, text);
        }
    }

    /// Names of all files.
    fn names(&self) -> impl Iterator<Item = &String> {
        self.rust.keys().chain(self.other.keys()).chain(&self.binary)
    }

    /// Folders of crates, with a closing `/`.
    fn crates(&self) -> Vec<String> {
        self.other.keys().filter_map(|name| Some(name.strip_suffix("Cargo.toml")?.into())).collect()
    }
}

/// All complaints about the tree at `root`.
pub(crate) fn complaints(root: &Path) -> Vec<String> {
    let mut tree = Tree::default();
    read(root, "", &mut tree);
    check(&tree)
}

fn check(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    let reached = modules::reached(&tree.rust, &tree.crates());
    for name in modules::dead(&tree.rust, &reached) {
        found.push(format!("{name}: no `mod` leads here; name it or remove it"));
    }
    for (name, source) in &tree.rust {
        let is_test = reached.get(name).copied().unwrap_or(false)
            || TESTS_OF_THE_SWARM.iter().any(|place| name.starts_with(place));
        rules::rust(name, source, is_test, &mut found);
    }
    cycles::check(&tree.rust, &reached, &mut found);
    spec::check(tree, &reached, &mut found);
    numbers::check(tree, &mut found);
    links::check(tree, &mut found);
    commands::check(tree, &mut found);
    for (name, text) in &tree.other {
        rules::other(name, text, &mut found);
    }
    found
}

/// Reads the texts below `folder`, without what builds leave and what is no text.
fn read(root: &Path, folder: &str, tree: &mut Tree) {
    let Ok(entries) = std::fs::read_dir(root.join(folder)) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name == ".git" || name == "target" {
            continue;
        }
        let path = format!("{folder}{name}");
        let Ok(kind) = entry.file_type() else { continue };
        // A package's copy of a file that is checked where it is.
        if kind.is_symlink() {
            continue;
        }
        if kind.is_dir() {
            let is_built = root.join(&path).join("CACHEDIR.TAG").exists();
            if !is_built {
                read(root, &format!("{path}/"), tree);
            }
        } else if kind.is_file() {
            match std::fs::read_to_string(root.join(&path)) {
                Ok(text) => tree.add(path, text),
                Err(_) => {
                    tree.binary.insert(path);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Complaints about one file in a tree where all else is right.
    fn complain(name: &str, text: &str) -> Vec<String> {
        let mut tree = Tree::default();
        tree.add("engine/Cargo.toml".to_owned(), String::new());
        tree.add("perf/Cargo.toml".to_owned(), String::new());
        let rooms = ["api", "driver", "memory", "progress", "proto", "wire"];
        let mut lib = rooms.map(|room| format!("mod {room};\n")).concat();
        for room in rooms {
            let pure = matches!(room, "proto" | "wire");
            let forbid = if pure { "#![forbid(unsafe_code)]\n" } else { "" };
            tree.add(format!("engine/src/{room}/mod.rs"), format!("{forbid}mod a;\n"));
            tree.add(format!("engine/src/{room}/a.rs"), String::new());
        }
        lib.push_str("#[cfg(test)]\nmod only_test;\n");
        tree.add("engine/src/lib.rs".to_owned(), lib);
        tree.add("engine/src/only_test.rs".to_owned(), String::new());
        tree.add("perf/src/main.rs".to_owned(), String::new());
        tree.add(name.to_owned(), text.to_owned());
        check(&tree)
    }

    #[test]
    fn each_rule_bites_once() {
        let home = ["/ho", "me/user/ringrail"].concat();
        let open = ["TO", "DO"].concat();
        let bad: &[(&str, &str, &str)] = &[
            ("engine/src/proto/a.rs", "fn f() { Instant::now(); }", "an argument"),
            ("engine/src/wire/a.rs", "use rand::random;", "an argument"),
            ("engine/src/proto/a.rs", "use crate::driver::Driver;", "may not use"),
            ("engine/src/wire/a.rs", "use crate::proto::core;", "may not use"),
            ("engine/src/wire/a.rs", "use crate::{wire::b, memory::C};", "crate::memory"),
            ("engine/src/proto/a.rs", "use super::super::memory::X;", "may not use"),
            ("engine/src/memory/a.rs", "fn f(x: crate::progress::Engine) {}", "may not use"),
            ("engine/src/driver/a.rs", "use crate::progress::engine::Engine;", "may not use"),
            ("engine/src/progress/a.rs", "use crate::driver::{traits, uring::U};", "uring::U"),
            ("engine/src/proto/mod.rs", "mod a;", "forbid(unsafe_code)"),
            ("engine/src/api/a.rs", "fn f() { unsafe { g() } }", "UNSAFE_ROOMS"),
            ("engine/src/api/a.rs", "unsafe impl Send for X {}", "UNSAFE_ROOMS"),
            ("engine/src/api/a.rs", "fn f() { println!(\"x\"); }", "tracing"),
            ("engine/src/api/a.rs", "fn f() { dbg!(1); }", "remove"),
            ("engine/src/api/a.rs", "fn f() { x.unwrap(); }", "invariant"),
            ("engine/src/api/a.rs", "fn f() { x.expect(\"must work\"); }", "invariant"),
            ("engine/src/api/lost.rs", "", "no `mod`"),
            ("engine/src/api/a.rs", &format!("// {open}: later"), "finish"),
            ("engine/src/api/a.rs", &format!("const P: &str = \"{home}\";"), "machine"),
            ("docs/notes.md", &format!("# One\n{home}\n"), "machine"),
            ("engine/src/api/a.rs", &"\n".repeat(601), "601 lines"),
            ("perf/src/main.rs", &format!("// {}", "x".repeat(98)), "100 columns"),
            (
                "perf/tests/a.rs",
                "fn f() { let Ok(x) = std::env::var(X) else { return }; }",
                "passes without doing",
            ),
            ("README.md", "# One\n# Two\n", "2 headings"),
            ("README.md", "Two\n", "0 headings"),
        ];
        for (name, text, about) in bad {
            let found = complain(name, text);
            assert!(found.len() == 1 && found[0].contains(about), "{name} {text}: {found:?}");
            assert!(found[0].starts_with(name), "{found:?}");
        }
    }

    #[test]
    fn good_texts_pass() {
        let good = [
            ("engine/src/proto/a.rs", "use crate::wire::Eager;\npub(crate) fn f() {}"),
            ("engine/src/proto/a.rs", "// Not Instant::now.\nconst A: &str = \"crate::api::x\";"),
            ("engine/src/proto/a.rs", "use super::b;\nuse brand::new;"),
            ("engine/src/proto/a.rs", "#[cfg(test)]\nmod t { use crate::memory::M; }"),
            ("engine/src/progress/a.rs", "use crate::driver::traits::{Driver, Event};"),
            ("engine/src/driver/a.rs", "use crate::{memory::A, proto::{packet::{B, C}}};"),
            ("engine/src/driver/a.rs", "fn f() { unsafe { run() } }"),
            ("engine/src/api/a.rs", "fn f() { x.expect(\"every lane has a slot\"); }"),
            ("engine/src/api/a.rs", "fn f() { x.expect(REASON); x.unwrap_or(1); }"),
            ("engine/src/api/a.rs", "#[cfg(test)]\nmod t { fn f() { x.unwrap(); eprintln!(); } }"),
            ("engine/src/only_test.rs", "fn f() { x.unwrap(); println!(); }"),
            ("engine/tests/ui/wrong.rs", "fn main() { x.unwrap() }"),
            ("perf/src/main.rs", "fn main() { println!(\"Latency\"); }"),
            ("README.md", "# One\n```\n# a comment\n```\n"),
        ];
        for (name, text) in good {
            assert_eq!(complain(name, text), [""; 0], "{name}: {text}");
        }
    }
}
