//! The paths of sessions: what comes in by them, what goes out, and which is relied on.
//!
//! A session in datagram mode ([`super::datagram`]) has one path or several, each with packet
//! numbers, keys, window and round trip of its own ([`super::packet`]). One, the *carrier*, takes
//! the session's segments; the others stand by, ask and answer. [`PathTable`] owns all of this; the
//! loop gives it datagrams and time, and sends what it is given:
//!
//! 1. [`PathTable::handle_packet`] for each datagram that came in, then [`PathTable::drain`];
//! 2. [`PathTable::poll_transmit`] for each path of a session that has something to send, until it
//!    gives nothing, or [`PathTable::lone_packet`] in its place; then [`PathTable::end_transmit`];
//! 3. [`PathTable::poll_timeout`] for the sessions whose time has come,
//!    [`PathTable::handle_timeout`] for each of their paths, and
//!    [`PathTable::judge_after_timeout`].

mod arrival;
#[cfg(test)]
pub(crate) mod by_hand;
mod carrier;
mod counters;
mod idle;
mod judge;
mod lifetime;
mod path;
mod questions;
mod ring;
mod timeouts;
mod timers;
mod transmit;

use std::collections::HashMap;
use std::net::SocketAddr;

use foldhash::quality::RandomState;

pub(crate) use self::arrival::ReceiveInfo;
pub(crate) use self::counters::{DatagramCounters, Dropped};
use self::idle::InUse;
pub(crate) use self::path::SessionPath;
pub(crate) use self::timeouts::Timeout;
use self::timers::Timers;
pub(crate) use self::transmit::Transmit;
use super::rails::health::{Health as RailHealth, Phase};
use super::rails::preference::Preference;
use super::rails::trial::Trial;
use super::table::reserve_for;

/// Position of no path.
pub(crate) const NO_PATH: u8 = u8::MAX;

/// One of a session's paths: 0 is the carrier, others follow in the order of [`Paths::all`]. It
/// names the same path until another one becomes the carrier.
pub(crate) type Index = usize;

/// The carrier.
pub(crate) const CARRIER: Index = 0;

/// The paths of one session.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    /// The one that carries segments, if the session is in datagram mode.
    carrier: Option<Box<SessionPath>>,
    /// The others.
    #[allow(clippy::vec_box, reason = "one of them takes the carrier's place now and then")]
    standby: Vec<Box<SessionPath>>,
    /// Which of them segments had best go by; `None`: there is one.
    choice: Option<Box<Choice>>,
    /// They are in the list of those in use.
    is_in_use: bool,
    /// Some of them is not as it should be.
    is_doubtful: bool,
    /// Position of the path that the session's TCP lane goes by; [`NO_PATH`]: by none of them.
    stream_at: u8,
    /// Long segments have come or gone by that lane.
    has_streamed: bool,
    /// When that lane last showed that its path is alive, and how many bytes it had delivered then.
    streamed_ns: u64,
    streamed_bytes: u64,
    /// Since when none is healthy.
    silent_since_ns: Option<u64>,
    /// The session's segments go by a ring in shared memory, whichever path is healthy.
    has_ring: bool,
}

/// What one of several paths is chosen by.
#[derive(Debug, Default)]
struct Choice {
    /// Which of them segments had best go by.
    preference: Preference,
    /// Which of them deliver long ones faster.
    trial: Trial,
    /// Long datagrams with segments that came since the last reading, and how many of any length
    /// came in a row by a path that is not the carrier.
    segments_came: u32,
    segments_elsewhere: u32,
    /// Since when the same path has carried segments.
    carries_since_ns: u64,
    /// Longest segment that all healthy ones carry.
    segment_bytes: usize,
}

impl Paths {
    /// All of them, the carrier first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &SessionPath> {
        self.carrier.iter().chain(&self.standby).map(|path| &**path)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut SessionPath> {
        self.carrier.iter_mut().chain(&mut self.standby).map(|path| &mut **path)
    }

