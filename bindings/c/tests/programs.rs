//! Programs in C and C++ against what `cargo xtask install` puts into a folder.
//!
//! Goal: what a user builds with the installed header, library and pkg-config file runs, and
//! leaves memory as valgrind wants it. Method: the examples and a program of misuses, as C11 and
//! C++17 with all warnings as errors, over the loopback device.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a program may take.
const PATIENCE: Duration = Duration::from_secs(120);

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Lines that a program of its own has in its environment, whatever this one has.
const CLEAN: [&str; 6] =
    ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RINGRAIL_BOOTSTRAP", "RINGRAIL_CONFIG"];

fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, printed) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{printed}", output.status);
    out
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder that everything was installed into once.
fn installed() -> &'static Path {
    static STAGE: OnceLock<PathBuf> = OnceLock::new();
    STAGE.get_or_init(|| {
        // What tests are linked with is where they are.
        let deps = std::env::current_exe().unwrap();
        let deps = deps.parent().unwrap();
        let stage = deps.join("ringrail-c-stage");
        let _ = std::fs::remove_dir_all(&stage);
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.current_dir(Path::new(HERE).join("../..")).env_remove("DESTDIR");
        command.args(["run", "--quiet", "-p", "xtask", "--", "install", "--prefix", "/usr"]);
        command.args(["--libdir", "/usr/lib", "--profile", "dev"]);
        // Valgrind reads what there is of it, at each start.
        command.env("LDFLAGS", "-Wl,--strip-debug");
        succeed(command.arg("--destdir").arg(&stage).arg("--from").arg(deps));
        stage
    })
}

/// What pkg-config says for this stage.
fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let stage = installed();
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", stage.join("usr/lib/pkgconfig"));
    command.env("PKG_CONFIG_SYSROOT_DIR", stage).env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1");
    command.env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1");
    succeed(command.args(arguments).arg("ringrail")).split_whitespace().map(str::to_owned).collect()
}

/// Compiles a program as C11 or as C++17, and says where it is.
fn compile(source: &str, language: &str) -> PathBuf {
    let name = Path::new(source).file_stem().and_then(OsStr::to_str).unwrap();
    let program = installed().join(format!("{name}.{language}"));
    let mut command = match language {
        "c11" => Command::new("cc"),
        _ => Command::new("g++"),
    };
    if language != "c11" {
        command.args(["-x", "c++"]);
    }
    command.arg(format!("-std={language}"));
    command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    command.args(pkg_config(&["--cflags"])).arg(Path::new(HERE).join(source));
    command.args(["-x", "none", "-o"]).arg(&program).args(pkg_config(&["--libs"]));
    succeed(command.arg("-lpthread"));
    program
}

