//! One queue of a NIC in operation.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::super::datagrams::FrameSource;
use super::any_rings::AnyRings;
use super::busy_poll::BusyPoll;
use super::destinations::Destinations;
use super::exchange::FrameExchange;
use super::headers::{BYTES_MAX, ETHERNET_BYTES, header_bytes};
use super::parse::{RejectCounts, datagram};
use super::queue_lease::{Acquired, MultiFrame, QueueLease, QueueRequest, acquire};
use super::routes::{NicLink, XdpRoutes};
use super::socket::PACKET_BYTES;
use crate::driver::traits::{DATAGRAM_BYTES_MAX, DriverCounters, TxFlags};
use crate::driver::traits::{FrameDrops, FrameFigures};

/// How often XDP program and NIC are checked.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// Rejected frames that one receive call skips.
const REJECTED_MAX: usize = 64;

/// Longest datagram that fits into one frame, with headers and two VLAN tags.
pub(super) const SINGLE_BYTES_MAX: usize = PACKET_BYTES - BYTES_MAX - 8;

/// Frames to and from one address and port.
#[derive(Debug)]
pub(super) struct XdpQueue {
    // Dropped before the socket, so that nothing is redirected to a closed one.
    lease: QueueLease,
    exchange: FrameExchange<AnyRings>,
    frames: u32,
    nic: u32,
    busy_poll: Option<BusyPoll>,
    is_long: bool,
    routes: XdpRoutes,
    link: NicLink,
    destinations: Destinations,
    local: SocketAddr,
    header_bytes: usize,
    /// Range of the datagram in the frame being read.
    payload: Range<usize>,
    rejects: RejectCounts,
    checked_at: Instant,
    sent: u64,
    received: u64,
}

impl XdpQueue {
    /// Acquires a queue of the NIC that has the address `local`, to which `socket` is bound.
    /// Packets may take several frames if the NIC's MTU exceeds a frame; with `needs_long` always,
    /// or this fails.
    ///
    /// # Errors
    ///
    /// The obstacle, and the remedy.
    pub(super) fn open(
        local: SocketAddr,
        socket: BorrowedFd<'_>,
        source: &FrameSource,
        is_patient: bool,
        needs_long: bool,
    ) -> Result<Self, String> {
        let nic = nic_of(local)?;
        let mut routes =
            XdpRoutes::open().map_err(|error| format!("cannot open a netlink socket: {error}"))?;
        let link = routes.link(nic).map_err(|error| format!("cannot query the NIC: {error}"))?;
        if !link.is_up {
            return Err("the NIC is down".to_owned());
        }
        let long = match needs_long {
            true => MultiFrame::Needed,
            false if link.mtu as usize > PACKET_BYTES - ETHERNET_BYTES => MultiFrame::Wanted,
            false => MultiFrame::No,
        };
        let request = QueueRequest { nic, local, socket, source, is_patient, long };
        let Acquired { lease, exchange, frames, is_long } = acquire(&request)?;
        let busy_poll =
            (source.busy_poll_us > 0).then(|| BusyPoll::start(exchange.fd(), source.busy_poll_us));
        let now = Instant::now();
        let destinations = Destinations::new(local, nic, link_of(link.clone(), is_long), now);
        Ok(Self {
            lease,
            exchange,
            frames,
            nic,
            busy_poll,
            is_long,
            routes,
            link,
            destinations,
            local,
            header_bytes: header_bytes(local.ip()),
            payload: 0..0,
            rejects: RejectCounts::default(),
            checked_at: now,
            sent: 0,
            received: 0,
        })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.exchange.fd()
    }

    /// Name of the NIC, the queue, and how packets are transferred.
    pub(super) fn describe(&self) -> (String, u32, String) {
        let (nic, queue, mut how) = self.lease.describe();
        if self.is_long {
            how.push_str(", multi-frame packets");
        } else if self.link.mtu as usize > PACKET_BYTES - ETHERNET_BYTES {
            how.push_str(&format!(", up to {SINGLE_BYTES_MAX} bytes per frame"));
        }
        if let Some(busy_poll) = &self.busy_poll {
            how = format!("{how}, {busy_poll}");
        }
        (nic, queue, how)
    }

    /// Whether packets may take several frames.
    pub(super) fn is_long(&self) -> bool {
        self.is_long
    }

    /// Statistics.
    pub(super) fn figures(&self) -> FrameFigures {
        let counts = self.exchange.counts();
        FrameFigures {
            frames: self.frames as usize,
            frames_free: counts.free as usize,
            frames_in_hand: counts.in_hand as usize,
            frames_filled: counts.filled as usize,
            frames_sending: counts.sending as usize,
            strays: counts.strays,
            sent: self.sent,
            received: self.received,
            unfit: self.rejects.total() + self.exchange.split,
        }
    }

    /// Frames dropped by the kernel; zeros if it does not report them. One system call.
    pub(super) fn drops(&self) -> FrameDrops {
        // SAFETY: the rings of the exchange keep the descriptor open, and it outlives the call.
        let socket = unsafe { BorrowedFd::borrow_raw(self.fd()) };
        sockopt::xdp_statistics(socket).map_or_else(
            |_| FrameDrops::default(),
            |counted| FrameDrops {
                dropped_received: counted.rx_dropped,
                receive_ring_full: counted.rx_ring_full.unwrap_or(0),
                fill_ring_empty: counted.rx_fill_ring_empty_descs.unwrap_or(0),
                transmit_ring_empty: counted.tx_ring_empty_descs.unwrap_or(0),
                invalid_filled: counted.rx_invalid_descs,
                invalid_sent: counted.tx_invalid_descs,
            },
        )
    }

