//! Two endpoints on one thread, what was asked of them, and what they made of it.
//!
//! The model: a source's messages and a target's receives are each in order, so the pairs are
//! the only stable matching of the two lists, however the calls and the network interleave.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringrail::{
    Buffer, Completion, CompletionLevel, Domain, Endpoint, Envelope, Error, Operation, OperationId,
    OperationKind, Owned, Peer, ReceiveOptions, Selector, SendOptions, Status,
};

use super::request::{Kind, Lane, Message, Receive, Shape, buffer, content, label};

/// No single step of a draining takes this long, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Once a case has hung, the smaller ones that are tried after it need not be waited for so long.
const PATIENCE_AFTER_HANG: Duration = Duration::from_secs(1);

static HAS_HUNG: AtomicBool = AtomicBool::new(false);

/// Operations of a side that are started at once: below the least limit of any setup.
const PENDING_MAX: usize = 12;

/// The longest message, in bytes.
pub(crate) const CAPACITY_MAX: usize = 300_000;

/// Envelopes that a peer has credit for at the least, unless the setting is less.
const ENVELOPES_LEAST: usize = 16;

/// Settings that allow more operations are not tried out to the full.
const ROOM_MAX: usize = 100;

/// How an operation ended, with its bytes.
type End = (Result<Status, Error>, Vec<u8>);

/// What was asked, and how it ended.
struct Asked<T> {
    what: T,
    /// Its name in the completion queue.
    id: Option<OperationId>,
    /// A cancel of it succeeded.
    is_cancelled: bool,
    /// It reports its end.
    reports: bool,
    end: Option<End>,
}

pub(crate) struct World {
    endpoints: [Endpoint<Owned>; 2],
    /// By side: side 0 and side 1 as it knows them.
    peers: [[Peer; 2]; 2],
    messages: Vec<Asked<Message>>,
    receives: Vec<Asked<Receive>>,
    handles: Vec<(Kind, usize, Operation)>,
    domain: Domain,
}

impl World {
    pub(crate) fn new(settings: &[(&str, &str)]) -> Self {
        let domain = crate::common::domain(settings);
        let attach = || domain.endpoint().unwrap().attach().unwrap();
        let endpoints = [attach(), attach()];
        let addresses = [endpoints[0].address(), endpoints[1].address()];
        let peers = [0, 1].map(|side: usize| {
            let insert = |other: usize| endpoints[side].insert_peer(&addresses[other]).unwrap();
            [insert(0), insert(1)]
        });
        let (messages, receives, handles) = (Vec::new(), Vec::new(), Vec::new());
        Self { endpoints, peers, messages, receives, handles, domain }
    }

    fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Whether a side has as many operations open as it may; what reports no end is open until
    /// its receive has ended.
    fn is_busy(&self, side: usize) -> bool {
        let pairs = self.pairs();
        let is_received = |number: usize| {
            pairs[number].is_some_and(|receive| self.receives[receive].end.is_some())
        };
        let sends = self.messages.iter().zip(0..).filter(|(asked, number)| {
            let is_over = asked.end.is_some() || (!asked.reports && is_received(*number));
            asked.what.side == side && !is_over
        });
        let receives = self.receives.iter();
        let receives = receives.filter(|asked| asked.what.side == side && asked.end.is_none());
        sends.count() + receives.count() >= PENDING_MAX
    }

    fn target(&self, message: &Message) -> Peer {
        self.peers[message.side][message.target()]
    }

    /// Adds a message that the endpoint took.
    fn sent(&mut self, message: &Message, id: Option<OperationId>, reports: bool) {
        let what = message.clone();
        self.messages.push(Asked { what, id, is_cancelled: false, reports, end: None });
    }

    // ---- Steps ----

