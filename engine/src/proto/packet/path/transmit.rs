//! Transmission of a path: probes, payload, and acknowledgements independent of both.

use zerocopy::IntoBytes;

use super::super::sent::{Purpose, Record};
use super::Path;
use crate::wire::ack::ACK_BYTES_MAX;
use crate::wire::packet::{
    FLAG_ACK, FLAG_ACK_NOW, FLAG_ELICITS, FLAG_FLOOR, FLAG_MTU_PROBE, FLOOR_BYTES, KIND_PACKET,
    PACKET_HEADER_BYTES, PacketHeader,
};

/// Numbers reserved for probes and acknowledgements when payload has used all others.
const NUMBERS_KEPT: u64 = 1 << 14;
/// Maximum datagrams in flight for payload to bypass the pacer.
const UNPACED_PACKETS: u64 = 16;
/// Consecutive probe timeouts after which probes use the length that any network takes.
const SHORT_PROBES_FROM: u32 = 3;

/// Content of a packet, provided by the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filled {
    /// Identifies it in events. May repeat.
    pub(crate) token: u64,
    /// Length, in bytes; at least 1.
    pub(crate) bytes: usize,
    /// A message ends here: an immediate acknowledgement is requested.
    pub(crate) ack_now: bool,
}

/// Source of payload. The path calls it when there is space in the window.
pub(crate) trait PayloadSource {
    /// Returns the length of the next packet's payload, in bytes; 0 if nothing waits.
    fn waiting_bytes(&self) -> usize;

    /// Writes waiting payload into `room`. `None` if it does not fit; then it is called again, with
    /// the full space of a packet if only an acknowledgement was in the way.
    fn fill(&mut self, room: &mut [u8]) -> Option<Filled>;

    /// Writes the payload sent under `token` into `room` again, as a probe. `None` if it does not
    /// fit or is not needed any more.
    fn fill_again(&mut self, token: u64, room: &mut [u8]) -> Option<Filled>;
}

/// Header of a packet, written.
#[derive(Clone, Copy)]
struct Lead {
    bytes: usize,
    flags: u8,
}

impl Path {
    /// Returns the maximum payload of one packet now, without an acknowledgement beside it.
    pub(crate) fn payload_bytes_max(&self) -> usize {
        self.mtu.current() - PACKET_HEADER_BYTES - FLOOR_BYTES - self.config.tag_bytes
    }

    /// The longest datagram that has passed, in bytes, tag included; and whether longer ones are
    /// known to be lost.
    pub(crate) fn passing(&self) -> (usize, bool) {
        (self.mtu.current(), self.mtu.is_limited())
    }

    /// Least time there and back lately, in nanoseconds: that of the path without queues. `None`:
    /// nothing was measured.
    pub(crate) fn least_round_trip_ns(&self) -> Option<u64> {
        self.rtt.is_measured().then(|| self.rtt.least_ns())
    }

    /// Returns the smoothed round trip of short datagrams, in nanoseconds. `None`: no sample.
    pub(crate) fn short_round_trip_ns(&self) -> Option<u64> {
        Some(self.rtt.short_ns()).filter(|&known_ns| known_ns > 0)
    }

    /// Writes the next datagram into `out`, which holds `datagram_bytes_max` bytes. Returns its
    /// length without the tag, and its number, from which the tag is computed. Due acknowledgements
    /// are sent independent of window and pacing.
    pub(crate) fn poll_transmit(
        &mut self,
        now_ns: u64,
        payload: &mut impl PayloadSource,
        out: &mut [u8],
    ) -> Option<(usize, u64)> {
        debug_assert!(out.len() >= self.config.datagram_bytes_max, "the longest datagram fits");
        if self.is_probing() || self.is_filling() {
            self.apply_deferred_ack();
        }
        self.make_room(now_ns);
        self.pacer.release();
        if self.timer.take_probe() {
            return Some(self.send_probe(now_ns, payload, out));
        }
        if let Some(sent) = self.send_mtu_probe(now_ns, out) {
            return Some(sent);
        }
        let waiting_bytes = payload.waiting_bytes();
        if waiting_bytes > 0
            && let Some(sent) = self.send_payload(now_ns, payload, waiting_bytes, out)
        {
            return Some(sent);
        }
        if self.received.due_ns() <= now_ns {
            return Some(self.send_ack(now_ns, out));
        }
        None
    }

