//! The engine loop, and the trait a driver implements for it.
//!
//! [`engine::Engine`] owns the protocol ([`crate::proto`]), a driver, and the memory of what is
//! outstanding ([`completions`]). One call of [`engine::Engine::progress`] reads the hottest
//! control lanes directly, collects what the driver has to say, moves bulk data, and sends what
//! is staged.

mod bereaved;
mod bulk;
mod care;
pub(crate) mod caretaker;
pub(crate) mod completions;
mod connect;
mod control;
mod copies;
pub(crate) mod datagram;
pub(crate) mod engine;
mod greet;
pub(crate) mod lanes;
mod leave;
pub(crate) mod partial;
pub(crate) mod post;
mod rehome;
mod roles;
mod silence;
pub(crate) mod statistics;
mod stream;
mod unfinished;
pub(crate) mod zero_copy;
