//! Puts libraries, header, manual pages and programs where distributions expect them.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::man;
use crate::run::{cargo, root, run as execute};

/// What the shared library is known by to those who link it; it changes with what they rely on.
const SONAME: &str = "libringrail.so.0";

/// Its file.
const SHARED: &str = "libringrail.so.0.1.0";

/// Folders of the source tree.
const HEADER: &str = "bindings/c/include/ringrail.h";
const VERSIONS: &str = "bindings/c/ringrail.map";

/// What the archive has of AF_XDP's loader, where it was built with that.
const LOADER: &[u8] = b"bpf_object__load";

/// Where to.
struct Plan {
    prefix: String,
    libdir: String,
    destdir: String,
    profile: String,
    /// Where everything was built already; `None`: it is built first.
    from: Option<PathBuf>,
}

const USAGE: &str = "install [--prefix DIR] [--libdir DIR] [--destdir DIR] [--profile NAME] \
                     [--from DIR]";

impl Plan {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut plan = Self {
            prefix: "/usr/local".to_owned(),
            libdir: String::new(),
            destdir: std::env::var("DESTDIR").unwrap_or_default(),
            profile: "release".to_owned(),
            from: None,
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let (name, given) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (argument.as_str(), None),
            };
            let value = given.or_else(|| rest.next().cloned());
            let value = value.ok_or_else(|| format!("{name} takes a value: {USAGE}"))?;
            match name {
                "--prefix" => plan.prefix = value,
                "--libdir" => plan.libdir = value,
                "--destdir" => plan.destdir = value,
                "--profile" => plan.profile = value,
                "--from" => plan.from = Some(value.into()),
                other => return Err(format!("there is no {other}: {USAGE}")),
            }
        }
        if plan.libdir.is_empty() {
            plan.libdir = usual_libdir(&plan.prefix);
        }
        for (name, folder) in [("prefix", &plan.prefix), ("libdir", &plan.libdir)] {
            if !folder.starts_with('/') {
                return Err(format!("--{name} {folder}: give an absolute path"));
            }
        }
        Ok(plan)
    }

    /// Where a path of the installed system is put.
    fn place(&self, folder: &str) -> PathBuf {
        format!("{}{folder}", self.destdir).into()
    }
}

/// That of the architecture where the system has such ones and this is a part of it.
fn usual_libdir(prefix: &str) -> String {
    let output = Command::new("cc").arg("-print-multiarch").output();
    let triple = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    match triple {
        Ok(triple) if prefix == "/usr" && !triple.is_empty() => format!("/usr/lib/{triple}"),
        _ => format!("{}/lib", prefix.trim_end_matches('/')),
    }
}

/// Builds what is missing, and installs.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let plan = Plan::parse(arguments)?;
    let built = match &plan.from {
        Some(folder) => folder.clone(),
        None => build(&plan.profile)?,
    };
    let archive = artifact(&built, "libringrail_c.a")
        .ok_or_else(|| format!("{}: there is no libringrail_c.a", built.display()))?;
    let libraries = plan.place(&plan.libdir);
    make_folder(&libraries)?;
    // Linked beside its place, and moved there: who has the old one open keeps it whole.
    let shared = libraries.join(SHARED);
    let fresh = libraries.join(format!(".{SHARED}.new"));
    let private = private_libraries(&archive)?;
    let header = fs::read_to_string(root().join(HEADER)).map_err(|error| error.to_string())?;
    link(&archive, &fresh, &header, private)?;
    fs::rename(&fresh, &shared).map_err(|error| format!("{}: {error}", shared.display()))?;
    told(&shared);
    point(&libraries.join(SONAME), SHARED)?;
    point(&libraries.join("libringrail.so"), SONAME)?;
    copy(&archive, &libraries.join("libringrail.a"), 0o644)?;
    let include = plan.place(&format!("{}/include", plan.prefix));
    copy(&root().join(HEADER), &include.join("ringrail.h"), 0o644)?;
    write(&libraries.join("pkgconfig/ringrail.pc"), &package(&plan, private))?;
    let manual = plan.place(&format!("{}/share/man/man3", plan.prefix));
    for (name, text) in man::pages(&header) {
        write(&manual.join(name), &text)?;
    }
    let programs = plan.place(&format!("{}/bin", plan.prefix));
    let daemons = plan.place(&format!("{}/sbin", plan.prefix));
    for (name, folder) in [("ringrail-perf", programs), ("ringrail-xdpd", daemons)] {
        match artifact(&built, name) {
            Some(program) => copy(&program, &folder.join(name), 0o755)?,
            None => println!("install: {name} was not built: left out"),
        }
    }
    if let Some(provider) = artifact(&built, "libringrail_fi.so") {
        copy(&provider, &libraries.join("libfabric/libringrail-fi.so"), 0o755)?;
    }
    Ok(())
}

