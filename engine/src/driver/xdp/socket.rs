//! The kernel's rings, by `xsk-rs`.

use std::ffi::CString;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd as _, RawFd};
use std::slice;
use std::thread;
use std::time::{Duration, Instant};

use xsk_rs::config::{
    BindFlags, FrameSize, Interface, LibxdpFlags, QueueSize, SocketConfig, UmemConfig,
};
use xsk_rs::umem::frame::FrameDesc;
use xsk_rs::{CompQueue, FillQueue, RxQueue, Socket, TxQueue, Umem};

use super::super::calls;
use super::exchange::BATCH;
use super::frame::XdpFrame;
use super::rings::{FramePacket, FrameRings};
use crate::forks::Registration;

/// Bytes of a frame: one page, the longest that the kernel takes without huge pages.
pub(super) const FRAME_BYTES: u32 = 4096;
/// Of these, bytes for a packet; the rest is `XDP_PACKET_HEADROOM`.
pub(super) const PACKET_BYTES: usize = FRAME_BYTES as usize - 256;
/// Descriptor option `XDP_PKT_CONTD`: the packet continues in the next descriptor.
pub(super) const HAS_MORE: u32 = 1;
/// How long to wait for a queue that was bound before: the kernel releases it some 20 ms after the
/// last descriptor was closed.
pub(super) const BUSY_FOR: Duration = Duration::from_secs(1);
const BUSY_PAUSE: Duration = Duration::from_millis(2);

/// Frames, bound to one queue of a NIC.
#[derive(Debug)]
pub(super) struct XskRings {
    /// Its socket, which the queues close: children have no copy of it.
    _registration: Registration,
    // Queues go first: the memory stays until the kernel is through with it.
    transmit: TxQueue,
    receive: RxQueue,
    fill: FillQueue,
    complete: CompQueue,
    umem: Umem,
    /// The whole packet part of each frame.
    whole: Box<[FrameDesc]>,
    /// The last packet in each frame.
    packets: Box<[FrameDesc]>,
    descs: [FrameDesc; BATCH],
}

/// Transfer mode of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Copying {
    /// The kernel copies: any NIC.
    Copy,
    /// Zero copy; fails on NICs without support.
    Zero,
}

impl XskRings {
    /// Binds `frames` frames to `queue` of the NIC named `nic`, with multi-frame packets if
    /// `is_long` (Linux 6.6). `is_patient`: a busy queue is retried for a second.
    ///
    /// # Errors
    ///
    /// Permissions, memory, or `EBUSY` if another process has the queue.
    pub(super) fn open(
        nic: &str,
        queue: u32,
        frames: u32,
        (copying, is_long): (Copying, bool),
        is_patient: bool,
    ) -> io::Result<Self> {
        let deadline = Instant::now() + BUSY_FOR;
        loop {
            match Self::try_open(nic, queue, frames, (copying, is_long)) {
                Err(error)
                    if error.raw_os_error() == Some(libc::EBUSY)
                        && is_patient
                        && Instant::now() < deadline =>
                {
                    thread::sleep(BUSY_PAUSE);
                }
                opened => return opened,
            }
        }
    }

    fn try_open(
        nic: &str,
        queue: u32,
        frames: u32,
        (copying, is_long): (Copying, bool),
    ) -> io::Result<Self> {
        let ring = QueueSize::new(frames.next_power_of_two()).map_err(io::Error::other)?;
        let umem_config = UmemConfig::builder()
            .frame_size(FrameSize::new(FRAME_BYTES).map_err(io::Error::other)?)
            .fill_queue_size(ring)
            .comp_queue_size(ring)
            .build()
            .map_err(io::Error::other)?;
        let count = NonZeroU32::new(frames).ok_or(io::ErrorKind::InvalidInput)?;
        let (umem, whole) = Umem::new(umem_config, count, false).map_err(cause)?;
        let copy_flag = match copying {
            Copying::Copy => BindFlags::XDP_COPY,
            Copying::Zero => BindFlags::XDP_ZEROCOPY,
        };
        let long_flag = if is_long { BindFlags::XDP_USE_SG } else { BindFlags::empty() };
        let config = SocketConfig::builder()
            .rx_queue_size(ring)
            .tx_queue_size(ring)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .bind_flags(BindFlags::XDP_USE_NEED_WAKEUP | copy_flag | long_flag)
            .build();
        let interface = Interface::new(CString::new(nic)?);
        // SAFETY: this is the only socket of the memory, so no other owns its frames.
        let made = unsafe { Socket::new(config, &umem, &interface, queue) };
        let (transmit, receive, shared) = made.map_err(cause)?;
        let (fill, complete) =
            shared.ok_or_else(|| io::Error::other("the kernel gave no rings of its own"))?;
        let whole: Box<[FrameDesc]> = whole.into();
        let packets = whole.clone();
        let descs = [FrameDesc::default(); BATCH];
        let _registration = Registration::of(transmit.fd().as_raw_fd());
        Ok(Self { _registration, transmit, receive, fill, complete, umem, whole, packets, descs })
    }
}

impl XskRings {
    /// The descriptor of a packet to be sent.
    #[inline]
    fn described(&self, packet: &FramePacket) -> FrameDesc {
        let mut desc = self.whole[packet.index as usize];
        desc.set_options(if packet.has_more { HAS_MORE } else { 0 });
        // SAFETY: the frame is the caller's, which is about to submit it; the slice is not used.
        let mut data = unsafe { self.umem.data_mut(&mut desc) };
        data.cursor().set_pos(packet.length as usize);
        desc
    }
}

