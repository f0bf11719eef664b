//! Datagrams: the loop reads and writes them, and [`crate::proto::paths`] decides.
//!
//! A session is set up over TCP, where both sides announce whether they take datagrams. If both do,
//! segments ([`crate::proto::session::segments`]) use datagrams from the first frame on: they use
//! the path while that answers, and the TCP lane of the session before it has answered and when it
//! is silent. The TCP lane also shows the peer's end, and carries segments that do not fit a
//! datagram ([`super::control_lanes`]).
//!
//! Costs of a message on a good path: its bytes are copied into a segment and from there into the
//! driver's buffer, one tag over the datagram, one system call for all datagrams of a turn, no
//! allocation, no lock. A timer costs a push to a heap once per probe timeout and session, not per
//! packet.

mod announced;
mod ring;
mod several;
pub(super) mod transmit;
mod window;

use std::io::{self, ErrorKind};
use std::mem;
use std::net::{SocketAddr, UdpSocket};

pub(crate) use self::announced::Announced;
pub(crate) use self::ring::Rings;
use super::context::LaneCx;
use super::engine::{Engine, EngineState};
use super::traits::{DATAGRAM_BYTES_MAX, Driver, LocalPeer};
use crate::driver::AnyDriver;
use crate::forks::EngineFd;
use crate::proto::failure::PeerFailure;
use crate::proto::paths::{PRIMARY, Paths, ReceiveInfo, Timeout};
use crate::refused_call::Seldom;
use crate::types::{Error, FrameState};

pub(super) use self::several::state_of;
pub(crate) use self::window::window_bytes;

/// Datagrams handled in one turn, so that a flood does not block the loop.
const DATAGRAMS_PER_TURN: usize = 64;
/// Datagrams between two clock reads: handling them takes some 3 µs, by which a meanwhile received
/// one seems older.
const DATAGRAMS_PER_CLOCK: usize = 8;
/// Turns in which rings reach that limit, per one in which the socket is read as well.
const TURNS_PER_SOCKET: u64 = 16;
/// Turns of which one handles all datagrams, also while each follows a message that was sent at
/// once: the time since all were handled bounds what is known of lost packets.
const TURNS_PER_FULL: u64 = 32;
/// Datagrams that one session sends in one turn, for the same reason.
const DATAGRAMS_PER_FLUSH: usize = 64;
/// Time without a datagram after which the socket is watched instead of polled: a message that
/// answers one after a short computation is found by polling.
const HOT_NS: u64 = 100_000;
/// Turns without a datagram before that time is checked.
const COLD_TURNS: u32 = 64;

/// Datagrams of an engine.
#[derive(Debug, Default)]
pub(crate) struct EngineDatagrams {
    /// The socket, which each driver gets a copy of.
    socket: Option<EngineFd<UdpSocket>>,
    /// Why there is none: the system, or the last attached driver, rejected it.
    refusal: Option<String>,
    /// An engine without AF_XDP is not attached.
    needs_frames: bool,
    /// Longest datagram that its NIC carries, if known.
    longest: usize,
    /// Bytes of bulk data that fit the socket's buffer alone.
    socket_window_bytes: u64,
    /// What this engine announces.
    announced: Announced,
    is_polled: bool,
    is_watched: bool,
    /// Datagrams and entries of rings that were read last.
    latest_count: u32,
    idle_turns: u32,
    /// When the first of these turns was.
    idle_since_ns: u64,
    /// Sessions that wait for driver space.
    blocked: Vec<u32>,
    is_blocked: bool,
    /// When all received datagrams were last known to be handled.
    drained_ns: u64,
    /// The loop slept since the last read: the event that woke it is recent.
    has_slept: bool,
    /// A message was sent at once since the last turn that read.
    expects_answer: bool,
    /// The last turn that could read several datagrams did.
    finds_several: bool,
}

impl EngineDatagrams {
    /// Creates the datagrams of an engine with `socket`, which is non-blocking, of at most
    /// `longest` bytes. `needs_frames`: by AF_XDP or not at all.
    pub(crate) fn new(socket: UdpSocket, port: u16, longest: usize, needs_frames: bool) -> Self {
        let longest = longest.min(DATAGRAM_BYTES_MAX);
        let announced = Announced { port, bytes: longest as u16, as_frames: needs_frames };
        Self {
            socket: Some(EngineFd::new(socket)),
            needs_frames,
            longest,
            announced,
            ..Self::default()
        }
    }

