//! Exchange of frames with the kernel.

use std::io;
use std::mem;
use std::os::fd::RawFd;

use super::frame::{FrameCounts, FrameOwner, Ledger, XdpFrame};
use super::rings::{FramePacket, FrameRings};

/// Packets staged for one call, and received by one poll of a ring.
pub(super) const BATCH: usize = 64;
/// Frames added to the fill ring at once: each access touches a cache line of the kernel.
const FILL_BATCH: u32 = 16;
/// Frames in the transmit ring beyond which completions are polled: few, so that frames are reused
/// while they are cached.
const UNREAPED_MAX: u32 = 16;
/// Kicks per flush. The kernel sends 32 packets per kick, so two suffice for a batch unless the NIC
/// is slower.
const KICKS_MAX: usize = 6;

/// Location of the packet being read.
#[derive(Debug)]
enum Reading {
    Frame(XdpFrame, u32),
    /// Assembled from several frames.
    Long,
}

/// Packets longer than a frame. The kernel passes them in several frames (`XDP_USE_SG`) at any
/// addresses; callers need contiguous bytes. So these are copied.
#[derive(Debug)]
struct LongPacket {
    room: Box<[u8]>,
    came: Vec<u8>,
    is_too_long: bool,
}

impl LongPacket {
    fn new(bytes: usize) -> Self {
        let (room, came) = (vec![0; bytes].into(), Vec::with_capacity(bytes));
        Self { room, came, is_too_long: false }
    }

    fn take_part(&mut self, part: &[u8], is_first: bool) {
        if is_first {
            self.came.clear();
            self.is_too_long = false;
        }
        self.is_too_long |= self.came.len() + part.len() > self.room.len();
        if !self.is_too_long {
            self.came.extend_from_slice(part);
        }
    }
}

/// The rings of one NIC queue and the ownership of their frames.
///
/// `receive_frames` frames are reserved for receiving and never used for sending, so that neither
/// direction starves the other.
#[derive(Debug)]
pub(super) struct FrameExchange<R> {
    rings: R,
    ledger: Ledger,
    receive_frames: u32,
    /// Frame being written by the caller.
    room: Option<XdpFrame>,
    long: Option<LongPacket>,
    /// Frames that a packet may take.
    frames_max: usize,
    /// Written frames; `staged_packets` assigns them to packets.
    staged: Vec<XdpFrame>,
    staged_packets: Vec<FramePacket>,
    /// The transmit ring has packets that the kernel was not notified of, or left behind.
    needs_kick: bool,
    /// Packet being read by the caller.
    reading: Option<Reading>,
    batch: [FramePacket; BATCH],
    next: usize,
    end: usize,
    /// A multi-frame packet is incomplete.
    is_inside_split: bool,
    /// Packets of more frames than supported, which no peer sends.
    pub(super) split: u64,
    /// System calls made.
    pub(super) calls: u64,
}

impl<R: FrameRings> FrameExchange<R> {
    /// Takes over rings of `frames` frames, of which `receive_frames` are for receiving.
    /// Multi-frame packets are sent and received up to `long_bytes`; 0: not at all.
    pub(super) fn new(rings: R, frames: u32, receive_frames: u32, long_bytes: usize) -> Self {
        debug_assert!(receive_frames < frames);
        let frames_max = long_bytes.div_ceil(rings.frame_bytes()).max(1);
        let mut exchange = Self {
            rings,
            ledger: Ledger::new(frames),
            receive_frames,
            room: None,
            long: (long_bytes > 0).then(|| LongPacket::new(long_bytes)),
            frames_max,
            staged: Vec::with_capacity(BATCH),
            staged_packets: Vec::with_capacity(BATCH),
            needs_kick: false,
            reading: None,
            batch: [FramePacket::default(); BATCH],
            next: 0,
            end: 0,
            is_inside_split: false,
            split: 0,
            calls: 0,
        };
        exchange.refill();
        exchange
    }

    /// Number of frames by owner.
    pub(super) fn counts(&self) -> FrameCounts {
        self.ledger.counts()
    }

    pub(super) fn fd(&self) -> RawFd {
        self.rings.fd()
    }

    // ---- Sending ----

    /// A buffer for a packet, the same until it is staged; `None`: no frame is free. It is a frame,
    /// unless packets may be longer.
    #[inline]
    pub(super) fn room(&mut self) -> Option<&mut [u8]> {
        if self.long.is_some() {
            return self.long_room();
        }
        if self.room.is_none() {
            self.take_room()?;
        }
        self.written()
    }

