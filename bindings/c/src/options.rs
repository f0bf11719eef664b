//! How operations are posted, and what they are matched by.

use std::ffi::c_void;

use ringrail::{
    CompletionLevel, Envelope, Hint, OperationId, Peer, RawSpan, ReceiveOptions, Selector,
    SendOptions,
};

use crate::check::{self, Sized32};
use crate::codes::{
    RR_ANY_PEER, RR_DATA, RR_FENCE, RR_HINT_BULK, RR_HINT_LATENCY, RR_HINT_NONE, RR_HINT_PRIORITY,
    RR_HINT_UNSAID, RR_LEVEL_DELIVERY, RR_LEVEL_INJECT, RR_LEVEL_MATCH, RR_MORE, RR_SILENT,
    RR_UNTAGGED,
};
use crate::fault::Fault;

/// A peer of an engine: what rr_insert gives, and the source of a message. Only endpoints of that
/// engine know it. Never 0 (RR_ANY_PEER).
pub type rr_peer = u64;

/// A piece of memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_span {
    /// Its first byte; anything where `length` is 0.
    pub data: *mut c_void,
    /// Its length in bytes.
    pub length: usize,
}

const _: () = assert!(
    size_of::<rr_span>() == size_of::<RawSpan>()
        && align_of::<rr_span>() == align_of::<RawSpan>()
        && std::mem::offset_of!(rr_span, length) == std::mem::offset_of!(RawSpan, len)
);

/// What a message is matched by: see rr_tagged and rr_untagged.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_envelope {
    /// The tag.
    pub tag: u64,
    /// The context (an MPI communicator, say): order and matching never cross it.
    pub context: u32,
    /// 0, or RR_UNTAGGED: the message has neither.
    pub flags: u32,
}

/// What a receive accepts.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_selector {
    /// From whom; RR_ANY_PEER: from anybody.
    pub source: rr_peer,
    /// Bits of the tag that are not compared.
    pub ignore: u64,
    /// Context and tag.
    pub envelope: rr_envelope,
}

/// Names a posted operation for rr_cancel. All zero it names none.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_operation {
    /// Opaque.
    pub name: [u64; 2],
}

/// How a send, a put, a get, an atomic operation or a flush is posted. A null pointer to it means
/// RR_SEND_OPTIONS_INIT, from which others are made.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_send_options {
    /// sizeof(rr_send_options).
    pub size: u32,
    /// RR_LEVEL_...: how far it must have come before it completes.
    pub level: u32,
    /// RR_HINT_...: what it is for.
    pub hint: u32,
    /// RR_SILENT, RR_MORE, RR_FENCE, RR_DATA.
    pub flags: u32,
    /// Remote data, with RR_DATA: the receiver's completion has it.
    pub data: u64,
    /// Comes back in the completion, unchanged.
    pub user_data: u64,
}

/// How a receive is posted. A null pointer to it means RR_RECEIVE_OPTIONS_INIT.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_receive_options {
    /// sizeof(rr_receive_options).
    pub size: u32,
    /// RR_SILENT.
    pub flags: u32,
    /// Comes back in the completion, unchanged.
    pub user_data: u64,
}

impl Sized32 for rr_send_options {
    const WHAT: &'static str = "options of a send";
    const UNSAID: Self = Self {
        size: size_of::<Self>() as u32,
        level: RR_LEVEL_INJECT,
        hint: RR_HINT_UNSAID,
        flags: 0,
        data: 0,
        user_data: 0,
    };
}

impl Sized32 for rr_receive_options {
    const WHAT: &'static str = "options of a receive";
    const UNSAID: Self = Self { size: size_of::<Self>() as u32, flags: 0, user_data: 0 };
}

pub(crate) fn hint(number: u32) -> Result<Option<Hint>, Fault> {
    Ok(match number {
        RR_HINT_UNSAID => None,
        RR_HINT_NONE => Some(Hint::None),
        RR_HINT_LATENCY => Some(Hint::Latency),
        RR_HINT_BULK => Some(Hint::Bulk),
        RR_HINT_PRIORITY => Some(Hint::Priority),
        other => return Err(check::unknown("hint", other)),
    })
}

