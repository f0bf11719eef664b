//! Entries of completion queues, made of what the engine reports.

use std::ffi::c_void;
use std::ptr;

use ringrail::{Completion, Error, OperationKind, Peer, Status};

use super::name::{self, Record};
use crate::abi::consts::{
    FI_ATOMIC, FI_MSG, FI_MULTI_RECV, FI_READ, FI_RECV, FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE, FI_RMA,
    FI_SEND, FI_TAGGED, FI_WRITE,
};
use crate::abi::messages::fi_cq_tagged_entry;
use crate::errno::Errno;

/// An entry, for all formats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buf: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    /// The sender.
    pub(crate) source: Option<Peer>,
    /// `None`: it succeeded.
    pub(crate) failure: Option<Failure>,
}

/// How an operation failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) errno: Errno,
    /// Bytes that there was no room for.
    pub(crate) overflow: usize,
    /// The closest error number of Linux.
    pub(crate) system: i32,
}

impl Entry {
    /// Makes the entry of an operation that reports only its context and flags.
    pub(crate) const fn new(context: usize, flags: u64) -> Self {
        let (len, buf, data, tag) = (0, 0, 0, 0);
        Self { context, flags, len, buf, data, tag, source: None, failure: None }
    }

    /// The entry of a message that was found, with what its receive would say.
    pub(crate) fn of_message(context: usize, flags: u64, status: &Status) -> Self {
        let mut entry = Self::new(context, flags);
        entry.note(status);
        entry
    }

    pub(crate) fn failed(mut self, errno: Errno) -> Self {
        self.failure = Some(Failure { errno, overflow: 0, system: errno.number() });
        self
    }

    fn note(&mut self, status: &Status) {
        self.flags |= match status.envelope.is_tagged() {
            _ if self.flags & (FI_RMA | FI_ATOMIC) != 0 => 0,
            true => FI_TAGGED,
            false => FI_MSG,
        };
        (self.len, self.tag, self.source) = (status.length, status.envelope.tag(), status.peer);
        if let Some(data) = status.data {
            (self.data, self.flags) = (data, self.flags | FI_REMOTE_CQ_DATA);
        }
    }

    /// Returns the entry that an application reads.
    pub(crate) fn to_c(self) -> fi_cq_tagged_entry {
        let Self { context, flags, len, buf, data, tag, .. } = self;
        fi_cq_tagged_entry {
            op_context: ptr::without_provenance_mut::<c_void>(context),
            flags,
            len,
            buf: ptr::without_provenance_mut::<c_void>(buf),
            data,
            tag,
        }
    }
}

/// Counts the end of an operation; its entry, if it has one.
///
/// # Safety
///
/// The engine has reported `completion` of an operation whose `user_data` a [`Record`] gave, and
/// this is the only look at it.
#[inline]
pub(crate) unsafe fn entry_of(completion: &Completion) -> Option<Entry> {
    let Completion { user_data, kind, ref result, .. } = *completion;
    let flags = match kind {
        OperationKind::Send => FI_SEND,
        OperationKind::Receive => FI_RECV,
        OperationKind::Put => FI_RMA | FI_WRITE,
        OperationKind::Get => FI_RMA | FI_READ,
        OperationKind::Atomic => FI_ATOMIC | FI_WRITE,
        OperationKind::RemotePut => FI_RMA | FI_REMOTE_WRITE,
        OperationKind::MultiReceive => FI_MULTI_RECV,
        // This provider posts them before operations behind a fence, and asks for no report.
        OperationKind::Flush => return None,
        other => unreachable!("this provider posts no operation of kind {other:?}"),
    };
    // SAFETY: the caller guarantees it; it is freed below, behind its last use.
    let Some(record) = (unsafe { name::look(user_data) }) else {
        return match result {
            Err(error) if user_data == name::INJECTED => lost_inject(kind, error),
            result => Some(finished(Entry::new(user_data as usize, flags), kind, result)),
        };
    };
    let entry = entry_by(record, completion, flags);
    // Each message of a multi-receive ends like a receive, before the whole does.
    if kind != OperationKind::Receive || record.buffer == 0 {
        // SAFETY: as above: its operation has ended, and it is not used any more.
        unsafe { name::forget(user_data) };
    }
    entry
}

