//! What ringrail looks like on this host.

use crate::run::{cargo, is_root, root, run as execute};
use crate::setup;

/// The heat equation on two ranks, then latency and bandwidth.
pub(crate) fn run() -> Result<(), String> {
    setup::run()?;
    let folder = root().join("target/demo");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let picture = folder.join("heat.png");
    let picture = picture.to_string_lossy();
    let heat = ["run", "--release", "--quiet", "-p", "ringrail", "--example", "heat", "--"];
    execute(cargo(&heat).args(["--ranks", "2", "--output", &picture]))?;
    let place: &[&str] = if is_root() { &["--lab", "rails=1"] } else { &["--loopback"] };
    let perf = ["run", "--release", "--quiet", "-p", "ringrail-perf", "--"];
    // A first look: a table of all sizes has to end while somebody watches.
    let latency = ["latency", "--brief", "--size", "8:65536"];
    execute(cargo(&perf).args(latency).args(place))?;
    let bandwidth = ["bw", "--brief", "--size", "4096:4194304"];
    execute(cargo(&perf).args(bandwidth).args(place))?;
    println!("the final field of the heat equation: {picture}");
    Ok(())
}
