//! Messages whose rest is received into their receives ([`PlacedMessage`]).

use std::io::{self, ErrorKind};

use super::ControlLanes;
use super::receive::StreamRead;
use crate::progress::completions::Completions;
use crate::progress::context::LaneCx;
use crate::proto::paths::Paths;
use crate::proto::session::segments::PlacedMessage;
use crate::proto::table::Id;

/// Maximum bytes that one turn receives into a receive.
const PLACED_BYTES_PER_TURN: usize = 256 << 10;

/// A message of which a part is in the memory of its receive.
#[derive(Debug)]
pub(super) struct Placement {
    message: PlacedMessage,
    /// Bytes of the payload that have arrived.
    at: usize,
    /// They are in the memory of the receive; `false`: the message has arrived in another way, and
    /// its rest is dropped.
    is_needed: bool,
}

impl LaneCx<'_> {
    /// Returns the bytes that a session has received from its stream and not acknowledged.
    pub(super) fn unacknowledged_bytes(&self, session: u32) -> u32 {
        self.core.session(session).map_or(0, |it| it.segments().unacknowledged_bytes())
    }

    /// Copies the beginning of a message to its receive, if the rest is to be received there.
    /// `bytes`: all received ones of its segment.
    pub(super) fn place_beginning(&mut self, session: u32, bytes: &[u8]) -> Option<Placement> {
        let message = self.core.find_receive(session, bytes)?;
        let payload = &bytes[message.head().len()..];
        let copy = |room: &mut [u8]| room.copy_from_slice(payload);
        self.completions.with_memory(message.receive(), 0..payload.len(), copy)?;
        self.completions.count_copied(payload.len() as u64);
        // The memory is one piece, which is as long as the receive is.
        Some(Placement { message, at: payload.len(), is_needed: true })
    }
}

impl ControlLanes {
    /// Returns whether the rest of a message is received into its receive.
    #[inline]
    pub(super) fn is_placing(&self, session: u32) -> bool {
        self.all.get(session as usize).is_some_and(|it| it.placement.is_some())
    }

    /// Receives more of a message into its receive, and handles the message once it is whole.
    pub(super) fn receive_in_place(&mut self, session: u32, cx: &mut LaneCx<'_>) -> StreamRead {
        let control = self.all.get_mut(session as usize);
        let Some((lane, placement)) = control.and_then(|it| it.lane.zip(it.placement.as_mut()))
        else {
            return StreamRead::Nothing;
        };
        let message = &placement.message;
        placement.is_needed = placement.is_needed
            && cx.core.is_next(session, message)
            && cx.core.is_receive_posted(message);
        let space = (message.length() - placement.at).min(PLACED_BYTES_PER_TURN);
        let range = placement.at..placement.at + space;
        let driver = &mut *cx.driver;
        let received = match placement.is_needed {
            true => cx
                .completions
                .with_memory(message.receive(), range, |room| driver.recv(lane, room))
                .unwrap_or_else(|| Err(io::Error::other("a posted receive has no memory"))),
            false => {
                let space = space.min(self.receive_buffer.len());
                driver.recv(lane, &mut self.receive_buffer[..space])
            }
        };
        let got = match received {
            Ok(0) => return StreamRead::EndOfStream,
            Ok(got) => got,
            Err(error) => {
                return match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::Interrupted => StreamRead::Nothing,
                    _ => StreamRead::Failed(error),
                };
            }
        };
        placement.at += got;
        let is_whole = placement.at == message.length();
        if let Some((known, _)) = cx.core.enter(session) {
            known.control_lane_mut().note_bytes(is_whole);
        }
        match is_whole {
            true => self.end_placement(session, cx),
            false => StreamRead::Bytes,
        }
    }

    /// Handles a message that is whole.
    fn end_placement(&mut self, session: u32, cx: &mut LaneCx<'_>) -> StreamRead {
        let Some(Placement { message, is_needed, .. }) = self.of(session).placement.take() else {
            return StreamRead::Nothing;
        };
        if !is_needed {
            return match cx.core.is_next(session, &message) {
                true => StreamRead::Failed(io::Error::other("a message has lost its receive")),
                false => StreamRead::Bytes,
            };
        }
        let owed = cx.unacknowledged_bytes(session);
        let now_ns = *cx.now_ns;
        match cx.core.handle_placed(session, &message, now_ns, cx.completions) {
            Ok(Some(arrival)) => cx.completions.complete_placed(message.receive(), &arrival),
            Ok(None) => {
                let bytes = segment_of(&message, message.length(), cx.completions);
                let handled = cx.core.handle_bytes(session, &bytes, now_ns, cx.completions);
                if let Err(error) = handled {
                    return StreamRead::Invalid(error);
                }
            }
            Err(error) => return StreamRead::Invalid(error),
        }
        self.note_stream(session, owed, cx);
        StreamRead::Bytes
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

    /// Keeps what has arrived of messages elsewhere whose receives, those that `may_end` selects,
    /// may end without them.
    pub(in crate::progress) fn release_receives(
        &mut self,
        may_end: impl Fn(Id) -> bool,
        completions: &mut Completions,
    ) {
        for control in &mut self.all {
            let is_released = |it: &mut Placement| it.is_needed && may_end(it.message.receive());
            if let Some(Placement { message, at, .. }) = control.placement.take_if(is_released) {
                control.partial.extend(&segment_of(&message, at, completions));
            }
        }
    }
}

/// Returns the segment of a message, of whose payload `at` bytes have arrived, as far as it has.
fn segment_of(message: &PlacedMessage, at: usize, completions: &mut Completions) -> Vec<u8> {
    let mut bytes = message.head().to_vec();
    let payload = completions.with_memory(message.receive(), 0..at, |payload| {
        bytes.extend_from_slice(payload);
    });
    debug_assert!(payload.is_some(), "a posted receive has its memory");
    bytes
}
