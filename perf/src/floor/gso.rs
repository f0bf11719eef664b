//! Plain UDP sockets with trains of datagrams: `UDP_SEGMENT` to send, `UDP_GRO` to receive.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use super::udp::{failed, is_transient, send};
use super::{ping_pong, report};
use crate::link::Job;
use crate::output::Report;

/// The longest message in bytes: what waits in a receive buffer of usual size.
pub(super) const SIZE_MAX: usize = 64 << 10;
/// Datagrams of a train at most, as the kernel has it.
const SEGMENTS_MAX: usize = 64;
/// What a call takes or brings at most, in bytes.
const TRAIN_MAX: usize = super::udp::SIZE_MAX;
/// Headers of IP and UDP, in bytes.
const HEADERS_V4: usize = 28;
const HEADERS_V6: usize = 48;
/// Empty receives between two looks at the clock.
const SPINS: u32 = 1 << 14;
/// How long a message may be under way.
const PATIENCE: Duration = Duration::from_secs(2);

/// A connected socket that sends and receives trains.
struct Trains<'a> {
    socket: &'a UdpSocket,
    /// Bytes of a whole train.
    train: usize,
    /// Where a call puts what it brings: it may be more than the rest of a message would hold.
    arrived: Vec<u8>,
}

/// Ping-pong of messages that are cut into datagrams by the kernel.
pub(super) fn latency(socket: &UdpSocket, job: &Job, is_server: bool) -> Result<Report, String> {
    let mut trains = Trains::over(socket).map_err(|error| {
        format!("floor: no trains of datagrams: {error}; UDP_SEGMENT wants Linux 4.18, UDP_GRO 5.0")
    })?;
    let (histogram, verified) =
        ping_pong(job, is_server, &mut trains, Trains::send, Trains::receive)?;
    let mut report = report(job, "udp-gso-latency");
    report.lanes = vec!["raw:udp".to_owned()];
    report.latencies(&histogram);
    report.verified = verified;
    Ok(report)
}

impl<'a> Trains<'a> {
    fn over(socket: &'a UdpSocket) -> io::Result<Self> {
        let segment = segment_bytes(socket)?;
        let option = libc::c_int::try_from(segment).map_err(io::Error::other)?;
        set(socket, libc::UDP_SEGMENT, option)?;
        set(socket, libc::UDP_GRO, 1)?;
        let train = segment * SEGMENTS_MAX.min(TRAIN_MAX / segment);
        Ok(Self { socket, train, arrived: vec![0; u16::MAX.into()] })
    }

    /// Sends a message, spinning.
    fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        bytes.chunks(self.train).try_for_each(|train| send(self.socket, train))
    }

    /// Receives a message, spinning. Trains come as they were sent, or in parts.
    fn receive(&mut self, into: &mut [u8]) -> Result<(), String> {
        let (start, mut have, mut spins) = (Instant::now(), 0, 0);
        while have < into.len() {
            match self.socket.recv(&mut self.arrived) {
                Ok(length) => {
                    let rest = into.get_mut(have..have + length);
                    let rest = rest.ok_or("floor: more came by UDP than a message has")?;
                    rest.copy_from_slice(&self.arrived[..length]);
                    have += length;
                }
                Err(error) if is_transient(&error) => {
                    std::hint::spin_loop();
                    spins += 1;
                    if spins % SPINS == 0 && start.elapsed() > PATIENCE {
                        return Err(format!(
                            "floor: {have} of {} bytes came by UDP: the rest was lost on the way, \
                             or the other side has gone",
                            into.len()
                        ));
                    }
                }
                Err(error) => return Err(failed(&error)),
            }
        }
        Ok(())
    }
}

/// Bytes of a datagram that fills a packet of the path.
fn segment_bytes(socket: &UdpSocket) -> io::Result<usize> {
    let (level, name, headers) = match socket.local_addr()? {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU, HEADERS_V4),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU, HEADERS_V6),
    };
    let mut mtu: libc::c_int = 0;
    let mut length = size_of_val(&mtu) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, those of `mtu`.
    let got = unsafe {
        let value = (&raw mut mtu).cast();
        libc::getsockopt(socket.as_raw_fd(), level, name, value, &mut length)
    };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    let mtu = usize::try_from(mtu).map_err(io::Error::other)?;
    // The loopback interface has packets that are longer than a call.
    Ok(mtu.saturating_sub(headers).clamp(1, TRAIN_MAX))
}

fn set(socket: &UdpSocket, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes, those of `value`.
    let got = unsafe {
        let value = (&raw const value).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, name, value, length)
    };
    if got == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
