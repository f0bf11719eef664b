//! What all operations are posted by.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringrail::{
    CompletionLevel, Endpoint, Envelope, Error, Peer, RawSpan, ReceiveOptions, Selector,
    SendOptions, Shared,
};

use super::{Ep, IOV_LIMIT, Side};
use crate::abi::consts::{
    FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_FENCE, FI_INJECT, FI_INJECT_COMPLETE,
    FI_MATCH_COMPLETE, FI_MORE, FI_MULTI_RECV, FI_TRANSMIT_COMPLETE,
};
use crate::abi::messages::{fi_addr_t, iovec};
use crate::cntr::Count;
use crate::cq::name::{self, Record};
use crate::errno::Errno;

/// Memory of an application, as the engine takes it.
pub(super) struct Pieces {
    spans: [RawSpan; IOV_LIMIT],
    count: usize,
}

impl Pieces {
    /// # Safety
    ///
    /// There are `count` of them.
    pub(super) unsafe fn of(iov: *const iovec, count: usize) -> Result<Self, Errno> {
        if count > IOV_LIMIT || (iov.is_null() && count > 0) {
            return Err(Errno::INVAL);
        }
        let nothing = RawSpan { ptr: std::ptr::null_mut(), len: 0 };
        let mut pieces = Self { spans: [nothing; IOV_LIMIT], count };
        for (index, span) in pieces.spans[..count].iter_mut().enumerate() {
            // SAFETY: the caller guarantees it.
            let piece = unsafe { *iov.add(index) };
            *span = RawSpan { ptr: piece.iov_base.cast(), len: piece.iov_len };
        }
        Ok(pieces)
    }

    #[inline]
    pub(super) fn spans(&self) -> &[RawSpan] {
        &self.spans[..self.count]
    }
}

/// One piece of memory.
#[inline]
pub(super) fn one(base: *const c_void, len: usize) -> [RawSpan; 1] {
    [RawSpan::from_const(base.cast(), len)]
}

/// A copy of the bytes of pieces.
///
/// # Safety
///
/// The memory can be read.
pub(super) unsafe fn copy_of(pieces: &[RawSpan]) -> Vec<u8> {
    let mut copy = Vec::new();
    for span in pieces {
        // SAFETY: the caller guarantees it.
        copy.extend_from_slice(unsafe { bytes(span.ptr.cast(), span.len) });
    }
    copy
}

/// The arguments of a send.
pub(super) struct Outgoing {
    pub(super) to: fi_addr_t,
    pub(super) envelope: Envelope,
    pub(super) data: Option<u64>,
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
}

/// The arguments of a receive.
pub(super) struct Incoming {
    pub(super) from: fi_addr_t,
    pub(super) envelope: Envelope,
    pub(super) ignore: u64,
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
}

/// How far an operation must have come, as flags say it.
#[inline]
pub(super) fn level_of(flags: u64, usual: CompletionLevel) -> CompletionLevel {
    const LEVELS: u64 =
        FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE;
    match flags & LEVELS {
        0 => usual,
        set if set & FI_MATCH_COMPLETE != 0 => CompletionLevel::Match,
        // Only the peer can confirm that it has received it.
        set if set & (FI_DELIVERY_COMPLETE | FI_TRANSMIT_COMPLETE) != 0 => {
            CompletionLevel::Delivery
        }
        _ => CompletionLevel::Inject,
    }
}

impl Side {
    /// How an operation with these flags is named, and whether the engine is to be silent.
    #[inline(always)]
    pub(super) fn named(
        &self,
        flags: u64,
        count: Option<&Arc<Count>>,
        record: Record,
    ) -> (u64, bool) {
        let is_quiet = self.is_selective && flags & FI_COMPLETION == 0;
        match count {
            None => (record.into_user_data(), is_quiet),
            Some(count) => {
                let count = Some(Arc::clone(count));
                (Record { is_quiet, count, ..record }.into_user_data(), false)
            }
        }
    }
}

/// The answer of a post; what is behind `user_data` goes with a refusal.
#[inline]
pub(super) fn posted<T>(result: Result<T, Error>, user_data: u64) -> Result<isize, Errno> {
    match result {
        Ok(_) => Ok(0),
        Err(error) => Err(refused(&error, user_data)),
    }
}

#[cold]
fn refused(error: &Error, user_data: u64) -> Errno {
    // SAFETY: the engine has refused the operation, whose name it does not have.
    unsafe { name::forget(user_data) };
    if !error.is_would_block() {
        tracing::debug!("a post was refused: {error}");
    }
    Errno::of(error)
}

