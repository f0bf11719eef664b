//! Random runs of whole engines in a simulated network.

use std::process::Command;

use crate::run::{cargo, run as execute};

/// Seeds that belong to the tests: always the same ones.
const SEEDS_OF_TESTS: &str = "1500";

/// A fast build that checks as much as a debug one.
const BUILD: [&str; 9] = [
    "--quiet",
    "--profile",
    "swarm",
    "--package",
    "ringrail",
    "--features",
    "sim",
    "--example",
    "swarm",
];

/// What engines send in the seeds that belong to the tests.
const WIRE_HASHES: &str = "engine/tests/wire-hashes.txt";

/// The swarm with the given options; they are described where they are read.
pub(crate) fn run(options: impl Iterator<Item = String>) -> Result<(), String> {
    execute(cargo(&["run"]).args(BUILD).arg("--").args(options))
}

/// Builds what [`of_tests`] runs.
pub(crate) fn build() -> Command {
    let mut command = cargo(&["build"]);
    command.args(BUILD);
    command
}

/// Each planted bug has to be found within so many seeds. When this was written, the seed to find
/// it was at the most
///
/// - 3: `SkipCredit`, `LoseCreditReturn`, `EarlyDone`, `MatchYoungest`, `IgnoreSource`,
///   `LoseMatched`, `DuplicateCompletion`, `ShiftChunk`, `OvertakeWaiting`, `SkipRange`, `ShiftPut`
/// - 50: `DropRegrant`, `IgnoreRelease`, `ForgetWritable`, `LoseCreditNews`, `ForgetOffers`,
///   `RepeatNumber`, `AckUnhandled`, `ForgetLost`, `StealByProbe`, `BelieveAnyTag`,
///   `MoveUnasked`, `ReleaseUnacked`, `AckTooMuch`, `GrantsAsTheyCome`, `SkipSegmentSum`,
///   `SkipChunkSum`, `LeakContents`, `KeepHeld`, `FlushEarly`, `OvertakePulls`
/// - 400: `ForgetReap`, `EarlyDelivered`, `DropPartial`, `LeakStaging`, `KeepReceivesOfDead`,
///   `LoseCredit`, `ForgetEpoch`, `SkipDeduplication`, `EndBeforeReap`, `RepeatFrames`,
///   `MatchOutOfTurn`, `ForgetStream`, `ForgetResend`, `ForgetStreamAck`, `ShiftPart`,
///   `ForgetLent`, `ForgetRing`, `TakeUnread`, `ForgetPieces`, `TakeLatePiece`
/// - 2000: `LoseLimits`, for nearly all that is said of credit is soon said again
const SEEDS_PER_BUG: &str = "5000";

/// The check that the swarm finds what is planted.
pub(crate) fn of_planted_bugs() -> Command {
    let mut command = cargo(&["run"]);
    command.args(BUILD).args(["--", "--planted", SEEDS_PER_BUG]);
    command
}

/// The swarm's share of the tests.
pub(crate) fn of_tests() -> Command {
    let mut command = cargo(&["run"]);
    command.args(BUILD).args(["--", "--seed", "0", "--seeds", SEEDS_OF_TESTS]);
    command
}

/// The same seeds, each of which has to send the bytes that it sent when the wire hashes were
/// written.
#[expect(dead_code, reason = "the tests call it once they compare wire hashes")]
pub(crate) fn of_wire_hashes() -> Command {
    let mut command = cargo(&["run"]);
    command.args(BUILD).args(["--", "--compare", WIRE_HASHES]);
    command
}
