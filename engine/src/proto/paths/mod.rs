//! Paths of sessions: receiving, sending, and the choice among several.
//!
//! A session with datagrams ([`super::session::segments`]) has one path or several, each with its
//! own packet numbers, keys, window and round trip ([`super::packet`]). One of them is the
//! session's *primary path* and takes its segments; the others are standby paths, which are probed
//! and answer probes. [`PathTable`] owns all of this; the loop passes it datagrams and time, and
//! sends the packets that it returns:
//!
//! 1. [`PathTable::handle_packet`] for each received datagram, then [`PathTable::drain`];
//! 2. [`PathTable::poll_transmit`] for each path of a session that has something to send, until it
//!    returns nothing, or [`PathTable::lone_packet`] instead; then [`PathTable::end_transmit`];
//! 3. [`PathTable::poll_timeout`] for the sessions whose timers have expired,
//!    [`PathTable::handle_timeout`] for each of their paths, and
//!    [`PathTable::judge_after_timeout`].

mod arrival;
#[cfg(test)]
pub(crate) mod by_hand;
mod context;
mod counters;
mod idle;
mod judge;
mod lifetime;
mod path;
mod peer_address;
mod primary;
mod questions;
mod ring;
mod timeouts;
mod timers;
mod transmit;
mod visits;

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
use super::context::Cx;
use super::session::rails::health::PathPhase;
use super::session::rails::preference::Preference;
use super::session::rails::trial::BandwidthTrial;
use super::table::reserve_for;

/// Position of no path.
pub(crate) const NO_PATH: u8 = u8::MAX;

/// One of a session's paths: 0 is the primary path, others follow in the order of [`Paths::all`].
/// It stays valid until another path becomes primary.
pub(crate) type Index = usize;

/// The primary path.
pub(crate) const PRIMARY: Index = 0;

/// The paths of one session.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    /// The primary path, if the session has datagrams.
    primary: Option<Box<SessionPath>>,
    /// The standby paths.
    #[allow(clippy::vec_box, reason = "one of them takes the primary's place now and then")]
    standby: Vec<Box<SessionPath>>,
    /// State for the choice among several; `None`: there is one path.
    choice: Option<Box<PrimaryChoice>>,
    /// The session is in the list of those in use.
    is_in_use: bool,
    /// Some path is not healthy.
    is_doubtful: bool,
    /// Position of the path that the session's TCP lane uses; [`NO_PATH`]: of none.
    stream_at: u8,
    /// Long segments were sent or received on that lane.
    has_streamed: bool,
    /// When that lane last proved that its path works, and the bytes delivered by then.
    streamed_ns: u64,
    streamed_bytes: u64,
    /// Since when none is healthy.
    silent_since_ns: Option<u64>,
    /// The number of the ring in shared memory that segments use, whichever path is healthy.
    ring: Option<u32>,
}

/// State for the choice of the primary path.
#[derive(Debug, Default)]
struct PrimaryChoice {
    /// Preference by round trip.
    preference: Preference,
    /// Throughput comparison by long messages.
    trial: BandwidthTrial,
    /// Long datagrams with segments received since the last reading, and the number of consecutive
    /// ones of any length on a path other than the primary one.
    segments_came: u32,
    segments_elsewhere: u32,
    /// Since when the primary path is unchanged.
    carries_since_ns: u64,
    /// Longest segment that all healthy paths carry.
    segment_bytes: usize,
}

impl Paths {
    /// Returns all paths, the primary one first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &SessionPath> {
        self.primary.iter().chain(&self.standby).map(|path| &**path)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut SessionPath> {
        self.primary.iter_mut().chain(&mut self.standby).map(|path| &mut **path)
    }

    #[inline]
    fn get(&self, index: Index) -> Option<&SessionPath> {
        match index {
            PRIMARY => self.primary.as_deref(),
            _ => self.standby.get(index - 1).map(|path| &**path),
        }
    }

