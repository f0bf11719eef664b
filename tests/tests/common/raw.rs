//! Somebody on the wire: sees what a NIC sends, and sends frames of any kind.
#![allow(dead_code, reason = "each test uses some of it")]

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
/// The option for a `struct virtio_net_hdr` before each frame, from `linux/if_packet.h`.
const PACKET_VNET_HDR: libc::c_int = 15;
/// Its length, and where its kind of segmentation is: zero is none.
const VNET_HEADER_BYTES: usize = 10;
const GSO_TYPE: usize = 1;

/// A packet socket of the calling thread's host, which may be used from anywhere. It does not see
/// what it sends itself.
pub(crate) struct Wire {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// Length of the header that the kernel puts before each frame.
    header_bytes: usize,
}

impl Wire {
    pub(crate) fn open(nic: &str) -> Self {
        let name = CString::new(nic).unwrap();
        // SAFETY: the string ends in NUL, the descriptor is new, and the address, plain numbers of
        // which zero is one, has the length passed.
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
            Self { socket, buffer: vec![0; 65_536], header_bytes: 0 }
        }
    }

    /// The next frame that went out or came in, if there is one.
    pub(crate) fn receive(&mut self) -> Option<&[u8]> {
        loop {
            let room = &mut self.buffer;
            let at = room.as_mut_ptr().cast();
            // SAFETY: `at` is valid for writes of `room.len()` bytes.
            let length = unsafe { libc::recv(self.socket.as_raw_fd(), at, room.len(), 0) };
            let length = usize::try_from(length).ok()?;
            let is_train = self.header_bytes > 0 && self.buffer[GSO_TYPE] != 0;
            if !is_train {
                return Some(&self.buffer[self.header_bytes..length]);
            }
        }
    }

    /// Skips trains: a packet socket sees what the kernel is still to cut into datagrams
    /// (`UDP_SEGMENT`) as one frame, with the headers of one long datagram that is never sent.
    pub(crate) fn without_trains(mut self) -> Self {
        self.set_option(libc::SOL_PACKET, PACKET_VNET_HDR, 1);
        self.header_bytes = VNET_HEADER_BYTES;
        self
    }

    /// Room in the kernel for what waits to be taken, in bytes: the rest is not seen.
    pub(crate) fn with_room(self, bytes: libc::c_int) -> Self {
        self.set_option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes);
        self
    }

    /// From now on [`Self::receive_marked`] is told of marks.
    pub(crate) fn with_marks(self) -> Self {
        self.set_option(libc::SOL_PACKET, libc::PACKET_AUXDATA, 1);
        self
    }

    fn set_option(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) {
        let at = (&raw const value).cast();
        let length = size_of_val(&value) as u32;
        // SAFETY: the value has the length passed.
        let set = unsafe { libc::setsockopt(self.socket.as_raw_fd(), level, option, at, length) };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
    }

    /// The next frame, if there is one, and whether its sender's kernel left the checksum of UDP or
    /// TCP to the NIC, so that it is not there yet.
    pub(crate) fn receive_marked(&mut self) -> Option<(&[u8], bool)> {
        /// Room for one control message with `struct tpacket_auxdata`, aligned as one.
        #[repr(C, align(8))]
        struct Control([u8; 64]);
        let room = &mut self.buffer;
        let mut control = Control([0; 64]);
        let mut vector = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        // SAFETY: zero is a valid header, all buffers have the lengths passed and outlive the call,
        // and of control messages only those are read that the kernel wrote whole.
        unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            (header.msg_iov, header.msg_iovlen) = (&raw mut vector, 1);
            header.msg_control = (&raw mut control).cast();
            header.msg_controllen = size_of_val(&control);
            let length = libc::recvmsg(self.socket.as_raw_fd(), &raw mut header, 0);
            let length = usize::try_from(length).ok()?;
            let message = libc::CMSG_FIRSTHDR(&raw const header);
            assert!(!message.is_null(), "marks were asked for");
            assert_eq!((*message).cmsg_type, libc::PACKET_AUXDATA);
            let marks: *const libc::tpacket_auxdata = libc::CMSG_DATA(message).cast();
            let marks = marks.read_unaligned();
            let is_partial = marks.tp_status & libc::TP_STATUS_CSUMNOTREADY != 0;
            Some((&self.buffer[..length], is_partial))
        }
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
        // A header of zeros asks for nothing.
        let frame = [&[0; VNET_HEADER_BYTES][..self.header_bytes], frame].concat();
        // SAFETY: the frame has the length passed.
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
    let sum = sum(&[&frame[IP..UDP]]);
    set(frame, IP + 10, !sum);
}

/// The one's complement sum of 16-bit words (RFC 1071); an odd length is filled up with a zero.
pub(crate) fn sum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let word = |bytes: &[u8]| u16::from_be_bytes([bytes[0], bytes.get(1).copied().unwrap_or(0)]);
    let mut sum: u32 = words.map(|bytes| u32::from(word(bytes))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
