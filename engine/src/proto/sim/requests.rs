//! Requests with the usual settings.

use crate::proto::core::Core;
use crate::proto::effects::{CompletionLevel, Effects, Ended};
use crate::proto::hint::Hint;
use crate::proto::receive::ReceiveRequest;
use crate::proto::session::send::{SendRequest, Staged};
use crate::proto::table::Id;

/// Returns a send from endpoint 0.
pub(crate) fn send_request(peer: Id, context: u64, tag: u64, length: u64) -> SendRequest {
    SendRequest {
        endpoint: 0,
        peer,
        context,
        tag,
        length,
        level: CompletionLevel::Delivery,
        hint: Hint::None,
        data: None,
        fence: false,
    }
}

/// Returns a receive at endpoint 0, of messages with this tag.
pub(crate) fn receive_request(
    peer: Option<Id>,
    context: u64,
    tag: u64,
    capacity: u64,
) -> ReceiveRequest {
    ReceiveRequest { endpoint: 0, peer, context, tag, ignore: 0, capacity, min_free: None }
}

/// Returns everything that a session has to send on its control connection.
pub(crate) fn next_bytes(core: &mut Core, slot: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while core.with(slot, |it, cx| it.append_next_segment(cx, &mut bytes, true)).unwrap() {}
    bytes
}

/// Stages what waits for it, without its bytes, as far as sessions are not blocked.
pub(crate) fn stage_empty(core: &mut Core, effects: &mut impl Effects) {
    let mut blocked = 0;
    while let Some(id) = core.poll_waiting() {
        match core.stage(id, 0) {
            Staged::Eager { completes: true, .. } => {
                effects.complete(id, Ended::Sent { accepted: 0 });
            }
            Staged::Eager { .. } | Staged::Rts { .. } => {}
            Staged::Source { .. } => {
                unreachable!("a stream carries whole messages")
            }
            Staged::Blocked => {
                blocked += 1;
                if blocked > core.sessions.len() {
                    break;
                }
            }
        }
    }
}