    #[inline]
    fn get(&self, index: Index) -> Option<&SessionPath> {
        match index {
            CARRIER => self.carrier.as_deref(),
            _ => self.standby.get(index - 1).map(|path| &**path),
        }
    }

    #[inline]
    fn get_mut(&mut self, index: Index) -> Option<&mut SessionPath> {
        match index {
            CARRIER => self.carrier.as_deref_mut(),
            _ => self.standby.get_mut(index - 1).map(|path| &mut **path),
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        usize::from(self.carrier.is_some()) + self.standby.len()
    }

    /// Whether there are several.
    #[inline]
    pub(crate) fn are_several(&self) -> bool {
        !self.standby.is_empty()
    }

    /// Whether the session's segments go by datagrams, or by a ring, now.
    #[inline]
    pub(crate) fn are_open(&self) -> bool {
        self.has_ring || self.carrier.as_ref().is_some_and(|path| path.is_open())
    }

    /// Whether the session's segments go by a ring in shared memory, which ends with the peer.
    #[inline]
    pub(crate) fn has_ring(&self) -> bool {
        self.has_ring
    }

    /// Whether this session's datagrams have this id.
    #[inline]
    fn are_of(&self, session_id: u64) -> bool {
        self.carrier.as_deref().is_some_and(|path| path.session_id == session_id)
    }

    /// Whether the path of this number and session is the only one.
    #[inline]
    fn has_only(&self, session_id: u64, number: u16) -> bool {
        let path = self.carrier.as_deref();
        let is_it = path.is_some_and(|it| it.session_id == session_id && it.number == number);
        is_it && self.standby.is_empty()
    }

    /// The path of this number.
    fn index_of(&self, number: u16) -> Option<Index> {
        self.all().position(|path| path.number == number)
    }

    /// Whether any of them is healthy, where there are several.
    pub(crate) fn has_active(&self) -> bool {
        self.all().any(SessionPath::is_active)
    }

    /// Whether anything sent then or later was answered by any of them.
    pub(crate) fn have_answered_since(&mut self, since_ns: u64) -> bool {
        self.heard_ns().is_some_and(|sent_ns| sent_ns >= since_ns)
    }

    /// When the newest packet had been sent that was answered, by whichever path.
    pub(crate) fn heard_ns(&mut self) -> Option<u64> {
        let answered = self.all_mut().filter_map(|path| {
            path.packets.apply_deferred_ack();
            path.packets.answered_sent_ns()
        });
        answered.max()
    }

    /// Whether the path at a position is suspect, or does not answer, or is none.
    pub(crate) fn is_suspect(&self, at: u8) -> bool {
        let mut paths = self.all().filter(|path| path.at == at);
        let is_suspect = |health: &RailHealth| health.phase() == Phase::Suspect;
        paths.any(|path| path.rail_health.as_deref().is_some_and(is_suspect)) || self.is_down(at)
    }

    /// Whether the path at a position does not answer, or is none.
    pub(crate) fn is_down(&self, at: u8) -> bool {
        if at == NO_PATH {
            return true;
        }
        let mut paths = self.all().filter(|path| path.at == at);
        let is_lost = |health: &RailHealth| health.is_down() && !health.has_never_answered();
        paths.any(|path| path.rail_health.as_deref().is_some_and(is_lost))
    }

    /// Position of the path that carries segments now, if any does.
    pub(crate) fn carrier_at(&self) -> Option<u8> {
        self.carrier.as_ref().filter(|path| path.is_open()).map(|path| path.at)
    }

    /// Position of the path that the session's TCP lane goes by; [`NO_PATH`]: by none of them.
    pub(crate) fn stream_at(&self) -> u8 {
        self.stream_at
    }

    /// Whether long segments have come or gone by that lane.
    pub(crate) fn has_streamed(&self) -> bool {
        self.has_streamed
    }

    /// Since when none of them is healthy, where there are several.
    pub(crate) fn silent_since_ns(&self) -> Option<u64> {
        self.silent_since_ns
    }

    /// The peer has shown otherwise that it is there.
    pub(crate) fn forget_silence(&mut self, now_ns: u64) {
        // All of them may stay silent: networks may drop datagrams alone.
        self.silent_since_ns = self.silent_since_ns.map(|_| now_ns);
    }

    /// Whether the lane of long segments is in a session with several paths, on another one than
    /// the carrier.
    pub(crate) fn is_stream_elsewhere(&self) -> bool {
        self.are_several() && self.has_streamed && self.carrier_at() != Some(self.stream_at)
    }

    /// Whether the choice of the carrier has stood for as long, and is not about to change.
    pub(crate) fn are_settled(&self, now_ns: u64, settled_ns: u64) -> bool {
        self.choice.as_ref().is_some_and(|choice| {
            let carries_ns = now_ns.saturating_sub(choice.carries_since_ns);
            !choice.trial.is_trying() && carries_ns > settled_ns
        })
    }
}

/// The paths of all sessions of an engine.
#[derive(Debug, Default)]
pub(crate) struct PathTable {
    by_slot: Vec<Paths>,
    /// The slots of sessions by the id that their datagrams have.
    by_session: HashMap<u64, u32, RandomState>,
    /// Paths of sessions besides one each.
    standing_by: usize,
    /// The session of the last datagram of all, if it lives.
    latest: u32,
    /// When sessions want a turn at the latest.
    timers: Timers,
    /// Sessions of which packets came, and whose paths have not been drained since.
    to_drain: Vec<u32>,
    /// Sessions whose paths had packets or turns since the loop slept, a few of them more than
    /// once: what they owe is sent before it sleeps again.
    awake: Vec<u32>,
    /// Sessions with several paths, some of them more than once, and some that have one again.
    several: Vec<u32>,
    /// Sessions whose paths carried something lately.
    in_use: Vec<InUse>,
    /// NICs of this engine's rails, by their index: a link-local address means nothing without.
    nics: Vec<u32>,
    /// Rails whose NICs have no link: a bit for each.
    rails_down: u16,
    /// What was dropped so far.
    dropped: Dropped,
    /// Segments that came in datagrams so far.
    segments: u64,
    /// Of paths whose session is over.
    of_closed: DatagramCounters,
}

impl PathTable {
    /// The paths of a session. `None`: it never had any.
    #[inline]
    pub(crate) fn of(&self, session: u32) -> Option<&Paths> {
        self.by_slot.get(session as usize)
    }

