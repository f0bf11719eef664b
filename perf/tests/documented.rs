//! The commands of the documents that measure, word for word.
//!
//! Goal: who copies a command out of a page gets a measurement. Method: the lines come from the
//! pages; each runs with few iterations, and with a place for the other side where the page leaves
//! that to the reader.

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ringrail_tests::require_lab;

/// A command takes seconds; beyond this something hangs.
const LIMIT: Duration = Duration::from_secs(240);

/// Commands that other tests run: with peers in the place of DIR, saved results in that of OLD,
/// and valgrind.
const ELSEWHERE: [&str; 4] = ["compare", "diff", "plot", "instructions"];

/// What a page leaves to the reader.
const PLACEHOLDERS: [(&str, &str); 2] =
    [("N", "2"), ("10.77.0.2,10.77.1.2", "127.0.0.1,127.0.0.2")];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn page(name: &Path) -> String {
    std::fs::read_to_string(name).unwrap_or_else(|error| panic!("{}: {error}", name.display()))
}

/// The pages whose commands users copy.
fn pages() -> Vec<String> {
    let sections = ["guide", "reference", "internals"];
    let sections = sections.iter().map(|name| root().join("engine/docs").join(name));
    let docs = sections.flat_map(|section| std::fs::read_dir(section).unwrap());
    let docs = docs.map(|entry| entry.unwrap().path());
    let other = ["README.md", "bindings/c/README.md", "bindings/libfabric/README.md"];
    docs.chain(other.map(|name| root().join(name))).map(|name| page(&name)).collect()
}

/// The arguments of each command with `ringrail-perf` of a page.
fn commands(page: &str) -> Vec<Vec<String>> {
    let in_lines = page.split('`').map(|code| code.to_owned());
    let in_blocks = page.lines().map(|line| line.strip_prefix("$ ").unwrap_or(line));
    let in_blocks = in_blocks.filter(|line| line.starts_with("ringrail-perf "));
    let in_blocks = in_blocks.filter_map(|line| line.split(" #").next()).map(str::to_owned);
    let arguments = in_lines.chain(in_blocks).filter_map(|code| {
        let code = code.replace("cargo run --release -p ringrail-perf -- ", "ringrail-perf ");
        let mut words = code.split_whitespace().map(str::to_owned);
        (words.next()? == "ringrail-perf").then(|| words.collect::<Vec<_>>())
    });
    arguments.filter(|words| !words.is_empty()).collect()
}

#[test]
fn every_measurement_of_the_documents_runs() {
    require_lab!();
    let all: BTreeSet<Vec<String>> = pages().iter().flat_map(|page| commands(page)).collect();
    assert!(all.len() > 8, "the pages have commands: {all:?}");
    let folder = tempfile::tempdir().unwrap();
    for documented in all {
        let test = documented[0].as_str();
        if ELSEWHERE.contains(&test) {
            continue;
        }
        let mut words: Vec<String> = documented
            .iter()
            .map(|word| match PLACEHOLDERS.iter().find(|(page, _)| page == word) {
                Some((_, value)) => (*value).to_owned(),
                None if word.ends_with(".pcap") || word.ends_with(".svg") => {
                    folder.path().join(word).to_str().unwrap().to_owned()
                }
                None => word.clone(),
            })
            .collect();
        let has = |name: &str| documented.iter().any(|word| word == name);
        let places = ["--loopback", "--lab", "--listen", "--connect"];
        // A page may state its own number of iterations.
        if let Some(at) = words.iter().position(|word| word == "--iters") {
            words.drain(at..at + 2);
        }
        if test == "failover" {
            if !has("--lab") {
                words.extend(["--lab", "rails=2"].map(str::to_owned));
            }
            words.extend(["--iters", "1"].map(str::to_owned));
        } else if test != "info" {
            // Memory of one host needs no place; of the others the page says that one is chosen.
            if !places.into_iter().any(has) && !has("shm") {
                words.push("--loopback".to_owned());
            }
            words.extend(["--brief", "--iters", "8"].map(str::to_owned));
            if test == "overlap" {
                words.extend(["--size", "1M"].map(str::to_owned));
            }
            if test == "crossover" {
                words.extend(["--size", "4096:8192"].map(str::to_owned));
            }
        }
        let arguments: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = common::perf(&arguments, LIMIT);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{documented:?}, run as {words:?}: {said}");
        assert!(!output.stdout.is_empty(), "{documented:?} prints nothing");
    }
}

#[test]
fn the_privileges_of_the_documents_can_be_given() {
    require_lab!();
    let guide = page(&root().join("engine/docs/guide/af-xdp.md"));
    let line = guide.split('`').find(|code| code.starts_with("setcap ")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    std::fs::copy(env!("CARGO_BIN_EXE_ringrail-perf"), &program).unwrap();
    let line = line.replace("PROGRAM", program.to_str().unwrap());
    let output = Command::new("sh").args(["-e", "-c", &line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    let given = Command::new("getcap").arg(&program).output().unwrap();
    let given = String::from_utf8_lossy(&given.stdout).into_owned();
    for name in ["cap_net_raw", "cap_net_admin", "cap_bpf", "cap_ipc_lock"] {
        assert!(given.contains(name), "{name}: {given}");
    }
}