/// The same for what has more than a context.
fn entry_by(record: &Record, completion: &Completion, flags: u64) -> Option<Entry> {
    let Completion { kind, ref result, offset, .. } = *completion;
    if let Some(count) = record.count.as_ref().filter(|_| kind != OperationKind::MultiReceive) {
        count.note(result.is_ok());
    }
    let is_released = kind == OperationKind::MultiReceive;
    if record.is_quiet && result.is_ok() && !is_released {
        return None;
    }
    if let (true, Err(error)) = (record.is_injected, result) {
        return lost_inject(kind, error);
    }
    let flags = if record.flags == 0 || is_released { flags } else { record.flags };
    let mut entry = Entry::new(record.context, flags);
    if !is_released && record.buffer != 0 {
        entry.buf = record.buffer + offset as usize;
    }
    Some(finished(entry, kind, result))
}

/// The failure of an inject has no entry: it has no context, and consumers dereference the
/// context of every entry.
/// The peer's failure is kept by the engine, and the next call to that peer returns it.
#[cold]
fn lost_inject(kind: OperationKind, error: &Error) -> Option<Entry> {
    tracing::warn!(
        "an inject ({kind:?}) has failed, for which no completion queue has an entry: {error}"
    );
    None
}

#[inline]
fn finished(mut entry: Entry, kind: OperationKind, result: &Result<Status, Error>) -> Entry {
    match result {
        // What it took in all was reported message by message.
        Ok(_) if kind == OperationKind::MultiReceive => {}
        Ok(status) => entry.note(status),
        Err(error) => note_failure(&mut entry, kind, error),
    }
    entry
}

#[cold]
fn note_failure(entry: &mut Entry, kind: OperationKind, error: &Error) {
    if let Some(status) = error.status() {
        entry.note(status);
    }
    let mut overflow = 0;
    if let Error::Truncated { status, capacity } = error {
        entry.len = *capacity as usize;
        overflow = status.length - entry.len;
    }
    if kind == OperationKind::MultiReceive {
        entry.flags |= FI_RECV;
    }
    let errno = Errno::of(error);
    tracing::debug!(context = entry.context, "an operation has failed: {error}");
    entry.failure = Some(Failure { errno, overflow, system: error.errno() });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ringrail::Envelope;

    use super::*;
    use crate::cntr::Count;

    fn completion(user_data: u64, kind: OperationKind, length: usize) -> Completion {
        let status = Status::new(None, Envelope::tagged(5), length, Some(9));
        Completion::new(user_data, kind, Ok(status), 16, None)
    }

    #[test]
    fn messages_of_a_multi_receive_lie_in_its_buffer_and_its_end_releases_it() {
        let record = Record { context: 3, buffer: 4096, ..Record::default() };
        let user_data = record.into_user_data();
        // SAFETY: the last of them ends the operation.
        let entries = [OperationKind::Receive, OperationKind::Receive, OperationKind::MultiReceive]
            .map(|kind| unsafe { entry_of(&completion(user_data, kind, 7)) }.unwrap());
        assert!(entries.iter().all(|entry| entry.context == 3));
        let message = (entries[1].flags, entries[1].buf, entries[1].len, entries[1].data);
        assert_eq!(message, (FI_TAGGED | FI_RECV | FI_REMOTE_CQ_DATA, 4112, 7, 9));
        assert_eq!((entries[2].flags, entries[2].len), (FI_MULTI_RECV, 0));
    }

    #[test]
    fn failed_injects_of_all_kinds_have_no_entry_and_are_counted() {
        let kinds = [OperationKind::Send, OperationKind::Put, OperationKind::Atomic];
        for kind in kinds {
            let count = Arc::new(Count::default());
            for counted in [None, Some(Arc::clone(&count))] {
                let mut failed = completion(0, kind, 0);
                failed.user_data = Record::of_inject(counted).into_user_data();
                failed.result = Err(Error::NoPeerLeft);
                // SAFETY: it was given just now, and its operation has ended.
                assert!(unsafe { entry_of(&failed) }.is_none(), "{kind:?}");
            }
            assert_eq!((count.successes(), count.failures()), (0, 1));
        }
    }

    #[test]
    fn a_truncated_receive_reports_the_overflow() {
        let mut cut = completion(1, OperationKind::Receive, 100);
        let status = *cut.result.as_ref().unwrap();
        cut.result = Err(Error::Truncated { status: Box::new(status), capacity: 60 });
        // SAFETY: its user data is a context.
        let entry = unsafe { entry_of(&cut) }.unwrap();
        let failure = entry.failure.unwrap();
        assert_eq!((entry.len, failure.overflow, entry.tag), (60, 40, 5));
        assert_eq!(failure.errno, Errno::TRUNC);
    }
}
