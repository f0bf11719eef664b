//! Datagrams as AF_XDP frames, which bypass the kernel's network stack: half a microsecond instead
//! of two.
//!
//! Frames complement the UDP socket of the same port. A datagram is sent as a frame if its
//! destination is reached by this NIC, its neighbour is resolved, and a frame is free; otherwise by
//! the socket. The XDP program on the NIC redirects packets for the port; all others arrive at the
//! socket. So each side may lose its frames at any time, and get them back.
//!
//! `frame` tracks the owner of each frame, `rings` is the interface to the kernel and `socket`
//! implements it; `exchange` moves frames, `headers` and `parse` write and read their headers;
//! `routes` queries the kernel and `destinations` caches the results; `busy_poll` lets the polling
//! thread drive the NIC; `queue` combines all of it for one queue.
//!
//! `queue_lease` is the right to use a queue. Unprivileged processes lease one from
//! `ringrail-xdpd`: `leased_rings` has the rings of such a socket, on `mapped` memory, and
//! `any_rings` those of either kind.

mod any_rings;
mod busy_poll;
mod checksum;
mod destinations;
mod exchange;
mod frame;
mod headers;
mod leased_rings;
mod mapped;
mod parse;
mod queue;
mod queue_lease;
mod rings;
mod routes;
mod socket;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use self::queue::XdpQueue;
use super::datagrams::FrameSource;
use crate::driver::traits::{DATAGRAM_BYTES_MAX, DriverCounters, TxFlags};
use crate::driver::traits::{FrameDrops, FrameFigures, FrameState};
use crate::forks::EngineFd;

/// Retry interval of lost frames, and the first one of refused frames.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// Longest retry interval of refused frames, which doubles: the owner of the queue may keep it for
/// hours, and each retry costs some milliseconds.
const REFUSED_EVERY_MAX: Duration = Duration::from_secs(32);
/// Retries take at most one part in this many of the time.
const RETRY_SHARE: u32 = 40;

/// Frames for one UDP socket.
#[derive(Debug)]
pub(super) struct Frames {
    local: SocketAddr,
    /// The UDP socket, whose port `ringrail-xdpd` verifies.
    socket: EngineFd,
    source: FrameSource,
    /// Packets may take several frames, as with the first queue: peers know the maximum length of
    /// datagrams.
    is_long: bool,
    mode: Mode,
    /// Statistics of earlier queues.
    past: FrameFigures,
    past_drops: FrameDrops,
}

#[derive(Debug)]
enum Mode {
    Up(Box<XdpQueue>),
    /// Frames are not used any more; the descriptor is still watched.
    Leaving(Box<XdpQueue>, FallbackState),
    Down(FallbackState),
    /// There never were any.
    Refused(FallbackState),
}

/// Why frames are unavailable, and when to retry.
#[derive(Clone, Debug)]
struct FallbackState {
    cause: String,
    retry_at: Instant,
    /// Interval of the retry after that.
    pause: Duration,
}

impl FallbackState {
    /// The attempt that began at `began` has just failed. Slow attempts are repeated less often.
    fn new(cause: String, began: Instant) -> Self {
        let pause = RETRY_EVERY.max(began.elapsed() * RETRY_SHARE);
        Self { cause, retry_at: began + pause, pause: RETRY_EVERY }
    }

    /// Refused again.
    fn again(&self, cause: String, began: Instant) -> Self {
        let pause = (self.pause * 2).min(REFUSED_EVERY_MAX);
        let retry_at = began + pause.max(began.elapsed() * RETRY_SHARE);
        Self { cause, retry_at, pause }
    }
}