    pub(crate) fn send(&mut self, message: &Message) {
        if self.is_busy(message.side) {
            return;
        }
        let number = self.messages.len();
        let bytes = buffer(self.domain(), &content(number, message.length), message.shape);
        let (peer, options) = (self.target(message), message.options());
        let endpoint = &self.endpoints[message.side];
        let sent = if message.lane == Lane::Untagged {
            endpoint.send(peer, Envelope::UNTAGGED, bytes, options)
        } else {
            endpoint.send(peer, label(message.lane, message.tag), bytes, options)
        };
        match sent {
            Ok(operation) => {
                self.handles.push((Kind::Send, number, operation));
                self.sent(message, None, true);
            }
            Err(mut rejected) => {
                assert!(rejected.error.is_would_block(), "{}", rejected.error);
                let bytes = rejected.buffer.gather().unwrap();
                assert!(bytes == content(number, message.length), "the buffer comes back whole");
            }
        }
    }

    pub(crate) fn post_send(&mut self, message: &Message, silent: bool) {
        if message.lane == Lane::Untagged {
            return self.send(message);
        }
        if self.is_busy(message.side) {
            return;
        }
        let number = self.messages.len();
        let bytes = buffer(self.domain(), &content(number, message.length), message.shape);
        let options = message.options().silent(silent);
        let (peer, label) = (self.target(message), label(message.lane, message.tag));
        let endpoint = &self.endpoints[message.side];
        match endpoint.post_send(peer, label, bytes, options.user_data(number as u64)) {
            Ok(id) => self.sent(message, id, !silent),
            Err(rejected) => assert!(rejected.error.is_would_block(), "{}", rejected.error),
        }
    }

    pub(crate) fn inject(&mut self, message: &Message) {
        let limit = self.domain().settings().inject_limit_bytes();
        if message.lane == Lane::Untagged || self.is_busy(message.side) {
            return;
        }
        let mut bytes = content(self.messages.len(), message.length);
        let (peer, label) = (self.target(message), label(message.lane, message.tag));
        let injected = self.endpoints[message.side].inject(
            peer,
            label,
            &bytes,
            SendOptions::new().more(message.more),
        );
        bytes.fill(0xdd);
        match injected {
            Ok(()) => self.sent(message, None, false),
            Err(Error::Misuse(_)) => assert!(message.length > limit, "within the limit"),
            Err(error) => assert!(error.is_would_block(), "{error}"),
        }
    }

    fn selector(&self, receive: &Receive) -> Selector {
        let source = if receive.lane == Lane::Own { receive.side } else { 1 - receive.side };
        let peer = self.peers[receive.side][source];
        let source = receive.directed.then_some(peer);
        Selector { source, envelope: label(receive.lane, receive.tag), ignore: receive.ignore }
    }

    fn posted(&mut self, receive: &Receive, id: Option<OperationId>) {
        let what = receive.clone();
        self.receives.push(Asked { what, id, is_cancelled: false, reports: true, end: None });
    }

    pub(crate) fn receive(&mut self, receive: &Receive) {
        if !self.is_busy(receive.side) {
            self.receive_now(receive);
        }
    }

    fn receive_now(&mut self, receive: &Receive) {
        let into = buffer(self.domain(), &vec![0; receive.capacity], receive.shape);
        let selector = self.selector(receive);
        let endpoint = &self.endpoints[receive.side];
        let posted = if receive.lane == Lane::Untagged {
            endpoint.receive(Selector::untagged(selector.source), into)
        } else {
            endpoint.receive(selector, into)
        };
        match posted {
            Ok(operation) => {
                self.handles.push((Kind::Receive, self.receives.len(), operation));
                self.posted(receive, None);
            }
            Err(rejected) => assert!(rejected.error.is_would_block(), "{}", rejected.error),
        }
    }

    pub(crate) fn post_receive(&mut self, receive: &Receive) {
        if receive.lane == Lane::Untagged {
            return self.receive(receive);
        }
        if self.is_busy(receive.side) {
            return;
        }
        let into = buffer(self.domain(), &vec![0; receive.capacity], receive.shape);
        let (selector, number) = (self.selector(receive), self.receives.len() as u64);
        match self.endpoints[receive.side].post_receive(
            selector,
            into,
            ReceiveOptions::new().user_data(number),
        ) {
            Ok(id) => self.posted(receive, Some(id)),
            Err(rejected) => assert!(rejected.error.is_would_block(), "{}", rejected.error),
        }
    }

