//! What is counted, and its figures: a line of `--json`, and of the file that `--check` reads.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::cli::Lanes;

/// A figure that is saved may be exceeded by so much.
pub(super) const MARGIN_PERCENT: u64 = 3;
/// Idle endpoints of the process may change the instructions by so much.
pub(super) const IDLE_PERCENT: u64 = 1;
/// What figures differ by that are small numbers: calls and packets of a message, by a timer that
/// fires once in a while; cache lines, by where the stack and the heap begin.
const CALLS_MARGIN: f64 = 0.02;
const LINES_MARGIN: f64 = 4.0;

/// Which messages are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Pattern {
    /// One at a time, to and fro.
    PingPong,
    /// 64 in a row, one way.
    Coalesced,
    /// Puts, one at a time, to and fro: the waiting side polls its memory.
    Put,
    /// 64 puts in a row, one way.
    PutCoalesced,
    /// Gets, one at a time: a request and an answer, which are two messages.
    Get,
}

/// Messages in a row.
pub(super) const WINDOW: u64 = 64;

impl Pattern {
    /// Messages of a round: a round trip, or a row.
    pub(super) fn round(self) -> u64 {
        match self {
            Self::PingPong | Self::Put | Self::Get => 2,
            Self::Coalesced | Self::PutCoalesced => WINDOW,
        }
    }
}

/// What carries the messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Library {
    /// An engine of ringrail.
    #[default]
    Ringrail,
    /// The same through libfabric, by ringrail's provider: fi_tinject and fi_trecv.
    Provider,
    /// A provider of libfabric itself: `shm` with --lanes shm, `tcp` with --lanes sockets.
    Libfabric,
    /// UCX: `posix` with --lanes shm, `tcp` with --lanes sockets.
    Ucx,
}

/// What is counted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct What {
    pub(super) test: String,
    #[serde(default)]
    pub(super) library: Library,
    pub(super) pattern: Pattern,
    pub(super) lanes: Lanes,
    pub(super) lab: String,
    pub(super) size_bytes: usize,
    #[serde(default)]
    pub(super) empty_turns: u32,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(super) peers: u32,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(super) endpoints: u32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) shared: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) settings: Vec<String>,
}

/// What one message costs both sides together; cache lines are those of a round.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) instructions: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) syscalls: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) packets: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) code_lines: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) data_lines: Option<u64>,
}

/// A line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) what: What,
    #[serde(flatten)]
    pub(super) figures: Figures,
}

impl Figures {
    /// Whether any is more than was saved, by more than figures differ. Those that were not saved,
    /// or not counted now, are not compared.
    pub(super) fn exceed(&self, saved: &Self) -> bool {
        let exceeds = |now: Option<f64>, saved: Option<f64>, margin: f64| match (now, saved) {
            (Some(now), Some(saved)) => {
                now > saved + margin.max(saved * MARGIN_PERCENT as f64 / 100.0)
            }
            _ => false,
        };
        let lines = |count: Option<u64>| count.map(|count| count as f64);
        self.instructions * 100 > saved.instructions * (100 + MARGIN_PERCENT)
            || exceeds(self.syscalls, saved.syscalls, CALLS_MARGIN)
            || exceeds(self.packets, saved.packets, CALLS_MARGIN)
            || exceeds(lines(self.code_lines), lines(saved.code_lines), LINES_MARGIN)
            || exceeds(lines(self.data_lines), lines(saved.data_lines), LINES_MARGIN)
    }

    /// Whether the instructions are fewer than were saved, by more than they differ.
    pub(super) fn are_better(&self, saved: &Self) -> bool {
        self.instructions * 100 < saved.instructions * (100 - MARGIN_PERCENT)
    }

    /// The lower one of each figure: what disturbs a count adds to it.
    pub(super) fn least(&self, other: &Self) -> Self {
        let least = |one: Option<f64>, other: Option<f64>| {
            one.map(|one| other.map_or(one, |it| one.min(it)))
        };
        let fewest = |one: Option<u64>, other: Option<u64>| {
            one.map(|one| other.map_or(one, |it| one.min(it)))
        };
        Self {
            instructions: self.instructions.min(other.instructions),
            syscalls: least(self.syscalls, other.syscalls),
            packets: least(self.packets, other.packets),
            code_lines: fewest(self.code_lines, other.code_lines),
            data_lines: fewest(self.data_lines, other.data_lines),
        }
    }

    /// Whether idle endpoints make a difference that counts.
    pub(super) fn differ_from(&self, alone: &Self) -> bool {
        self.instructions.abs_diff(alone.instructions) * 100 > alone.instructions * IDLE_PERCENT
    }
}

impl What {
    /// Whether `alone` is the same but for idle endpoints, and has none.
    pub(super) fn is_same_beside_idle(&self, alone: &Self) -> bool {
        self.endpoints > 1 && *alone == Self { endpoints: 1, ..self.clone() }
    }
}

