//! The driver as an engine holds it: an enum, so that hot-path calls are static.

use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use super::datagrams::Datagrams;
use super::sockets::SocketsDriver;
use super::traits::{Driver, PieceHeader, RingEntry, RingName, RingSegment, TxFlags};
#[cfg(feature = "uring")]
use super::uring::UringDriver;

/// A driver. Datagram calls of the hot path are matched on the variant and inlined, without dynamic
/// dispatch; everything else goes through [`Driver`].
pub(crate) enum AnyDriver<D: Driver + ?Sized = dyn Driver> {
    /// Plain sockets.
    Sockets(Box<SocketsDriver>),
    /// io_uring.
    #[cfg(feature = "uring")]
    Uring(Box<UringDriver>),
    /// Middleware around one of these, or the simulator: sees every call.
    Other(Box<D>),
}

impl<D: Driver + ?Sized> AnyDriver<D> {
    /// The datagrams of the system, or the driver that implements its own.
    #[inline(always)]
    fn datagrams(&mut self) -> Result<&mut Datagrams, &mut D> {
        match self {
            Self::Sockets(driver) => Ok(driver.datagrams()),
            #[cfg(feature = "uring")]
            Self::Uring(driver) => Ok(driver.datagrams()),
            Self::Other(driver) => Err(driver),
        }
    }

    /// See [`super::traits::DatagramIo::datagram_room`].
    #[inline(always)]
    pub(crate) fn datagram_room(&mut self) -> io::Result<&mut [u8]> {
        match self.datagrams() {
            Ok(datagrams) => datagrams.datagram_room(),
            Err(driver) => driver.datagram_room(),
        }
    }

    /// See [`super::traits::DatagramIo::send_datagram`].
    #[inline(always)]
    pub(crate) fn send_datagram(
        &mut self,
        to: SocketAddr,
        rail: u8,
        length: usize,
        tx_flags: TxFlags,
    ) {
        match self.datagrams() {
            Ok(datagrams) => datagrams.send_datagram(to, rail, length, tx_flags),
            Err(driver) => driver.send_datagram(to, rail, length, tx_flags),
        }
    }

    /// See [`super::traits::DatagramIo::flush_datagrams`].
    #[inline(always)]
    pub(crate) fn flush_datagrams(&mut self) {
        match self.datagrams() {
            Ok(datagrams) => datagrams.flush_datagrams(),
            Err(driver) => driver.flush_datagrams(),
        }
    }

    /// See [`super::traits::DatagramIo::recv_from_ring`].
    #[inline(always)]
    pub(crate) fn recv_from_ring(&mut self) -> Option<(u64, RingEntry<'_>)> {
        match self.datagrams() {
            Ok(datagrams) => datagrams.recv_from_ring(),
            Err(driver) => driver.recv_from_ring(),
        }
    }

    /// See [`super::traits::DatagramIo::read_body`].
    #[inline]
    pub(crate) fn read_body(&mut self, into: &mut [u8]) {
        match self.datagrams() {
            Ok(datagrams) => datagrams.read_body(into),
            Err(driver) => driver.read_body(into),
        }
    }

    /// See [`super::traits::DatagramIo::piece`].
    pub(crate) fn piece(&mut self) -> &[u8] {
        match self.datagrams() {
            Ok(datagrams) => datagrams.piece(),
            Err(driver) => driver.piece(),
        }
    }

    /// See [`super::traits::DatagramIo::message`].
    pub(crate) fn message(&mut self) -> &[u8] {
        match self.datagrams() {
            Ok(datagrams) => datagrams.message(),
            Err(driver) => driver.message(),
        }
    }

    /// See [`super::traits::DatagramIo::write_piece`].
    #[inline]
    pub(crate) fn write_piece(&mut self, session: u64, header: &PieceHeader, bytes: &[u8]) -> bool {
        match self.datagrams() {
            Ok(datagrams) => datagrams.write_piece(session, header, bytes),
            Err(driver) => driver.write_piece(session, header, bytes),
        }
    }

    /// See [`super::traits::DatagramIo::write_segment`].
    #[inline(always)]
    pub(crate) fn write_segment(&mut self, ring: RingName, segment: RingSegment<'_>) -> bool {
        match self.datagrams() {
            Ok(datagrams) => datagrams.write_segment(ring, segment),
            Err(driver) => driver.write_segment(ring, segment),
        }
    }

    /// See [`super::traits::DatagramIo::recv_datagram`].
    #[inline(always)]
    pub(crate) fn recv_datagram(&mut self) -> io::Result<Option<(SocketAddr, &mut [u8])>> {
        match self.datagrams() {
            Ok(datagrams) => datagrams.recv_datagram(),
            Err(driver) => driver.recv_datagram(),
        }
    }
}

impl AnyDriver<dyn Driver + Send> {
    /// As a trait object, for middleware to wrap.
    pub(super) fn boxed(self) -> Box<dyn Driver + Send> {
        match self {
            Self::Sockets(driver) => driver,
            #[cfg(feature = "uring")]
            Self::Uring(driver) => driver,
            Self::Other(driver) => driver,
        }
    }
}

impl From<AnyDriver<dyn Driver + Send>> for AnyDriver {
    fn from(driver: AnyDriver<dyn Driver + Send>) -> Self {
        match driver {
            AnyDriver::Sockets(driver) => Self::Sockets(driver),
            #[cfg(feature = "uring")]
            AnyDriver::Uring(driver) => Self::Uring(driver),
            AnyDriver::Other(driver) => Self::Other(driver),
        }
    }
}

impl Deref for AnyDriver {
    type Target = dyn Driver;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Sockets(driver) => &**driver,
            #[cfg(feature = "uring")]
            Self::Uring(driver) => &**driver,
            Self::Other(driver) => &**driver,
        }
    }
}

impl DerefMut for AnyDriver {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Sockets(driver) => &mut **driver,
            #[cfg(feature = "uring")]
            Self::Uring(driver) => &mut **driver,
            Self::Other(driver) => &mut **driver,
        }
    }
}
