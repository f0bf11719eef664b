//! The text format of Prometheus, version 0.0.4.

use std::collections::BTreeSet;
use std::fmt::{Display, Write as _};

use super::{Counters, Statistics};
use crate::types::frames::FrameDrops;
use crate::types::rail::PathState;
use crate::types::statistics::{NicCounters, PathStatistics, PauseCounters};

/// A metric: its name, its description, and how it is read.
type Number<T> = (&'static str, &'static str, fn(&T) -> u64);

const COUNTERS: [Number<Counters>; 23] = [
    ("syscalls", "System calls", |c| c.syscalls),
    ("copied_bytes", "Bytes copied in user space", |c| c.copied_bytes),
    ("segments_received", "Segments received on control lanes", |c| c.segments_received),
    ("segments_by_datagram", "Segments that came in datagrams", |c| c.segments_by_datagram),
    ("frames_received", "Frames received", |c| c.frames_received),
    ("unexpected_messages", "Messages before their receive", |c| c.unexpected_messages),
    ("zero_copy_sends", "Chunks sent with zero copy", |c| c.zero_copy_sends),
    ("zero_copy_copied", "Of these, those that the kernel copied", |c| c.zero_copy_copied),
    ("registered_sends", "Chunks sent from registered memory", |c| c.registered_sends),
    ("stale_completions", "Completions that belonged to nothing", |c| c.stale_completions),
    ("cq_overflows", "Overflows of the completion ring", |c| c.cq_overflows),
    ("latency_sends", "Messages sent with the hint latency", |c| c.latency_sends),
    ("bulk_sends", "Messages sent with the hint bulk", |c| c.bulk_sends),
    ("priority_sends", "Messages sent with the hint priority", |c| c.priority_sends),
    ("grants_ahead", "Ranges asked for before others for their hint", |c| c.grants_ahead),
    ("lane_failures", "Bulk lanes that failed", |c| c.lane_failures),
    ("corrupted_chunks", "Chunks with a wrong checksum", |c| c.corrupted_chunks),
    ("accesses_refused", "Operations on memory refused", |c| c.accesses_refused),
    ("wrong_keys", "Operations on memory by wrong keys", |c| c.wrong_keys),
    ("dropped_frames", "Frames without a receiver, and invalid requests for connections", |c| {
        c.dropped_frames
    }),
    ("datagrams_sent", "Datagrams sent", |c| c.datagrams_sent),
    ("datagrams_lost", "Datagrams taken for lost", |c| c.datagrams_lost),
    ("datagrams_dropped", "Datagrams that came and were dropped", |c| c.datagrams_dropped),
];

const GAUGES: [Number<Counters>; 2] = [
    ("unexpected_bytes_max", "Most bytes of unexpected messages", |c| c.unexpected_bytes_max),
    ("staging_bytes", "Bytes of all segment buffers", |c| c.staging_bytes),
];

const OF_PATHS: [Number<PathStatistics>; 10] = [
    ("bulk_bytes_sent", "Bytes of chunks sent on a path", |p| p.bytes_sent),
    ("bulk_bytes_received", "Bytes of chunks that came by a path", |p| p.bytes_received),
    ("chunks_sent", "Chunks sent on a path", |p| p.chunks_sent),
    ("chunks_received", "Chunks that came by a path", |p| p.chunks_received),
    ("regrants", "Ranges granted again as a lane of the path failed", |p| p.regrants),
    ("retransmits_before", "Segments sent again on connections that are gone", |p| {
        p.retransmits_before
    }),
    ("datagrams_sent", "Datagrams sent on a path", |p| p.datagrams_sent),
    ("datagrams_lost", "Datagrams of a path taken for lost", |p| p.datagrams_lost),
    ("probes", "Probes sent for want of an answer", |p| p.probes),
    ("state_changes", "Changes of the state of a path", |p| p.changes),
];

const OF_NICS: [Number<NicCounters>; 9] = [
    ("packets_received", "Packets that a NIC received", |n| n.packets_received),
    ("packets_sent", "Packets that a NIC sent", |n| n.packets_sent),
    ("bytes_received", "Bytes that a NIC received", |n| n.bytes_received),
    ("bytes_sent", "Bytes that a NIC sent", |n| n.bytes_sent),
    ("errors_received", "Packets that came damaged", |n| n.errors_received),
    ("errors_sent", "Packets that a NIC could not send", |n| n.errors_sent),
    ("dropped_received", "Packets that came and were dropped", |n| n.dropped_received),
    ("dropped_sent", "Packets dropped on their way out", |n| n.dropped_sent),
    ("missed", "Packets that a NIC had no room for", |n| n.missed),
];

const OF_PAUSES: [Number<PauseCounters>; 2] = [
    ("pauses_sent", "Pause frames that a NIC sent", |p| p.sent),
    ("pauses_received", "Pause frames that a NIC received", |p| p.received),
];

