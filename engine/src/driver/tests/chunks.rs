//! Transfer of chunks, and chunks that are refused.

use std::io::{ErrorKind, Write};
use std::sync::Arc;

use super::host::{Host, Variant, header, pattern};
use crate::driver::traits::{CHUNK_HEADER_BYTES, DriverEvent, OutgoingChunk, SendMode};
use crate::memory::{Arena, Buffer, Layout, Segment, alloc_region};

/// Content of bytes that belong to no message, before and after.
const GAP: u8 = 0xee;

const MODES: [SendMode; 3] = [SendMode::Copy, SendMode::CopyMore, SendMode::ZeroCopy];

/// Number of kinds of [`memory`].
const KINDS: usize = 6;

/// Memory for a message of `length` bytes, in one of several shapes.
fn memory(arena: &Arc<Arena>, kind: usize, length: usize) -> Buffer {
    let heap = |bytes: usize| Buffer::Heap(vec![GAP; bytes]);
    let region = |bytes: usize| {
        let mut region = alloc_region(arena, bytes, 64).unwrap();
        region.fill(GAP);
        Buffer::Region(region)
    };
    match kind {
        0 => heap(length),
        1 => region(length),
        2 => Buffer::list([heap(length / 3), region(length / 3), heap(length - length / 3 * 2)]),
        3 => strided(heap(length * 2 + 8), length),
        4 => strided(region(length * 2 + 8), length),
        _ => backwards(heap(length * 2 + 64), length),
    }
}

/// Blocks with gaps of their own size between them.
fn strided(memory: Buffer, length: usize) -> Buffer {
    let divides = |block: &usize| length.is_multiple_of(*block);
    let block_bytes = [4096, 16, 1].into_iter().find(divides).unwrap();
    let (stride_bytes, count) = (block_bytes * 2, length / block_bytes);
    Buffer::shaped(memory, Layout::Strided { offset: 8, block_bytes, stride_bytes, count })
}

/// Pieces of different lengths, the first of the message last in memory.
fn backwards(memory: Buffer, length: usize) -> Buffer {
    let (mut segments, mut left, mut end) = (Vec::new(), length, memory.len());
    while left > 0 {
        let len = left.min(1 + left / 3);
        end -= len + usize::from(left > 1);
        segments.push(Segment { offset: end, len });
        left -= len;
    }
    Buffer::shaped(memory, Layout::Segments(segments))
}

fn filled(mut buffer: Buffer, bytes: &[u8]) -> Buffer {
    // SAFETY: the buffer is owned by this function.
    unsafe { buffer.shape_for_recv().unwrap().copy_from(0, bytes) };
    buffer
}

fn bytes_of(buffer: &mut Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    // SAFETY: the buffer is owned by this function.
    unsafe { buffer.shape_for_send().unwrap().copy_to(0, &mut bytes) };
    bytes
}

/// Overwrites the message; all other bytes must be gaps.
fn expect_untouched_gaps(buffer: Buffer) {
    let length = buffer.len();
    let buffer = filled(buffer, &vec![GAP; length]);
    if let Buffer::Shaped(shaped) = buffer {
        assert!(shaped.buffer.as_slice().unwrap().iter().all(|&byte| byte == GAP));
    }
}

pub(super) fn every_size_shape_and_memory(variant: &Variant) {
    let mut host = Host::new(variant);
    let (near, far) = host.pair();
    let arena = Arc::clone(&host.arena);
    let mut token = 0;
    for (round, length) in [0, 1, 31, 4096, 65_537, 300_000, 1_048_560].into_iter().enumerate() {
        for (kind, mode) in (0..KINDS).flat_map(|kind| MODES.map(|mode| (kind, mode))) {
            // A chunk shorter than a packet would wait for the next one.
            if mode == SendMode::CopyMore && length < 65_537 {
                continue;
            }
            token += 1;
            let bytes = pattern(token, length);
            // The receiver is early or late.
            let target = memory(&arena, (kind + round) % KINDS, length);
            let source = filled(memory(&arena, kind, length), &bytes);
            if kind % 2 == 0 {
                host.recv_chunk(far, target);
                host.send_chunk(near, token, source, mode);
            } else {
                host.send_chunk(near, token, source, mode);
                host.turn();
                host.recv_chunk(far, target);
            }
            let (received, mut target) = host.expect_received(far);
            assert_eq!(received.unwrap(), header(token));
            assert!(bytes_of(&mut target) == bytes, "{length} bytes, kind {kind}, {mode:?}");
            expect_untouched_gaps(target);
            host.expect_sent(near).unwrap();
            host.expect_released(token);
        }
    }
    host.expect_quiet();
    let counters = host.driver.counters();
    assert_eq!(counters.zero_copy_sends > 0, variant.uses("send_zc"));
    if !variant.uses("registered_buffers") || !variant.uses("send_zc") {
        assert_eq!(counters.registered_sends, 0);
    }
}

