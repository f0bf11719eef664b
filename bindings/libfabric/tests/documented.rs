//! The commands of README.md, word for word.
//!
//! Goal: who copies a command out of the page gets what the page says. Method: the lines come from
//! the page itself; `sh` runs them with a home folder, a working folder and addresses of the test
//! in the place of those of the page. What `cargo xtask interop` runs (other MPIs, which it has
//! from PyPI) is not run here.

mod common;

use std::path::Path;
use std::process::Command;

use common::{Provider, finish, run, start, text};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// The blocks of shell commands of a page, and the commands in cells of its tables.
fn blocks(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(Path::new(HERE).join(page)).expect("a page");
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let cells = text.lines().filter(|line| line.starts_with('|'));
    let cells = cells.flat_map(|line| line.split('`').skip(1).step_by(2));
    blocks.chain(cells).map(str::to_owned).collect()
}

/// The one block of a page with `words`.
fn block(page: &str, words: &str) -> String {
    let mut found = blocks(page).into_iter().filter(|block| block.contains(words));
    let block = found.next().unwrap_or_else(|| panic!("{page} has no command with {words}"));
    assert_eq!(found.next(), None, "{page} has one block with {words}");
    block
}

/// A shell that runs `script` as a user would.
fn shell(provider: &Provider, script: &str) -> Command {
    let mut command = provider.command("sh");
    command.args(["-e", "-c", script]);
    command
}

/// Open MPI in a container or on a small host, as root.
fn on_one_small_host(command: &mut Command, folder: &Path) {
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1").env("TMPDIR", folder);
    command.env("OMPI_MCA_hwloc_base_binding_policy", "none").env("OMPI_MCA_osc", "^ucx");
    command.env("OMPI_MCA_oob_tcp_if_include", "lo").current_dir(folder);
}

#[test]
fn the_provider_is_installed_and_found_as_the_page_says() {
    let provider = Provider::new();
    let home = tempfile::tempdir().expect("a folder");
    let release = home.path().join("target/release");
    std::fs::create_dir_all(&release).expect("a folder");
    std::fs::copy(provider.library(), release.join("libringrail_fi.so")).expect("a copy");
    let script = block("README.md", "fi_info -p ringrail ");
    // What this would build was built with this test.
    let build = "cargo build --release -p ringrail-fi";
    assert!(script.contains(build), "{script}");
    let script = script.replace(build, "true");
    let mut command = shell(&provider, &script);
    command.env("HOME", home.path()).current_dir(home.path()).env_remove("FI_PROVIDER_PATH");
    let output = run(&mut command);
    let printed = text(&output);
    assert!(output.status.success() && printed.contains("provider: ringrail"), "{printed}");
}

#[test]
fn the_first_run_of_the_page_measures() {
    let provider = Provider::new();
    let script = block("README.md", "fi_pingpong");
    let lines: Vec<&str> = script.lines().collect();
    let [server, client] = lines[..] else { panic!("a server and a client: {script}") };
    assert!(client.contains(" 10.0.0.1 "), "{client}");
    let command = |line: &str| line.split(" #").next().unwrap_or(line).trim().to_owned();
    let client = command(&client.replace(" 10.0.0.1 ", " 127.0.0.1 "));
    // The port of fi_pingpong is the same for all of a host: these two have a network of their own.
    let script = format!(
        "ip link set lo up; {} & i=0; until {client}; do i=$((i+1)); [ $i -lt 200 ]; sleep 0.1; \
         done; wait",
        command(server)
    );
    ringrail_tests::require_lab!();
    let mut command = provider.command("unshare");
    command.args(["--net", "sh", "-e", "-c", &script]).env("RINGRAIL_INSECURE", "true");
    let output = finish(start(&mut command));
    let printed = text(&output);
    assert!(output.status.success() && printed.contains("MB/sec"), "{printed}");
}

/// Runs a command of Open MPI 4 of a page, on one host, with a program of `mpi`. What the page has
/// in the place of names of hosts and folders is replaced.
fn mpirun(page: &str, words: &str, name: &str, replaced: &[(&str, &str)]) -> String {
    let provider = Provider::new();
    let folder = tempfile::Builder::new().prefix("rr").tempdir_in("/tmp").expect("a folder");
    let source = Path::new(HERE).join("mpi").join(format!("{name}.c"));
    for program in [name, "program"] {
        let mut compiler = Command::new("mpicc");
        compiler.args(["-O2", "-D_POSIX_C_SOURCE=200809L", "-lpthread", "-o"]);
        let built = run(compiler.arg(folder.path().join(program)).arg(&source));
        assert!(built.status.success(), "{}", text(&built));
    }
    let script = block(page, words);
    let from = script.find("mpirun").expect("a command of Open MPI");
    let mut script = script[from..].to_owned();
    for (before, after) in replaced {
        assert!(script.contains(before), "{script}");
        script = script.replace(before, after);
    }
    let library = provider.library();
    let path = library.parent().and_then(Path::to_str).expect("a folder");
    let script = script.replace("/usr/local/lib/libfabric", path);
    let mut command = shell(&provider, &script);
    on_one_small_host(&mut command, folder.path());
    let output = run(&mut command);
    let printed = text(&output);
    assert!(output.status.success(), "{printed}");
    printed
}

fn sends_messages(words: &str) {
    let printed = mpirun("README.md", words, "messages", &[]);
    assert_eq!(printed.lines().filter(|line| line.ends_with(": good")).count(), 8, "{printed}");
}

#[test]
fn open_mpi_4_sends_as_the_page_says() {
    sends_messages("--mca mtl_ofi_provider_include ringrail ./program");
}

#[test]
fn open_mpi_4_puts_and_gets_as_the_page_says() {
    sends_messages("--mca btl_ofi_provider_include ringrail");
}

#[test]
fn an_mpi_program_runs_as_the_front_page_says() {
    let hosts = [("nodeA,nodeB", "localhost:2"), ("./program", "./steady 1")];
    let printed = mpirun("../../README.md", "mpirun -np 2 --host", "steady", &hosts);
    assert!(printed.contains(" rounds in "), "{printed}");
}

#[test]
fn settings_and_faults_are_shown_as_the_page_says() {
    let provider = Provider::new();
    let page = std::fs::read_to_string(Path::new(HERE).join("README.md")).expect("a page");
    // Code of one line may go on in the next one.
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for (command, printed) in [
        ("fi_info -p ringrail -v", "prov_name: ringrail"),
        ("fi_info -e", "FI_RINGRAIL_NICS"),
        ("fi_info -l", "ringrail"),
        ("FI_LOG_LEVEL=info fi_info -l 2>&1 | grep -i ringrail", "registering provider: ringrail"),
    ] {
        let quoted = format!("`{command}");
        assert!(page.contains(&quoted), "the page has no `{command}`");
        let output = run(&mut shell(&provider, command));
        assert!(output.status.success() && text(&output).contains(printed), "{}", text(&output));
    }
}
