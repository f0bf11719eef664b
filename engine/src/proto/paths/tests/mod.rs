//! Tests of sessions with their paths, between two engines in virtual time.

mod addresses;
mod arrivals;
mod carriers;
mod lifetimes;
mod pair;
mod silence;
mod timers;
