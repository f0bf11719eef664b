//! Chunk transfer on bulk lanes.

use std::io;
use std::os::fd::AsRawFd;

use io_uring::{opcode, types};

use super::super::{
    BYTES_PER_CALL, already_outstanding, cancelled, cut_short, no_such_lane, not_open,
};
use super::UringDriver;
use super::slots::RequestKind;
use crate::driver::traits::{DriverEvent, LaneKey, OutgoingChunk, SendMode};

/// `IORING_SEND_ZC_REPORT_USAGE`.
const REPORT_USAGE: u16 = 1 << 3;

/// A chunk that the kernel may still read.
#[derive(Clone, Copy, Debug)]
struct SentChunk {
    token: u64,
    /// Outstanding notifications.
    notifications: u32,
    is_sent: bool,
    copied: bool,
}

/// Chunks being sent, by number.
#[derive(Debug, Default)]
pub(super) struct SentChunks {
    list: Vec<Option<SentChunk>>,
    free: Vec<usize>,
}

impl SentChunks {
    fn insert(&mut self, chunk: SentChunk) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.list.push(None);
            self.list.len() - 1
        });
        self.list[index] = Some(chunk);
        index
    }

    fn get(&mut self, index: usize) -> Option<&mut SentChunk> {
        self.list.get_mut(index)?.as_mut()
    }

    fn remove(&mut self, index: usize) {
        self.list[index] = None;
        self.free.push(index);
    }
}

macro_rules! on_socket {
    ($lane:expr, |$target:ident| $entry:expr) => {
        match $lane.fixed {
            Some(index) => {
                let $target = types::Fixed(index);
                $entry
            }
            None => {
                let $target = types::Fd($lane.socket.as_raw_fd());
                $entry
            }
        }
    };
}

impl UringDriver {
    // ---- Receiving ----

    pub(super) fn submit_receive(&mut self, key: LaneKey) -> io::Result<()> {
        let lane = self.lanes.get_mut(key).ok_or_else(no_such_lane)?;
        let message = lane.receive().next_message(usize::MAX);
        let flags = (libc::MSG_WAITALL | libc::MSG_NOSIGNAL) as u32;
        let entry =
            on_socket!(lane, |socket| opcode::RecvMsg::new(socket, message).flags(flags).build());
        // SAFETY: the message and its pieces are boxed in the lane, which stays until the request
        // has retired; the caller of `recv_chunk` guarantees the memory of the pieces.
        unsafe { self.request(RequestKind::Receive(key), entry)? };
        if let Some(lane) = self.lanes.get_mut(key) {
            lane.is_receiving = true;
            lane.requests += 1;
        }
        Ok(())
    }

    pub(super) fn received(&mut self, key: LaneKey, result: i32) {
        let Some(lane) = self.retire(key) else { return };
        lane.receive().pieces.advance(usize::try_from(result).unwrap_or(0));
        let is_whole = lane.receive().pieces.remaining().is_empty();
        let is_closing = lane.closing.is_some();
        let outcome = match result {
            1.. if is_whole => Ok(lane.receive().header),
            _ if is_closing => Err(cancelled()),
            0 => Err(cut_short()),
            1.. => match self.submit_receive(key) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            _ if matches!(-result, libc::EINTR | libc::EAGAIN) => match self.submit_receive(key) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            _ => Err(io::Error::from_raw_os_error(-result)),
        };
        if let Some(lane) = self.lanes.get_mut(key) {
            lane.is_receiving = false;
            self.ready.push(DriverEvent::ChunkReceived { lane: key, result: outcome });
        }
        self.finish_close(key);
    }

    // ---- Sending ----