impl Frames {
    /// Frames beside the socket bound to `local`, of which `socket` is a descriptor. A refusal is
    /// retried by [`Self::maintain`]: the owner of the queue may leave, privileges may be granted.
    ///
    /// # Errors
    ///
    /// Why there will never be frames for this socket, and the remedy.
    pub(super) fn open(
        socket: OwnedFd,
        local: SocketAddr,
        source: &FrameSource,
    ) -> Result<Self, String> {
        queue::may_have_frames(local)?;
        let began = Instant::now();
        let (mode, is_long) = match XdpQueue::open(local, socket.as_fd(), source, true, false) {
            Ok(lane) => {
                let is_long = lane.is_long();
                (Mode::Up(log_opened(local, lane)), is_long)
            }
            Err(cause) => {
                tracing::warn!(
                    "AF_XDP is unavailable, using the UDP socket; it will be retried: {cause}"
                );
                (Mode::Refused(FallbackState::new(cause, began)), false)
            }
        };
        let (past, past_drops) = Default::default();
        let (socket, source) = (EngineFd::new(socket), source.clone());
        Ok(Self { local, socket, source, is_long, mode, past, past_drops })
    }

    #[inline]
    fn active_queue(&mut self) -> Option<&mut XdpQueue> {
        match &mut self.mode {
            Mode::Up(lane) => Some(lane),
            Mode::Leaving(..) | Mode::Down(_) | Mode::Refused(_) => None,
        }
    }

    /// Longest datagram that can be received and sent.
    pub(super) fn datagram_bytes_max(&self) -> usize {
        if self.is_long { DATAGRAM_BYTES_MAX } else { queue::SINGLE_BYTES_MAX }
    }

    /// Whether frames are in use.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.mode, Mode::Up(_))
    }

    /// The descriptor to watch for received frames.
    pub(super) fn fd(&self) -> Option<RawFd> {
        match &self.mode {
            Mode::Up(lane) => Some(lane.fd()),
            Mode::Leaving(..) | Mode::Down(_) | Mode::Refused(_) => None,
        }
    }

    /// A buffer for a datagram in a frame.
    #[inline]
    pub(super) fn room(&mut self, counters: &mut DriverCounters) -> Option<&mut [u8]> {
        if self.active_queue()?.is_full() {
            // Sending staged frames makes room.
            self.flush(counters);
        }
        self.active_queue()?.room()
    }

    /// The buffer returned last.
    #[inline]
    pub(super) fn written(&mut self) -> Option<&mut [u8]> {
        self.active_queue()?.written()
    }

    /// Sends the room's first `length` bytes to `to`; `false`: no frame goes there. `handling`: see
    /// [`crate::driver::traits::DatagramIo::send_datagram`].
    #[inline]
    pub(super) fn send(&mut self, to: SocketAddr, length: usize, tx_flags: TxFlags) -> bool {
        self.active_queue().is_some_and(|lane| lane.send(to, length, tx_flags))
    }

    /// Whether [`Self::flush`] has anything to do.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        matches!(&self.mode, Mode::Up(lane) if lane.is_behind())
    }

    /// Submits frames to the kernel.
    #[inline]
    pub(super) fn flush(&mut self, counters: &mut DriverCounters) {
        let Some(lane) = self.active_queue() else { return };
        if lane.is_behind()
            && let Err(error) = lane.flush(counters)
        {
            self.fall_back(error.to_string());
        }
    }

    #[inline]
    pub(super) fn has_received(&mut self) -> bool {
        self.active_queue().is_some_and(XdpQueue::has_received)
    }

    /// The source of the next datagram received in a frame; [`Self::payload`] returns its bytes.
    #[inline]
    pub(super) fn receive(&mut self, counters: &mut DriverCounters) -> Option<SocketAddr> {
        self.active_queue()?.receive(counters)
    }

    /// The datagram that [`Self::receive`] found.
    #[inline]
    pub(super) fn payload(&mut self) -> &mut [u8] {
        self.active_queue().map(XdpQueue::payload).unwrap_or_default()
    }

    /// Whether [`Self::maintain`] should be called soon.
    pub(super) fn has_pending_lookups(&self) -> bool {
        matches!(&self.mode, Mode::Up(lane) if lane.has_pending_lookups())
    }

    /// Periodic maintenance. `is_watched`: the kernel watches the descriptor, and the queue cannot
    /// be released before that ends.
    pub(super) fn maintain(&mut self, now: Instant, is_watched: bool) {
        match &mut self.mode {
            Mode::Up(lane) => {
                if let Err(cause) = lane.maintain(now) {
                    self.fall_back(cause);
                }
            }
            Mode::Leaving(lane, fallback) => {
                if !is_watched {
                    let fallback = fallback.clone();
                    self.past = self.past.and(lane.figures()).of_past();
                    self.past_drops = self.past_drops.and(lane.drops());
                    self.mode = Mode::Down(fallback);
                }
            }
            Mode::Down(fallback) | Mode::Refused(fallback) if now >= fallback.retry_at => {
                self.reopen(now)
            }
            Mode::Down(_) | Mode::Refused(_) => {}
        }
    }

    #[cold]
    fn fall_back(&mut self, cause: String) {
        let fallback = FallbackState::new(cause, Instant::now());
        let before = std::mem::replace(&mut self.mode, Mode::Down(fallback.clone()));
        if let Mode::Up(lane) = before {
            tracing::warn!("AF_XDP is unavailable, using the UDP socket: {}", fallback.cause);
            self.mode = Mode::Leaving(lane, fallback);
        }
    }

    fn reopen(&mut self, now: Instant) {
        let (socket, is_long) = (self.socket.as_fd(), self.is_long);
        let opened = XdpQueue::open(self.local, socket, &self.source, false, is_long);
        match (opened, &mut self.mode) {
            (Ok(lane), mode) => *mode = Mode::Up(log_opened(self.local, lane)),
            (Err(cause), mode) => {
                tracing::debug!("AF_XDP is still unavailable: {cause}");
                match mode {
                    Mode::Refused(fallback) => *fallback = fallback.again(cause, now),
                    mode => *mode = Mode::Down(FallbackState::new(cause, now)),
                }
            }
        }
    }

    /// Frames dropped by the kernel. One system call.
    pub(super) fn drops(&self) -> FrameDrops {
        match &self.mode {
            Mode::Up(lane) | Mode::Leaving(lane, _) => self.past_drops.and(lane.drops()),
            Mode::Down(_) | Mode::Refused(_) => self.past_drops,
        }
    }

    /// State and statistics.
    pub(super) fn state(&self) -> FrameState {
        match &self.mode {
            Mode::Up(lane) => {
                let (nic, queue, how) = lane.describe();
                FrameState::Up { nic, queue, how, figures: self.past.and(lane.figures()) }
            }
            Mode::Leaving(lane, FallbackState { cause, .. }) => {
                FrameState::Down { cause: cause.clone(), figures: self.past.and(lane.figures()) }
            }
            Mode::Down(FallbackState { cause, .. }) => {
                FrameState::Down { cause: cause.clone(), figures: self.past }
            }
            Mode::Refused(FallbackState { cause, .. }) => {
                FrameState::Refused { cause: cause.clone() }
            }
        }
    }
}

