//! The engine, its loop, and its environment.

use super::kernel::{Kernel, Live};
use super::peer::length;
use super::script::Script;
use crate::proto::core::{Action, Config, Core, UNTAGGED};
use crate::proto::effects::{CompletionLevel, Ended};
use crate::proto::failure::PeerFailure;
use crate::proto::hint::Hint;
use crate::proto::keys::SessionKeys;
use crate::proto::peers::Admission;
use crate::proto::ready::Work;
use crate::proto::receive::ReceiveRequest;
use crate::proto::session::connection::Retry;
use crate::proto::session::send::{SendRefusal, SendRequest};
use crate::proto::session::{ControlFrame, Limits, NOTHING};
use crate::proto::sim::{
    ScriptedPeer, lane_hello, locator, receive_request, send_request, stage_empty,
};
use crate::proto::table::Id;
use crate::wire::MESSAGE_BYTES_MAX;
use crate::wire::chunk::CHUNK_HEADER_BYTES;
use crate::wire::hello::HelloStatus;

const OWN: u64 = 20;
/// Lower than the own id or higher, so that both results of an election occur.
const HOSTILE: u64 = 9;
const SOUND: u64 = 30;
const UNKNOWN_ENGINES: [u64; 3] = [19, 21, 22];
const SESSION: u64 = 77;

/// The endpoint and context for messages of the correct peer.
pub(super) const SOUND_ENDPOINT: u16 = 1;
pub(super) const SOUND_CONTEXT: u64 = 6;

/// Maximum number of operations: that of the correct peer needs one, too.
const LIVE_MAX: usize = 48;

pub(super) fn config() -> Config {
    Config {
        envelope_credits: 64,
        eager_credit_bytes: 8192,
        chunk_bytes: 4096,
        busy_chunk_bytes: 1000,
        bulk_lanes: 2,
        bulk_lanes_max: 4,
        unexpected_bytes: 100_000,
        unexpected_messages: 600,
        operations_max: 64,
        send_queue_ops: 40,
        staging_bytes: 8 << 10,
        retry: Retry { timeout_ns: 1000, retries: 1, delay_ns: 100, silent_ns: 1 },
        ..Config::for_tests()
    }
}

/// State of an attempt to connect to the hostile peer.
#[derive(Clone, Copy)]
enum Attempt {
    None,
    Connecting,
    AwaitReply(Limits),
}

/// The engine and its environment; see the module.
pub(super) struct FuzzedEngine {
    pub(super) core: Core,
    pub(super) kernel: Kernel,
    pub(super) now_ns: u64,
    /// Handles of the hostile peer's endpoints.
    peers: [Option<Id>; 2],
    pub(super) sound_peer: Id,
    /// Claimed messages; some of the claims have ended.
    claims: Vec<Id>,
    hostile_slot: u32,
    pub(super) sound_slot: u32,
    pub(super) hostile: ScriptedPeer,
    pub(super) sound: ScriptedPeer,
    attempt: Attempt,
    /// Bytes from the hostile peer that are no complete segment yet.
    partial: Vec<u8>,
    /// Bytes to the hostile and to the correct peer that are no complete segment yet.
    pub(super) outgoing: [Vec<u8>; 2],
    /// Bytes that these do not take yet.
    pub(super) unsent: [Vec<u8>; 2],
    /// Bytes that the connection to the hostile peer takes at once.
    takes: usize,
    /// Lanes with a connection, and lanes without one.
    joined: Vec<Id>,
    opening: Vec<Id>,
    /// Messages sent, and permitted, of the correct peer.
    pub(super) sound_messages: u32,
    pub(super) sound_limit: u32,
    is_third_open: bool,
    /// Accepted hellos whose proof is expected.
    pub(super) admissions: Vec<Admission>,
    /// Numbers that peers use once.
    epoch: u32,
    next_lane: u32,
}

