//! Everything that can be said about the tree without running it.

use crate::run::{cargo, root, run as execute};
use crate::setup;
use crate::tidy;

/// Format, lints, documentation, tidy, licences, known holes.
pub(crate) fn run() -> Result<(), String> {
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
    let plain = ["clippy", "-p", "ringrail", "--no-default-features", "--", "-D", "warnings"];
    execute(&mut cargo(&plain))?;
    let documentation =
        ["doc", "--workspace", "--all-features", "--no-deps", "--document-private-items"];
    execute(cargo(&documentation).env("RUSTDOCFLAGS", "-D warnings"))?;
    setup::program("cargo-deny")?;
    let rules = ["deny", "--all-features", "check", "licenses", "bans", "sources"];
    execute(&mut cargo(&rules))?;
    // Where the list of known holes cannot be had, the rest still counts.
    if execute(&mut cargo(&["deny", "fetch", "db"])).is_err() {
        println!("check: the advisory database is out of reach: advisories were not checked");
        return Ok(());
    }
    execute(&mut cargo(&["deny", "--all-features", "--offline", "check", "advisories"]))
}
