//! Random runs of whole engines in a simulated network.

use std::path::PathBuf;
use std::process::Command;

use crate::run::{root, run as execute};
use crate::setup;
use crate::test::simulation;

/// Seconds of new seeds in the short set of tests.
const NEW_SECONDS: &str = "30";

/// Hashes of what fixed seeds send.
const WIRE_HASHES: &str = "engine/tests/wire-hashes.txt";

/// The built swarm.
pub(crate) struct Swarm {
    program: PathBuf,
}

/// Builds and runs the swarm with the options of the command line; they are described where they
/// are read.
pub(crate) fn run(options: &[String]) -> Result<(), String> {
    setup::run()?;
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    execute(&mut Swarm::build()?.command(&options))
}

impl Swarm {
    /// Builds it, in the profile of developers: the engine is optimised there, and checks as much
    /// as in tests.
    pub(crate) fn build() -> Result<Self, String> {
        Ok(Self { program: simulation("swarm")? })
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(root()).args(options);
        command
    }

    /// Fixed seeds, whose sessions send what the committed hashes say.
    pub(crate) fn fixed_seeds(&self) -> Command {
        self.command(&["--compare", WIRE_HASHES, "--jobs", "1"])
    }

    /// The same without fast paths: what is sent does not depend on them.
    pub(crate) fn without_fast_paths(&self) -> Command {
        self.command(&["--compare", WIRE_HASHES, "--long-ways"])
    }

    /// New seeds.
    pub(crate) fn new_seeds(&self) -> Command {
        self.command(&["--seconds", NEW_SECONDS, "--jobs", "1"])
    }

    /// Seeds that failed once.
    pub(crate) fn known_seeds(&self) -> Command {
        self.command(&["--known-seeds", "--jobs", "1"])
    }

    /// New seeds for half an hour, on all cores.
    pub(crate) fn many_new_seeds(&self) -> Command {
        self.command(&["--seconds", "1800"])
    }

    /// The seed that is known to find each planted bug.
    pub(crate) fn planted_bugs(&self) -> Command {
        self.command(&["--planted", "0", "--jobs", "1"])
    }

    /// Each planted bug has to be found within so many seeds.
    pub(crate) fn search_for_planted_bugs(&self) -> Command {
        self.command(&["--planted", "5000"])
    }

    /// What simulated links carry, and how fast.
    pub(crate) fn figures(&self) -> Command {
        self.command(&["--figures", "--jobs", "1"])
    }
}