    // ---- Sending ----

    /// A buffer for a datagram in a frame; `None`: none is free.
    #[inline]
    pub(super) fn room(&mut self) -> Option<&mut [u8]> {
        let header_bytes = self.header_bytes;
        self.exchange.room()?.get_mut(header_bytes..)
    }

    /// The buffer returned last.
    pub(super) fn written(&mut self) -> Option<&mut [u8]> {
        let header_bytes = self.header_bytes;
        self.exchange.written()?.get_mut(header_bytes..)
    }

    /// Stages the first `length` bytes of the buffer for `to`; `false`: frames do not reach it.
    /// RR-PATH-8.
    #[inline]
    pub(super) fn send(&mut self, to: SocketAddr, length: usize, tx_flags: TxFlags) -> bool {
        let Some(template) = self.destinations.template(to, length) else { return false };
        let Some(frame) = self.exchange.written() else { return false };
        let end = self.header_bytes + length;
        template.write(&mut frame[..end], tx_flags.is_summed);
        self.exchange.stage(end);
        self.sent += 1;
        true
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.exchange.is_full()
    }

    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        self.exchange.is_behind()
    }

    /// Submits frames to the kernel.
    ///
    /// # Errors
    ///
    /// The NIC is down or gone.
    pub(super) fn flush(&mut self, counters: &mut DriverCounters) -> io::Result<()> {
        let before = self.exchange.calls;
        let flushed = self.exchange.flush();
        counters.syscalls += self.exchange.calls - before;
        flushed
    }

    // ---- Receiving ----

    pub(super) fn has_received(&mut self) -> bool {
        self.exchange.has_received()
    }

    /// The source of the next datagram; [`Self::payload`] returns its bytes.
    pub(super) fn receive(&mut self, counters: &mut DriverCounters) -> Option<SocketAddr> {
        let nic = self.nic;
        for _ in 0..REJECTED_MAX {
            if self.busy_poll.as_ref().is_some_and(BusyPoll::is_used)
                && !self.exchange.has_received()
            {
                self.exchange.drive();
            }
            let frame = self.exchange.receive()?;
            match datagram(frame, self.local, nic) {
                Ok((_, payload)) if payload.len() > DATAGRAM_BYTES_MAX => {
                    counters.datagrams_too_long += 1;
                }
                Ok((from, payload)) => {
                    self.payload = payload;
                    self.received += 1;
                    counters.datagrams_received += 1;
                    return Some(from);
                }
                Err(why) => self.rejects.count(why),
            }
        }
        None
    }

    /// The datagram that [`Self::receive`] found.
    #[inline]
    pub(super) fn payload(&mut self) -> &mut [u8] {
        let payload = self.payload.clone();
        self.exchange.reading().and_then(|frame| frame.get_mut(payload)).unwrap_or_default()
    }

    // ---- Maintenance ----

    /// Looks routes up, and checks program and NIC ten times a second.
    ///
    /// # Errors
    ///
    /// Why frames cannot be used any more.
    pub(super) fn maintain(&mut self, now: Instant) -> Result<(), String> {
        self.exchange.reap();
        self.exchange.refill();
        if now.saturating_duration_since(self.checked_at) >= CHECK_EVERY {
            self.checked_at = now;
            self.lease.check()?;
            match self.routes.link(self.nic) {
                Ok(link) if link.is_up => self.link = link,
                Ok(_) => return Err(format!("{} is down", self.lease.nic())),
                Err(error) => return Err(format!("{}: {error}", self.lease.nic())),
            }
            self.destinations.set_link(link_of(self.link.clone(), self.is_long));
            if let Some(busy_poll) = &mut self.busy_poll {
                busy_poll.look(self.exchange.fd());
            }
        }
        self.destinations.refresh(now, &mut self.routes);
        Ok(())
    }

    /// Whether [`Self::maintain`] should be called soon.
    pub(super) fn has_pending_lookups(&self) -> bool {
        self.destinations.has_pending_lookups()
    }
}

/// Whether a socket bound to `local` may ever have frames.
///
/// # Errors
///
/// Why not.
pub(super) fn may_have_frames(local: SocketAddr) -> Result<(), String> {
    let ip = local.ip();
    if ip.is_unspecified() {
        return Err("the endpoint listens on all addresses: set listen_address or nics".into());
    }
    if ip.is_loopback() {
        return Err(format!("{ip} is a loopback address, which has no AF_XDP"));
    }
    Ok(())
}

/// The NIC that has an address.
fn nic_of(local: SocketAddr) -> Result<u32, String> {
    let ip = local.ip();
    let interfaces =
        if_addrs::get_if_addrs().map_err(|error| format!("cannot list NICs: {error}"))?;
    let scope = match local {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => Some(v6.scope_id()),
        _ => None,
    };
    let has_it = |index: Option<u32>| scope.is_none() || index == scope;
    let found = interfaces.into_iter().find(|nic| nic.ip() == ip && has_it(nic.index));
    found.and_then(|nic| nic.index).ok_or_else(|| format!("no NIC has the address {ip}"))
}

/// The limits of sent packets: the NIC's MTU, and a frame if packets may not be longer.
fn link_of(link: NicLink, is_long: bool) -> NicLink {
    let single = (PACKET_BYTES - ETHERNET_BYTES) as u32;
    let mtu = if is_long { link.mtu } else { link.mtu.min(single) };
    NicLink { mtu, ..link }
}
