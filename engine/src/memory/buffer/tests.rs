use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::memory::layout::Segment;
use crate::memory::{Arena, alloc_region};

fn segments(pieces: &[(usize, usize)]) -> Layout {
    Layout::Segments(pieces.iter().map(|&(offset, len)| Segment { offset, len }).collect())
}

fn strided(offset: usize, block_bytes: usize, stride_bytes: usize, count: usize) -> Layout {
    Layout::Strided { offset, block_bytes, stride_bytes, count }
}

fn arena() -> Arc<Arena> {
    Arena::new(64 << 10).expect("an arena of 64 KiB")
}

#[test]
fn contiguous_buffers_come_back_as_what_they_were() {
    let bytes = vec![1, 2, 3];
    let address = bytes.as_ptr();
    let mut buffer = Buffer::from(bytes);
    let shape = buffer.shape_for_recv().expect("contiguous");
    let span = shape.as_span().expect("contiguous");
    assert_eq!((span.ptr.cast_const(), span.len), (address, 3));
    // Moving the buffer moves no byte of the message.
    let moved = Box::new(buffer);
    assert_eq!(moved.as_slice(), Some(&[1, 2, 3][..]));
    let buffer = moved.into_region().expect_err("not a region").into_list();
    let bytes = buffer.expect_err("not a list").into_vec().expect("a vector");
    assert_eq!(bytes.as_ptr(), address);

    let mut buffer = Buffer::from(alloc_region(&arena(), 10, 1).expect("it fits"));
    buffer.as_mut_slice().expect("contiguous")[9] = 4;
    let shape = buffer.shape_for_send().expect("contiguous");
    let mut last = [0];
    // SAFETY: the shape points into `buffer`, which nothing else uses meanwhile.
    unsafe { shape.copy_to(9, &mut last) };
    assert_eq!(last, [4]);
    let slice = buffer.into_vec().expect_err("not a vector").into_region().expect("a region");
    assert_eq!(slice.len(), 10);
}

#[test]
fn conversions_keep_the_bytes() {
    let boxed: Box<[u8]> = Box::new([7; 3]);
    for buffer in [Buffer::from(boxed), Buffer::from(&[7u8; 3]), Buffer::from(&vec![7u8; 3][..])] {
        assert_eq!(buffer.as_slice(), Some(&[7; 3][..]));
        assert_eq!((buffer.len(), buffer.is_empty()), (3, false));
    }
    assert!(Buffer::from(Vec::new()).is_empty());
    let mut list = Buffer::list([Buffer::from(&[1]), Buffer::from(&[2, 3])]);
    assert_eq!((list.len(), list.as_slice()), (3, None));
    assert_eq!(list.as_mut_slice(), None);
    assert_eq!(list.gather(), Ok(vec![1, 2, 3]));
    assert_eq!(list.into_list().map(|buffers| buffers.len()).ok(), Some(2));
}

#[test]
fn a_received_list_is_scattered_over_its_parts() {
    let region = alloc_region(&arena(), 6, 1).expect("it fits");
    let mut buffer = Buffer::list([
        Buffer::from(vec![0; 2]),
        Buffer::from(Vec::new()),
        Buffer::shaped(region, strided(1, 1, 2, 3)),
        Buffer::list([Buffer::shaped(vec![0; 4], segments(&[(3, 1), (0, 2)]))]),
    ]);
    assert_eq!(buffer.len(), 8);
    let shape = buffer.shape_for_recv().expect("disjoint and inside");
    assert_eq!(shape.spans(0, 8).count(), 6);
    // SAFETY: the shape points into `buffer`, which nothing else uses meanwhile.
    unsafe { shape.copy_from(0, &[1, 2, 3, 4, 5, 6, 7, 8]) };
    let parts = buffer.into_list().expect("a list");
    assert_eq!(parts[0].as_slice(), Some(&[1, 2][..]));
    let Buffer::Shaped(column) = &parts[2] else { panic!("{:?}", parts[2]) };
    assert_eq!(column.buffer.as_slice(), Some(&[0, 3, 0, 4, 0, 5][..]));
    let Buffer::List(inner) = &parts[3] else { panic!("{:?}", parts[3]) };
    let Buffer::Shaped(pieces) = &inner[0] else { panic!("{:?}", inner[0]) };
    assert_eq!(pieces.buffer.as_slice(), Some(&[7, 8, 0, 6][..]));
}

