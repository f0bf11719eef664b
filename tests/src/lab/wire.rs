//! A wire in user space: a thread that takes frames from a port of the switch, keeps them for the
//! delay of their rail, and sends them by the port of the other host.
//!
//! For what the kernel here cannot do: delays that change while the lab runs, and translation of
//! addresses. It is a third one that works, so nothing is measured with it. Packets are taken
//! behind the gate of their port, which counts and drops as ever, and leave by the port's limit of
//! its rate. They keep their order, and segmentation offload stays (`PACKET_VNET_HDR`). The thread
//! ends with the lab.

use std::collections::VecDeque;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::LabError;
use super::nat::Nat;

/// `struct virtio_net_hdr`, before each frame; its first byte has flags.
const HEADER_BYTES: usize = 10;
/// The checksum is to be completed by the NIC (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
const IS_PARTIAL: u8 = 1;
/// Both addresses, and the kind of what follows.
const ETHERNET_BYTES: usize = 14;
/// The longest frame of segmentation offload, with its headers.
const FRAME_BYTES_MAX: usize = HEADER_BYTES + ETHERNET_BYTES + 65_536 + 64;
/// What waits for the thread in the kernel at the most, in bytes.
const WAITING_BYTES: libc::c_int = 32 << 20;
/// What is taken from one socket before others have their turn.
const PACKETS_AT_ONCE: usize = 64;
/// What is under way in one direction of a rail at the most, in bytes.
const UNDER_WAY_BYTES_MAX: usize = 256 << 20;
/// How often the thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);

/// A rail that the wire joins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joint {
    /// Indexes of the ports towards host a and host b.
    pub(crate) ports: [u32; 2],
    /// Host a's address and what it seems to be, if there is a translator.
    pub(crate) nat: Option<(Ipv4Addr, Ipv4Addr)>,
}

/// See the module. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Wire {
    delays_ns: Arc<[AtomicU64]>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// Joins ports of the calling thread's namespace. All rails have the same delay at first.
    pub(crate) fn lay(joints: &[Joint], delay: Duration) -> Result<Self, LabError> {
        let ways: Result<Vec<_>, _> = joints
            .iter()
            .enumerate()
            .flat_map(|(rail, joint)| [true, false].map(|is_from_a| (rail, joint, is_from_a)))
            .map(|(rail, joint, is_from_a)| Way::open(rail, joint.ports, is_from_a))
            .collect();
        let mut ways = ways.map_err(LabError::os("opening packet sockets in the lab's switch"))?;
        let mut nats: Vec<_> = joints
            .iter()
            .map(|joint| joint.nat.map(|(inside, outside)| Nat::new(inside, outside)))
            .collect();
        let delays_ns: Arc<[AtomicU64]> =
            joints.iter().map(|_| AtomicU64::new(nanoseconds(delay))).collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let (delays, over) = (Arc::clone(&delays_ns), Arc::clone(&is_over));
        let work = move || {
            while !over.load(Ordering::Relaxed) {
                forward(&mut ways, &mut nats, &delays, &over);
            }
        };
        let thread = std::thread::Builder::new().name("lab-wire".to_owned()).spawn(work);
        let thread = thread.map_err(LabError::os("starting a thread for the lab"))?;
        Ok(Self { delays_ns, is_over, thread: Some(thread) })
    }

    /// From now on a packet of `rail` takes so long, either way. Those under way are not overtaken.
    pub(crate) fn set_delay(&self, rail: u8, delay: Duration) {
        self.delays_ns[usize::from(rail)].store(nanoseconds(delay), Ordering::Relaxed);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been told already, and the packets were missed.
            let _ = thread.join();
        }
    }
}

