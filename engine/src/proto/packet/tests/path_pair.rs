//! Two paths and their links in virtual time.

use std::collections::VecDeque;

use super::super::{Path, PathConfig, ReplayCheck};
use super::traffic::{Receiver, Sender};
use crate::proto::sim::{Events, Link, LinkConfig};
use crate::wire::packet::{FLAG_ELICITS, FLAG_MTU_PROBE, Packet};

/// One end: its path, its traffic, and the behaviour of its loop.
#[derive(Debug)]
pub(super) struct End {
    pub(super) path: Path,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    inbox: VecDeque<Vec<u8>>,
    /// Sleeps of its loop, independent of waiting work: length and period, in nanoseconds.
    pub(super) sleeps: Option<(u64, u64)>,
    /// The planned turn.
    wake_ns: u64,
    /// Congestion window after each turn that changed it, if requested.
    pub(super) in_flight_peak: u64,
}

#[derive(Debug)]
enum Event {
    Arrival(usize, Vec<u8>),
    Turn(usize),
}

/// Two ends and their links; see the module.
#[derive(Debug)]
pub(super) struct PathPair {
    pub(super) ends: [End; 2],
    /// `links[n]` carries the packets of end `n`.
    pub(super) links: [Link; 2],
    events: Events<Event>,
    is_started: bool,
    spare: Vec<Vec<u8>>,
    out: Vec<u8>,
}

impl PathPair {
    /// Creates a pair in which end 0 sends by `sender`, and end 1 only acknowledges.
    pub(super) fn new(
        config: &PathConfig,
        links: [LinkConfig; 2],
        sender: Sender,
        seed: u64,
    ) -> Self {
        let message_bytes = sender.message_bytes;
        let end = |sender: Sender, receiver: Receiver| End {
            path: Path::new(config.clone()),
            sender,
            receiver,
            inbox: VecDeque::new(),
            sleeps: None,
            wake_ns: u64::MAX,
            in_flight_peak: 0,
        };
        let [forth, back] = links;
        Self {
            ends: [
                end(sender, Receiver::new(1)),
                end(Sender::new(1, 0, 0), Receiver::new(message_bytes)),
            ],
            links: [Link::new(forth, seed), Link::new(back, !seed)],
            events: Events::new(0),
            is_started: false,
            spare: Vec::new(),
            out: vec![0; config.datagram_bytes_max],
        }
    }

    /// Lets end 1 send, too.
    pub(super) fn answer_with(&mut self, sender: Sender) {
        self.ends[0].receiver = Receiver::new(sender.message_bytes);
        self.ends[1].sender = sender;
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.events.now_ns
    }

    /// Returns when an end's loop runs that is scheduled for `time_ns`.
    fn awake_ns(&self, end: usize, time_ns: u64) -> u64 {
        let Some((sleep_ns, period_ns)) = self.ends[end].sleeps else { return time_ns };
        let within = time_ns % period_ns;
        if within < sleep_ns { time_ns - within + sleep_ns } else { time_ns }
    }

    fn plan(&mut self, end: usize, time_ns: u64) {
        let time_ns = self.awake_ns(end, time_ns.max(self.now_ns()));
        if time_ns < self.ends[end].wake_ns {
            self.ends[end].wake_ns = time_ns;
            self.events.add(time_ns, Event::Turn(end));
        }
    }

    /// Runs until `done`, or until `until_ns`. Returns whether it is done.
    pub(super) fn run(&mut self, until_ns: u64, mut done: impl FnMut(&Self) -> bool) -> bool {
        if !self.is_started {
            self.is_started = true;
            self.plan(0, 0);
            self.plan(1, 0);
        }
        while !done(self) {
            let Some(time_ns) = self.events.next_ns() else { return false };
            self.events.now_ns = time_ns.min(until_ns);
            let Some(event) = self.events.pop_due() else { return false };
            match event {
                Event::Arrival(end, bytes) => {
                    self.ends[end].inbox.push_back(bytes);
                    self.plan(end, time_ns);
                }
                Event::Turn(end) if self.ends[end].wake_ns == time_ns => self.turn(end),
                Event::Turn(_) => {}
            }
        }
        true
    }