#[test]
fn hostile_layouts_are_errors() {
    use MemoryError::{LayoutOutOfBounds, LayoutOverflow, Overlap};
    const MAX: usize = usize::MAX;
    let outside = |index, end| Err(LayoutOutOfBounds { index, end, memory_bytes: 16 });
    let overlap = |first, second| Err(Overlap { first, second });
    // Layout, verdict on a send, verdict on a receive, all over 16 bytes.
    let cases = [
        (strided(0, 4, 4, 4), Ok(16), Ok(16)),
        (strided(0, 4, 4, 5), outside(4, 20), outside(4, 20)),
        (strided(17, 0, 0, 0), outside(0, 17), outside(0, 17)),
        (strided(16, 0, 0, 1), Ok(0), Ok(0)),
        (strided(0, 0, 0, MAX), Ok(0), Ok(0)),
        (strided(MAX, 1, 1, 1), Err(LayoutOverflow), Err(LayoutOverflow)),
        (strided(0, MAX, 0, 1), outside(0, MAX), outside(0, MAX)),
        (strided(0, 1, MAX, 3), Err(LayoutOverflow), Err(LayoutOverflow)),
        (strided(1, 1, MAX, 2), Err(LayoutOverflow), Err(LayoutOverflow)),
        (strided(0, 1, 1 << 60, 17), Err(LayoutOverflow), Err(LayoutOverflow)),
        (strided(0, 1, 0, MAX), Ok(MAX), overlap(0, 1)),
        (strided(0, 2, 0, MAX), Err(LayoutOverflow), overlap(0, 1)),
        (strided(0, 4, 3, 2), Ok(8), overlap(0, 1)),
        (segments(&[]), Ok(0), Ok(0)),
        (segments(&[(8, 8), (0, 8)]), Ok(16), Ok(16)),
        (segments(&[(0, 8), (9, 8)]), outside(1, 17), outside(1, 17)),
        (segments(&[(0, 8), (MAX, 1)]), Err(LayoutOverflow), Err(LayoutOverflow)),
        (segments(&[(1, MAX)]), Err(LayoutOverflow), Err(LayoutOverflow)),
        (segments(&[(MAX, 0)]), outside(0, MAX), outside(0, MAX)),
        (segments(&[(8, 2), (12, 1), (0, 9)]), Ok(12), overlap(2, 0)),
        (segments(&[(4, 4), (4, 4)]), Ok(8), overlap(0, 1)),
        // An empty segment shares no byte, not even in the middle of another.
        (segments(&[(0, 8), (4, 0), (8, 1)]), Ok(9), Ok(9)),
        (segments(&[(8, 8), (4, 0), (0, 8)]), Ok(16), Ok(16)),
    ];
    for (layout, send, recv) in cases {
        assert_eq!(layout.check(16, ShapePurpose::Send), send, "send of {layout:?}");
        assert_eq!(layout.check(16, ShapePurpose::Recv), recv, "receive of {layout:?}");
        let mut buffer = Buffer::shaped(vec![0; 16], layout);
        let message = buffer.shape_for_send().map(|shape| shape.len());
        assert_eq!(message, send, "{buffer:?}");
        assert_eq!(buffer.shape_for_recv().map(|shape| shape.len()), recv, "{buffer:?}");
        if let Ok(len) = send {
            assert_eq!(buffer.len(), len, "{buffer:?}");
        }
    }
}

