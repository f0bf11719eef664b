//! Reading of control connections.

use std::io::{self, ErrorKind};

use super::ControlLanes;
use super::place::BeginningAt;
use crate::progress::context::LaneCx;
use crate::proto::paths::Paths;
use crate::wire::FrameError;

/// Maximum bytes that one turn reads of a lane whose session has a path: short messages use that,
/// and wait meanwhile.
const STREAM_BYTES_PER_TURN: usize = 64 << 10;

/// Maximum reads of a control lane in one turn.
const READS_PER_TURN: u32 = 2;

/// The same of one that brings a message into its receive.
const PLACED_READS_PER_TURN: u32 = 4;

/// Maximum bytes of a read that is to end soon after the head of a message, so that the rest is
/// received into its receive.
const HEAD_READ_BYTES: usize = 4 << 10;

/// What was read from a control connection.
#[derive(Debug)]
pub(in crate::progress) enum StreamRead {
    Nothing,
    /// Bytes, which are handled.
    Bytes,
    EndOfStream,
    /// The connection failed.
    Failed(io::Error),
    /// Bytes that cannot be used.
    Invalid(FrameError),
}

impl StreamRead {
    /// Returns what this and the next read have read.
    fn then(self, next: Self) -> Self {
        if matches!(next, Self::Nothing) { self } else { next }
    }
}

impl ControlLanes {
    /// Reads and handles the bytes of a control lane.
    #[inline(always)]
    pub(in crate::progress) fn receive(&mut self, session: u32, cx: &mut LaneCx<'_>) -> StreamRead {
        let mut received = StreamRead::Nothing;
        // Not without end: a peer that keeps the lane full must not block the loop.
        for number in 0..PLACED_READS_PER_TURN {
            let has_read = matches!(received, StreamRead::Bytes);
            if let Some(rest) = self.receive_in_place(session, has_read, cx) {
                let is_more = matches!(rest, StreamRead::Bytes) && self.is_placing(session);
                received = received.then(rest);
                if is_more {
                    continue;
                }
                return received;
            }
            if number >= READS_PER_TURN {
                break;
            }
            let control = self.all.get_mut(session as usize);
            let Some((lane, control)) = control.and_then(|it| Some((it.lane?, it))) else { break };
            let have = control.partial.len();
            let has_path = cx.paths.of(session).is_some_and(Paths::are_open);
            let most = if has_path { STREAM_BYTES_PER_TURN } else { usize::MAX };
            let mut space = (self.receive_buffer.len() - have).min(most);
            if have > 0 {
                // Each lane has that for itself.
                space = space.min(STREAM_BYTES_PER_TURN);
            } else if control.stops_at_heads {
                space = space.min(HEAD_READ_BYTES);
            }
            let room = match have {
                0 => &mut self.receive_buffer[..space],
                _ => control.partial.room(space),
            };
            let got = match cx.driver.recv(lane, room) {
                Ok(0) => return StreamRead::EndOfStream,
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return StreamRead::Failed(error),
            };
            received = StreamRead::Bytes;
            let bytes = match have {
                0 => &self.receive_buffer[..got],
                _ => control.partial.with(got),
            };
            let owed = cx.unacknowledged_bytes(session);
            let used = match cx.core.handle_bytes(session, bytes, *cx.now_ns, cx.completions) {
                Ok(used) => used,
                Err(error) => return StreamRead::Invalid(error),
            };
            let mut is_placing = false;
            if have == 0 && used == got {
                // Whole segments, as usual.
                control.stops_at_heads = false;
            } else {
                if let Some((known, _)) = cx.core.enter(session) {
                    known.control_lane_mut().note_bytes(used > 0 || have == 0);
                }
                control.stops_at_heads &= used == 0 || have > 0;
                let beginning = cx.place_beginning(session, &bytes[used..]);
                control.stops_at_heads |= !matches!(beginning, BeginningAt::WithOthers);
                match beginning {
                    BeginningAt::InPlace(in_place) => {
                        control.partial.clear();
                        control.in_place = Some(in_place);
                        is_placing = true;
                    }
                    _ if have == 0 => control.partial.extend(&self.receive_buffer[used..got]),
                    _ => control.partial.keep_rest(got, used),
                }
                if planted!(DropPartial) {
                    control.partial.clear();
                }
                if control.has_partial() {
                    self.await_something(session);
                }
            }
            self.note_stream(session, owed, cx);
            if is_placing && got == space {
                continue;
            }
            if got < space || has_path {
                break;
            }
        }
        received
    }
}
