//! What MPI programs would find: the provider of libfabric, and the MPIs of this host.

use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringrail::settings::Settings;
use serde::Serialize;

/// Longer than a program takes that says its version.
const SAID_WITHIN: Duration = Duration::from_secs(10);

/// What libfabric takes for a provider's file.
const LIBRARY: &str = "libringrail-fi.so";

/// What cargo builds it as.
const BUILT: &str = "libringrail_fi.so";

/// The libfabric that the provider is written for, as major and minor number.
const LIBFABRIC_MIN: (u32, u32) = (1, 17);
const LIBFABRIC_MAX_MAJOR: u32 = 2;

#[derive(Serialize)]
pub(super) struct MpiInfo {
    /// The value of `FI_PROVIDER_PATH`.
    provider_path: Option<String>,
    /// The provider's files that were found.
    providers: Vec<PathBuf>,
    /// The version of the system's libfabric, and what is to be said of it.
    libfabric: Option<String>,
    libfabric_text: String,
    /// Whether that libfabric lists ringrail now.
    is_listed: bool,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    cure: Option<String>,
    secret: String,
    mpis: Vec<Mpi>,
}

/// An MPI whose launcher is on the path.
#[derive(Serialize)]
struct Mpi {
    launcher: &'static str,
    name: String,
    text: String,
}

impl MpiInfo {
    pub(super) fn gather(settings: &Settings) -> Self {
        let provider_path = std::env::var("FI_PROVIDER_PATH").ok();
        let providers = providers(provider_path.as_deref());
        let libfabric = said("fi_info", &["--version"]).and_then(|it| libfabric_version(&it));
        let libfabric_text = judge(libfabric.as_deref());
        let listed = said("fi_info", &["-l"]).unwrap_or_default();
        let is_listed = listed.lines().any(|line| line.trim() == "ringrail:");
        let cure = (!is_listed).then(|| cure_of(libfabric.is_some(), &providers));
        let secret = secret(settings);
        let mpis = ["mpirun", "mpiexec"].into_iter().filter_map(mpi_of);
        let mut mpis: Vec<Mpi> = mpis.collect();
        mpis.dedup_by(|second, first| second.name == first.name);
        Self { provider_path, providers, libfabric, libfabric_text, is_listed, cure, secret, mpis }
    }
}

impl fmt::Display for MpiInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  libfabric: {}", self.libfabric_text)?;
        let path = self.provider_path.as_deref().unwrap_or("not set");
        writeln!(f, "  FI_PROVIDER_PATH: {path}")?;
        for provider in &self.providers {
            writeln!(f, "  provider: {}", provider.display())?;
        }
        match &self.cure {
            None => writeln!(f, "  libfabric offers ringrail (fi_info -l)")?,
            Some(cure) => writeln!(f, "  libfabric does not offer ringrail; cure: {cure}")?,
        }
        write!(f, "  secret: {}", self.secret)?;
        for Mpi { launcher, name, text } in &self.mpis {
            write!(f, "\n  {launcher}: {name}: {text}")?;
        }
        if self.mpis.is_empty() {
            write!(f, "\n  no mpirun and no mpiexec on the path")?;
        }
        Ok(())
    }
}

/// What a program says on both ways out; `None`: it cannot be run, fails, or takes too long.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut out = child.stdout.take()?;
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        // What it has said so far is what there is.
        let _read = out.read_to_end(&mut said);
        said
    });
    let deadline = Instant::now() + SAID_WITHIN;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(None) | Err(_) => {
                let _killed = child.kill();
                let _waited = child.wait();
                return None;
            }
        }
    };
    let said = reader.join().ok()?;
    status.success().then(|| String::from_utf8_lossy(&said).into_owned())
}

