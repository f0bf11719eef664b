//! Long messages between processes of one host: read from the sender's memory by CMA.

use zerocopy::IntoBytes;

use super::completions::Completions;
use super::context::LaneCx;
use super::engine::EngineState;
use super::traits;
use crate::proto::table::Id;
use crate::wire::CmaSource;

/// Maximum bytes read in a turn: about 20 us, for which short messages wait.
const BYTES_PER_TURN: u64 = 256 << 10;

impl Completions {
    /// Writes the location of a send's message into `room`, for peers to read it.
    pub(super) fn write_source(&self, id: Id, room: &mut [u8]) {
        let span = self.shape(id).and_then(|shape| shape.as_span());
        let source = span.zip(self.cookie()).map(|(span, cookie)| CmaSource {
            address: cookie.announce_address(span.ptr.expose_provenance() as u64).into(),
            revocations: cookie.revocations().into(),
        });
        // A message in several pieces is not announced, and is granted.
        let nowhere = CmaSource { address: 0.into(), revocations: 0.into() };
        room.copy_from_slice(source.unwrap_or(nowhere).as_bytes());
    }
}

impl EngineState {
    /// Handles whether the other side of a session can read this process's memory.
    pub(super) fn handle_cma_changed(&mut self, name: u64, is_able: bool) {
        if let Some(session) = self.paths.session_of(name) {
            self.core.with(session, |it, cx| it.use_memory_reads(cx, is_able));
        }
    }
}

impl LaneCx<'_> {
    /// Reads the next piece from peers' memory. Returns `true` if there was one.
    ///
    /// RR-SHM-7.
    pub(super) fn read_by_cma(&mut self) -> bool {
        let mut left = BYTES_PER_TURN;
        let mut happened = false;
        while left > 0
            && let Some(read) = self
                .core
                .shared_mut()
                .next_cma(if rare!("a read of one byte", 10) { 1 } else { left })
        {
            let path = self.paths.first_path(read.session);
            let into = self.completions.shape(read.operation);
            let is_good = path.zip(into).is_some_and(|((session, _), into)| {
                let (offset, length) = (read.offset as usize, read.length as usize);
                let source = traits::CmaLocation {
                    address: read.source.address.get(),
                    revocations: read.source.revocations.get(),
                };
                // SAFETY: the operation keeps its memory until it ends, which is not within this
                // call. No other access to that of a receive exists; that of a region is accessed
                // by kernels and windows alone, for which this is one more write.
                let read =
                    unsafe { self.driver.read_by_cma(session, source, into, offset, length) };
                read.inspect_err(|error| {
                    tracing::debug!(session, "CMA read failed: {error}");
                })
                .is_ok()
            });
            self.core.handle_cma(read, is_good, self.completions);
            left = left.saturating_sub(read.length.max(1));
            happened = true;
        }
        happened
    }
}