impl fmt::Display for What {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = match self.pattern {
            Pattern::PingPong => "ping-pong",
            Pattern::Coalesced => "64 in a row",
            Pattern::Put => "ping-pong of puts",
            Pattern::PutCoalesced => "64 puts in a row",
            Pattern::Get => "gets",
        };
        let Self { library, size_bytes, lab, peers, endpoints, empty_turns, .. } = self;
        if *library != Library::Ringrail {
            write!(out, "{}: ", name(*library))?;
        }
        write!(out, "{size_bytes} bytes, {pattern}, {}, {lab}", name(self.lanes))?;
        match empty_turns {
            0 => {}
            1 => write!(out, ", an empty turn before each")?,
            turns => write!(out, ", {turns} empty turns before each")?,
        }
        if *peers > 1 {
            write!(out, ", {peers} peers by turns")?;
        }
        if *endpoints > 1 {
            write!(out, ", {endpoints} endpoints, one of them in use")?;
        }
        if self.shared {
            write!(out, ", shared")?;
        }
        Ok(())
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} instructions", self.instructions)?;
        if let Some(syscalls) = self.syscalls {
            write!(out, ", {syscalls} system calls")?;
        }
        if let Some(packets) = self.packets {
            write!(out, ", {packets} packets")?;
        }
        write!(out, " a message, both sides")?;
        if let (Some(code), Some(data)) = (self.code_lines, self.data_lines) {
            write!(out, "; {code} cache lines of code and {data} of data a round")?;
        }
        Ok(())
    }
}

impl fmt::Display for Row {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.what, self.figures)
    }
}

fn one() -> u32 {
    1
}

fn is_one(count: &u32) -> bool {
    *count == 1
}

/// What an option calls a value.
pub(super) fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pattern: &str, more: &str, count: u64) -> Row {
        let text = format!(
            r#"{{"test":"instructions","pattern":"{pattern}","lanes":"udp","lab":"rails=1",
               "size_bytes":8,{more}"instructions":{count}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn idle_endpoints_are_compared_with_the_line_that_has_none() {
        let idle = row("ping-pong", r#""endpoints":64,"#, 1010);
        let (alone, other) = (row("ping-pong", "", 1000), row("coalesced", "", 1000));
        let with_turn = row("ping-pong", r#""empty_turns":1,"#, 1000);
        assert!(idle.what.is_same_beside_idle(&alone.what));
        assert!(!idle.what.is_same_beside_idle(&other.what));
        assert!(!idle.what.is_same_beside_idle(&with_turn.what));
        assert!(!idle.what.is_same_beside_idle(&idle.what), "it is not compared with itself");
        assert!(!idle.figures.differ_from(&alone.figures));
        for count in [1011, 989] {
            let idle = row("ping-pong", r#""endpoints":64,"#, count);
            assert!(idle.figures.differ_from(&alone.figures));
        }
    }

    #[test]
    fn figures_have_a_ceiling() {
        let saved = Figures {
            instructions: 1000,
            syscalls: Some(2.0),
            packets: Some(0.1),
            code_lines: Some(400),
            data_lines: Some(30),
        };
        assert!(!saved.exceed(&saved));
        let with = |change: fn(&mut Figures)| {
            let mut now = saved;
            change(&mut now);
            now.exceed(&saved)
        };
        assert!(!with(|it| it.instructions = 1030) && with(|it| it.instructions = 1031));
        assert!(!with(|it| it.syscalls = Some(2.05)) && with(|it| it.syscalls = Some(2.1)));
        // Small figures differ by more than 3 %.
        assert!(!with(|it| it.packets = Some(0.11)) && with(|it| it.packets = Some(0.13)));
        assert!(!with(|it| it.code_lines = Some(412)) && with(|it| it.code_lines = Some(413)));
        assert!(!with(|it| it.data_lines = Some(34)) && with(|it| it.data_lines = Some(35)));
        // What one of both does not have is not compared.
        assert!(!with(|it| (it.syscalls, it.code_lines) = (None, None)));
        assert!(saved.are_better(&Figures { instructions: 1032, ..saved }));
        assert!(!saved.are_better(&Figures { instructions: 1030, ..saved }));
    }

    #[test]
    fn the_lower_one_of_two_counts_is_taken_figure_by_figure() {
        let one = Figures { instructions: 10, packets: Some(1.0), ..Figures::default() };
        let other = Figures { instructions: 9, syscalls: Some(1.0), packets: Some(2.0), ..one };
        let least = Figures { instructions: 9, ..one };
        assert_eq!(one.least(&other), least);
    }

    /// What `--json` prints is what `--check` reads.
    #[test]
    fn a_line_survives_being_written() {
        let mut row = row("ping-pong", r#""empty_turns":1,"#, 1000);
        (row.what.library, row.figures.syscalls) = (Library::Ucx, Some(1.5));
        row.figures.code_lines = Some(7);
        let text = serde_json::to_string(&row).unwrap();
        for part in [r#""library":"ucx""#, r#""empty_turns":1"#, r#""syscalls":1.5"#] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("packets") && !text.contains("endpoints"), "{text}");
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
    }
}
