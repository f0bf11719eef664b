//! One path of a session: its packets and keys, the peer's address, its health, and its segments.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::super::context::Cx;
use super::super::effects::Effects;
use super::super::keys::LaneKeys;
use super::super::packet::{Filled, PacketEvent, Path, Payload};
use super::super::rails::health::{Evidence, Health as RailHealth, Phase};
use super::super::segments::Asks;
use super::super::session::Session;
use super::context::PathCx;
use super::timers::Timers;
use crate::wire::packet::Packet;

/// Time within which a new address of the peer must answer before another one is probed.
const QUESTION_NS: u64 = 100_000_000;

/// State of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Health {
    /// Nothing was acknowledged yet: networks may drop UDP.
    Untried,
    /// It can carry the session's segments.
    Good,
    /// It answered before, and does so no longer.
    Silent,
}

/// A path of a session.
pub(crate) struct SessionPath {
    /// Packet numbers, window, round trip and losses.
    pub(super) packets: Path,
    pub(super) keys: LaneKeys,
    pub(super) session_id: u64,
    /// Number of the path.
    pub(super) number: u16,
    /// Rail of this engine that it uses.
    pub(super) rail: u8,
    /// Position of the path among those of the session.
    pub(super) at: u8,
    /// UDP port of the peer, as announced.
    pub(super) port: u16,
    /// The peer's kernel splits GSO batches that are still whole: its datagrams arrive on a UDP
    /// socket. RR-PATH-7.
    pub(super) takes_trains: bool,
    /// It failed without UDP checksums: a device on the path may require them.
    pub(super) needs_sum: bool,
    /// Destination of its datagrams.
    pub(super) remote: SocketAddr,
    /// Previous destination, once the peer has moved.
    pub(super) fallback: Option<Box<SocketAddr>>,
    /// Possible new address of the peer.
    pub(super) candidate: Option<Box<Candidate>>,
    /// It was probed because a packet of the peer arrived.
    pub(super) has_asked_back: bool,
    /// Highest packet number of the peer so far.
    pub(super) highest: u64,
    pub(super) health: Health,
    /// Its health relative to others, in a session that has several.
    pub(super) rail_health: Option<Box<RailHealth>>,
    /// It carries no segments: another one does, or it is not healthy.
    pub(super) is_held: bool,
    /// No probe for the sake of TCP lanes before this time.
    pub(super) busy_question_ns: u64,
    /// Its earliest entry among the timers.
    pub(super) timer_ns: u64,
    /// The driver sends nothing on it.
    pub(super) is_off: bool,
    /// Packets arrived, and it has not been drained since.
    pub(super) has_update: bool,
    /// It had work since the loop slept, and its session is in that list.
    pub(super) is_awake: bool,
}

/// An address from which an authentic packet arrived. An attacker on the path may have sent a copy
/// first, so the address must answer a probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) address: SocketAddr,
    pub(super) since_ns: u64,
    /// Number of the probe sent there.
    pub(super) question: Option<u64>,
}

/// Abbreviated, since the packet state is long.
impl fmt::Debug for SessionPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets, remote, health, timer_ns, .. } = self;
        let (due_ns, load) = (packets.poll_timeout(), packets.load());
        write!(
            out,
            "SessionPath {{ {remote} {health:?} due {due_ns:?} timer {timer_ns} {load:?} "
        )?;
        write!(out, "{:?} }}", packets.statistics())
    }
}

/// Segments of a session, for its path to send.
pub(super) struct Outgoing<'a> {
    pub(super) session: &'a mut Session,
    pub(super) cx: Cx<'a>,
    /// The path carries them; otherwise it only sends probes.
    pub(super) is_open: bool,
    /// New data was sent, and nothing else waits.
    pub(super) is_drained: bool,
}

impl Payload for Outgoing<'_> {
    fn waiting_bytes(&self) -> usize {
        if self.is_open { self.session.waiting_bytes(&self.cx.shared.pool) } else { 0 }
    }

    fn fill(&mut self, room: &mut [u8]) -> Option<Filled> {
        let segment = self.session.poll_segment(self.cx.reborrow(), room.len(), Asks::Never)?;
        room[..segment.bytes.len()].copy_from_slice(segment.bytes);
        self.is_drained = segment.is_last;
        let (token, bytes) = (segment.token, segment.bytes.len());
        Some(Filled { token, bytes, ack_now: segment.is_last && segment.is_awaited })
    }

    fn fill_again(&mut self, token: u64, room: &mut [u8]) -> Option<Filled> {
        if !self.is_open && !planted!(StealByProbe) {
            // It uses TCP; on a path that carries nothing it would count as sent.
            return None;
        }
        let cx = self.cx.reborrow();
        let segment = self.session.poll_segment_again(cx, token, room.len(), false)?;
        room[..segment.bytes.len()].copy_from_slice(segment.bytes);
        Some(Filled { token, bytes: segment.bytes.len(), ack_now: true })
    }
}

