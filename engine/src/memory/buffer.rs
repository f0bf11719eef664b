//! The memory that an operation owns while it is outstanding.

use std::fmt;

use super::error::MemoryError;
use super::layout::{Layout, ShapePurpose};
use super::region::RegionSlice;
use super::shape::{Shape, Span};

#[cfg(test)]
mod tests;

/// The deepest nesting of lists.
const MAX_NESTING: usize = 16;
/// The most pieces of one message: 24 bytes of bookkeeping each, so at most 384 MiB. Each block of
/// a layout in a list is a piece, and a short layout can describe very many.
const MAX_PIECES: usize = 1 << 24;

/// The memory of a message: moved into an operation, and returned to the caller by its completion.
///
/// A send sends all of it. A receive fills it from the beginning, and its length is that of the
/// longest message that can be received. Bytes that a layout does not select are not accessed.
///
/// ```
/// # let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
/// # let domain = ringrail::Domain::with_settings(settings.insecure(true).build()?)?;
/// # let (left, right) = (domain.endpoint()?.share()?, domain.endpoint()?.share()?);
/// # let peer = left.insert_peer(&right.address())?;
/// use ringrail::{Buffer, Envelope, Layout, ReceiveOptions, Selector, SendOptions};
///
/// // A header, and the second column of a matrix of 4 x 4 bytes, as one message.
/// let matrix = (0..16).collect::<Vec<u8>>();
/// let column = Layout::Strided { offset: 1, block_bytes: 1, stride_bytes: 4, count: 4 };
/// let message = Buffer::list([vec![255].into(), Buffer::shaped(matrix, column)]);
/// assert_eq!(message.len(), 5);
/// let sent = left.send(peer, Envelope::tagged(1), message, SendOptions::new())?;
/// let mut bytes = [0; 5];
/// let from = Selector::from_any(Envelope::tagged(1));
/// right.receive_blocking(from, &mut bytes, ReceiveOptions::new())?;
/// assert_eq!(bytes, [255, 1, 5, 9, 13]);
/// let message = sent.wait()?.buffer; // it belongs to the caller again
/// assert_eq!(message.into_list().map(|pieces| pieces.len()).ok(), Some(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub enum Buffer {
    /// Heap memory: the `len` bytes of a vector; its spare capacity is not used.
    Heap(Vec<u8>),
    /// A slice of memory from [`Domain::allocate`](crate::Domain::allocate).
    Region(RegionSlice),
    /// Several buffers in order: gathered by a send, scattered by a receive.
    List(Vec<Self>),
    /// Selected bytes of a buffer.
    Shaped(Box<Shaped>),
}

/// A contiguous buffer ([`Buffer::Heap`] or [`Buffer::Region`]) and the layout of the message in
/// it.
#[derive(Debug)]
pub struct Shaped {
    /// The memory.
    pub buffer: Buffer,
    /// The bytes of the memory that form the message.
    pub layout: Layout,
}

/// Shows lengths instead of bytes, which may be many and confidential.
impl fmt::Debug for Buffer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Heap(bytes) => write!(out, "Heap({} bytes)", bytes.len()),
            Self::Region(slice) => out.debug_tuple("Region").field(slice).finish(),
            Self::List(buffers) => out.debug_tuple("List").field(buffers).finish(),
            Self::Shaped(shaped) => out.debug_tuple("Shaped").field(shaped).finish(),
        }
    }
}

impl Buffer {
    /// Selects the bytes of `memory` by a layout, which is checked when an operation is posted.
    pub fn shaped(memory: impl Into<Self>, layout: Layout) -> Self {
        Self::Shaped(Box::new(Shaped { buffer: memory.into(), layout }))
    }

    /// Concatenates several buffers without copying.
    pub fn list(buffers: impl IntoIterator<Item = Self>) -> Self {
        Self::List(buffers.into_iter().collect())
    }

