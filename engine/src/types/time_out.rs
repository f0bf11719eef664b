//! What a call that timed out says.

use std::fmt;
use std::time::Duration;

use super::address::Address;
use super::completion::Envelope;
use super::error::Error;

/// What became of what a call that timed out had begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TimeOutOutcome {
    /// It was taken back before it had begun: the peer has nothing of it, no message was taken.
    NotDone,
    /// It had gone out, and this side has given it up: the peer may have done all of it, a part, or
    /// nothing. Memory of this side that it was to fill may have a part of it.
    Unknown,
    /// A message had been matched and has not come whole: it is lost, and its sender's operation
    /// fails.
    MessageLost,
    /// It goes on without the call.
    GoesOn,
}

/// A call that timed out.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TimeOut {
    /// The call.
    pub call: &'static str,
    /// With whom, if it named a peer.
    pub peer: Option<Address>,
    /// Of a message: its context and tag, or what a receive asked for.
    pub envelope: Option<Envelope>,
    /// The time-out.
    pub after: Option<Duration>,
    /// What became of what it had begun.
    pub outcome: TimeOutOutcome,
}

impl TimeOut {
    /// A call of which nothing else is known.
    pub const fn new(call: &'static str, after: Option<Duration>, outcome: TimeOutOutcome) -> Self {
        Self { call, peer: None, envelope: None, after, outcome }
    }
}

impl From<TimeOut> for Error {
    fn from(time_out: TimeOut) -> Self {
        Self::TimedOut(Box::new(time_out))
    }
}

impl fmt::Display for TimeOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} timed out", self.call)?;
        if let Some(after) = self.after {
            write!(f, " after {after:?}")?;
        }
        if let Some(peer) = &self.peer {
            write!(f, ", peer {peer}")?;
        }
        if let Some(envelope) = &self.envelope {
            match envelope.is_tagged() {
                true => {
                    write!(f, ", context {}, tag {:#x}", envelope.context(), envelope.tag())?;
                }
                false => f.write_str(", untagged")?,
            }
        }
        f.write_str(match self.outcome {
            TimeOutOutcome::NotDone => ": it was taken back, and nothing was done",
            TimeOutOutcome::Unknown => {
                ": it had gone out and was given up, so its outcome is unknown: the peer may have \
                 all of it, a part or nothing"
            }
            TimeOutOutcome::MessageLost => {
                ": its message had begun to arrive and is lost, and its sender's operation fails"
            }
            TimeOutOutcome::GoesOn => ", and what it waits for goes on",
        })?;
        f.write_str("; see whether the peer runs and makes progress, or allow more time")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_call_tag_duration_and_outcome() {
        let after = Some(Duration::from_millis(2));
        let time_out = TimeOut {
            envelope: Some(Envelope::new(3, 42)),
            ..TimeOut::new("send_blocking", after, TimeOutOutcome::Unknown)
        };
        let text = Error::from(time_out).to_string();
        for part in ["send_blocking", "2ms", "context 3", "tag 0x2a", "unknown"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
