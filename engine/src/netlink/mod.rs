//! Queries of the kernel's tables by netlink.
//!
//! The kernel answers these requests synchronously, so each takes two short system calls. They
//! need no privileges.

mod links;
mod pauses;
mod routes;

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

pub(crate) use links::counters as nic_counters;
pub(crate) use pauses::Ethtool;
pub use routes::Route;
#[cfg(feature = "xdp")]
pub(crate) use routes::is_no_way;
pub(crate) use routes::{Found, Question, find, look_up};

/// Buffer size for one answer. Those about NICs are the longest, a few KiB.
const ANSWER_BYTES: usize = 32 * 1024;
/// How many answers to earlier requests are skipped.
const STALE_ANSWERS_MAX: usize = 16;

/// A socket for the kernel's tables, those of one network namespace.
pub(crate) struct NetlinkSocket {
    socket: Socket,
    sequence: u32,
    answer: Vec<u8>,
}

impl NetlinkSocket {
    /// Opens the socket, in the network namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_non_blocking(true)?;
        Ok(Self { socket, sequence: 0, answer: Vec::with_capacity(ANSWER_BYTES) })
    }

    /// Sends one request and returns its answer.
    ///
    /// # Errors
    ///
    /// The error that the kernel returned.
    pub(crate) fn ask(&mut self, request: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, libc::MSG_DONTWAIT)?;
        for _ in 0..STALE_ANSWERS_MAX {
            self.answer.clear();
            let length = self.socket.recv(&mut self.answer, libc::MSG_DONTWAIT)?;
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&self.answer[..length])
                .map_err(io::Error::other)?;
            if answer.header.sequence_number != self.sequence {
                continue;
            }
            return match answer.payload {
                NetlinkPayload::InnerMessage(answer) => Ok(answer),
                NetlinkPayload::Error(error) => Err(error.to_io()),
                _ => Err(odd_answer()),
            };
        }
        Err(odd_answer())
    }
}

impl std::fmt::Debug for NetlinkSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NetlinkSocket")
            .field("fd", &self.socket.as_raw_fd())
            .finish_non_exhaustive()
    }
}

/// Returns the family of an address, as encoded in messages.
pub(crate) fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Returns the error for an answer to another request.
pub(crate) fn odd_answer() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel answered something else (netlink)")
}
