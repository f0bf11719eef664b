//! Commands in documents: each is run by a test or by a job of CI, which the table names.
//!
//! A command is a line of a block of `sh`, a line behind `$` in another block, and code within a
//! line of text that begins with the name of a program and has arguments.

use super::Tree;

/// Programs whose commands are looked for in lines of text.
const PROGRAMS: [&str; 9] = [
    "cargo",
    "fi_info",
    "fi_pingpong",
    "mpiexec",
    "mpirun",
    "ringrail-perf",
    "setcap",
    "wireshark",
    "man",
];

/// Lines of blocks that prepare the command behind them, and run with it.
const PREPARE: [&str; 3] = ["export ", "mkdir ", "cp "];

const FI: &str = "bindings/libfabric/tests/documented.rs";
const C: &str = "bindings/c/tests/programs.rs";
const PERF: &str = "perf/tests/documented.rs";
const CI: &str = ".github/workflows/ci.yml";
const NIGHTLY: &str = ".github/workflows/nightly.yml";
const SHORT: &str = "ci/src/test/mod.rs";
const LONG: &str = "ci/src/test/long.rs";
const OTHERS: &str = "bindings/libfabric/tests/interop/others.rs";

/// What a command begins with, the file that runs such commands, and what that file has to contain.
/// The first row that fits counts.
const TABLE: &[(&str, &str, &str)] = &[
    ("ringrail-perf compare", "perf/tests/compare.rs", "fn peers_stand_beside_ringrail"),
    ("ringrail-perf ", PERF, "fn every_measurement_of_the_documents_runs"),
    ("RANK=", C, "WORLD_SIZE"),
    ("RINGRAIL_INJECT_FAULTS=", "engine/tests/api/middleware.rs", "inject_faults"),
    ("wireshark -X", "engine/tests/api/captures.rs", "../perf/ringrail.lua"),
    ("setcap ", PERF, "fn the_privileges_of_the_documents_can_be_given"),
    ("cargo xtask check", CI, "cargo xtask check"),
    ("cargo xtask test --all", NIGHTLY, "cargo xtask test --all"),
    ("cargo xtask test", CI, "cargo xtask test"),
    ("cargo xtask demo", LONG, "demo::run"),
    ("cargo xtask fuzz", LONG, "fuzz::run"),
    ("cargo xtask sanitize", LONG, "sanitize::run"),
    ("cargo xtask interop", LONG, "interop::run"),
    ("cargo xtask instructions", SHORT, "instructions::build"),
    ("cargo xtask swarm", SHORT, "swarm.fixed_seeds"),
    ("cargo xtask lossy", "ci/src/lossy.rs", "a_million_messages_of_each_kind"),
    ("cargo xtask install", C, "fn the_commands_of_the_readme_run"),
    ("cargo test", SHORT, "programs()"),
    ("cargo build --release -p ringrail-fi", FI, "fn the_provider_is_installed_and_found"),
    ("cc hello.c ", C, "fn the_commands_of_the_readme_run"),
    ("man 3 rr_post_send", C, "fn the_commands_of_the_readme_run"),
    ("fi_info -p ringrail -v", FI, "fi_info -p ringrail -v"),
    ("fi_info -p ringrail", FI, "fn the_provider_is_installed_and_found"),
    ("fi_info -e", FI, "fi_info -e"),
    ("fi_info -l", FI, "fi_info -l"),
    ("fi_pingpong ", FI, "fn the_first_run_of_the_page_measures"),
    ("mpirun -np 2 --host nodeA,nodeB", FI, "fn an_mpi_program_runs_as_the_front_page_says"),
    ("mpirun -np 4 -x FI_PROVIDER_PATH --mca pml cm", FI, "fn open_mpi_4_sends"),
    ("mpirun -np 4 -x FI_PROVIDER_PATH --mca pml ob1", FI, "fn open_mpi_4_puts_and_gets"),
    ("mpirun -np 4 -x FI_PROVIDER_PATH -x RINGRAIL_JOB_SECRET", OTHERS, "opal_common_ofi"),
];

