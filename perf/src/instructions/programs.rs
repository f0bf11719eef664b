//! The programs that are counted: this one, and one in C for each other library, which does the
//! same and is compiled when it is needed.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use super::row::{Library, Pattern, What, name};
use super::valgrind::Load;
use crate::cli::Lanes;
use crate::secret;

/// The file of the provider, as cargo builds it beside this program.
const PROVIDER: &str = "libringrail_fi.so";
/// The environment variable by which a provider that is built for counting has a slower clock.
const SLOW_CLOCKS: &str = "BENCH_OF_RINGRAIL_SLOW_CLOCKS";

/// A program in C: its text, what it is linked with, and the package that has its headers.
struct Source {
    text: &'static str,
    libraries: &'static [&'static str],
    package: &'static str,
}

const LOOP: &str = include_str!("programs/loop.h");
const FABRIC: Source = Source {
    text: include_str!("programs/fabric.c"),
    libraries: &["-lfabric"],
    package: "valgrind libfabric-dev",
};
const UCX: Source = Source {
    text: include_str!("programs/ucx.c"),
    libraries: &["-lucp", "-lucs"],
    package: "valgrind libucx-dev",
};

/// A program that exchanges messages between marks.
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// Arguments but for the load.
    fixed: Vec<String>,
    environment: Vec<(String, String)>,
    is_own: bool,
}

impl Program {
    /// Its arguments.
    pub(super) fn arguments(&self, load: Load) -> Vec<String> {
        let mut arguments = self.fixed.clone();
        let options = ["--warm-up", "--messages", "--batches"];
        for (option, value) in options.into_iter().zip([load.warm_up, load.messages, load.batches])
        {
            arguments.extend(self.is_own.then(|| option.to_owned()));
            arguments.push(value.to_string());
        }
        if self.is_own {
            arguments.extend(["--slowness".to_owned(), load.slowness.to_string()]);
        }
        arguments
    }

    /// What runs it: valgrind. A library may look for its own process in /proc, under the id that
    /// it has in the lab.
    pub(super) fn launcher(&self) -> (&'static str, &'static [&'static str]) {
        match self.is_own {
            true => ("valgrind", &[]),
            false => ("unshare", &["--mount-proc", "valgrind"]),
        }
    }

    /// Its environment.
    pub(super) fn environment(&self, load: Load) -> Vec<(String, String)> {
        let slowness = (SLOW_CLOCKS.to_owned(), load.slowness.to_string());
        self.environment.iter().cloned().chain([slowness]).collect()
    }
}

/// Programs that are there, or were compiled for this run.
pub(super) struct Programs {
    folder: TempDir,
    provider: PathBuf,
    fabric: OnceLock<Result<PathBuf, String>>,
    ucx: OnceLock<Result<PathBuf, String>>,
}

impl Programs {
    /// `provider` is ringrail's, unless it is beside this program.
    pub(super) fn new(provider: Option<&Path>) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
        let provider = match provider {
            Some(provider) => provider
                .canonicalize()
                .map_err(|error| format!("{}: {error}", provider.display()))?,
            None => own_path()?.with_file_name(PROVIDER),
        };
        Ok(Self { folder, provider, fabric: OnceLock::new(), ucx: OnceLock::new() })
    }

    /// The program for `what`, in the networks of a lab. An error states why this host cannot count
    /// it.
    pub(super) fn find(&self, what: &What, networks: &str) -> Result<Program, String> {
        match what.library {
            Library::Ringrail => own(what, networks),
            library => {
                if let Some(reason) = refuses(what) {
                    return Err(reason);
                }
                let (path, environment) = match library {
                    Library::Ucx => (self.ucx()?, environment_of_ucx(what)),
                    Library::Provider => (self.fabric()?, self.environment_of_provider(what)?),
                    Library::Ringrail | Library::Libfabric => (self.fabric()?, Vec::new()),
                };
                let row = if what.pattern == Pattern::PingPong { 1 } else { what.pattern.round() };
                let numbers = [row, what.size_bytes as u64, what.empty_turns.into()];
                let mut fixed = vec![transport(what).to_owned()];
                fixed.extend(numbers.map(|number| number.to_string()));
                Ok(Program { path, fixed, environment, is_own: false })
            }
        }
    }

