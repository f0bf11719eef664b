//! Compiles the XDP program with clang.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SOURCE: &str = "bpf/ringrail.bpf.c";

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = std::env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let found = Command::new(&clang).arg("--version").stdout(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        panic!(
            "{} does not run, and nothing else here compiles XDP programs. \
             Debian, Ubuntu: apt-get install clang llvm libelf-dev zlib1g-dev make pkg-config; \
             Fedora: dnf install clang llvm elfutils-libelf-devel zlib-devel make pkgconf. \
             The variable CLANG names another one",
            clang.display()
        );
    }
    let out = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts");
    let out = PathBuf::from(out);
    compile(&clang, &out.join("ringrail.bpf.o"), &[]);
    if std::env::var_os("CARGO_FEATURE_FAULTS").is_some() {
        compile(&clang, &out.join("ringrail-faults.bpf.o"), &["-DFAULTS"]);
    }
}

/// One object file; messages of the compiler end up in cargo's output.
fn compile(clang: &OsStr, object: &Path, flags: &[&str]) {
    let mut command = Command::new(clang);
    command.args(["-Wall", "-Wextra", "-Werror"]).args(flags);
    // BPF has no stack protector, which some distributions switch on.
    command.args(["-target", "bpf", "-O2", "-fno-stack-protector"]);
    // BTF, which the kernel wants, comes with debug information. The object is the same wherever it
    // is built.
    let here = std::env::current_dir().expect("cargo runs build scripts in the package's folder");
    let mapped = format!("-fdebug-prefix-map={}=.", here.display());
    command.args(["-g", &mapped, "-c", SOURCE, "-o"]).arg(object);
    let status = command.status();
    assert!(status.is_ok_and(|status| status.success()), "{command:?} does not compile {SOURCE}");
}
