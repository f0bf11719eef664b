//! MPI programs over the provider, in labs.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs};

use ringrail_tests::lab::{Host, Lab, LabChild, LabCommand, LabSpec};
use tempfile::TempDir;

/// Longer than anything here takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(150);

/// What ranks of Open MPI talk by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// mtl/ofi over ringrail.
    Ringrail,
    /// btl/ofi over ringrail: Open MPI moves its messages by puts and gets.
    #[allow(dead_code, reason = "not every test program runs it")]
    RingrailBtl,
    /// Open MPI's own TCP, to compare with.
    #[allow(dead_code, reason = "not every test program compares")]
    Tcp,
    /// Its memory shared by the processes of a host, to compare with.
    #[allow(dead_code, reason = "not every test program compares")]
    Vader,
    /// mtl/ofi over another provider.
    #[allow(dead_code, reason = "not every test program compares")]
    Provider(&'static str),
}

/// The folder with the provider, as `FI_PROVIDER_PATH` takes it.
pub(crate) fn provider_path() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let test = env::current_exe().expect("a test has a path");
        // The library is built with its tests, and lies beside them or, when it was asked for by
        // name, a folder higher.
        let near = test.parent().expect("it lies in a folder");
        let built = near.join("libringrail_fi.so");
        assert!(built.is_file(), "{} is built with the tests", built.display());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("provider");
        fs::create_dir_all(&folder).expect("a folder for the provider");
        let link = folder.join("libringrail-fi.so");
        let new = folder.join(format!("new-{}", std::process::id()));
        std::os::unix::fs::symlink(&built, &new).expect("a link to the provider");
        fs::rename(&new, &link).expect("a link to the provider");
        folder
    })
}

/// Compiles `mpi/NAME.c` with the MPI of the system.
pub(crate) fn program(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    compile(name, Path::new("mpicc"), folder).unwrap_or_else(|error| panic!("{error}"))
}

/// Compiles `mpi/NAME.c` with `mpicc` into `folder`.
pub(crate) fn compile(name: &str, mpicc: &Path, folder: &Path) -> Result<PathBuf, String> {
    // Tests that want the same one at a time share it.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("mpi").join(format!("{name}.c"));
    let (new, done) = (folder.join(format!("{name}-{}", std::process::id())), folder.join(name));
    let flags = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2", "-Wall", "-Wextra", "-Werror"];
    let output = Command::new(mpicc)
        .args(flags)
        .arg(&source)
        .args(["-lpthread", "-o"])
        .arg(&new)
        .output()
        .map_err(|error| {
            format!("{} (cargo xtask setup installs that of the system): {error}", mpicc.display())
        })?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{} does not compile:\n{errors}", source.display()));
    }
    fs::rename(&new, &done).map_err(|error| format!("{}: {error}", done.display()))?;
    Ok(done)
}

/// Two hosts, of which the second starts what `mpirun` of the first asks for.
pub(crate) struct Cluster {
    pub(crate) lab: Lab,
    folder: TempDir,
    /// Ends with this.
    _starter: LabChild,
}

impl Cluster {
    pub(crate) fn new(spec: &LabSpec) -> Self {
        let lab = Lab::build(spec).expect("a lab");
        // Session directories of Open MPI have long names already.
        let folder = TempDir::with_prefix_in("rr", "/tmp").expect("a folder");
        let requests = folder.path().join("requests");
        let made = Command::new("mkfifo").arg(&requests).status().expect("mkfifo runs");
        assert!(made.success());
        let starter = format!(
            "while :; do command=$(cat {0}); sh -c \"$command\" & done",
            requests.display()
        );
        // Session directories have the name of the host and a process id, which is that of another
        // namespace: beside a test that runs at the same time they need a place of their own.
        let there = folder.path().join("b");
        fs::create_dir(&there).expect("a folder for host b");
        let mut shell = lab.host(Host::B).command("sh");
        let starter = shell.args(["-c", &starter]).env("TMPDIR", &there).spawn();
        // As ssh: a host, and words for its shell. It ends when the command does. Some launchers go
        // to their own host that way, too.
        let agent = format!(
            "#!/bin/sh\nhost=$1\nshift\n\
             case $host in {1}|{2}) exec sh -c \"$*\";; esac\nend={0}/end-$$\nmkfifo \"$end\"\n\
             printf '{{ %s\\n}}; echo $? > %s\\n' \"$*\" \"$end\" > {0}/requests\n\
             read -r code < \"$end\"\nexit \"$code\"\n",
            folder.path().display(),
            Host::A.name(),
            lab.addr(Host::A, 0),
        );
        let agent_path = folder.path().join("agent");
        fs::write(&agent_path, agent).expect("an agent");
        fs::set_permissions(&agent_path, fs::Permissions::from_mode(0o755)).expect("it may run");
        Self { lab, folder, _starter: starter.expect("host b starts programs") }
    }

