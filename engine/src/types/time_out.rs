//! Time-outs of calls.

use std::fmt;
use std::time::Duration;

use super::address::Address;
use super::completion::Envelope;
use super::error::Error;

/// The outcome of the operation that a call posted before it timed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TimeOutOutcome {
    /// It was cancelled before it began: no data was sent, and no message was matched.
    NotDone,
    /// It was aborted after it began: the peer may have done all of it, a part, or nothing. Local
    /// memory that it was to fill may contain a part.
    Unknown,
    /// A message was matched and had not arrived completely: it is lost, and the operation of its
    /// sender fails.
    MessageLost,
    /// It continues without the call.
    GoesOn,
}

/// A call that timed out.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TimeOut {
    /// The call.
    pub call: &'static str,
    /// The peer, if the call named one.
    pub peer: Option<Address>,
    /// Context and tag of the message or of the receive.
    pub envelope: Option<Envelope>,
    /// The time-out.
    pub after: Option<Duration>,
    /// The outcome of its operation.
    pub outcome: TimeOutOutcome,
}

impl TimeOut {
    /// A call without peer and envelope.
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
            TimeOutOutcome::NotDone => ": it was cancelled before any data was sent or received",
            TimeOutOutcome::Unknown => {
                ": it was aborted after it began, so its outcome is unknown: the peer may have all \
                 of it, a part or nothing"
            }
            TimeOutOutcome::MessageLost => {
                ": its message was matched, is lost, and the operation of its sender fails"
            }
            TimeOutOutcome::GoesOn => ", and its operation continues",
        })?;
        f.write_str("; check that the peer is running and makes progress, or allow more time")
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