/// Pages whose commands users copy.
fn is_checked(name: &str) -> bool {
    name == "README.md"
        || name.starts_with("bindings/") && name.ends_with("README.md")
        || name.starts_with("engine/docs/")
}

/// Complains of commands without a row, and of rows without a command or without what they name.
pub(super) fn check(tree: &Tree, found: &mut Vec<String>) {
    let mut used = vec![false; TABLE.len()];
    for (name, text) in tree.other.iter().filter(|(name, _)| is_checked(name)) {
        for command in commands(text) {
            match TABLE.iter().position(|(start, ..)| command.starts_with(start)) {
                Some(row) => used[row] = true,
                None => found.push(format!(
                    "{name}: `{command}` is run by no test: have one run it, and add a row to \
                     ci/src/tidy/commands.rs"
                )),
            }
        }
    }
    for ((start, file, part), is_used) in TABLE.iter().zip(used) {
        // The trees of tests of other rules have few files.
        if !tree.other.contains_key("bindings/c/README.md") {
            return;
        }
        if !is_used {
            found.push(format!("ci/src/tidy/commands.rs: no page has `{start}`: remove the row"));
        }
        let has_part = |text: &str| text.contains(part);
        let is_there =
            tree.rust.iter().any(|(name, it)| name.starts_with(file) && has_part(&it.text))
                || tree.other.iter().any(|(name, text)| name.starts_with(file) && has_part(text));
        if !is_there {
            found.push(format!("{file}: `{part}` is not there, which runs `{start}`"));
        }
    }
}

/// All commands of a page, without their comments, in one line each.
fn commands(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, part) in page.split("```").enumerate() {
        if at % 2 == 0 {
            // Code in a line of text stands between single marks.
            let code = part.split('`').skip(1).step_by(2).map(words);
            found.extend(code.filter(|code| {
                // The tasks as such are no command.
                let has_arguments = |program| {
                    code.strip_prefix(program).is_some_and(|rest: &str| rest.starts_with(' '))
                };
                code != "cargo xtask" && PROGRAMS.into_iter().any(has_arguments)
            }));
            continue;
        }
        let (language, body) = part.split_once('\n').unwrap_or(("", part));
        for line in body.replace("\\\n", " ").lines() {
            let line = match language {
                "sh" => line,
                _ => match line.strip_prefix("$ ") {
                    Some(line) => line,
                    None => continue,
                },
            };
            let line = words(line.split(" #").next().unwrap_or(line));
            if !line.is_empty() && !PREPARE.iter().any(|start| line.starts_with(start)) {
                found.push(line);
            }
        }
    }
    found
}

fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_blocks_and_in_lines() {
        let page = "# A\nRun `cargo xtask\ntest`, not `cargo`, `cargo xtask` or `fi_cq_read x`.\n\
                    ```sh\nexport A=1\nmpirun -np 2 \\\n    ./a   # two\n```\n\
                    ```text\n$ ringrail-perf info\n  rail\n```\nOr `man 3 x`.\n";
        let expected = ["cargo xtask test", "mpirun -np 2 ./a", "ringrail-perf info", "man 3 x"];
        assert_eq!(commands(page), expected);
    }

    #[test]
    fn a_command_that_nothing_runs_is_a_complaint() {
        let mut tree = Tree::default();
        tree.add("engine/docs/a.md".to_owned(), "# A\n`cargo xtask bake`\n".to_owned());
        tree.add("SECURITY.md".to_owned(), "# A\n`cargo xtask bake`\n".to_owned());
        let mut found = Vec::new();
        check(&tree, &mut found);
        assert!(found.len() == 1 && found[0].contains("`cargo xtask bake` is run by no test"));
        tree.add("bindings/c/README.md".to_owned(), "# A\n`man 3 rr_post_send`\n".to_owned());
        check(&tree, &mut found);
        let program = "bindings/c/tests/programs.rs: `fn the_commands_of_the_readme_run`";
        assert!(found.iter().any(|line| line.starts_with(program)), "{found:?}");
        assert!(found.iter().any(|line| line.contains("no page has `setcap ")), "{found:?}");
    }
}
