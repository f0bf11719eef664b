//! Why bytes of a window could not be read or written.

use std::io;

use crate::wire::atomic_op::{AtomicOp, Datatype};

/// Why bytes of a window could not be read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// They are not inside.
    #[error(
        "{len} bytes at offset {offset} are not inside a region of {window_bytes} bytes: check \
         the offset"
    )]
    Range { offset: usize, len: usize, window_bytes: usize },
    /// Nothing is mapped there, or it may not be read or written. The bytes before it were dealt
    /// with.
    #[error(
        "the memory from offset {offset} on is not mapped, or its protection forbids this access: \
         map it before peers use it"
    )]
    Memory { offset: usize },
    /// The kernel did not serve the call.
    #[error(
        "the kernel refuses to access memory from offset {offset} on ({}): a seccomp filter that \
         forbids process_vm_readv and process_vm_writev stops dynamic windows",
        io::Error::from_raw_os_error(*.os_error)
    )]
    System { offset: usize, os_error: i32 },
}

impl Fault {
    /// The same, `by` bytes further on.
    pub(super) fn behind(self, by: usize) -> Self {
        match self {
            Self::Range { offset, len, window_bytes } => {
                Self::Range { offset: offset + by, len, window_bytes }
            }
            Self::Memory { offset } => Self::Memory { offset: offset + by },
            Self::System { offset, os_error } => Self::System { offset: offset + by, os_error },
        }
    }
}

/// Why an atomic operation was not done. No element was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum AtomicError {
    /// The elements are not memory that can be operated on.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The elements do not lie at a multiple of what their type wants.
    #[error("elements of type {datatype:?} at offset {offset} are not aligned to {} bytes",
        datatype.align())]
    Misaligned { offset: usize, datatype: Datatype },
    /// There is no such operation on such elements.
    #[error("{op:?} is not defined for elements of type {datatype:?}")]
    Unsupported { op: AtomicOp, datatype: Datatype },
    /// Operands, values to compare with and the room for results are not whole elements, or not
    /// equally many, or there are none, or some that the operation does not take.
    #[error(
        "{op:?} of type {datatype:?} with {operands} bytes of operands, {compare} to compare with \
         and {fetched} for results: as many elements of each that it takes"
    )]
    Length { op: AtomicOp, datatype: Datatype, operands: usize, compare: usize, fetched: usize },
}