    /// Creates the state of an engine that cannot have datagrams: everything uses TCP, which is
    /// logged once.
    pub(crate) fn refused(cause: &io::Error) -> Self {
        let mut datagrams = Self::default();
        datagrams.refuse(cause);
        datagrams
    }

    fn refuse(&mut self, cause: &io::Error) {
        tracing::warn!("no datagrams: {cause}; messages use TCP");
        self.refusal = Some(cause.to_string());
        self.socket = None;
        self.announced = Announced::default();
    }

    /// Gives a driver the socket. Without datagrams everything uses TCP, unless AF_XDP is required.
    pub(super) fn attach(&mut self, driver: &mut dyn Driver) -> Result<(), Error> {
        let copy = self.socket.as_ref().map(|socket| socket.try_clone());
        match copy.map(|copy| copy.and_then(|socket| driver.open_datagrams(socket))) {
            None => return Ok(()),
            Some(Ok(())) => {
                let longest = driver.datagram_bytes_max().min(self.longest);
                let frames = driver.frame_state();
                self.announced.bytes = longest as u16;
                self.announced.as_frames =
                    matches!(frames, FrameState::Up { .. } | FrameState::Down { .. });
            }
            Some(Err(error)) => self.refuse(&error),
        }
        (self.is_polled, self.is_watched, self.is_blocked) = (false, false, false);
        self.blocked.clear();
        match (self.needs_frames, driver.frame_state()) {
            (false, _) | (true, FrameState::Up { .. }) => Ok(()),
            (true, FrameState::Refused { cause } | FrameState::Down { cause, .. }) => {
                Err(Error::system("control_lane = xdp", cause))
            }
            (true, FrameState::Off) => {
                Err(Error::system("control_lane = xdp", "this driver has no AF_XDP"))
            }
        }
    }

    /// Returns the socket, if datagrams are used; otherwise why a driver rejected it, if one did.
    pub(crate) fn socket(&self) -> Result<&EngineFd<UdpSocket>, Option<&str>> {
        self.socket.as_ref().ok_or(self.refusal.as_deref())
    }

    /// Sets how many bytes of bulk data fit the socket's buffer alone.
    pub(crate) fn set_socket_window(&mut self, bytes: u64) {
        self.socket_window_bytes = bytes;
    }

    /// Returns what this engine announces.
    pub(super) fn announced(&self) -> Announced {
        self.announced
    }

    /// Returns whether the socket and rings are read in each turn.
    #[inline]
    pub(super) fn is_polled(&self) -> bool {
        self.is_polled
    }

    /// Returns whether the last turn read as many as permitted.
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        self.latest_count == DATAGRAMS_PER_TURN as u32
    }

    /// Returns how many datagrams and entries of rings the last turn read.
    #[inline]
    pub(super) fn latest_count(&self) -> u32 {
        self.latest_count
    }

    /// Notes that a message is sent at once: what comes next probably answers it.
    #[inline]
    pub(super) fn expect_answer(&mut self) {
        self.expects_answer = true;
    }

    /// Returns how many datagrams the next turn handles at most. A datagram after a turn without
    /// any, or after a message that was sent at once, is probably single: its receiver waits for
    /// it, and a check for another takes as long as handling it. `is_full`: a message sent at once
    /// does not matter in this turn.
    #[inline]
    fn take_limit(&mut self, is_full: bool) -> usize {
        let follows = mem::take(&mut self.expects_answer) && !self.finds_several && !is_full;
        if follows || self.idle_turns > 0 { 1 } else { DATAGRAMS_PER_TURN }
    }

    fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    /// Polls in the next turn, which is not the owner's: only the owner gets events of the driver.
    pub(super) fn poll_detached(&mut self) {
        if self.is_open() {
            (self.is_polled, self.is_watched, self.idle_turns) = (true, false, 0);
        }
    }

    /// Returns whether a session has something to send and the driver no space.
    #[inline]
    pub(super) fn waits_for_room(&self) -> bool {
        self.is_blocked
    }

    /// Notes that all received datagrams are handled.
    fn note_drained(&mut self, now_ns: u64) {
        self.drained_ns = now_ns;
    }

    /// Notes that the loop has slept: the driver was not polled since it woke.
    pub(super) fn note_sleep(&mut self) {
        self.has_slept = true;
    }

    /// Notes that the driver was polled in a turn that began at `began_ns`, and its events are
    /// handled. Later events happened after that; if the loop was suspended meanwhile their time is
    /// unknown.
    #[inline]
    pub(super) fn note_events_handled(&mut self, began_ns: u64) {
        self.has_slept = false;
        if self.is_watched {
            self.drained_ns = began_ns;
        }
    }

    /// Notes that the driver has reported datagrams, and watches the socket no more.
    fn note_readable(&mut self, now_ns: u64) {
        self.is_watched = false;
        if self.has_slept {
            self.note_drained(now_ns);
        }
        self.poll();
    }

    /// Lets the driver report when there is something to read.
    fn watch(&mut self, driver: &mut dyn Driver) {
        self.is_polled = false;
        if !self.is_watched {
            self.is_watched = true;
            if let Err(error) = driver.watch_datagrams() {
                tracing::warn!("cannot watch the datagram socket: {error}; it is polled");
                (self.is_polled, self.is_watched) = (true, false);
            }
        }
    }

    /// Reads the socket in every turn, instead of on driver events.
    fn poll(&mut self) {
        if self.is_open() && !self.is_watched {
            (self.is_polled, self.idle_turns) = (true, 0);
        }
    }
}