fn log_opened(local: SocketAddr, lane: XdpQueue) -> Box<XdpQueue> {
    let (nic, queue, how) = lane.describe();
    tracing::info!("using AF_XDP for datagrams of {local}: {nic}, queue {queue} ({how})");
    Box::new(lane)
}

impl FrameDrops {
    fn and(self, other: Self) -> Self {
        Self {
            dropped_received: self.dropped_received + other.dropped_received,
            receive_ring_full: self.receive_ring_full + other.receive_ring_full,
            fill_ring_empty: self.fill_ring_empty + other.fill_ring_empty,
            transmit_ring_empty: self.transmit_ring_empty + other.transmit_ring_empty,
            invalid_filled: self.invalid_filled + other.invalid_filled,
            invalid_sent: self.invalid_sent + other.invalid_sent,
        }
    }
}

impl FrameFigures {
    /// The sum of the statistics of closed queues and of the current one.
    fn and(self, now: Self) -> Self {
        Self {
            strays: self.strays + now.strays,
            sent: self.sent + now.sent,
            received: self.received + now.received,
            unfit: self.unfit + now.unfit,
            ..now
        }
    }

    /// Without the number of frames, which are gone.
    fn of_past(self) -> Self {
        let Self { strays, sent, received, unfit, .. } = self;
        Self { strays, sent, received, unfit, ..Self::default() }
    }
}
