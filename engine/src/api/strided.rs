//! Strided puts and gets, and flushes of all peers.

use std::collections::VecDeque;
use std::time::Instant;

use super::blocking::deadline_of;
use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::Attached;
use super::operation::Operation;
use super::options::SendOptions;
use super::region::RemoteAddress;
use crate::progress::post::Memory;
use crate::proto::effects::CompletionLevel;
use crate::proto::session::one_sided::Verb;
use crate::types::{Completed, Error, Failed, Peer, TimeOut, TimeOutOutcome};

/// Rows under way at once.
const ROWS_AHEAD: usize = 64;

/// Rows of equal length and distance, for example a part of a matrix. The distance (stride) is from
/// the beginning of one row to that of the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rows {
    /// The number of rows.
    pub count: usize,
    /// The length of each row, in bytes.
    pub bytes: usize,
    /// The local stride, in bytes.
    pub stride: usize,
    /// The stride in the memory of the peer, in bytes.
    pub remote_stride: u64,
}

impl Rows {
    /// Where each row is, on this side and at the peer, of memory of `length` bytes.
    fn places(
        self,
        at: RemoteAddress,
        length: usize,
    ) -> Result<impl Iterator<Item = (usize, RemoteAddress)>, Error> {
        let Self { count, bytes, stride, remote_stride } = self;
        let last = count.saturating_sub(1);
        let end = last.checked_mul(stride).and_then(|last| last.checked_add(bytes));
        let end_there = (last as u64).checked_mul(remote_stride);
        let end_there = end_there.and_then(|last| last.checked_add(at.offset));
        if end.is_none_or(|end| end > length) && count > 0 || end_there.is_none() {
            let text = format!(
                "{count} rows of {bytes} bytes with stride {stride} exceed {length} bytes, or the \
                 address space of the peer: check count and strides",
            );
            return Err(Error::misuse(text));
        }
        Ok((0..count).map(move |row| {
            let offset = at.offset + row as u64 * remote_stride;
            (row * stride, RemoteAddress { offset, ..at })
        }))
    }
}

/// Waits for the oldest of some operations.
fn end_of_first<M: Attached>(
    under_way: &mut VecDeque<(usize, Operation<M>)>,
    deadline: Option<Instant>,
) -> Result<Option<(usize, Completed)>, Error> {
    let Some((row, mut operation)) = under_way.pop_front() else { return Ok(None) };
    let ended = operation.wait_until(deadline).map_err(|failed| failed.error)?;
    ended
        .map(|completed| Some((row, completed)))
        .ok_or_else(|| TimeOut::new("a put or get of rows", None, TimeOutOutcome::Unknown).into())
}

impl<M: Attached> Endpoint<M> {
    /// Does something with each row, several at a time; `ended` gets each that is done, in order.
    fn each_row(
        &self,
        places: impl Iterator<Item = (usize, RemoteAddress)>,
        options: &SendOptions,
        start: impl Fn(usize, RemoteAddress, SendOptions) -> Result<Operation<M>, Failed>,
        mut ended: impl FnMut(usize, Completed),
    ) -> Result<(), Error> {
        let deadline = deadline_of(options.timeout);
        let mut under_way = VecDeque::new();
        let mut fence = options.fence;
        for (row, at) in places {
            while under_way.len() >= ROWS_AHEAD {
                let Some((row, done)) = end_of_first(&mut under_way, deadline)? else { break };
                ended(row, done);
            }
            let level = CompletionLevel::Delivery;
            let options = SendOptions { level, fence, data: None, more: true, ..*options };
            let operation = loop {
                match start(row, at, options) {
                    Ok(operation) => break operation,
                    Err(failed) if failed.error.is_would_block() => {
                        match end_of_first(&mut under_way, deadline)? {
                            Some((row, done)) => ended(row, done),
                            None => drop(self.progress()?),
                        }
                    }
                    Err(failed) => return Err(failed.error),
                }
            };
            fence = false;
            under_way.push_back((row, operation));
        }
        while let Some((row, done)) = end_of_first(&mut under_way, deadline)? {
            ended(row, done);
        }
        Ok(())
    }

    /// Writes rows of `bytes` to rows of the memory of a peer, and waits until all are written.
    ///
    /// # Errors
    ///
    /// The error of the first row that failed; others may have been written. [`Error::TimedOut`]:
    /// some are still outstanding. [`Error::Misuse`]: a row exceeds `bytes`.
    pub fn put_rows_blocking(
        &self,
        peer: Peer,
        at: RemoteAddress,
        bytes: &[u8],
        rows: Rows,
        options: SendOptions,
    ) -> Result<(), Error> {
        let places = rows.places(at, bytes.len())?;
        let start = |row: usize, at, options| {
            self.put(peer, at, bytes[row..][..rows.bytes].to_vec(), options)
        };
        self.each_row(places, &options, start, |_, _| ())
    }

    /// Reads rows of the memory of a peer into rows of `into`, and waits for all of them.
    ///
    /// # Errors
    ///
    /// As for [`Self::put_rows_blocking`].
    pub fn get_rows_blocking(
        &self,
        peer: Peer,
        at: RemoteAddress,
        into: &mut [u8],
        rows: Rows,
        options: SendOptions,
    ) -> Result<(), Error> {
        let places = rows.places(at, into.len())?;
        let start = |_: usize, at, options| self.get(peer, at, vec![0; rows.bytes], options);
        self.each_row(places, &options, start, |row, done| {
            let bytes = done.buffer.as_slice().unwrap_or_default();
            into[row..][..bytes.len()].copy_from_slice(bytes);
        })
    }

    /// Like [`Self::flush`], for all peers on whose memory this engine has operated.
    ///
    /// # Errors
    ///
    /// As for [`Self::flush`], after all flushes have ended: [`Error::Unflushed`] with the sum of
    /// all, else the error of the first one that failed.
    pub fn flush_all(&self, options: SendOptions) -> Result<(), Error> {
        let deadline = deadline_of(options.timeout);
        let at = RemoteAddress { key: super::region::RemoteKey(0), offset: 0 };
        let peers = self.open().engine.with(|engine| engine.state.peers_operated_on());
        let (mut flushes, mut refused, mut first) = (VecDeque::new(), 0, None);
        for peer in peers {
            let request = self.one_sided(peer, Verb::Flush, at, 0, &options);
            match self.start(request, Memory::nothing(), &options) {
                Ok(flush) => flushes.push_back((0, flush)),
                Err(failed) => drop(first.get_or_insert(failed.error)),
            }
        }
        while !flushes.is_empty() {
            match end_of_first(&mut flushes, deadline) {
                Ok(_) => {}
                Err(Error::Unflushed(count)) => refused += count,
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        match (first, refused) {
            (Some(error), _) => Err(error),
            (None, 0) => Ok(()),
            (None, refused) => Err(Error::Unflushed(refused)),
        }
    }
}