/// The provider's files: where libfabric looks, and what lies beside this program.
fn providers(path: Option<&str>) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    let libraries = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"];
    match path {
        Some(path) => folders.extend(std::env::split_paths(path)),
        None => {
            let arch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
            let all = libraries.iter().map(PathBuf::from).chain([PathBuf::from(arch)]);
            folders.extend(all.map(|folder| folder.join("libfabric")));
        }
    }
    let mut found: Vec<PathBuf> = folders.iter().map(|folder| folder.join(LIBRARY)).collect();
    if let Some(here) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
        found.push(here.join(BUILT));
        // As installed: bin and lib beside each other.
        found.push(here.join("../lib/libfabric").join(LIBRARY));
    }
    found.retain(|path| path.is_file());
    found.iter_mut().for_each(|path| {
        if let Ok(whole) = path.canonicalize() {
            *path = whole;
        }
    });
    found.sort();
    found.dedup();
    found
}

/// The version in what `fi_info --version` says.
fn libfabric_version(said: &str) -> Option<String> {
    said.lines().find_map(|line| line.strip_prefix("libfabric: ")).map(|it| it.trim().to_owned())
}

/// Whether the provider works with a version.
fn judge(version: Option<&str>) -> String {
    let Some(version) = version else {
        return "no fi_info on the path (Debian: libfabric-bin); MPICH, Intel MPI and others may \
                bring a libfabric of their own"
            .to_owned();
    };
    let mut numbers = version.split(['.', '~', 'r', '-']).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return format!("{version}, whatever that is");
    };
    if (major, minor) < LIBFABRIC_MIN {
        return format!("{version}: too old, the provider is for 1.17 to 2.x");
    }
    if major > LIBFABRIC_MAX_MAJOR {
        return format!("{version}: newer than what the provider was tried with (1.17 to 2.x)");
    }
    format!("{version}, which the provider is for (1.17 to 2.x)")
}

fn cure_of(has_libfabric: bool, providers: &[PathBuf]) -> String {
    let of_path = providers.iter().find(|path| path.file_name().is_some_and(|it| it == LIBRARY));
    match (has_libfabric, of_path, providers.first()) {
        (false, ..) => {
            "install libfabric's programs (Debian: libfabric-bin), which say more".into()
        }
        (_, Some(path), _) => {
            let folder = path.parent().unwrap_or(path);
            format!(
                "FI_PROVIDER_PATH={}; if it is that, FI_LOG_LEVEL=info fi_info -l says why not",
                folder.display()
            )
        }
        (_, None, Some(built)) => format!(
            "copy {} into a folder as {LIBRARY}, and set FI_PROVIDER_PATH to that folder",
            built.display()
        ),
        (_, None, None) => format!(
            "build {LIBRARY} (cargo build --release -p ringrail-fi, or cargo xtask install), and \
             set FI_PROVIDER_PATH to its folder"
        ),
    }
}

/// Where the ranks' secret comes from.
fn secret(settings: &Settings) -> String {
    let from = if settings.job_secret().is_some() {
        "the setting job_secret"
    } else if settings.job_secret_file().is_some() {
        "the setting job_secret_file"
    } else if settings.insecure() {
        return "none, as the setting insecure asks for".to_owned();
    } else {
        return "none is set: Open MPI 4 hands one to its ranks; with others set \
                RINGRAIL_JOB_SECRET to what `openssl rand -hex 32` says before mpiexec"
            .to_owned();
    };
    format!("from {from}")
}

/// The MPI that a launcher is of.
fn mpi_of(launcher: &'static str) -> Option<Mpi> {
    let version = said(launcher, &["--version"])?;
    let (name, family) = family_of(&version)?;
    let text = match family {
        Family::OpenMpi => {
            let components = said("ompi_info", &["--parsable"]).unwrap_or_default();
            let is_there = components.lines().any(|line| line.starts_with("mca:mtl:ofi:version"));
            match is_there {
                true => "would load it: --mca pml cm --mca mtl ofi --mca \
                         mtl_ofi_provider_include ringrail -x FI_PROVIDER_PATH"
                    .to_owned(),
                false => "has no mtl/ofi: it was built without libfabric".to_owned(),
            }
        }
        Family::Mpich => {
            let built = said("mpichversion", &[]).unwrap_or_default();
            of_mpich(&built)
        }
        Family::Intel => "would load it: I_MPI_FABRICS=ofi I_MPI_OFI_PROVIDER=ringrail \
                          MPIR_CVAR_CH4_OFI_ENABLE_ATOMICS=0, and RINGRAIL_JOB_SECRET"
            .to_owned(),
    };
    Some(Mpi { launcher, name, text })
}

