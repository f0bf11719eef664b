//! Somebody on the wire: sees what a NIC sends, and sends frames of any kind.

use std::ffi::CString;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// Bytes before the payload of a datagram: Ethernet, IPv4 without options, UDP.
pub(crate) const HEADERS: usize = 42;
/// Where the IPv4 header begins.
pub(crate) const IP: usize = 14;
/// Where the UDP header begins.
pub(crate) const UDP: usize = 34;
/// `ETH_P_ALL`, in network order: what goes out is seen by no other protocol.
const ALL: u16 = 3_u16.to_be();

/// A packet socket of the calling thread's host, which may be used from anywhere. It does not see
/// what it sends itself.
pub(crate) struct Wire {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Wire {
    pub(crate) fn open(nic: &str) -> Self {
        let name = CString::new(nic).unwrap();
        // SAFETY: the string ends in NUL, the descriptor is new, and the address, plain numbers of
        // which zero is one, is as large as said.
        unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let raw = libc::socket(libc::AF_PACKET, kind, 0);
            assert!(raw >= 0, "{}", io::Error::last_os_error());
            let socket = OwnedFd::from_raw_fd(raw);
            let mut at: libc::sockaddr_ll = std::mem::zeroed();
            at.sll_family = libc::AF_PACKET as u16;
            at.sll_protocol = ALL;
            at.sll_ifindex = libc::if_nametoindex(name.as_ptr()).cast_signed();
            let bound = libc::bind(raw, (&raw const at).cast(), size_of_val(&at) as u32);
            assert_eq!(bound, 0, "{}", io::Error::last_os_error());
            Self { socket, buffer: vec![0; 65_536] }
        }
    }

    /// The next frame that went out or came in, if there is one.
    pub(crate) fn receive(&mut self) -> Option<&[u8]> {
        let room = &mut self.buffer;
        // SAFETY: the buffer is as large as said.
        let length =
            unsafe { libc::recv(self.socket.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), 0) };
        let length = usize::try_from(length).ok()?;
        Some(&self.buffer[..length])
    }

    /// The next datagram to a port, in a frame whose UDP checksum is none: the kernel leaves the
    /// real one to the NIC.
    pub(crate) fn datagram_to(&mut self, to: (Ipv4Addr, u16)) -> Option<Vec<u8>> {
        loop {
            let frame = self.receive()?;
            let is_it = frame.len() > HEADERS
                && frame[12..15] == [8, 0, 0x45]
                && frame[23] == 17
                && frame[30..34] == to.0.octets()
                && frame[36..38] == to.1.to_be_bytes();
            if is_it {
                let mut frame = frame.to_vec();
                frame[UDP + 6..UDP + 8].fill(0);
                return Some(frame);
            }
        }
    }

    /// Sends a frame; `false` if there was no room for it.
    pub(crate) fn send(&self, frame: &[u8]) -> bool {
        // SAFETY: the frame is as large as said.
        let sent =
            unsafe { libc::send(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        sent == frame.len() as isize
    }
}

/// Changes a 16-bit field, in network order.
pub(crate) fn set(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Gives a datagram other contents: with headers that fit.
pub(crate) fn with_payload(frame: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = [&frame[..HEADERS], payload].concat();
    let length = frame.len();
    set(&mut frame, IP + 2, (length - IP) as u16);
    set(&mut frame, UDP + 4, (length - UDP) as u16);
    seal(&mut frame);
    frame
}

/// Computes the checksum of the IPv4 header anew (RFC 1071).
pub(crate) fn seal(frame: &mut [u8]) {
    set(frame, IP + 10, 0);
    let words = frame[IP..UDP].chunks(2);
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    set(frame, IP + 10, !(sum as u16));
}
