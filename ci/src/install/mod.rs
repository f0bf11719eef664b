//! Puts libraries, header, manual pages, programs and what belongs to them where distributions
//! expect them.

mod strip;
mod texts;

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use self::strip::Kind;
use crate::man;
use crate::run::{cargo, is_root, root, run as execute};
use crate::setup;

/// What the shared library is known by to those who link it; it changes with what they rely on.
const SONAME: &str = "libringrail.so.0";

/// Its file.
const SHARED: &str = "libringrail.so.0.1.0";

/// Folders of the source tree.
const HEADER: &str = "bindings/c/include/ringrail.h";
const VERSIONS: &str = "bindings/c/ringrail.map";
const EXAMPLES: &str = "bindings/c/examples";
const SYSTEMD: &str = "xdp-programs/systemd";
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// Prefixes that the dynamic loader, systemd and shells look into by themselves.
const SYSTEM_PREFIXES: [&str; 2] = ["/usr", "/usr/local"];

/// The program that systemd starts.
const DAEMON: &str = "ringrail-xdpd";

/// The option by which programs write their manual pages and completions into a folder `share`.
const PAGES: &str = "write-pages";

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
    /// Debug information is left out.
    is_stripped: bool,
}

const USAGE: &str = "install [--prefix DIR] [--libdir DIR] [--destdir DIR] [--profile NAME] \
                     [--from DIR] [--strip yes|no]";

impl Plan {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut plan = Self {
            prefix: "/usr/local".to_owned(),
            libdir: String::new(),
            destdir: std::env::var("DESTDIR").unwrap_or_default(),
            profile: "release".to_owned(),
            from: None,
            is_stripped: true,
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
                "--strip" => {
                    plan.is_stripped = match &*value {
                        "yes" => true,
                        "no" => false,
                        other => return Err(format!("--strip {other}: yes or no: {USAGE}")),
                    }
                }
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

    /// Where a path below the prefix is put.
    fn below(&self, folder: &str) -> PathBuf {
        self.place(&format!("{}/{folder}", self.prefix.trim_end_matches('/')))
    }

    /// Whether the system that runs is what it is installed into, and looks there by itself.
    fn is_of_system(&self) -> bool {
        let prefix = self.prefix.trim_end_matches('/');
        self.destdir.is_empty() && SYSTEM_PREFIXES.contains(&prefix)
    }

    /// Copies what a linker made, without its debug information.
    fn binary(&self, from: &Path, to: &Path, mode: u32, kind: Kind) -> Result<(), String> {
        copy(from, to, mode)?;
        self.strip(to, kind)
    }