    pub(crate) fn cancel(&mut self, kind: Kind, back: usize) {
        let count = match kind {
            Kind::Send => self.messages.len(),
            Kind::Receive => self.receives.len(),
        };
        if let Some(number) = count.checked_sub(back + 1) {
            self.cancel_one(kind, number);
        }
    }

    /// Cancels one operation, if it can be; the second time it cannot.
    fn cancel_one(&mut self, kind: Kind, number: usize) -> bool {
        let (side, id) = match kind {
            Kind::Send => (self.messages[number].what.side, self.messages[number].id),
            Kind::Receive => (self.receives[number].what.side, self.receives[number].id),
        };
        let mut handles = self.handles.iter_mut();
        let handle = handles.find(|(its, at, _)| (*its, *at) == (kind, number));
        let endpoint = &self.endpoints[side];
        let done = match (handle, id) {
            (Some((_, _, operation)), _) => {
                let done = operation.cancel();
                assert!(!(done && operation.cancel()), "cancelled twice");
                done
            }
            (None, Some(id)) => {
                let done = endpoint.cancel(id);
                assert!(!(done && endpoint.cancel(id)), "cancelled twice");
                done
            }
            (None, None) => false,
        };
        match kind {
            Kind::Send => {
                let asked = &mut self.messages[number];
                asked.is_cancelled |= done;
                // A cancelled operation reports even if its success is not wanted.
                asked.reports |= done;
            }
            Kind::Receive => self.receives[number].is_cancelled |= done,
        }
        done
    }

    pub(crate) fn peek(&mut self, side: usize, lane: Lane) {
        if lane == Lane::Untagged {
            return;
        }
        let any = Selector::from_any(label(lane, 0)).ignoring(u64::MAX);
        let Some(status) = self.endpoints[side].peek(any).unwrap() else { return };
        let from = if lane == Lane::Own { side } else { 1 - side };
        assert_eq!(status.peer, Some(self.peers[side][from]));
        // The oldest that is not matched, of those that have arrived.
        let pairs = self.pairs();
        let mut waiting = self.messages.iter().zip(&pairs).filter(|(asked, pair)| {
            (asked.what.side, asked.what.lane) == (from, lane)
                && pair.is_none()
                && !asked.is_cancelled
        });
        let (oldest, _) = waiting.next().expect("what is peeked was sent and is not matched");
        let expected = (oldest.what.tag, oldest.what.length);
        assert_eq!((status.envelope.tag(), status.length), expected);
    }

    /// One turn of a side's engine, and what came of it.
    pub(crate) fn turn(&mut self, side: usize) {
        let mut done: Vec<Completion> = Vec::new();
        self.endpoints[side].completions(&mut done, 100).unwrap();
        for completion in done {
            let number = completion.user_data as usize;
            let kind = match completion.kind {
                OperationKind::Send => Kind::Send,
                OperationKind::Receive => Kind::Receive,
                other => unreachable!("no {other:?} is posted here"),
            };
            self.ended(kind, number, completion.result, completion.buffer.unwrap());
        }
        for (kind, number, mut operation) in std::mem::take(&mut self.handles) {
            let its_side = match kind {
                Kind::Send => self.messages[number].what.side,
                Kind::Receive => self.receives[number].what.side,
            };
            let outcome = if its_side == side { operation.test() } else { Ok(None) };
            match outcome {
                Ok(Some(ended)) => self.ended(kind, number, Ok(ended.status), ended.buffer),
                Err(failed) => self.ended(kind, number, Err(failed.error), failed.buffer),
                Ok(None) => self.handles.push((kind, number, operation)),
            }
        }
    }

