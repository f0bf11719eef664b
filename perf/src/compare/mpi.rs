//! Programs of Open MPI, one rank in each host of a lab.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use ringrail_tests::lab::{Host, Lab, LabCommand};

use super::pair;

/// A program, and what starts it.
pub(super) struct Mpi {
    pub(super) mpirun: PathBuf,
    pub(super) program: PathBuf,
}

impl Mpi {
    /// Runs two ranks by `mpirun` in host a; what they print.
    pub(super) fn run(
        &self,
        lab: &Lab,
        mut mpirun: LabCommand,
        options: &[OsString],
    ) -> Result<String, String> {
        let agent = agent(lab).map_err(|error| format!("no agent for mpirun: {error}"))?;
        let nics: Vec<String> = (0..lab.spec().rails).map(|rail| lab.nic(rail)).collect();
        let nics = nics.join(",");
        let hosts = [Host::A, Host::B].map(Host::name).join(",");
        mpirun.args(["-n", "2", "--host", &hosts, "--map-by", "node", "--bind-to", "none"]);
        let settings = [
            ("plm_rsh_agent", agent.to_string_lossy().into_owned()),
            ("plm_rsh_no_tree_spawn", "1".to_owned()),
            ("oob_tcp_if_include", lab.nic(0)),
            ("pml", "ob1".to_owned()),
            ("btl", "tcp,self".to_owned()),
            ("btl_tcp_if_include", nics),
        ];
        for (name, value) in &settings {
            mpirun.args(["--mca", name, value]);
        }
        for allowed in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
            mpirun.env(allowed, "1");
        }
        mpirun.arg(&self.program).args(options);
        pair::run(None, mpirun)
    }
}

/// What `mpirun` starts its daemon in host b with, where it would take `ssh`: a script that gets
/// the host's name and a command. It is removed with what is returned.
fn agent(lab: &Lab) -> std::io::Result<tempfile::TempPath> {
    let core = core_affinity::get_core_ids().unwrap_or_default();
    // As a lab counts them.
    let core = core.get(1 % core.len().max(1)).map_or(0, |core| core.id);
    let (namespace, name) = (lab.host(Host::B).path(), Host::B.name());
    let mut file = tempfile::Builder::new().prefix("ringrail-perf-agent").tempfile()?;
    write!(
        file,
        "#!/bin/sh\nshift\nexec nsenter --net={} unshare --uts taskset -c {core} \
         sh -c \"hostname {name}; $*\"\n",
        namespace.display(),
    )?;
    let path = file.into_temp_path();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700))?;
    Ok(path)
}
