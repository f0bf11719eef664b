//! What the file of the ring uses of the wire's.

#![allow(dead_code, reason = "the models do not need all of the file")]

#[path = "../../../engine/src/wire/frame_range.rs"]
pub(crate) mod frame_range;
