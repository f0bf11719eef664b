//! Messages between NICs that drop packets, as AF_XDP frames and by UDP sockets.
//!
//! The XDP program of tests drops datagrams at random where they come in, on both hosts, those for
//! sockets included. TCP is left alone.

use std::fmt;
use std::sync::atomic::AtomicUsize;

use crate::books::{assert_quiet, figures_of, frames_of};
use crate::common::pair;
use crate::stream::{Arrived, Side, exchange};
use ringrail::{Counters, Endpoint, FrameState, Owned, Peer};
use ringrail_tests::lab::{Host, Lab, LabSpec};
use ringrail_tests::require_lab;
use ringrail_xdp::{AttachMode, Fault, FaultReport, Nic};

const HOSTS: [Host; 2] = [Host::A, Host::B];
const LOSSES: [f64; 3] = [0.001, 0.01, 0.1];
/// As many as the setting has by itself.
const FRAMES: &str = "2048";
/// Messages of one run, both directions together.
const MESSAGES: u64 = 20_000;
/// The same for the ignored test.
const MESSAGES_OF: &str = "TEST_OF_RINGRAIL_MESSAGES";

/// What is to be run.
#[derive(Clone, Copy, Debug)]
struct Run {
    control_lane: &'static str,
    driver: &'static str,
    /// AF_XDP frames of each side; half of them receive.
    frames: &'static str,
    loss: f64,
    /// Both directions together.
    messages: u64,
    /// Says on standard error how far it is.
    is_told: bool,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} dropped", self.control_lane, Percent(self.loss))
    }
}

struct Percent(f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Two digits behind the point at the most.
        write!(f, "{} %", (self.0 * 1e4).round() / 1e2)
    }
}

/// What one side has to say at the end.
#[derive(Debug)]
struct End {
    arrived: Arrived,
    counters: Counters,
}

/// What came of a run.
#[derive(Debug)]
struct Played {
    ends: [End; 2],
    faults: [FaultReport; 2],
}

impl Played {
    fn megabits_per_s(&self) -> f64 {
        let bytes: u64 = self.ends.iter().map(|end| end.arrived.bytes).sum();
        bytes as f64 * 8e-6 / self.took_s()
    }

    fn took_s(&self) -> f64 {
        self.ends.iter().map(|end| end.arrived.took.as_secs_f64()).fold(0.0, f64::max)
    }

    fn sum(&self, count: impl Fn(&Counters) -> u64) -> u64 {
        self.ends.iter().map(|end| count(&end.counters)).sum()
    }
}

/// The NICs of both hosts, dropping.
fn lossy_nics(lab: &Lab, loss: f64) -> [Nic; 2] {
    HOSTS.map(|host| {
        let join = || Nic::join_with_faults("rail0", AttachMode::Auto).unwrap();
        let nic = lab.host(host).enter(join).unwrap();
        let rules = [Fault::drop_share(loss)];
        nic.set_faults(if loss > 0.0 { &rules } else { &[] }).unwrap();
        nic
    })
}

/// One side of a run, up to the books of its frames.
fn side(run: &Run, index: u8, done: &AtomicUsize, endpoint: &Endpoint<Owned>, peer: Peer) -> End {
    assert_eq!(endpoint.driver(), run.driver);
    let side = Side { endpoint, peer, index, messages: run.messages / 2, done };
    let every = run.messages / 20;
    let mut told = 0;
    let arrived = exchange(&side, |came| {
        if run.is_told && index == 0 && came >= told + every {
            told = came;
            let lost = endpoint.counters().datagrams_lost;
            eprintln!("{run}: {came} of {} to host a; {lost} taken for lost", side.messages);
        }
    });
    if run.control_lane == "xdp" {
        assert_quiet(endpoint);
        let figures = figures_of(endpoint);
        assert!(figures.sent > 100 && figures.received > 100, "{figures:?}");
        assert_eq!(figures.unfit, 0);
    } else {
        assert_eq!(frames_of(endpoint), FrameState::Off);
    }
    End { arrived, counters: endpoint.counters() }
}

/// Runs it and looks whether what was to be lost was lost.
fn played(run: &Run) -> Played {
    let lab = Lab::build(&LabSpec::rails(1)).unwrap();
    let nics = lossy_nics(&lab, run.loss);
    let settings =
        [("lanes", run.driver), ("control_lane", run.control_lane), ("xdp_frames", run.frames)];
    let done = AtomicUsize::new(0);
    let (a, b) = pair(
        &lab,
        &settings,
        |endpoint, peer| side(run, 0, &done, endpoint, peer),
        |endpoint, peer| side(run, 1, &done, endpoint, peer),
    );
    let faults = nics.each_ref().map(|nic| nic.fault_report(0).unwrap());
    let result = Played { ends: [a, b], faults };
    for (end, fault) in result.ends.iter().zip(faults) {
        let counters = &end.counters;
        assert!(counters.segments_by_datagram * 2 > counters.segments_received, "{counters:?}");
        let wanted = fault.seen as f64 * run.loss;
        // Of 20 that are due none is hit once in 10^9 runs; of 3, once in 30.
        assert!(wanted < 20.0 || fault.hits > 0, "{run}: {fault:?}");
        if wanted > 100.0 {
            let hits = fault.hits as f64;
            assert!(hits > wanted * 0.5 && hits < wanted * 2.0, "{run}: {fault:?}");
        }
    }
    result
}

/// Short runs over one kind of control lane.
fn play_short_ones(control_lane: &'static str) {
    let runs = LOSSES.map(|loss| ("uring", FRAMES, loss));
    // Few frames: all of them are under way at times.
    for (driver, frames, loss) in runs.into_iter().chain([("sockets", "128", 0.1)]) {
        played(&Run { control_lane, driver, frames, loss, messages: MESSAGES, is_told: false });
    }
}

#[test]
fn frames_that_are_dropped_cost_no_message() {
    require_lab!();
    play_short_ones("xdp");
}

#[test]
fn datagrams_that_are_dropped_cost_no_message() {
    require_lab!();
    play_short_ones("udp");
}

/// Prints a table of the goodput.
#[test]
#[ignore = "takes minutes: cargo xtask lossy"]
fn a_million_messages_of_each_kind() {
    require_lab!();
    let messages = std::env::var(MESSAGES_OF).map_or(1_000_000, |text| text.parse().unwrap());
    let mut rows = Vec::new();
    for control_lane in ["xdp", "udp"] {
        let mut whole = None;
        for loss in [0.0].into_iter().chain(LOSSES) {
            let (driver, frames, is_told) = ("uring", FRAMES, true);
            let run = Run { control_lane, driver, frames, loss, messages, is_told };
            let result = played(&run);
            let (rate, took_s) = (result.megabits_per_s(), result.took_s());
            let of_whole = rate / *whole.get_or_insert(rate);
            let row = format!(
                "| {control_lane} | {} | {rate:.0} | {of_whole:.2} | {:.0} | {} | {} | {} |",
                Percent(loss),
                messages as f64 / took_s / 1e3,
                result.sum(|counters| counters.datagrams_sent),
                result.faults.iter().map(|fault| fault.hits).sum::<u64>(),
                result.sum(|counters| counters.datagrams_lost),
            );
            eprintln!("{row}");
            rows.push(row);
        }
    }
    println!();
    println!("{messages} messages in each run, both directions together:");
    println!();
    let of_datagrams = "datagrams | dropped | taken for lost";
    println!("| lane | loss | Mb/s | of loss-free | 1000 messages/s | {of_datagrams} |");
    println!("|---|---|---|---|---|---|---|---|");
    for row in rows {
        println!("{row}");
    }
}
