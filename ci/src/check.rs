//! Everything that can be checked without running the tree.

use crate::package;
use crate::run::{cargo, has, root, run as execute};
use crate::setup;
use crate::tidy;

const USAGE: &str = "usage: cargo xtask check [--all]";

/// Format, tidy rules, lints; licences and advisories where `cargo-deny` is installed. With
/// `--all` also what takes long and fails seldom: lints without default features, rustdoc, the
/// packages for a registry, and `cargo-deny` installed where it is missing.
pub(crate) fn run(options: &[String]) -> Result<(), String> {
    let is_all = match options {
        [] => false,
        [all] if all == "--all" => true,
        _ => return Err(USAGE.to_owned()),
    };
    execute(&mut cargo(&["fmt", "--all", "--check"]))?;
    let complaints = tidy::complaints(&root());
    for complaint in &complaints {
        println!("tidy: {complaint}");
    }
    if !complaints.is_empty() {
        return Err(format!("{} complaints of tidy", complaints.len()));
    }
    println!("tidy: nothing to complain about");
    // From here on everything is built.
    setup::run()?;
    let lints =
        ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
    execute(&mut cargo(&lints))?;
    if is_all {
        let plain = ["clippy", "-p", "ringrail", "--no-default-features", "--", "-D", "warnings"];
        execute(&mut cargo(&plain))?;
        let documentation =
            ["doc", "--workspace", "--all-features", "--no-deps", "--document-private-items"];
        execute(cargo(&documentation).env("RUSTDOCFLAGS", "-D warnings"))?;
        package::check()?;
        setup::program("cargo-deny")?;
    } else if !has("cargo-deny") {
        println!("check: cargo-deny is not installed; `cargo xtask check --all` installs it");
        return Ok(());
    }
    dependencies()
}

/// Licences, sources, and known holes of what is depended on.
fn dependencies() -> Result<(), String> {
    let rules = ["deny", "--all-features", "check", "licenses", "bans", "sources"];
    execute(&mut cargo(&rules))?;
    // Where the list of known holes cannot be had, the rest still counts.
    if execute(&mut cargo(&["deny", "fetch", "db"])).is_err() {
        println!("check: the advisory database is out of reach: advisories were not checked");
        return Ok(());
    }
    execute(&mut cargo(&["deny", "--all-features", "--offline", "check", "advisories"]))
}
