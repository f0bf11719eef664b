//! Messages that are looked at, claimed and discarded before they are received.

use std::ffi::c_void;
use std::sync::PoisonError;

use ringrail::{ClaimedMessage, RawSpan, ReceiveOptions, Selector, Shared, Status};

use super::Ep;
use super::post::{Incoming, posted};
use crate::abi::consts::{FI_CLAIM, FI_DISCARD, FI_MSG, FI_PEEK, FI_RECV, FI_TAGGED};
use crate::cq::Entry;
use crate::cq::name::Record;
use crate::errno::Errno;

impl Ep {
    /// Receives by `FI_PEEK`, `FI_CLAIM` and `FI_DISCARD`.
    ///
    /// # Safety
    ///
    /// As for [`Self::receive`].
    #[cold]
    pub(super) unsafe fn receive_found(
        &self,
        pieces: &[RawSpan],
        message: &Incoming,
    ) -> Result<isize, Errno> {
        let operation = message.flags & (FI_PEEK | FI_CLAIM | FI_DISCARD);
        if operation != FI_CLAIM {
            // It ends with an entry, and nothing is done to a message without one.
            self.opened()?.receive.sink.check_room()?;
        }
        match operation {
            FI_CLAIM => {
                // SAFETY: the caller guarantees it.
                unsafe { self.receive_claimed(pieces, message) }
            }
            set if set & FI_PEEK != 0 => self.peek(message),
            set if set & FI_CLAIM != 0 => {
                let claimed = self.take_claim(message.context).ok_or(Errno::INVAL)?;
                let status = *claimed.status();
                claimed.discard();
                self.complete_peek(message, Some(&status))
            }
            _ => Err(Errno::BADFLAGS),
        }
    }

    fn take_claim(&self, context: *mut c_void) -> Option<ClaimedMessage<Shared>> {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.remove(&context.addr())
    }

    fn keep_claim(&self, context: *mut c_void, claimed: ClaimedMessage<Shared>) {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.insert(context.addr(), claimed);
    }

    fn peek(&self, message: &Incoming) -> Result<isize, Errno> {
        let (open, endpoint) = (self.opened()?, self.engine()?);
        let Incoming { from, envelope, ignore, context, flags } = *message;
        let selector = Selector { source: self.source(open, from)?, envelope, ignore };
        if flags & (FI_CLAIM | FI_DISCARD) == 0 {
            let found = endpoint.peek(selector)?;
            return self.complete_peek(message, found.as_ref());
        }
        let Some(claimed) = endpoint.claim(selector)? else {
            return self.complete_peek(message, None);
        };
        let status = *claimed.status();
        match flags & FI_DISCARD {
            0 => self.keep_claim(context, claimed),
            _ => claimed.discard(),
        }
        self.complete_peek(message, Some(&status))
    }

    /// Reports the result to the queue of receives, also when nothing was found.
    fn complete_peek(&self, message: &Incoming, found: Option<&Status>) -> Result<isize, Errno> {
        let context = message.context.addr();
        let entry = match found {
            Some(status) => Entry::of_message(context, FI_RECV, status),
            None => {
                let kind = if message.envelope.is_tagged() { FI_TAGGED } else { FI_MSG };
                let mut entry = Entry::new(context, FI_RECV | kind).failed(Errno::NOMSG);
                entry.tag = message.envelope.tag();
                entry
            }
        };
        self.opened()?.receive.sink.push(entry);
        Ok(0)
    }

    /// # Safety
    ///
    /// As for [`Self::receive`].
    unsafe fn receive_claimed(
        &self,
        pieces: &[RawSpan],
        message: &Incoming,
    ) -> Result<isize, Errno> {
        let (open, endpoint) = (self.opened()?, self.engine()?);
        let Incoming { context, flags, .. } = *message;
        let mut claimed = self.take_claim(context).ok_or(Errno::INVAL)?;
        let record = Record { context: context.addr(), ..Record::default() };
        let (user_data, silent) = open.receive.named(flags, open.counts.recv.as_ref(), record);
        let options = ReceiveOptions::new().silent(silent).user_data(user_data);
        // SAFETY: the caller guarantees it.
        let result = unsafe { endpoint.post_receive_claimed_raw(&mut claimed, pieces, options) };
        if result.is_err() {
            // It can still be received.
            self.keep_claim(context, claimed);
        }
        posted(result, user_data)
    }
}
