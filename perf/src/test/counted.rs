//! What both sides counted in the measured part, and which control lane messages went by.

use std::ops::RangeInclusive;

use ringrail::Counters;
use ringrail::settings::ControlLane;
use serde::{Deserialize, Serialize};

use crate::cli::Lanes;
use crate::output::Report;

/// What one side counted during the measurement.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    pub(super) syscalls_per_message: f64,
    /// Segments received by its control lanes, and how many of them in datagrams.
    segments: u64,
    segments_by_datagram: u64,
    /// Datagrams that went or came as AF_XDP frames.
    by_frame: u64,
    /// Datagrams that went or came by shared memory.
    by_ring: u64,
    sent: u64,
    lost: u64,
    dropped: u64,
}

impl Counts {
    pub(super) fn between(
        before: &Counters,
        after: &Counters,
        (by_frame, by_ring): (u64, u64),
        messages: u64,
    ) -> Self {
        let syscalls = after.syscalls - before.syscalls;
        Self {
            syscalls_per_message: syscalls as f64 / messages.max(1) as f64,
            segments: after.segments_received - before.segments_received,
            segments_by_datagram: after.segments_by_datagram - before.segments_by_datagram,
            by_frame,
            by_ring,
            sent: after.datagrams_sent - before.datagrams_sent,
            lost: after.datagrams_lost - before.datagrams_lost,
            dropped: after.datagrams_dropped - before.datagrams_dropped,
        }
    }
}

/// Says in `report` which control lane messages went by, whatever was asked for; at the end by
/// `nic`.
pub(super) fn control_lane(
    report: &mut Report,
    asked: ControlLane,
    ours: &Counts,
    theirs: &Counts,
    nic: &str,
) {
    let segments = ours.segments + theirs.segments;
    let by_datagram = ours.segments_by_datagram + theirs.segments_by_datagram;
    let are_frames = ours.by_frame + theirs.by_frame >= by_datagram;
    let are_in_rings = ours.by_ring + theirs.by_ring >= by_datagram;
    let used = match (by_datagram, are_frames) {
        (0, _) => "tcp",
        (all, _) if are_in_rings && all == segments => "shm",
        (_, _) if are_in_rings => "shm+tcp",
        (all, true) if all == segments => "xdp",
        (all, false) if all == segments => "udp",
        (_, true) => "xdp+tcp",
        (_, false) => "udp+tcp",
    };
    report.control_lane = Some(used.to_owned());
    if asked == ControlLane::Tcp && by_datagram == 0 {
        return;
    }
    // The other lanes follow: those of bulk.
    report.lanes.insert(0, format!("{used}:{nic}"));
    report.datagram_share = Some(by_datagram as f64 / segments.max(1) as f64);
    (report.datagrams_sent, report.datagrams_sent_peer) = (Some(ours.sent), Some(theirs.sent));
    (report.datagrams_lost, report.datagrams_lost_peer) = (Some(ours.lost), Some(theirs.lost));
    report.datagrams_dropped = Some(ours.dropped);
    report.datagrams_dropped_peer = Some(theirs.dropped);
}

/// Messages that may fit no datagram and that are not pulled, in bytes.
const BY_STREAM: RangeInclusive<usize> = 1025..=64 << 10;