    /// What starts programs in host b, as `ssh` or `rsh` would.
    #[allow(dead_code, reason = "not every test program has launchers of its own")]
    pub(crate) fn agent(&self) -> PathBuf {
        self.folder.path().join("agent")
    }

    /// A folder for launchers.
    #[allow(dead_code, reason = "not every test program has launchers of its own")]
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// `mpirun` in host a: ranks by turns on both hosts, or all on host a.
    pub(crate) fn mpirun(&self, ranks: usize, hosts: &[&str], by: By) -> LabCommand {
        let mut command = self.lab.host(Host::A).command("mpirun");
        let slots: Vec<String> =
            hosts.iter().map(|host| format!("{host}:{}", ranks.div_ceil(hosts.len()))).collect();
        let agent = self.folder.path().join("agent");
        let parameters = [
            ("plm_rsh_agent", agent.to_str().expect("a name of ours")),
            ("plm_rsh_no_tree_spawn", "1"),
            ("oob_tcp_if_include", "rail0"),
            ("hwloc_base_binding_policy", "none"),
            ("rmaps_base_oversubscribe", "1"),
            ("rmaps_base_mapping_policy", "node"),
            ("osc", "^ucx"),
        ];
        let by_mtl = |name| {
            [("pml", "cm"), ("mtl", "ofi"), ("mtl_ofi_provider_include", name), ("btl", "^ofi")]
        };
        let transport = match by {
            By::Ringrail => by_mtl("ringrail"),
            By::Provider(name) => by_mtl(name),
            By::RingrailBtl => [
                ("pml", "ob1"),
                ("btl", "ofi,self"),
                ("btl_ofi_provider_include", "ringrail"),
                ("btl_ofi_mode", "2"),
            ],
            By::Tcp => [
                ("pml", "ob1"),
                ("btl", "self,tcp"),
                ("btl_tcp_if_include", "rail0"),
                ("mtl", "^ofi"),
            ],
            By::Vader => [("pml", "ob1"), ("btl", "self,vader"), ("mtl", "^ofi"), ("bml", "r2")],
        };
        for (name, value) in parameters.iter().chain(&transport) {
            command.args(["--mca", name, value]);
        }
        command
            .args(["-np", &ranks.to_string(), "--host", &slots.join(",")])
            .args(["-x", "FI_PROVIDER_PATH", "-x", "RINGRAIL_NICS", "-x", "FI_TCP_IFACE"])
            // Of the other providers.
            .env("FI_TCP_IFACE", "rail0")
            .env("FI_PROVIDER_PATH", provider_path())
            .env("RINGRAIL_NICS", "rail*")
            .env("TMPDIR", self.folder.path())
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .core(None);
        command
    }
}

/// Both hosts.
pub(crate) const BOTH: [&str; 2] = ["ringrail-a", "ringrail-b"];
/// The one that `mpirun` is on.
#[allow(dead_code, reason = "not every test program uses it")]
pub(crate) const ONE: [&str; 1] = ["ringrail-a"];

/// Runs a program to its end and gives what it wrote.
pub(crate) fn outcome(
    command: &mut LabCommand,
    program: &Path,
    arguments: &[&str],
) -> Result<String, String> {
    let output = command.arg(program).args(arguments).output(LIMIT);
    let output = output.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Ok(said);
    }
    Err(format!("{}: {}\n{said}\n{errors}", program.display(), output.status))
}

/// A program of parts, and where it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) program: &'static str,
    pub(crate) ranks: usize,
    pub(crate) hosts: &'static [&'static str],
    pub(crate) rails: u8,
    /// Lines that say that a part has passed.
    parts: usize,
}

const fn case(
    (program, parts): (&'static str, usize),
    ranks: usize,
    hosts: &'static [&'static str],
    rails: u8,
) -> Case {
    Case { program, ranks, hosts, rails, parts }
}