    fn ended(&mut self, kind: Kind, number: usize, result: Result<Status, Error>, mut b: Buffer) {
        let bytes = b.gather().unwrap();
        let (is_matched, is_cancelled) = match kind {
            Kind::Send => (self.pairs()[number].is_some(), self.messages[number].is_cancelled),
            Kind::Receive => {
                (self.pairs().contains(&Some(number)), self.receives[number].is_cancelled)
            }
        };
        match &result {
            Err(Error::Cancelled) => assert!(is_cancelled, "{kind:?} {number} was not cancelled"),
            Ok(_) | Err(Error::Truncated { .. }) => {
                assert!(!is_cancelled, "{kind:?} {number} was cancelled");
                let waits = kind == Kind::Receive
                    || self.messages[number].what.level == CompletionLevel::Match;
                assert!(is_matched || !waits, "{kind:?} {number} ended before it matched");
            }
            Err(error) => panic!("{kind:?} {number}: {error}"),
        }
        let end = match kind {
            Kind::Send if !self.messages[number].reports => panic!("send {number} was silent"),
            Kind::Send => &mut self.messages[number].end,
            Kind::Receive => &mut self.receives[number].end,
        };
        assert!(end.is_none(), "{kind:?} {number} ended twice");
        *end = Some((result, bytes));
    }

    // ---- The model ----

    /// The receive of each message.
    fn pairs(&self) -> Vec<Option<usize>> {
        let mut is_taken = vec![false; self.receives.len()];
        let mut pair = |asked: &Asked<Message>| {
            let mut receives = self.receives.iter().zip(0..);
            let (_, number) = receives.find(|(receive, number): &(&Asked<Receive>, usize)| {
                !is_taken[*number]
                    && !receive.is_cancelled
                    && !asked.is_cancelled
                    && receive.what.accepts(&asked.what)
            })?;
            is_taken[number] = true;
            Some(number)
        };
        self.messages.iter().map(&mut pair).collect()
    }

    /// Turns both engines until `is_done`.
    fn drain(&mut self, what: &str, is_done: impl Fn(&Self) -> bool) {
        let has_hung = HAS_HUNG.load(Ordering::Relaxed);
        let patience = if has_hung { PATIENCE_AFTER_HANG } else { PATIENCE };
        let deadline = Instant::now() + patience;
        while !is_done(self) {
            if Instant::now() >= deadline {
                HAS_HUNG.store(true, Ordering::Relaxed);
                panic!("{what}: {}", self.outstanding());
            }
            self.turn(0);
            self.turn(1);
        }
    }

    fn outstanding(&self) -> String {
        let sends = self.messages.iter().zip(0..).filter(|(asked, _)| asked.end.is_none());
        let sends: Vec<usize> = sends.map(|(_, number)| number).collect();
        let receives = self.receives.iter().zip(0..).filter(|(asked, _)| asked.end.is_none());
        let receives: Vec<usize> = receives.map(|(_, number)| number).collect();
        format!("sends {sends:?} and receives {receives:?} have not ended")
    }

    /// The receives whose messages the credit for envelopes lets through: those before them that
    /// wait for a receive take less than all of it.
    fn due(&self) -> Vec<usize> {
        let window = self.domain().settings().envelope_credits().min(ENVELOPES_LEAST);
        let session = |what: &Message| (what.side, what.lane == Lane::Own);
        let mut waiting: Vec<(usize, bool)> = Vec::new();
        let mut due = Vec::new();
        for (asked, receive) in self.messages.iter().zip(self.pairs()) {
            let session = session(&asked.what);
            match receive {
                Some(receive) => {
                    let before = waiting.iter().filter(|&&other| other == session).count();
                    due.extend((before < window).then_some(receive));
                }
                None if !asked.is_cancelled => waiting.push(session),
                None => {}
            }
        }
        due
    }

    fn settle(&mut self) {
        let due = self.due();
        self.drain("matched receives", |world| {
            due.iter().all(|&number| world.receives[number].end.is_some())
        });
    }