impl Report {
    /// Refuses a round whose control lane was to be datagrams and in which none carried anything,
    /// unless its messages go by TCP for their length.
    pub(crate) fn check_datagrams(&self, lanes: Lanes) -> Result<(), String> {
        let is_shared = self.control_lane.as_deref().is_some_and(|used| used.starts_with("shm"));
        if lanes == Lanes::Shm && !is_shared {
            return Err(format!(
                "{} at {} bytes: no memory was shared, so that this is no figure of it; are both \
                 sides on one host and in one network namespace? `ringrail-perf info --lanes shm` \
                 says whether this host has it",
                self.test, self.size_bytes
            ));
        }
        if BY_STREAM.contains(&self.size_bytes)
            || self.datagram_share.is_some_and(|share| share > 0.0)
        {
            return Ok(());
        }
        let sent = self.datagrams_sent.unwrap_or(0) + self.datagrams_sent_peer.unwrap_or(0);
        let (what, cure) = match sent {
            0 => (
                "no datagram was sent",
                "see what `ringrail-perf info` says of datagrams, on \
                   both hosts, and look for control_lane in --set",
            ),
            _ => (
                "datagrams were sent and none carried a message",
                "does a firewall drop UDP \
                   between the hosts?",
            ),
        };
        Err(format!(
            "{} at {} bytes: {what} in the measured part: messages went by TCP, so that this is no \
             figure of a datagram lane; {cure} (--lanes uring measures TCP)",
            self.test, self.size_bytes
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(asked: ControlLane, ours: (u64, u64), theirs: (u64, u64), sent: u64) -> Report {
        let counted = |(segments, segments_by_datagram)| Counts {
            segments,
            segments_by_datagram,
            sent,
            ..Counts::default()
        };
        let lanes = vec!["uring:rail1".to_owned()];
        let mut report = Report { lanes, ..Report::default() };
        control_lane(&mut report, asked, &counted(ours), &counted(theirs), "rail0");
        report
    }

    #[test]
    fn the_lane_is_the_one_that_was_used() {
        let cases = [
            (ControlLane::Udp, (10, 10), (5, 5), "udp", Some(1.0)),
            (ControlLane::Udp, (10, 10), (6, 2), "udp+tcp", Some(0.75)),
            (ControlLane::Udp, (10, 0), (5, 0), "tcp", Some(0.0)),
            (ControlLane::Tcp, (10, 0), (5, 0), "tcp", None),
        ];
        for (asked, ours, theirs, lane, share) in cases {
            let report = report(asked, ours, theirs, 1);
            assert_eq!(report.control_lane.as_deref(), Some(lane));
            assert_eq!(report.datagram_share, share, "{lane}");
            let first = share.map_or("uring:rail1".to_owned(), |_| format!("{lane}:rail0"));
            assert_eq!(report.lanes[0], first);
            assert_eq!(report.lanes.last().unwrap(), "uring:rail1");
        }
    }

    #[test]
    fn frames_are_named_whether_or_not_some_went_by_tcp() {
        for (segments, lane) in [(10, "xdp"), (12, "xdp+tcp")] {
            let counted =
                Counts { segments, segments_by_datagram: 10, by_frame: 10, ..Counts::default() };
            let mut report = Report::default();
            control_lane(&mut report, ControlLane::Xdp, &counted, &counted, "rail0");
            assert_eq!(report.control_lane.as_deref(), Some(lane));
        }
    }

    #[test]
    fn shared_memory_is_named_and_nothing_else_is_a_figure_of_it() {
        for (by_ring, lane, is_right) in [(10, "shm", true), (9, "udp", false)] {
            let counted =
                Counts { segments: 10, segments_by_datagram: 10, by_ring, ..Counts::default() };
            let mut report = Report::default();
            control_lane(&mut report, ControlLane::Udp, &counted, &counted, "lo");
            assert_eq!(report.control_lane.as_deref(), Some(lane));
            assert_eq!(report.check_datagrams(Lanes::Shm).is_ok(), is_right);
        }
    }

    #[test]
    fn tcp_is_no_figure_of_datagrams() {
        let check =
            |by, sent| report(ControlLane::Udp, (9, by), (9, 0), sent).check_datagrams(Lanes::Udp);
        assert!(check(1, 1).is_ok());
        // Probes that nobody answers are datagrams, too.
        assert!(check(0, 5).unwrap_err().contains("firewall"));
        assert!(check(0, 0).unwrap_err().contains("no datagram was sent"));
        let by_tcp = report(ControlLane::Tcp, (9, 0), (9, 0), 0);
        assert!(by_tcp.check_datagrams(Lanes::Udp).unwrap_err().contains("control_lane in --set"));
        let with_size = |size_bytes| Report { size_bytes, ..by_tcp.clone() };
        assert!(with_size(4096).check_datagrams(Lanes::Udp).is_ok());
        assert!(with_size(1 << 20).check_datagrams(Lanes::Udp).is_err());
    }
}