    #[inline]
    fn get_mut(&mut self, index: Index) -> Option<&mut SessionPath> {
        match index {
            PRIMARY => self.primary.as_deref_mut(),
            _ => self.standby.get_mut(index - 1).map(|path| &mut **path),
        }
    }

    /// Returns the number of paths.
    pub(crate) fn count(&self) -> usize {
        usize::from(self.primary.is_some()) + self.standby.len()
    }

    /// Returns whether datagrams carry segments, too.
    #[inline]
    pub(crate) fn has_datagrams(&self) -> bool {
        self.primary.is_some()
    }

    /// Returns whether there are several paths.
    #[inline]
    pub(crate) fn are_several(&self) -> bool {
        !self.standby.is_empty()
    }

    /// Returns whether the session goes on without its control connection: there is another path,
    /// or a ring.
    pub(crate) fn can_outlast_lane(&self) -> bool {
        self.ring.is_some() || self.are_several()
    }

    /// Returns whether the peer knows that, too. The side that opened the session announces a path
    /// by its first packet there, so an answer there shows that the peer has it.
    ///
    /// RR-RAIL-2.
    pub(crate) fn can_outlast_lane_at_peer(&self, is_initiator: bool) -> bool {
        let is_known = |path: &SessionPath| path.position() > 0 && path.packets().is_answered();
        let is_path_known = || !is_initiator || self.all().any(is_known);
        self.ring.is_some() || (self.are_several() && is_path_known())
    }

    /// Returns whether the peer is reachable without the control connection: by any of several
    /// healthy paths, or by a ring.
    pub(crate) fn can_reach_peer(&self) -> bool {
        self.ring.is_some() || self.has_active()
    }

    /// Returns whether the peer has shown that it is alive, by an answer to what was sent at
    /// `since_ns` or later, or by a ring, which ends with it.
    pub(crate) fn have_shown_peer_since(&mut self, since_ns: u64) -> bool {
        self.ring.is_some() || self.have_answered_since(since_ns)
    }

    /// Returns whether the session's segments use datagrams, or a ring, now.
    #[inline]
    pub(crate) fn are_open(&self) -> bool {
        self.ring.is_some() || self.primary.as_ref().is_some_and(|path| path.is_open())
    }

    /// Returns whether the session's segments use a shared-memory ring, which ends with the peer.
    #[inline]
    pub(crate) fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Returns whether this session's datagrams carry this id.
    #[inline]
    fn are_of(&self, session_id: u64) -> bool {
        self.primary.as_deref().is_some_and(|path| path.id().session == session_id)
    }

    /// Returns the path of this number and session, if it is the only one.
    #[inline]
    fn only_one(&mut self, session_id: u64, number: u16) -> Option<&mut SessionPath> {
        let path = self.primary.as_deref_mut()?;
        let id = path.id();
        let is_it = id.session == session_id && id.number == number && !path.is_one_of_several();
        is_it.then_some(path)
    }

    /// Returns the path at a position.
    fn at(&self, at: u8) -> Option<&SessionPath> {
        self.all().find(|path| path.position() == at)
    }

    /// Returns the same, mutable.
    fn at_mut(&mut self, at: u8) -> Option<&mut SessionPath> {
        self.all_mut().find(|path| path.position() == at)
    }

    /// Returns the index of the path with this number.
    fn index_of(&self, number: u16) -> Option<Index> {
        self.all().position(|path| path.id().number == number)
    }

    /// Returns whether any of several paths is healthy.
    pub(crate) fn has_active(&self) -> bool {
        self.all().any(SessionPath::is_active)
    }

    /// Returns whether any path has answered a packet sent at `since_ns` or later.
    pub(crate) fn have_answered_since(&mut self, since_ns: u64) -> bool {
        self.answered_sent_ns().is_some_and(|sent_ns| sent_ns >= since_ns)
    }

