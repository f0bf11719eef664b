//! The frames of a segment, one after the other.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::cma_source::{CMA_SOURCE_BYTES, FLAG_CMA};
use super::eager::FLAG_DATA;
use super::one_sided::ATOMIC_BYTES_MAX;
use super::{Data, Done, Eager, Goodbye, Grant, GrantOver, LaneLost, LanesWanted, Matched};
use super::{EAGER_BYTES_MAX, MESSAGE_BYTES_MAX, MessageSource};
use super::{OneSided, ProcessQuery, ProcessStatus, RailFrame, Refused, Reply, ReplyRts, Rts};

/// First byte of an [`Eager`] frame.
pub(crate) const KIND_EAGER: u8 = 1;
/// First byte of an [`Rts`] frame.
pub(crate) const KIND_RTS: u8 = 2;
/// First byte of a [`Grant`] frame.
pub(crate) const KIND_GRANT: u8 = 3;
/// First byte of a [`Done`] frame.
pub(crate) const KIND_DONE: u8 = 4;
/// First byte of a [`Refused`] frame.
pub(crate) const KIND_REFUSED: u8 = 5;
/// First byte of a [`Matched`] frame.
pub(crate) const KIND_MATCHED: u8 = 6;
/// First byte of a [`LanesWanted`] frame.
pub(crate) const KIND_LANES_WANTED: u8 = 7;
/// First byte of a [`Goodbye`] frame.
pub(crate) const KIND_GOODBYE: u8 = 8;
/// First byte of a [`Data`] frame.
pub(crate) const KIND_DATA: u8 = 10;
/// First byte of a [`RailFrame`].
pub(crate) const KIND_RAIL: u8 = 11;
/// First byte of a [`LaneLost`] frame.
pub(crate) const KIND_LANE_LOST: u8 = 12;
/// First byte of an [`OneSided`] frame that puts.
pub(crate) const KIND_PUT: u8 = 13;
/// First byte of an [`OneSided`] frame that gets.
pub(crate) const KIND_GET: u8 = 14;
/// First byte of a [`Reply`] frame.
pub(crate) const KIND_REPLY: u8 = 15;
/// First byte of an [`OneSided`] frame with atomic operations.
pub(crate) const KIND_ATOMIC: u8 = 16;
/// First byte of a [`ReplyRts`] frame.
pub(crate) const KIND_REPLY_RTS: u8 = 17;
/// First byte of an [`OneSided`] frame that offers what is to be put.
pub(crate) const KIND_PUT_RTS: u8 = 18;
/// First byte of an [`OneSided`] frame that asks for the end of those before it.
pub(crate) const KIND_FLUSH: u8 = 19;
/// First byte of a [`ProcessQuery`] frame; 20 is reserved.
pub(crate) const KIND_PROCESS_QUERY: u8 = 21;
/// First byte of a [`ProcessStatus`] frame.
pub(crate) const KIND_PROCESS_STATUS: u8 = 22;

