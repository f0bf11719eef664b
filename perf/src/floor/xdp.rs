//! Bare AF_XDP: frames made by hand, no engine, no socket of the kernel's stack.

use std::ffi::CString;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::num::NonZeroU32;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use etherparse::PacketBuilder;
use ringrail_xdp::{AttachMode, Claim, Nic};
use xsk_rs::config::{
    BindFlags, FrameSize, Interface, LibxdpFlags, QueueSize, SocketConfig, UmemConfig,
};
use xsk_rs::umem::frame::FrameDesc;
use xsk_rs::{CompQueue, FillQueue, RxQueue, Socket, TxQueue, Umem};

use super::report;
use crate::link::{Job, Link};
use crate::output::{Report, histogram};
use crate::stamp;

/// The longest message in bytes.
pub(super) const SIZE_MAX: usize = 64 << 10;
/// What one frame holds at most, in bytes: an Ethernet frame of usual length less the headers of
/// IPv6 and UDP.
const FRAME_MAX: usize = 1452;
/// Iterations that are not counted.
const WARM_UP: u64 = 1000;
/// Frames of 4 KiB: those of the longest message, and as many to receive it.
const FRAMES: u32 = 128;
/// How long a frame may be under way.
const PATIENCE: Duration = Duration::from_secs(2);
/// Looks at the ring between two looks at the clock.
const SPINS: u32 = 1 << 14;

/// One side: a queue, its frames, and the headers of what it sends.
struct Side {
    claim: Option<Claim>,
    transmit: TxQueue,
    receive: RxQueue,
    fill: FillQueue,
    complete: CompQueue,
    umem: Umem,
    /// The frames of a message.
    outgoing: Vec<FrameDesc>,
    /// Bytes before the payload of each.
    header_bytes: usize,
    mode: String,
}

/// Ping-pong of frames between the addresses of two connected sockets.
pub(super) fn latency(
    socket: &UdpSocket,
    link: &mut Link,
    job: &Job,
    is_server: bool,
) -> Result<Report, String> {
    let mut side = Side::open(socket, link, job.size.max(1))?;
    link.barrier()?;
    let mut histogram = histogram();
    let mut verified = true;
    for number in 0..job.iters + WARM_UP {
        if !is_server {
            job.compute();
        }
        let start = Instant::now();
        if is_server {
            verified &= side.receive(number)?;
            side.send(number)?;
            continue;
        }
        side.send(number)?;
        verified &= side.receive(number)?;
        if number >= WARM_UP {
            histogram.saturating_record((start.elapsed().as_nanos() / 2) as u64);
        }
    }
    let mut report = report(job, "xdp-latency");
    report.lanes = vec![format!("raw:xdp ({})", side.mode)];
    if !is_server {
        report.latencies(&histogram);
    }
    report.verified = verified;
    // What arrives now is the kernel's again.
    side.claim = None;
    link.barrier()?;
    Ok(report)
}

