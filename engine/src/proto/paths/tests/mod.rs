//! Tests of sessions with their paths, between two engines in virtual time.

mod addresses;
mod arrivals;
mod lifetimes;
pub(super) mod pair;
mod primary;
mod silence;
mod timers;
