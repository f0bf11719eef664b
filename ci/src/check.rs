//! Everything that can be said about the tree without running it.

use crate::run::{cargo, has, root, run as execute};
use crate::setup;
use crate::tidy;

/// Format, lints, documentation, tidy, licences.
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
    if has("cargo-deny") {
        let rules = ["deny", "--all-features", "check", "licenses", "bans", "sources"];
        execute(&mut cargo(&rules))?;
    } else {
        println!("cargo-deny is not installed: licences, bans and sources were not checked");
    }
    Ok(())
}
