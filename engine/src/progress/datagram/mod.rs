//! Datagrams: the loop reads and writes them, and [`crate::proto::paths`] decides.
//!
//! A session is set up over TCP, and both sides say there whether they take datagrams. If both do,
//! it is in datagram mode ([`crate::proto::datagram`]) from its first frame on: segments go by the
//! path while that answers, and by the TCP lane of the session before it has answered and when it
//! has gone silent. The TCP lane also tells of the peer's end, and carries the segments
//! that fit no datagram ([`super::stream`]).
//!
//! Budget of a message on a good path: its bytes are copied into a segment and from there into the
//! driver's room, one tag over the datagram, one system call for all datagrams of a turn, no
//! allocation, no lock. A timer costs a push to a heap once per probe time and session, not per
//! packet.

mod announced;
mod ring;
mod several;
mod transmit;
mod window;

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};

pub(crate) use self::announced::Announced;
pub(crate) use self::ring::Rings;
use super::engine::{Engine, EngineState};
use super::traits::{DATAGRAM_BYTES_MAX, Driver, LocalPeer};
use crate::forks::EngineFd;
use crate::proto::failure::PeerFailure;
use crate::proto::paths::{CARRIER, Paths, ReceiveInfo, Timeout};
use crate::types::{Error, FrameState};

pub(super) use self::several::state_of;
pub(crate) use self::window::window_bytes;

/// Datagrams handled in one turn, so that a flood does not keep the loop from others.
const DATAGRAMS_PER_TURN: usize = 64;
/// Datagrams between two looks at the clock: handling as many takes some 3 µs, and one that came
/// meanwhile seems to have come that much earlier.
const DATAGRAMS_PER_CLOCK: usize = 8;
/// Bytes that rings bring in one turn, and the segment that exceeds them. A ring holds hundreds of
/// messages; with more of them at once than it has receives for, a receiver keeps most as
/// unexpected ones, which costs half as much again.
const RING_BYTES_PER_TURN: usize = 4 << 10;
/// Turns in which rings bring so much, for one in which the socket is looked at as well.
const TURNS_PER_SOCKET: u64 = 16;
/// Datagrams that one session sends in one turn, for the same reason.
const DATAGRAMS_PER_FLUSH: usize = 64;
/// Time without a datagram after which the socket is watched, no longer polled: a message that
/// answers one after a short computation is found by looking.
const HOT_NS: u64 = 100_000;
/// Turns without a datagram before that time is asked for.
const COLD_TURNS: u32 = 64;

/// Datagrams of an engine.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    /// The socket, for each driver to get a copy of.
    socket: Option<EngineFd<UdpSocket>>,
    /// Why there is none: the system, or the last driver that was attached, did not take it.
    refusal: Option<String>,
    /// An engine without AF_XDP frames is not attached.
    needs_frames: bool,
    /// Longest datagram that its NIC carries, as far as that is known.
    longest: usize,
    /// Bytes of bulk data that the socket alone has room for.
    pub(crate) socket_window_bytes: u64,
    /// What this engine announces.
    pub(super) announced: Announced,
    is_polled: bool,
    is_watched: bool,
    /// The last turn read as many as one may.
    pub(super) has_more: bool,
    idle_turns: u32,
    /// When the first of these turns was.
    idle_since_ns: u64,
    /// Sessions that wait for room in the driver.
    blocked: Vec<u32>,
    is_blocked: bool,
    /// When nothing was there that was not handled, as far as that was last known.
    drained_ns: u64,
    /// The loop slept since it last looked: what woke it had just come.
    has_slept: bool,
}

impl Datagrams {
    /// Those of an engine whose datagrams come in by `socket`, which is non-blocking, `longest`
    /// bytes at the most. `needs_frames`: as AF_XDP frames or not at all.
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

    /// Those of an engine that wants datagrams and cannot have them: everything goes by TCP, which
    /// one line of the log says.
    pub(crate) fn refused(cause: &io::Error) -> Self {
        let mut datagrams = Self::default();
        datagrams.refuse(cause);
        datagrams
    }