    /// Returns the length of the message in bytes; `usize::MAX` if layouts add up to more, in which
    /// case all operations refuse the buffer.
    pub fn len(&self) -> usize {
        match self {
            Self::Heap(bytes) => bytes.len(),
            Self::Region(slice) => slice.len(),
            Self::List(buffers) => {
                buffers.iter().fold(0, |sum, buffer| sum.saturating_add(buffer.len()))
            }
            Self::Shaped(shaped) => shaped.layout.len(),
        }
    }

    /// Whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes; `None` for a list or a shaped buffer, which are not contiguous.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match self {
            Self::Heap(bytes) => Some(bytes),
            Self::Region(slice) => Some(slice),
            Self::List(_) | Self::Shaped(_) => None,
        }
    }

    /// Like [`Self::as_slice`], for writing.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Heap(bytes) => Some(bytes),
            Self::Region(slice) => Some(slice),
            Self::List(_) | Self::Shaped(_) => None,
        }
    }

    /// Returns the vector that this buffer was made from.
    ///
    /// # Errors
    ///
    /// Returns the buffer if it is not [`Buffer::Heap`].
    pub fn into_vec(self) -> Result<Vec<u8>, Self> {
        match self {
            Self::Heap(bytes) => Ok(bytes),
            other => Err(other),
        }
    }

    /// Returns the slice that this buffer was made from.
    ///
    /// # Errors
    ///
    /// Returns the buffer if it is not [`Buffer::Region`].
    pub fn into_region(self) -> Result<RegionSlice, Self> {
        match self {
            Self::Region(slice) => Ok(slice),
            other => Err(other),
        }
    }

    /// Returns the buffers that this list was made from.
    ///
    /// # Errors
    ///
    /// Returns the buffer if it is not [`Buffer::List`].
    pub fn into_list(self) -> Result<Vec<Self>, Self> {
        match self {
            Self::List(buffers) => Ok(buffers),
            other => Err(other),
        }
    }

    /// Returns a copy of the message.
    ///
    /// # Errors
    ///
    /// The error of a layout that does not fit its buffer, as for a send;
    /// [`MemoryError::TooLarge`] if there is no memory for the copy.
    pub fn gather(&mut self) -> Result<Vec<u8>, MemoryError> {
        let shape = self.shape_for_send()?;
        let bytes = shape.len();
        let mut copy = Vec::new();
        copy.try_reserve_exact(bytes).map_err(|_| MemoryError::TooLarge { bytes })?;
        copy.resize(bytes, 0);
        // SAFETY: the shape points into `self`, which is borrowed exclusively; `copy` is new.
        unsafe { shape.copy_to(0, &mut copy) };
        Ok(copy)
    }

    /// Returns where the bytes of a message to be sent are. Pieces may overlap.
    ///
    /// The shape points into the memory that the buffer owns, not into the `Buffer` value: the
    /// value may be moved while the shape is in use. It must not be dropped, changed, taken apart
    /// or borrowed otherwise.
    ///
    /// Allocates only for lists and segments.
    ///
    /// # Errors
    ///
    /// The error of a layout that exceeds its buffer or overflows, or of a list beyond the limits.
    #[inline]
    pub(crate) fn shape_for_send(&mut self) -> Result<Shape, MemoryError> {
        self.shape(ShapePurpose::Send)
    }

    /// Like [`Self::shape_for_send`], for a message to be received.
    ///
    /// # Errors
    ///
    /// As there; [`MemoryError::Overlap`] if two pieces share a byte.
    #[inline]
    pub(crate) fn shape_for_recv(&mut self) -> Result<Shape, MemoryError> {
        self.shape(ShapePurpose::Recv)
    }

    #[inline]
    fn shape(&mut self, purpose: ShapePurpose) -> Result<Shape, MemoryError> {
        if let Some(span) = self.span() {
            return Ok(Shape::Contiguous(span));
        }
        self.shape_of_pieces(purpose)
    }

    fn shape_of_pieces(&mut self, purpose: ShapePurpose) -> Result<Shape, MemoryError> {
        if let Self::Shaped(shaped) = self {
            return shaped.check(purpose).map(|base| shaped.layout.shape(base));
        }
        let mut pieces = Pieces { spans: Vec::new(), len: 0, purpose };
        pieces.add(self, 0)?;
        Ok(Shape::list(pieces.spans))
    }

    /// The memory of a buffer that is one piece.
    #[inline]
    pub(super) fn span(&mut self) -> Option<Span> {
        match self {
            Self::Heap(bytes) => Some(Span { ptr: bytes.as_mut_ptr(), len: bytes.len() }),
            Self::Region(slice) => Some(Span { ptr: slice.as_mut_ptr(), len: slice.len() }),
            Self::List(_) | Self::Shaped(_) => None,
        }
    }
}