    /// # Safety
    ///
    /// As for `ChunkIo::send_chunk`.
    pub(super) unsafe fn start_send(&mut self, chunk: &OutgoingChunk<'_>) -> io::Result<()> {
        let OutgoingChunk { lane: key, token, header, source, offset, length, mode } = *chunk;
        let lane = self.lanes.get_mut(key).ok_or_else(no_such_lane)?;
        if lane.is_connecting || lane.closing.is_some() {
            return Err(not_open());
        }
        if lane.is_sending {
            return Err(already_outstanding());
        }
        if self.rails.has_unmatched() {
            self.rails.rebind_unmatched(key, &lane.socket, &mut self.counters);
        }
        lane.send().begin(source, offset, length)?;
        lane.send().header = *header;
        lane.send().flags = if mode == SendMode::CopyMore { libc::MSG_MORE } else { 0 };
        let is_single = lane.send().pieces.remaining().len() <= 2 && length > 0;
        let wants_zero_copy = mode == SendMode::ZeroCopy && self.can_zero_copy && is_single;
        if wants_zero_copy {
            // The header is sent first by a direct call, held back until the payload follows
            // (`MSG_MORE`).
            let socket = lane.socket.as_raw_fd();
            let flags = libc::MSG_MORE | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            self.counters.syscalls += 1;
            let bytes = &lane.send().header;
            // SAFETY: the pointer and the length are those of the header.
            let sent = unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), flags) };
            // The ring sends the rest (full socket, or an error).
            if let Ok(sent) = usize::try_from(sent) {
                lane.send().pieces.advance(sent);
            }
        }
        let copied = mode == SendMode::ZeroCopy && !wants_zero_copy;
        let chunk = SentChunk { token, notifications: 0, is_sent: false, copied };
        let chunk = self.chunks.insert(chunk);
        if wants_zero_copy {
            self.counters.zero_copy_sends += 1;
        }
        match self.submit_send(key, chunk, wants_zero_copy) {
            Ok(()) => {
                if let Some(lane) = self.lanes.get_mut(key) {
                    lane.is_sending = true;
                    lane.unreleased += 1;
                }
                Ok(())
            }
            Err(error) => {
                self.chunks.remove(chunk);
                Err(error)
            }
        }
    }

    /// Whether a range can be sent as a registered buffer; registers the arena on first use.
    fn is_registered(&mut self, base: *const u8, length: usize) -> bool {
        let Some(arena) = self.arena else { return false };
        let (first, start) = (arena.base as usize, base as usize);
        if start < first || start + length > first + arena.len {
            return false;
        }
        if let Some(is_registered) = self.is_registered {
            return is_registered;
        }
        let whole = libc::iovec { iov_base: arena.base.cast(), iov_len: arena.len };
        self.counters.syscalls += 1;
        // SAFETY: `open`'s caller keeps the arena mapped until the driver is dropped.
        let registered = unsafe { self.ring.submitter().register_buffers(&[whole]) };
        if let Err(error) = &registered {
            tracing::warn!(
                "sending from unregistered memory: the arena of {} KiB cannot be registered: \
                 {error}; raise the memlock limit (ulimit -l) or lower the setting arena_bytes",
                arena.len / 1024
            );
        }
        *self.is_registered.insert(registered.is_ok())
    }

    fn submit_send(&mut self, key: LaneKey, chunk: usize, zero_copy: bool) -> io::Result<()> {
        let lane = self.lanes.get_mut(key).ok_or_else(no_such_lane)?;
        let flags = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        let single = match lane.send().pieces.remaining() {
            [piece] if zero_copy => Some(*piece),
            _ => None,
        };
        let entry = if let Some(piece) = single {
            let (base, length) = (piece.iov_base.cast::<u8>().cast_const(), piece.iov_len);
            let length = length.min(BYTES_PER_CALL);
            let index = self.is_registered(base, length).then_some(0u16);
            self.counters.registered_sends += u64::from(index.is_some());
            let lane = self.lanes.get(key).ok_or_else(no_such_lane)?;
            on_socket!(lane, |socket| opcode::SendZc::new(socket, base, length as u32)
                .buf_index(index)
                .flags(flags)
                .zc_flags(REPORT_USAGE)
                .build())
        } else {
            let flags = (flags | lane.send().flags) as u32;
            let message = lane.send().next_message(BYTES_PER_CALL);
            on_socket!(lane, |socket| opcode::SendMsg::new(socket, message).flags(flags).build())
        };
        let kind = RequestKind::Send { lane: key, chunk, zero_copy: single.is_some() };
        // SAFETY: the message and its pieces are boxed in the lane, which stays until the request
        // has retired; the caller of `send_chunk` keeps the payload until the release.
        unsafe { self.request(kind, entry)? };
        if let Some(lane) = self.lanes.get_mut(key) {
            lane.requests += 1;
        }
        Ok(())
    }

    pub(super) fn sent(
        &mut self,
        key: LaneKey,
        number: usize,
        zero_copy: bool,
        has_notification: bool,
        result: i32,
    ) {
        if has_notification && let Some(chunk) = self.chunks.get(number) {
            chunk.notifications += 1;
        }
        let Some(lane) = self.retire(key) else { return };
        lane.send().pieces.advance(usize::try_from(result).unwrap_or(0));
        let is_whole = lane.send().pieces.remaining().is_empty();
        let is_closing = lane.closing.is_some();
        let outcome = match result {
            0.. if is_whole => Ok(()),
            _ if is_closing => Err(cancelled()),
            0 => Err(io::ErrorKind::WriteZero.into()),
            1.. => match self.submit_send(key, number, zero_copy) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            _ if matches!(-result, libc::EINTR | libc::EAGAIN) => {
                match self.submit_send(key, number, zero_copy) {
                    Ok(()) => return,
                    Err(error) => Err(error),
                }
            }
            // Zero copy is refused (no lockable memory, or unsupported by the socket): copy.
            _ if zero_copy
                && matches!(-result, libc::ENOMEM | libc::ENOBUFS | libc::EOPNOTSUPP) =>
            {
                if -result == libc::EOPNOTSUPP {
                    self.can_zero_copy = false;
                }
                if let Some(chunk) = self.chunks.get(number) {
                    chunk.copied = true;
                }
                match self.submit_send(key, number, false) {
                    Ok(()) => return,
                    Err(error) => Err(error),
                }
            }
            _ => Err(io::Error::from_raw_os_error(-result)),
        };
        if let Some(lane) = self.lanes.get_mut(key) {
            lane.is_sending = false;
        }
        if let Some(chunk) = self.chunks.get(number) {
            chunk.is_sent = true;
            self.ready.push(DriverEvent::ChunkSent { lane: key, result: outcome });
        }
        self.release_if_done(key, number);
    }

    /// A zero-copy notification arrived.
    pub(super) fn released(&mut self, key: LaneKey, number: usize, copied: bool) {
        if let Some(chunk) = self.chunks.get(number) {
            chunk.notifications -= 1;
            if copied && !chunk.copied {
                chunk.copied = true;
                self.counters.zero_copy_copied += 1;
            }
        }
        self.release_if_done(key, number);
    }

    fn release_if_done(&mut self, key: LaneKey, number: usize) {
        let Some(chunk) = self.chunks.get(number) else { return };
        if chunk.is_sent && chunk.notifications == 0 {
            let token = chunk.token;
            self.chunks.remove(number);
            self.ready.push(DriverEvent::ChunkReleased { token });
            if let Some(lane) = self.lanes.get_mut(key) {
                lane.unreleased -= 1;
            }
        }
        self.finish_close(key);
    }
}
