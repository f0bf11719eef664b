//! Requests with the usual settings.

use crate::proto::effects::CompletionLevel;
use crate::proto::hint::Hint;
use crate::proto::receive::ReceiveRequest;
use crate::proto::send::SendRequest;
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