impl FuzzedEngine {
    pub(super) fn new() -> Self {
        let mut core = Core::new(OWN, config().into());
        for endpoint in 0..3 {
            assert_eq!(core.shared_mut().endpoints_mut().open(), Some(endpoint));
        }
        let peers = [0, 1].map(|endpoint| core.insert_peer(HOSTILE, locator(), endpoint));
        let sound_peer = core.insert_peer(SOUND, locator(), 0).unwrap();
        let slots =
            [HOSTILE, SOUND].map(|engine| core.shared().peers().session_of(engine).unwrap());
        let mut engine = Self {
            core,
            kernel: Kernel::default(),
            now_ns: 1,
            peers,
            sound_peer,
            claims: Vec::new(),
            hostile_slot: slots[0],
            sound_slot: slots[1],
            hostile: ScriptedPeer::default(),
            sound: ScriptedPeer::new(1 << 20, 1 << 30),
            attempt: Attempt::None,
            partial: Vec::new(),
            outgoing: [Vec::new(), Vec::new()],
            unsent: [Vec::new(), Vec::new()],
            takes: usize::MAX,
            joined: Vec::new(),
            opening: Vec::new(),
            sound_messages: 0,
            sound_limit: 0,
            is_third_open: true,
            admissions: Vec::new(),
            epoch: 1,
            next_lane: 0,
        };
        let limits = [(HOSTILE, [2, 3000, 1000]), (SOUND, [1 << 20, 1 << 30, 1000])];
        for (id, limits) in limits {
            engine.hello(id, 1).unwrap();
            let admission = engine.admissions.pop().unwrap();
            engine.prove(admission, limits);
        }
        engine
    }