    fn fabric(&self) -> Result<PathBuf, String> {
        self.fabric.get_or_init(|| compile(self.folder.path(), "fabric", &FABRIC)).clone()
    }

    fn ucx(&self) -> Result<PathBuf, String> {
        self.ucx.get_or_init(|| compile(self.folder.path(), "ucx", &UCX)).clone()
    }

    /// libfabric looks for providers in a folder, under a name of its own.
    fn environment_of_provider(&self, what: &What) -> Result<Vec<(String, String)>, String> {
        let cure =
            "cargo build --release -p ringrail-perf -p ringrail-fi --features ringrail-fi/bench";
        let built = std::fs::read(&self.provider)
            .map_err(|error| format!("{}: {error}; {cure}", self.provider.display()))?;
        let is_for_counting =
            built.windows(SLOW_CLOCKS.len()).any(|part| part == SLOW_CLOCKS.as_bytes());
        if !is_for_counting {
            let provider = self.provider.display();
            return Err(format!("{provider} was built without its feature bench; {cure}"));
        }
        let link = self.folder.path().join("libringrail-fi.so");
        // Rows that are counted at the same time make the same link.
        if let Err(error) = symlink(&self.provider, &link)
            && !link.exists()
        {
            return Err(format!("{}: {error}", link.display()));
        }
        let folder = self.folder.path().display().to_string();
        let mut environment = vec![
            ("FI_PROVIDER_PATH".to_owned(), folder),
            ("RINGRAIL_CONFIG".to_owned(), String::new()),
            ("RINGRAIL_NICS".to_owned(), "lo".to_owned()),
        ];
        let mut set = |name: &str, value: &str| {
            environment.push((format!("RINGRAIL_{}", name.to_uppercase()), value.to_owned()))
        };
        for (name, value) in what.lanes.settings() {
            set(name, value);
        }
        for setting in &what.settings {
            let (name, value) =
                setting.split_once('=').ok_or_else(|| format!("--set {setting}: NAME=VALUE"))?;
            set(name, value);
        }
        secret::fresh(what.lanes, &what.settings)?;
        if let Some(secret) = secret::of_this_run() {
            environment.push((secret::VARIABLE.to_owned(), secret.to_hex().as_str().to_owned()));
        }
        Ok(environment)
    }
}

/// This program, as the one that is counted.
fn own(what: &What, networks: &str) -> Result<Program, String> {
    let numbers = [
        ("--size", what.size_bytes as u64),
        ("--empty-turns", what.empty_turns.into()),
        ("--peers", what.peers.into()),
        ("--endpoints", what.endpoints.into()),
    ];
    let words = [("--lanes", name(what.lanes)), ("--pattern", name(what.pattern))];
    let mut fixed = vec!["instructions".to_owned(), "--networks".to_owned(), networks.to_owned()];
    for (option, value) in words {
        fixed.extend([option.to_owned(), value]);
    }
    for (option, value) in numbers {
        fixed.extend([option.to_owned(), value.to_string()]);
    }
    fixed.extend(what.shared.then(|| "--shared".to_owned()));
    for setting in &what.settings {
        fixed.extend(["--set".to_owned(), setting.clone()]);
    }
    let (path, environment) = (own_path()?, Vec::new());
    Ok(Program { path, fixed, environment, is_own: true })
}

fn own_path() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("the path of this program: {error}"))
}

/// Why a program in C does not exchange these messages; `None`: it does.
fn refuses(what: &What) -> Option<String> {
    let library = name(what.library);
    if !matches!(what.pattern, Pattern::PingPong | Pattern::Coalesced) {
        return Some(format!("{library} is counted with messages, not with puts or gets"));
    }
    if what.peers > 1 || what.endpoints > 1 || what.shared {
        return Some(format!("{library} is counted with two endpoints, one on each side"));
    }
    let lanes = name(what.lanes);
    match (what.library, what.lanes) {
        (_, Lanes::Shm | Lanes::Sockets) | (Library::Provider, Lanes::UdpSockets | Lanes::Auto) => {
            None
        }
        (Library::Provider, _) => Some(format!(
            "{library} has a shared engine, which goes by plain sockets: --lanes shm, udp-sockets, \
             sockets or auto, not {lanes}"
        )),
        _ => Some(format!(
            "{library} is counted with --lanes shm and --lanes sockets (TCP), not with {lanes}"
        )),
    }
}