impl SessionPath {
    /// Creates a path that was never probed, with number 0, on rail 0.
    pub(super) fn new(packets: Path, keys: LaneKeys, remote: SocketAddr) -> Self {
        Self {
            packets,
            keys,
            session_id: 0,
            number: 0,
            rail: 0,
            at: 0,
            port: remote.port(),
            takes_trains: false,
            needs_sum: false,
            remote,
            fallback: None,
            candidate: None,
            has_asked_back: false,
            highest: 0,
            health: Health::Untried,
            rail_health: None,
            is_held: false,
            busy_question_ns: 0,
            timer_ns: u64::MAX,
            is_off: false,
            has_update: false,
            is_awake: false,
        }
    }

    /// Returns whether it is one of several and healthy among them.
    pub(crate) fn is_active(&self) -> bool {
        self.rail_health.as_deref().is_some_and(RailHealth::is_active) && !self.is_off
    }

    /// Returns whether it carries segments now.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.health == Health::Good && !self.is_held
    }

    /// Returns its packet statistics for the evaluation of paths.
    pub(super) fn evidence(&mut self) -> Evidence {
        self.packets.apply_deferred_ack();
        let (_, _, probes) = self.packets.load();
        Evidence {
            probes,
            probed_ns: self.packets.probed_ns(),
            answered_sent_ns: self.packets.answered_sent_ns(),
            unanswered_since_ns: self.packets.unanswered_since_ns(),
            round_trip_max_ns: self.packets.round_trip_max_ns(),
            arrived: self.highest,
            bulk_ns: 0,
            is_stalled: false,
        }
    }

    /// Returns its packet layer.
    pub(crate) fn packets(&self) -> &Path {
        &self.packets
    }

    /// Notes that it has work: the loop visits it before it sleeps.
    #[inline]
    pub(super) fn stay_awake(&mut self, session: u32, awake: &mut Vec<u32>) {
        if !std::mem::replace(&mut self.is_awake, true) {
            awake.push(session);
        }
    }

    /// Frees memory that an idle path does not need.
    pub(super) fn shrink(&mut self) {
        self.packets.shrink();
    }

    /// Returns its position among the paths of the session.
    pub(crate) fn position(&self) -> u8 {
        self.at
    }

    /// Returns the source address of the peer's datagrams.
    pub(crate) fn ip(&self) -> IpAddr {
        self.remote.ip()
    }

    /// Returns its state among several; `None`: it is the only one.
    pub(crate) fn phase(&self) -> Option<Phase> {
        self.rail_health.as_deref().map(RailHealth::phase)
    }

    /// Returns whether it has no events for the message layer but acknowledgements.
    #[inline]
    pub(super) fn is_calm(&self) -> bool {
        self.health == Health::Good && self.packets.is_calm() && shortcut!("a loss-free path")
    }

    /// Delivers the path's events to the message layer. Returns `true` if there were only
    /// acknowledgements.
    ///
    /// RR-PATH-2, RR-PATH-3.
    #[inline]
    pub(super) fn deliver_events(
        &mut self,
        session: &mut Session,
        cx: Cx<'_>,
        effects: &mut impl Effects,
    ) -> bool {
        self.is_calm() || self.deliver_pending_events(session, cx, effects)
    }

    /// Delivers them where it is not calm.
    pub(super) fn deliver_pending_events(
        &mut self,
        session: &mut Session,
        mut cx: Cx<'_>,
        effects: &mut impl Effects,
    ) -> bool {
        let mut is_calm = true;
        while let Some(event) = self.packets.poll_known_event() {
            match event {
                PacketEvent::Acked { token } => {
                    session.handle_segment_acked(cx.reborrow(), token, effects);
                    continue;
                }
                PacketEvent::Lost { token } => session.handle_segment_lost(cx.reborrow(), token),
                // With several paths the smallest counts.
                PacketEvent::PayloadBytesMax { bytes } if self.rail_health.is_none() => {
                    session.set_segment_bytes(cx.reborrow(), bytes);
                }
                PacketEvent::PayloadBytesMax { .. } => {}
            }
            is_calm = false;
        }
        let health = self.health;
        match self.health {
            // With several paths it is silent when it is down: the TCP lane may have failed, too.
            Health::Good if self.packets.is_silent() && !self.is_active() => {
                tracing::debug!(session = cx.slot, "path does not answer; messages use TCP");
                (self.health, self.needs_sum) = (Health::Silent, true);
                cx.shared.processes.note_silent_path(cx.slot);
                if !self.is_held {
                    session.resend_all(cx, self.rail_health.is_none());
                }
            }
            Health::Untried if self.packets.is_answered() => self.health = Health::Good,
            Health::Silent if self.packets.load().2 == 0 && !self.is_off => {
                tracing::debug!(session = cx.slot, "path answers again");
                self.health = Health::Good;
            }
            _ => {}
        }
        is_calm && self.health == health
    }

    /// Processes received packets. Returns `true` if there were any.
    #[inline(always)]
    pub(super) fn drain(
        &mut self,
        session: &mut Session,
        cx: &mut PathCx<'_, '_>,
        effects: &mut impl Effects,
    ) -> bool {
        let had_update = std::mem::take(&mut self.has_update);
        if had_update {
            self.deliver_events(session, cx.cx(), effects);
            self.set_timer(cx.slot(), &mut cx.shared.timers);
        }
        had_update
    }

    /// Handles a timer. Returns `true` if probes are sent since nothing was acknowledged.
    pub(super) fn handle_timeout(&mut self, now_ns: u64, is_drained: bool) -> bool {
        let (_, _, before) = self.packets.load();
        self.packets.handle_timeout(now_ns, is_drained);
        let (_, _, after) = self.packets.load();
        after > before
    }

    /// Stops the path: everything uses TCP as long as this driver runs.
    pub(super) fn give_up(&mut self, session: &mut Session, cx: Cx<'_>) {
        (self.health, self.is_off) = (Health::Silent, true);
        if !self.is_held {
            session.resend_all(cx, self.rail_health.is_none());
        }
    }

    /// Returns whether the address from which a packet arrived is the peer's known one. An answer
    /// to the probe sent to an address validates it.
    ///
    /// RR-PATH-4.
    pub(super) fn is_at(&mut self, from: SocketAddr, packet: &Packet<'_>) -> bool {
        let is_known = from == self.remote || self.fallback.as_deref() == Some(&from);
        if is_known || planted!(MoveUnasked) {
            return true;
        }
        // A copy of an acknowledgement that arrived already proves nothing.
        self.packets.apply_deferred_ack();
        let is_answer = self.candidate.as_ref().is_some_and(|candidate| {
            let is_answered = |number| self.packets.is_answer(packet, number);
            candidate.address == from && candidate.question.is_some_and(is_answered)
        });
        if is_answer {
            self.fallback = Some(Box::new(std::mem::replace(&mut self.remote, from)));
            self.candidate = None;
        }
        is_answer
    }

    /// Handles the source address of a packet with a higher number than all before it.
    ///
    /// RR-PATH-4.
    pub(super) fn handle_address(&mut self, now_ns: u64, from: SocketAddr) {
        let is_asked = self
            .candidate
            .as_ref()
            .is_some_and(|candidate| now_ns.saturating_sub(candidate.since_ns) < QUESTION_NS);
        if planted!(MoveUnasked) {
            self.remote = from;
        }
        if from != self.remote && !is_asked {
            let candidate = Candidate { address: from, since_ns: now_ns, question: None };
            self.candidate = Some(Box::new(candidate));
        }
    }

    /// Sets the session's timer to the path's next timeout.
    #[inline(always)]
    pub(super) fn set_timer(&mut self, session: u32, timers: &mut Timers) {
        // Usually an existing timer precedes any that it needs.
        if self.packets.rests_until_ns() >= self.timer_ns {
            return;
        }
        if let Some(due_ns) = self.packets.poll_timeout() {
            self.wake_at(due_ns, session, timers);
        }
    }

    /// Sets a timer at `at_ns` at the latest.
    pub(super) fn wake_at(&mut self, at_ns: u64, session: u32, timers: &mut Timers) {
        if timers.at(at_ns) < self.timer_ns {
            self.timer_ns = timers.push(at_ns, session);
            debug_assert!(self.timer_ns != u64::MAX, "a timer that is set expires");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::keys::SessionKeys;
    use crate::proto::packet::PathConfig;
    use crate::proto::paths::by_hand::Nothing;
    use crate::proto::paths::tests::pair::{OPENER, SLOT, one_path};
    use crate::proto::sim::Engine;

    fn path() -> SessionPath {
        let remote = "192.0.2.1:1".parse().unwrap();
        let keys = SessionKeys::for_tests().path(0, true);
        let mut path = SessionPath::new(Path::new(PathConfig::default()), keys, remote);
        path.fallback = Some(Box::new("192.0.2.2:2".parse().unwrap()));
        path.health = Health::Good;
        path
    }

    /// RR-PATH-4
    #[test]
    fn only_a_probe_timeout_switches_to_the_fallback_address() {
        let mut path = path();
        assert!(!path.handle_timeout(1, true));
        path.packets.ask();
        assert!(path.packets.poll_transmit(1, &mut Nothing, &mut [0; 1500]).is_some());
        let due_ns = path.packets.poll_timeout().unwrap();
        assert!(!path.handle_timeout(due_ns - 1, true), "for example, an acknowledgement was due");
        assert!(path.handle_timeout(due_ns, true));
    }

    /// RR-PATH-3
    #[test]
    fn unserved_path_carries_nothing_even_if_acknowledged() {
        let mut net = one_path();
        let Engine { core, memory, .. } = &mut net.engines[OPENER];
        let (session, mut cx) = core.enter(SLOT).unwrap();
        let mut path = path();
        path.give_up(session, cx.reborrow());
        path.deliver_events(session, cx.reborrow(), memory);
        assert_eq!(path.health, Health::Silent);
        path.is_off = false;
        path.deliver_events(session, cx, memory);
        assert_eq!(path.health, Health::Good);
    }
}
