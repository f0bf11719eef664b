//! Establishment of a session's control lane: LA-MPI's connection states, with retries and an
//! election when two connections cross.
//!
//! ```text
//!            want()                 connected            reply: accepted
//!  Closed ──────────> Connecting ──────────> ConnectAck ────────────────> Connected
//!    ^ ^                  │ failed, timeout      │ rejected, timeout          │ lost, left
//!    │ │                  v                      v                            v
//!    │ └─ retries left ─ Backoff <───────────────┘                          Failed
//!    │                    │ retries exhausted, or permanent failure           ^
//!    │                    └───────────────────────────────────────────────────┘
//!    └── connect() by the user, or a hello of the peer, starts afresh
//!
//!  WaitPeer: the peer's own attempt wins the election; its hello is due.
//! ```
//!
//! An attempt uses one of the available ways: from one rail of this side to one address of the
//! peer. Unless the peer itself answers, the next attempt uses the next way, and a round of all
//! ways counts as one attempt, so that a peer is abandoned only when no way reaches it. A refusal
//! is no evidence about the peer: it may come from this host, which has that address, too, or from
//! a gateway.
//!
//! Election: when both sides connect at once, the connection made by the engine with the higher id
//! is kept. The loser's hello is rejected and the loser waits for the other one. An attempt takes
//! part once TCP is connected: one that a firewall or NAT drops never will be, and must not block
//! the peer's. A hello of the peer takes part against an attempt only if it answers that attempt's
//! own hello, since an attacker can replay an older one.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use super::late::{AtRest, Late};
use crate::proto::failure::PeerFailure;
use crate::wire::hello::HelloStatus;

/// State of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// No connection is wanted yet.
    Closed,
    /// TCP handshake under way.
    Connecting,
    /// Hello sent.
    ConnectAck,
    /// The peer's attempt won; its hello is due.
    WaitPeer,
    /// Waiting for the next attempt.
    Backoff,
    /// The session is established.
    Connected,
    /// Abandoned; operations fail until the user or the peer connects anew.
    Failed,
}

/// The next action of the loop for a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Nothing.
    Nothing,
    /// Open a TCP connection to the peer.
    Connect,
    /// The session fails.
    Fail(PeerFailure),
}

/// Retry policy, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    /// Time for one attempt, hello exchange included.
    pub(crate) timeout_ns: u64,
    /// Attempts after the first.
    pub(crate) retries: u32,
    /// Pause before the first retry; doubles, up to the timeout.
    pub(crate) delay_ns: u64,
    /// Limit on the time without a reply to hellos from a peer whose host accepts connections; 0:
    /// none.
    pub(crate) silent_ns: u64,
}

/// Time for TCP to connect while other ways are left, in nanoseconds; doubles with each round,
/// since round trips may be long.
const WAY_NS: u64 = 250_000_000;
/// Its maximum, or the way's share of an attempt's time if that is more, in nanoseconds: between
/// clusters TCP handshakes do not take longer.
const WAY_MAX_NS: u64 = 500_000_000;

/// How often the time for a reply to a hello doubles while the peer's engine is silent.
const SILENT_DOUBLINGS: u32 = 4;

/// One way to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Way {
    /// An address of the peer.
    pub(crate) remote: SocketAddr,
    /// The rail of this side.
    pub(crate) rail: u8,
    /// This host has the peer's address, too.
    pub(crate) is_own: bool,
    /// A different process that answers there has replaced the peer. Not so at other addresses of
    /// the peer than its first one, which may belong to another host on a network with equal
    /// addresses, nor at those that this host has, too.
    pub(crate) shows_successor: bool,
}

impl fmt::Display for Way {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} by rail {}", self.remote, self.rail)?;
        if self.is_own { out.write_str(" (this host has that address, too)") } else { Ok(()) }
    }
}

/// Results of the attempts of a round.
#[derive(Debug, Default)]
struct Round {
    /// The failure of each attempt.
    ends: Vec<(Way, PeerFailure)>,
}

impl AtRest for Round {
    const AT_REST: &'static Self = &Self { ends: Vec::new() };
}