#[test]
fn messages_too_long_or_too_scattered_are_errors() {
    let limit = TOO_MANY;
    let endless = || Buffer::shaped(vec![0; 4], strided(0, 1, 0, usize::MAX));
    assert_eq!(endless().shape_for_send().map(|shape| shape.len()), Ok(usize::MAX));
    assert_eq!(endless().gather(), Err(MemoryError::TooLarge { bytes: usize::MAX }));
    let mut list = Buffer::list([endless(), endless()]);
    assert_eq!(list.len(), usize::MAX);
    assert_eq!(list.shape_for_send().err(), Some(limit));
    // Long, but in two pieces each.
    let half = || Buffer::shaped(vec![0; 4], strided(0, 1, 0, MAX_PIECES / 2 + 1));
    let mut list = Buffer::list([half(), half()]);
    assert_eq!(list.shape_for_send().err(), Some(limit));
    // Dense and empty layouts are one piece, however long.
    let empty = Buffer::shaped(vec![0; 4], strided(0, 0, 0, usize::MAX));
    let mut list = Buffer::list([empty, Buffer::shaped(vec![0; 4], strided(0, 1, 1, 4))]);
    assert_eq!(list.shape_for_send().map(|shape| shape.is_contiguous()), Ok(true));
}

const TOO_MANY: MemoryError = MemoryError::TooManyPieces { limit: MAX_PIECES };

#[test]
fn nesting_is_bounded_and_layouts_need_memory() {
    let nested = |depth| {
        let mut buffer = Buffer::from(vec![1]);
        for _ in 0..depth {
            buffer = Buffer::list([buffer]);
        }
        buffer
    };
    assert!(nested(MAX_NESTING).shape_for_recv().is_ok_and(|shape| shape.len() == 1));
    let refused = nested(MAX_NESTING + 1).shape_for_recv();
    assert_eq!(refused.err(), Some(MemoryError::TooNested { limit: MAX_NESTING }));
    for inner in [nested(1), Buffer::shaped(vec![1], segments(&[(0, 1)]))] {
        let mut buffer = Buffer::shaped(inner, segments(&[(0, 1)]));
        assert_eq!(buffer.shape_for_send().err(), Some(MemoryError::NotContiguous));
        let mut list = Buffer::list([buffer]);
        assert_eq!(list.shape_for_send().err(), Some(MemoryError::NotContiguous));
    }
}

#[test]
fn errors_name_the_piece_and_the_cure() {
    let mut buffer = Buffer::shaped(vec![0; 16], segments(&[(0, 4), (12, 5)]));
    let text = buffer.shape_for_send().expect_err("it leaves the buffer").to_string();
    assert!(text.contains("piece 1") && text.contains("byte 17") && text.contains("has 16"));
    let mut buffer = Buffer::shaped(vec![0; 16], segments(&[(4, 4), (0, 5)]));
    let text = buffer.shape_for_recv().expect_err("they overlap").to_string();
    assert!(text.contains("pieces 1 and 0") && text.contains("disjoint"));
}

#[test]
fn a_buffer_is_small_and_may_change_threads() {
    fn portable<T: Send + Sync>() {}
    portable::<Buffer>();
    assert!(size_of::<Buffer>() <= 32, "{} bytes", size_of::<Buffer>());
}

/// Sizes near everything that matters: small ones, the memory's length, the ends of `usize`.
fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![
        6 => 0..20usize,
        1 => 60..70usize,
        1 => (0..4usize).prop_map(|less| usize::MAX - less),
        1 => (0..4usize).prop_map(|more| usize::MAX / 2 + more),
        1 => (0..64u32).prop_map(|bit| 1 << bit),
    ]
}

fn layouts() -> impl Strategy<Value = Layout> {
    let any_strided = (sizes(), sizes(), sizes(), sizes())
        .prop_map(|(offset, block, stride, count)| strided(offset, block, stride, count));
    let any_segments =
        prop::collection::vec((sizes(), sizes()), 0..6).prop_map(|pieces| segments(&pieces));
    prop_oneof![any_strided, any_segments]
}