    fn refuse(&mut self, cause: &io::Error) {
        tracing::warn!("no datagrams: {cause}; messages go by TCP");
        self.refusal = Some(cause.to_string());
        self.socket = None;
        self.announced = Announced::default();
    }

    /// Gives a driver the socket. Without datagrams everything goes by TCP, unless frames are
    /// needed.
    pub(super) fn attach(&mut self, driver: &mut dyn Driver) -> Result<(), Error> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let opened = socket.try_clone().and_then(|socket| driver.open_datagrams(socket));
        match opened {
            Ok(()) => {
                let longest = driver.datagram_bytes_max().min(self.longest);
                let frames = driver.frame_state();
                self.announced.bytes = longest as u16;
                self.announced.as_frames =
                    matches!(frames, FrameState::Up { .. } | FrameState::Down { .. });
            }
            Err(error) => self.refuse(&error),
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

    /// The socket, if datagrams are taken; otherwise why a driver refused it, if one did.
    pub(crate) fn socket(&self) -> Result<&EngineFd<UdpSocket>, Option<&str>> {
        self.socket.as_ref().ok_or(self.refusal.as_deref())
    }

    fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    /// The next turn is not the owner's, who alone hears from the driver when there is something.
    pub(super) fn poll_detached(&mut self) {
        if self.is_open() {
            (self.is_polled, self.is_watched, self.idle_turns) = (true, false, 0);
        }
    }

    /// Some session has something to send and the driver no room.
    pub(super) fn waits_for_room(&self) -> bool {
        self.is_blocked
    }

    /// The socket is read in every turn, unless the driver tells when there is something.
    fn poll(&mut self) {
        if self.is_open() && !self.is_watched {
            (self.is_polled, self.idle_turns) = (true, 0);
        }
    }
}

impl Engine {
    // ---- Sessions ----

    /// A session was just established: it gets a path if both sides take datagrams.
    ///
    /// RR-PATH-1, RR-PATH-2.
    pub(super) fn open_path(&mut self, session: u32, theirs: Announced) {
        let state = &mut *self.state;
        let ours = state.datagrams.announced;
        let known = state.core.session(session);
        // Without keys it has ended already.
        let Some(known) = known.filter(|known| known.keys.is_some()) else { return };
        if ours.port == 0 || theirs.port == 0 {
            if known.bulk_in_datagrams {
                self.fail_without_datagrams(session, ours.port == 0);
            } else {
                state.core.announce_rails(session);
            }
            return;
        }
        let bytes_max = usize::from(ours.bytes.min(theirs.bytes));
        let (port, takes_trains) = (theirs.port, !theirs.as_frames);
        state.paths.open_first_path(&mut state.core, session, port, bytes_max, takes_trains);
        self.control(session).has_datagram_mode = true;
        self.state.core.announce_rails(session);
        self.meet(session);
        self.state.datagrams.poll();
        self.transmit(session, CARRIER, false);
        self.driver.flush_datagrams();
    }

    /// The other side of a session may be on this host.
    ///
    /// RR-SHM-1.
    fn meet(&mut self, session: u32) {
        if !self.driver.accepts_local_peers() {
            return;
        }
        let Some(known) = self.state.core.session(session) else { return };
        let Some((name, address)) = self.state.paths.first_path(session) else { return };
        let Some(keys) = known.keys.as_ref().filter(|_| known.is_connected()) else { return };
        self.driver.connect_peer(LocalPeer {
            session: name,
            engine: known.engine,
            address,
            key: keys.shared_memory(),
            is_initiator: known.connection.is_initiator(),
        });
    }

