//! Builds the test programs of the workspace, and lists their tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::run::cargo;

/// One build serves every run: other packages or features would build the engine again.
const FEATURES: &str = "ringrail/bench,ringrail-xdp/faults";

/// The same with the simulated network, for programs that are no tests. What the workspace depends
/// on is built once for both.
const FEATURES_OF_SIMULATION: &str = "ringrail/bench,ringrail/sim,ringrail-xdp/faults";

/// A test program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Program {
    /// The name of its package, such as `ringrail`.
    pub(super) package: String,
    /// The name of its target: of a library that of the library, of `tests/api/main.rs` `api`.
    pub(super) target: String,
    /// An integration test: one of a `tests` folder.
    pub(super) is_integration: bool,
    pub(super) path: PathBuf,
    /// The folder of its package, in which its tests run.
    pub(super) folder: PathBuf,
}

/// A test of a program, and whether only an explicit request runs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Test {
    pub(super) name: String,
    pub(super) is_ignored: bool,
}

/// The models of lock-free parts, which only the long set runs.
const MODELS: &str = "ringrail-models";

/// A cargo command for the tests of the whole workspace but for the models.
pub(super) fn cargo_test() -> Command {
    cargo(&["test", "--workspace", "--exclude", MODELS, "--features", FEATURES])
}

/// Builds all test programs but for the models, and the programs and examples that they start.
pub(super) fn programs() -> Result<Vec<Program>, String> {
    build(cargo_test())
}

/// Builds the models.
pub(super) fn models() -> Result<Vec<Program>, String> {
    build(cargo(&["test", "--package", MODELS]))
}

/// Builds what a cargo command tests.
fn build(mut command: Command) -> Result<Vec<Program>, String> {
    command.arg("--no-run");
    let mut programs: Vec<Program> =
        messages(&mut command)?.iter().filter_map(program_of).collect();
    programs.sort_by(|a, b| (&a.package, &a.target).cmp(&(&b.package, &b.target)));
    if programs.is_empty() {
        return Err(format!("{command:?} has built no test program"));
    }
    Ok(programs)
}

/// Builds an example of the engine that simulates, and returns its path.
pub(crate) fn simulation(example: &str) -> Result<PathBuf, String> {
    let mut command = cargo(&["build", "--workspace", "--exclude", MODELS]);
    command.args(["--features", FEATURES_OF_SIMULATION, "--example", example]);
    let messages = messages(&mut command)?;
    let built = messages.iter().filter(|message| message["target"]["name"] == example);
    let path = built.filter_map(|message| message["executable"].as_str()).next_back();
    path.map(PathBuf::from).ok_or_else(|| format!("{command:?} has built no {example}"))
}

/// Runs a build, and returns cargo's messages.
fn messages(command: &mut Command) -> Result<Vec<Value>, String> {
    command.args(["--message-format", "json-render-diagnostics"]);
    println!("+ {command:?}");
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?} ended with {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// The test program that a message of cargo is about.
fn program_of(message: &Value) -> Option<Program> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let target = &message["target"];
    let kinds = target["kind"].as_array()?;
    Some(Program {
        package: package_name(message["package_id"].as_str()?).to_owned(),
        target: target["name"].as_str()?.to_owned(),
        is_integration: kinds.iter().any(|kind| kind == "test"),
        path,
        folder,
    })
}

/// The name in a package id: `path+file:///x/engine#ringrail@0.1.0`, or `path+file:///x/ci#0.1.0`
/// where the folder has the same name.
fn package_name(id: &str) -> &str {
    let (place, rest) = id.split_once('#').unwrap_or((id, ""));
    match rest.split_once('@') {
        Some((name, _)) => name,
        None => place.rsplit('/').next().unwrap_or(place),
    }
}

impl Program {
    /// The tests of this program.
    pub(super) fn tests(&self) -> Result<Vec<Test>, String> {
        let ignored: BTreeSet<String> = self.list(&["--ignored"])?.into_iter().collect();
        let all = self.list(&[])?;
        let test = |name: String| Test { is_ignored: ignored.contains(&name), name };
        Ok(all.into_iter().map(test).collect())
    }

    fn list(&self, options: &[&str]) -> Result<Vec<String>, String> {
        let mut command = Command::new(&self.path);
        command.args(["--list", "--format", "terse"]).args(options).current_dir(&self.folder);
        let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
        if !output.status.success() {
            return Err(format!("{command:?} ended with {}", output.status));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_read_from_cargos_messages() {
        let line = r#"{"reason":"compiler-artifact",
            "package_id":"path+file:///x/engine#ringrail@0.1.0",
            "manifest_path":"/x/engine/Cargo.toml","target":{"kind":["test"],"name":"api"},
            "profile":{"test":true},"executable":"/x/target/debug/deps/api-1"}"#;
        let program_of = |text: &str| program_of(&serde_json::from_str(text).unwrap());
        let program = program_of(line).unwrap();
        assert_eq!((&*program.package, &*program.target), ("ringrail", "api"));
        assert!(program.is_integration);
        assert_eq!(program.folder, Path::new("/x/engine"));
        let library =
            line.replace(r#""executable":"/x/target/debug/deps/api-1""#, r#""executable":null"#);
        assert_eq!(program_of(&library), None);
        assert_eq!(program_of(&line.replace(r#""test":true"#, r#""test":false"#)), None);
        assert_eq!(program_of("{}"), None);
    }

    #[test]
    fn a_package_id_names_the_package() {
        assert_eq!(package_name("path+file:///x/engine#ringrail@0.1.0"), "ringrail");
        assert_eq!(package_name("path+file:///x/ci/xtask#0.1.0"), "xtask");
    }
}
