//! Receiving datagrams.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

use super::BATCH;
use super::batch::Batch;
use super::gso;
use crate::driver::traits::{DATAGRAM_BYTES_MAX, DriverCounters};

/// Pending socket errors that one receive call skips.
const ERRORS_MAX: usize = 64;

/// Batches without a usable datagram before a receive call returns: oversized datagrams of a peer
/// must not starve the engine.
const FETCHES_MAX: usize = 4;

/// The smallest batch, requested after two consecutive single datagrams.
const BATCH_MIN: usize = 8;

/// One byte more than the maximum, to detect longer datagrams.
const DATAGRAM_ROOM_BYTES: usize = DATAGRAM_BYTES_MAX + 1;

/// GRO batches per call.
const GRO_MESSAGES: usize = 8;

/// Points for a datagram that could have been in a GRO batch with its predecessors; the first of a
/// run takes one point away.
const GRO_STEP: u32 = 4;
/// Points from which on `UDP_GRO` is enabled, until none are left.
const GRO_SCORE: u32 = 32;
/// Maximum of points.
const SCORE_MAX: u32 = 64;

/// Received datagrams, not all of them consumed.
///
/// Receive calls are what costs: 123 ns if nothing is there, 182 by `recvmmsg`, which also takes
/// 110 ns more for one datagram than `recvfrom`. So batches are requested only while datagrams
/// arrive faster than they are consumed, and after a batch that was not full `None` is returned
/// without a call, unless the driver was polled meanwhile: an engine that was away for long must
/// not use a stale result, as it counts missing packets as lost.
///
/// While datagrams of one length arrive in runs, `UDP_GRO` is enabled; its control message costs
/// 100 ns a call, so it is disabled when runs end. A GRO batch that arrives during the switch is
/// taken for one invalid datagram: it is lost, as any may be.
pub(super) struct IncomingDatagrams {
    datagrams: Batch,
    /// Buffers for GRO batches, once needed.
    gro_batch: Option<Batch>,
    /// `UDP_GRO` is on.
    has_gro: bool,
    /// The kernel has no `UDP_GRO`.
    lacks_gro: bool,
    /// Points for `UDP_GRO`; see [`GRO_STEP`].
    gro_score: u32,
    /// Length of the current run of equal datagrams, and their size, as long as no receive call
    /// failed since.
    run_datagrams: usize,
    run_bytes: Option<usize>,
    /// Messages that the next call requests: 1, or the size of a batch.
    request: usize,
    /// The last call returned something.
    was_hit: bool,
    /// The batch was not full: the next result is `None`.
    is_drained: bool,
}

/// Whether an error is from ICMP about a datagram sent before, or a signal: the packet layer
/// detects the loss by itself, and other datagrams are waiting.
#[cold]
fn is_unrelated_error(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EINTR
                | libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::ENETDOWN
                | libc::EMSGSIZE
                | libc::EPROTO
                | libc::ENOPROTOOPT
                | libc::EACCES
                | libc::EPERM
        )
    )
}

impl IncomingDatagrams {
    pub(super) fn new() -> Self {
        Self {
            datagrams: Batch::new(BATCH, DATAGRAM_ROOM_BYTES, false),
            gro_batch: None,
            has_gro: false,
            lacks_gro: false,
            gro_score: 0,
            run_datagrams: 0,
            run_bytes: None,
            request: 1,
            was_hit: false,
            is_drained: false,
        }
    }

    fn batch(&mut self) -> &mut Batch {
        match &mut self.gro_batch {
            Some(trains) if self.has_gro => trains,
            _ => &mut self.datagrams,
        }
    }

    /// Whether received datagrams have not been consumed.
    pub(super) fn is_held(&mut self) -> bool {
        !self.batch().is_empty()
    }

    /// Time has passed: new datagrams may have arrived.
    pub(super) fn mark_stale(&mut self) {
        self.is_drained = false;
    }

    /// Datagrams were sent: what arrives next may answer them, and does not continue a run.
    #[inline]
    pub(super) fn end_run(&mut self) {
        (self.was_hit, self.run_bytes) = (false, None);
    }

