//! What operations end with.

use std::sync::Mutex;

use ringrail::{Completion, OperationKind, Status};

use crate::codes::{
    RR_ATOMIC, RR_DATA, RR_FLUSH, RR_GET, RR_MULTI_RECEIVE, RR_PUT, RR_RECEIVED, RR_REMOTE_PUT,
    RR_SEND, RR_UNTAGGED, code_of,
};
use crate::inside::{Failures, lock};
use crate::options::rr_peer;

/// The status of a message.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_status {
    /// The other side: of a receive the source, of a send the target. RR_ANY_PEER: not known.
    pub peer: rr_peer,
    /// Its tag.
    pub tag: u64,
    /// Its context.
    pub context: u32,
    /// RR_UNTAGGED: it has neither. RR_DATA: it came with `data`.
    pub flags: u32,
    /// Its length in bytes, also where its receiver took less.
    pub length: u64,
    /// What its sender sent with it beside the bytes.
    pub data: u64,
    /// For later versions.
    pub _reserved: [u64; 2],
}

/// An entry of a completion queue.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_completion {
    /// What was given when the operation was posted.
    pub user_data: u64,
    /// RR_SEND, RR_RECEIVED, ...
    pub kind: u32,
    /// RR_OK, or why it failed. See rr_cq_error_text.
    pub error: i32,
    /// As in rr_status. Of an operation that failed: as far as it is known.
    pub peer: rr_peer,
    /// Tag of the message.
    pub tag: u64,
    /// Context of the message.
    pub context: u32,
    /// RR_UNTAGGED, RR_DATA.
    pub flags: u32,
    /// Length of the message in bytes: of one that was cut (RR_ETRUNCATED) the whole length.
    pub length: u64,
    /// Of a message of a receive of many: where it begins in the memory, in bytes. Else 0.
    pub offset: u64,
    /// Remote data.
    pub data: u64,
    /// Names the text of the error; 0: there is none.
    pub detail: u64,
    /// The Linux error number of the failure; 0 if it succeeded.
    pub system_error: i32,
    /// For later versions.
    pub _reserved: [u32; 5],
}

const _: () = assert!(size_of::<rr_completion>() == 96 && size_of::<rr_status>() == 56);

impl rr_status {
    pub(crate) fn new(status: &Status) -> Self {
        let untagged = if status.envelope.is_tagged() { 0 } else { RR_UNTAGGED };
        let data = if status.data.is_some() { RR_DATA } else { 0 };
        Self {
            peer: status.peer.map_or(0, |peer| peer.to_bits()),
            tag: status.envelope.tag(),
            context: status.envelope.context(),
            flags: untagged | data,
            length: status.length as u64,
            data: status.data.unwrap_or(0),
            _reserved: [0; 2],
        }
    }
}

const NOTHING: rr_status =
    rr_status { peer: 0, tag: 0, context: 0, flags: 0, length: 0, data: 0, _reserved: [0; 2] };

impl rr_completion {
    #[inline]
    pub(crate) fn new(completion: Completion, failures: &Mutex<Failures>) -> Self {
        let (status, error, detail, system_error) = match completion.result {
            Ok(status) => (rr_status::new(&status), 0, 0, 0),
            Err(error) => {
                let status = error.status().map_or(NOTHING, rr_status::new);
                let (code, number) = (code_of(error.kind()), error.errno());
                (status, code, lock(failures).keep(error), number)
            }
        };
        Self {
            user_data: completion.user_data,
            kind: kind_of(completion.kind),
            error,
            peer: status.peer,
            tag: status.tag,
            context: status.context,
            flags: status.flags,
            length: status.length,
            offset: completion.offset,
            data: status.data,
            detail,
            system_error,
            _reserved: [0; 5],
        }
    }
}

fn kind_of(kind: OperationKind) -> u32 {
    match kind {
        OperationKind::Send => RR_SEND,
        OperationKind::Receive => RR_RECEIVED,
        OperationKind::Put => RR_PUT,
        OperationKind::Get => RR_GET,
        OperationKind::Atomic => RR_ATOMIC,
        OperationKind::Flush => RR_FLUSH,
        OperationKind::RemotePut => RR_REMOTE_PUT,
        OperationKind::MultiReceive => RR_MULTI_RECEIVE,
        other => unreachable!("the header has no kind {other:?}"),
    }
}