fn nanoseconds(delay: Duration) -> u64 {
    delay.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// One direction of a rail.
#[derive(Debug)]
struct Way {
    rail: usize,
    is_from_a: bool,
    /// One for each protocol: sockets for all of them see what the gate drops, too.
    from: Vec<OwnedFd>,
    to: OwnedFd,
    to_index: u32,
    under_way: VecDeque<(Instant, Vec<u8>)>,
    under_way_bytes: usize,
}

impl Way {
    fn open(rail: usize, ports: [u32; 2], is_from_a: bool) -> io::Result<Self> {
        let [from, to] = if is_from_a { ports } else { [ports[1], ports[0]] };
        let kinds = [libc::ETH_P_IP, libc::ETH_P_ARP, libc::ETH_P_IPV6];
        let from_sockets = kinds.into_iter().map(|kind| socket(kind as u16, from));
        Ok(Self {
            rail,
            is_from_a,
            from: from_sockets.collect::<io::Result<_>>()?,
            to: socket(0, to)?,
            to_index: to,
            under_way: VecDeque::new(),
            under_way_bytes: 0,
        })
    }

    /// Takes some of what waits at the port. What there is no room for is lost, as in any switch.
    fn take(&mut self, nat: &mut Option<Nat>, delay: Duration, room: &mut [u8]) {
        for socket in &self.from {
            for _ in 0..PACKETS_AT_ONCE {
                let Some(length) = receive(socket, room) else { break };
                let bytes = &mut room[..length];
                if length < HEADER_BYTES + ETHERNET_BYTES {
                    continue;
                }
                let (header, frame) = bytes.split_at_mut(HEADER_BYTES);
                let is_partial = header[0] & IS_PARTIAL != 0;
                let goes_on = match nat {
                    Some(nat) if self.is_from_a => nat.leave(frame, is_partial),
                    Some(nat) => nat.enter(frame, is_partial),
                    None => true,
                };
                if goes_on && self.under_way_bytes + length <= UNDER_WAY_BYTES_MAX {
                    self.under_way_bytes += length;
                    let due = Instant::now() + delay;
                    let due = self.under_way.back().map_or(due, |&(last, _)| due.max(last));
                    self.under_way.push_back((due, bytes.to_vec()));
                }
            }
        }
    }

    /// Sends what is due. What the port has no room for is lost, as in any switch.
    fn give(&mut self) {
        while self.under_way.front().is_some_and(|&(due, _)| due <= Instant::now()) {
            let Some((_, bytes)) = self.under_way.pop_front() else { break };
            self.under_way_bytes -= bytes.len();
            send(&self.to, self.to_index, &bytes);
        }
    }
}

/// One turn: waits until something comes or is due.
fn forward(
    ways: &mut [Way],
    nats: &mut [Option<Nat>],
    delays_ns: &[AtomicU64],
    is_over: &AtomicBool,
) {
    let next = ways.iter().filter_map(|way| way.under_way.front()).map(|&(due, _)| due).min();
    let pause = next.map_or(LOOK, |due| due.saturating_duration_since(Instant::now()).min(LOOK));
    let mut fds: Vec<_> = ways
        .iter()
        .flat_map(|way| &way.from)
        .map(|socket| PollFd::new(socket, PollFlags::IN))
        .collect();
    let pause = Timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) };
    // Whatever it says: sockets are looked at, and none of them blocks.
    let _ = poll(&mut fds, Some(&pause));
    drop(fds);
    let mut room = vec![0; FRAME_BYTES_MAX];
    for way in ways {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let delay = Duration::from_nanos(delays_ns[way.rail].load(Ordering::Relaxed));
        way.take(&mut nats[way.rail], delay, &mut room);
        way.give();
    }
}

/// A packet socket for frames of one kind that come in by a port; kind 0: none, to send by.
fn socket(kind: u16, port: u32) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // Nothing before it is bound to its port.
    // SAFETY: the call takes no pointer.
    let raw = unsafe { libc::socket(libc::AF_PACKET, flags, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    set(&socket, libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, WAITING_BYTES)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, WAITING_BYTES)?;
    if kind == 0 {
        return Ok(socket);
    }
    let address = place(kind, port);
    let bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: pointer and length describe `address`, which outlives the call.
    let bound = unsafe { libc::bind(raw, (&raw const address).cast(), bytes) };
    if bound == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

/// From `linux/if_packet.h`.
const PACKET_VNET_HDR: libc::c_int = 15;

fn set(socket: &OwnedFd, level: libc::c_int, name: libc::c_int, value: i32) -> io::Result<()> {
    let bytes = size_of_val(&value) as libc::socklen_t;
    // SAFETY: pointer and length describe `value`, which outlives the call.
    let answer = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), bytes)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn place(kind: u16, port: u32) -> libc::sockaddr_ll {
    // SAFETY: integers, for which zero bytes are a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = kind.to_be();
    address.sll_ifindex = port.cast_signed();
    address
}

fn receive(socket: &OwnedFd, room: &mut [u8]) -> Option<usize> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: pointer and length describe the room, which is borrowed exclusively.
    let length = unsafe { libc::recv(fd, room.as_mut_ptr().cast(), room.len(), 0) };
    usize::try_from(length).ok()
}

fn send(socket: &OwnedFd, port: u32, bytes: &[u8]) {
    let kind = u16::from_be_bytes([bytes[HEADER_BYTES + 12], bytes[HEADER_BYTES + 13]]);
    let to = place(kind, port);
    // SAFETY: pointers and lengths describe `bytes` and `to`, which outlive the call.
    unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            0,
            (&raw const to).cast(),
            size_of_val(&to) as libc::socklen_t,
        )
    };
}
