//! Transmission on the paths of a session.

use std::net::SocketAddr;

use super::super::core::Core;
use super::super::effects::Effects;
use super::super::session::segments::{Alone, PostedFrame, Transport};
use super::path::SessionPath;
use super::{Index, PathCx, PathTable};

/// A datagram that is ready to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transmit {
    /// Destination.
    pub(crate) to: SocketAddr,
    /// Rail of this engine.
    pub(crate) rail: u8,
    /// Its length.
    pub(crate) bytes: usize,
    /// The next datagram may share a system call with it, in a GSO batch.
    pub(crate) takes_trains: bool,
    /// It has a UDP checksum, also where the peer uses AF_XDP: nothing proves yet that it arrives
    /// without one.
    ///
    /// RR-PATH-8.
    pub(crate) is_summed: bool,
    /// It carries new data, and nothing else waits.
    pub(crate) is_drained: bool,
    /// The path has more probes to send, independent of waiting data.
    pub(crate) is_probing: bool,
}

/// A frame that goes alone in a packet, and its path. Nothing has changed for it yet.
pub(crate) struct LonePacket<'a, P> {
    path: &'a mut SessionPath,
    frame: Alone<'a, P>,
}

impl<P: PostedFrame> LonePacket<'_, P> {
    /// Returns whether window and pacer do not matter for it. `false`: use the general path.
    #[inline(always)]
    pub(crate) fn may_go(&self, now_ns: u64) -> bool {
        self.path.packets().may_transmit_alone(now_ns, &self.frame)
    }

    /// Writes it into `room`, which holds the longest datagram that a driver takes, after
    /// [`Self::may_go`] returned `true`. `None`: it does not fit, which that excludes.
    #[inline(always)]
    pub(crate) fn write(mut self, now_ns: u64, room: &mut [u8]) -> Option<Transmit> {
        self.path.transmit_alone(&mut self.frame, now_ns, room)
    }
}

impl PathTable {
    /// Returns whether segments of a session use its control connection now: no path carries any,
    /// or only shorter ones than those that wait.
    pub(crate) fn uses_stream_now(&self, core: &Core, slot: u32) -> bool {
        let Some(paths) = self.of(slot).filter(|paths| paths.are_open()) else { return true };
        // Usually nothing waits.
        let waiting = core.session(slot).filter(|session| session.segments().is_waiting());
        waiting.is_some_and(|session| {
            let waiting_bytes = session.segments().waiting_bytes();
            // A ring takes all segments built for datagrams.
            let primary = paths.primary.as_deref().filter(|_| paths.ring.is_none());
            primary.is_some_and(|path| waiting_bytes > path.packets().payload_bytes_max())
        })
    }

    /// Returns whether the driver sends on a path.
    #[inline]
    pub(crate) fn is_served(&self, slot: u32, index: Index) -> bool {
        let path = self.of(slot).and_then(|paths| paths.get(index));
        path.is_some_and(SessionPath::is_served)
    }

    /// Writes the next datagram of a path into `room`, which holds the longest that a driver takes.
    /// `None`: it has nothing to send now.
    pub(crate) fn poll_transmit(
        &mut self,
        core: &mut Core,
        (slot, index): (u32, Index),
        now_ns: u64,
        room: &mut [u8],
    ) -> Option<Transmit> {
        let (paths, session, PathCx { cx, .. }) = self.enter(core, slot)?;
        let is_by_ring = session.segments().protocol().transport() == Some(Transport::Ring);
        debug_assert!(
            !session.is_connected() || is_by_ring == paths.ring.is_some(),
            "session and paths have the same ring"
        );
        paths.get_mut(index)?.poll_transmit((session, cx), now_ns, room)
    }

    /// Returns a frame for the primary path of its session, if nothing is ahead of it and the path
    /// is in the common state.
    #[inline(always)]
    pub(crate) fn lone_packet<'a, P: PostedFrame>(
        &'a mut self,
        core: &'a mut Core,
        slot: u32,
        frame: &'a P,
    ) -> Option<LonePacket<'a, P>> {
        let (paths, session, PathCx { cx, .. }) = self.enter(core, slot)?;
        let path = paths.primary.as_deref_mut()?;
        if !path.may_transmit_alone() {
            return None;
        }
        Some(LonePacket { path, frame: session.alone(cx, frame)? })
    }

    /// Completes the transmission of a path: acknowledgements may be applied, and its timer is set
    /// unless it waits for driver space (`is_blocked`). Returns `true` if only acknowledgements
    /// were found.
    #[inline(always)]
    pub(crate) fn end_transmit(
        &mut self,
        core: &mut Core,
        (slot, index): (u32, Index),
        is_blocked: bool,
        effects: &mut impl Effects,
    ) -> bool {
        let entry = self.paths_of(slot);
        let entry = entry.and_then(|(paths, shared)| Some((paths.get_mut(index)?, shared)));
        let Some((path, shared)) = entry else { return true };
        // A window may have gained space by dropping its oldest packets.
        let is_calm = path.is_calm()
            || core
                .with(slot, |session, cx| path.deliver_pending_events(session, cx, effects))
                .unwrap_or(true);
        path.end_transmit(slot, &mut shared.to_drain);
        if !is_blocked {
            path.set_timer(slot, &mut shared.timers);
        }
        is_calm
    }
}