    /// The buffer returned last.
    #[inline]
    pub(super) fn written(&mut self) -> Option<&mut [u8]> {
        match (&mut self.room, &mut self.long) {
            (Some(frame), _) => Some(self.rings.bytes(frame)),
            (None, long) => long.as_mut().map(|long| &mut long.room[..]),
        }
    }

    #[inline]
    fn take_room(&mut self) -> Option<()> {
        if self.is_full() {
            return None;
        }
        if self.ledger.counts().sending > UNREAPED_MAX {
            self.reap();
        }
        let counts = self.ledger.counts();
        if counts.free <= self.receive_frames.saturating_sub(counts.filled) {
            return None;
        }
        self.room = self.ledger.take();
        self.room.is_some().then_some(())
    }

    /// Whether no more can be staged before [`Self::flush`].
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.staged.len() + self.frames_max > BATCH
    }

    #[inline(never)]
    fn long_room(&mut self) -> Option<&mut [u8]> {
        if self.ledger.counts().sending > UNREAPED_MAX {
            self.reap();
        }
        let counts = self.ledger.counts();
        let reserved = self.receive_frames.saturating_sub(counts.filled);
        if self.is_full() || counts.free < reserved + self.frames_max as u32 {
            return None;
        }
        self.long.as_mut().map(|long| &mut long.room[..])
    }

    /// Copies the buffer into as many frames as it takes.
    #[inline(never)]
    fn stage_long(&mut self, length: usize) {
        let Some(long) = &self.long else { return };
        let frame_bytes = self.rings.frame_bytes();
        let packet = &long.room[..length];
        let mut left = packet.chunks(frame_bytes).peekable();
        while let Some(part) = left.next() {
            // As many were free when the buffer was returned, and none was taken since.
            let Some(mut frame) = self.ledger.take() else { return };
            self.rings.bytes(&mut frame)[..part.len()].copy_from_slice(part);
            let (index, length) = (frame.index(), part.len() as u32);
            let has_more = left.peek().is_some();
            self.staged_packets.push(FramePacket { index, length, has_more });
            self.staged.push(frame);
        }
    }

    /// Stages the first `length` bytes of the buffer for the next [`Self::flush`].
    #[inline]
    pub(super) fn stage(&mut self, length: usize) {
        if self.long.is_some() {
            return self.stage_long(length);
        }
        let Some(frame) = self.room.take() else { return };
        let packet = FramePacket { index: frame.index(), length: length as u32, has_more: false };
        self.staged_packets.push(packet);
        self.staged.push(frame);
    }

    /// Whether [`Self::flush`] has something to do.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        self.needs_kick || !self.staged.is_empty()
    }

    /// Submits staged packets to the kernel, as far as it takes them; later calls submit the rest.
    ///
    /// # Errors
    ///
    /// The queue or its NIC is gone, or down.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        for _ in 0..KICKS_MAX {
            if !self.is_behind() {
                break;
            }
            let taken = self.rings.transmit(&self.staged_packets);
            self.submit_tx(taken);
            self.needs_kick |= taken > 0;
            self.calls += 1;
            match self.rings.kick() {
                Ok(()) => self.needs_kick = false,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.needs_kick = true,
                Err(error) => return Err(error),
            }
            if self.is_behind() {
                self.reap();
            }
        }
        Ok(())
    }

    /// Moves the frames of the first `taken` packets to the kernel.
    #[inline]
    fn submit_tx(&mut self, taken: usize) {
        if taken == self.staged.len() {
            while let Some(frame) = self.staged.pop() {
                self.ledger.lend(frame, FrameOwner::Transmit);
            }
            return self.staged_packets.clear();
        }
        for frame in self.staged.drain(..taken) {
            self.ledger.lend(frame, FrameOwner::Transmit);
        }
        self.staged_packets.drain(..taken);
    }

    /// Reclaims frames that were sent.
    pub(super) fn reap(&mut self) {
        let mut indices = [0; BATCH];
        loop {
            let count = self.rings.completed(&mut indices);
            for &index in &indices[..count] {
                if let Some(frame) = self.ledger.reclaim(index, FrameOwner::Transmit) {
                    self.ledger.put_back(frame);
                }
            }
            if count < BATCH {
                return;
            }
        }
    }

    // ---- Receiving ----

    /// Whether a packet is present.
    pub(super) fn has_received(&mut self) -> bool {
        self.next < self.end || self.rings.has_received()
    }

    /// The next received packet; its bytes are valid until the next call.
    #[inline]
    pub(super) fn receive(&mut self) -> Option<&mut [u8]> {
        if let Some(Reading::Frame(frame, _)) = self.reading.take() {
            self.ledger.put_back(frame);
        }
        loop {
            if self.next == self.end && !self.fetch() {
                return None;
            }
            let packet = self.batch[self.next];
            self.next += 1;
            let Some(frame) = self.ledger.reclaim(packet.index, FrameOwner::Fill) else {
                // The packet that this frame belongs to is incomplete.
                if let Some(long) = &mut self.long {
                    long.is_too_long = true;
                }
                continue;
            };
            if !packet.has_more && !self.is_inside_split {
                self.reading = Some(Reading::Frame(frame, packet.length));
                return self.reading();
            }
            if self.take_part(frame, packet) {
                self.reading = Some(Reading::Long);
                return self.reading();
            }
        }
    }

    /// Reads the receive ring. The fill ring is refilled with the next poll, as a latency-critical
    /// packet may be waiting. `false`: the ring is empty.
    fn fetch(&mut self) -> bool {
        let found_some = self.end > 0;
        if found_some {
            self.refill();
        }
        (self.next, self.end) = (0, 0);
        if self.rings.has_received() {
            self.end = self.rings.received(&mut self.batch);
        } else if !found_some {
            self.refill();
        }
        self.end > 0
    }

    /// Makes the kernel poll the NIC, if it needs a wake-up.
    pub(super) fn drive(&mut self) {
        self.calls += 1;
        // An error will show when something is sent.
        let _ = self.rings.wake();
    }

    /// Adds one frame of a multi-frame packet. `true`: the packet is complete.
    fn take_part(&mut self, mut frame: XdpFrame, packet: FramePacket) -> bool {
        let is_first = !mem::replace(&mut self.is_inside_split, packet.has_more);
        let mut is_whole = false;
        if let Some(long) = &mut self.long {
            long.take_part(self.rings.packet(&mut frame, packet.length), is_first);
            is_whole = !packet.has_more && !long.is_too_long;
        }
        self.ledger.put_back(frame);
        self.split += u64::from(!packet.has_more && !is_whole);
        is_whole
    }

    /// The packet that [`Self::receive`] found.
    #[inline]
    pub(super) fn reading(&mut self) -> Option<&mut [u8]> {
        match self.reading.as_mut()? {
            Reading::Frame(frame, length) => Some(self.rings.packet(frame, *length)),
            Reading::Long => self.long.as_mut().map(|long| &mut long.came[..]),
        }
    }

    /// Refills the fill ring with free frames, in batches.
    #[inline]
    pub(super) fn refill(&mut self) {
        if self.may_fill() {
            self.fill();
        }
        if self.rings.sleeps() {
            self.calls += 1;
            // An error will show when something is sent.
            let _ = self.rings.wake();
        }
    }

    #[inline]
    fn may_fill(&self) -> bool {
        let counts = self.ledger.counts();
        let missing = self.receive_frames.saturating_sub(counts.filled);
        missing >= FILL_BATCH.min(self.receive_frames) && counts.free >= FILL_BATCH
    }

    #[inline(never)]
    fn fill(&mut self) {
        while self.may_fill() {
            let mut frames: [Option<XdpFrame>; FILL_BATCH as usize] = Default::default();
            let mut indices = [0; FILL_BATCH as usize];
            for (frame, index) in frames.iter_mut().zip(&mut indices) {
                *frame = self.ledger.take();
                *index = frame.as_ref().map_or(0, XdpFrame::index);
            }
            let taken = self.rings.fill(&indices);
            for (place, frame) in frames.iter_mut().enumerate() {
                match mem::take(frame) {
                    Some(frame) if place < taken => self.ledger.lend(frame, FrameOwner::Fill),
                    Some(frame) => self.ledger.put_back(frame),
                    None => {}
                }
            }
            if taken < indices.len() {
                break;
            }
        }
    }
}

#[cfg(test)]
impl<R> FrameExchange<R> {
    pub(super) fn rings(&mut self) -> &mut R {
        &mut self.rings
    }
}