    /// Bulk data is to go in datagrams, and one side has none. The other side finds that out, too.
    ///
    /// RR-BULK-1.
    fn fail_without_datagrams(&mut self, session: u32, is_ours: bool) {
        let (whose, cause) = match (is_ours, &self.state.datagrams.refusal) {
            (true, Some(refusal)) => ("this side", refusal.as_str()),
            (true, None) => ("this side", "control_lane = tcp"),
            (false, _) => ("the peer", "control_lane = tcp there, or a host that refuses UDP"),
        };
        let who = match self.state.core.config().bulk_in_datagrams {
            true => "this side",
            false => "the peer",
        };
        let text = format!(
            "{who} has bulk_lane = datagram, and {whose} takes no datagrams ({cause}); set \
             control_lane to udp, xdp or auto on both sides, or bulk_lane to tcp on both"
        );
        let state = &mut *self.state;
        let failure = PeerFailure::Settings(text.into());
        state.core.fail_session(session, failure, &mut state.completions);
    }

    /// Another driver runs the engine.
    pub(super) fn resume_paths(&mut self) {
        let bytes_max = self.driver.datagram_bytes_max();
        let state = &mut *self.state;
        let bytes_max = state.datagrams.is_open().then_some(bytes_max);
        state.paths.resume(&mut state.core, bytes_max);
        for session in 0..self.state.controls.len() {
            self.state.core.set_cma(session as u32, false);
            let state = &mut *self.state;
            state.paths.set_ring(&mut state.core, session as u32, None);
            self.meet(session as u32);
            self.state.controls[session].awaits_room = false;
            self.transmit_all(session as u32);
        }
        self.driver.flush_datagrams();
    }

    /// A session is over. What came last, its goodbye perhaps, is acknowledged.
    ///
    /// RR-PATH-5.
    pub(super) fn close_path(&mut self, session: u32) {
        if self.state.paths.hasten_last_ack(session) {
            self.transmit(session, CARRIER, false);
            self.driver.flush_datagrams();
        }
        if self.driver.accepts_local_peers()
            && let Some((name, _)) = self.state.paths.first_path(session)
        {
            self.driver.disconnect_peer(name);
        }
        self.state.paths.close(session);
    }

    // ---- What comes in ----

