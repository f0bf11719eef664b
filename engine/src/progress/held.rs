//! What keeps the memory of an outstanding operation alive.

use std::sync::Arc;

use crate::memory::{Buffer, Window};

/// See the module.
#[derive(Debug, Default)]
pub(super) enum Held {
    /// Nothing: its poster does.
    #[default]
    Nothing,
    /// The operation owns it.
    Buffer(Buffer),
    /// It is memory that peers may reach: others read and write it meanwhile.
    Window(Arc<Window>),
}

impl Held {
    pub(super) fn is_window(&self) -> bool {
        matches!(self, Self::Window(_))
    }

    /// The buffer, to be given back.
    pub(super) fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Buffer(buffer) => Some(buffer),
            Self::Nothing | Self::Window(_) => None,
        }
    }

    /// The buffer, of which nothing is left here.
    #[inline]
    pub(super) fn take_buffer(&mut self) -> Option<Buffer> {
        std::mem::take(self).into_buffer()
    }
}