pub(super) fn huge_pages_are_not_registered(variant: &Variant) {
    let mut host = Host::in_huge_pages(variant);
    let (near, far) = host.pair();
    let arena = Arc::clone(&host.arena);
    let bytes = pattern(1, 100_000);
    let source = filled(memory(&arena, 1, bytes.len()), &bytes);
    host.recv_chunk(far, memory(&arena, 1, bytes.len()));
    host.send_chunk(near, 1, source, SendMode::ZeroCopy);
    let (received, mut target) = host.expect_received(far);
    assert_eq!(received.unwrap(), header(1));
    assert!(bytes_of(&mut target) == bytes);
    host.expect_sent(near).unwrap();
    host.expect_released(1);
    let counters = host.driver.counters();
    assert_eq!(counters.zero_copy_sends > 0, variant.uses("send_zc"));
    assert_eq!(counters.registered_sends, 0);
}

pub(super) fn both_directions_at_once(variant: &Variant) {
    let mut host = Host::new(variant);
    let (near, far) = host.pair();
    let arena = Arc::clone(&host.arena);
    let length = 3_000_000;
    for (round, mode) in (0u64..).zip(MODES) {
        let (there, back) = (round * 2, round * 2 + 1);
        for (lane, token, kind) in [(near, there, 0), (far, back, 3)] {
            let source = filled(memory(&arena, kind, length), &pattern(token, length));
            host.send_chunk(lane, token, source, mode);
            host.recv_chunk(lane, memory(&arena, 5, length));
        }
        for (receiver, sender, token) in [(far, near, there), (near, far, back)] {
            let (received, mut target) = host.expect_received(receiver);
            assert_eq!(received.unwrap(), header(token));
            assert!(bytes_of(&mut target) == pattern(token, length));
            host.expect_sent(sender).unwrap();
            host.expect_released(token);
        }
    }
    host.expect_quiet();
}

/// A part of a message with more pieces than `IOV_MAX`, from its middle into another's middle.
pub(super) fn more_pieces_than_a_call_takes(variant: &Variant) {
    let mut host = Host::new(variant);
    let (near, far) = host.pair();
    let layout = Layout::Strided { offset: 1, block_bytes: 5, stride_bytes: 11, count: 5000 };
    let bytes = pattern(3, layout.len());
    let (first, length) = (7, 20_001);
    for (token, mode) in (0..).zip(MODES) {
        let source = Buffer::shaped(vec![GAP; 60_000], layout.clone());
        host.send_part(near, token, filled(source, &bytes), first, length, mode);
        let target = Buffer::shaped(vec![GAP; 60_000], layout.clone());
        host.recv_part(far, target, 2, length);
        let (received, mut target) = host.expect_received(far);
        received.unwrap();
        let got = bytes_of(&mut target);
        assert!(got[2..2 + length] == bytes[first..first + length]);
        assert!(got[..2].iter().chain(&got[2 + length..]).all(|&byte| byte == GAP));
        host.expect_sent(near).unwrap();
        host.expect_released(token);
    }
}