/// Builds what is installed, and says where it is.
fn build(profile: &str) -> Result<PathBuf, String> {
    let mut command = cargo(&["build", "--profile", profile, "--features", "ringrail-c/xdp"]);
    for package in ["ringrail-c", "ringrail-perf", "ringrail-xdp"] {
        command.args(["-p", package]);
    }
    if root().join("bindings/libfabric/Cargo.toml").exists() {
        command.args(["-p", "ringrail-fi", "--features", "ringrail-fi/xdp"]);
    }
    execute(&mut command)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from);
    Ok(target.join(if profile == "dev" { "debug" } else { profile }))
}

/// A result of a build: at the top of its folder, or where cargo leaves what tests are linked with.
fn artifact(built: &Path, name: &str) -> Option<PathBuf> {
    let places = [built.join(name), built.join("deps").join(name)];
    // Of two the newer one: a build of tests renews the second alone.
    let made = |path: &PathBuf| fs::metadata(path).and_then(|data| data.modified()).ok();
    places.into_iter().filter(|path| path.exists()).max_by_key(made)
}

/// System libraries that the archive needs beside libc.
fn private_libraries(archive: &Path) -> Result<&'static [&'static str], String> {
    let failed = |error| format!("{}: {error}", archive.display());
    let mut file = fs::File::open(archive).map_err(failed)?;
    // It begins with the table of its symbols, whose length the header of that says.
    let mut header = [0; 68];
    file.read_exact(&mut header).map_err(failed)?;
    let length = String::from_utf8_lossy(&header[56..66]).trim().parse::<u64>();
    let length = length.map_err(|_| format!("{}: no archive", archive.display()))?;
    let mut symbols = Vec::new();
    file.take(length).read_to_end(&mut symbols).map_err(failed)?;
    let has_loader = symbols.split(|byte| *byte == 0).any(|symbol| symbol == LOADER);
    Ok(if has_loader {
        &["-lelf", "-lz", "-lpthread", "-lm", "-ldl"]
    } else {
        &["-lpthread", "-lm", "-ldl"]
    })
}

/// Links the shared library of the archive: rustc takes no script with versions for its own.
fn link(archive: &Path, into: &Path, header: &str, private: &[&str]) -> Result<(), String> {
    let versions = root().join(VERSIONS);
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command.args(["-shared", "-Wl,-soname", &format!("-Wl,{SONAME}")]);
    command.arg(format!("-Wl,--version-script={}", versions.display()));
    // Threads of it may run when a program lets go of it.
    command.args(["-Wl,-z,nodelete", "-Wl,-z,relro", "-Wl,-z,defs", "-Wl,--gc-sections"]);
    // Not the whole archive: with AF_XDP it has two copies of libbpf, as rustc links them, too.
    command.args(man::calls(header).map(|call| format!("-Wl,-u,{call}"))).arg(archive);
    command.arg("-Wl,--as-needed").args(private).arg("-lgcc_s");
    // As packagers have it.
    let flags = std::env::var("LDFLAGS").unwrap_or_default();
    execute(command.args(flags.split_whitespace()).arg("-o").arg(into))
}

/// The file for pkg-config.
fn package(plan: &Plan, private: &[&str]) -> String {
    let (prefix, libdir, version) = (&plan.prefix, &plan.libdir, env!("CARGO_PKG_VERSION"));
    let private = private.join(" ");
    format!(
        "prefix={prefix}\nlibdir={libdir}\nincludedir=${{prefix}}/include\n\nName: ringrail\n\
         Description: Messages between HPC processes over commodity Ethernet NICs\n\
         Version: {version}\nLibs: -L${{libdir}} -lringrail\nLibs.private: {private}\n\
         Cflags: -I${{includedir}}\n"
    )
}

fn make_folder(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    let failed = |error| format!("{} to {}: {error}", from.display(), to.display());
    make_folder(to.parent().unwrap_or(to))?;
    // A program that runs cannot be written to, but replaced.
    let _ = fs::remove_file(to);
    fs::copy(from, to).map_err(failed)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(failed)?;
    told(to);
    Ok(())
}

fn write(to: &Path, text: &str) -> Result<(), String> {
    make_folder(to.parent().unwrap_or(to))?;
    fs::write(to, text).map_err(|error| format!("{}: {error}", to.display()))
}

fn point(link: &Path, to: &str) -> Result<(), String> {
    let _ = fs::remove_file(link);
    symlink(to, link).map_err(|error| format!("{}: {error}", link.display()))
}

fn told(path: &Path) {
    println!("install: {}", path.display());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Plan, String> {
        Plan::parse(&arguments.iter().map(|&it| it.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn places_follow_prefix_and_libdir() {
        let plan = parse(&["--prefix", "/opt/rr", "--destdir=/stage"]).unwrap();
        assert_eq!((&*plan.libdir, &*plan.profile), ("/opt/rr/lib", "release"));
        assert_eq!(plan.place(&plan.libdir), Path::new("/stage/opt/rr/lib"));
        let plan = parse(&["--prefix", "/opt/rr", "--libdir", "/opt/rr/lib64"]).unwrap();
        assert!(package(&plan, &["-lm"]).contains("libdir=/opt/rr/lib64\n"));
        for bad in [&["--prefix", "here"][..], &["--prefix"], &["--hurry", "1"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