impl Side {
    fn open(socket: &UdpSocket, link: &mut Link, size: usize) -> Result<Self, String> {
        let local = socket.local_addr().map_err(text)?;
        let remote = socket.peer_addr().map_err(text)?;
        let (index, mac) = nic_of(local.ip())?;
        link.put(&mac)?;
        let their_mac: [u8; 6] = link.get()?;
        let nic = Nic::join(index, AttachMode::Auto).map_err(text)?;
        let payloads = (0..size).step_by(FRAME_MAX).map(|at| FRAME_MAX.min(size - at));
        let framed = |bytes| Ok((headers(local, remote, mac, their_mac, bytes)?, bytes));
        let headers: Result<Vec<(Vec<u8>, usize)>, String> = payloads.map(framed).collect();
        let headers = headers?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Self::bind(&nic, local, &headers) {
                // The round before has just left the queue.
                Err(error)
                    if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(2));
                }
                bound => return bound.map_err(|error| format!("floor: AF_XDP: {error}")),
            }
        }
    }

    /// `headers` are those of the frames of a message, each with the bytes of its payload.
    fn bind(nic: &Nic, local: SocketAddr, headers: &[(Vec<u8>, usize)]) -> io::Result<Self> {
        let ring = QueueSize::new(FRAMES).map_err(io::Error::other)?;
        let config = UmemConfig::builder()
            .frame_size(FrameSize::new(4096).map_err(io::Error::other)?)
            .fill_queue_size(ring)
            .comp_queue_size(ring)
            .build()
            .map_err(io::Error::other)?;
        let count = NonZeroU32::new(FRAMES).ok_or(io::ErrorKind::InvalidInput)?;
        let (umem, mut frames) = Umem::new(config, count, false).map_err(cause)?;
        let config = SocketConfig::builder()
            .rx_queue_size(ring)
            .tx_queue_size(ring)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .bind_flags(BindFlags::XDP_USE_NEED_WAKEUP | BindFlags::XDP_COPY)
            .build();
        let interface = Interface::new(CString::new(nic.name())?);
        // SAFETY: this is the only socket of the memory, so nobody else has its frames.
        let made = unsafe { Socket::new(config, &umem, &interface, 0) }.map_err(cause)?;
        let (transmit, receive, shared) = made;
        let (mut fill, complete) =
            shared.ok_or_else(|| io::Error::other("the kernel gave no rings"))?;
        let mut outgoing = frames.split_off(frames.len().saturating_sub(headers.len()));
        for (frame, (headers, payload)) in outgoing.iter_mut().zip(headers) {
            // SAFETY: the frame is in no ring.
            let mut data = unsafe { umem.data_mut(frame) };
            data.cursor().set_pos(headers.len() + payload);
            data.contents_mut()[..headers.len()].copy_from_slice(headers);
        }
        // SAFETY: these frames are in no other ring, and nobody touches them.
        unsafe { fill.produce(&frames) };
        let claim = nic.claim(0, local, transmit.fd().as_raw_fd()).map_err(io::Error::other)?;
        let header_bytes = headers.first().map_or(0, |(headers, _)| headers.len());
        let mode = nic.mode().to_string();
        let claim = Some(claim);
        Ok(Self { claim, transmit, receive, fill, complete, umem, outgoing, header_bytes, mode })
    }

    /// Sends a message whose frames are stamped, and takes the frames back.
    fn send(&mut self, number: u64) -> Result<(), String> {
        for frame in &mut self.outgoing {
            // SAFETY: the frame is in no ring: it was taken back before.
            let mut data = unsafe { self.umem.data_mut(frame) };
            stamp::write(&mut data.contents_mut()[self.header_bytes..], number);
        }
        // SAFETY: the frames are in no other ring, and not touched before they are taken back.
        while unsafe { self.transmit.produce(&self.outgoing) } == 0 {}
        let (start, mut left) = (Instant::now(), self.outgoing.len());
        let mut done = FrameDesc::default();
        loop {
            self.transmit.wakeup().map_err(text)?;
            // SAFETY: what is taken back is a frame that was sent.
            while left > 0 && unsafe { self.complete.consume_one(&mut done) } > 0 {
                left -= 1;
            }
            if left == 0 {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err("floor: the NIC does not send".to_owned());
            }
        }
    }

    /// Waits for all frames of a message; whether their payloads are those with this number.
    fn receive(&mut self, number: u64) -> Result<bool, String> {
        let mut is_right = true;
        for _ in 0..self.outgoing.len() {
            is_right &= self.await_stamp(number)?;
        }
        Ok(is_right)
    }

    /// Waits for a frame; whether its payload is one of the message with this number.
    fn await_stamp(&mut self, number: u64) -> Result<bool, String> {
        let start = Instant::now();
        let mut frame = FrameDesc::default();
        loop {
            for _ in 0..SPINS {
                // SAFETY: the frame is the kernel's until here, and ours until it is lent again.
                if unsafe { self.receive.consume_one(&mut frame) } == 0 {
                    std::hint::spin_loop();
                    continue;
                }
                let is_right = {
                    // SAFETY: as above.
                    let data = unsafe { self.umem.data(&frame) };
                    let payload = data.contents().get(self.header_bytes..);
                    payload.is_some_and(|payload| stamp::check(payload, number))
                };
                // SAFETY: nothing refers to the frame any more.
                unsafe { self.fill.produce_one(&frame) };
                return Ok(is_right);
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("floor: a frame of message {number} was lost on the way"));
            }
        }
    }
}

/// Index and Ethernet address of the NIC with an address.
fn nic_of(ip: IpAddr) -> Result<(u32, [u8; 6]), String> {
    let nics = ringrail::topology::nics().map_err(text)?;
    let nic = nics.iter().find(|nic| nic.addresses.contains(&ip));
    let nic = nic.ok_or_else(|| format!("floor: no NIC has the address {ip}"))?;
    let path = format!("/sys/class/net/{}/address", nic.name);
    let mac = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let bytes = mac.trim().split(':').map(|byte| u8::from_str_radix(byte, 16));
    let bytes: Vec<u8> = bytes.collect::<Result<_, _>>().map_err(text)?;
    let mac = bytes.try_into().map_err(|_| format!("floor: {} is no Ethernet NIC", nic.name))?;
    Ok((nic.index, mac))
}

/// Headers of every frame; the UDP checksum is that of no frame in particular, so it says none.
fn headers(
    local: SocketAddr,
    remote: SocketAddr,
    mac: [u8; 6],
    their_mac: [u8; 6],
    size: usize,
) -> Result<Vec<u8>, String> {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (local.ip(), remote.ip()) else {
        return Err("floor xdp-latency speaks IPv4 alone".to_owned());
    };
    let builder = PacketBuilder::ethernet2(mac, their_mac)
        .ipv4(from.octets(), to.octets(), 64)
        .udp(local.port(), remote.port());
    let mut frame = Vec::new();
    builder.write(&mut frame, &vec![0; size]).map_err(text)?;
    frame.truncate(frame.len() - size);
    if let [.., high, low] = &mut frame[..] {
        (*high, *low) = (0, 0);
    }
    Ok(frame)
}

fn text(error: impl ToString) -> String {
    format!("floor: {}", error.to_string())
}

/// What the kernel said of something that the crate words in general.
fn cause(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    let code = std::error::Error::source(&error)
        .and_then(|source| source.downcast_ref::<io::Error>())
        .and_then(io::Error::raw_os_error);
    code.map_or_else(|| io::Error::other(error), io::Error::from_raw_os_error)
}
