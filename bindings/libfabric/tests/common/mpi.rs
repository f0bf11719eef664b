//! MPI programs over the provider, in labs.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
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
    /// Open MPI's own TCP, to compare with.
    #[allow(dead_code, reason = "not every test program compares")]
    Tcp,
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

/// Compiles `mpi/NAME.c`.
pub(crate) fn program(name: &str) -> PathBuf {
    // Tests that want the same one at a time share it.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("mpi").join(format!("{name}.c"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (new, done) = (folder.join(format!("{name}-{}", std::process::id())), folder.join(name));
    let flags = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2", "-Wall", "-Wextra", "-Werror"];
    let output = Command::new("mpicc")
        .args(flags)
        .arg(&source)
        .args(["-lpthread", "-o"])
        .arg(&new)
        .output()
        .expect("mpicc runs: cargo xtask setup installs it");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} does not compile:\n{errors}", source.display());
    fs::rename(&new, &done).expect("a place for the program");
    done
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
        let starter = lab.host(Host::B).command("sh").args(["-c", &starter]).spawn();
        // As ssh: a host, and words for its shell. It stays, as a connection would.
        let agent = format!(
            "#!/bin/sh\nshift\nprintf '%s\\n' \"$*\" > {}\nexec sleep 1000\n",
            requests.display()
        );
        let agent_path = folder.path().join("agent");
        fs::write(&agent_path, agent).expect("an agent");
        fs::set_permissions(&agent_path, fs::Permissions::from_mode(0o755)).expect("it may run");
        Self { lab, folder, _starter: starter.expect("host b starts programs") }
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
        let transport: &[(&str, &str)] = match by {
            By::Ringrail => &[
                ("pml", "cm"),
                ("mtl", "ofi"),
                ("mtl_ofi_provider_include", "ringrail"),
                ("btl", "^ofi"),
            ],
            By::Tcp => &[("pml", "ob1"), ("btl", "self,tcp"), ("btl_tcp_if_include", "rail0")],
        };
        for (name, value) in parameters.iter().chain(transport) {
            command.args(["--mca", name, value]);
        }
        command
            .args(["-np", &ranks.to_string(), "--host", &slots.join(",")])
            .args(["-x", "FI_PROVIDER_PATH", "-x", "RINGRAIL_NICS"])
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
pub(crate) fn outcome(command: &mut LabCommand, program: &Path, arguments: &[&str]) -> String {
    let output = command.arg(program).args(arguments).output(LIMIT).expect("it comes to its end");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {}\n{said}\n{errors}", program.display(), output.status);
    said
}