impl Round {
    /// Returns the combined failure of all attempts, of which `last` is the last one.
    fn failure(&self, attempts: u32, last: PeerFailure) -> PeerFailure {
        let is_reason = |failure: &PeerFailure| !matches!(failure, PeerFailure::Unreachable { .. });
        if self.ends.len() < 2 || self.ends.iter().all(|(_, failure)| is_reason(failure)) {
            return last;
        }
        let describe = |(way, failure): &(Way, PeerFailure)| match failure {
            PeerFailure::Unreachable { cause, .. } => format!("{way}: {cause}"),
            failure => format!("{way}: {failure}"),
        };
        let ends: Vec<String> = self.ends.iter().map(describe).collect();
        let cause = format!("{} ways were tried: {}", ends.len(), ends.join("; ")).into();
        PeerFailure::Unreachable { attempts, cause }
    }

    fn has_successor(&self) -> bool {
        self.ends.iter().any(|(_, failure)| *failure == PeerFailure::Restarted)
    }
}

/// State of one connection. Pure: `now_ns` is an argument.
#[derive(Debug)]
pub(crate) struct Connection {
    phase: Phase,
    /// Rounds of attempts, the current one included.
    attempts: u32,
    /// The first way of a round: the one that reached the peer last.
    first: u32,
    /// Number of ways at the last attempt.
    ways: u8,
    /// Ways tried in this round.
    tried: u8,
    /// The peer itself has answered this attempt.
    is_reached: bool,
    /// An attempt of this round timed out without a reply.
    is_unanswered: bool,
    /// The way of the attempt, once it has started. Idle sessions have none.
    way: Option<Box<Way>>,
    /// Present where there are several ways.
    round: Late<Round>,
    deadline_ns: Option<u64>,
    /// Since when the peer's host accepts connections without a reply to a hello.
    silent_since_ns: Option<NonZeroU64>,
    /// Retry policy of the engine.
    retry: Arc<Retry>,
    /// Whether this side opened the connection in use.
    initiator: bool,
    /// Accepted hellos of the peer whose proof is expected.
    due: u32,
    /// The latest epoch among them.
    due_epoch: u32,
    /// Those among them that answer the hello of this attempt, so that they were made after it.
    crossing: u32,
    /// The latest epoch of the peer's hellos that led to a session.
    admitted_epoch: u32,
    /// Epoch of the hello of this attempt, or the last one.
    hello_epoch: u32,
    /// The peer's id is higher, so its connection is kept when two cross.
    peer_wins: bool,
}

