//! What the two sides of a session tell each other of their datagrams.

use crate::wire::hello::FLAG_FRAMES;

/// What an engine says of its datagrams in a hello or a reply.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Announced {
    /// UDP port at the address of the TCP connection; 0: none.
    pub(crate) port: u16,
    /// Longest datagram that it takes.
    pub(crate) bytes: u16,
    /// It may take them as AF_XDP frames.
    pub(crate) as_frames: bool,
}

impl Announced {
    /// What the flags of a hello or a reply say of them.
    pub(in crate::progress) fn flags(&self) -> u8 {
        if self.as_frames { FLAG_FRAMES } else { 0 }
    }
}
