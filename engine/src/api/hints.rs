//! Hints of an endpoint and its contexts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};

use super::endpoint::Endpoint;
use super::mode::Attached;
use crate::types::Hint;

/// The hints of an endpoint. To read the usual one costs a load.
#[derive(Debug)]
pub(super) struct Hints {
    usual: AtomicU8,
    /// Seldom there, so it is elsewhere.
    of_contexts: OnceLock<Box<RwLock<HashMap<u32, Hint>>>>,
}

impl Hints {
    pub(super) fn new(usual: Hint) -> Self {
        Self { usual: AtomicU8::new(usual as u8), of_contexts: OnceLock::new() }
    }

    #[inline]
    fn usual(&self) -> Hint {
        match self.usual.load(Ordering::Relaxed) {
            it if it == Hint::Latency as u8 => Hint::Latency,
            it if it == Hint::Bulk as u8 => Hint::Bulk,
            it if it == Hint::Priority as u8 => Hint::Priority,
            _ => Hint::None,
        }
    }

    /// Returns the hint of a message in `context` (`None`: untagged) with `own` hint, if any.
    #[inline(always)]
    pub(super) fn of(&self, context: Option<u32>, own: Option<Hint>) -> Hint {
        if let Some(hint) = own {
            return hint;
        }
        match self.of_contexts.get() {
            None => self.usual(),
            Some(of_contexts) => self.of_context(of_contexts, context),
        }
    }

    #[cold]
    fn of_context(&self, of_contexts: &RwLock<HashMap<u32, Hint>>, context: Option<u32>) -> Hint {
        let of_contexts = of_contexts.read().unwrap_or_else(PoisonError::into_inner);
        let found = context.and_then(|context| of_contexts.get(&context).copied());
        found.unwrap_or_else(|| self.usual())
    }

    fn set(&self, context: u32, hint: Option<Hint>) {
        let of_contexts = self.of_contexts.get_or_init(Box::default);
        let mut of_contexts = of_contexts.write().unwrap_or_else(PoisonError::into_inner);
        match hint {
            Some(hint) => of_contexts.insert(context, hint),
            None => of_contexts.remove(&context),
        };
    }
}

impl<M: Attached> Endpoint<M> {
    /// Sets the hint of messages of this endpoint that have none themselves; by default, and again
    /// after [`Endpoint::detach`], it is the setting `hint`. A hint does not change the order of
    /// matching nor the meaning of completions: see [`Hint`].
    pub fn set_hint(&self, hint: Hint) {
        tracing::debug!(%hint, "the hint of an endpoint");
        self.open().hints.usual.store(hint as u8, Ordering::Relaxed);
    }

    /// Sets the hint of tagged messages in one context (an MPI communicator, for example); `None`:
    /// that of the endpoint. After the first call, each message of the endpoint without a hint of
    /// its own costs a look-up.
    pub fn set_context_hint(&self, context: u32, hint: Option<Hint>) {
        tracing::debug!(context, ?hint, "the hint of a context");
        self.open().hints.set(context, hint);
    }

    /// Returns the hint of messages in `context` that have none themselves.
    pub fn hint(&self, context: u32) -> Hint {
        self.open().hints.of(Some(context), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_counts() {
        let hints = Hints::new(Hint::Bulk);
        assert_eq!(hints.of(Some(1), None), Hint::Bulk);
        assert_eq!(hints.of(Some(1), Some(Hint::None)), Hint::None);
        hints.set(1, Some(Hint::Latency));
        assert_eq!(hints.of(Some(1), None), Hint::Latency);
        assert_eq!(hints.of(Some(2), None), Hint::Bulk);
        assert_eq!(hints.of(None, None), Hint::Bulk, "an untagged message has no context");
        assert_eq!(hints.of(Some(1), Some(Hint::Priority)), Hint::Priority);
        hints.set(1, None);
        assert_eq!(hints.of(Some(1), None), Hint::Bulk);
    }
}