impl Engine {
    // ---- Sessions ----

    /// Opens a path for a newly established session, if both sides take datagrams.
    ///
    /// RR-PATH-1, RR-PATH-2.
    pub(super) fn open_path(&mut self, session: u32, theirs: Announced) {
        let state = &mut *self.state;
        let ours = state.datagrams.announced;
        let known = state.core.session(session);
        // Without keys it has ended already.
        let Some(known) = known.filter(|known| known.keys().is_some()) else { return };
        let has_bulk = known.bulk_in_datagrams();
        let bytes_max = usize::from(ours.bytes.min(theirs.bytes));
        let (port, takes_trains) = (theirs.port, !theirs.as_frames);
        let has_datagrams = ours.port != 0
            && theirs.port != 0
            && state.paths.open_first_path(&mut state.core, session, port, bytes_max, takes_trains);
        if !has_datagrams {
            if has_bulk {
                state.fail_without_datagrams(session, ours.port == 0, theirs.port == 0);
            } else {
                state.core.with(session, |it, cx| it.announce_rails(cx));
            }
            return;
        }
        self.state.core.with(session, |it, cx| it.announce_rails(cx));
        self.setup().lanes.meet(session);
        self.state.datagrams.poll();
        self.transmit(session, PRIMARY, false);
        self.driver.flush_datagrams();
    }

    /// Continues the paths with another driver.
    pub(super) fn resume_paths(&mut self) {
        let bytes_max = self.driver.datagram_bytes_max();
        let state = &mut *self.state;
        let bytes_max = state.datagrams.is_open().then_some(bytes_max);
        state.paths.resume(&mut state.core, bytes_max);
        for session in 0..self.state.controls.slots() {
            let state = &mut *self.state;
            state.core.with(session, |it, cx| it.use_memory_reads(cx, false));
            // An engine without outstanding operations has nothing in a ring.
            let is_intact = state.paths.set_ring(&mut state.core, session, None, None);
            debug_assert!(is_intact, "no ring keeps anything for it");
            self.setup().lanes.meet(session);
            self.state.controls.of(session).set_awaits_room(false);
            self.transmit_all(session);
        }
        self.driver.flush_datagrams();
    }

    /// Closes the paths of a session, after acknowledging its last data, perhaps its goodbye.
    ///
    /// RR-PATH-5.
    pub(super) fn close_path(&mut self, session: u32) {
        self.state.note_transport(&self.driver, session, true);
        if self.state.paths.prepare_final_ack(session) {
            self.transmit(session, PRIMARY, false);
            self.driver.flush_datagrams();
        }
        if self.driver.accepts_local_peers()
            && let Some((name, _)) = self.state.paths.first_path(session)
        {
            self.driver.disconnect_peer(name);
        }
        self.state.paths.close(session);
        self.state.note_rings();
    }

    // ---- Receiving ----

