//! What a lane wants of the four rings and the memory that it shares with the kernel.
//!
//! One implementation is the kernel's ([`super::socket`]), another a model of it that makes every
//! fault that a kernel may make (the tests).

use std::io;
use std::os::fd::RawFd;

use super::frame::Frame;

/// A frame that holds a packet.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Packet {
    /// Which frame.
    pub(super) index: u32,
    /// Length of the packet in bytes.
    pub(super) length: u32,
    /// The packet goes on in the frame that follows.
    pub(super) has_more: bool,
}

/// Memory in frames of one size, and rings of their numbers.
///
/// Numbers are frames of a [`super::frame::Ledger`]; to lend one here and to book it there is the
/// caller's task, and so is to check what comes back.
pub(super) trait Rings {
    /// Lends frames to receive into; returns how many of the first the kernel took.
    fn fill(&mut self, indices: &[u32]) -> usize;

    /// Lends frames whose packets are to be sent, each from its first byte of [`Self::bytes`];
    /// returns how many of the first the kernel took.
    fn transmit(&mut self, packets: &[Packet]) -> usize;

    /// Frames that were sent, into the front of `into`; returns how many.
    fn completed(&mut self, into: &mut [u32]) -> usize;

    /// Frames that packets came in, into the front of `into`; returns how many.
    fn received(&mut self, into: &mut [Packet]) -> usize;

    /// Whether [`Self::received`] would find something.
    fn has_received(&mut self) -> bool;

    /// Whether frames that were lent to receive into are only looked at after [`Self::wake`].
    fn sleeps(&self) -> bool;

    /// Has the kernel look at what was lent to receive into.
    fn wake(&mut self) -> io::Result<()>;

    /// Has the kernel send what is in the ring. `WouldBlock`: part of it, ask again.
    fn kick(&mut self) -> io::Result<()>;

    /// How much can be written of a frame.
    fn frame_bytes(&self) -> usize;

    /// All that can be written of a frame.
    fn bytes(&mut self, frame: &mut Frame) -> &mut [u8];

    /// The packet that came in a frame, of `length` bytes.
    fn packet(&mut self, frame: &mut Frame, length: u32) -> &mut [u8];

    /// What to watch for packets that come in.
    fn fd(&self) -> RawFd;
}
