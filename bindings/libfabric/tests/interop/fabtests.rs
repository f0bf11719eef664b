//! libfabric's own tests, of the version that is installed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::mpi::provider_path;
use crate::others::finish;
use crate::table::{Outcome, Table};

/// A folder with their sources.
const SOURCES: &str = "TEST_OF_RINGRAIL_FABTESTS";

/// The sets of `runfabtests.sh`, and how long each may take. The second one runs where it is asked
/// for by name alone.
const SETS: [(&str, Duration); 2] =
    [("quick", Duration::from_secs(1800)), ("all", Duration::from_secs(80 * 60))];

const REPOSITORY: &str = "https://github.com/ofiwg/libfabric";

const CLONE_WITHIN: Duration = Duration::from_secs(120);
const BUILD_WITHIN: Duration = Duration::from_secs(900);

pub(crate) fn run(table: &mut Table, only: &str) {
    for (set, limit) in SETS {
        let name = format!("fabtests: runfabtests.sh -t {set}");
        if set == "quick" || only.split(',').any(|word| word == name) {
            table.step(&name, 1, || match built() {
                Ok(folder) => run_set(&folder, set, limit),
                Err(why) => Outcome::NotRun(why),
            });
        }
    }
}

/// The version of the system's libfabric, such as 1.17.0.
fn version() -> Result<String, String> {
    let output = Command::new("fi_info").arg("--version").output();
    let output = output.map_err(|error| format!("fi_info (cargo xtask setup): {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = said.lines().find_map(|line| line.strip_prefix("libfabric: "));
    found.map(str::to_owned).ok_or_else(|| format!("fi_info says no version: {said}"))
}

/// The folder of fabtests that are built.
fn built() -> Result<PathBuf, String> {
    let version = version()?;
    let top = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interop");
    let folder = top.join(format!("fabtests-{version}"));
    let is_built = folder.join("built");
    if is_built.exists() {
        return Ok(folder);
    }
    fs::create_dir_all(&top).map_err(|error| error.to_string())?;
    let _old = fs::remove_dir_all(&folder);
    let cloned = top.join("libfabric");
    let sources = match env::var_os(SOURCES) {
        Some(given) => PathBuf::from(given),
        None => {
            println!("interop: cloning libfabric {version}");
            let _old = fs::remove_dir_all(&cloned);
            let mut git = Command::new("git");
            let tag = format!("v{version}");
            git.args(["clone", "--quiet", "--depth", "1", "--branch", &tag, REPOSITORY]);
            git.arg(&cloned).env("GIT_TERMINAL_PROMPT", "0");
            finish(&mut git, Instant::now() + CLONE_WITHIN).map_err(|why| {
                format!("the sources of libfabric {version} cannot be had ({why}): --fabtests DIR")
            })?;
            cloned.join("fabtests")
        }
    };
    if !sources.join("configure.ac").exists() {
        return Err(format!("{} has no sources of fabtests", sources.display()));
    }
    println!("interop: building fabtests in {}", folder.display());
    let deadline = Instant::now() + BUILD_WITHIN;
    let copy = Command::new("cp").arg("-r").args([&sources, &folder]).status();
    copy.map_err(|error| error.to_string())?;
    let _cloned = fs::remove_dir_all(&cloned);
    let within = |program: &str, arguments: &[&str]| {
        let log = fs::File::create(folder.join("log")).map_err(|error| error.to_string())?;
        let errors = log.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&folder).stdout(log).stderr(errors);
        finish(&mut command, deadline).map_err(|why| {
            format!("fabtests cannot be built (autoconf, automake, libtool): {why}; see its log")
        })
    };
    within("./autogen.sh", &[])?;
    within("./configure", &["--quiet"])?;
    within("make", &["-s", "-j2"])?;
    fs::write(is_built, "").map_err(|error| error.to_string())?;
    Ok(folder)
}

/// Runs them in namespaces of their own: their clean-up kills by name, and looks at loopback alone.
fn run_set(folder: &Path, set: &str, limit: Duration) -> Outcome {
    let log_path = folder.join(format!("{set}.log"));
    let exclude = Path::new(env!("CARGO_MANIFEST_DIR")).join("fabtests.exclude");
    let log = match fs::File::create(&log_path) {
        Ok(log) => log,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    // With the name of a host it would take ssh.
    let script = "export PATH=$PWD/functional:$PWD/benchmarks:$PWD/unit:$PWD/ubertest:$PATH; \
                  ip link set lo up && exec scripts/runfabtests.sh -t \"$2\" -f \"$1\" ringrail";
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "--net", "--mount-proc", "--kill-child", "bash", "-c", script])
        .arg("fabtests")
        .arg(exclude)
        .arg(set)
        .current_dir(folder)
        .env("FI_PROVIDER_PATH", provider_path())
        .env("RINGRAIL_INSECURE", "true")
        .env("RINGRAIL_NICS", "lo")
        .stdout(log)
        .stderr(Stdio::null());
    let ended = finish(&mut command, Instant::now() + limit);
    let said = fs::read_to_string(&log_path).unwrap_or_default();
    let of = |word: &str| {
        let line = said.lines().find(|line| line.contains(word));
        line.and_then(|line| line.split_whitespace().last()?.parse::<usize>().ok())
    };
    let counts = (of("Total Pass"), of("Total Fail"), of("Total Notrun"));
    let (Some(passed), Some(failed), Some(not_run)) = counts else {
        let last: Vec<_> = said.lines().rev().take(3).collect();
        return Outcome::Failed(format!("it did not come to its end: {ended:?}: {last:?}"));
    };
    for line in said.lines().filter(|line| line.contains("Fail")) {
        println!("interop: {line}");
    }
    let log = log_path.display();
    let detail = format!("not run: tests of fabtests.exclude, and of features not offered; {log}");
    Outcome::Counted { passed, failed, not_run, detail }
}