    /// Executes one random event.
    pub(super) fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 32 {
            0..7 => self.read_hostile(script),
            7..10 => self.send(script),
            10..13 => self.receive(script),
            13 => self.cancel(script),
            14..19 => self.turn(),
            19 => self.ping(),
            20 | 21 => self.join_lane(script),
            22..25 => self.chunk_event(script),
            25 => self.lane_event(script),
            26 => self.pass_time(script),
            27 => self.connection_event(script),
            28 => self.handshake(script),
            29 => self.change_peers(script),
            30 => self.takes = script.pick(&[0, 1, 40, 5000, usize::MAX]),
            _ => self.change_endpoint(script),
        }
    }

    // ---- The hostile peer ----

    fn is_up(&self) -> bool {
        self.core.sessions.at(self.hostile_slot as usize).unwrap().is_connected()
    }

    fn read_hostile(&mut self, script: &mut Script<'_>) {
        if !self.is_up() {
            return;
        }
        let mut names: Vec<u64> = self.kernel.live.keys().map(|id| id.to_u64()).collect();
        names.sort_unstable();
        let lanes: Vec<u32> =
            self.core.shared.lanes.iter().map(|(_, lane)| lane.number()).collect();
        let bytes = self.hostile.write(script, &names, &lanes);
        let (now, later) = bytes.split_at(bytes.len() - script.below(8).min(bytes.len()));
        self.handle(now);
        if !later.is_empty() {
            self.handle(later);
        }
    }

    pub(super) fn handle(&mut self, bytes: &[u8]) {
        if !self.is_up() {
            return;
        }
        self.partial.extend_from_slice(bytes);
        let slot = self.hostile_slot;
        match self.core.handle_bytes(slot, &self.partial, self.now_ns, &mut self.kernel) {
            Ok(used) => drop(self.partial.drain(..used)),
            Err(error) => {
                self.core
                    .with(slot, |it, mut cx| it.send_control(&mut cx, ControlFrame::goodbye(1)));
                let failure = PeerFailure::Protocol(error.to_string().into());
                self.core.fail_session(slot, failure, &mut self.kernel);
            }
        }
    }

    /// Handles a hello; accepted ones wait for their proof.
    fn hello(&mut self, engine: u64, epoch: u32) -> Result<(), HelloStatus> {
        self.carry_out();
        let locator: std::net::SocketAddr = "127.0.0.1:2".parse().unwrap();
        let admission = self.core.judge_hello(engine, locator, SESSION, epoch, 0)?;
        self.admissions.push(admission);
        Ok(())
    }

    /// Authenticates the sender of a hello.
    fn prove(&mut self, admission: Admission, limits: [u32; 3]) {
        self.carry_out();
        let [envelope_limit, byte_limit, eager_limit] = limits;
        let theirs =
            Limits { session: SESSION, envelope_limit, byte_limit, eager_limit, ..NOTHING };
        let ours = self.core.shared().offer(SESSION);
        let keys = SessionKeys::for_tests();
        match self.core.admit_peer(admission, ours, theirs, keys) {
            Some(slot) if slot == self.hostile_slot => self.established(limits),
            Some(slot) if slot == self.sound_slot => self.sound_limit = ours.envelope_limit,
            _ => {}
        }
    }

    fn established(&mut self, limits: [u32; 3]) {
        self.attempt = Attempt::None;
        self.hostile = ScriptedPeer::new(limits[0], limits[1]);
        self.unsent[0].clear();
        self.partial.clear();
        self.outgoing[0].clear();
    }

    fn handshake(&mut self, script: &mut Script<'_>) {
        let engine = script.pick(&[HOSTILE, HOSTILE, HOSTILE, SOUND, OWN, 0]);
        let engine = if script.flag() { engine } else { script.pick(&UNKNOWN_ENGINES) };
        let limits = [script.u32() >> (script.byte() % 32), script.u32(), length(script) as u32];
        self.epoch += u32::from(script.byte() < 240);
        let judged = self.hello(engine, self.epoch);
        if matches!(engine, 0 | OWN) {
            assert_eq!(judged, Err(HelloStatus::Malformed));
        } else if engine == SOUND {
            judged.expect_err("it is connected");
        }
        match script.byte() % 8 {
            0 => {}
            1 => self.admissions.drain(..).for_each(|admission| self.core.withdraw(admission)),
            _ if self.admissions.is_empty() => {}
            _ => {
                let admission = self.admissions.swap_remove(script.below(self.admissions.len()));
                self.prove(admission, limits);
            }
        }
    }

    fn join_lane(&mut self, script: &mut Script<'_>) {
        let engine = script.pick(&[HOSTILE, HOSTILE, HOSTILE, HOSTILE, UNKNOWN_ENGINES[0], 0]);
        let session = SESSION + u64::from(script.byte() > 240);
        self.next_lane += u32::from(script.byte() < 240);
        self.carry_out();
        let mut hello = lane_hello(engine, session, self.next_lane);
        if script.byte() > 250 {
            hello.lane = script.u32().into();
            let forged = self.core.join_as_lane(&hello, self.now_ns);
            assert!(forged.is_err() || hello.lane.get() == self.next_lane);
            self.joined.extend(forged);
        } else if let Ok(lane) = self.core.join_as_lane(&hello, self.now_ns) {
            self.joined.push(lane);
            self.core.make_lane_ready(lane, self.now_ns);
        }
    }

    // ---- Network and kernel ----

    fn chunk_event(&mut self, script: &mut Script<'_>) {
        match script.byte() % 4 {
            0 | 1 if !self.kernel.receiving.is_empty() => {
                let index = script.below(self.kernel.receiving.len());
                let outcome = script.byte();
                self.chunk_received(index, outcome);
            }
            2 if !self.kernel.sending.is_empty() => {
                let (lane, _) = self.kernel.sending.remove(script.below(self.kernel.sending.len()));
                match script.byte() {
                    0..200 if self.joined.contains(&lane) => {
                        let now_ns = self.now_ns;
                        self.core.with_lane(lane, |it, cx| it.handle_chunk_sent(cx, lane, now_ns));
                    }
                    _ if self.joined.contains(&lane) => self.close_lane(lane, true),
                    _ => {}
                }
            }
            _ => self.release(script.byte().into()),
        }
    }

    pub(super) fn chunk_received(&mut self, index: usize, outcome: u8) {
        let (lane, chunk) = self.kernel.receiving.remove(index);
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        if let Some(bulk) = self.core.shared.lanes.get(lane) {
            bytes = bulk.first_header(0).unwrap_or(bytes);
        }
        let header = match outcome {
            0..200 => Some(&bytes),
            200..230 => {
                bytes[usize::from(outcome) % CHUNK_HEADER_BYTES] ^= 1;
                Some(&bytes)
            }
            _ => None,
        };
        let (now_ns, kernel) = (self.now_ns, &mut self.kernel);
        let is_good = self.core.handle_chunk_received(lane, chunk, header, now_ns, kernel);
        assert!(!is_good || outcome < 200, "a header that differs agrees");
        if !is_good && self.joined.contains(&lane) {
            self.close_lane(lane, true);
        }
    }

    /// Releases the memory of a sent chunk.
    pub(super) fn release(&mut self, choice: usize) {
        let sending = &self.kernel.sending;
        let is_sent = |id: &Id| sending.iter().all(|(_, chunk)| chunk.operation != *id);
        let sent: Vec<usize> = (0..self.kernel.unreleased.len())
            .filter(|&i| is_sent(&self.kernel.unreleased[i]))
            .collect();
        if !sent.is_empty() {
            let id = self.kernel.unreleased.swap_remove(sent[choice % sent.len()]);
            self.core.handle_chunk_released(id, &mut self.kernel);
        }
    }

    fn lane_event(&mut self, script: &mut Script<'_>) {
        if !self.opening.is_empty() && script.flag() {
            let lane = self.opening.remove(script.below(self.opening.len()));
            match script.byte() % 4 {
                0 => self.core.refuse_lane(lane, self.now_ns),
                1 => self.core.lane_lost(lane, true, "refused", self.now_ns, &mut self.kernel),
                _ => {
                    self.joined.push(lane);
                    self.core.make_lane_ready(lane, self.now_ns);
                }
            }
        } else if !self.joined.is_empty() {
            let lane = self.joined[script.below(self.joined.len())];
            self.close_lane(lane, script.flag());
        }
    }

    fn close_lane(&mut self, lane: Id, is_failure: bool) {
        self.joined.retain(|&other| other != lane);
        self.opening.retain(|&other| other != lane);
        self.core.lane_lost(lane, is_failure, "closed", self.now_ns, &mut self.kernel);
    }

    fn pass_time(&mut self, script: &mut Script<'_>) {
        self.now_ns += script.pick(&[0, 1, 100, 1000, 1 << 30]);
        self.core.handle_timeouts(self.now_ns, &mut self.kernel);
        if script.flag() {
            self.core.close_idle_lanes(self.now_ns);
        }
    }

    fn connection_event(&mut self, script: &mut Script<'_>) {
        let slot = self.hostile_slot;
        if self.is_up() {
            if script.byte() < 60 {
                let failure = PeerFailure::Lost("cut".into());
                self.core.fail_session(slot, failure, &mut self.kernel);
            }
            return;
        }
        let ours = self.core.shared().offer(SESSION);
        let known = self.core.sessions.at_mut(slot as usize).unwrap();
        let step = match (self.attempt, script.byte() % 4) {
            (Attempt::None, _) => {
                self.core.connect(slot, self.now_ns);
                return;
            }
            (_, 0) => known.connection_mut().handle_attempt_failed(self.now_ns, "refused"),
            (Attempt::Connecting, _) => {
                known.connection_mut().handle_connected(self.now_ns, 1);
                self.attempt = Attempt::AwaitReply(ours);
                return;
            }
            (Attempt::AwaitReply(ours), _) => {
                let status = HelloStatus::from_wire(script.byte() % 12);
                let status = status.unwrap_or(HelloStatus::Malformed);
                let step = known.connection_mut().handle_reply(self.now_ns, status);
                if known.is_connected() {
                    let limits = [script.u32() >> (script.byte() % 32), script.u32(), 1000];
                    let [envelope_limit, byte_limit, eager_limit] = limits;
                    let theirs = Limits {
                        session: SESSION,
                        envelope_limit,
                        byte_limit,
                        eager_limit,
                        answers: true,
                        process_status: true,
                        ..NOTHING
                    };
                    self.core.establish(slot, ours, theirs, SessionKeys::for_tests());
                    return self.established(limits);
                }
                step
            }
        };
        self.attempt = Attempt::None;
        self.core.apply(slot, step, &mut self.kernel);
    }

    // ---- The user ----

    fn send(&mut self, script: &mut Script<'_>) {
        let peer = match script.byte() % 8 {
            7 => Some(self.sound_peer),
            other => self.peers[usize::from(other % 2)],
        };
        let Some(peer) = peer.filter(|_| self.kernel.live.len() < LIVE_MAX) else { return };
        let level = script.pick(&[
            CompletionLevel::Inject,
            CompletionLevel::Delivery,
            CompletionLevel::Match,
        ]);
        let context = 5 | script.pick(&[0, UNTAGGED]);
        let (tag, length) = (script.byte().into(), length(script).min(MESSAGE_BYTES_MAX));
        let hint = script.pick(&[Hint::None, Hint::Latency, Hint::Bulk, Hint::Priority]);
        let data = (script.byte().is_multiple_of(4)).then(|| script.u64());
        let request = SendRequest { level, hint, data, ..send_request(peer, context, tag, length) };
        let Ok(to) = self.core.destination(peer) else { return };
        if level == CompletionLevel::Inject
            && request.is_plain()
            && let Some(room) = self.core.stage_now(to, &request)
        {
            assert_eq!(room.len() as u64, length);
            return;
        }
        if let Ok(id) = self.core.new_send(&request) {
            self.kernel.started(id, Live::Send { length });
            self.core.enqueue(id, self.now_ns);
        }
    }

    fn receive(&mut self, script: &mut Script<'_>) {
        let peer = match script.byte() % 4 {
            2 => None,
            3 => Some(self.sound_peer),
            other => match self.peers[usize::from(other)] {
                None => return,
                peer => peer,
            },
        };
        let endpoint = if self.is_third_open { script.pick(&[0, 2]) } else { 0 };
        let capacity = length(script).min(MESSAGE_BYTES_MAX);
        let context = 5 | script.pick(&[0, UNTAGGED]);
        let (tag, ignore) = (u64::from(script.byte() % 3), script.pick(&[0, 0, 1, u64::MAX]));
        let min_free = (script.byte().is_multiple_of(4)).then(|| script.pick(&[0, 1, 100, 5000]));
        let request = receive_request(peer, context, tag, capacity);
        let request = ReceiveRequest { endpoint, ignore, min_free, ..request };
        let seen = self.core.peek(&request);
        if script.byte().is_multiple_of(8) {
            self.claim(&request, script);
            return;
        }
        if self.kernel.live.len() < LIVE_MAX
            && let Ok(id) = self.core.shared_mut().new_receive(&request)
        {
            self.kernel.started(id, Live::Receive { capacity });
            self.core.start_receive(id, &mut self.kernel);
            if let Err(refusal) = seen {
                let Some((ended, Ended::Failed(failure, _))) = &self.kernel.last else {
                    panic!("a receive waits although peek returns {refusal:?}")
                };
                assert_eq!((*ended, SendRefusal::Failed(failure.clone())), (id, refusal));
            }
        }
    }

    /// Claims a message, or receives or discards a claimed one.
    fn claim(&mut self, request: &ReceiveRequest, script: &mut Script<'_>) {
        if let Ok(Some((claim, _))) = self.core.claim(request) {
            self.claims.push(claim);
        }
        if self.claims.is_empty() || script.byte().is_multiple_of(2) {
            return;
        }
        let claim = self.claims.swap_remove(script.below(self.claims.len()));
        if self.kernel.live.len() >= LIVE_MAX || script.byte().is_multiple_of(2) {
            self.core.discard_claimed(claim);
            return;
        }
        let capacity = request.capacity;
        // Its endpoint may be closed.
        let made = self.core.shared_mut().new_claimed_receive(claim, capacity);
        if let Some(Ok(id)) = made {
            self.kernel.started(id, Live::Receive { capacity });
            self.core.start_claimed(id, claim, &mut self.kernel);
        }
    }

    fn cancel(&mut self, script: &mut Script<'_>) {
        let mut ids: Vec<Id> = self.kernel.live.keys().copied().collect();
        ids.sort_unstable();
        if ids.is_empty() {
            return;
        }
        let id = script.pick(&ids);
        let is_cancelled = match self.kernel.live[&id] {
            Live::Send { .. } => self.core.cancel_send(id, &mut self.kernel),
            Live::Receive { .. } => self.core.shared_mut().cancel_receive(id, &mut self.kernel),
        };
        let is_over = !self.kernel.live.contains_key(&id);
        assert!(is_cancelled == is_over || self.kernel.has_slices(id));
    }

    fn change_peers(&mut self, script: &mut Script<'_>) {
        let endpoint = script.below(2);
        self.peers[endpoint] = match self.peers[endpoint] {
            Some(peer) => {
                assert!(self.core.remove_peer(peer, &mut self.kernel));
                None
            }
            None => self.core.insert_peer(HOSTILE, locator(), endpoint as u16),
        };
    }

    fn change_endpoint(&mut self, script: &mut Script<'_>) {
        if self.is_third_open {
            self.core.close_endpoint(2, &mut self.kernel);
        } else if script.flag() {
            assert!(self.core.shared_mut().endpoints_mut().open_at(2));
        } else {
            return;
        }
        self.is_third_open = !self.is_third_open;
    }

    // ---- The loop ----

    pub(super) fn turn(&mut self) {
        for _ in 0..4 {
            stage_empty(&mut self.core, &mut self.kernel);
            self.core.poll_grants(self.now_ns);
            self.carry_out();
            while let Some(lane) = self.core.shared_mut().lanes_mut().poll_runnable() {
                if !self.joined.contains(&lane) {
                    continue;
                }
                if let Some(chunk) = self.core.shared_mut().next_receive(lane) {
                    self.kernel.receive(lane, chunk);
                }
                if let Some(chunk) = self.core.next_send(lane, &self.kernel) {
                    self.kernel.send(lane, chunk);
                }
            }
            for _ in 0..self.core.shared().ready().len(Work::Flush) {
                if let Some(slot) = self.core.shared_mut().ready_mut().take(Work::Flush) {
                    self.flush(slot);
                }
            }
        }
        self.carry_out();
    }

    /// Fails a path, and restores it, at each call.
    fn pair_rails(&mut self, session: u32) {
        self.core.with(session, |it, cx| it.rails_mut().describe_first_path(&cx));
        for number in 0..4 {
            if let Some(at) =
                self.core.enter(session).and_then(|(it, cx)| it.rails_mut().add_path(&cx, number))
            {
                self.core.with(session, |it, mut cx| it.path_ready(&mut cx, at, self.now_ns));
            }
        }
        self.core.with(session, |it, mut cx| it.path_lost(&mut cx, 0, self.now_ns));
        self.core.with(session, |it, mut cx| it.path_ready(&mut cx, 0, self.now_ns));
    }

    pub(super) fn carry_out(&mut self) {
        while let Some(action) = self.core.shared_mut().poll_action() {
            match action {
                Action::Connect { session } => {
                    assert_ne!(session, self.sound_slot);
                    self.attempt = Attempt::Connecting;
                }
                Action::CloseControl { session, is_failure } => {
                    assert_ne!(session, self.sound_slot, "failure: {is_failure}");
                    if session == self.hostile_slot {
                        self.attempt = Attempt::None;
                    }
                }
                Action::OpenLane { lane, .. } => self.opening.push(lane),
                Action::CloseLane { lane, is_failure } => self.close_lane(lane, is_failure),
                Action::AbandonLane { lane, .. } => self.close_lane(lane, true),
                Action::SegmentsLost { session, at, bytes } => {
                    let at = at.unwrap_or(0);
                    let now_ns = self.now_ns;
                    self.core.with(session, |it, cx| it.note_segments_lost(cx, at, bytes, now_ns));
                }
                Action::ProcessEnded { .. } => unreachable!("no peer is silent here"),
                Action::PairRails { session } => self.pair_rails(session),
                Action::GiveUp { .. } => unreachable!("no side wants checksums"),
                Action::Established { .. } | Action::PathChanged { .. } | Action::Requests => {}
                Action::Ended { session, .. } => assert_ne!(session, self.sound_slot),
                Action::Reconnect { session } => {
                    assert_ne!(session, self.sound_slot);
                    self.core.with(session, |it, mut cx| {
                        it.connection_mut().connect(&mut cx, self.now_ns)
                    });
                }
            }
        }
    }

    fn flush(&mut self, slot: u32) {
        let is_hostile = slot == self.hostile_slot;
        let takes = if is_hostile { self.takes } else { usize::MAX };
        let mut unsent = std::mem::take(&mut self.unsent[usize::from(!is_hostile)]);
        loop {
            if unsent.is_empty() {
                let into = &mut unsent;
                self.core.with(slot, |it, cx| it.append_next_segment(cx, into, true));
            }
            if unsent.is_empty() {
                break;
            }
            let taken = unsent.len().min(takes);
            if taken == 0 {
                break;
            }
            let bytes: Vec<u8> = unsent.drain(..taken).collect();
            if is_hostile || slot == self.sound_slot {
                self.outgoing[usize::from(!is_hostile)].extend_from_slice(&bytes);
                self.read(is_hostile);
            }
        }
        let is_taken = unsent.is_empty();
        self.unsent[usize::from(!is_hostile)] = unsent;
        if self.core.session(slot).is_some_and(|it| it.goodbye_progress(is_taken).is_done) {
            self.core.fail_session(slot, PeerFailure::Removed, &mut self.kernel);
        }
    }
}