const OF_FRAMES: [Number<FrameDrops>; 6] = [
    ("dropped_received", "Packets dropped for want of a frame", |f| f.dropped_received),
    ("receive_ring_full", "Packets that found the ring full", |f| f.receive_ring_full),
    ("fill_ring_empty", "Times without a frame to receive", |f| f.fill_ring_empty),
    ("transmit_ring_empty", "Times without a packet to send", |f| f.transmit_ring_empty),
    ("invalid_filled", "Frames to receive that were refused", |f| f.invalid_filled),
    ("invalid_sent", "Packets to send that were refused", |f| f.invalid_sent),
];

const STATES: [(PathState, &str); 4] = [
    (PathState::Probing, "probing"),
    (PathState::Active, "active"),
    (PathState::Suspect, "suspect"),
    (PathState::Down, "down"),
];

/// Formats statistics of engines for Prometheus: each metric with its description, and a line for
/// each engine, path or NIC. A NIC that several engines use is listed once.
///
/// Each name begins with `ringrail_`; names of counters end in `_total`. The labels of a path are
/// `engine`, `peer`, `nic`, `local` and `remote`.
pub fn prometheus(engines: &[&Statistics]) -> String {
    let mut text = Text(String::with_capacity(4096));
    let labels: Vec<String> =
        engines.iter().map(|engine| label("engine", engine.endpoint)).collect();
    for (numbers, kind) in [(&COUNTERS[..], MetricKind::Counter), (&GAUGES[..], MetricKind::Gauge)]
    {
        for (name, help, read) in numbers {
            let name = text.head("", name, help, kind);
            for (engine, labels) in engines.iter().zip(&labels) {
                text.line(&name, labels, read(&engine.counters));
            }
        }
    }
    let name = text.head("", "paths_omitted", "Paths that are not listed", MetricKind::Gauge);
    for (engine, labels) in engines.iter().zip(&labels) {
        text.line(&name, labels, engine.paths_omitted);
    }
    let paths = engines.iter().zip(&labels).flat_map(|(engine, labels)| {
        engine.paths.iter().map(move |path| (path, labels_of(labels, path)))
    });
    write_paths(&mut text, &paths.collect::<Vec<_>>());
    write_frames(&mut text, engines.iter().map(|engine| engine.frame_drops).zip(&labels));
    write_nics(&mut text, engines);
    text.0
}

fn labels_of(engine: &str, path: &PathStatistics) -> String {
    let PathStatistics { peer, nic, local, remote, .. } = path;
    let (peer, nic) = (label("peer", peer), label("nic", nic));
    format!("{engine},{peer},{nic},{},{}", label("local", local), label("remote", remote))
}

fn write_paths(text: &mut Text, paths: &[(&PathStatistics, String)]) {
    if paths.is_empty() {
        return;
    }
    for (name, help, read) in OF_PATHS {
        let name = text.head("path_", name, help, MetricKind::Counter);
        for (path, labels) in paths {
            text.line(&name, labels, read(path));
        }
    }
    let name = text.head("path_", "state", "1 for the state that a path is in", MetricKind::Gauge);
    for (path, labels) in paths {
        for (state, state_name) in STATES {
            let labels = format!("{labels},{}", label("state", state_name));
            text.line(&name, &labels, u8::from(path.state == state));
        }
    }
    let help = "1 for the path that messages go by";
    let name = text.head("path_", "carries_messages", help, MetricKind::Gauge);
    for (path, labels) in paths {
        text.line(&name, labels, u8::from(path.carries_messages));
    }
    let help = "1 for a path that messages go by in datagrams";
    let name = text.head("path_", "carries_datagrams", help, MetricKind::Gauge);
    for (path, labels) in paths {
        text.line(&name, labels, u8::from(path.carries_datagrams));
    }
    let help = "Smoothed round trip of the datagrams of a path";
    let name = text.head("path_", "round_trip_seconds", help, MetricKind::Gauge);
    for (path, labels) in paths {
        if let Some(round_trip) = path.round_trip {
            text.line(&name, labels, round_trip.as_secs_f64());
        }
    }
    let help = "The longest message that goes to the peer eagerly, by whatever path";
    let name = text.head("path_", "eager_limit_bytes", help, MetricKind::Gauge);
    for (path, labels) in paths {
        text.line(&name, labels, path.eager_limit_bytes);
    }
    let help = "Time since the state of a path changed, and why it did";
    let name = text.head("path_", "last_change_age_seconds", help, MetricKind::Gauge);
    for (path, labels) in paths {
        if let Some(change) = path.last_change {
            let labels = format!("{labels},{}", label("cause", change.cause));
            text.line(&name, &labels, change.ago.as_secs_f64());
        }
    }
    write_lanes(text, paths);
}