    /// The same; a slot that never had any gets an entry without.
    #[inline]
    pub(crate) fn of_mut(&mut self, session: u32) -> &mut Paths {
        let index = session as usize;
        if index >= self.by_slot.len() {
            reserve_for(&mut self.by_slot, index + 1);
            self.by_slot.resize_with(index + 1, Paths::default);
        }
        &mut self.by_slot[index]
    }

    /// Datagrams that were dropped so far, by reason.
    pub(crate) fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// Slots of sessions that may have paths.
    pub(crate) fn slots(&self) -> u32 {
        self.by_slot.len() as u32
    }

    /// Sessions with several paths, in order.
    pub(crate) fn several(&mut self) -> Vec<u32> {
        let all = &self.by_slot;
        self.several.sort_unstable();
        self.several.dedup();
        self.several.retain(|&it| all.get(it as usize).is_some_and(Paths::are_several));
        self.several.clone()
    }

    /// Whether any session has one.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_session.is_empty()
    }

    /// Whether the NIC of a rail has no link.
    pub(crate) fn is_rail_down(&self, rail: u8) -> bool {
        self.rails_down >> (rail % 16) & 1 != 0
    }

    /// An address of a peer as it is reached by a rail: a link-local one means nothing without its
    /// NIC.
    pub(crate) fn scoped(&self, rail: u8, remote: SocketAddr) -> SocketAddr {
        let mut remote = remote;
        if let SocketAddr::V6(v6) = &mut remote
            && v6.ip().is_unicast_link_local()
            && v6.scope_id() == 0
        {
            v6.set_scope_id(self.nics.get(usize::from(rail)).copied().unwrap_or(0));
        }
        remote
    }
}

#[cfg(test)]
mod tests;