    /// Runs until all of end 0's messages are acknowledged.
    pub(super) fn finish(&mut self, until_ns: u64) -> bool {
        self.run(until_ns, |pair| pair.ends.iter().all(|end| end.sender.is_done()))
    }

    fn turn(&mut self, at: usize) {
        let now_ns = self.events.now_ns;
        let end = &mut self.ends[at];
        end.wake_ns = u64::MAX;
        let late_ns = match end.sleeps {
            Some((sleep_ns, period_ns)) if now_ns % period_ns == sleep_ns => sleep_ns,
            _ => 0,
        };
        end.path.start_turn(late_ns);
        while let Some(bytes) = end.inbox.pop_front() {
            let packet = Packet::decode(&bytes).expect("paths send valid packets");
            let arrival = end.path.handle_packet(now_ns, &packet).expect("and valid acks");
            let is_payload = !packet.payload.is_empty() && !packet.has(FLAG_MTU_PROBE);
            if arrival == ReplayCheck::Fresh && is_payload {
                end.receiver.handle_content(now_ns, packet.payload);
            }
            self.spare.push(bytes);
        }
        end.path.handle_timeout(now_ns, true);
        while let Some(event) = end.path.poll_event() {
            end.sender.handle_event(event);
        }
        end.sender.begin(now_ns);
        self.transmit(at);
        if let Some(time_ns) = self.ends[at].path.poll_timeout() {
            self.plan(at, time_ns);
        }
    }

    fn transmit(&mut self, at: usize) {
        let now_ns = self.events.now_ns;
        loop {
            let end = &mut self.ends[at];
            let (_, before, _) = end.path.load();
            let probes = end.path.counters().probes;
            let waits = super::super::PayloadSource::waiting_bytes(&end.sender) > 0;
            let lone = if waits && end.path.may_transmit_alone(now_ns, &end.sender) {
                end.path.transmit_alone(now_ns, &mut end.sender, &mut self.out)
            } else {
                None
            };
            let sent =
                lone.or_else(|| end.path.poll_transmit(now_ns, &mut end.sender, &mut self.out));
            let Some((length, _)) = sent else { break };
            let (window, in_flight, _) = end.path.load();
            let datagram = &self.out[..length];
            let elicits = datagram[1] & FLAG_ELICITS != 0;
            let is_probe = end.path.counters().probes > probes;
            assert!(elicits == (in_flight > before), "only ack-eliciting packets are in flight");
            if elicits && !is_probe && before > 0 {
                assert!(in_flight <= window, "{in_flight} in flight, the window is {window}");
            }
            end.in_flight_peak = end.in_flight_peak.max(in_flight);
            // 8 bytes of tag.
            for arrival_ns in self.links[at].send(now_ns, length + 8).into_iter().flatten() {
                let mut bytes = self.spare.pop().unwrap_or_default();
                bytes.clear();
                bytes.extend_from_slice(datagram);
                self.events.add(arrival_ns, Event::Arrival(1 - at, bytes));
            }
        }
        let end = &self.ends[at];
        let (_, in_flight, _) = end.path.load();
        let due_ns = end.path.poll_timeout();
        assert!(in_flight == 0 || due_ns.is_some(), "a timer is armed");
        let rests = end.path.rests_until_ns();
        assert!(due_ns.is_none_or(|due_ns| rests <= due_ns), "{rests}, and is due at {due_ns:?}");
        let waits = super::super::PayloadSource::waiting_bytes(&end.sender) > 0;
        assert!(!waits || end.path.poll_timeout().is_some(), "payload waits without a timer");
    }
}
