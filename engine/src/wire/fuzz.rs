//! Whatever bytes come, decoders read no more than there is, and what they accept is sound.

use std::time::Duration;

use zerocopy::{FromBytes, IntoBytes};

use super::chunk::{CHUNK_HEADER_BYTES, ChunkHeader};
use super::cma_source::{CMA_SOURCE_BYTES, FLAG_CMA};
use super::hello::HelloStatus;
use super::rts::FLAG_UNSOLICITED;
use super::unsolicited::UNSOLICITED_BYTES;
use super::*;
use crate::proto::keys::SessionKeys;
use crate::proto::session::lanes::lane::{GrantedRange, ServedRange};
use crate::proto::session::segments::split;
use crate::proto::table::Id;
use crate::types::Address;

const TEST_TIME: Duration = Duration::from_millis(500);

/// Reads frames to their end or to the first error; gives the bytes of those that were read.
fn read_frames(body: &[u8]) -> (Vec<u8>, Result<(), FrameError>) {
    let mut frames = Frames::new(body);
    let mut read = Vec::new();
    loop {
        match frames.next_frame() {
            Ok(None) => return (read, Ok(())),
            Err(error) => return (read, Err(error)),
            Ok(Some(frame)) => write_frame(&frame, body, &mut read),
        }
    }
}

/// RR-DATA-1
fn write_data(flags: u8, data: Option<u64>, into: &mut Vec<u8>) {
    assert_eq!(data.is_some(), flags & eager::FLAG_DATA != 0);
    into.extend(data.into_iter().flat_map(u64::to_le_bytes));
}

fn write_frame(frame: &Frame<'_>, body: &[u8], into: &mut Vec<u8>) {
    match frame {
        Frame::Eager(header, data, payload) => {
            assert_eq!(header.length.get() as usize, payload.len());
            assert!(payload.len() <= EAGER_BYTES_MAX);
            into.extend_from_slice(header.as_bytes());
            write_data(header.flags, *data, into);
            into.extend_from_slice(payload);
        }
        Frame::Rts(header, data, first) => {
            assert_eq!(header.first_bytes.get() as usize, first.len());
            assert!(first.len() <= EAGER_BYTES_MAX);
            match header.flags & (FLAG_CMA | FLAG_UNSOLICITED) {
                0 => assert!(first.len() as u64 <= header.length.get()),
                FLAG_CMA => assert_eq!(first.len(), CMA_SOURCE_BYTES),
                FLAG_UNSOLICITED => assert_eq!(first.len(), UNSOLICITED_BYTES),
                both => panic!("flags {both}"),
            }
            assert!(header.length.get() <= MESSAGE_BYTES_MAX);
            into.extend_from_slice(header.as_bytes());
            write_data(header.flags, *data, into);
            into.extend_from_slice(first);
        }
        Frame::Grant(grant, _) => into.extend_from_slice(grant.as_bytes()),
        Frame::Done(done) => into.extend_from_slice(done.as_bytes()),
        Frame::Refused(refused, _) => into.extend_from_slice(refused.as_bytes()),
        Frame::Matched(matched) => into.extend_from_slice(matched.as_bytes()),
        // It consists of its type; the rest is reserved.
        Frame::LanesWanted => {
            let length = size_of::<LanesWanted>();
            into.extend_from_slice(&body[into.len()..into.len() + length]);
        }
        Frame::Rail(rail) => into.extend_from_slice(rail.as_bytes()),
        Frame::LaneLost(lost, _) => into.extend_from_slice(lost.as_bytes()),
        Frame::OneSided(header, data, operands) => {
            into.extend_from_slice(header.as_bytes());
            write_data(header.flags, *data, into);
            into.extend_from_slice(operands);
        }
        Frame::Reply(reply, bytes) => {
            assert_eq!(reply.length.get() as usize, bytes.len());
            into.extend_from_slice(reply.as_bytes());
            into.extend_from_slice(bytes);
        }
        Frame::ReplyRts(reply, source) => {
            into.extend_from_slice(reply.as_bytes());
            into.extend_from_slice(source);
        }
        Frame::ProcessQuery(query) => into.extend_from_slice(query.as_bytes()),
        Frame::ProcessStatus(status) => into.extend_from_slice(status.as_bytes()),
        Frame::Goodbye(goodbye) => into.extend_from_slice(goodbye.as_bytes()),
        Frame::Data(data, bytes) => {
            assert_eq!(data.length.get() as usize, bytes.len());
            assert!(bytes.len() <= EAGER_BYTES_MAX);
            into.extend_from_slice(data.as_bytes());
            into.extend_from_slice(bytes);
        }
    }
}

