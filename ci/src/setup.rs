//! System packages.

use std::process::{Command, Stdio};

use crate::run::{has, is_root, run as execute};

/// Package and the program that shows that it is there.
const PACKAGES: [(&str, &str); 3] = [("gcc", "cc"), ("iproute2", "ip"), ("valgrind", "valgrind")];

/// Installs what is missing.
pub(crate) fn run() -> Result<(), String> {
    let has_apt = Command::new("apt-get")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    // iproute2's `ip` knows no --version; -V it is.
    let is_there = |program: &str| match program {
        "ip" => Command::new("ip").arg("-V").stdout(Stdio::null()).status().is_ok(),
        _ => has(program),
    };
    let missing: Vec<&str> = PACKAGES
        .iter()
        .filter(|(_, program)| !is_there(program))
        .map(|(package, _)| *package)
        .collect();
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

/// apt-get that asks nothing: packages such as tzdata otherwise wait for an answer at a terminal.
fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}
