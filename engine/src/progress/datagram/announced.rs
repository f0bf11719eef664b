//! Announcements of the two sides of a session about their datagrams.

use crate::wire::hello::FLAG_FRAMES;

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
    /// Returns the flags of a hello or a reply with this announcement.
    pub(in crate::progress) fn flags(&self) -> u8 {
        if self.as_frames { FLAG_FRAMES } else { 0 }
    }
}
