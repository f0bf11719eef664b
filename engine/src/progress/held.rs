//! Ownership of the memory of an outstanding operation.

use std::sync::Arc;

use crate::memory::{Buffer, Window};

/// Guard of the memory; see the module.
#[derive(Debug, Default)]
pub(super) enum MemoryGuard {
    /// None: its poster keeps it.
    #[default]
    Nothing,
    /// The operation owns it.
    Buffer(Buffer),
    /// It is memory that peers may access: they read and write it meanwhile.
    Window(Arc<Window>),
}

impl MemoryGuard {
    pub(super) fn is_window(&self) -> bool {
        matches!(self, Self::Window(_))
    }

    /// Returns the buffer.
    pub(super) fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Buffer(buffer) => Some(buffer),
            Self::Nothing | Self::Window(_) => None,
        }
    }
}