    /// Returns whether [`Self::transmit_alone`] may send payload that is all that waits: no probe
    /// is due, nothing is remembered as lost, and less than half of the window is in use, so that
    /// window and pacer do not apply.
    #[inline(always)]
    pub(crate) fn may_transmit_alone(&self, now_ns: u64, payload: &impl PayloadSource) -> bool {
        let overhead = PACKET_HEADER_BYTES + FLOOR_BYTES + ACK_BYTES_MAX + self.config.tag_bytes;
        let bytes = payload.waiting_bytes() + overhead;
        debug_assert_eq!(self.uncontrolled_below, self.uncontrolled_bytes(), "the window changed");
        self.sent.bytes_in_flight() < self.uncontrolled_below
            && self.sent.room() > 2 * NUMBERS_KEPT
            && !self.is_probing()
            && !self.sent.has_lost()
            && bytes <= self.mtu.current()
            && (self.sent.count() == 0 || self.mtu.rests(now_ns))
            && shortcut!("a common packet")
    }

    /// Writes a datagram, as [`Self::poll_transmit`] does, after [`Self::may_transmit_alone`]
    /// returned `true`. `None`: the payload does not fit, which that excludes.
    #[inline(always)]
    pub(crate) fn transmit_alone(
        &mut self,
        now_ns: u64,
        payload: &mut impl PayloadSource,
        out: &mut [u8],
    ) -> Option<(usize, u64)> {
        debug_assert!(out.len() >= self.config.datagram_bytes_max, "the longest datagram fits");
        self.pacer.release();
        if self.sent.bytes_in_flight() == 0 {
            self.pacer.rest();
        }
        let lead = self.lead_here(now_ns, true, out);
        let filled = payload.fill(&mut out[lead.bytes..]);
        let filled = debug_assert_some!(filled, "what may go alone fits a datagram")?;
        let bytes = lead.bytes + filled.bytes;
        self.pacer.spend((bytes + self.config.tag_bytes) as u64);
        let flags = lead.flags | FLAG_ELICITS | if filled.ack_now { FLAG_ACK_NOW } else { 0 };
        Some(self.seal_here(now_ns, bytes, flags, Purpose::Payload, filled.token, out))
    }

    /// Writes a probe for a new address of the peer, as [`Self::poll_transmit`] writes a packet. It
    /// acknowledges received packets, but contains nothing else: the address may be an attacker's.
    ///
    /// RR-PATH-4.
    pub(crate) fn poll_question(&mut self, now_ns: u64, out: &mut [u8]) -> (usize, u64) {
        self.make_room(now_ns);
        let lead = self.lead(now_ns, true, out);
        let flags = lead.flags | FLAG_ELICITS | FLAG_ACK_NOW;
        self.seal(now_ns, lead.bytes, flags, Purpose::Ping, 0, out)
    }

    /// Returns the bytes in flight below which neither window nor pacer applies to one more packet,
    /// and no acknowledgement would change that.
    fn uncontrolled_bytes(&self) -> u64 {
        if !self.congestion.is_uncongested() {
            return 0;
        }
        let datagram = self.mtu.current() as u64;
        let half = self.congestion.window() / 2 + 1;
        half.saturating_sub(2 * datagram).min((UNPACED_PACKETS - 1) * datagram + 1)
    }

    /// Notes a change of the window, or of the length of datagrams.
    #[inline]
    pub(super) fn note_window(&mut self) {
        self.uncontrolled_below = self.uncontrolled_bytes();
    }

    /// Returns whether so much is in flight, as far as is known, that an acknowledgement would
    /// change whether more may be sent.
    #[inline]
    fn is_filling(&self) -> bool {
        let next = 2 * self.mtu.current() as u64;
        2 * (self.sent.bytes_in_flight() + next) > self.congestion.window()
            || self.sent.room() <= 2 * NUMBERS_KEPT
    }

    /// Writes floor and acknowledgement. `out` starts where the datagram does.
    fn lead(&mut self, now_ns: u64, with_ack: bool, out: &mut [u8]) -> Lead {
        self.lead_here(now_ns, with_ack, out)
    }

