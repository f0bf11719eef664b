//! The objects behind the handles.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringrail::bootstrap::Bootstrap;
use ringrail::{
    ClaimedMessage, CompletionQueue, Domain, Endpoint, Error, EventQueue, Listener, Owned, Region,
    Shared,
};

use crate::handles::{Handled, this_thread};

/// Something of a shared endpoint, or of an owned one.
pub(crate) enum Of<S, O> {
    Shared(S),
    Owned(O),
}

impl<S, O> Of<S, O> {
    /// The thread that may use it; 0: each.
    pub(crate) fn owner(&self) -> u64 {
        match self {
            Self::Shared(_) => 0,
            Self::Owned(_) => this_thread(),
        }
    }
}

/// The same for both kinds.
macro_rules! each {
    ($of:expr, $it:ident => $body:expr) => {
        match $of {
            $crate::inside::Of::Shared($it) => $body,
            $crate::inside::Of::Owned($it) => $body,
        }
    };
}

/// The same for both kinds; what comes out is of the same kind.
macro_rules! keep {
    ($of:expr, $it:ident => $body:expr) => {
        match $of {
            $crate::inside::Of::Shared($it) => $crate::inside::Of::Shared($body),
            $crate::inside::Of::Owned($it) => $crate::inside::Of::Owned($body),
        }
    };
}

pub(crate) use {each, keep};

pub(crate) type AnyEndpoint = Of<Endpoint<Shared>, Endpoint<Owned>>;
pub(crate) type AnyQueue = Of<CompletionQueue<Shared>, CompletionQueue<Owned>>;
pub(crate) type AnyEvents = Of<EventQueue<Shared>, EventQueue<Owned>>;
pub(crate) type AnyListener = Of<Listener<Shared>, Listener<Owned>>;
pub(crate) type AnyRegion = Of<Region<Shared>, Region<Owned>>;
pub(crate) type AnyMessage = Of<Mutex<ClaimedMessage<Shared>>, Mutex<ClaimedMessage<Owned>>>;

/// A domain.
pub struct rr_domain(pub(crate) Domain);

/// A place to send from and to receive at.
pub struct rr_endpoint(pub(crate) AnyEndpoint);

/// A completion queue: where posted operations end.
pub struct rr_cq(pub(crate) AnyQueue, pub(crate) Mutex<Failures>);

/// An event queue.
pub struct rr_eq(pub(crate) AnyEvents);

/// Where an endpoint is asked for connections.
pub struct rr_listener(pub(crate) AnyListener);

/// Memory that peers may reach.
pub struct rr_region(pub(crate) AnyRegion, pub(crate) *mut u8);

/// A message that was taken out of matching.
pub struct rr_message(pub(crate) AnyMessage);

/// The exchange of a job's ranks.
pub struct rr_bootstrap(pub(crate) Mutex<Box<dyn Bootstrap>>);

macro_rules! handled {
    ($($name:ident, $kind:literal, $what:literal;)*) => {
        $(impl Handled for $name {
            type Name = Self;
            const KIND: u64 = $kind;
            const WHAT: &'static str = $what;
        })*
    };
}

handled! {
    rr_domain, 1, "domain";
    rr_endpoint, 2, "endpoint";
    rr_cq, 3, "completion queue";
    rr_eq, 4, "event queue";
    rr_region, 5, "region";
    rr_message, 6, "claimed message";
    rr_bootstrap, 7, "bootstrap";
    rr_listener, 8, "listener";
}

/// Errors of completions that were read by one handle, until so many others have come.
#[derive(Default)]
pub(crate) struct Failures {
    kept: VecDeque<Error>,
    /// The number of the one that comes next, less one.
    so_far: u64,
}

impl Failures {
    const MOST: usize = 256;

    /// Keeps an error; its number is never 0.
    pub(crate) fn keep(&mut self, error: Error) -> u64 {
        if self.kept.len() == Self::MOST {
            self.kept.pop_front();
        }
        self.kept.push_back(error);
        self.so_far += 1;
        self.so_far
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Error> {
        let back = self.so_far.checked_sub(number)?;
        let index = self.kept.len().checked_sub(usize::try_from(back).ok()?.checked_add(1)?)?;
        self.kept.get(index)
    }
}

/// What a panic of another call left is as good as before: calls give up nothing half done.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads use objects of shared endpoints together.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Domain>();
    is_shared::<Endpoint<Shared>>();
    is_shared::<CompletionQueue<Shared>>();
    is_shared::<EventQueue<Shared>>();
    is_shared::<Listener<Shared>>();
    is_shared::<Region<Shared>>();
    is_shared::<Mutex<ClaimedMessage<Shared>>>();
    is_shared::<Mutex<Box<dyn Bootstrap>>>();
    is_shared::<Mutex<Failures>>();
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_failures_are_kept() {
        let mut failures = Failures::default();
        let numbers: Vec<u64> = (0..300)
            .map(|it| failures.keep(if it == 299 { Error::UnknownPeer } else { Error::Cancelled }))
            .collect();
        assert!(matches!(failures.get(numbers[299]), Some(Error::UnknownPeer)));
        assert!(matches!(failures.get(numbers[44]), Some(Error::Cancelled)));
        for gone in [numbers[43], 0, 301, u64::MAX] {
            assert!(failures.get(gone).is_none(), "{gone}");
        }
    }
}
