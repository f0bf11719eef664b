//! The only room of this crate with `unsafe`: single system calls, each behind a safe function.

pub(crate) mod bpf;
pub(crate) mod device;
pub(crate) mod lock;
pub(crate) mod signals;
pub(crate) mod socket;
pub(crate) mod table;
pub(crate) mod users;