    /// Writes the lead, as [`Self::lead`] does; inlined, for a single packet.
    #[inline(always)]
    fn lead_here(&mut self, now_ns: u64, with_ack: bool, out: &mut [u8]) -> Lead {
        let mut lead = Lead { bytes: PACKET_HEADER_BYTES, flags: 0 };
        // Numbers of ack-only packets are complete as soon as they are assigned.
        let floor = self.sent.floor();
        if floor > self.acks.cumulative() {
            out[lead.bytes..lead.bytes + FLOOR_BYTES]
                .copy_from_slice(&(floor as u32).to_le_bytes());
            lead.bytes += FLOOR_BYTES;
            lead.flags |= FLAG_FLOOR;
        }
        if with_ack && self.received.has_unacknowledged() {
            let room = &mut out[lead.bytes..lead.bytes + ACK_BYTES_MAX];
            lead.bytes += self.received.write(now_ns, room);
            lead.flags |= FLAG_ACK;
        }
        lead
    }

    /// Assigns a number to a packet of `bytes` without tag, and writes the fixed header.
    fn seal(
        &mut self,
        now_ns: u64,
        bytes: usize,
        flags: u8,
        purpose: Purpose,
        token: u64,
        out: &mut [u8],
    ) -> (usize, u64) {
        self.seal_here(now_ns, bytes, flags, purpose, token, out)
    }

    /// Seals the packet, as [`Self::seal`] does; inlined, for a single packet.
    #[inline(always)]
    fn seal_here(
        &mut self,
        now_ns: u64,
        bytes: usize,
        flags: u8,
        purpose: Purpose,
        token: u64,
        out: &mut [u8],
    ) -> (usize, u64) {
        let length = (bytes + self.config.tag_bytes) as u32;
        let record = Record { token, sent_at_ns: now_ns, bytes: length, purpose };
        let mut number = self.sent.push(record);
        if planted!(RepeatNumber) && number % 32 == 31 {
            number -= 1;
        }
        let header = PacketHeader {
            kind: KIND_PACKET,
            flags,
            path: self.config.path.into(),
            number: (number as u32).into(),
            session: self.config.session.into(),
        };
        out[..PACKET_HEADER_BYTES].copy_from_slice(header.as_bytes());
        self.counters.sent += 1;
        if purpose != Purpose::Ack {
            let is_only = self.sent.count() == 1;
            self.timer.handle_sent(now_ns, is_only, flags & FLAG_ACK_NOW != 0);
        }
        (bytes, number)
    }

    /// Completes a packet with an acknowledgement, if any, and without payload.
    #[cold]
    fn send_lead(&mut self, now_ns: u64, lead: Lead, out: &mut [u8]) -> Option<(usize, u64)> {
        if lead.flags & FLAG_ACK == 0 {
            return None;
        }
        self.counters.acks_alone += 1;
        Some(self.seal(now_ns, lead.bytes, lead.flags, Purpose::Ack, 0, out))
    }

    /// RR-PKT-7
    fn send_ack(&mut self, now_ns: u64, out: &mut [u8]) -> (usize, u64) {
        let lead = self.lead(now_ns, true, out);
        self.counters.acks_alone += 1;
        self.seal(now_ns, lead.bytes, lead.flags, Purpose::Ack, 0, out)
    }

    /// Sends a probe that repeats the end of the outstanding data, whose loss no later packet would
    /// reveal. It ignores window and pacing, and changes neither.
    fn send_probe(
        &mut self,
        now_ns: u64,
        payload: &mut impl PayloadSource,
        out: &mut [u8],
    ) -> (usize, u64) {
        self.counters.probes += 1;
        let lead = self.lead(now_ns, false, out);
        let is_short = self.loss.probes() >= SHORT_PROBES_FROM;
        let length = if is_short { self.mtu.least() } else { self.mtu.current() };
        let room = &mut out[lead.bytes..length - self.config.tag_bytes];
        let filled = match self.sent.newest_payload(self.timer.probes_due() as usize) {
            Some(record) => payload.fill_again(record.token, room),
            None if payload.waiting_bytes() > 0 => payload.fill(room),
            None => None,
        };
        let flags = lead.flags | FLAG_ELICITS | FLAG_ACK_NOW;
        match filled {
            Some(filled) => {
                let bytes = lead.bytes + filled.bytes;
                self.seal(now_ns, bytes, flags, Purpose::Payload, filled.token, out)
            }
            None => self.seal(now_ns, lead.bytes, flags, Purpose::Ping, 0, out),
        }
    }

