//! Messages whose rest is received into their receives ([`PlacedMessage`]).

use std::io::ErrorKind;

use super::ControlLanes;
use super::receive::StreamRead;
use crate::progress::context::LaneCx;
use crate::proto::paths::Paths;
use crate::proto::session::segments::{Beginning, PlacedMessage};

/// Reads in vain for the rest of a message, after one that brought a part of it, before others are
/// served: its sender is usually in the call that sends it, and the rest arrives within a
/// microsecond. None if several control lanes are polled.
const EMPTY_READS_MAX: u32 = 4;

/// Where the beginning of a message is.
pub(super) enum BeginningAt {
    /// In its receive, where the rest is received.
    InPlace(Box<MessageInPlace>),
    /// With other segments: it has a receive, but little of it is missing.
    AlmostWhole,
    /// With other segments: it is not received in place.
    WithOthers,
}

/// A message of which a part has arrived.
#[derive(Debug)]
pub(super) struct MessageInPlace {
    message: PlacedMessage,
    /// Bytes of the payload that have arrived.
    at: usize,
    /// The frame has arrived in another way meanwhile: the rest is dropped.
    is_duplicate: bool,
}

#[cfg(test)]
impl MessageInPlace {
    /// Returns how many bytes of the payload have arrived; `None`: they are dropped.
    pub(super) fn placed_bytes(&self) -> Option<usize> {
        (!self.is_duplicate).then_some(self.at)
    }
}

impl LaneCx<'_> {
    /// Returns the bytes that a session has received from its stream and not acknowledged.
    pub(super) fn unacknowledged_bytes(&self, session: u32) -> u32 {
        self.core.session(session).map_or(0, |it| it.segments().unacknowledged_bytes())
    }

    /// Copies the beginning of a message to its receive, if the rest is to be received there.
    /// `bytes`: all received ones of its segment.
    pub(super) fn place_beginning(&mut self, session: u32, bytes: &[u8]) -> BeginningAt {
        if bytes.is_empty() {
            return BeginningAt::WithOthers;
        }
        let message = match self.core.find_receive(session, bytes) {
            Some(Beginning::Placed(message)) => message,
            Some(Beginning::AlmostWhole) => return BeginningAt::AlmostWhole,
            None => return BeginningAt::WithOthers,
        };
        let payload = &bytes[message.head().len()..];
        if !self.completions.begin_placed(session, message.receive(), payload) {
            return BeginningAt::WithOthers;
        }
        let at = payload.len();
        BeginningAt::InPlace(Box::new(MessageInPlace { message, at, is_duplicate: false }))
    }
}

impl ControlLanes {
    /// Receives more of a message into its receive, and handles the message once it is whole.
    /// `has_read`: a read of this lane has brought bytes in this turn. `None`: there is no such
    /// message, or none any more; what has arrived of it is where that of other segments is.
    #[inline]
    pub(super) fn receive_in_place(
        &mut self,
        session: u32,
        has_read: bool,
        cx: &mut LaneCx<'_>,
    ) -> Option<StreamRead> {
        let control = self.all.get(session as usize)?;
        control.in_place.is_some().then(|| self.receive_rest(session, has_read, cx))?
    }

    /// Returns whether a part of such a message is still to arrive.
    #[inline]
    pub(super) fn is_placing(&self, session: u32) -> bool {
        self.all.get(session as usize).is_some_and(|it| it.in_place.is_some())
    }

    /// Does the same where there is such a message.
    fn receive_rest(
        &mut self,
        session: u32,
        has_read: bool,
        cx: &mut LaneCx<'_>,
    ) -> Option<StreamRead> {
        let mut empty_reads_left =
            if has_read && self.polled.len() <= 1 { EMPTY_READS_MAX } else { 0 };
        let control = self.all.get_mut(session as usize)?;
        let in_place = control.in_place.as_mut()?;
        let lane = control.lane?;
        let message = &in_place.message;
        in_place.is_duplicate |= !cx.core.is_next(session, message);
        let missing = message.length() - in_place.at;
        let driver = &mut *cx.driver;
        let read = loop {
            let read = if in_place.is_duplicate {
                let space = missing.min(self.receive_buffer.len());
                Some(driver.recv(lane, &mut self.receive_buffer[..space]))
            } else {
                let read = |room: &mut [u8]| driver.recv(lane, room);
                cx.completions.continue_placed(session, missing, read)
            };
            match read {
                Some(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Some(Err(error))
                    if error.kind() == ErrorKind::WouldBlock && empty_reads_left > 0 =>
                {
                    empty_reads_left -= 1;
                }
                read => break read,
            }
        };
        let got = match read {
            None => {
                control.partial.extend(message.head());
                control.partial.extend(&cx.completions.take_placed(session));
                control.in_place = None;
                return None;
            }
            Some(Ok(0)) => return Some(StreamRead::EndOfStream),
            Some(Ok(got)) => got,
            Some(Err(error)) if error.kind() == ErrorKind::WouldBlock => {
                return Some(StreamRead::Nothing);
            }
            Some(Err(error)) => return Some(StreamRead::Failed(error)),
        };
        in_place.at += got;
        let is_whole = in_place.at == message.length();
        if let Some((known, _)) = cx.core.enter(session) {
            known.control_lane_mut().note_bytes(is_whole);
        }
        Some(if is_whole { self.end_message(session, cx) } else { StreamRead::Bytes })
    }

    /// Handles a message that is whole.
    fn end_message(&mut self, session: u32, cx: &mut LaneCx<'_>) -> StreamRead {
        let Some(whole) = self.of(session).in_place.take() else { return StreamRead::Nothing };
        let MessageInPlace { message, is_duplicate, .. } = *whole;
        if is_duplicate {
            cx.completions.forget_placed(session);
            return StreamRead::Bytes;
        }
        let owed = cx.unacknowledged_bytes(session);
        let now_ns = *cx.now_ns;
        let handled = match cx.core.handle_placed(session, &message, now_ns, cx.completions) {
            Ok(Some((receive, arrival))) => {
                if !cx.completions.complete_placed(session, receive, &arrival) {
                    let payload = cx.completions.take_placed(session);
                    cx.completions.deliver_general(receive, &payload, &arrival);
                }
                Ok(0)
            }
            Ok(None) => {
                let mut bytes = message.head().to_vec();
                bytes.append(&mut cx.completions.take_placed(session));
                cx.core.handle_bytes(session, &bytes, now_ns, cx.completions)
            }
            Err(error) => Err(error),
        };
        self.note_stream(session, owed, cx);
        match handled {
            Ok(_) => StreamRead::Bytes,
            Err(error) => StreamRead::Invalid(error),
        }
    }

    /// Notes what a session has received from its stream, of which it owed `owed` bytes before.
    pub(super) fn note_stream(&mut self, session: u32, owed: u32, cx: &mut LaneCx<'_>) {
        let has_path = cx.paths.of(session).is_some_and(Paths::are_open);
        if has_path && cx.unacknowledged_bytes(session) != owed {
            self.of(session).is_streaming = true;
            cx.paths.note_streamed(session);
            cx.paths.note_stream(cx.core, *cx.now_ns, session);
        }
    }
}
