//! The kernel's rings of a socket that `ringrail-xdpd` has opened, and will bind.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::slice;

use rustix::net::sockopt;
use rustix::net::xdp::{
    XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING,
    XdpUmemReg, XdpUmemRegFlags,
};

use super::frame::XdpFrame;
use super::mapped::{MappedRing, RingMapping};
use super::rings::{FramePacket, FrameRings};
use super::socket::{FRAME_BYTES, HAS_MORE, PACKET_BYTES, kick, wake};
use crate::forks::EngineFd;

/// Offset of received packets in a frame, reserved by the kernel.
const HEADROOM_BYTES: usize = FRAME_BYTES as usize - PACKET_BYTES;

/// Frames and rings of a socket that is bound to a queue later.
#[derive(Debug)]
pub(super) struct LeasedRings {
    transmit: MappedRing<libc::xdp_desc>,
    receive: MappedRing<libc::xdp_desc>,
    fill: MappedRing<u64>,
    complete: MappedRing<u64>,
    // Closed before the memory goes.
    socket: EngineFd,
    memory: RingMapping,
    /// Offset of the last packet in each frame.
    starts: Box<[u16]>,
}

/// Registers memory for `frames` frames, once per socket.
///
/// # Errors
///
/// `ENOBUFS`: more memory than this user may lock; retry with fewer frames.
pub(super) fn register(socket: &OwnedFd, frames: u32) -> io::Result<RingMapping> {
    let memory = RingMapping::anonymous(frames as usize * FRAME_BYTES as usize)?;
    let register = XdpUmemReg {
        addr: memory.base() as u64,
        len: memory.bytes() as u64,
        chunk_size: FRAME_BYTES,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(socket, register)?;
    Ok(memory)
}

impl LeasedRings {
    /// Takes over a socket whose rings have `entries` each, with the registered memory.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub(super) fn new(socket: &OwnedFd, entries: u32, memory: RingMapping) -> io::Result<Self> {
        let offsets = sockopt::xdp_mmap_offsets(socket)?;
        let fd = socket.as_fd();
        let frames = memory.bytes() / FRAME_BYTES as usize;
        Ok(Self {
            transmit: MappedRing::map(fd, &offsets.tx, entries, XDP_PGOFF_TX_RING)?,
            receive: MappedRing::map(fd, &offsets.rx, entries, XDP_PGOFF_RX_RING)?,
            fill: MappedRing::map(fd, &offsets.fr, entries, XDP_UMEM_PGOFF_FILL_RING)?,
            complete: MappedRing::map(fd, &offsets.cr, entries, XDP_UMEM_PGOFF_COMPLETION_RING)?,
            socket: EngineFd::new(socket.try_clone()?),
            memory,
            starts: vec![0; frames].into(),
        })
    }

    /// `length` bytes of a frame from `start`, truncated at its end.
    fn slice(&mut self, frame: &mut XdpFrame, start: usize, length: usize) -> &mut [u8] {
        let frame_bytes = FRAME_BYTES as usize;
        let start = start.min(frame_bytes);
        let length = length.min(frame_bytes - start);
        let at = frame.index() as usize * frame_bytes + start;
        assert!(at + length <= self.memory.bytes(), "frame index out of range");
        // SAFETY: inside the memory; the owner of the handle owns the frame, and it is borrowed
        // exclusively, as are the rings that keep the memory.
        unsafe { slice::from_raw_parts_mut(self.memory.base().add(at), length) }
    }
}

/// The frame of an address from the kernel; an invalid index if the address is out of range.
fn index_of(addr: u64) -> u32 {
    u32::try_from(addr / u64::from(FRAME_BYTES)).unwrap_or(u32::MAX)
}

fn addr_of(index: u32) -> u64 {
    u64::from(index) * u64::from(FRAME_BYTES)
}

impl FrameRings for LeasedRings {
    fn fill(&mut self, indices: &[u32]) -> usize {
        self.fill.put(indices.len(), |at| addr_of(indices[at]))
    }

    fn transmit(&mut self, packets: &[FramePacket]) -> usize {
        self.transmit.put(packets.len(), |at| libc::xdp_desc {
            addr: addr_of(packets[at].index) + HEADROOM_BYTES as u64,
            len: packets[at].length,
            options: 0,
        })
    }

    fn completed(&mut self, into: &mut [u32]) -> usize {
        self.complete.take(into.len(), |at, addr| into[at] = index_of(addr))
    }

    fn received(&mut self, into: &mut [FramePacket]) -> usize {
        let starts = &mut self.starts;
        self.receive.take(into.len(), |at, desc| {
            let index = index_of(desc.addr);
            let start = (desc.addr % u64::from(FRAME_BYTES)) as u16;
            // A packet beyond its frame would be a kernel bug; it is skipped.
            let fits = u32::from(start).saturating_add(desc.len) <= FRAME_BYTES;
            if let Some(known) = starts.get_mut(index as usize) {
                *known = start;
            }
            let length = if fits { desc.len } else { 0 };
            into[at] = FramePacket { index, length, has_more: desc.options & HAS_MORE != 0 };
        })
    }

    fn has_received(&mut self) -> bool {
        self.receive.has_some()
    }

    fn sleeps(&self) -> bool {
        self.fill.needs_wakeup()
    }

    fn wake(&mut self) -> io::Result<()> {
        wake(self.fd())
    }

    fn kick(&mut self) -> io::Result<()> {
        if self.transmit.needs_wakeup() { kick(self.fd()) } else { Ok(()) }
    }

    fn frame_bytes(&self) -> usize {
        PACKET_BYTES
    }

    fn bytes(&mut self, frame: &mut XdpFrame) -> &mut [u8] {
        self.slice(frame, HEADROOM_BYTES, FRAME_BYTES as usize)
    }

    fn packet(&mut self, frame: &mut XdpFrame, length: u32) -> &mut [u8] {
        let start = self.starts[frame.index() as usize];
        self.slice(frame, start.into(), length as usize)
    }

    fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
