use proptest::prelude::*;

use super::*;

/// The memory that the shapes of these tests point into.
const MEMORY_BYTES: usize = 512;

/// A shape as plain numbers: the model spells out the index of every byte.
#[derive(Clone, Debug)]
enum Model {
    Contiguous { at: usize, len: usize },
    Strided { at: usize, block: usize, stride: usize, count: usize },
    List(Vec<(usize, usize)>),
}

impl Model {
    fn shape(&self, base: *mut u8) -> Shape {
        match self {
            Self::Contiguous { at, len } => Shape::contiguous(base.wrapping_add(*at), *len),
            Self::Strided { at, block, stride, count } => {
                Shape::strided(base.wrapping_add(*at), *block, *stride, *count)
            }
            Self::List(pieces) => Shape::list(
                pieces.iter().map(|&(at, len)| Span { ptr: base.wrapping_add(at), len }),
            ),
        }
    }

    fn indices(&self) -> Vec<usize> {
        match self {
            Self::Contiguous { at, len } => (*at..at + len).collect(),
            Self::Strided { at, block, stride, count } => (0..*count)
                .flat_map(|index| (0..*block).map(move |byte| at + index * stride + byte))
                .collect(),
            Self::List(pieces) => pieces.iter().flat_map(|&(at, len)| at..at + len).collect(),
        }
    }
}

/// Shapes inside the memory; pieces may overlap unless `disjoint`.
fn models(disjoint: bool) -> impl Strategy<Value = Model> {
    let contiguous = (0..100usize, 0..100usize).prop_map(|(at, len)| Model::Contiguous { at, len });
    let strided = (0..20usize, 0..12usize, 0..30usize, 0..12usize).prop_map(
        move |(at, block, stride, count)| {
            let stride = if disjoint { stride.max(block) } else { stride };
            Model::Strided { at, block, stride, count }
        },
    );
    let piece = (0..20usize, 0..15usize);
    let list = (prop::collection::vec(piece, 0..12), any::<prop::sample::Index>()).prop_map(
        move |(pieces, turn)| {
            let mut end = 0;
            let mut pieces: Vec<_> = pieces
                .into_iter()
                .map(|(gap, len)| {
                    let at = if disjoint { end + gap } else { gap };
                    end = at + len;
                    (at, len)
                })
                .collect();
            // Message order is not address order.
            if !pieces.is_empty() {
                let turn = turn.index(pieces.len());
                pieces.rotate_left(turn);
            }
            Model::List(pieces)
        },
    );
    prop_oneof![contiguous, strided, list]
}

/// A sub-range of a message of `len` bytes.
fn range(len: usize, from: prop::sample::Index, to: prop::sample::Index) -> (usize, usize) {
    let (from, to) = (from.index(len + 1), to.index(len + 1));
    (from.min(to), from.abs_diff(to))
}

proptest! {
    #[test]
    fn spans_cover_exactly_the_range_in_order(
        model in models(false),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
    ) {
        let mut memory = [0u8; MEMORY_BYTES];
        let base = memory.as_mut_ptr();
        let (shape, indices) = (model.shape(base), model.indices());
        prop_assert_eq!(shape.len(), indices.len());
        prop_assert_eq!(shape.is_empty(), indices.is_empty());
        prop_assert_eq!(shape.is_contiguous(), shape.as_span().is_some());
        let (offset, length) = range(indices.len(), from, to);
        let spans = shape.spans(offset, length);
        let (low, high) = spans.size_hint();
        let spans: Vec<Span> = spans.collect();
        prop_assert!(low <= spans.len() && high.is_some_and(|high| spans.len() <= high));
        prop_assert!(spans.iter().all(|span| span.len > 0));
        let covered: Vec<usize> = spans
            .iter()
            .flat_map(|span| {
                let at = span.ptr as usize - base as usize;
                at..at + span.len
            })
            .collect();
        prop_assert_eq!(&covered[..], &indices[offset..offset + length]);
    }

    #[test]
    fn copies_match_the_model(
        model in models(true),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
    ) {
        let mut memory: Vec<u8> = (0..MEMORY_BYTES).map(|index| index as u8).collect();
        let mut expected = memory.clone();
        let indices = model.indices();
        let (offset, length) = range(indices.len(), from, to);
        let src: Vec<u8> = (0..length).map(|index| !(index as u8)).collect();
        for (byte, &index) in src.iter().zip(&indices[offset..]) {
            expected[index] = *byte;
        }
        let shape = model.shape(memory.as_mut_ptr());
        // SAFETY: the model stays inside `memory`, which nothing else uses meanwhile.
        unsafe { shape.copy_from(offset, &src) };
        let mut back = vec![0; length];
        // SAFETY: as above.
        unsafe { shape.copy_to(offset, &mut back) };
        let mut whole = vec![0; indices.len()];
        // SAFETY: as above.
        unsafe { shape.copy_to(0, &mut whole) };
        prop_assert_eq!(&back, &src);
        let picked: Vec<u8> = indices.iter().map(|&index| expected[index]).collect();
        // SAFETY: as above.
        let sum = unsafe { shape.checksum(offset, length, crc32c::crc32c(b"before")) };
        prop_assert_eq!(sum, crc32c::crc32c(&[&b"before"[..], &back].concat()));
        prop_assert_eq!(whole, picked);
        prop_assert_eq!(memory, expected);
    }
}

