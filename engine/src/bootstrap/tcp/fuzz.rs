//! Fuzz tests of the frames: any client may connect to the port of a job.

use std::time::Duration;

use super::frame::{
    ClientHello, FRAME_HEADER_BYTES, HELLO_BYTES_MAX, MAGIC, decode_result, take_frame,
};

const TEST_TIME: Duration = Duration::from_millis(500);

/// Makes lengths plausible: they have four bytes, and most inputs are short.
fn shorten_fields(bytes: &mut [u8]) {
    for field in bytes.chunks_mut(FRAME_HEADER_BYTES) {
        if let [low, high @ ..] = field
            && *low < 100
        {
            high.iter_mut().take(3).for_each(|byte| *byte = 0);
        }
    }
}

/// However the bytes are cut, the same frames come out, and nothing is lost.
#[test]
fn client_frames() {
    bolero::check!().with_test_time(TEST_TIME).with_max_len(400).for_each(|input: &[u8]| {
        let mut bytes = [&MAGIC[..], input].concat();
        match input.first() {
            Some(0..20) => bytes[usize::from(input[0]) % MAGIC.len()] ^= 1,
            _ => shorten_fields(&mut bytes[MAGIC.len()..]),
        }
        let cut = usize::from(input.last().copied().unwrap_or(0)).min(bytes.len());
        let read = |parts: &[&[u8]]| {
            let (mut incoming, mut magic_seen, mut frames) = (Vec::new(), false, Vec::new());
            for part in parts {
                incoming.extend_from_slice(part);
                loop {
                    match take_frame(&mut incoming, &mut magic_seen, HELLO_BYTES_MAX) {
                        Ok(Some(frame)) => frames.push(frame),
                        Ok(None) => break,
                        Err(()) => return (frames, None),
                    }
                }
            }
            (frames, Some(incoming.len()))
        };
        let (frames, left) = read(&[&bytes]);
        assert_eq!(read(&[&bytes[..cut], &bytes[cut..]]), (frames.clone(), left));
        if let Some(left) = left.filter(|_| bytes.starts_with(&MAGIC)) {
            let used: usize = frames.iter().map(|(_, body)| FRAME_HEADER_BYTES + body.len()).sum();
            assert_eq!(MAGIC.len() + used + left, bytes.len());
        }
    });
}

/// A decoded hello encodes to the same bytes.
#[test]
fn hellos() {
    bolero::check!().with_test_time(TEST_TIME).with_max_len(200).for_each(|input: &[u8]| {
        let mut bytes = input.to_vec();
        if let Some(fields) = bytes.get_mut(24..) {
            shorten_fields(fields);
        }
        if let Some(hello) = ClientHello::decode(&bytes) {
            let again = hello.encode();
            // Labels that are not UTF-8 are made so, and only there bytes may change.
            let is_text = std::str::from_utf8(&bytes[24..]).is_ok();
            assert!(!is_text || again == bytes, "{hello:?}");
            assert!(is_text || ClientHello::decode(&again).is_some());
        }
    });
}

/// What rank 0 sends has a part for each rank, or is refused.
#[test]
fn results() {
    bolero::check!().with_test_time(TEST_TIME).with_max_len(200).for_each(|input: &[u8]| {
        let mut bytes = input.to_vec();
        shorten_fields(&mut bytes);
        for size in 0..4 {
            if let Ok(parts) = decode_result(&bytes, size) {
                let length: usize = parts.iter().map(|part| 4 + part.len()).sum();
                assert_eq!((parts.len(), length), (size, bytes.len()));
            }
        }
    });
}
