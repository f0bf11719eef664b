//! The interface to the four rings and the memory shared with the kernel.
//!
//! One implementation is the kernel's ([`super::socket`]), another is a model that injects kernel
//! faults (the tests).

use std::io;
use std::os::fd::RawFd;

use super::frame::XdpFrame;

/// A frame that holds a packet.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct FramePacket {
    /// Index of the frame.
    pub(super) index: u32,
    /// Length of the packet in bytes.
    pub(super) length: u32,
    /// The packet continues in the next frame.
    pub(super) has_more: bool,
}

/// Memory in frames of one size, and rings of their indices.
///
/// The caller keeps the ownership of frames in a [`super::frame::Ledger`], and validates indices
/// that the rings return.
pub(super) trait FrameRings {
    /// Adds frames to the fill ring; returns how many of the first the kernel took.
    fn fill(&mut self, indices: &[u32]) -> usize;

    /// Adds packets to the transmit ring, each from the first byte of [`Self::bytes`]; returns how
    /// many of the first the kernel took.
    fn transmit(&mut self, packets: &[FramePacket]) -> usize;

    /// Reads the completion ring into the front of `into`; returns how many frames.
    fn completed(&mut self, into: &mut [u32]) -> usize;

    /// Reads the receive ring into the front of `into`; returns how many frames.
    fn received(&mut self, into: &mut [FramePacket]) -> usize;

    /// Whether [`Self::received`] would find something.
    fn has_received(&mut self) -> bool;

    /// Whether the fill ring is processed only after [`Self::wake`].
    fn sleeps(&self) -> bool;

    /// Makes the kernel process the fill ring.
    fn wake(&mut self) -> io::Result<()>;

    /// Makes the kernel process the transmit ring. `WouldBlock`: some packets are left, repeat.
    fn kick(&mut self) -> io::Result<()>;

    /// Writable bytes of a frame.
    fn frame_bytes(&self) -> usize;

    /// The writable part of a frame.
    fn bytes(&mut self, frame: &mut XdpFrame) -> &mut [u8];

    /// The packet received in a frame, of `length` bytes.
    fn packet(&mut self, frame: &mut XdpFrame, length: u32) -> &mut [u8];

    /// The descriptor to watch for received packets.
    fn fd(&self) -> RawFd;
}