/// The check value of RFC 3720's CRC32C, in one piece and in several.
#[test]
fn checksums_are_those_of_the_standard() {
    let mut memory = *b"12345--6789";
    let ptr = memory.as_mut_ptr();
    let pieces = [Span { ptr, len: 5 }, Span { ptr: ptr.wrapping_add(7), len: 4 }];
    // SAFETY: the pieces are inside `memory`.
    assert_eq!(unsafe { Shape::list(pieces).checksum(0, 9, 0) }, 0xe306_9283);
    // SAFETY: nothing is read.
    assert_eq!(unsafe { Shape::empty().checksum(0, 0, 7) }, 7);
}

#[test]
fn trivial_shapes_are_contiguous() {
    let mut memory = [0u8; 64];
    let ptr = memory.as_mut_ptr();
    let span = |len| Some(Span { ptr, len });
    assert_eq!(Shape::strided(ptr, 8, 8, 5).as_span(), span(40));
    assert_eq!(Shape::strided(ptr, 8, 20, 1).as_span(), span(8));
    assert_eq!(Shape::strided(ptr, 8, 20, 0).as_span(), span(0));
    assert_eq!(Shape::strided(ptr, 0, 20, usize::MAX).as_span(), span(0));
    assert!(Shape::list([]).is_contiguous() && Shape::list([]).is_empty());
    let pieces = [Span { ptr, len: 0 }, Span { ptr, len: 7 }, Span { ptr, len: 0 }];
    assert_eq!(Shape::list(pieces).as_span(), span(7));
    assert!(!Shape::strided(ptr, 8, 9, 2).is_contiguous());
}

#[test]
fn ranges_outside_the_message_panic() {
    let mut memory = [0u8; 64];
    let ptr = memory.as_mut_ptr();
    let list = [Span { ptr, len: 4 }, Span { ptr: ptr.wrapping_add(8), len: 4 }];
    for shape in [Shape::contiguous(ptr, 8), Shape::strided(ptr, 4, 8, 2), Shape::list(list)] {
        for (offset, length) in [(0, 9), (8, 1), (9, 0), (1, usize::MAX), (usize::MAX, 1)] {
            let spans = std::panic::catch_unwind(|| shape.spans(offset, length).count());
            assert!(spans.is_err(), "{shape:?} {offset} {length}");
        }
        let mut large = [0u8; 9];
        let large = std::panic::AssertUnwindSafe(&mut large);
        let copied = std::panic::catch_unwind(|| {
            let large = large;
            // SAFETY: it panics before it copies.
            unsafe { shape.copy_to(0, large.0) };
        });
        assert!(copied.is_err(), "{shape:?}");
        // SAFETY: it panics before it copies.
        let copied = std::panic::catch_unwind(|| unsafe { shape.copy_from(1, &[1; 8]) });
        assert!(copied.is_err(), "{shape:?}");
        assert_eq!(shape.spans(8, 0).count(), 0);
    }
    assert_eq!(memory, [0; 64]);
}

#[test]
fn a_shape_is_small_and_may_change_threads() {
    fn portable<T: Send + Sync>() {}
    portable::<Shape>();
    assert!(size_of::<Shape>() <= 40, "{} bytes", size_of::<Shape>());
}