    fn strip(&self, file: &Path, kind: Kind) -> Result<(), String> {
        if self.is_stripped { strip::strip(file, kind) } else { Ok(()) }
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
    plan.strip(&fresh, Kind::Shared)?;
    fs::rename(&fresh, &shared).map_err(|error| format!("{}: {error}", shared.display()))?;
    told(&shared);
    point(&libraries.join(SONAME), SHARED)?;
    point(&libraries.join("libringrail.so"), SONAME)?;
    plan.binary(&archive, &libraries.join("libringrail.a"), 0o644, Kind::Archive)?;
    copy(&root().join(HEADER), &plan.below("include/ringrail.h"), 0o644)?;
    write(&libraries.join("pkgconfig/ringrail.pc"), &texts::pkg_config(&plan, private))?;
    let cmake = libraries.join("cmake/ringrail");
    let config = texts::cmake_config(&plan, SONAME, SHARED, private);
    write(&cmake.join("ringrail-config.cmake"), &config)?;
    write(&cmake.join("ringrail-config-version.cmake"), &texts::cmake_version())?;
    documents(&plan, &header)?;
    programs(&plan, &built)?;
    if let Some(provider) = artifact(&built, "libringrail_fi.so") {
        let to = libraries.join("libfabric/libringrail-fi.so");
        plan.binary(&provider, &to, 0o755, Kind::Shared)?;
    }
    refresh_loader(&plan)
}

/// Manual pages of the calls, examples and licences.
fn documents(plan: &Plan, header: &str) -> Result<(), String> {
    let examples = man::Examples::read(&root().join(EXAMPLES))?;
    let manual = plan.below("share/man/man3");
    for (name, text) in man::pages(header, &examples) {
        write(&manual.join(name), &text)?;
    }
    let folder = plan.below("share/doc/ringrail/examples");
    for (name, text) in examples.programs() {
        write(&folder.join(name), text)?;
    }
    for licence in LICENCES {
        let to = plan.below("share/licenses/ringrail").join(licence);
        copy(&root().join(licence), &to, 0o644)?;
    }
    Ok(())
}

/// Programs, with the manual pages and completions that they write themselves; and what systemd
/// needs for the daemon.
fn programs(plan: &Plan, built: &Path) -> Result<(), String> {
    let share = plan.below("share");
    make_folder(&share)?;
    for (name, folder) in [("ringrail-perf", "bin"), (DAEMON, "sbin")] {
        let Some(program) = artifact(built, name) else {
            println!("install: {name} was not built: left out");
            continue;
        };
        let mut pages = Command::new(&program);
        if let Err(error) = execute(pages.arg(format!("--{PAGES}")).arg(&share)) {
            // One for another architecture does not run here.
            println!("install: no manual page and completions of {name}: {error}");
        }
        let to = plan.below(folder).join(name);
        plan.binary(&program, &to, 0o755, Kind::Program)?;
        if name == DAEMON {
            daemon(plan)?;
        }
    }
    Ok(())
}

/// The unit of the daemon, and the group that it serves.
fn daemon(plan: &Plan) -> Result<(), String> {
    let read = |name: &str| {
        let path = root().join(SYSTEMD).join(name);
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let daemon = format!("{}/sbin/{DAEMON}", plan.prefix.trim_end_matches('/'));
    let unit = texts::unit(&read("ringrail-xdpd.service")?, &daemon);
    let folder = plan.below("lib/systemd/system");
    write(&folder.join("ringrail-xdpd.service"), &unit)?;
    let group = read("ringrail-sysusers.conf")?;
    write(&plan.below("lib/sysusers.d/ringrail.conf"), &group)?;
    println!(
        "install: for AF_XDP without privileges, as root: systemd-sysusers; systemctl \
         daemon-reload; systemctl enable --now ringrail-xdpd; usermod -aG ringrail USER"
    );
    Ok(())
}

/// Has the dynamic loader find the library, where it looks at all.
fn refresh_loader(plan: &Plan) -> Result<(), String> {
    if !plan.is_of_system() {
        if plan.destdir.is_empty() {
            println!(
                "install: the dynamic loader does not look into {libdir}: link programs with \
                 -Wl,-rpath,{libdir}, or set LD_LIBRARY_PATH",
                libdir = plan.libdir
            );
        }
        return Ok(());
    }
    if !is_root() {
        println!("install: as root: ldconfig");
        return Ok(());
    }
    let failed = |error| format!("{error}; run ldconfig by hand, or link with -Wl,-rpath");
    execute(&mut Command::new("ldconfig")).map_err(failed)
}

/// Builds what is installed, and says where it is.
fn build(profile: &str) -> Result<PathBuf, String> {
    setup::run()?;
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
        assert!(texts::pkg_config(&plan, &["-lm"]).contains("libdir=/opt/rr/lib64\n"));
        assert!(!plan.is_of_system() && plan.is_stripped);
        assert!(parse(&["--prefix=/usr/local/"]).unwrap().is_of_system());
        assert!(!parse(&["--prefix=/usr", "--destdir=/stage"]).unwrap().is_of_system());
        assert!(!parse(&["--strip", "no"]).unwrap().is_stripped);
        for bad in [&["--prefix", "here"][..], &["--prefix"], &["--hurry", "1"], &["--strip=1"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
