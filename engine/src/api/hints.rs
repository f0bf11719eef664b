//! Hints that an endpoint gives to what is sent by it.

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

    /// The hint of a message in `context` (`None`: without one) that `said` one itself, or not.
    #[inline]
    pub(super) fn of(&self, context: Option<u32>, said: Option<Hint>) -> Hint {
        if let Some(hint) = said {
            return hint;
        }
        let Some(of_contexts) = self.of_contexts.get() else { return self.usual() };
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
    /// The hint of messages that are sent from now on by this endpoint and say none themselves:
    /// at first the setting `hint`, which counts again after [`Endpoint::detach`]. A hint never
    /// changes the order in which messages match, nor when an operation may end: see [`Hint`].
    pub fn set_hint(&self, hint: Hint) {
        tracing::debug!(%hint, "the hint of an endpoint");
        self.open().hints.usual.store(hint as u8, Ordering::Relaxed);
    }

    /// The same for tagged messages in one context, a communicator or a stream say; `None`: those
    /// have the endpoint's hint again. After the first call each message of the endpoint that says
    /// no hint itself costs a look-up.
    pub fn set_context_hint(&self, context: u32, hint: Option<Hint>) {
        tracing::debug!(context, ?hint, "the hint of a context");
        self.open().hints.set(context, hint);
    }

    /// The hint of a message in `context` that says none itself.
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
