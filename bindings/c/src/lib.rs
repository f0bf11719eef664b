//! The C API of ringrail: the calls of `ringrail.h`, which cbindgen makes of this crate.
//!
//! Nothing is decided here: each call checks its pointers and lengths (`check`), finds its
//! objects (`handles`), calls the engine, and turns what comes back into a code and a text
//! (`fault`). A panic does not cross the border.
//!
//! Objects are named by handles that are no addresses: one that was closed, or never was one, is an
//! error and not a crash. What C cannot express by types is listed for each call under *Safety*.

#![allow(non_camel_case_types, reason = "the names are those of the header")]

mod address;
mod atomics;
mod bootstrap;
mod check;
mod claims;
mod codes;
mod completion;
mod connections;
mod domain;
mod endpoint;
mod events;
mod fault;
mod handles;
mod inside;
mod one_sided;
mod options;
mod peers;
mod queue;
mod receive;
mod region;
mod send;
mod statistics;
mod text;
mod version;

pub use address::*;
pub use atomics::*;
pub use bootstrap::*;
pub use claims::*;
pub use codes::*;
pub use completion::*;
pub use connections::*;
pub use domain::*;
pub use endpoint::*;
pub use events::*;
pub use fault::{rr_error_name, rr_last_errno, rr_last_error, rr_strerror};
pub use one_sided::*;
pub use options::*;
pub use peers::*;
pub use queue::*;
pub use receive::*;
pub use region::*;
pub use send::*;
pub use statistics::*;
pub use version::*;