/// One frame, borrowed from the bytes of a segment.
#[derive(Debug)]
pub(crate) enum Frame<'a> {
    /// A whole message, with its remote data.
    Eager(&'a Eager, Option<u64>, &'a [u8]),
    /// The envelope, the remote data and the first bytes of a rendezvous message.
    Rts(&'a Rts, Option<u64>, &'a [u8]),
    /// A range asked for, and what is to carry it.
    Grant(&'a Grant, GrantOver),
    /// A rendezvous message ended.
    Done(&'a Done),
    /// A grant that cannot be served, and its bulk lane if it named one.
    Refused(&'a Refused, Option<u32>),
    /// An eager message was matched.
    Matched(&'a Matched),
    /// Bulk lanes are wanted.
    LanesWanted,
    /// The peer leaves.
    Goodbye(&'a Goodbye),
    /// Bytes of a granted range.
    Data(&'a Data, &'a [u8]),
    /// A rail of the peer.
    Rail(&'a RailFrame),
    /// The peer has given up the bulk lane of this number, or the control connection.
    LaneLost(&'a LaneLost, Option<u32>),
    /// An operation on this engine's memory, with its remote data and what it has behind that.
    OneSided(&'a OneSided, Option<u64>, &'a [u8]),
    /// The answer to such an operation, and what it asked for.
    Reply(&'a Reply, &'a [u8]),
    /// The answer to a GET: its bytes are to be pulled; the CMA source, if there is one.
    ReplyRts(&'a ReplyRts, &'a [u8]),
    /// Whether the process of an engine of this host has ended.
    ProcessQuery(&'a ProcessQuery),
    /// The answer to that.
    ProcessStatus(&'a ProcessStatus),
}

/// Why a received frame cannot be handled. The session is closed. The peer is at fault, but for
/// [`FrameError::NoSession`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("unknown frame type {0}")]
    UnknownType(u8),
    #[error("unknown carrier {0} of a range")]
    UnknownCarrier(u8),
    #[error("unknown flags of a lane that is lost ({0:#04x})")]
    UnknownFlags(u8),
    #[error("a frame is longer than the segment that carries it")]
    Truncated,
    #[error("a segment announces {announced} frames and holds {held}")]
    WrongCount { announced: u16, held: u16 },
    #[error("an eager payload of {0} bytes is over the limit")]
    EagerTooLong(u32),
    #[error("a message of {0} bytes is over the limit")]
    MessageTooLong(u64),
    #[error("first bytes ({first}) longer than the message ({length})")]
    FirstBytesTooLong { first: u32, length: u64 },
    #[error("a segment of {0} bytes is out of range")]
    BadSegmentLength(u32),
    #[error(
        "a segment on the control lane differs from what was sent (CRC32C {computed:#010x}, sent \
         as {sent:#010x}{what})"
    )]
    Corrupted { sent: u32, computed: u32, what: &'static str },
    #[error("{0} credit overrun")]
    NoCredit(&'static str),
    #[error("source endpoint {0} is out of range")]
    UnknownSource(u16),
    #[error("a grant of {length} bytes at {offset} of a message of {message} bytes")]
    BadGrant { offset: u64, length: u32, message: u64 },
    #[error("chunk {got} was granted where chunk {expected} was due")]
    BadChunkNumber { expected: u32, got: u32 },
    #[error("frame {got} is beyond the window that starts at frame {expected}")]
    BeyondWindow { expected: u32, got: u32 },
    #[error("two messages follow frame {0}")]
    FollowsTwice(u32),
    #[error("{length} bytes at {offset} of a message that is pulled: {why}")]
    BadData { offset: u64, length: u32, why: &'static str },
    #[error("rail {index} of {count} makes no sense")]
    BadRail { index: u8, count: u8 },
    #[error("an operation on {0} bytes of memory that has another form")]
    BadOneSided(u64),
    #[error("{0} operations on memory wait for their answers, more than there may be")]
    TooManyRequests(u32),
    #[error("an answer of {got} bytes to an operation on {wanted} bytes")]
    BadReply { got: u64, wanted: u64 },
    #[error("{0} is no status of a process")]
    BadProcessStatus(u8),
    #[error("so much asked of this side and so little taken: {0} answers wait")]
    AnswersWait(usize),
    #[error("frames arrive for a session that does not exist; this is a defect: please report it")]
    NoSession,
}

/// Iterates over the frames of one segment's body.
pub(crate) struct Frames<'a> {
    rest: &'a [u8],
}

impl<'a> Frames<'a> {
    /// `body` is the segment without its header.
    pub(crate) fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    fn header<T>(&mut self) -> Result<&'a T, FrameError>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        let (header, rest) = T::ref_from_prefix(self.rest).map_err(|_| FrameError::Truncated)?;
        self.rest = rest;
        Ok(header)
    }

    fn payload(&mut self, length: u32) -> Result<&'a [u8], FrameError> {
        if length as usize > EAGER_BYTES_MAX {
            return Err(FrameError::EagerTooLong(length));
        }
        let (payload, rest) =
            self.rest.split_at_checked(length as usize).ok_or(FrameError::Truncated)?;
        self.rest = rest;
        Ok(payload)
    }

    /// The remote data behind a header with these flags.
    ///
    /// RR-DATA-1.
    fn data(&mut self, flags: u8) -> Result<Option<u64>, FrameError> {
        if flags & FLAG_DATA == 0 {
            return Ok(None);
        }
        let (data, rest) = self.rest.split_first_chunk().ok_or(FrameError::Truncated)?;
        self.rest = rest;
        Ok(Some(u64::from_le_bytes(*data)))
    }

    /// The next frame, or `None` at the end.
    ///
    /// RR-FRAME-1, RR-FRAME-3.
    #[inline]
    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame<'a>>, FrameError> {
        let Some(&kind) = self.rest.first() else { return Ok(None) };
        Ok(Some(match kind {
            KIND_EAGER => {
                let header: &Eager = self.header()?;
                let (length, data) = (header.length.get(), self.data(header.flags)?);
                Frame::Eager(header, data, self.payload(length)?)
            }
            KIND_RTS => {
                let header: &Rts = self.header()?;
                let (first, length) = (header.first_bytes.get(), header.length.get());
                if length > MESSAGE_BYTES_MAX {
                    return Err(FrameError::MessageTooLong(length));
                }
                let is_too_long = match MessageSource::length(header.flags) {
                    None => u64::from(first) > length,
                    Some(bytes) => first as usize != bytes,
                };
                if is_too_long {
                    return Err(FrameError::FirstBytesTooLong { first, length });
                }
                let data = self.data(header.flags)?;
                Frame::Rts(header, data, self.payload(first)?)
            }
            KIND_GRANT => {
                let grant: &Grant = self.header()?;
                Frame::Grant(grant, grant.over()?)
            }
            KIND_DONE => Frame::Done(self.header()?),
            KIND_REFUSED => {
                let refused: &Refused = self.header()?;
                Frame::Refused(refused, refused.lane_to_abort()?)
            }
            KIND_MATCHED => Frame::Matched(self.header()?),
            KIND_LANES_WANTED => {
                let _: &LanesWanted = self.header()?;
                Frame::LanesWanted
            }
            KIND_GOODBYE => Frame::Goodbye(self.header()?),
            KIND_DATA => {
                let header: &Data = self.header()?;
                Frame::Data(header, self.payload(header.length.get())?)
            }
            KIND_RAIL => Frame::Rail(self.header()?),
            KIND_LANE_LOST => {
                let lost: &LaneLost = self.header()?;
                Frame::LaneLost(lost, lost.lane()?)
            }
            KIND_PUT | KIND_GET | KIND_ATOMIC | KIND_PUT_RTS | KIND_FLUSH => {
                let header: &OneSided = self.header()?;
                let data = self.data(header.flags)?;
                Frame::OneSided(header, data, self.operands(kind, header)?)
            }
            KIND_REPLY => {
                let header: &Reply = self.header()?;
                Frame::Reply(header, self.payload(header.length.get())?)
            }
            KIND_REPLY_RTS => {
                let header: &ReplyRts = self.header()?;
                Frame::ReplyRts(header, self.payload(source_bytes(header.flags))?)
            }
            KIND_PROCESS_QUERY => Frame::ProcessQuery(self.header()?),
            KIND_PROCESS_STATUS => Frame::ProcessStatus(self.header()?),
            other => return Err(FrameError::UnknownType(other)),
        }))
    }

    /// Takes the data behind the header of a one-sided operation.
    ///
    /// RR-RMA-1.
    #[inline]
    fn operands(&mut self, kind: u8, header: &OneSided) -> Result<&'a [u8], FrameError> {
        let length = header.length.get();
        let (most, bytes) = match kind {
            KIND_PUT => (EAGER_BYTES_MAX as u64, length),
            KIND_ATOMIC => (ATOMIC_BYTES_MAX as u64, header.operand_bytes()),
            KIND_FLUSH => (0, 0),
            KIND_PUT_RTS => (MESSAGE_BYTES_MAX, source_bytes(header.flags).into()),
            _ => (MESSAGE_BYTES_MAX, 0),
        };
        if length > most {
            return Err(FrameError::BadOneSided(length));
        }
        self.payload(bytes as u32)
    }
}

/// Length of the CMA source of a frame with these flags.
fn source_bytes(flags: u8) -> u32 {
    if flags & FLAG_CMA != 0 { CMA_SOURCE_BYTES as u32 } else { 0 }
}