/// The bytes arrive a few at a time, and those of the next chunk with the last ones.
pub(super) fn arriving_a_few_bytes_at_a_time(variant: &Variant) {
    let mut host = Host::new(variant);
    let (lane, mut peer) = host.lane_to_outside();
    peer.set_nodelay(true).unwrap();
    let bytes = pattern(4, 500);
    let stream = [&header(1)[..], &bytes, &header(2), &bytes].concat();
    let cut = CHUNK_HEADER_BYTES + 500 + 7;
    host.recv_chunk(lane, Buffer::from(vec![0; 500]));
    for part in stream[..cut].chunks(13) {
        peer.write_all(part).unwrap();
        host.turn();
    }
    let (received, buffer) = host.expect_received(lane);
    assert_eq!(received.unwrap(), header(1));
    assert_eq!(buffer.as_slice().unwrap(), bytes);
    host.recv_chunk(lane, Buffer::from(vec![0; 500]));
    host.expect_quiet();
    peer.write_all(&stream[cut..]).unwrap();
    let (received, buffer) = host.expect_received(lane);
    assert_eq!(received.unwrap(), header(2));
    assert_eq!(buffer.as_slice().unwrap(), bytes);
    host.expect_quiet();
}

pub(super) fn beyond_the_memory_is_refused(variant: &Variant) {
    let mut host = Host::new(variant);
    let (near, far) = host.pair();
    let ranges = [(0, 101), (100, 1), (101, 0), (usize::MAX, 2)];
    for (token, (offset, length)) in (0..).zip(ranges) {
        for mode in MODES {
            host.send_part(near, token, Buffer::from(vec![0; 100]), offset, length, mode);
            assert_eq!(host.expect_sent(near).unwrap_err().kind(), ErrorKind::InvalidInput);
            host.expect_released(token);
        }
        host.recv_part(far, Buffer::from(vec![0; 100]), offset, length);
        assert_eq!(host.expect_received(far).0.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    // Nothing was sent, and the lanes still work.
    host.recv_chunk(far, Buffer::from(vec![0; 100]));
    host.send_chunk(near, 77, Buffer::from(vec![1; 100]), SendMode::Copy);
    assert_eq!(host.expect_received(far).0.unwrap(), header(77));
}

pub(super) fn second_chunk_is_refused(variant: &Variant) {
    let mut host = Host::new(variant);
    let (lane, mut peer) = host.narrow_lane();
    let bytes = pattern(5, 400_000);
    host.send_chunk(lane, 1, Buffer::from(bytes.clone()), SendMode::ZeroCopy);
    host.recv_chunk(lane, Buffer::from(vec![0; 100]));
    host.expect_quiet();
    let (mut other, mut events) = (Buffer::from(vec![0; 10]), Vec::new());
    let shape = other.shape_for_recv().unwrap();
    let chunk = OutgoingChunk {
        lane,
        token: 2,
        header: &header(2),
        source: &shape,
        offset: 0,
        length: 10,
        mode: SendMode::Copy,
    };
    // SAFETY: both are refused before the driver returns; the buffer is there until then.
    unsafe {
        host.driver.send_chunk(&chunk);
        host.driver.recv_chunk(lane, &shape, 0, 10);
    }
    host.driver.poll(&mut events).unwrap();
    let [
        DriverEvent::ChunkSent { result: Err(sent), .. },
        DriverEvent::ChunkReleased { token: 2 },
        DriverEvent::ChunkReceived { result: Err(received), .. },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    let kinds = (sent.kind(), received.kind());
    assert_eq!(kinds, (ErrorKind::InvalidInput, ErrorKind::InvalidInput));
    // The first ones are unaffected.
    let reader = std::thread::spawn(move || {
        let mut received = vec![0; CHUNK_HEADER_BYTES + 400_000];
        std::io::Read::read_exact(&mut peer, &mut received).unwrap();
        peer.write_all(&[&header(6)[..], &[9; 100]].concat()).unwrap();
        (received, peer)
    });
    host.expect_sent(lane).unwrap();
    host.expect_released(1);
    let (received, buffer) = host.expect_received(lane);
    assert_eq!(received.unwrap(), header(6));
    assert_eq!(buffer.as_slice().unwrap(), [9; 100]);
    let (received, _peer) = reader.join().unwrap();
    assert!(received[CHUNK_HEADER_BYTES..] == bytes && received[..CHUNK_HEADER_BYTES] == header(1));
}