/// Random bytes seldom begin with the type of a frame: the first one is chosen, of all that there
/// are, of the reserved one and of the next one, which are unknown.
#[test]
fn frames() {
    bolero::check!().with_test_time(TEST_TIME).for_each(|input: &[u8]| {
        let mut body = input.to_vec();
        let unknown = [frame::KIND_FLUSH + 1, frame::KIND_PROCESS_STATUS + 1];
        for kind in 0..=unknown[1] {
            if let Some(first) = body.first_mut() {
                *first = kind;
            }
            let (read, ended) = read_frames(&body);
            assert!(
                !unknown.contains(&kind) || body.is_empty() || read.is_empty(),
                "a type is not tried"
            );
            assert!(body.starts_with(&read), "frames are read as they stand");
            assert_eq!(ended.is_ok(), read.len() == body.len());
        }
    });
}

/// The first byte is the difference of the segment's length and what is there.
#[test]
fn segments() {
    bolero::check!().with_test_time(TEST_TIME).for_each(|input: &[u8]| {
        let mut bytes = input.to_vec();
        if let Some((&off, _)) = input.split_first()
            && bytes.len() >= size_of::<segment::SegmentHeader>()
            && off != 255
        {
            let length = (bytes.len() + 4).saturating_sub(usize::from(off % 8)) as u32;
            bytes[..4].copy_from_slice(&length.to_le_bytes());
        }
        match split(&bytes, false) {
            Ok(Some((header, body, length))) => {
                assert_eq!(header.length.get() as usize, length);
                assert_eq!(length, size_of::<segment::SegmentHeader>() + body.len());
                assert!(length <= bytes.len() && length <= SEGMENT_BYTES_MAX);
                assert_eq!([header.as_bytes(), body].concat(), bytes[..length]);
            }
            Ok(None) => {
                let stated = bytes.first_chunk().map_or(u32::MAX, |it| u32::from_le_bytes(*it));
                assert!(bytes.len() < (stated as usize).max(size_of::<segment::SegmentHeader>()));
            }
            Err(FrameError::BadSegmentLength(length)) => {
                assert_eq!(bytes[..4], length.to_le_bytes());
            }
            Err(other) => panic!("{other}"),
        }
    });
}

/// Random bytes have no right checksums; made-up headers get them, and are judged for the rest.
#[test]
fn segments_with_checksums() {
    const HEAD: usize = size_of::<segment::SegmentHeader>() + size_of::<segment::SegmentSums>();
    bolero::check!().with_test_time(TEST_TIME).for_each(|input: &[u8]| {
        let _ = split(input, true);
        let Ok((header, body)) = segment::SegmentHeader::ref_from_prefix(input) else { return };
        let mut header = *header;
        header.flags |= segment::FLAG_CHECKSUM;
        if header.first_frame.get() % 8 != 0 {
            header.length = ((HEAD + body.len()) as u32 - header.first_frame.get() % 3).into();
        }
        let length = header.length.get() as usize;
        let frames = &body[..length.saturating_sub(HEAD).min(body.len())];
        let sums = segment::SegmentSums::new(&header, crc32c::crc32c(frames));
        let bytes = [header.as_bytes(), sums.as_bytes(), body].concat();
        match split(&bytes, true) {
            Ok(Some((_, read, used))) => assert_eq!((read, used), (frames, length)),
            Ok(None) => assert!(length > bytes.len()),
            Err(FrameError::BadSegmentLength(bad)) => {
                assert_eq!(bad as usize, length);
                assert!(!(HEAD..=SEGMENT_BYTES_MAX).contains(&length));
            }
            Err(other) => panic!("{other}"),
        }
    });
}