    /// Handles received datagrams, if the socket is polled. Returns `true` if there were any.
    pub(super) fn read_datagrams(&mut self) -> bool {
        if !self.state.datagrams.is_polled {
            return false;
        }
        let polls = self.state.polls;
        let every = if self.state.rings.are_up() { TURNS_PER_SOCKET } else { TURNS_PER_FULL };
        let limit = self.state.datagrams.take_limit(polls.is_multiple_of(every));
        let (mut count, mut turn) = (0, self.state.rings.begin_turn());
        while count < limit {
            if turn.reads() {
                count += self.read_rings(&mut turn, limit - count);
                // Busy local peers must not keep the socket from being read.
                let reads_socket = turn.reads() || polls.is_multiple_of(TURNS_PER_SOCKET);
                if count == limit || !reads_socket {
                    break;
                }
            }
            let state = &mut *self.state;
            match self.driver.recv_datagram() {
                Ok(Some((from, bytes))) => {
                    if count % DATAGRAMS_PER_CLOCK == 0 {
                        state.now_ns = state.clock.now_ns();
                    }
                    count += 1;
                    let info = state.receive_info(from);
                    let EngineState { core, paths, completions, .. } = state;
                    let handled = paths.handle_packet(core, info, bytes, completions);
                    if let Err((session, failure)) = handled {
                        self.give_up(session, failure);
                    }
                }
                Ok(None) => {
                    state.datagrams.note_drained(state.now_ns);
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    // It concerns no single peer; paths that answer no more go by TCP.
                    static WARNED: Seldom = Seldom::new();
                    if WARNED.is_due() {
                        tracing::warn!("cannot receive datagrams: {error}");
                    }
                    state.datagrams.note_drained(state.now_ns);
                    break;
                }
            }
        }
        let now_ns = self.state.now_ns;
        let datagrams = &mut self.state.datagrams;
        datagrams.latest_count = count as u32;
        if limit > 1 {
            datagrams.finds_several = count > 1;
        }
        if count > 0 {
            datagrams.idle_turns = 0;
            return true;
        }
        datagrams.idle_turns += 1;
        if datagrams.idle_turns == 1 {
            datagrams.idle_since_ns = now_ns;
        }
        let is_cold = datagrams.idle_turns > COLD_TURNS
            && now_ns.saturating_sub(datagrams.idle_since_ns) > HOT_NS;
        if is_cold && self.driver.polls_for_free() {
            self.state.watch_datagrams(&mut self.driver);
        }
        false
    }

    pub(super) fn handle_datagrams_readable(&mut self) {
        let state = &mut *self.state;
        state.datagrams.note_readable(state.now_ns);
        self.read_datagrams();
        self.state.drain_paths();
    }

    /// Handles free space in the driver.
    pub(super) fn handle_datagrams_writable(&mut self) {
        self.state.datagrams.is_blocked = false;
        for session in mem::take(&mut self.state.datagrams.blocked) {
            self.state.controls.of(session).set_awaits_room(false);
            self.transmit_all(session);
        }
        self.driver.flush_datagrams();
    }

    // ---- Timers ----

    /// Handles expired timers of sessions. `until_ns` is when this turn began: an acknowledgement
    /// that is due at once still waits for the user's reply.
    pub(super) fn fire_timers(&mut self, until_ns: u64) {
        let mut fired = false;
        self.state.paths.begin_timeouts(until_ns);
        while let Some((at_ns, session)) = self.state.paths.poll_timeout(until_ns) {
            if !fired {
                self.state.read_clock();
                fired = true;
            }
            self.fire_timers_of(session, at_ns, until_ns);
            self.move_stream(session);
        }
        if fired {
            self.state.paths.end_timeouts();
            self.driver.flush_datagrams();
        }
    }

    /// Handles an expired timer of some of a session's paths.
    fn fire_timers_of(&mut self, session: u32, at_ns: u64, until_ns: u64) {
        for index in 0..self.state.paths.of(session).map_or(0, Paths::count) {
            let EngineState { core, paths, completions, datagrams, now_ns, .. } = &mut *self.state;
            // The drained state is as old as the turn; a watched socket is empty.
            let is_drained = datagrams.drained_ns >= until_ns || datagrams.is_watched;
            let late_ns = if datagrams.is_watched { 0 } else { *now_ns - datagrams.drained_ns };
            let timeout = Timeout { at_ns, now_ns: *now_ns, late_ns, is_drained };
            if paths.handle_timeout(core, (session, index), timeout, completions) {
                self.transmit(session, index, false);
            }
        }
        let state = &mut *self.state;
        state.paths.judge_after_timeout(&mut state.core, state.now_ns, session);
    }

