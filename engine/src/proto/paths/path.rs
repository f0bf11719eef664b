//! One path of a session: its packets and keys, the peer's address, its health, and its segments.

mod events;
mod receive;
mod transmit;
mod uncommon;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use self::uncommon::PathReasons;
use super::super::context::Cx;
use super::super::keys::LaneKeys;
use super::super::packet::{Delivered, Path};
use super::super::session::Session;
use super::super::session::rails::health::{
    Evidence, PathPhase, RailHealth, ReferenceAck, Transition,
};
use super::peer_address::PeerAddress;
use super::visits::PathVisits;
use super::{SharedPathState, Timeout, Timers};

/// Whether a path delivers datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PathValidation {
    /// Nothing was acknowledged yet: networks may drop UDP.
    Untried,
    /// It can carry the session's segments.
    Good,
    /// It answered before, and does so no longer.
    Silent,
}

/// What identifies a path.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct PathId {
    /// Id of the session, in each packet.
    pub(super) session: u64,
    /// Number of the path.
    pub(super) number: u16,
    /// Rail of this engine that it uses.
    pub(super) rail: u8,
    /// Position of the path among those of the session.
    pub(super) at: u8,
}

/// A path of a session.
pub(crate) struct SessionPath {
    /// Packet numbers, window, round trip and losses.
    packets: Path,
    keys: LaneKeys,
    id: PathId,
    peer: PeerAddress,
    /// The peer's kernel splits GSO batches that are still whole: its datagrams arrive on a UDP
    /// socket. RR-PATH-7.
    takes_trains: bool,
    /// It failed without UDP checksums: a device on the path may require them.
    needs_sum: bool,
    /// It was probed because a packet of the peer arrived.
    has_probed_back: bool,
    /// Highest packet number of the peer so far.
    highest: u64,
    validation: PathValidation,
    /// Its health relative to others, in a session that has several.
    rail_health: Option<Box<RailHealth>>,
    /// It carries no segments: another one does, or it is not healthy.
    is_held: bool,
    /// The driver sends nothing on it.
    is_off: bool,
    /// Why it leaves its fast paths.
    reasons: PathReasons,
    visits: PathVisits,
}

/// Abbreviated, since the packet state is long.
impl fmt::Debug for SessionPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets, peer, validation, visits, .. } = self;
        let (due_ns, load, to) = (packets.poll_timeout(), packets.load(), peer.current());
        let timer_ns = visits.timer_ns();
        write!(
            out,
            "SessionPath {{ {to} {validation:?} due {due_ns:?} timer {timer_ns} {load:?} "
        )?;
        write!(out, "{:?} }}", packets.counters())
    }
}

impl SessionPath {
    /// Creates a path that was never probed.
    pub(super) fn new(
        packets: Path,
        keys: LaneKeys,
        id: PathId,
        peer: SocketAddr,
        takes_trains: bool,
    ) -> Self {
        Self {
            packets,
            keys,
            id,
            peer: PeerAddress::new(peer),
            takes_trains,
            needs_sum: false,
            has_probed_back: false,
            highest: 0,
            validation: PathValidation::Untried,
            rail_health: None,
            is_held: false,
            is_off: false,
            reasons: PathReasons::UNPROVEN,
            visits: PathVisits::new(),
        }
    }

    // ---- State ----

    /// Returns what identifies it.
    #[inline]
    pub(super) fn id(&self) -> PathId {
        self.id
    }

    /// Returns its position among the paths of the session.
    pub(crate) fn position(&self) -> u8 {
        self.id.at
    }

    /// Returns the destination of its datagrams.
    pub(super) fn remote(&self) -> SocketAddr {
        self.peer.current()
    }

    /// Returns the source address of the peer's datagrams.
    pub(crate) fn ip(&self) -> IpAddr {
        self.peer.ip()
    }

    /// Returns the UDP port that the peer has announced, and whether its kernel splits GSO batches.
    pub(super) fn announced(&self) -> (u16, bool) {
        (self.peer.announced_port(), self.takes_trains)
    }

    /// Returns its packet layer.
    pub(crate) fn packets(&self) -> &Path {
        &self.packets
    }

    /// Returns the same with deferred acknowledgements applied.
    pub(super) fn settle_packets(&mut self) -> &Path {
        self.packets.apply_deferred_ack();
        &self.packets
    }

