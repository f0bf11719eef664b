//! Rings of either kind of socket.

use std::io;
use std::os::fd::RawFd;

use super::frame::XdpFrame;
use super::leased_rings::LeasedRings;
use super::rings::{FramePacket, FrameRings};
use super::socket::XskRings;

/// Rings of a socket opened by this process, or of a leased one.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one per queue, which is boxed")]
pub(super) enum AnyRings {
    /// Opened and bound here.
    Own(XskRings),
    /// Opened and bound by `ringrail-xdpd`.
    Leased(LeasedRings),
}

/// Delegates a call to the variant.
macro_rules! either {
    ($rings:expr, $call:ident $(, $argument:expr)*) => {
        match $rings {
            AnyRings::Own(rings) => rings.$call($($argument),*),
            AnyRings::Leased(rings) => rings.$call($($argument),*),
        }
    };
}

impl FrameRings for AnyRings {
    #[inline]
    fn fill(&mut self, indices: &[u32]) -> usize {
        either!(self, fill, indices)
    }

    #[inline]
    fn transmit(&mut self, packets: &[FramePacket]) -> usize {
        either!(self, transmit, packets)
    }

    #[inline]
    fn completed(&mut self, into: &mut [u32]) -> usize {
        either!(self, completed, into)
    }

    #[inline]
    fn received(&mut self, into: &mut [FramePacket]) -> usize {
        either!(self, received, into)
    }

    #[inline]
    fn has_received(&mut self) -> bool {
        either!(self, has_received)
    }

    #[inline]
    fn sleeps(&self) -> bool {
        either!(self, sleeps)
    }

    #[inline]
    fn wake(&mut self) -> io::Result<()> {
        either!(self, wake)
    }

    #[inline]
    fn kick(&mut self) -> io::Result<()> {
        either!(self, kick)
    }

    #[inline]
    fn frame_bytes(&self) -> usize {
        either!(self, frame_bytes)
    }

    #[inline]
    fn bytes(&mut self, frame: &mut XdpFrame) -> &mut [u8] {
        either!(self, bytes, frame)
    }

    #[inline]
    fn packet(&mut self, frame: &mut XdpFrame, length: u32) -> &mut [u8] {
        either!(self, packet, frame, length)
    }

    #[inline]
    fn fd(&self) -> RawFd {
        either!(self, fd)
    }
}