impl Shaped {
    /// Checks the layout against the memory; returns where the memory starts.
    fn check(&mut self, purpose: ShapePurpose) -> Result<*mut u8, MemoryError> {
        let memory = self.buffer.span().ok_or(MemoryError::NotContiguous)?;
        if self.layout.pieces() > MAX_PIECES && matches!(self.layout, Layout::Segments(_)) {
            return Err(MemoryError::TooManyPieces { limit: MAX_PIECES });
        }
        self.layout.check(memory.len, purpose)?;
        Ok(memory.ptr)
    }
}

/// Spells a list out.
struct Pieces {
    spans: Vec<Span>,
    /// The length so far, in bytes.
    len: usize,
    purpose: ShapePurpose,
}

impl Pieces {
    fn add(&mut self, buffer: &mut Buffer, nesting: usize) -> Result<(), MemoryError> {
        match buffer {
            Buffer::List(buffers) => {
                if nesting >= MAX_NESTING {
                    return Err(MemoryError::TooNested { limit: MAX_NESTING });
                }
                self.reserve(buffers.len())?;
                buffers.iter_mut().try_for_each(|buffer| self.add(buffer, nesting + 1))
            }
            Buffer::Shaped(shaped) => {
                let base = shaped.check(self.purpose)?;
                let shape = shaped.layout.shape(base);
                // A dense or empty layout is one piece at the most, whatever its count.
                if !shape.is_contiguous() {
                    self.reserve(shaped.layout.pieces())?;
                }
                shape.spans(0, shape.len()).try_for_each(|span| self.push(span))
            }
            Buffer::Heap(_) | Buffer::Region(_) => {
                buffer.span().map_or(Ok(()), |span| self.push(span))
            }
        }
    }

    /// Makes room, within the limit and without aborting when there is none.
    fn reserve(&mut self, more: usize) -> Result<(), MemoryError> {
        let fits = self.spans.len().checked_add(more).is_some_and(|all| all <= MAX_PIECES);
        if !fits || self.spans.try_reserve(more).is_err() {
            return Err(MemoryError::TooManyPieces { limit: MAX_PIECES });
        }
        Ok(())
    }

    fn push(&mut self, span: Span) -> Result<(), MemoryError> {
        self.len = self.len.checked_add(span.len).ok_or(MemoryError::LayoutOverflow)?;
        self.reserve(1)?;
        self.spans.push(span);
        Ok(())
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Heap(bytes)
    }
}

impl From<Box<[u8]>> for Buffer {
    fn from(bytes: Box<[u8]>) -> Self {
        Self::Heap(bytes.into_vec())
    }
}

/// Copies.
impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Self {
        Self::Heap(bytes.to_vec())
    }
}

/// Copies.
impl<const N: usize> From<&[u8; N]> for Buffer {
    fn from(bytes: &[u8; N]) -> Self {
        Self::Heap(bytes.to_vec())
    }
}

impl From<RegionSlice> for Buffer {
    fn from(slice: RegionSlice) -> Self {
        Self::Region(slice)
    }
}