/// A program in an environment of its own, with a secret that is no secret.
fn command(program: &Path, prefix: &[&str]) -> Command {
    let mut command = match prefix.split_first() {
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
        None => Command::new(program),
    };
    for name in CLEAN {
        command.env_remove(name);
    }
    let secret = format!("{:064x}", 0x1234_5678_9abc_u64);
    command.env("RINGRAIL_JOB_SECRET", secret).env("RINGRAIL_LISTEN_ADDRESS", "127.0.0.1");
    // Under valgrind, on hosts that do much else, an answer takes its time.
    command.env("RINGRAIL_PEER_TIMEOUT", "60s");
    command.env("LD_LIBRARY_PATH", installed().join("usr/lib"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn end(mut child: Child, name: &str) -> Output {
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            let output = child.wait_with_output().unwrap();
            panic!("{name} does not end: {}{}", text(&output.stdout), text(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// Runs as many ranks of a program, all of which succeed, and gives what rank 0 printed.
fn run(program: &Path, prefix: &[&str], arguments: &[&str], ranks: usize) -> String {
    let meeting = tempfile::tempdir().unwrap();
    let children: Vec<Child> = (0..ranks)
        .map(|rank| {
            let mut command = command(program, prefix);
            command.args(arguments).env("RANK", rank.to_string());
            command.env("WORLD_SIZE", ranks.to_string());
            let directory = format!("dir:{}", meeting.path().display());
            command.env("RINGRAIL_BOOTSTRAP", directory).spawn().unwrap()
        })
        .collect();
    let name = program.display().to_string();
    let outputs: Vec<Output> = children.into_iter().map(|child| end(child, &name)).collect();
    // One that fails takes the others with it: all are told.
    let failed = outputs.iter().enumerate().filter(|(_, output)| !output.status.success());
    let told = failed.map(|(rank, Output { status, stdout, stderr })| {
        format!("{name}, rank {rank}: {status}\n{}{}", text(stdout), text(stderr))
    });
    let told: Vec<String> = told.collect();
    assert!(told.is_empty(), "{}", told.join("\n"));
    text(&outputs[0].stdout)
}

const VALGRIND: [&str; 7] = [
    "valgrind",
    // A thread that looks for news keeps others from running else.
    "--fair-sched=try",
    "--quiet",
    "--error-exitcode=9",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
];

/// As built, in both languages, and under valgrind.
fn play(source: &str, arguments: &[&str], few: &[&str], ranks: usize, printed: &str) {
    let plain = compile(source, "c11");
    for program in [&plain, &compile(source, "c++17")] {
        let out = run(program, &[], arguments, ranks);
        assert!(out.contains(printed), "{out}");
    }
    let supp = format!("--suppressions={HERE}/tests/valgrind.supp");
    let prefix: Vec<&str> = VALGRIND.into_iter().chain([&*supp]).collect();
    let out = run(&plain, &prefix, few, ranks);
    assert!(out.contains(printed), "{out}");
}

#[test]
fn pingpong_runs() {
    play("examples/pingpong.c", &["500", "8"], &["3", "20000"], 2, "half a round trip");
}

/// By a variable alone: programs need no call for it.
#[test]
fn a_process_says_what_carries_its_traffic() {
    let program = compile("examples/connection.c", "c11");
    let mut command = command(&program, &[]);
    command.env("RINGRAIL_VERBOSE", "1").env("RINGRAIL_SHARED_MEMORY", "off");
    let output = end(command.spawn().unwrap(), "connection");
    let printed = text(&output.stderr);
    let lines: Vec<&str> = printed.lines().filter(|line| line.starts_with("ringrail ")).collect();
    assert_eq!(lines.len(), 1, "{printed}");
    assert!(lines[0].contains(" by lo (udp"), "{printed}");
}

#[test]
fn one_sided_runs() {
    play("examples/one_sided.c", &[], &[], 2, "2 ranks counted to 100");
}

#[test]
fn connection_runs() {
    play("examples/connection.c", &[], &[], 1, "connected, said hello, rejected, shut down");
}

#[test]
fn threads_run() {
    play("examples/threads.c", &["200"], &["4"], 1, "8 threads sent");
}

/// The program of the page is what it says.
#[test]
fn the_program_of_the_readme_runs() {
    let page = std::fs::read_to_string(Path::new(HERE).join("README.md")).unwrap();
    let program = page.split("```c\n").nth(1).unwrap().split("```").next().unwrap();
    let source = installed().join("readme.c");
    std::fs::write(&source, program).unwrap();
    for language in ["c11", "c++17"] {
        let built = compile(source.to_str().unwrap(), language);
        // It has all of its settings itself.
        let mut command = command(&built, &[]);
        command.env_remove("RINGRAIL_JOB_SECRET").env_remove("RINGRAIL_LISTEN_ADDRESS");
        let output = end(command.spawn().unwrap(), "the program of the page");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "hello\n");
    }
}

/// Runs the commands under "Install, build, run" in a namespace of mounts, where `/usr/local` and
/// the cache of the dynamic loader are those of the host with what is installed on top.
#[test]
fn the_commands_of_the_readme_run() {
    ringrail_tests::require_lab!();
    let page = std::fs::read_to_string(Path::new(HERE).join("README.md")).unwrap();
    let part = |start| page.split(start).nth(1).unwrap().split("```").next().unwrap();
    let (program, commands) = (part("```c\n"), part("```sh\n"));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("hello.c"), program).unwrap();
    let deps = std::env::current_exe().unwrap();
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    // What was built with this test is not built again in release.
    let script = format!(
        "layers=$(mktemp -d); mount -t tmpfs tmpfs $layers
         for place in usr/local etc; do
             mkdir -p $layers/$place/upper $layers/$place/work
             mount -t overlay overlay -o \
                 lowerdir=/$place,upperdir=$layers/$place/upper,workdir=$layers/$place/work /$place
         done
         cargo() {{ (cd {root} && {cargo} \"$@\" --profile dev --from {deps}); }}
         cd {folder}
         {commands}",
        root = Path::new(HERE).join("../..").display(),
        deps = deps.parent().unwrap().display(),
        folder = folder.path().display(),
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-e", "-c", &script]).env("MANPAGER", "cat").env("LC_ALL", "C");
    command.env_remove("DESTDIR").env_remove("RINGRAIL_JOB_SECRET").stdin(Stdio::null());
    command.env_remove("LD_LIBRARY_PATH").stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = end(command.spawn().unwrap(), "the commands of the page");
    let (out, printed) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{printed}");
    assert!(out.contains("hello\n") && out.contains("rr_post_send"), "{out}{printed}");
}

#[test]
fn misuse_gives_the_errors_that_the_header_names() {
    let program = compile("tests/misuse.c", "c11");
    compile("tests/misuse.c", "c++17");
    let output = end(command(&program, &[]).spawn().unwrap(), "misuse");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn an_installed_tree_is_whole() {
    let usr = installed().join("usr");
    let link = |name: &str| std::fs::read_link(usr.join("lib").join(name)).unwrap();
    assert_eq!(link("libringrail.so"), Path::new("libringrail.so.0"));
    assert_eq!(link("libringrail.so.0"), Path::new("libringrail.so.0.1.0"));
    assert_eq!(pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);

    // Nothing but calls of the header, each with its version, and each call of the header.
    let shared = usr.join("lib/libringrail.so.0.1.0");
    let symbols = succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(&shared));
    let exported: Vec<&str> = symbols.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    assert!(exported.contains(&"rr_post_send@@RINGRAIL_0.1"), "{exported:?}");
    for name in &exported {
        let is_call = name.starts_with("rr_") && name.ends_with("@@RINGRAIL_0.1");
        assert!(is_call || *name == "RINGRAIL_0.1", "{name} is exported");
    }
    let manual: Vec<_> = std::fs::read_dir(usr.join("share/man/man3")).unwrap().collect();
    // One for each call (of the symbols one is the version), and one for all.
    assert_eq!(manual.len(), exported.len(), "a call without a page, or the other way round");
    let dynamic = succeed(Command::new("readelf").arg("-d").arg(&shared));
    assert!(dynamic.contains("[libringrail.so.0]"), "{dynamic}");
    // The archive has a table of sections for each of its members.
    for library in [shared, usr.join("lib/libringrail.a")] {
        let sections = succeed(Command::new("readelf").args(["-S", "--wide"]).arg(&library));
        assert!(!sections.contains(".debug_info"), "{} is not stripped", library.display());
    }
    let page = std::fs::read_to_string(usr.join("share/man/man3/rr_post_send.3")).unwrap();
    for section in [".SH RETURN VALUE\n", ".SH EXAMPLES\n", ".SH ERRORS\n"] {
        assert!(page.contains(section), "{section} is not in {page}");
    }
    for file in [
        "share/licenses/ringrail/LICENSE-MIT",
        "share/licenses/ringrail/LICENSE-APACHE",
        "share/doc/ringrail/examples/pingpong.c",
        "lib/cmake/ringrail/ringrail-config-version.cmake",
    ] {
        assert!(usr.join(file).exists(), "there is no {file}");
    }
}

/// Programs of CMake, which find the tree where it was staged.
#[test]
fn cmake_finds_the_package() {
    if Command::new("cmake").arg("--version").output().is_err() {
        return ringrail_tests::skip(env!("CARGO_CRATE_NAME"), &"cmake is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(HERE).join("examples/threads.c");
    let project = format!(
        "cmake_minimum_required(VERSION 3.13)\nproject(user C)\nfind_package(Threads REQUIRED)\n\
         find_package(ringrail 0.1 REQUIRED)\n\
         foreach(kind ringrail static)\n  \
           add_executable(by_${{kind}} {source})\n  \
           target_link_libraries(by_${{kind}} ringrail::${{kind}} Threads::Threads)\n\
         endforeach()\n",
        source = source.display()
    );
    std::fs::write(folder.path().join("CMakeLists.txt"), project).unwrap();
    let built = folder.path().join("build");
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", installed().join("usr").display());
    let mut command = Command::new("cmake");
    command.args([prefix.as_ref(), "-S".as_ref(), folder.path().as_os_str(), "-B".as_ref()]);
    succeed(command.arg(&built));
    succeed(Command::new("cmake").arg("--build").arg(&built));
    for program in ["by_ringrail", "by_static"] {
        let out = run(&built.join(program), &[], &["10"], 1);
        assert!(out.contains("8 threads sent"), "{program}: {out}");
    }
    // One that wants another version is refused.
    let list = folder.path().join("CMakeLists.txt");
    let project = std::fs::read_to_string(&list).unwrap();
    std::fs::write(&list, project.replace("ringrail 0.1 ", "ringrail 0.2 ")).unwrap();
    let output = Command::new("cmake").arg(&built).output().unwrap();
    let printed = text(&output.stderr);
    assert!(!output.status.success() && printed.contains("0.2"), "{printed}");
}

#[test]
fn the_archive_links_by_what_pkg_config_says() {
    let program = installed().join("threads.static");
    let mut command = Command::new("cc");
    command.args(pkg_config(&["--cflags"])).arg(Path::new(HERE).join("examples/threads.c"));
    command.arg("-o").arg(&program).arg(installed().join("usr/lib/libringrail.a"));
    let private = pkg_config(&["--libs", "--static"]);
    command.args(private.iter().filter(|it| *it != "-lringrail")).arg("-lgcc_s");
    succeed(&mut command);
    assert!(run(&program, &[], &["10"], 1).contains("8 threads sent"));
}
