//! System packages, and programs of cargo's.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::run::{cargo, has, is_root, run as execute};

/// What shows that a package is there.
enum Sign {
    /// It runs.
    Program(&'static str),
    /// The compiler finds it.
    Header(&'static str),
    /// A shared library whose name begins so.
    Library(&'static str),
}

/// Packages of Debian, and what shows that they are there.
const PACKAGES: [(&str, Sign); 19] = [
    ("gcc", Sign::Program("cc")),
    // Of the C API's tests, which are C++ programs, too.
    ("g++", Sign::Program("g++")),
    ("iproute2", Sign::Program("ip")),
    ("valgrind", Sign::Program("valgrind")),
    ("libfabric-bin", Sign::Program("fi_info")),
    ("libfabric-dev", Sign::Header("rdma/fabric.h")),
    // The MPI that the provider is tested with.
    ("openmpi-bin", Sign::Program("mpirun")),
    ("libopenmpi-dev", Sign::Program("mpicc")),
    // The XDP program and its loader.
    ("clang", Sign::Program("clang")),
    ("llvm", Sign::Program("llvm-objcopy")),
    ("make", Sign::Program("make")),
    ("m4", Sign::Program("m4")),
    ("pkg-config", Sign::Program("pkg-config")),
    // Of `ringrail-perf info` and the tests of placement.
    ("libhwloc-dev", Sign::Header("hwloc.h")),
    // hwloc is linked with what its pkg-config file names for static libraries.
    ("libudev-dev", Sign::Header("libudev.h")),
    // Of a test of what is installed.
    ("cmake", Sign::Program("cmake")),
    ("libelf-dev", Sign::Header("libelf.h")),
    ("zlib1g-dev", Sign::Header("zlib.h")),
    // Of bindgen, which loads it.
    ("libclang1", Sign::Library("libclang")),
];

/// Installs a program of cargo's that is missing, which takes minutes: those that need it ask.
pub(crate) fn program(name: &str) -> Result<(), String> {
    if has(name) {
        return Ok(());
    }
    println!("setup: installing {name}");
    execute(&mut cargo(&["install", "--locked", name]))
}

/// Installs what is missing.
pub(crate) fn run() -> Result<(), String> {
    let has_apt = Command::new("apt-get")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    let missing: Vec<&str> =
        PACKAGES.iter().filter(|(_, sign)| !sign.is_seen()).map(|(package, _)| *package).collect();
    if missing.is_empty() {
        println!("setup: nothing is missing");
        return Ok(());
    }
    let list = missing.join(" ");
    if !has_apt {
        println!("setup: install these with your package manager: {list}");
    } else if is_root() {
        println!("setup: installing {list}");
        execute(apt_get().arg("update"))?;
        execute(apt_get().args(["install", "-y", "--no-install-recommends"]).args(missing))?;
    } else {
        println!("setup: as root: apt-get install {list}");
    }
    Ok(())
}

impl Sign {
    fn is_seen(&self) -> bool {
        match self {
            // iproute2's `ip` knows no --version; -V it is.
            Self::Program("ip") => {
                Command::new("ip").arg("-V").stdout(Stdio::null()).status().is_ok()
            }
            Self::Program(program) => has(program),
            Self::Header(name) => is_header(name),
            Self::Library(start) => library_folders().iter().any(|folder| {
                let is_it = |name: &str| name.starts_with(start) && name.contains(".so");
                names(folder).iter().any(|name| is_it(name))
            }),
        }
    }
}

/// Whether the C compiler finds a header. Without a compiler it has to be installed anyhow.
fn is_header(name: &str) -> bool {
    let mut command = Command::new("cc");
    command.args(["-E", "-include", name, "-x", "c", "/dev/null"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Where shared libraries are: in the folders of the system, of its architecture, and of each LLVM.
fn library_folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for top in ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from) {
        let below = names(&top);
        let is_arch = |name: &&String| name.ends_with("-linux-gnu");
        folders.extend(below.iter().filter(is_arch).map(|name| top.join(name)));
        let is_llvm = |name: &&String| name.starts_with("llvm");
        folders.extend(below.iter().filter(is_llvm).map(|name| top.join(name).join("lib")));
        folders.push(top);
    }
    folders
}

/// The names in a folder; none if it is not there.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// apt-get that asks nothing: packages such as tzdata otherwise wait for an answer at a terminal.
fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_seen_where_they_are() {
        assert!(is_header("stdio.h"));
        assert!(!Sign::Header("no-such-header-of-anybody.h").is_seen());
        // Whatever runs this test has a C library.
        assert!(Sign::Library("libc.so").is_seen() || Sign::Library("libc-").is_seen());
        assert!(!Sign::Library("libno-such-library").is_seen());
        assert!(Sign::Program("cc").is_seen());
        assert!(!Sign::Program("no-such-program-of-anybody").is_seen());
    }
}
