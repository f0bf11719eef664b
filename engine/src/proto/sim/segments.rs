//! Carriage by segments: each is a datagram of its own, and the net reports acknowledgements and
//! losses to its sender some steps later. Long segments may use streams.

use super::engine::Engine;
use super::link::LinkConfig;
use super::net::{Event, Net};
use crate::proto::core::Config;
use crate::proto::keys::SessionKeys;
use crate::proto::ready::Work;
use crate::proto::session::segments::Asks;
use crate::wire::FrameError;

/// Time after which a datagram without an acknowledgement is declared lost.
const LOSS_NS: u64 = 6;

impl Net {
    /// Creates engines of one configuration, all connected with datagrams by links of one step.
    pub(crate) fn new(count: usize, config: &Config, segment_bytes: usize, seed: u64) -> Self {
        Self::of(&vec![config.clone(); count], segment_bytes, seed)
    }

    /// Creates engines with a configuration each.
    pub(crate) fn of(configs: &[Config], segment_bytes: usize, seed: u64) -> Self {
        let mut net = Self::unconnected(configs, &LinkConfig::fixed(1), seed);
        net.room_bytes = segment_bytes;
        for right in 1..configs.len() {
            for left in 0..right {
                let id = 1 + (left * 100 + right) as u64;
                net.connect(left, right, id, SessionKeys::for_tests());
            }
        }
        for engine in &mut net.engines {
            for &slot in engine.slots.values() {
                engine.core.with(slot, |it, cx| it.use_datagrams(cx, segment_bytes));
            }
        }
        net
    }

    /// Sends messages that do not fit a datagram on streams, which take this time.
    pub(crate) fn use_streams(&mut self, ns: u64) {
        self.stream_ns = Some(ns);
        for engine in &mut self.engines {
            for &slot in engine.slots.values() {
                engine.core.with(slot, |it, cx| it.use_stream(cx, true));
            }
        }
    }

    /// Returns the number of datagrams sent.
    pub(crate) fn datagrams(&self) -> u64 {
        self.links.iter().flatten().map(|link| link.sent()).sum()
    }

    /// Returns the number of segments sent on streams.
    pub(crate) fn by_stream(&self) -> usize {
        self.engines.iter().map(|engine| engine.by_stream).sum()
    }

    /// Handles a datagram that arrives, and reports that to its sender.
    pub(super) fn arrive(&mut self, from: usize, to: usize, bytes: &[u8], token: u64) {
        let now_ns = self.now_ns();
        if self.has_rings {
            let Engine { core, memory, slots, .. } = &mut self.engines[to];
            return core.handle_ring_segment(slots[&from], bytes, now_ns, memory).unwrap();
        }
        self.deliver(from, to, bytes).unwrap();
        if self.is_silent {
            return;
        }
        match self.acks.send(now_ns, 0) {
            [None, _] => self.report_loss(from, to, token),
            [Some(at_ns), _] => {
                self.events.add(at_ns, Event::Acked { to: from, peer: to, token });
            }
        }
    }

    fn report_loss(&mut self, to: usize, peer: usize, token: u64) {
        self.events.add(self.now_ns() + LOSS_NS, Event::Lost { to, peer, token });
    }

    /// Sends the segments of a turn.
    pub(super) fn transmit_segments(&mut self, number: usize) {
        let slots = self.engines[number].slots.clone();
        for &peer in slots.keys() {
            if self.random.hits(self.switch_ppm) {
                self.switch(number, peer);
            }
        }
        for (&peer, &slot) in &slots {
            self.transmit_by_stream(number, peer, slot);
        }
        let engine = &mut self.engines[number];
        while let Some(dirty) = engine.core.shared_mut().ready_mut().take(Work::Flush) {
            engine.unsent.insert(engine.peer_of(dirty), dirty);
        }
        for (peer, slot) in engine.unsent.clone() {
            for _ in 0..self.burst {
                if !self.transmit(number, peer, slot) {
                    self.engines[number].unsent.remove(&peer);
                    break;
                }
                self.stage(number);
            }
        }
    }

    /// Sends everything again, as when lanes change.
    fn switch(&mut self, number: usize, peer: usize) {
        if self.has_rings {
            self.events.retain(|event| {
                !matches!(event, Event::Segment { from, to, .. } if (*from, *to) == (number, peer))
            });
        }
        let Engine { core, slots, .. } = &mut self.engines[number];
        core.with(slots[&peer], |it, cx| it.segments_mut().resend_all(cx));
        self.end_ring(number, peer);
    }