    /// Returns the send time of the newest packet answered on any path.
    pub(crate) fn answered_sent_ns(&mut self) -> Option<u64> {
        self.all_mut().filter_map(|path| path.settle_packets().answered_sent_ns()).max()
    }

    /// Returns whether the path at a position is suspect, does not answer, or does not exist.
    pub(crate) fn is_suspect(&self, at: u8) -> bool {
        let path = self.at(at);
        path.is_some_and(|path| path.phase() == Some(PathPhase::Suspect)) || self.is_down(at)
    }

    /// Returns whether the path at a position does not answer, or does not exist.
    pub(crate) fn is_down(&self, at: u8) -> bool {
        at == NO_PATH || self.at(at).is_some_and(SessionPath::is_lost)
    }

    /// Returns the position of the path that carries segments now, if any does.
    pub(crate) fn primary_at(&self) -> Option<u8> {
        self.primary.as_ref().filter(|path| path.is_open()).map(|path| path.position())
    }

    /// Returns the position of the path that the session's TCP lane uses; [`NO_PATH`]: of none.
    pub(crate) fn stream_at(&self) -> u8 {
        self.stream_at
    }

    /// Returns whether long segments were sent or received on that lane.
    pub(crate) fn has_streamed(&self) -> bool {
        self.has_streamed
    }

    /// Returns since when none of several paths is healthy.
    pub(crate) fn silent_since_ns(&self) -> Option<u64> {
        self.silent_since_ns
    }

    /// Restarts the silence, since the peer was reachable by other means.
    pub(crate) fn forget_silence(&mut self, now_ns: u64) {
        // All paths may remain silent: networks may drop datagrams alone.
        self.silent_since_ns = self.silent_since_ns.map(|_| now_ns);
    }

    /// Returns whether the lane of long segments, in a session with several paths, uses another one
    /// than the primary path.
    pub(crate) fn is_stream_elsewhere(&self) -> bool {
        self.are_several() && self.has_streamed && self.primary_at() != Some(self.stream_at)
    }

    /// Checks that the paths agree with each other.
    #[cfg(any(test, feature = "sim"))]
    fn check(&self) {
        if self.are_several() {
            assert!(self.primary.is_some() && self.choice.is_some(), "one of several is primary");
            assert!(self.all().all(SessionPath::is_one_of_several), "each is one of them");
            assert!(self.standby.iter().all(|path| path.is_held()), "the primary one carries");
        }
        for (index, path) in self.all().enumerate() {
            assert_eq!(self.index_of(path.id().number), Some(index), "a path is there once");
            path.check_reasons();
        }
    }

    /// Returns whether the choice of the primary path has stood for `settled_ns`, and no change is
    /// due.
    pub(crate) fn are_settled(&self, now_ns: u64, settled_ns: u64) -> bool {
        self.choice.as_ref().is_some_and(|choice| {
            let carries_ns = now_ns.saturating_sub(choice.carries_since_ns);
            !choice.trial.is_trying() && carries_ns > settled_ns
        })
    }
}

/// State that the paths of all sessions of an engine share.
#[derive(Debug, Default)]
struct SharedPathState {
    /// The slots of sessions by the id in their datagrams.
    by_session: HashMap<u64, u32, RandomState>,
    /// Number of paths beyond one per session.
    standing_by: usize,
    /// The session of the most recent datagram, if it exists.
    latest: u32,
    /// Timers of sessions.
    timers: Timers,
    /// Sessions with received packets whose paths have not been drained since.
    to_drain: Vec<u32>,
    /// Sessions whose paths had packets or turns since the loop slept, possibly repeated: their
    /// pending acknowledgements are sent before it sleeps again.
    awake: Vec<u32>,
    /// Sessions with several paths, possibly repeated, and some that have one again.
    several: Vec<u32>,
    /// Sessions with recent traffic.
    in_use: Vec<InUse>,
    /// NICs of this engine's rails, by index: link-local addresses need them as scope.
    nics: Vec<u32>,
    /// Rails whose NICs have no carrier: a bit for each.
    rails_down: u16,
    /// Dropped datagrams so far.
    dropped: Dropped,
    /// Segments received in datagrams so far.
    segments: u64,
    /// Counters of paths of closed sessions.
    of_closed: DatagramCounters,
}