const MEMORY_BYTES: usize = 64;

/// Layouts that a send accepts.
fn good_layouts() -> impl Strategy<Value = Layout> {
    let any_strided = (0..10usize, 0..6usize, 0..10usize, 0..6usize)
        .prop_map(|(offset, block, stride, count)| strided(offset, block, stride, count));
    let any_segments =
        prop::collection::vec((0..50usize, 0..15usize), 0..8).prop_map(|pieces| segments(&pieces));
    prop_oneof![any_strided, any_segments]
}

/// The range of every piece in message order, in numbers that do not overflow; a layout of very
/// many blocks is cut short, which changes no verdict.
fn pieces(layout: &Layout) -> Vec<(u128, u128)> {
    match layout {
        Layout::Strided { offset, block_bytes, stride_bytes, count } => {
            let last = count.saturating_sub(1);
            let starts = (0..*count).take(200).chain((last >= 200).then_some(last));
            let start = |index| *offset as u128 + index as u128 * *stride_bytes as u128;
            starts.map(|index| (start(index), start(index) + *block_bytes as u128)).collect()
        }
        Layout::Segments(segments) => segments
            .iter()
            .map(|&Segment { offset, len }| (offset as u128, offset as u128 + len as u128))
            .collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn verdicts_on_layouts_agree_with_wide_arithmetic(layout in layouts()) {
        let pieces = pieces(&layout);
        let inside = match &layout {
            Layout::Strided { offset, count: 0, .. } => *offset <= MEMORY_BYTES,
            _ => pieces.iter().all(|&(_, end)| end <= MEMORY_BYTES as u128),
        };
        let total: u128 = match &layout {
            Layout::Strided { block_bytes, count, .. } => *block_bytes as u128 * *count as u128,
            Layout::Segments(_) => pieces.iter().map(|&(start, end)| end - start).sum(),
        };
        let sendable = inside && total <= usize::MAX as u128;
        let disjoint = pieces.iter().enumerate().all(|(index, &(start, end))| {
            start == end
                || pieces[..index]
                    .iter()
                    .all(|&(low, high)| low == high || end <= low || high <= start)
        });
        let mut buffer = Buffer::shaped(vec![0; MEMORY_BYTES], layout);
        let send = buffer.shape_for_send().map(|shape| shape.len() as u128).ok();
        prop_assert_eq!(send, sendable.then_some(total));
        let recv = buffer.shape_for_recv().map(|shape| shape.len() as u128).ok();
        prop_assert_eq!(recv, (sendable && disjoint).then_some(total));
    }

    #[test]
    fn messages_are_the_bytes_that_the_layout_picks(
        layout in good_layouts(),
        wrap in any::<bool>(),
    ) {
        let memory: Vec<u8> = (0..MEMORY_BYTES as u8).collect();
        let all = pieces(&layout);
        let mut expected: Vec<u8> = all
            .iter()
            .filter(|(start, end)| start < end)
            .flat_map(|&(start, end)| memory[start as usize..end as usize].iter().copied())
            .collect();
        let mut buffer = Buffer::shaped(memory, layout);
        if wrap {
            buffer = Buffer::list([Buffer::from(&[99]), buffer, Buffer::from(&[98])]);
            expected.insert(0, 99);
            expected.push(98);
        }
        prop_assert_eq!(buffer.len(), expected.len());
        prop_assert_eq!(buffer.gather(), Ok(expected));
    }
}

#[test]
fn debug_output_hides_the_message() {
    let buffer = Buffer::list([Buffer::Heap(vec![123; 1000]), Buffer::Heap(vec![45])]);
    assert_eq!(format!("{buffer:?}"), "List([Heap(1000 bytes), Heap(1 bytes)])");
}
