//! Wire form of remote data.

use crate::wire::DATA_BYTES;

/// The bytes of remote data after a header, empty where there is none.
pub(super) struct DataBytes([u8; DATA_BYTES], usize);

impl DataBytes {
    #[inline]
    pub(super) fn of(data: Option<u64>) -> Self {
        let length = if data.is_some() { DATA_BYTES } else { 0 };
        Self(data.unwrap_or(0).to_le_bytes(), length)
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.0[..self.1]
    }
}