    /// Returns the data delivered so far.
    pub(super) fn delivered(&mut self) -> Delivered {
        self.packets.delivered()
    }

    /// Returns its packet statistics for the evaluation of paths.
    pub(super) fn evidence(&mut self) -> Evidence {
        let arrived = self.highest;
        let packets = self.settle_packets();
        let (_, _, probes) = packets.load();
        Evidence {
            probes,
            probed_ns: packets.probed_ns(),
            answered_sent_ns: packets.answered_sent_ns(),
            unanswered_since_ns: packets.unanswered_since_ns(),
            round_trip_max_ns: packets.round_trip_max_ns(),
            arrived,
            bulk_ns: 0,
            is_stalled: false,
        }
    }

    /// Returns when it is visited.
    #[inline]
    pub(super) fn visits(&self) -> &PathVisits {
        &self.visits
    }

    /// Returns the same, mutable.
    #[inline]
    pub(super) fn visits_mut(&mut self) -> &mut PathVisits {
        &mut self.visits
    }

    /// Frees memory that an idle path does not need.
    pub(super) fn shrink(&mut self) {
        self.packets.shrink();
    }

    // ---- Whether it carries segments ----

    /// Returns whether it carries segments now.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.is_free_of(PathReasons::CARRYING)
    }

    /// Returns whether the driver sends on it.
    #[inline]
    pub(super) fn is_served(&self) -> bool {
        !self.is_off
    }

    /// Returns whether it is one of several.
    #[inline]
    pub(super) fn is_one_of_several(&self) -> bool {
        !self.is_free_of(PathReasons::SEVERAL)
    }

    /// Returns whether it carries no segments because another one does, or it is not healthy.
    pub(super) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Keeps segments from it, or not.
    pub(super) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
        self.set_reason(PathReasons::HELD, is_held);
    }

    fn set_validation(&mut self, validation: PathValidation) {
        self.validation = validation;
        self.set_reason(PathReasons::UNPROVEN, validation != PathValidation::Good);
    }

    /// Stops the path: everything uses TCP as long as this driver runs.
    pub(super) fn give_up(&mut self, session: &mut Session, cx: Cx<'_>) {
        self.is_off = true;
        self.set_validation(PathValidation::Silent);
        self.resend(session, cx);
    }

    /// Sends the segments again that it carried, if it carried any; of several paths the TCP lane
    /// may have failed, too.
    fn resend(&self, session: &mut Session, cx: Cx<'_>) {
        match self.rail_health {
            _ if self.is_held => {}
            None => session.segments_mut().resend_short(cx),
            Some(_) => session.segments_mut().resend_all(cx),
        }
    }

    /// Continues with a driver that takes datagrams of this length; `None`: it takes none. Lengths
    /// agreed on before may exceed that.
    pub(super) fn resume(&mut self, session: &mut Session, cx: Cx<'_>, bytes_max: Option<usize>) {
        self.is_off = false;
        if bytes_max.is_some_and(|bytes| self.packets.datagram_bytes_max() <= bytes) {
            self.packets.ask();
        } else {
            self.give_up(session, cx);
        }
    }

    /// Prepares a final acknowledgement, after which it carries nothing.
    pub(super) fn prepare_final_ack(&mut self) {
        self.packets.quickack();
        self.set_validation(PathValidation::Untried);
    }

    // ---- One of several ----

    /// Makes it one of several, whose health is compared.
    pub(super) fn begin_comparison(&mut self, now_ns: u64, has_link: bool) {
        if self.rail_health.is_none() {
            let mut health = RailHealth::new(now_ns);
            if !has_link {
                health.handle_link(now_ns, false);
            }
            self.rail_health = Some(Box::new(health));
            self.set_reason(PathReasons::SEVERAL, true);
        }
    }

    /// Returns whether it is one of several and healthy among them.
    pub(crate) fn is_active(&self) -> bool {
        self.rail_health.as_deref().is_some_and(RailHealth::is_active) && !self.is_off
    }

    /// Returns whether it is one of several and may carry segments.
    pub(super) fn is_fit(&self) -> bool {
        self.is_active() && self.validation == PathValidation::Good
    }

    /// Returns its state among several; `None`: it is the only one.
    pub(crate) fn phase(&self) -> Option<PathPhase> {
        self.rail_health.as_deref().map(RailHealth::phase)
    }

    /// Returns whether it is one of several and has never answered.
    pub(super) fn has_never_answered(&self) -> bool {
        self.rail_health.as_deref().is_some_and(RailHealth::has_never_answered)
    }

    /// Returns whether it is one of several and answers no longer.
    pub(super) fn is_lost(&self) -> bool {
        let is_lost = |health: &RailHealth| health.is_down() && !health.has_never_answered();
        self.rail_health.as_deref().is_some_and(is_lost)
    }

    /// Returns its most recent answer, as a reference for the other paths.
    pub(super) fn reference(&self) -> Option<ReferenceAck> {
        self.rail_health.as_deref()?.reference()
    }

    /// Evaluates it among several. `is_needed`: no other one is healthy. Returns a change of its
    /// state, and whether it counts as healthy before and after it.
    pub(super) fn observe(
        &mut self,
        now_ns: u64,
        evidence: &Evidence,
        reference: Option<ReferenceAck>,
        is_needed: bool,
    ) -> Option<Transition> {
        let health = debug_assert_some!(self.rail_health.as_mut(), "each of several has a health")?;
        let change = health.observe(now_ns, evidence, reference, is_needed)?;
        if matches!(change.to, PathPhase::Suspect | PathPhase::Down) {
            self.hold(true);
        }
        self.needs_sum |= change.to == PathPhase::Down;
        Some(change)
    }

    /// Probes it if its evaluation needs that, and sets a timer for the next evaluation.
    pub(super) fn schedule_evaluation(
        &mut self,
        now_ns: u64,
        evidence: &Evidence,
        has_reference: bool,
        (slot, timers): (u32, &mut Timers),
    ) {
        let health = self.rail_health.as_deref_mut();
        if health.is_some_and(|health| health.take_probe(now_ns)) {
            self.probe(now_ns, slot, timers);
        }
        if let Some(next_ns) = self.rail_health.as_deref().and_then(RailHealth::next_ns) {
            self.visits.wake_at(next_ns.max(now_ns + 100_000), slot, timers);
        } else if evidence.probes > 0 && has_reference {
            let soon_ns = now_ns + evidence.round_trip_max_ns.max(500_000);
            self.visits.wake_at(soon_ns, slot, timers);
        }
    }

    /// Returns whether its evaluation needs no probes of others, given its own probe timeouts: it
    /// is healthy, or probed by its own timers since it is down, or never was up.
    pub(super) fn is_settled(&self, probes: u32) -> bool {
        self.rail_health.as_deref().is_some_and(|health| {
            health.is_down() || health.has_never_answered() || (health.is_active() && probes == 0)
        })
    }

    /// Handles a carrier change of its NIC.
    pub(super) fn handle_link(&mut self, now_ns: u64, is_up: bool) {
        if let Some(health) = &mut self.rail_health {
            health.handle_link(now_ns, is_up);
        }
    }

    /// Notes that the peer has abandoned it. Returns `false` if it is the only one.
    pub(super) fn suspect(&mut self) -> bool {
        self.rail_health.as_deref_mut().map(RailHealth::suspect).is_some()
    }

    // ---- Probes and timers ----

    /// Requests an acknowledgement at once, to learn whether the path works.
    pub(super) fn probe(&mut self, now_ns: u64, slot: u32, timers: &mut Timers) {
        self.packets.ask();
        self.visits.wake_at(now_ns, slot, timers);
    }

    /// Requests an acknowledgement with the next packet.
    pub(super) fn probe_with_next(&mut self) {
        self.packets.ask();
    }

    /// Acknowledges all received packets with the next packet, before the loop sleeps.
    pub(super) fn acknowledge_before_sleep(&mut self) {
        self.visits.end_awake();
        self.packets.apply_deferred_ack();
        self.packets.quickack();
    }

    /// Handles an expired timer. Returns whether probes are sent since nothing was acknowledged;
    /// `None`: it is not the path's.
    pub(super) fn handle_timeout(
        &mut self,
        shared: &mut SharedPathState,
        slot: u32,
        timeout: Timeout,
    ) -> Option<bool> {
        let Timeout { at_ns, now_ns, late_ns, is_drained } = timeout;
        if !self.visits.take_timer(at_ns) {
            return None;
        }
        self.visits.stay_awake(slot, &mut shared.awake);
        self.packets.start_turn(late_ns);
        let (_, _, before) = self.packets.load();
        self.packets.handle_timeout(now_ns, is_drained);
        let (_, _, after) = self.packets.load();
        Some(after > before)
    }

    /// Sends to the peer's previous address, after a probe timeout of a silent path: one of the two
    /// addresses may answer.
    pub(super) fn try_fallback(&mut self) {
        if self.validation == PathValidation::Silent {
            self.peer.swap();
        }
    }

    /// Completes a transmission: received packets were processed with it.
    #[inline]
    pub(super) fn end_transmit(&mut self, slot: u32, to_drain: &mut Vec<u32>) {
        if self.is_one_of_several() {
            self.visits.take_update();
        } else {
            self.visits.take_latest_update(slot, to_drain);
        }
    }

    /// Sets the session's timer to the path's next timeout.
    #[inline(always)]
    pub(super) fn set_timer(&mut self, slot: u32, timers: &mut Timers) {
        // Usually an existing timer precedes any that it needs.
        if self.visits.is_visited_by(self.packets.rests_until_ns()) {
            return;
        }
        if let Some(due_ns) = self.packets.poll_timeout() {
            self.visits.wake_at(due_ns, slot, timers);
        }
    }
}

