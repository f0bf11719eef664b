//! One path of a session: its packets and keys, where the peer is, whether it answers, and what it
//! is given to send.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::super::core::Core;
use super::super::datagram::Asks;
use super::super::effects::Effects;
use super::super::keys::LaneKeys;
use super::super::packet::{Filled, PacketEvent, Path, Payload};
use super::super::rails::health::{Evidence, Health as RailHealth, Phase};
use super::timers::Timers;
use crate::wire::packet::Packet;

/// Time that a new address of the peer has to answer before another one is asked.
const QUESTION_NS: u64 = 100_000_000;

/// What is known of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Health {
    /// Nothing was answered yet: networks may drop UDP.
    Untried,
    /// It carries the session's segments.
    Good,
    /// It did carry them, and answers no more.
    Silent,
}

/// The path of a session.
pub(crate) struct SessionPath {
    /// Their numbers, window, round trip and losses.
    pub(super) packets: Path,
    pub(super) keys: LaneKeys,
    pub(super) session_id: u64,
    /// Number of its path.
    pub(super) number: u16,
    /// Rail of this engine that it goes by.
    pub(super) rail: u8,
    /// Position of its path among those of the session.
    pub(super) at: u8,
    /// UDP port of the peer, as announced.
    pub(super) port: u16,
    /// Longest datagram that both sides take.
    pub(super) bytes_max: usize,
    /// The peer's kernel cuts trains of datagrams, if nothing did before: they come by its socket.
    /// RR-PATH-7.
    pub(super) takes_trains: bool,
    /// It failed when datagrams had no checksum: something on the way may want one.
    pub(super) needs_sum: bool,
    /// Where its datagrams go.
    pub(super) remote: SocketAddr,
    /// Where they went before, or are to go by what the peer announced.
    pub(super) fallback: SocketAddr,
    /// Where the peer may be now.
    pub(super) candidate: Option<Box<Candidate>>,
    /// It was asked because a packet of the peer had come.
    pub(super) has_asked_back: bool,
    /// Highest packet number of the peer so far.
    pub(super) highest: u64,
    pub(super) health: Health,
    /// How it compares with others, in a session that has several.
    pub(super) rail_health: Option<Box<RailHealth>>,
    /// No segment goes by it: another one carries them, or it is not to be relied on.
    pub(super) is_held: bool,
    /// It is not asked for the sake of TCP lanes before.
    pub(super) busy_question_ns: u64,
    /// The earliest time that stands for it among the timers.
    pub(super) timer_ns: u64,
    /// The driver sends nothing.
    pub(super) is_off: bool,
    /// Packets came, and its path has not been drained since.
    pub(super) has_update: bool,
    /// It had something to do since the loop slept, and its session is in the list of those.
    pub(super) is_awake: bool,
}

/// An address from which a packet came that the peer made. Somebody on the way may have sent a copy
/// of it first, so it has to answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) address: SocketAddr,
    pub(super) since_ns: u64,
    /// Number of the packet that asks there, once it is sent.
    pub(super) question: Option<u64>,
}

/// The path itself is long and says little.
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
    pub(super) core: &'a mut Core,
    pub(super) session: u32,
    /// The path carries them; otherwise it only probes.
    pub(super) is_open: bool,
    /// Something new was sent, and nothing else waits.
    pub(super) is_drained: bool,
}

impl Payload for Outgoing<'_> {
    fn waiting_bytes(&self) -> usize {
        if self.is_open { self.core.waiting_bytes(self.session) } else { 0 }
    }

    fn fill(&mut self, room: &mut [u8]) -> Option<Filled> {
        let segment = self.core.poll_segment(self.session, room.len(), Asks::Never)?;
        room[..segment.bytes.len()].copy_from_slice(segment.bytes);
        self.is_drained = segment.is_last;
        let (token, bytes) = (segment.token, segment.bytes.len());
        Some(Filled { token, bytes, ack_now: segment.is_last && segment.is_awaited })
    }

    fn fill_again(&mut self, token: u64, room: &mut [u8]) -> Option<Filled> {
        if !self.is_open && !planted!(StealByProbe) {
            // It goes by TCP; on a path that carries nothing it would be taken for sent.
            return None;
        }
        let segment = self.core.poll_segment_again(self.session, token, room.len(), false)?;
        room[..segment.bytes.len()].copy_from_slice(segment.bytes);
        Some(Filled { token, bytes: segment.bytes.len(), ack_now: true })
    }
}

