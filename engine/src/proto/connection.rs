//! How the control lane of a session comes to be: LA-MPI's connection states, with retries and an
//! election for connects that cross.
//!
//! ```text
//!            want()                 connected            reply: accepted
//!  Closed ──────────> Connecting ──────────> ConnectAck ────────────────> Connected
//!    ^ ^                  │ failed, timeout      │ rejected, timeout          │ lost, left
//!    │ │                  v                      v                            v
//!    │ └─ retries left ─ Backoff <───────────────┘                          Failed
//!    │                    │ retries spent, or the peer cannot be right        ^
//!    │                    └───────────────────────────────────────────────────┘
//!    └── connect() by the user, or a hello of the peer, starts afresh
//!
//!  WaitPeer: the peer's own attempt wins the election; its hello is due.
//! ```
//!
//! Election: when both sides connect at once, the connection made by the engine with the higher id
//! is kept. The loser's hello is rejected and the loser waits for the other one.

use std::sync::Arc;

use super::failure::PeerFailure;
use crate::wire::hello::HelloStatus;

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Nothing wanted yet.
    Closed,
    /// TCP handshake under way.
    Connecting,
    /// Hello sent.
    ConnectAck,
    /// The peer's attempt won; its hello is due.
    WaitPeer,
    /// Waiting for the next attempt.
    Backoff,
    /// Segments flow.
    Connected,
    /// Given up; operations fail until the user or the peer connects anew.
    Failed,
}

/// What the loop has to do next for a connection.
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
}

/// One connection's state. Pure: `now_ns` comes in.
#[derive(Debug)]
pub(crate) struct Connection {
    phase: Phase,
    attempts: u32,
    deadline_ns: Option<u64>,
    retry: Retry,
    /// Whether this side opened the connection in use.
    initiator: bool,
}