    /// Sends the pending packets of all paths of a session.
    fn transmit_all(&mut self, session: u32) {
        for index in 0..self.state.paths.of(session).map_or(0, Paths::count) {
            self.transmit(session, index, false);
        }
    }

    /// Acknowledges everything before the loop sleeps, as nothing will until it wakes.
    pub(super) fn acknowledge_all(&mut self) {
        let awake = self.state.paths.begin_acknowledge_all();
        if !awake.is_empty() {
            for &session in &awake {
                self.transmit_all(session);
            }
            self.driver.flush_datagrams();
        }
        self.state.paths.end_acknowledge_all(awake);
    }
}

impl LaneCx<'_> {
    /// Starts the discovery of a peer that may be on this host.
    ///
    /// RR-SHM-1.
    fn meet(&mut self, session: u32) {
        if !self.driver.accepts_local_peers() {
            return;
        }
        let known = self.core.session(session).filter(|known| known.is_connected());
        // Without datagrams it has no path.
        let path = self.paths.first_path(session);
        if let Some((known, (name, address))) = known.zip(path)
            && let Some(keys) = debug_assert_some!(known.keys(), "its paths use them")
        {
            self.driver.connect_peer(LocalPeer {
                session: name,
                engine: known.peer().id(),
                address,
                key: keys.shared_memory(),
                is_initiator: known.connection().is_initiator(),
            });
        }
    }
}

impl EngineState {
    /// Fails a session that requires bulk data in datagrams, while one side has none. The other
    /// side detects that, too.
    ///
    /// RR-BULK-1.
    fn fail_without_datagrams(&mut self, session: u32, is_ours: bool, is_theirs: bool) {
        let (whose, cause) = match (is_ours, &self.datagrams.refusal) {
            (true, Some(refusal)) => ("this side", refusal.as_str()),
            (true, None) => ("this side", "control_lane = tcp"),
            (false, _) if !is_theirs => ("this side", "another session has the same random id"),
            (false, _) => ("the peer", "control_lane = tcp there, or a host that refuses UDP"),
        };
        let who = match self.core.shared().offer_max().bulk_in_datagrams {
            true => "this side",
            false => "the peer",
        };
        let text = format!(
            "{who} has bulk_lane = datagram, and {whose} takes no datagrams ({cause}); set \
             control_lane to udp, xdp or auto on both sides, or bulk_lane to tcp on both"
        );
        let failure = PeerFailure::Settings(text.into());
        self.core.fail_session(session, failure, &mut self.completions);
    }

    /// Lets the driver report when there are datagrams to read, if there are paths.
    pub(super) fn watch_datagrams(&mut self, driver: &mut AnyDriver) {
        if self.datagrams.is_open() && !self.paths.is_empty() {
            self.datagrams.watch(&mut **driver);
        }
    }

    /// Returns the reception info of a datagram that is handled now.
    #[inline]
    fn receive_info(&self, from: SocketAddr) -> ReceiveInfo {
        let late_ns = self.now_ns.saturating_sub(self.datagrams.drained_ns);
        ReceiveInfo { from, now_ns: self.now_ns, late_ns }
    }

    /// Delivers the events of sent packets, once the content of received ones is delivered.
    #[inline]
    pub(super) fn drain_paths(&mut self) {
        self.paths.drain(&mut self.core, &mut self.completions);
    }

    /// Does the same for all sessions, and for deferred work of paths.
    pub(super) fn drain_all_paths(&mut self) {
        self.paths.drain_all(&mut self.core, &mut self.completions);
    }

    /// Frees memory of sessions that have become idle.
    pub(super) fn shrink_idle(&mut self) {
        let Self { core, paths, controls, now_ns, .. } = self;
        paths.shrink_idle(core, *now_ns, |session| controls.shrink(session));
    }

    /// Returns how many sessions wait for driver space.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn sessions_blocked(&self) -> usize {
        self.datagrams.blocked.len()
    }
}