/// The transport argument of the programs: of libfabric the provider's name.
fn transport(what: &What) -> &'static str {
    match (what.library, what.lanes) {
        (Library::Provider, _) => "ringrail",
        (Library::Ucx, Lanes::Shm) => "posix",
        (_, Lanes::Shm) => "shm",
        _ => "tcp",
    }
}

fn environment_of_ucx(what: &What) -> Vec<(String, String)> {
    let pairs = [("UCX_TLS", transport(what)), ("UCX_WARN_UNUSED_ENV_VARS", "n")];
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}

/// Compiles a program into `folder`; an error states what is missing.
fn compile(folder: &Path, name: &str, source: &Source) -> Result<PathBuf, String> {
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).map_err(|error| format!("{name}: {error}"))
    };
    let file = format!("{name}.c");
    write("loop.h", LOOP)?;
    write(&file, source.text)?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-g", "-o", name, &file]).args(source.libraries).current_dir(folder);
    let output = compiler.output().map_err(|error| format!("a C compiler (cc): {error}"))?;
    if output.status.success() {
        return Ok(folder.join(name));
    }
    let log = String::from_utf8_lossy(&output.stderr);
    let error = log.lines().find(|line| line.contains("error")).unwrap_or(&log);
    Err(format!("{error}; on Debian: apt-get install {}", source.package))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(library: &str, lanes: &str, pattern: &str) -> What {
        let text = format!(
            r#"{{"test":"instructions","library":"{library}","pattern":"{pattern}",
               "lanes":"{lanes}","lab":"rails=1","size_bytes":8,"empty_turns":1}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    const LOAD: Load = Load { warm_up: 5, messages: 2, batches: 3, slowness: 64 };

    #[test]
    fn libraries_are_counted_by_the_transports_that_they_have() {
        for (library, lanes, pattern, found) in [
            ("provider", "udp-sockets", "ping-pong", Ok("ringrail")),
            ("provider", "udp", "ping-pong", Err("plain sockets")),
            ("provider", "shm", "coalesced", Ok("ringrail")),
            ("libfabric", "shm", "ping-pong", Ok("shm")),
            ("libfabric", "sockets", "ping-pong", Ok("tcp")),
            ("ucx", "shm", "ping-pong", Ok("posix")),
            ("ucx", "sockets", "coalesced", Ok("tcp")),
            ("ucx", "udp", "ping-pong", Err("not with udp")),
            ("provider", "shm", "put", Err("not with puts")),
        ] {
            let what = what(library, lanes, pattern);
            match (refuses(&what), found) {
                (None, Ok(name)) => assert_eq!(transport(&what), name),
                (Some(reason), Err(part)) => assert!(reason.contains(part), "{reason}"),
                (reason, _) => panic!("{library} {lanes}: {reason:?}"),
            }
        }
        let shared = What { shared: true, ..what("ucx", "shm", "ping-pong") };
        assert!(refuses(&shared).is_some());
    }

    #[test]
    fn programs_get_the_load_as_they_take_it() {
        let own = own(&what("ringrail", "udp", "ping-pong"), "a,b").unwrap();
        let line = own.arguments(LOAD).join(" ");
        assert!(line.starts_with("instructions --networks a,b --lanes udp"), "{line}");
        assert!(line.contains("--empty-turns 1"), "{line}");
        assert!(line.ends_with("--warm-up 5 --messages 2 --batches 3 --slowness 64"), "{line}");
        let other = Program { fixed: vec!["tcp".to_owned()], is_own: false, ..own };
        assert_eq!(other.arguments(LOAD), ["tcp", "5", "2", "3"]);
        assert!(other.environment(LOAD).contains(&(SLOW_CLOCKS.to_owned(), "64".to_owned())));
    }

    #[test]
    fn a_library_that_is_not_there_is_named_with_its_package() {
        let folder = tempfile::tempdir().unwrap();
        let text = "#include <no/such/header.h>\nint main(void) { return 0; }\n";
        let source = Source { text, libraries: &[], package: "libno-such-dev" };
        let error = compile(folder.path(), "none", &source).unwrap_err();
        assert!(error.contains("no/such/header.h"), "{error}");
        assert!(error.ends_with("apt-get install libno-such-dev"), "{error}");
    }
}