impl SessionPath {
    /// One that nobody has asked, for path 0 by rail 0.
    pub(super) fn new(packets: Path, keys: LaneKeys, remote: SocketAddr) -> Self {
        Self {
            packets,
            keys,
            session_id: 0,
            number: 0,
            rail: 0,
            at: 0,
            port: remote.port(),
            bytes_max: 0,
            takes_trains: false,
            needs_sum: false,
            remote,
            fallback: remote,
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

    /// Whether it is one of several and healthy among them.
    pub(crate) fn is_active(&self) -> bool {
        self.rail_health.as_deref().is_some_and(RailHealth::is_active) && !self.is_off
    }

    /// Whether segments go by it now.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.health == Health::Good && !self.is_held
    }

    /// What its packets say of it.
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

    /// What sends and receives its packets.
    pub(crate) fn packets(&self) -> &Path {
        &self.packets
    }

    /// It has something to do: the loop looks at it before it sleeps.
    #[inline]
    pub(super) fn stay_awake(&mut self, session: u32, awake: &mut Vec<u32>) {
        if !std::mem::replace(&mut self.is_awake, true) {
            awake.push(session);
        }
    }

    /// Gives back what memory an idle path does without.
    pub(super) fn shrink(&mut self) {
        self.packets.shrink();
    }

    /// Position of its path among those of the session.
    pub(crate) fn position(&self) -> u8 {
        self.at
    }

    /// Where the peer's datagrams come from.
    pub(crate) fn ip(&self) -> IpAddr {
        self.remote.ip()
    }

    /// How it fares among several; `None`: there are no others.
    pub(crate) fn phase(&self) -> Option<Phase> {
        self.rail_health.as_deref().map(RailHealth::phase)
    }

    /// Tells the message layer what the path found out. `true`: nothing but what arrived.
    ///
    /// RR-PATH-2, RR-PATH-3.
    #[inline]
    pub(super) fn tell(
        &mut self,
        core: &mut Core,
        session: u32,
        effects: &mut impl Effects,
    ) -> bool {
        let is_calm =
            self.health == Health::Good && self.packets.is_calm() && shortcut!("a calm path");
        is_calm || self.tell_all(core, session, effects)
    }

    fn tell_all(&mut self, core: &mut Core, session: u32, effects: &mut impl Effects) -> bool {
        let mut is_calm = true;
        while let Some(event) = self.packets.poll_known_event() {
            match event {
                PacketEvent::Acked { token } => {
                    core.handle_segment_acked(session, token, effects);
                    continue;
                }
                PacketEvent::Lost { token } => core.handle_segment_lost(session, token),
                // With several paths the least of them counts.
                PacketEvent::PayloadBytesMax { bytes } if self.rail_health.is_none() => {
                    core.set_segment_bytes(session, bytes);
                }
                PacketEvent::PayloadBytesMax { .. } => {}
            }
            is_calm = false;
        }
        let health = self.health;
        match self.health {
            // With several paths it is silent when it is down: the TCP lane may be so, too.
            Health::Good if self.packets.is_silent() && !self.is_active() => {
                tracing::debug!(session, "its path has gone silent: messages go by TCP");
                (self.health, self.needs_sum) = (Health::Silent, true);
                if !self.is_held {
                    core.resend_all(session, self.rail_health.is_none());
                }
            }
            Health::Untried if self.packets.is_answered() => self.health = Health::Good,
            Health::Silent if self.packets.load().2 == 0 && !self.is_off => {
                tracing::debug!(session, "its path answers again");
                self.health = Health::Good;
            }
            _ => {}
        }
        is_calm && self.health == health
    }

    /// Has the consequences of the packets that came, if some did. `true`: they did.
    #[inline(always)]
    pub(super) fn drain(
        &mut self,
        core: &mut Core,
        session: u32,
        timers: &mut Timers,
        effects: &mut impl Effects,
    ) -> bool {
        let had_update = std::mem::take(&mut self.has_update);
        if had_update {
            self.tell(core, session, effects);
            self.set_timer(session, timers);
        }
        had_update
    }

    /// A time of its path has come. `true`: probes go, for nothing was answered.
    pub(super) fn handle_timeout(&mut self, now_ns: u64, is_drained: bool) -> bool {
        let (_, _, before) = self.packets.load();
        self.packets.handle_timeout(now_ns, is_drained);
        let (_, _, after) = self.packets.load();
        after > before
    }

    /// Everything goes by TCP, for as long as this driver runs.
    pub(super) fn give_up(&mut self, core: &mut Core, session: u32) {
        (self.health, self.is_off) = (Health::Silent, true);
        if !self.is_held {
            core.resend_all(session, self.rail_health.is_none());
        }
    }

    /// Whether the peer is known to be at the address from which a packet of it came. An answer to
    /// the question that an address was asked makes it known.
    ///
    /// RR-PATH-4.
    pub(super) fn is_at(&mut self, from: SocketAddr, packet: &Packet<'_>) -> bool {
        if from == self.remote || from == self.fallback || planted!(MoveUnasked) {
            return true;
        }
        // Of an answer that came already a copy says nothing.
        self.packets.apply_deferred_ack();
        let is_answer = self.candidate.as_ref().is_some_and(|candidate| {
            let is_answered = |number| self.packets.is_answer(packet, number);
            candidate.address == from && candidate.question.is_some_and(is_answered)
        });
        if is_answer {
            (self.fallback, self.remote) = (self.remote, from);
            self.candidate = None;
        }
        is_answer
    }

    /// A packet of the peer came from here, with a higher number than all before it.
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

    /// Its path gets a turn when it wants one.
    #[inline(always)]
    pub(super) fn set_timer(&mut self, session: u32, timers: &mut Timers) {
        // Mostly there is a time among the timers that comes before any that it wants.
        if self.packets.rests_until_ns() >= self.timer_ns {
            return;
        }
        if let Some(due_ns) = self.packets.poll_timeout() {
            self.wake_at(due_ns, session, timers);
        }
    }

    /// It gets a turn at `at_ns` at the latest.
    pub(super) fn wake_at(&mut self, at_ns: u64, session: u32, timers: &mut Timers) {
        if timers.at(at_ns) < self.timer_ns {
            self.timer_ns = timers.push(at_ns, session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::core::Config;
    use crate::proto::effects::Ended;
    use crate::proto::keys::SessionKeys;
    use crate::proto::packet::PathConfig;
    use crate::proto::paths::by_hand::Nothing;
    use crate::proto::table::Id;

    struct NoEffects;

    impl Effects for NoEffects {
        fn slice(&mut self, _: Id, _: Id, _: u64, _: u64) {
            unreachable!("no receive here takes many messages")
        }

        fn place(&mut self, _: Id, _: usize, _: &[u8]) {}
        fn copy(&mut self, _: Id, _: Id, _: u64, _: u64) {}
        fn checksum(&self, _: Id, _: u64, _: u32) -> u32 {
            0
        }
        fn complete(&mut self, _: Id, _: Ended) {}
    }

    fn path() -> SessionPath {
        let remote = "192.0.2.1:1".parse().unwrap();
        let keys = SessionKeys::for_tests().path(0, true);
        let mut path = SessionPath::new(Path::new(PathConfig::default()), keys, remote);
        path.fallback = "192.0.2.2:2".parse().unwrap();
        path.health = Health::Good;
        path
    }

    /// RR-PATH-4
    #[test]
    fn only_a_probe_timeout_is_a_reason_to_try_the_other_address() {
        let mut path = path();
        assert!(!path.handle_timeout(1, true));
        path.packets.ask();
        assert!(path.packets.poll_transmit(1, &mut Nothing, &mut [0; 1500]).is_some());
        let due_ns = path.packets.poll_timeout().unwrap();
        assert!(!path.handle_timeout(due_ns - 1, true), "an acknowledgement was due, say");
        assert!(path.handle_timeout(due_ns, true));
    }

    /// RR-PATH-3
    #[test]
    fn a_path_that_the_driver_does_not_serve_carries_nothing_whatever_it_answered() {
        let mut core = Core::new(1, Config::for_tests());
        let mut effects = NoEffects;
        let mut path = path();
        path.give_up(&mut core, 0);
        path.tell(&mut core, 0, &mut effects);
        assert_eq!(path.health, Health::Silent);
        path.is_off = false;
        path.tell(&mut core, 0, &mut effects);
        assert_eq!(path.health, Health::Good);
    }
}