/// The short set: what `cargo xtask test` runs once, and `cargo xtask interop` again and again.
pub(crate) const CASES: [Case; 5] = [
    case(("messages", 8), 4, &BOTH, 1),
    case(("messages", 8), 2, &ONE, 1),
    case(("collectives", 3), 4, &BOTH, 2),
    case(("windows", 4), 2, &BOTH, 1),
    case(("threads", 1), 2, &BOTH, 1),
];

/// What launchers do more work for than for all else: only in the long set.
#[allow(dead_code, reason = "not every test program runs the long set")]
pub(crate) const SPAWN: Case = case(("spawn", 1), 2, &BOTH, 1);

/// The same on one host: on two, Open MPI 4.1 fails in `MPI_Init` of the started ranks in labs by
/// btl/tcp as well, and the launcher of 5.0 does not start them.
#[allow(dead_code, reason = "not every test program runs the long set")]
pub(crate) const SPAWN_NEAR: Case = case(("spawn", 1), 2, &ONE, 1);

/// A program of Python, by mpi4py.
#[allow(dead_code, reason = "not every test program runs the long set")]
pub(crate) const HALO: Case = case(("halo.py", 1), 4, &BOTH, 1);

impl Case {
    /// What is run, with which MPI.
    #[allow(dead_code, reason = "not every test program has a table of them")]
    pub(crate) fn name(&self, mpi: &str) -> String {
        let Self { program, ranks, hosts, rails, .. } = self;
        format!("{mpi}: {program}, {ranks} ranks, {} hosts, {rails} rails", hosts.len())
    }

    /// Runs it as `mpirun` of a cluster says.
    pub(crate) fn run(
        &self,
        program: &Path,
        mpirun: impl FnOnce(&Cluster) -> LabCommand,
    ) -> Result<(), String> {
        self.run_with(program, &[], mpirun)
    }

    /// The same of a program that has arguments.
    pub(crate) fn run_with(
        &self,
        program: &Path,
        arguments: &[&str],
        mpirun: impl FnOnce(&Cluster) -> LabCommand,
    ) -> Result<(), String> {
        let cluster = Cluster::new(&LabSpec::rails(self.rails));
        let said = outcome(&mut mpirun(&cluster), program, arguments)?;
        let good = said.lines().filter(|line| line.ends_with(": good")).count();
        match good == self.parts {
            true => Ok(()),
            false => Err(format!("{good} of {} parts have passed:\n{said}", self.parts)),
        }
    }
}

/// Runs `steady`, two ranks with two rails, of which one swallows everything from the first second
/// on: the program does not notice.
pub(crate) fn with_a_rail_cut(
    steady: &Path,
    mpirun: impl FnOnce(&Cluster) -> LabCommand,
) -> Result<(), String> {
    let cluster = Cluster::new(&LabSpec { switch: true, ..LabSpec::rails(2) });
    let mut run = mpirun(&cluster);
    run.arg(steady).arg("4").stdout(Stdio::piped());
    let mut child = run.spawn().map_err(|error| error.to_string())?;
    let said = Said::by(&mut child);
    said.until("begun")?;
    std::thread::sleep(Duration::from_secs(1));
    // Not that of the launcher, which has no second way.
    cluster.lab.blackhole(1).map_err(|error| error.to_string())?;
    let status = child.wait_timeout(LIMIT).map_err(|error| error.to_string())?;
    if status.is_none() {
        return Err(format!("no end within {LIMIT:?} of a rail's cut"));
    }
    // Its pipe ends with it.
    drop(child);
    let rest = said.rest();
    match status.is_some_and(|status| status.success()) && rest.contains(" rounds in ") {
        true => Ok(()),
        false => Err(format!("{status:?}: {rest}")),
    }
}

/// The lines of a program whose standard output is piped.
pub(crate) struct Said(Receiver<String>);

impl Said {
    pub(crate) fn by(child: &mut LabChild) -> Self {
        let out = BufReader::new(child.inner().stdout.take().expect("it is piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self(lines)
    }

    /// Waits for a line with `word`, up to a minute.
    pub(crate) fn until(&self, word: &str) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.0.recv_timeout(left) {
                Ok(line) if line.contains(word) => return Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("it does not say {word:?} within a minute"));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!(
                        "it ended before it had {word}: why is on its standard error"
                    ));
                }
            }
        }
    }

    /// What is left, up to its end.
    pub(crate) fn rest(self) -> String {
        self.0.into_iter().map(|line| line + "\n").collect()
    }
}