impl Connection {
    pub(crate) fn new(retry: impl Into<Arc<Retry>>) -> Self {
        Self {
            phase: Phase::Closed,
            attempts: 0,
            first: 0,
            ways: 1,
            tried: 0,
            is_reached: false,
            is_unanswered: false,
            way: None,
            round: Late::NONE,
            deadline_ns: None,
            silent_since_ns: None,
            retry: retry.into(),
            initiator: false,
            due: 0,
            due_epoch: 0,
            crossing: 0,
            admitted_epoch: 0,
            hello_epoch: 0,
            peer_wins: false,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns whether the session is established.
    #[inline]
    pub(crate) fn is_connected(&self) -> bool {
        self.phase == Phase::Connected
    }

    /// Returns whether this side opened the connection in use (and so opens the bulk lanes).
    pub(crate) fn is_initiator(&self) -> bool {
        self.initiator
    }

    /// Marks the peer as this engine itself: no connection is needed.
    pub(crate) fn loop_back(&mut self) {
        self.establish(true);
    }

    /// Returns when [`Self::handle_timeout`] is due.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    /// Requests a connection, since there is something to send.
    pub(crate) fn want(&mut self, now_ns: u64) -> Step {
        match self.phase {
            Phase::Closed => {
                self.attempts = 0;
                self.silent_since_ns = None;
                self.begin_round();
                self.attempt(now_ns)
            }
            _ => Step::Nothing,
        }
    }

    fn begin_round(&mut self) {
        (self.tried, self.round, self.is_unanswered) = (0, Late::NONE, false);
    }

    fn way_number(&self) -> u32 {
        self.first.wrapping_add(self.tried.into())
    }

    /// Lets the next round begin with the way of this attempt, which reached the peer.
    fn keep_way(&mut self) {
        self.first = self.way_number();
        self.begin_round();
    }

    fn attempt(&mut self, now_ns: u64) -> Step {
        debug_assert!(
            matches!(self.phase, Phase::Closed | Phase::Backoff),
            "no other attempt is under way"
        );
        self.attempts += u32::from(self.tried == 0);
        (self.is_reached, self.way) = (false, None);
        self.phase = Phase::Connecting;
        self.deadline_ns = Some(now_ns + self.retry.timeout_ns);
        Step::Connect
    }

    /// Starts the attempt. Selects and returns one of these ways, of which there is at least one,
    /// and sets its timeout.
    pub(crate) fn take_way(&mut self, now_ns: u64, ways: &[Way]) -> Option<Way> {
        // At most 16.
        self.ways = ways.len().max(1) as u8;
        let timeout_ns = self.retry.timeout_ns;
        if self.ways > 1 {
            let most_ns = (timeout_ns / u64::from(self.ways)).max(WAY_MAX_NS).min(timeout_ns);
            let doublings = self.attempts.saturating_sub(1).min(20);
            self.deadline_ns = Some(now_ns + (WAY_NS << doublings).min(most_ns));
        }
        let way = ways.get((self.way_number() % u32::from(self.ways)) as usize).copied();
        self.way = way.map(Box::new);
        way
    }

    /// Returns whether a hello of the peer was accepted whose proof is expected.
    pub(crate) fn expects_peer(&self) -> bool {
        self.due > 0
    }

    /// Returns the epoch of the peer's hello that one of this side answers; 0: none is expected.
    pub(crate) fn answered(&self) -> u32 {
        if self.due > 0 { self.due_epoch } else { 0 }
    }

    /// Notes that TCP is connected and the hello with this epoch is being sent.
    pub(crate) fn handle_connected(&mut self, now_ns: u64, epoch: u32) {
        if self.phase == Phase::Connecting {
            self.phase = Phase::ConnectAck;
            (self.hello_epoch, self.crossing) = (epoch, 0);
            // A suspended process reads all hellos when it resumes: send fewer of them.
            let doublings = match self.silent_since_ns {
                Some(_) if self.ways <= 1 => self.attempts.saturating_sub(1).min(SILENT_DOUBLINGS),
                _ => 0,
            };
            self.deadline_ns = Some(now_ns + (self.retry.timeout_ns << doublings));
        }
    }

    /// Handles the failure of the attempt before the peer's reply was complete.
    ///
    /// RR-CONN-6.
    pub(crate) fn handle_attempt_failed(&mut self, now_ns: u64, cause: &str) -> Step {
        let (attempts, cause) = (self.attempts, Arc::from(cause));
        self.handle_attempt_ended(now_ns, PeerFailure::Unreachable { attempts, cause })
    }

    /// Handles the end of the attempt; `failure` is the session's if this was the last attempt.
    pub(crate) fn handle_attempt_ended(&mut self, now_ns: u64, mut failure: PeerFailure) -> Step {
        if !matches!(self.phase, Phase::Connecting | Phase::ConnectAck | Phase::WaitPeer) {
            return Step::Nothing;
        }
        let is_unanswered = self.is_unanswered;
        if !self.is_reached {
            self.tried += 1;
            if let Some(way) = self.way.as_deref().filter(|_| self.ways > 1) {
                self.round.ends.push((*way, failure.clone()));
            }
            debug_assert!(
                self.round.ends.len() <= usize::from(self.tried),
                "each attempt of a round has one end"
            );
            if self.tried < self.ways {
                // Another way needs no pause.
                (self.phase, self.deadline_ns) = (Phase::Backoff, Some(now_ns));
                return Step::Nothing;
            }
            if failure == PeerFailure::Restarted || self.round.has_successor() {
                self.fail();
                return Step::Fail(PeerFailure::Restarted);
            }
            failure = self.round.failure(self.attempts, failure);
            self.begin_round();
        } else {
            self.keep_way();
        }
        if !is_unanswered && self.silent_since_ns.take().is_some() {
            // The process resumed or ended: unanswered hellos no longer count.
            self.attempts = 1;
        }
        let is_spent = match self.stands_still(now_ns) {
            Some(is_waited_for) => !is_waited_for,
            None => self.attempts > self.retry.retries,
        };
        if is_spent {
            self.fail();
            return Step::Fail(failure);
        }
        self.back_off(now_ns);
        Step::Nothing
    }

    fn back_off(&mut self, now_ns: u64) {
        let doublings = self.attempts.saturating_sub(1).min(20);
        let delay_ns = (self.retry.delay_ns << doublings).min(self.retry.timeout_ns);
        self.phase = Phase::Backoff;
        self.deadline_ns = Some(now_ns + delay_ns);
    }

    /// Handles the peer's authenticated reply to the hello. A reply without a proof only ends the
    /// attempt ([`Self::handle_attempt_ended`]).
    pub(crate) fn handle_reply(&mut self, now_ns: u64, status: HelloStatus) -> Step {
        if self.phase != Phase::ConnectAck {
            return Step::Nothing;
        }
        self.is_reached = status != HelloStatus::WrongEngine;
        match status {
            // Both sides have accepted a hello of the other: the election decides here, before this
            // side has sent its proof. The peer's hello shows the crossing; one that does not may
            // be a replay, and an accepted attempt yields to none.
            HelloStatus::Accepted if self.crossing > 0 && self.peer_wins => {
                self.wait_for_peer(now_ns)
            }
            HelloStatus::Accepted => {
                self.establish(true);
                Step::Nothing
            }
            HelloStatus::ElectionLost => self.wait_for_peer(now_ns),
            // The peer's own connection, whose proof may be in transit. This attempt has failed in
            // either case.
            HelloStatus::AlreadyConnected if self.due > 0 => self.wait_for_peer(now_ns),
            HelloStatus::AlreadyConnected
            | HelloStatus::UnknownSession
            | HelloStatus::StaleEpoch => {
                self.handle_attempt_failed(now_ns, "the peer still holds an earlier connection")
            }
            HelloStatus::Busy => {
                let attempts = self.attempts;
                self.handle_attempt_ended(now_ns, PeerFailure::Full { attempts })
            }
            HelloStatus::WrongEngine if self.way.as_ref().is_none_or(|way| way.shows_successor) => {
                self.handle_attempt_ended(now_ns, PeerFailure::Restarted)
            }
            HelloStatus::WrongEngine => {
                self.handle_attempt_failed(now_ns, "another process has that address of the peer")
            }
            HelloStatus::Leaving => {
                self.fail();
                Step::Fail(PeerFailure::Left)
            }
            // A correct peer sends the last two without a proof.
            HelloStatus::Malformed | HelloStatus::WrongVersion | HelloStatus::WrongSecret => {
                self.fail();
                Step::Fail(PeerFailure::Rejected)
            }
        }
    }

    fn wait_for_peer(&mut self, now_ns: u64) -> Step {
        self.phase = Phase::WaitPeer;
        self.deadline_ns = Some(now_ns + self.retry.timeout_ns);
        Step::Nothing
    }

    /// Decides on a hello of the peer, received on a connection that it opened. `Accepted` means
    /// that the connection can become the session once the peer has authenticated itself; nothing
    /// changes yet.
    ///
    /// RR-CONN-4.
    pub(crate) fn judge_hello(&self, own_engine: u64, peer_engine: u64) -> HelloStatus {
        match self.phase {
            Phase::Connected if !planted!(SkipDeduplication) => HelloStatus::AlreadyConnected,
            Phase::ConnectAck if own_engine > peer_engine => HelloStatus::ElectionLost,
            _ => HelloStatus::Accepted,
        }
    }

    /// Notes an accepted hello of the peer; it has an epoch, and may answer one of this side's.
    pub(crate) fn expect_peer(&mut self, peer_wins: bool, epoch: u32, answered: u32) {
        let before = self.answered();
        (self.due, self.due_epoch) = (self.due + 1, before.max(epoch));
        self.crossing += u32::from(self.is_answer(answered));
        debug_assert!(self.crossing <= self.due, "hellos that cross are expected to be proved");
        self.peer_wins = peer_wins;
    }

    /// Notes that the proof that [`Self::expect_peer`] announced has arrived or will not arrive.
    pub(crate) fn forget_peer(&mut self, answered: u32) {
        debug_assert!(self.due > 0, "it was expected");
        self.due = self.due.saturating_sub(1);
        self.crossing = self.crossing.saturating_sub(u32::from(self.is_answer(answered)));
    }

    /// Returns whether a hello that answers that of an epoch was made after the last one of this
    /// side.
    fn is_answer(&self, answered: u32) -> bool {
        answered != 0 && answered == self.hello_epoch
    }

    /// Returns whether the peer's hello with this epoch is no newer than one that led to a session.
    pub(crate) fn is_stale(&self, epoch: u32) -> bool {
        epoch <= self.admitted_epoch
    }

    /// Admits the peer, authenticated on the connection that it opened by the hello with this
    /// epoch; an attempt of this side is dropped. Returns `false` if the hello is stale, or another
    /// connection is the session by now.
    pub(crate) fn admit(&mut self, epoch: u32) -> bool {
        let is_free = !self.is_stale(epoch)
            && (self.phase != Phase::Connected || planted!(SkipDeduplication));
        if is_free {
            self.establish(false);
            self.admitted_epoch = epoch;
        }
        is_free
    }

    fn establish(&mut self, initiator: bool) {
        self.phase = Phase::Connected;
        self.initiator = initiator;
        (self.deadline_ns, self.silent_since_ns, self.way) = (None, None, None);
        self.attempts = 0;
        if initiator {
            self.keep_way();
        } else {
            self.begin_round();
        }
    }

    /// Handles the expiry of [`Self::deadline_ns`]. If an attempt was in progress its lane is to be
    /// closed.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64) -> Step {
        if self.deadline_ns.is_none_or(|deadline| now_ns < deadline) {
            return Step::Nothing;
        }
        match self.phase {
            Phase::Backoff => self.attempt(now_ns),
            Phase::Connecting => {
                self.is_unanswered = true;
                self.handle_attempt_failed(now_ns, "no answer in time")
            }
            Phase::ConnectAck => self.handle_silence(now_ns),
            Phase::WaitPeer => {
                self.handle_attempt_failed(now_ns, "the peer's own connection did not arrive")
            }
            Phase::Closed | Phase::Connected | Phase::Failed => {
                debug_assert!(false, "nothing is waited for, and a deadline has expired");
                self.deadline_ns = None;
                Step::Nothing
            }
        }
    }

    /// Handles a peer whose host accepts connections without a reply, as for a suspended process.
    ///
    /// RR-END-6.
    fn handle_silence(&mut self, now_ns: u64) -> Step {
        let asked_ns = now_ns.saturating_sub(self.retry.timeout_ns);
        let asked_ns = NonZeroU64::new(asked_ns).unwrap_or(NonZeroU64::MIN);
        let since_ns = self.silent_since_ns.get_or_insert(asked_ns).get();
        self.is_unanswered = true;
        if self.stands_still(now_ns) == Some(true) {
            return self.handle_attempt_failed(now_ns, "the hello was not answered in time");
        }
        let seconds = now_ns.saturating_sub(since_ns) / 1_000_000_000;
        let cause = format!(
            "its host accepts connections, but no hello was answered in time for {seconds} s \
             (setting silent_timeout): its process is suspended, or has ended and left its \
             listener to a child"
        );
        self.handle_attempt_failed(now_ns, &cause)
    }

    /// Returns whether a possibly suspended peer is still waited for. `None`: it is no such peer,
    /// or the attempts' own time is at least as long.
    fn stands_still(&self, now_ns: u64) -> Option<bool> {
        let Retry { timeout_ns, silent_ns, .. } = *self.retry;
        let since_ns = self.silent_since_ns.filter(|_| silent_ns == 0 || silent_ns > timeout_ns)?;
        Some(silent_ns == 0 || now_ns.saturating_sub(since_ns.get()) < silent_ns)
    }

    /// Marks the session as ended.
    pub(crate) fn fail(&mut self) {
        self.phase = Phase::Failed;
        self.deadline_ns = None;
        self.begin_round();
    }

    /// Clears a failure, so that [`Self::want`] starts afresh.
    pub(crate) fn reset(&mut self) {
        if self.phase == Phase::Failed {
            self.phase = Phase::Closed;
        }
    }
}

#[cfg(test)]
mod tests;