/// For tests: what elsewhere only packets change, and what nothing else asks for.
#[cfg(test)]
impl SessionPath {
    pub(super) fn packets_mut(&mut self) -> &mut Path {
        &mut self.packets
    }

    /// Lets it count as acknowledged.
    pub(super) fn prove(&mut self) {
        self.set_validation(PathValidation::Good);
    }

    pub(super) fn validation(&self) -> PathValidation {
        self.validation
    }

    pub(super) fn needs_sum(&self) -> bool {
        self.needs_sum
    }

    pub(super) fn highest(&self) -> u64 {
        self.highest
    }

    pub(super) fn peer(&self) -> &PeerAddress {
        &self.peer
    }

    /// Returns all state that a packet could change.
    pub(super) fn fingerprint(&self) -> String {
        let Self { packets, peer, highest, has_probed_back, is_held, .. } = self;
        let has_update = self.visits.has_update();
        format!("{packets:?} {peer:?} {highest} {has_probed_back} {is_held} {has_update}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::paths::PathTable;
    use crate::proto::paths::by_hand::{Nothing, new_path};
    use crate::proto::paths::tests::pair::{OPENER, SLOT, one_path};
    use crate::proto::sim::Engine;

    /// RR-PATH-4
    #[test]
    fn only_a_probe_timeout_switches_to_the_fallback_address() {
        let mut path = new_path(0);
        path.prove();
        let mut shared = PathTable::default().shared;
        let mut probes_at = |path: &mut SessionPath, now_ns: u64| {
            path.visits.wake_at(1, SLOT, &mut shared.timers);
            let timeout = Timeout { at_ns: 1, now_ns, late_ns: 0, is_drained: true };
            path.handle_timeout(&mut shared, SLOT, timeout).unwrap()
        };
        assert!(!probes_at(&mut path, 1));
        path.packets.ask();
        assert!(path.packets.poll_transmit(1, &mut Nothing, &mut [0; 1500]).is_some());
        let due_ns = path.packets.poll_timeout().unwrap();
        assert!(!probes_at(&mut path, due_ns - 1), "for example, an acknowledgement was due");
        assert!(probes_at(&mut path, due_ns));
    }

    /// RR-PATH-3
    #[test]
    fn unserved_path_carries_nothing_even_if_acknowledged() {
        let mut net = one_path();
        let Engine { core, memory, .. } = &mut net.engines[OPENER];
        let (session, mut cx) = core.enter(SLOT).unwrap();
        let mut path = new_path(0);
        path.prove();
        path.give_up(session, cx.reborrow());
        path.deliver_events(session, cx.reborrow(), memory);
        assert_eq!(path.validation, PathValidation::Silent);
        path.is_off = false;
        path.deliver_events(session, cx, memory);
        assert_eq!(path.validation, PathValidation::Good);
    }
}