#[test]
fn hellos() {
    bolero::check!().with_test_time(TEST_TIME).for_each(|input: &[u8]| {
        if let Ok((hello, _)) = Hello::ref_from_prefix(input) {
            assert!(input.starts_with(hello.as_bytes()));
            // An address in a hello is judged like one out of band.
            let mut hello = *hello;
            make_likely(&mut hello.address);
            let address = Address::from_wire(&hello.address);
            let again = Address::from_bytes(hello.address.as_bytes());
            assert_eq!(address.ok(), again.ok());
        }
        if let Ok((reply, _)) = HelloReply::ref_from_prefix(input) {
            assert!(input.starts_with(reply.as_bytes()));
            let status = HelloStatus::from_wire(reply.status);
            assert!(status.is_none_or(|status| status as u8 == reply.status));
        }
    });
}

/// Random bytes are hardly ever an address: most are given its version, a family and a count.
fn make_likely(address: &mut address::WireAddress) {
    if address.flags < 200 {
        address.version = address::ADDRESS_VERSION;
        let families = [address::FAMILY_IPV4, address::FAMILY_IPV6];
        address.family = families[usize::from(address.family % 2)];
        address.locators %= 10;
    }
}

#[test]
fn addresses() {
    bolero::check!().with_test_time(TEST_TIME).for_each(|input: &[u8]| {
        let mut bytes = input.to_vec();
        if input.last().is_some_and(|choice| choice % 3 > 0) {
            bytes.resize(address::ADDRESS_BYTES, 1);
        }
        if let Ok(wire) = address::WireAddress::mut_from_bytes(&mut bytes) {
            make_likely(wire);
        }
        if let Ok(address) = Address::from_bytes(&bytes) {
            assert_eq!(address.to_bytes()[..], bytes[..]);
            assert!(address.engine() != 0 && address.locator().port() != 0);
            assert!(address.to_string().contains(&address.locator().to_string()));
            assert!((1..=8).contains(&address.locators().count()));
        }
    });
}

/// A header matches a grant only if it is the same in every byte.
#[test]
fn chunk_headers() {
    bolero::check!().with_test_time(TEST_TIME).for_each(|input: &[u8]| {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        let count = input.len().min(bytes.len());
        bytes[..count].copy_from_slice(&input[..count]);
        let header = ChunkHeader::read_from_bytes(&bytes).unwrap();
        let (name, offset) = (header.receive_operation.get(), header.offset.get());
        let (length, chunk) = (header.length.get(), header.chunk.get());
        let operation = Id::from_u64(name);
        let granted = GrantedRange { operation, offset, length, chunk, granted_ns: 0 };
        let sent = ServedRange { operation, receive_operation: name, offset, length, chunk };
        let key = SessionKeys::for_tests().lane(1, false).receive;
        let mut due = sent.header(&key, granted.length);
        assert_eq!(granted.agrees(&due, &key), Some(granted.length));
        assert_eq!(granted.agrees(&bytes, &key).is_some(), bytes == due);
        let changed = usize::from(input.last().copied().unwrap_or(0)) % due.len();
        due[changed] ^= 1;
        assert!(granted.agrees(&due, &key).is_none(), "byte {changed} does not count");
    });
}

/// The first two bytes are made those of a packet, mostly.
#[test]
fn packets() {
    bolero::check!().with_test_time(TEST_TIME).with_max_len(500).for_each(|input: &[u8]| {
        let mut bytes = input.to_vec();
        if let [kind, flags, ..] = &mut bytes[..]
            && *kind < 240
        {
            (*kind, *flags) = (packet::KIND_PACKET, *flags & 31);
        }
        if let Ok(packet) = packet::Packet::decode(&bytes) {
            assert!(bytes.starts_with(packet.header.as_bytes()) && bytes.ends_with(packet.payload));
            let words = packet.ack.map_or(0, |ack| ack.words().count());
            assert!(size_of_val(packet.header) + 8 * words + packet.payload.len() <= bytes.len());
            assert!(words <= ack::WINDOWS_MAX * ack::NEWEST_WORDS_MAX);
        }
    });
}
