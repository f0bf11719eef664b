//! The memory of messages: the registered arena and its regions, the buffers that operations own,
//! the shapes that describe where their bytes are, and the pools of the engine.
//!
//! Only this module and the drivers access raw memory. A [`Shape`] is made here from the buffer of
//! an operation, and all code that copies bytes uses shapes.

mod arena;
mod blocks;
mod buffer;
mod copy;
mod error;
mod layout;
mod mapping;
mod memlock;
mod raw;
mod region;
mod shape;
pub(crate) mod shared;
mod window;

pub use buffer::{Buffer, Shaped};
pub use error::MemoryError;
pub(crate) use mapping::note_unmapped;

pub use layout::{Layout, Segment};
pub use raw::RawSpan;
pub use region::RegionSlice;

pub(crate) use arena::Arena;
pub(crate) use copy::{copy_bytes, copy_bytes_to};
pub(crate) use memlock::{default_arena_bytes, has_cap_ipc_lock, memlock_limit};
pub(crate) use raw::raw_shape;
pub(crate) use region::alloc_region;
pub(crate) use shape::{Shape, Span};
pub(crate) use window::{AtomicError, Fault, Window};