/// Whether an MPICH that was built so has libfabric.
fn of_mpich(built: &str) -> String {
    let device = built.lines().find_map(|line| line.strip_prefix("MPICH Device:"));
    match device.map(str::trim) {
        None => "mpichversion does not say its device: ch4:ofi would load it".to_owned(),
        Some(device) if !device.contains("ofi") => {
            format!("was built for {device}, not for ch4:ofi: it does not use libfabric")
        }
        Some(device) => {
            // Of several the first is taken.
            let first = if device == "ch4:ofi" { "" } else { "MPIR_CVAR_CH4_NETMOD=ofi " };
            format!("would load it: {first}FI_PROVIDER=ringrail, and RINGRAIL_JOB_SECRET")
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    OpenMpi,
    Mpich,
    Intel,
}

/// Name and family of an MPI, of what its launcher says of its version.
fn family_of(said: &str) -> Option<(String, Family)> {
    let first = said.lines().next()?.trim();
    if let Some(version) = first.split_once("(Open MPI) ").map(|(_, version)| version) {
        return Some((format!("Open MPI {version}"), Family::OpenMpi));
    }
    if first.starts_with("Intel(R) MPI Library") {
        let version = first.split_once("Version ").map_or("", |(_, rest)| rest);
        let version = version.split(' ').next().unwrap_or_default();
        return Some((format!("Intel MPI {version}"), Family::Intel));
    }
    if first.starts_with("HYDRA") {
        let line = said.lines().find_map(|line| line.trim().strip_prefix("Version:"))?;
        return Some((format!("MPICH {}", line.trim()), Family::Mpich));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_say_whose_they_are() {
        let of = |said: &str| family_of(said);
        let open_mpi = of("mpirun (Open MPI) 4.1.4\n\nReport bugs to somebody\n");
        assert_eq!(open_mpi, Some(("Open MPI 4.1.4".to_owned(), Family::OpenMpi)));
        let mpich = of("HYDRA build details:\n    Version:           5.0.2\n    CC:   cc\n");
        assert_eq!(mpich, Some(("MPICH 5.0.2".to_owned(), Family::Mpich)));
        let intel = "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: x)";
        assert_eq!(of(intel), Some(("Intel MPI 2021.18.1".to_owned(), Family::Intel)));
        assert_eq!(of("another launcher"), None);
    }

    #[test]
    fn an_mpich_without_libfabric_is_told() {
        assert!(of_mpich("MPICH Device:      ch4:ucx\n").contains("does not use libfabric"));
        assert!(of_mpich("MPICH Device:      ch4:ucx ofi\n").contains("NETMOD=ofi"));
        assert!(!of_mpich("MPICH Device:      ch4:ofi\n").contains("NETMOD"));
    }

    #[test]
    fn versions_of_libfabric_are_judged() {
        let version = libfabric_version("fi_info: 1.17.0\nlibfabric: 1.17.0\nlibfabric api: 1.17");
        assert_eq!(version.as_deref(), Some("1.17.0"));
        assert!(judge(version.as_deref()).contains("which the provider is for"));
        assert!(judge(Some("2.6.0rc2")).contains("which the provider is for"));
        assert!(judge(Some("1.11.0")).contains("too old"));
        assert!(judge(Some("3.0")).contains("newer"));
        assert!(judge(None).contains("libfabric-bin"));
    }

    #[test]
    fn a_cure_says_where_the_provider_goes() {
        let built = [PathBuf::from("/a/libringrail_fi.so")];
        assert!(cure_of(true, &built).contains("copy /a/libringrail_fi.so"));
        let placed = [PathBuf::from("/b/libringrail-fi.so")];
        assert!(cure_of(true, &placed).starts_with("FI_PROVIDER_PATH=/b;"));
        assert!(cure_of(true, &[]).contains("cargo build"));
        assert!(cure_of(false, &placed).contains("libfabric-bin"));
    }
}