    /// The next datagram, or `None`; see [`crate::driver::traits::DatagramIo::recv_datagram`].
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        socket: RawFd,
        counters: &mut DriverCounters,
    ) -> io::Result<Option<(SocketAddr, &mut [u8])>> {
        if !self.is_one_by_one() {
            return self.take_from_batch(socket, counters);
        }
        counters.syscalls += 1;
        match self.datagrams.receive_one(socket) {
            Ok(length) if length <= DATAGRAM_BYTES_MAX => {
                let Some(from) = self.datagrams.first_source() else {
                    return self.take_from_batch(socket, counters);
                };
                counters.datagrams_received += 1;
                self.note_length(length);
                if std::mem::replace(&mut self.was_hit, true) {
                    self.request = BATCH_MIN;
                }
                Ok(Some((from, self.datagrams.first(length))))
            }
            Err(libc::EAGAIN) => {
                self.end_run();
                Ok(None)
            }
            Ok(_) => {
                counters.datagrams_too_long += 1;
                self.take_from_batch(socket, counters)
            }
            Err(code) => {
                let error = io::Error::from_raw_os_error(code);
                if !is_unrelated_error(&error) {
                    return Err(error);
                }
                self.take_from_batch(socket, counters)
            }
        }
    }

    /// Whether the next datagram is requested alone, and none is buffered.
    #[inline]
    fn is_one_by_one(&self) -> bool {
        self.request == 1
            && !(self.has_gro | self.is_drained)
            && self.datagrams.is_empty()
            && self.gro_score < GRO_SCORE
    }

    /// The next datagram of a batch; receives one first if it is empty.
    #[inline(never)]
    fn take_from_batch(
        &mut self,
        socket: RawFd,
        counters: &mut DriverCounters,
    ) -> io::Result<Option<(SocketAddr, &mut [u8])>> {
        for _ in 0..FETCHES_MAX {
            while let Some(taken) = self.batch().take() {
                self.note_length(taken.length());
                if taken.length() > DATAGRAM_BYTES_MAX {
                    counters.datagrams_too_long += 1;
                } else if let Some(from) = taken.from {
                    counters.datagrams_received += 1;
                    return Ok(Some((from, self.batch().bytes(&taken))));
                }
            }
            if std::mem::take(&mut self.is_drained) || !self.fetch(socket, counters)? {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Updates the run for a datagram of `length` bytes.
    #[inline]
    fn note_length(&mut self, length: usize) {
        if self.run_bytes.is_some_and(|longest| length <= longest) {
            self.run_datagrams += 1;
            // A shorter one ends its run.
            self.run_bytes = self.run_bytes.filter(|&bytes| bytes == length);
            if self.run_datagrams >= gso::DATAGRAMS_MIN {
                self.gro_score = (self.gro_score + GRO_STEP).min(SCORE_MAX);
            }
        } else {
            (self.run_bytes, self.run_datagrams) = (Some(length), 1);
            self.gro_score = self.gro_score.saturating_sub(1);
        }
    }

    /// Receives more; `false` if there is nothing.
    fn fetch(&mut self, socket: RawFd, counters: &mut DriverCounters) -> io::Result<bool> {
        if self.gro_score >= GRO_SCORE && !self.has_gro && !self.lacks_gro {
            self.start_gro(socket, counters);
        }
        for _ in 0..ERRORS_MAX {
            counters.syscalls += 1;
            let ask = self.request;
            match self.batch().receive(socket, ask) {
                Ok(count) => {
                    self.plan(count);
                    return Ok(true);
                }
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    (self.request, self.was_hit, self.run_bytes) = (1, false, None);
                    if self.has_gro && self.gro_score == 0 {
                        self.stop_gro(socket, counters);
                    }
                    return Ok(false);
                }
                Err(error) if is_unrelated_error(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Enables `UDP_GRO`.
    #[cold]
    fn start_gro(&mut self, socket: RawFd, counters: &mut DriverCounters) {
        counters.syscalls += 1;
        match gso::set_gro(socket, true) {
            Ok(()) => {
                let room = || Batch::new(GRO_MESSAGES, gso::ROOM_BYTES, true);
                self.gro_batch.get_or_insert_with(room);
                self.has_gro = true;
            }
            Err(error) => {
                tracing::debug!("UDP_GRO is not available: {error}");
                self.lacks_gro = true;
            }
        }
    }

    /// Disables `UDP_GRO`.
    #[cold]
    fn stop_gro(&mut self, socket: RawFd, counters: &mut DriverCounters) {
        counters.syscalls += 1;
        self.has_gro = gso::set_gro(socket, false).is_err();
    }

    /// Chooses the size of the next request, after a call that returned `count` messages.
    fn plan(&mut self, count: usize) {
        let (asked, most) = (self.request, self.batch().capacity());
        if asked > 1 {
            self.is_drained = count < asked.min(most);
            self.request = match count {
                1 => 1,
                _ if count == asked => (asked * 2).min(BATCH),
                _ => (count + 1).next_power_of_two().min(BATCH),
            };
            self.was_hit = count > 1;
        } else if std::mem::replace(&mut self.was_hit, true) {
            self.request = BATCH_MIN;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::outgoing::OutgoingDatagrams;
    use super::super::socket;
    use super::*;
    use crate::driver::traits::TxFlags;
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    struct Pair {
        sockets: [std::net::UdpSocket; 2],
        outgoing: OutgoingDatagrams,
        incoming: IncomingDatagrams,
    }

    impl Pair {
        fn new() -> Self {
            let sockets = [(); 2].map(|()| socket::bind("127.0.0.1:0".parse().unwrap()).unwrap());
            let outgoing = OutgoingDatagrams::new(sockets[0].local_addr().unwrap(), true);
            Self { sockets, outgoing, incoming: IncomingDatagrams::new() }
        }

        /// Sends datagrams of these lengths at once and receives them all; returns the system calls
        /// of either side.
        fn exchange(&mut self, lengths: &[usize]) -> (u64, u64) {
            let (mut sent, mut taken) = (DriverCounters::default(), DriverCounters::default());
            let to = self.sockets[1].local_addr().unwrap();
            for (number, &length) in lengths.iter().enumerate() {
                self.outgoing.room()[..length].fill(number as u8);
                self.outgoing.push(to, 0, length, TxFlags::PLAIN, &mut sent);
            }
            assert!(self.outgoing.flush(self.sockets[0].as_raw_fd(), &mut sent));
            assert_eq!(sent.datagrams_sent, lengths.len() as u64);
            let (start, mut number) = (Instant::now(), 0);
            while number < lengths.len() {
                assert!(start.elapsed() < Duration::from_secs(10), "{number} of {lengths:?} came");
                self.incoming.mark_stale();
                let from = self.sockets[1].as_raw_fd();
                while let Some((from, bytes)) = self.incoming.take(from, &mut taken).unwrap() {
                    assert_eq!(from, self.sockets[0].local_addr().unwrap());
                    assert_eq!(*bytes, *vec![number as u8; lengths[number]], "{number}");
                    number += 1;
                }
            }
            assert_eq!(taken.datagrams_received, lengths.len() as u64);
            assert_eq!(taken.datagrams_too_long, 0);
            (sent.syscalls, taken.syscalls)
        }
    }

    #[test]
    fn gro_batches_are_split_into_datagrams() {
        let mut pair = Pair::new();
        pair.exchange(&[1000; 40]);
        if gso::set_gro(pair.sockets[1].as_raw_fd(), false).is_err() {
            return println!("RINGRAIL-SKIP: driver::udp::incoming: no UDP_GRO");
        }
        let mut pair = Pair::new();
        pair.exchange(&[1000; 40]);
        // One GSO batch each.
        assert_eq!(pair.exchange(&[1000; 40]), (1, 1));
        let mixed: Vec<usize> =
            (0..60).map(|at| [1400, 1400, 1400, 300, 8, 0, 8][at % 7]).collect();
        pair.exchange(&mixed);
        pair.exchange(&[1400, 1400, 300]);
        assert!(pair.incoming.has_gro);
    }

    #[test]
    fn gro_is_off_for_the_next_driver_of_the_socket() {
        let mut pair = Pair::new();
        pair.exchange(&[1000; 64]);
        pair.exchange(&[1000; 64]);
        let copy = pair.sockets[1].try_clone().unwrap();
        drop(super::super::UdpDatagrams::new(copy).unwrap());
        pair.incoming = IncomingDatagrams::new();
        pair.exchange(&[1000; 7]);
    }

    /// RR-PATH-7
    #[test]
    fn datagrams_with_no_gso_are_sent_alone() {
        let mut pair = Pair::new();
        let mut counters = DriverCounters::default();
        let to = pair.sockets[1].local_addr().unwrap();
        pair.exchange(&[1000; 64]);
        pair.exchange(&[1000; 64]);
        for _ in 0..20 {
            let alone = TxFlags { no_gso: true, ..TxFlags::PLAIN };
            pair.outgoing.push(to, 0, 500, alone, &mut counters);
        }
        assert!(pair.outgoing.flush(pair.sockets[0].as_raw_fd(), &mut counters));
        let mut taken = DriverCounters::default();
        while taken.datagrams_received < 20 {
            pair.incoming.mark_stale();
            let socket = pair.sockets[1].as_raw_fd();
            while pair.incoming.take(socket, &mut taken).unwrap().is_some() {}
        }
        // A GSO batch would have arrived by one call.
        assert!(taken.syscalls >= 3, "{}", taken.syscalls);
    }

    #[test]
    fn gro_stays_off_for_single_datagrams() {
        let mut pair = Pair::new();
        for _ in 0..200 {
            pair.exchange(&[64]);
        }
        assert!(pair.incoming.gro_batch.is_none(), "no buffers are allocated for GRO");
        pair.exchange(&[1000; 64]);
        pair.exchange(&[64]);
        let had_gro = pair.incoming.has_gro;
        assert!(had_gro || pair.incoming.lacks_gro);
        for _ in 0..100 {
            pair.exchange(&[64]);
        }
        assert!(!pair.incoming.has_gro);
        pair.exchange(&[1000; 64]);
    }
}