impl Ep {
    #[inline]
    pub(super) fn transmit_flags(&self) -> u64 {
        self.transmit_flags.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn receive_flags(&self) -> u64 {
        self.receive_flags.load(Ordering::Relaxed)
    }

    /// Sends a message.
    ///
    /// # Safety
    ///
    /// The memory is valid until the message has completed, as `fi_send` asks for it.
    #[inline]
    pub(super) unsafe fn send(
        &self,
        pieces: &[RawSpan],
        message: &Outgoing,
    ) -> Result<isize, Errno> {
        let open = self.opened()?;
        let endpoint = open.engine()?;
        let Outgoing { to, envelope, data, context, flags } = *message;
        let peer = self.peer(open, to)?;
        let record = Record { context: context.addr(), ..Record::default() };
        let count = open.counts.send.as_ref();
        let (user_data, silent) = open.transmit.named(flags, count, record);
        let mut options = SendOptions::at(level_of(flags, CompletionLevel::Inject))
            .silent(silent)
            .more(flags & FI_MORE != 0)
            .fence(flags & FI_FENCE != 0)
            .user_data(user_data);
        options.data = data;
        if flags & FI_INJECT != 0 {
            // SAFETY: the caller guarantees it.
            let bytes = unsafe { copy_of(pieces) };
            let sent = endpoint.post_send(peer, envelope, bytes, options);
            return posted(sent.map_err(Error::from), user_data);
        }
        // SAFETY: the caller guarantees it. The endpoint's drop ends what is outstanding.
        let sent = unsafe { endpoint.post_send_raw(peer, envelope, pieces, options) };
        posted(sent, user_data)
    }

    /// Sends a copy of a message, now or later. It has no entry, also if it fails later: the next
    /// call to the peer has the cause.
    #[inline]
    pub(super) fn inject(
        &self,
        bytes: &[u8],
        to: fi_addr_t,
        envelope: Envelope,
        data: Option<u64>,
    ) -> Result<isize, Errno> {
        let open = self.opened()?;
        let endpoint = open.engine()?;
        let peer = self.peer(open, to)?;
        let fence = self.transmit_flags() & FI_FENCE != 0;
        let mut options = SendOptions::new().silent(true).fence(fence);
        options.data = data;
        let sent = match endpoint.inject(peer, envelope, bytes, options) {
            // Not connected yet, or no credit: it waits in the engine.
            Err(error) if error.is_would_block() => {
                let count = open.counts.send.as_ref();
                return inject_later(endpoint, peer, envelope, bytes, (options, count));
            }
            sent => sent,
        };
        let answer = posted(sent, 0)?;
        if let Some(count) = &open.counts.send {
            count.note(true);
        }
        Ok(answer)
    }

    /// Receives a message, or many.
    ///
    /// # Safety
    ///
    /// The memory is valid and not accessed otherwise until the receive has completed, as for
    /// `fi_recv` it.
    #[inline]
    pub(super) unsafe fn receive(
        &self,
        pieces: &[RawSpan],
        message: &Incoming,
    ) -> Result<isize, Errno> {
        let open = self.opened()?;
        let endpoint = open.engine()?;
        let Incoming { from, envelope, ignore, context, flags } = *message;
        let selector = Selector { source: self.source(open, from)?, envelope, ignore };
        let mut record = Record { context: context.addr(), ..Record::default() };
        let is_many = flags & FI_MULTI_RECV != 0;
        if is_many {
            let [piece] = pieces else { return Err(Errno::INVAL) };
            record.buffer = piece.ptr.addr();
            if record.buffer == 0 {
                return Err(Errno::INVAL);
            }
        }
        let (user_data, silent) = open.receive.named(flags, open.counts.recv.as_ref(), record);
        let options = ReceiveOptions::new().silent(silent).user_data(user_data);
        let result = if is_many {
            let min_free = self.min_multi_recv.load(Ordering::Relaxed).max(1);
            // SAFETY: the caller guarantees it. The endpoint's drop ends what is outstanding.
            unsafe { endpoint.post_receive_many_raw(selector, pieces, min_free, options) }
        } else {
            // SAFETY: as above.
            unsafe { endpoint.post_receive_raw(selector, pieces, options) }
        };
        posted(result, user_data)
    }
}

#[cold]
fn inject_later(
    endpoint: &Endpoint<Shared>,
    peer: Peer,
    envelope: Envelope,
    bytes: &[u8],
    (options, count): (SendOptions, Option<&Arc<Count>>),
) -> Result<isize, Errno> {
    let user_data = Record::of_inject(count.cloned()).into_user_data();
    let options = options.silent(count.is_none()).user_data(user_data);
    let sent = endpoint.post_send(peer, envelope, bytes.to_vec(), options);
    posted(sent.map_err(Error::from), user_data)
}

/// Bytes of an application, which may be at null if there are none.
///
/// # Safety
///
/// They can be read while the slice lives.
#[inline]
pub(super) unsafe fn bytes<'a>(buf: *const c_void, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees it.
    unsafe { std::slice::from_raw_parts(buf.cast(), len) }
}