impl Connection {
    pub(crate) fn new(retry: Retry) -> Self {
        Self { phase: Phase::Closed, attempts: 0, deadline_ns: None, retry, initiator: false }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether this side opened the connection in use (and so opens the bulk lanes).
    pub(crate) fn is_initiator(&self) -> bool {
        self.initiator
    }

    /// The peer is this engine itself: nothing needs to be connected.
    pub(crate) fn loop_back(&mut self) {
        self.establish(true);
    }

    /// When [`Self::handle_timeout`] is due.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    /// There is something to send.
    pub(crate) fn want(&mut self, now_ns: u64) -> Step {
        match self.phase {
            Phase::Closed => {
                self.attempts = 0;
                self.attempt(now_ns)
            }
            _ => Step::Nothing,
        }
    }

    fn attempt(&mut self, now_ns: u64) -> Step {
        self.attempts += 1;
        self.phase = Phase::Connecting;
        self.deadline_ns = Some(now_ns + self.retry.timeout_ns);
        Step::Connect
    }

    /// TCP is connected and the hello is on its way.
    pub(crate) fn handle_connected(&mut self) {
        if self.phase == Phase::Connecting {
            self.phase = Phase::ConnectAck;
        }
    }

    /// The attempt failed before the peer's reply was complete.
    ///
    /// RR-CONN-6.
    pub(crate) fn handle_attempt_failed(&mut self, now_ns: u64, cause: &str) -> Step {
        if !matches!(self.phase, Phase::Connecting | Phase::ConnectAck | Phase::WaitPeer) {
            return Step::Nothing;
        }
        if self.attempts > self.retry.retries {
            let (attempts, cause) = (self.attempts, Arc::from(cause));
            self.fail();
            return Step::Fail(PeerFailure::Unreachable { attempts, cause });
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

    /// The peer answered the hello.
    pub(crate) fn handle_reply(
        &mut self,
        now_ns: u64,
        status: HelloStatus,
        their_version: u16,
    ) -> Step {
        if self.phase != Phase::ConnectAck {
            return Step::Nothing;
        }
        match status {
            HelloStatus::Accepted => {
                self.establish(true);
                Step::Nothing
            }
            HelloStatus::ElectionLost => {
                self.phase = Phase::WaitPeer;
                self.deadline_ns = Some(now_ns + self.retry.timeout_ns);
                Step::Nothing
            }
            HelloStatus::AlreadyConnected | HelloStatus::UnknownSession => {
                self.handle_attempt_failed(now_ns, "the peer still holds an earlier connection")
            }
            HelloStatus::Busy => self.handle_attempt_failed(
                now_ns,
                "the peer is at its limit of sessions (setting sessions_max there)",
            ),
            HelloStatus::WrongEngine => {
                self.fail();
                Step::Fail(PeerFailure::Restarted)
            }
            HelloStatus::WrongVersion => {
                self.fail();
                let ours = crate::wire::VERSION;
                Step::Fail(PeerFailure::Version { theirs: their_version, ours })
            }
            HelloStatus::Leaving => {
                self.fail();
                Step::Fail(PeerFailure::Left)
            }
            HelloStatus::Malformed => {
                self.fail();
                Step::Fail(PeerFailure::Rejected)
            }
        }
    }

    /// A hello of the peer came in over a connection that it opened. `Accepted` means that this
    /// connection is the session now and an attempt of this side is to be dropped.
    ///
    /// RR-CONN-4.
    pub(crate) fn handle_hello(&mut self, own_engine: u64, peer_engine: u64) -> HelloStatus {
        match self.phase {
            Phase::Connected => HelloStatus::AlreadyConnected,
            Phase::Connecting | Phase::ConnectAck if own_engine > peer_engine => {
                HelloStatus::ElectionLost
            }
            _ => {
                self.establish(false);
                HelloStatus::Accepted
            }
        }
    }

    fn establish(&mut self, initiator: bool) {
        self.phase = Phase::Connected;
        self.initiator = initiator;
        self.deadline_ns = None;
        self.attempts = 0;
    }

    /// [`Self::deadline_ns`] has passed. When an attempt was under way its lane is to be closed.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64) -> Step {
        if self.deadline_ns.is_none_or(|deadline| now_ns < deadline) {
            return Step::Nothing;
        }
        match self.phase {
            Phase::Backoff => self.attempt(now_ns),
            Phase::Connecting => self.handle_attempt_failed(now_ns, "no answer in time"),
            Phase::ConnectAck => {
                self.handle_attempt_failed(now_ns, "connected, but no hello came back in time")
            }
            Phase::WaitPeer => {
                self.handle_attempt_failed(now_ns, "the peer's own connection did not arrive")
            }
            Phase::Closed | Phase::Connected | Phase::Failed => {
                self.deadline_ns = None;
                Step::Nothing
            }
        }
    }

    /// The session ended.
    pub(crate) fn fail(&mut self) {
        self.phase = Phase::Failed;
        self.deadline_ns = None;
    }

    /// Forgets a failure, so that [`Self::want`] starts afresh.
    pub(crate) fn reset(&mut self) {
        if self.phase == Phase::Failed {
            self.phase = Phase::Closed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Retry = Retry { timeout_ns: 1000, retries: 2, delay_ns: 10 };

    /// RR-CONN-6
    #[test]
    fn retries_back_off_and_then_name_the_cause() {
        let mut connection = Connection::new(RETRY);
        assert_eq!(connection.want(0), Step::Connect);
        assert_eq!(connection.handle_attempt_failed(5, "refused"), Step::Nothing);
        assert_eq!(connection.deadline_ns(), Some(15));
        assert_eq!(connection.handle_timeout(14), Step::Nothing);
        assert_eq!(connection.handle_timeout(15), Step::Connect);
        assert_eq!(connection.handle_attempt_failed(20, "refused"), Step::Nothing);
        assert_eq!(connection.deadline_ns(), Some(40));
        assert_eq!(connection.handle_timeout(40), Step::Connect);
        let failure = PeerFailure::Unreachable { attempts: 3, cause: "refused".into() };
        assert_eq!(connection.handle_attempt_failed(41, "refused"), Step::Fail(failure));
        assert_eq!(connection.want(50), Step::Nothing);
        connection.reset();
        assert_eq!(connection.want(50), Step::Connect);
    }

    /// RR-CONN-4
    #[test]
    fn exactly_one_of_two_crossing_connections_survives() {
        // Every order in which the two hellos can meet the two states.
        for hello_of_low_first in [true, false] {
            let (low_id, high_id) = (1, 2);
            let mut low = Connection::new(RETRY);
            let mut high = Connection::new(RETRY);
            low.want(0);
            high.want(0);
            low.handle_connected();
            high.handle_connected();
            let of_low;
            let of_high;
            if hello_of_low_first {
                of_low = high.handle_hello(high_id, low_id);
                of_high = low.handle_hello(low_id, high_id);
            } else {
                of_high = low.handle_hello(low_id, high_id);
                of_low = high.handle_hello(high_id, low_id);
            }
            assert_eq!((of_low, of_high), (HelloStatus::ElectionLost, HelloStatus::Accepted));
            low.handle_reply(1, of_low, 1);
            high.handle_reply(1, of_high, 1);
            assert_eq!((low.phase(), high.phase()), (Phase::Connected, Phase::Connected));
            assert!(!low.is_initiator() && high.is_initiator());
        }
    }

    #[test]
    fn the_loser_waits_and_tries_again_when_the_winner_never_comes() {
        let mut connection = Connection::new(RETRY);
        connection.want(0);
        connection.handle_connected();
        connection.handle_reply(1, HelloStatus::ElectionLost, 1);
        assert_eq!(connection.phase(), Phase::WaitPeer);
        assert_eq!(connection.handle_timeout(1001), Step::Nothing);
        assert_eq!(connection.phase(), Phase::Backoff);
        assert_eq!(connection.handle_timeout(1011), Step::Connect);
    }

    #[test]
    fn a_restarted_peer_is_known_at_once() {
        let mut connection = Connection::new(RETRY);
        connection.want(0);
        connection.handle_connected();
        let step = connection.handle_reply(1, HelloStatus::WrongEngine, 1);
        assert_eq!(step, Step::Fail(PeerFailure::Restarted));
    }
}