fn write_lanes(text: &mut Text, paths: &[(&PathStatistics, String)]) {
    let lanes = paths.iter().flat_map(|(path, labels)| {
        path.lanes.iter().map(move |lane| {
            let name = lane.number.map_or("control".to_owned(), |number| number.to_string());
            (lane, format!("{labels},{}", label("lane", name)))
        })
    });
    let lanes: Vec<_> = lanes.collect();
    if lanes.is_empty() {
        return;
    }
    let help = "Segments that the kernel sent again, of connections that are there";
    let name = text.head("lane_", "retransmits", help, MetricKind::Counter);
    for (lane, labels) in &lanes {
        text.line(&name, labels, lane.retransmits);
    }
    let help = "Smoothed round trip of a connection as the kernel has it";
    let name = text.head("lane_", "round_trip_seconds", help, MetricKind::Gauge);
    for (lane, labels) in &lanes {
        text.line(&name, labels, lane.round_trip.as_secs_f64());
    }
}

fn write_frames<'a>(
    text: &mut Text,
    engines: impl Iterator<Item = (Option<FrameDrops>, &'a String)>,
) {
    let engines: Vec<_> = engines.filter_map(|(drops, labels)| Some((drops?, labels))).collect();
    if engines.is_empty() {
        return;
    }
    for (name, help, read) in OF_FRAMES {
        let name = text.head("frames_", name, help, MetricKind::Counter);
        for (drops, labels) in &engines {
            text.line(&name, labels, read(drops));
        }
    }
}

fn write_nics(text: &mut Text, engines: &[&Statistics]) {
    let mut seen = BTreeSet::new();
    let rails = engines.iter().flat_map(|engine| &engine.rails);
    let nics = rails.filter_map(|(rail, counters)| Some((&rail.nic, counters.as_ref()?)));
    let nics: Vec<_> = nics.filter(|(name, _)| seen.insert(*name)).collect();
    if nics.is_empty() {
        return;
    }
    for (name, help, read) in OF_NICS {
        let name = text.head("nic_", name, help, MetricKind::Counter);
        for (nic, counters) in &nics {
            text.line(&name, &label("nic", nic), read(counters));
        }
    }
    let pauses = nics.iter().filter_map(|(nic, counters)| Some((nic, counters.pauses?)));
    let pauses: Vec<_> = pauses.collect();
    if pauses.is_empty() {
        return;
    }
    for (name, help, read) in OF_PAUSES {
        let name = text.head("nic_", name, help, MetricKind::Counter);
        for (nic, counters) in &pauses {
            text.line(&name, &label("nic", nic), read(counters));
        }
    }
}

/// A label, its value escaped.
fn label(name: &str, value: impl Display) -> String {
    let value = value.to_string().replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    format!("{name}=\"{value}\"")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MetricKind {
    /// Only grows.
    Counter,
    Gauge,
}

/// The text written so far. Writing to a string does not fail.
struct Text(String);

impl Text {
    /// Begins a metric; returns its full name.
    fn head(&mut self, prefix: &str, name: &str, help: &str, kind: MetricKind) -> String {
        let (suffix, kind) = match kind {
            MetricKind::Counter => ("_total", "counter"),
            MetricKind::Gauge => ("", "gauge"),
        };
        let name = format!("ringrail_{prefix}{name}{suffix}");
        let _ = writeln!(self.0, "# HELP {name} {help}.\n# TYPE {name} {kind}");
        name
    }

    fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "{name}{{{labels}}} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_labels_are_escaped() {
        assert_eq!(label("nic", "a\\b\"c\nd"), r#"nic="a\\b\"c\nd""#);
    }

    #[test]
    fn each_metric_is_one_group_with_its_type() {
        let locator = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let engine = |number: u64| Statistics {
            endpoint: crate::types::Address::new(number, locator, 0),
            counters: Counters { syscalls: number, ..Counters::default() },
            rails: Vec::new(),
            paths: Vec::new(),
            paths_omitted: 0,
            frame_drops: None,
        };
        let text = prometheus(&[&engine(7), &engine(8)]);
        let expected = "# HELP ringrail_syscalls_total System calls.\n\
            # TYPE ringrail_syscalls_total counter\n\
            ringrail_syscalls_total{engine=\"127.0.0.1:1/0000000000000007.0\"} 7\n\
            ringrail_syscalls_total{engine=\"127.0.0.1:1/0000000000000008.0\"} 8\n";
        assert!(text.starts_with(expected), "{text}");
        let mut seen = BTreeSet::new();
        for line in text.lines().filter(|line| line.starts_with("# TYPE")) {
            assert!(seen.insert(line), "twice: {line}");
        }
        assert_eq!(seen.len(), COUNTERS.len() + GAUGES.len() + 1, "none without anything in it");
    }
}
