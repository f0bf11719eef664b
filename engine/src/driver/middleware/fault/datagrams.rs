//! Datagram faults: loss, duplication, delay, corruption and truncation.

use std::io;
use std::mem::discriminant;
use std::net::SocketAddr;

use rand::RngExt;

use super::Fault;
use crate::driver::traits::{DATAGRAM_BYTES_MAX, DriverEvent, TxFlags};

/// A datagram that others overtake.
struct DelayedDatagram {
    to: SocketAddr,
    rail: u8,
    bytes: Vec<u8>,
    tx_flags: TxFlags,
    /// The poll at which it goes.
    due: u64,
}

/// The state of a driver's datagrams.
#[derive(Default)]
pub(super) struct Datagrams {
    /// The caller's buffer; empty without a socket.
    room: Vec<u8>,
    kept: Vec<DelayedDatagram>,
    /// The inner driver is to report a datagram.
    is_watched: bool,
    /// A writable event was requested.
    wants_room: bool,
}

impl Datagrams {
    pub(super) fn open(&mut self) {
        self.room.resize(DATAGRAM_BYTES_MAX, 0);
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Whether an event of datagrams answers a question that is open.
    pub(super) fn answers_request(&mut self, event: &DriverEvent) -> bool {
        match event {
            DriverEvent::DatagramsReadable => std::mem::take(&mut self.is_watched),
            _ => std::mem::take(&mut self.wants_room),
        }
    }
}

impl Fault {
    fn is_coming(&self, event: &DriverEvent) -> bool {
        self.delayed_events.iter().any(|held| discriminant(&held.event) == discriminant(event))
    }

    pub(super) fn room(&mut self) -> io::Result<&mut [u8]> {
        let is_coming = self.is_coming(&DriverEvent::DatagramsWritable);
        if self.chance(self.faults.again) {
            if !is_coming && !self.datagrams.wants_room {
                let due = self.soon();
                self.delayed_events
                    .push(super::DelayedEvent { event: DriverEvent::DatagramsWritable, due });
            }
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if let Err(error) = self.inner.datagram_room() {
            // A queued event answers this request, too.
            self.datagrams.wants_room = error.kind() == io::ErrorKind::WouldBlock && !is_coming;
            return Err(error);
        }
        Ok(&mut self.datagrams.room)
    }

    /// Decides on the fate of a datagram.
    pub(super) fn apply_datagram_faults(
        &mut self,
        to: SocketAddr,
        rail: u8,
        length: usize,
        tx_flags: TxFlags,
    ) {
        if self.chance(self.faults.lose) {
            return;
        }
        let mut bytes = self.datagrams.room[..length].to_vec();
        if length > 0 && self.chance(self.faults.flip) {
            let at = self.random.random_range(0..length);
            bytes[at] ^= 1 << self.random.random_range(0..8);
        }
        if length > 0 && self.chance(self.faults.truncate) {
            bytes.truncate(self.random.random_range(0..length));
        }
        if self.chance(self.faults.repeat) {
            self.forward(to, rail, &bytes, tx_flags);
        }
        if self.chance(self.faults.reorder) {
            let due = self.soon();
            self.datagrams.kept.push(DelayedDatagram { to, rail, bytes, tx_flags, due });
        } else {
            self.forward(to, rail, &bytes, tx_flags);
        }
    }

    fn forward(&mut self, to: SocketAddr, rail: u8, bytes: &[u8], tx_flags: TxFlags) {
        // Where there is no room it is one more that the network lost.
        if let Ok(room) = self.inner.datagram_room() {
            room[..bytes.len()].copy_from_slice(bytes);
            self.inner.send_datagram(to, rail, bytes.len(), tx_flags);
        }
    }

    /// Sends what was kept until `turn`.
    pub(super) fn forward_delayed(&mut self, turn: u64) {
        if self.datagrams.kept.is_empty() {
            return;
        }
        let (due, kept) = std::mem::take(&mut self.datagrams.kept)
            .into_iter()
            .partition::<Vec<_>, _>(|kept| kept.due <= turn);
        self.datagrams.kept = kept;
        for datagram in &due {
            self.forward(datagram.to, datagram.rail, &datagram.bytes, datagram.tx_flags);
        }
        if !due.is_empty() {
            self.inner.flush_datagrams();
        }
    }

    pub(super) fn watch_inside(&mut self) -> io::Result<()> {
        if !self.is_coming(&DriverEvent::DatagramsReadable) {
            self.inner.watch_datagrams()?;
            self.datagrams.is_watched = true;
        }
        Ok(())
    }
}
