//! What an operation's `user_data` refers to when it completes.
//!
//! Mostly it is the context alone, as it is. An operation with more state (a counter, flags that
//! its completion does not report, a buffer for many messages) has a [`Record`], whose address is
//! in it.

use std::sync::Arc;

use crate::cntr::Count;

/// With this bit the others are the address of a [`Record`]. Addresses of a process do not
/// have it; a context that does is in a record itself.
const IS_RECORD: u64 = 1 << 63;

/// The `user_data` of an inject that no counter counts. It is no record, for none is at address 0.
pub(crate) const INJECTED: u64 = IS_RECORD;

/// The state of an operation beside its context.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The `op_context` of its completion.
    pub(crate) context: usize,
    /// Flags of its entry, if its completion does not have them.
    pub(crate) flags: u64,
    /// Where the buffer of a multi-receive begins.
    pub(crate) buffer: usize,
    /// Its success has no entry.
    pub(crate) is_quiet: bool,
    /// It is an inject, which has no context: its failure has no entry, either.
    pub(crate) is_injected: bool,
    /// Counts its end.
    pub(crate) count: Option<Arc<Count>>,
}

impl Record {
    /// Whether it has nothing but its context.
    #[inline]
    fn is_plain(&self) -> bool {
        self.count.is_none()
            && !self.is_injected
            && (self.flags, self.buffer, self.is_quiet) == (0, 0, false)
            && self.context as u64 & IS_RECORD == 0
    }

    /// The record of an inject, of which nothing is reported but to its counter.
    pub(crate) fn of_inject(count: Option<Arc<Count>>) -> Self {
        Self { count, is_quiet: true, is_injected: true, ..Self::default() }
    }

    /// The `user_data` of the operation: given to the engine once, and freed by [`forget`].
    #[inline(always)]
    pub(crate) fn into_user_data(self) -> u64 {
        if self.is_plain() { self.context as u64 } else { self.keep() }
    }

    /// The same for one with more than its context, which is kept on the heap.
    #[inline(never)]
    fn keep(self) -> u64 {
        if self.is_injected && self.count.is_none() {
            return INJECTED;
        }
        let address = Box::into_raw(Box::new(self)).expose_provenance() as u64;
        debug_assert_eq!(address & IS_RECORD, 0, "addresses of a process are lower");
        address | IS_RECORD
    }
}

fn record_of(user_data: u64) -> Option<*mut Record> {
    let address = (user_data & !IS_RECORD) as usize;
    (user_data > IS_RECORD).then(|| std::ptr::with_exposed_provenance_mut(address))
}

/// The record behind `user_data`; `None`: that is the context alone.
///
/// # Safety
///
/// [`Record::into_user_data`] returned it, and [`forget`] is not called before the last use of the
/// reference.
#[inline]
pub(crate) unsafe fn look<'a>(user_data: u64) -> Option<&'a Record> {
    // SAFETY: the caller guarantees it, it lives.
    record_of(user_data).map(|record| unsafe { &*record })
}

/// Frees what is behind `user_data`: its operation was not posted, or has ended.
///
/// # Safety
///
/// [`Record::into_user_data`] gave it, the engine does not have it any more, and this is called
/// once.
#[inline]
pub(crate) unsafe fn forget(user_data: u64) {
    if let Some(record) = record_of(user_data) {
        // SAFETY: the caller guarantees it; there is no other reference.
        drop(unsafe { Box::from_raw(record) });
    }
}

/// Whether an operation that is outstanding has this context.
///
/// # Safety
///
/// [`Record::into_user_data`] gave `user_data`, and the operation has not ended.
pub(crate) unsafe fn has_context(user_data: u64, context: usize) -> bool {
    // SAFETY: the caller guarantees it, it lives.
    let record = unsafe { look(user_data) };
    record.map_or(user_data as usize, |record| record.context) == context
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_alone_is_itself() {
        let record = Record { context: 0x7fff_1234, ..Record::default() };
        let user_data = record.into_user_data();
        assert_eq!(user_data, 0x7fff_1234);
        // SAFETY: it was given just now.
        unsafe {
            assert!(has_context(user_data, 0x7fff_1234) && !has_context(user_data, 1));
            assert!(look(user_data).is_none());
        }
    }

    #[test]
    fn an_inject_without_a_counter_needs_no_record() {
        let user_data = Record::of_inject(None).into_user_data();
        assert_eq!(user_data, INJECTED);
        // SAFETY: it was given just now.
        unsafe {
            assert!(look(user_data).is_none() && !has_context(user_data, 0));
            forget(user_data);
        }
        let user_data = Record::of_inject(Some(Arc::default())).into_user_data();
        // SAFETY: it was given just now, and is freed by the last look.
        unsafe {
            assert!(look(user_data).is_some_and(|record| record.is_injected));
            forget(user_data);
        }
    }

    #[test]
    fn more_than_a_context_and_odd_contexts_have_a_record() {
        for (context, flags) in [(5, 8), (usize::MAX, 0)] {
            let user_data = Record { context, flags, ..Record::default() }.into_user_data();
            assert_ne!(user_data, context as u64);
            // SAFETY: it was given just now, and is freed by the last look.
            unsafe {
                assert!(has_context(user_data, context));
                let record = look(user_data).expect("it has one");
                assert_eq!((record.flags, record.context), (flags, context));
                forget(user_data);
            }
        }
    }
}
