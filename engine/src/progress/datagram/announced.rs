//! Announcements of the two sides of a session about their datagrams.

use crate::wire::hello::FLAG_FRAMES;
use crate::wire::{Hello, HelloReply};

/// An engine's announcement about its datagrams in a hello or a reply.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Announced {
    /// UDP port at the address of the TCP connection; 0: none.
    pub(crate) port: u16,
    /// Longest datagram that it takes.
    pub(crate) bytes: u16,
    /// It may receive them by AF_XDP.
    pub(crate) as_frames: bool,
}

impl Announced {
    fn new(port: u16, bytes: u16, flags: u8) -> Self {
        Self { port, bytes, as_frames: flags & FLAG_FRAMES != 0 }
    }

    pub(in crate::progress) fn of_hello(hello: &Hello) -> Self {
        Self::new(hello.datagram_port.get(), hello.datagram_bytes.get(), hello.flags)
    }

    pub(in crate::progress) fn of_reply(reply: &HelloReply) -> Self {
        Self::new(reply.datagram_port.get(), reply.datagram_bytes.get(), reply.flags)
    }

    /// What the flags of a hello or a reply say of them.
    pub(in crate::progress) fn flags(&self) -> u8 {
        if self.as_frames { FLAG_FRAMES } else { 0 }
    }
}