    /// Sends one datagram. Returns `false` if there is none.
    pub(crate) fn transmit(&mut self, from: usize, to: usize, slot: u32) -> bool {
        let core = &mut self.engines[from].core;
        let waiting = core.session(slot).map_or(0, |it| it.segments().waiting_bytes());
        let asks = match (self.has_rings, self.is_silent) {
            (true, _) => Asks::WhenAwaited,
            (false, true) => Asks::Always,
            (false, false) => Asks::Never,
        };
        let Some(out) =
            core.enter(slot).and_then(|(it, cx)| it.poll_segment(cx, self.room_bytes, asks))
        else {
            return false;
        };
        assert!(waiting > 0 && out.bytes.len() <= self.room_bytes);
        let (token, bytes) = (out.token, out.bytes.to_vec());
        if self.has_rings && self.random.hits(self.ring_full_ppm) {
            self.engines[from].core.with(slot, |it, cx| it.handle_segment_refused(cx, token));
            return false;
        }
        let arrivals = self.links[from][0].send(self.events.now_ns, bytes.len());
        if arrivals == [None; 2] {
            self.report_loss(from, to, token);
        }
        for at_ns in arrivals.into_iter().flatten() {
            self.events.add(at_ns, Event::Segment { from, to, bytes: bytes.clone(), token });
        }
        true
    }

    /// Sends waiting stream segments.
    fn transmit_by_stream(&mut self, from: usize, to: usize, slot: u32) {
        if self.has_rings && self.now_ns().is_multiple_of(4) {
            self.engines[from].core.with(slot, |it, cx| it.segments_mut().acknowledge_received(cx));
        }
        let Some(stream_ns) = self.stream_ns else { return };
        while let Some((bytes, _)) =
            self.engines[from].core.enter(slot).and_then(|(it, cx)| it.poll_long(cx))
        {
            let bytes = bytes.to_vec();
            self.engines[from].by_stream += 1;
            self.events.add(self.events.now_ns + stream_ns, Event::Stream { from, to, bytes });
            self.stage(from);
        }
    }

    // ---- Single datagrams ----

    /// Returns everything that an engine would send to another now, with the tokens.
    pub(crate) fn capture(&mut self, from: usize, to: usize) -> Vec<(u64, Vec<u8>)> {
        self.stage(from);
        let slot = self.engines[from].slots[&to];
        let mut all = Vec::new();
        let room_bytes = self.room_bytes;
        while let Some(out) = self.engines[from]
            .core
            .enter(slot)
            .and_then(|(it, cx)| it.poll_segment(cx, room_bytes, Asks::Never))
        {
            all.push((out.token, out.bytes.to_vec()));
            self.stage(from);
        }
        all
    }

    /// Delivers a datagram now.
    pub(crate) fn deliver(
        &mut self,
        from: usize,
        to: usize,
        bytes: &[u8],
    ) -> Result<(), FrameError> {
        let now_ns = self.now_ns();
        let Engine { core, memory, slots, .. } = &mut self.engines[to];
        core.handle_lone_segment(slots[&from], bytes, now_ns, memory)
    }

    /// Delivers everything that an engine would send to another now. Returns the tokens.
    pub(crate) fn deliver_all(&mut self, from: usize, to: usize) -> Vec<u64> {
        let captured = self.capture(from, to);
        let deliver = |(token, bytes): (u64, Vec<u8>)| {
            self.deliver(from, to, &bytes).unwrap();
            token
        };
        captured.into_iter().map(deliver).collect()
    }

    /// Reports to the sender that a datagram has arrived.
    pub(crate) fn acknowledge(&mut self, from: usize, to: usize, token: u64) {
        let Engine { core, memory, slots, .. } = &mut self.engines[from];
        core.with(slots[&to], |it, cx| it.handle_segment_acked(cx, token, memory));
    }

    /// Reports to the sender that a datagram was lost.
    pub(crate) fn lose(&mut self, from: usize, to: usize, token: u64) {
        let Engine { core, slots, .. } = &mut self.engines[from];
        core.with(slots[&to], |it, cx| it.segments_mut().handle_segment_lost(cx, token));
    }
}