/// # Safety
///
/// As for [`check::options`].
#[inline]
pub(crate) unsafe fn send(
    options: *const rr_send_options,
    timeout_ns: i64,
) -> Result<SendOptions, Fault> {
    // SAFETY: the caller guarantees it.
    let options = unsafe { check::options(options) }?;
    check::flags(options.flags, RR_SILENT | RR_MORE | RR_FENCE | RR_DATA, rr_send_options::WHAT)?;
    let level = match options.level {
        RR_LEVEL_INJECT => CompletionLevel::Inject,
        RR_LEVEL_DELIVERY => CompletionLevel::Delivery,
        RR_LEVEL_MATCH => CompletionLevel::Match,
        other => return Err(check::unknown("level", other)),
    };
    let mut posted = SendOptions::at(level)
        .silent(options.flags & RR_SILENT != 0)
        .more(options.flags & RR_MORE != 0)
        .fence(options.flags & RR_FENCE != 0)
        .user_data(options.user_data);
    posted.hint = hint(options.hint)?;
    posted.data = (options.flags & RR_DATA != 0).then_some(options.data);
    posted.timeout = check::timeout(timeout_ns);
    Ok(posted)
}

/// # Safety
///
/// As for [`check::options`].
#[inline]
pub(crate) unsafe fn receive(
    options: *const rr_receive_options,
    timeout_ns: i64,
) -> Result<ReceiveOptions, Fault> {
    // SAFETY: the caller guarantees it.
    let options = unsafe { check::options(options) }?;
    check::flags(options.flags, RR_SILENT, rr_receive_options::WHAT)?;
    let mut posted =
        ReceiveOptions::new().silent(options.flags & RR_SILENT != 0).user_data(options.user_data);
    posted.timeout = check::timeout(timeout_ns);
    Ok(posted)
}

impl rr_envelope {
    #[inline]
    pub(crate) fn get(self) -> Result<Envelope, Fault> {
        check::flags(self.flags, RR_UNTAGGED, "envelope")?;
        Ok(match self.flags {
            RR_UNTAGGED => Envelope::UNTAGGED,
            _ => Envelope::new(self.context, self.tag),
        })
    }
}

/// # Safety
///
/// If it is not null it can be read.
#[inline]
pub(crate) unsafe fn selector(pointer: *const rr_selector) -> Result<Selector, Fault> {
    // SAFETY: the caller guarantees it.
    let selector = unsafe { check::read(pointer, "selector") }?;
    let source = (selector.source != RR_ANY_PEER).then(|| Peer::from_bits(selector.source));
    Ok(Selector { source, envelope: selector.envelope.get()?, ignore: selector.ignore })
}

/// Pieces of memory of C, in the engine's form.
///
/// # Safety
///
/// As for [`check::slice`].
#[inline]
pub(crate) unsafe fn pieces<'a>(
    pieces: *const rr_span,
    count: usize,
) -> Result<&'a [RawSpan], Fault> {
    // SAFETY: the caller guarantees it; both types have one layout.
    unsafe { check::slice(pieces.cast::<RawSpan>(), count, "pieces") }
}

/// Where the name of an operation is written; may be null.
pub(crate) fn check_operation(place: *mut rr_operation) -> Result<(), Fault> {
    if place.is_null() { Ok(()) } else { check::place(place, 1, "operation") }
}

/// Writes the name of an operation, unless `place` is null. `None`: it is complete already.
///
/// # Safety
///
/// If it is not null it can be written, and [`check_operation`] was content with it.
#[inline]
pub(crate) unsafe fn put_operation(place: *mut rr_operation, operation: Option<OperationId>) {
    if !place.is_null() {
        let name = operation.map_or([0; 2], OperationId::to_bits);
        // SAFETY: the caller guarantees it.
        unsafe { place.write(rr_operation { name }) };
    }
}