/// The paths of all sessions of an engine. A method that concerns one session finds its paths and
/// the session once ([`PathTable::enter`]); the rest is done by methods of [`Paths`].
#[derive(Debug, Default)]
pub(crate) struct PathTable {
    by_slot: Vec<Paths>,
    shared: SharedPathState,
}

/// What the methods of a session's paths use besides the paths and the session.
struct PathCx<'c, 'p> {
    /// What the methods of the session use.
    cx: Cx<'c>,
    shared: &'p mut SharedPathState,
}

impl PathTable {
    /// Returns the paths of a session. `None`: it never had any.
    #[inline]
    pub(crate) fn of(&self, session: u32) -> Option<&Paths> {
        self.by_slot.get(session as usize)
    }

    /// Returns the paths of a session, and creates an empty entry if it has none.
    #[inline]
    pub(crate) fn of_mut(&mut self, session: u32) -> &mut Paths {
        let index = session as usize;
        if index >= self.by_slot.len() {
            reserve_for(&mut self.by_slot, index + 1);
            self.by_slot.resize_with(index + 1, Paths::default);
        }
        &mut self.by_slot[index]
    }

    /// Returns the numbers of dropped datagrams, by reason.
    pub(crate) fn dropped(&self) -> Dropped {
        self.shared.dropped
    }

    /// Returns the number of slots of sessions that may have paths.
    pub(crate) fn slots(&self) -> u32 {
        self.by_slot.len() as u32
    }

    /// Returns the sessions with several paths, in order.
    pub(crate) fn several(&mut self) -> Vec<u32> {
        let Self { by_slot: all, shared: SharedPathState { several, .. } } = self;
        several.sort_unstable();
        several.dedup();
        several.retain(|&it| all.get(it as usize).is_some_and(Paths::are_several));
        several.clone()
    }

    /// Returns whether no session has a path.
    pub(crate) fn is_empty(&self) -> bool {
        self.shared.by_session.is_empty()
    }

    /// Checks that the paths of each session, and the lists of sessions, agree.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn check(&self) {
        let shared = &self.shared;
        let standing_by: usize = self.by_slot.iter().map(|paths| paths.standby.len()).sum();
        assert_eq!(standing_by, shared.standing_by, "paths beyond the first ones are counted");
        for (&id, &slot) in &shared.by_session {
            let paths = self.of(slot).expect("its slot has paths");
            assert!(paths.all().all(|path| path.id().session == id), "all paths have that id");
        }
        for (slot, paths) in (0..).zip(&self.by_slot) {
            paths.check();
            for path in paths.all() {
                let listed = shared.by_session.get(&path.id().session);
                assert_eq!(listed, Some(&slot), "a session is found by the id of its packets");
                let SharedPathState { to_drain, awake, timers, .. } = shared;
                path.visits().check(slot, to_drain, awake, timers);
            }
            let is_listed = paths.standby.is_empty() || shared.several.contains(&slot);
            assert!(is_listed, "session {slot} has several paths, unlisted");
            let is_in_use = shared.in_use.iter().any(|it| it.session() == slot);
            assert!(is_in_use || !paths.is_in_use, "session {slot} is in use, unlisted");
        }
    }

    /// Returns whether the NIC of a rail has no carrier.
    pub(crate) fn is_rail_down(&self, rail: u8) -> bool {
        self.shared.is_rail_down(rail)
    }

    /// Returns a peer's address as used on a rail: a link-local one gets the NIC as its scope.
    pub(crate) fn scoped(&self, rail: u8, remote: SocketAddr) -> SocketAddr {
        self.shared.scoped(rail, remote)
    }
}

#[cfg(test)]
mod tests;
