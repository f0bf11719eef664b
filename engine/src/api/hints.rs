//! Hints that an endpoint gives to what is sent by it.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;

use super::endpoint::{Endpoint, Owned};
use crate::types::Hint;

/// The hints of an endpoint: of one thread, like the endpoint.
#[derive(Debug)]
pub(super) struct Hints {
    usual: Cell<Hint>,
    /// Seldom there, so it is elsewhere.
    of_contexts: OnceCell<Box<RefCell<HashMap<u32, Hint>>>>,
}

impl Hints {
    pub(super) fn new(usual: Hint) -> Self {
        Self { usual: Cell::new(usual), of_contexts: OnceCell::new() }
    }

    /// The hint of a message in `context` (`None`: without one) that `said` one itself, or not.
    #[inline]
    pub(super) fn of(&self, context: Option<u32>, said: Option<Hint>) -> Hint {
        if let Some(hint) = said {
            return hint;
        }
        let usual = self.usual.get();
        let Some(of_contexts) = self.of_contexts.get() else { return usual };
        let found = context.and_then(|context| of_contexts.borrow().get(&context).copied());
        found.unwrap_or(usual)
    }

    fn set(&self, context: u32, hint: Option<Hint>) {
        let mut of_contexts = self.of_contexts.get_or_init(Box::default).borrow_mut();
        match hint {
            Some(hint) => of_contexts.insert(context, hint),
            None => of_contexts.remove(&context),
        };
    }
}

impl Endpoint<Owned> {
    /// The hint of messages that are sent from now on by this endpoint and say none themselves:
    /// at first the setting `hint`, which counts again after [`Endpoint::detach`]. A hint never
    /// changes the order in which messages match, nor when an operation may end: see [`Hint`].
    pub fn set_hint(&self, hint: Hint) {
        tracing::debug!(%hint, "the hint of an endpoint");
        self.mode.hints.usual.set(hint);
    }

    /// The same for tagged messages in one context, a communicator or a stream say; `None`: those
    /// have the endpoint's hint again. After the first call each message of the endpoint that says
    /// no hint itself costs a look-up.
    pub fn set_context_hint(&self, context: u32, hint: Option<Hint>) {
        tracing::debug!(context, ?hint, "the hint of a context");
        self.mode.hints.set(context, hint);
    }

    /// The hint of a message in `context` that says none itself.
    pub fn hint(&self, context: u32) -> Hint {
        self.mode.hints.of(Some(context), None)
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