    /// Sends an MTU probe, only while there is traffic, within the window.
    #[inline]
    fn send_mtu_probe(&mut self, now_ns: u64, out: &mut [u8]) -> Option<(usize, u64)> {
        if self.sent.count() == 0 || self.sent.room() <= NUMBERS_KEPT {
            return None;
        }
        let length = self.mtu.wanted(now_ns)?;
        if self.sent.bytes_in_flight() + length as u64 > self.congestion.window() {
            return None;
        }
        let lead = self.lead(now_ns, false, out);
        let bytes = length - self.config.tag_bytes;
        out[lead.bytes..bytes].fill(0);
        self.mtu.handle_probe_sent(length);
        self.pacer.spend(length as u64);
        let flags = lead.flags | FLAG_ELICITS | FLAG_MTU_PROBE;
        Some(self.seal(now_ns, bytes, flags, Purpose::MtuProbe, 0, out))
    }

    /// RR-PKT-11
    #[inline]
    fn send_payload(
        &mut self,
        now_ns: u64,
        payload: &mut impl PayloadSource,
        waiting_bytes: usize,
        out: &mut [u8],
    ) -> Option<(usize, u64)> {
        let in_flight = self.sent.bytes_in_flight();
        let ack_bytes = if self.received.has_unacknowledged() { ACK_BYTES_MAX } else { 0 };
        let overhead = PACKET_HEADER_BYTES + FLOOR_BYTES + ack_bytes + self.config.tag_bytes;
        let datagram = self.mtu.current();
        let length = waiting_bytes.saturating_add(overhead).min(datagram) as u64;
        let window = self.congestion.window();
        if in_flight > 0 && in_flight + length > window {
            self.congestion.set_limited();
            return None;
        }
        if self.sent.room() <= NUMBERS_KEPT {
            // By then the packet at the floor is acknowledged, lost or forgotten.
            self.pacer.hold_until(now_ns + self.remember_ns());
            return None;
        }
        if in_flight == 0 {
            self.pacer.rest();
        }
        let unpaced = (window / 2).min(UNPACED_PACKETS * datagram as u64);
        if !self.congestion.is_uncongested() || in_flight + length > unpaced {
            if !self.pacer.is_in_use() && self.rtt.is_measured() {
                self.set_pace(now_ns);
            }
            if self.pacer.wait_until_ns(now_ns, length).is_some() {
                return None;
            }
        }
        let lead = self.lead(now_ns, true, out);
        // Space for a floor is always reserved, so that payload that fitted once fits again.
        let floor_bytes = if lead.flags & FLAG_FLOOR == 0 { FLOOR_BYTES } else { 0 };
        let mut end = datagram - self.config.tag_bytes - floor_bytes;
        if in_flight > 0 {
            end = end.min((window - in_flight) as usize - self.config.tag_bytes);
        }
        let Some(filled) = payload.fill(&mut out[lead.bytes..end]) else {
            return self.send_lead(now_ns, lead, out);
        };
        let bytes = lead.bytes + filled.bytes;
        let in_flight = in_flight + (bytes + self.config.tag_bytes) as u64;
        self.pacer.spend((bytes + self.config.tag_bytes) as u64);
        let mut flags = lead.flags | FLAG_ELICITS;
        let is_last = in_flight + datagram as u64 > window;
        if is_last || in_flight >= window / 4 * 3 {
            self.congestion.set_limited();
        }
        // A short window that is full stalls until the acknowledgement arrives.
        let is_short = window < 2 * u64::from(self.config.ack_every) * datagram as u64;
        if filled.ack_now || (is_last && is_short) {
            flags |= FLAG_ACK_NOW;
        }
        Some(self.seal(now_ns, bytes, flags, Purpose::Payload, filled.token, out))
    }
}