/// Makes the kernel process the fill ring.
pub(super) fn wake(socket: RawFd) -> io::Result<()> {
    // SAFETY: a null buffer of no bytes is what the kernel wants here.
    let rc = unsafe {
        calls::recvfrom(
            socket,
            std::ptr::null_mut(),
            0,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes the kernel process the transmit ring. `WouldBlock`: some packets are left, repeat.
pub(super) fn kick(socket: RawFd) -> io::Result<()> {
    // SAFETY: a null buffer of no bytes is what the kernel wants here.
    let rc = unsafe {
        calls::sendto(socket, std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
    };
    if rc >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => {
            Err(io::ErrorKind::WouldBlock.into())
        }
        _ => Err(error),
    }
}

/// The kernel's error inside an error of the crate.
fn cause(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    let code = std::error::Error::source(&error)
        .and_then(|source| source.downcast_ref::<io::Error>())
        .and_then(io::Error::raw_os_error);
    match code {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::other(error),
    }
}

/// The frame of an address from the kernel.
fn index_of(desc: &FrameDesc) -> u32 {
    (desc.addr() / FRAME_BYTES as usize) as u32
}

impl FrameRings for XskRings {
    fn fill(&mut self, indices: &[u32]) -> usize {
        let room = self.fill.nb_free(indices.len() as u32) as usize;
        let count = indices.len().min(room).min(BATCH);
        for (desc, &index) in self.descs.iter_mut().zip(&indices[..count]) {
            *desc = self.whole[index as usize];
        }
        // SAFETY: the caller owned these frames of this memory and lends them.
        unsafe { self.fill.produce(&self.descs[..count]) }
    }

    #[inline]
    fn transmit(&mut self, packets: &[FramePacket]) -> usize {
        if let [packet] = packets {
            let desc = self.described(packet);
            // SAFETY: the caller owned this frame of this memory and lends it.
            return unsafe { self.transmit.produce_one(&desc) };
        }
        let room = self.transmit.nb_free(packets.len() as u32) as usize;
        let count = packets.len().min(room).min(BATCH);
        for (at, packet) in packets[..count].iter().enumerate() {
            self.descs[at] = self.described(packet);
        }
        // SAFETY: the caller owned these frames of this memory and lends them.
        unsafe { self.transmit.produce(&self.descs[..count]) }
    }

    fn completed(&mut self, into: &mut [u32]) -> usize {
        let limit = into.len().min(BATCH);
        // SAFETY: what comes back is booked by the caller before anything is made of it.
        let count = unsafe { self.complete.consume(&mut self.descs[..limit]) };
        for (place, desc) in into.iter_mut().zip(&self.descs[..count]) {
            *place = index_of(desc);
        }
        count
    }

    #[inline]
    fn received(&mut self, into: &mut [FramePacket]) -> usize {
        let limit = into.len().min(BATCH);
        // SAFETY: what comes back is booked by the caller before anything is made of it.
        let count = unsafe { self.receive.consume(&mut self.descs[..limit]) };
        for (place, desc) in into.iter_mut().zip(&self.descs[..count]) {
            let index = index_of(desc);
            let length = desc.lengths().data();
            let end = desc.addr() % FRAME_BYTES as usize + length;
            // A packet beyond its frame would be a kernel bug; it is skipped.
            let length = if end <= FRAME_BYTES as usize { length as u32 } else { 0 };
            if let Some(packet) = self.packets.get_mut(index as usize) {
                *packet = *desc;
            }
            *place = FramePacket { index, length, has_more: desc.has_more_frames() };
        }
        count
    }

    #[inline]
    fn has_received(&mut self) -> bool {
        self.receive.nb_avail(1) > 0
    }

    #[inline]
    fn sleeps(&self) -> bool {
        self.fill.needs_wakeup()
    }

    fn wake(&mut self) -> io::Result<()> {
        wake(self.fd())
    }

    #[inline]
    fn kick(&mut self) -> io::Result<()> {
        if self.transmit.needs_wakeup() { kick(self.fd()) } else { Ok(()) }
    }

    fn frame_bytes(&self) -> usize {
        PACKET_BYTES
    }

    #[inline]
    fn bytes(&mut self, frame: &mut XdpFrame) -> &mut [u8] {
        let desc = &mut self.whole[frame.index() as usize];
        // SAFETY: the owner of the handle owns the frame, and it is borrowed exclusively.
        let mut data = unsafe { self.umem.data_mut(desc) };
        data.cursor().set_pos(usize::MAX);
        let bytes = data.contents_mut();
        let (start, length) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: the same bytes for as long as the handle and the rings are borrowed; the memory
        // stays with the rings.
        unsafe { slice::from_raw_parts_mut(start, length) }
    }

    #[inline]
    fn packet(&mut self, frame: &mut XdpFrame, length: u32) -> &mut [u8] {
        let desc = &mut self.packets[frame.index() as usize];
        // SAFETY: the owner of the handle owns the frame, and it is borrowed exclusively; the
        // address is inside it (`received`).
        let mut data = unsafe { self.umem.data_mut(desc) };
        data.cursor().set_pos(length as usize);
        let bytes = data.contents_mut();
        let (start, length) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: as in `bytes`.
        unsafe { slice::from_raw_parts_mut(start, length) }
    }

    #[inline]
    fn fd(&self) -> RawFd {
        self.transmit.fd().as_raw_fd()
    }
}