    /// Handles what has come in, if the socket is polled. `true`: something was there.
    pub(super) fn read_datagrams(&mut self) -> bool {
        if !self.state.datagrams.is_polled {
            return false;
        }
        let (mut count, mut ring_bytes) = (0, 0);
        // One that comes after a turn without any is probably alone: its receiver waits for it,
        // and asking whether there is another takes as long as handling it.
        let is_idle = self.state.datagrams.idle_turns > 0;
        let limit = if is_idle { 1 } else { DATAGRAMS_PER_TURN };
        let mut reads_rings = self.state.rings.are_read;
        while count < limit {
            if reads_rings && let Some(bytes) = self.read_ring() {
                count += 1;
                ring_bytes += bytes;
                // Neighbours that always have something do not keep the socket from being read.
                reads_rings = ring_bytes < RING_BYTES_PER_TURN;
                if !reads_rings && !self.state.polls.is_multiple_of(TURNS_PER_SOCKET) {
                    break;
                }
                continue;
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
                    self.drained();
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    // It concerns no single peer; paths that answer no more go by TCP.
                    tracing::warn!("cannot receive datagrams: {error}");
                    self.drained();
                    break;
                }
            }
        }
        let now_ns = self.state.now_ns;
        let datagrams = &mut self.state.datagrams;
        datagrams.has_more = count == DATAGRAMS_PER_TURN;
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
            self.watch_datagrams();
        }
        false
    }

    fn drained(&mut self) {
        self.state.datagrams.drained_ns = self.state.now_ns;
    }

    /// The driver tells when there is something to read.
    pub(super) fn watch_datagrams(&mut self) {
        let datagrams = &mut self.state.datagrams;
        if !datagrams.is_open() || self.state.paths.is_empty() {
            return;
        }
        datagrams.is_polled = false;
        if !datagrams.is_watched {
            datagrams.is_watched = true;
            if let Err(error) = self.driver.watch_datagrams() {
                tracing::warn!("cannot watch the datagram socket: {error}; it is polled");
                (datagrams.is_polled, datagrams.is_watched) = (true, false);
            }
        }
    }

    pub(super) fn handle_datagrams_readable(&mut self) {
        self.state.datagrams.is_watched = false;
        if self.state.datagrams.has_slept {
            self.drained();
        }
        self.state.datagrams.poll();
        self.read_datagrams();
        self.state.drain_paths();
    }

    /// The loop has slept, as far as it knows: the driver has not been asked since it woke.
    pub(super) fn note_sleep(&mut self) {
        self.state.datagrams.has_slept = true;
    }

    /// The driver was asked in a turn that began at `began_ns`, and its news are handled. What is
    /// told of later came after that; a loop that was away meanwhile cannot say when.
    pub(super) fn note_news_handled(&mut self, began_ns: u64) {
        let datagrams = &mut self.state.datagrams;
        datagrams.has_slept = false;
        if datagrams.is_watched {
            datagrams.drained_ns = began_ns;
        }
    }

    /// The driver has room again.
    pub(super) fn handle_datagrams_writable(&mut self) {
        self.state.datagrams.is_blocked = false;
        for session in std::mem::take(&mut self.state.datagrams.blocked) {
            self.control(session).awaits_room = false;
            self.transmit_all(session);
        }
        self.driver.flush_datagrams();
    }

    // ---- Timers ----

    /// Gives sessions whose time has come a turn. `until_ns` is when this turn began: an
    /// acknowledgement that is wanted at once still waits for what the user answers.
    pub(super) fn fire_timers(&mut self, until_ns: u64) {
        let mut fired = false;
        self.state.paths.begin_timeouts(until_ns);
        while let Some((at_ns, session)) = self.state.paths.poll_timeout(until_ns) {
            if !fired {
                self.read_clock();
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

    /// A time of some of a session's paths has come.
    fn fire_timers_of(&mut self, session: u32, at_ns: u64, until_ns: u64) {
        for index in 0..self.count_paths(session) {
            let EngineState { core, paths, completions, datagrams, now_ns, .. } = &mut *self.state;
            // What is drained is as old as the turn; a socket that is watched has nothing.
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

    fn count_paths(&self, session: u32) -> usize {
        self.state.paths.of(session).map_or(0, Paths::count)
    }

    /// Sends what all paths of a session want to send.
    fn transmit_all(&mut self, session: u32) {
        for index in 0..self.count_paths(session) {
            self.transmit(session, index, false);
        }
    }

    /// Before the loop sleeps: nobody waits for an acknowledgement until it wakes.
    pub(super) fn acknowledge_all(&mut self) {
        let awake = self.state.paths.hasten_acks();
        if !awake.is_empty() {
            for &session in &awake {
                self.transmit_all(session);
            }
            self.driver.flush_datagrams();
        }
        self.state.paths.end_hasten_acks(awake);
    }
}

impl EngineState {
    /// What is known of a datagram that is handled now.
    #[inline]
    fn receive_info(&self, from: SocketAddr) -> ReceiveInfo {
        let late_ns = self.now_ns.saturating_sub(self.datagrams.drained_ns);
        ReceiveInfo { from, now_ns: self.now_ns, late_ns }
    }

    /// What datagrams say of those that were sent, once what they brought is delivered.
    #[inline]
    pub(super) fn drain_paths(&mut self) {
        self.paths.drain(&mut self.core, &mut self.completions);
    }

    /// The same for all sessions, and for what paths have put off.
    pub(super) fn drain_all_paths(&mut self) {
        self.paths.drain_all(&mut self.core, &mut self.completions);
    }

    /// Sessions that have become idle give memory back.
    pub(super) fn shrink_idle(&mut self) {
        let Self { core, paths, controls, now_ns, .. } = self;
        paths.shrink_idle(core, *now_ns, |session| {
            if let Some(control) = controls.get_mut(session as usize)
                && control.unsent.is_empty()
            {
                control.unsent = Vec::new();
            }
        });
    }

    /// How many sessions wait for room in the driver.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn sessions_blocked(&self) -> usize {
        self.datagrams.blocked.len()
    }
}