    /// Everything that can match does; the rest is cancelled or received; all is as it must be.
    pub(crate) fn finish(mut self) {
        self.settle();
        let pairs = self.pairs();
        for number in 0..self.receives.len() {
            if !pairs.contains(&Some(number)) && !self.receives[number].is_cancelled {
                assert!(self.cancel_one(Kind::Receive, number), "receive {number} has no match");
            }
        }
        for number in 0..self.messages.len() {
            if self.messages[number].is_cancelled || self.pairs()[number].is_some() {
                continue;
            }
            let message = self.messages[number].what.clone();
            let (side, lane, tag) = (message.target(), message.lane, message.tag);
            let (capacity, ignore, directed) = (CAPACITY_MAX, u64::MAX, false);
            let (shape, latest) = (Shape::Heap, self.receives.len());
            self.receive_now(&Receive { side, lane, tag, ignore, directed, capacity, shape });
            assert_eq!(self.receives.len(), latest + 1, "there is room for a receive");
            assert_eq!(self.pairs()[number], Some(latest), "the oldest message is taken");
            // What it kept from going out, too.
            self.settle();
        }
        self.drain("receives", |world| world.receives.iter().all(|asked| asked.end.is_some()));
        self.drain("sends", |world| {
            world.messages.iter().all(|asked| asked.end.is_some() || !asked.reports)
        });
        self.drain("room", |world| world.has_all_room(0) && world.has_all_room(1));
        self.check();
    }

    /// Whether a side has room for as many operations as the settings say: nothing is left over.
    fn has_all_room(&self, side: usize) -> bool {
        let settings = self.domain().settings();
        let room = settings.operations_max().min(settings.cq_entries());
        if room > ROOM_MAX {
            return true;
        }
        let unused = Selector::from_any(Envelope::new(u32::MAX, 0));
        let post = |_| self.endpoints[side].receive(unused, Vec::new()).ok();
        let posted: Vec<Operation> = (0..room).map_while(post).collect();
        let is_all = posted.len() == room;
        for mut operation in posted {
            assert!(operation.cancel(), "no message matches it");
            let failed = operation.test().expect_err("a cancelled receive is over");
            assert!(matches!(failed.error, Error::Cancelled));
        }
        is_all
    }

    fn check(&self) {
        for (asked, number) in self.receives.iter().zip(0..) {
            let Some((Err(Error::Cancelled), bytes)) = &asked.end else { continue };
            assert_eq!(bytes.len(), asked.what.capacity, "receive {number} gives its bytes back");
            assert!(bytes.iter().all(|&byte| byte == 0), "receive {number} was cancelled");
        }
        for (pair, number) in self.pairs().into_iter().zip(0..) {
            let asked = &self.messages[number];
            let message = &asked.what;
            let expected = content(number, message.length);
            if let Some((result, bytes)) = &asked.end {
                assert!(*bytes == expected, "send {number} gives its bytes back");
                if let Ok(status) = result {
                    let sent = (message.length, Some(self.target(message)));
                    assert_eq!((status.length, status.peer), sent, "send {number}");
                }
            }
            let Some(receive) = pair else { continue };
            let Asked { what, end: Some((result, bytes)), .. } = &self.receives[receive] else {
                panic!("receive {receive} of message {number} has not ended");
            };
            let fits = message.length.min(what.capacity);
            assert!(bytes[..fits] == expected[..fits], "message {number} in receive {receive}");
            assert!(bytes[fits..].iter().all(|&byte| byte == 0), "bytes behind message {number}");
            match result {
                Ok(status) => {
                    assert_eq!(status.length, message.length);
                    let from = self.peers[what.side][message.side];
                    assert_eq!(status.peer, Some(from));
                    if message.lane != Lane::Untagged {
                        assert_eq!(status.envelope, label(message.lane, message.tag));
                    }
                }
                Err(Error::Truncated { status, capacity }) => {
                    let lengths = (message.length, what.capacity as u64);
                    assert_eq!((status.length, *capacity), lengths);
                    assert!(status.length as u64 > *capacity);
                }
                Err(error) => panic!("receive {receive}: {error}"),
            }
        }
    }
}
