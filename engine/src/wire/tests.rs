//! Decoders meet what a peer, honest or not, may send.

use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;

fn eager(length: u32) -> Eager {
    Eager {
        kind: frame::KIND_EAGER,
        flags: 0,
        target_endpoint: 1.into(),
        source_endpoint: 2.into(),
        predecessor_distance: 0.into(),
        context: 3.into(),
        length: length.into(),
        tag: 4.into(),
        operation: 5.into(),
    }
}

fn rts(first_bytes: u32, length: u64) -> Rts {
    Rts {
        kind: frame::KIND_RTS,
        flags: 0,
        target_endpoint: 1.into(),
        source_endpoint: 2.into(),
        predecessor_distance: 0.into(),
        context: 3.into(),
        first_bytes: first_bytes.into(),
        tag: 4.into(),
        operation: 5.into(),
        length: length.into(),
    }
}

#[test]
fn an_eager_frame_and_its_payload_come_back() {
    let mut bytes = eager(3).as_bytes().to_vec();
    bytes.extend_from_slice(b"abc");
    bytes.extend_from_slice(rts(2, 1000).as_bytes());
    bytes.extend_from_slice(b"xy");
    let mut frames = Frames::new(&bytes);
    let Some(Frame::Eager(header, None, payload)) = frames.next_frame().unwrap() else { panic!() };
    assert_eq!((header.tag.get(), payload), (4, &b"abc"[..]));
    let Some(Frame::Rts(header, None, first)) = frames.next_frame().unwrap() else { panic!() };
    assert_eq!((header.length.get(), first), (1000, &b"xy"[..]));
    assert!(frames.next_frame().unwrap().is_none());
}

/// RR-FRAME-1
#[test]
fn lengths_beyond_the_limits_are_named() {
    let bytes = eager(EAGER_BYTES_MAX as u32 + 1).as_bytes().to_vec();
    let error = Frames::new(&bytes).next_frame().unwrap_err();
    assert_eq!(error, FrameError::EagerTooLong(EAGER_BYTES_MAX as u32 + 1));
    let bytes = eager(5).as_bytes().to_vec();
    assert_eq!(Frames::new(&bytes).next_frame().unwrap_err(), FrameError::Truncated);
    let bytes = rts(0, u64::MAX).as_bytes().to_vec();
    let error = Frames::new(&bytes).next_frame().unwrap_err();
    assert_eq!(error, FrameError::MessageTooLong(u64::MAX));
    let bytes = rts(9, 8).as_bytes().to_vec();
    let error = Frames::new(&bytes).next_frame().unwrap_err();
    assert_eq!(error, FrameError::FirstBytesTooLong { first: 9, length: 8 });
}

/// RR-FRAME-1, RR-SHM-7
#[test]
fn a_cma_source_has_sixteen_bytes_whatever_the_length_of_its_message() {
    let with = |first, length| Rts { flags: cma_source::FLAG_CMA, ..rts(first, length) };
    for length in [0, 5, 1 << 30] {
        let bytes = [with(16, length).as_bytes(), &[7; 16]].concat();
        let mut frames = Frames::new(&bytes);
        let Ok(Some(Frame::Rts(header, None, source))) = frames.next_frame() else { panic!() };
        assert_eq!((header.length.get(), source), (length, &[7; 16][..]));
        for first in [0, 15, 17] {
            let bytes = [with(first, length).as_bytes(), &[7; 17]].concat();
            let error = Frames::new(&bytes).next_frame().unwrap_err();
            assert_eq!(error, FrameError::FirstBytesTooLong { first, length });
        }
    }
}

/// RR-FRAME-1, RR-SHM-14
#[test]
fn unsolicited_pieces_are_named_in_twelve_bytes_whatever_the_length_of_their_message() {
    let with = |flags, first, length| Rts { flags, ..rts(first, length) };
    let (unsolicited, cma) = (rts::FLAG_UNSOLICITED, cma_source::FLAG_CMA);
    for length in [0, 5, 1 << 30] {
        let bytes = [with(unsolicited, 12, length).as_bytes(), &[7; 12]].concat();
        let mut frames = Frames::new(&bytes);
        let Ok(Some(Frame::Rts(header, None, behind))) = frames.next_frame() else { panic!() };
        assert_eq!((header.length.get(), behind), (length, &[7; 12][..]));
        let (first_bytes, source) = MessageSource::split(header.flags, behind);
        let Some(MessageSource::Pieces(pieces)) = source else { panic!() };
        assert_eq!((first_bytes, pieces.number.get()), (&[][..], 0x0707_0707_0707_0707));
        assert_eq!(pieces.ring.get(), 0x0707_0707);
        // No RTS has both flags, whatever follows.
        let all = [(unsolicited, [0, 11, 13]), (unsolicited | cma, [12, 16, u32::MAX])];
        for (flags, lengths) in all {
            for first in lengths {
                let bytes = [with(flags, first, length).as_bytes(), &[7; 20]].concat();
                let error = Frames::new(&bytes).next_frame().unwrap_err();
                assert_eq!(error, FrameError::FirstBytesTooLong { first, length });
            }
        }
    }
}

fn long_put(flags: u8) -> OneSided {
    OneSided {
        kind: frame::KIND_PUT_RTS,
        flags,
        target_endpoint: 1.into(),
        source_endpoint: 2.into(),
        atomic: 0,
        datatype: 0,
        length: (1 << 30).into(),
        key: 3.into(),
        offset: 4.into(),
        operation: 5.into(),
    }
}

/// RR-FRAME-1, RR-SHM-7
#[test]
fn a_cma_source_stands_behind_long_puts_and_answers_that_say_so() {
    let reply = |flags| ReplyRts {
        kind: frame::KIND_REPLY_RTS,
        flags,
        reserved: 0.into(),
        reserved_2: 0.into(),
        operation: 5.into(),
        send_operation: 6.into(),
    };
    for (flags, source) in [(0, 0), (cma_source::FLAG_CMA, 16)] {
        let put = long_put(flags);
        let data = OneSided { flags: put.flags | eager::FLAG_DATA, ..put };
        let bytes = [7; 16];
        let [source, cut] = [&bytes[..source], &bytes[..source.saturating_sub(1)]];
        let all = [put.as_bytes(), source, data.as_bytes(), &[1; 8], source];
        let all = [&all.concat(), reply(flags).as_bytes(), source].concat();
        let mut frames = Frames::new(&all);
        for has_data in [None, Some(0x0101_0101_0101_0101)] {
            let Ok(Some(Frame::OneSided(header, got, behind))) = frames.next_frame() else {
                panic!()
            };
            assert_eq!((header.length.get(), got, behind), (1 << 30, has_data, source));
        }
        let Ok(Some(Frame::ReplyRts(_, behind))) = frames.next_frame() else { panic!() };
        assert_eq!((behind, frames.next_frame().unwrap().is_none()), (source, true));
        if flags != 0 {
            for header in [put.as_bytes(), reply(flags).as_bytes()] {
                let bytes = [header, cut].concat();
                let error = Frames::new(&bytes).next_frame().unwrap_err();
                assert_eq!(error, FrameError::Truncated);
            }
        }
    }
}

/// RR-DATA-1
#[test]
fn remote_data_stands_between_header_and_payload() {
    let with = |flags: u8| Eager { flags: flags | eager::FLAG_DATA, ..eager(3) };
    let number = 0x0102_0304_0506_0708u64;
    let mut bytes = [with(0).as_bytes(), &number.to_le_bytes(), b"abc"].concat();
    bytes.extend([with(0).as_bytes(), &[0; 8], b"def"].concat());
    let header = Rts { flags: eager::FLAG_DATA, ..rts(2, 1000) };
    bytes.extend([header.as_bytes(), &u64::MAX.to_le_bytes(), b"xy"].concat());
    let mut frames = Frames::new(&bytes);
    let Ok(Some(Frame::Eager(_, data, payload))) = frames.next_frame() else { panic!() };
    assert_eq!((data, payload), (Some(number), &b"abc"[..]));
    let Ok(Some(Frame::Eager(_, data, payload))) = frames.next_frame() else { panic!() };
    assert_eq!((data, payload), (Some(0), &b"def"[..]), "0 is a number like others");
    let Ok(Some(Frame::Rts(_, data, first))) = frames.next_frame() else { panic!() };
    assert_eq!((data, first), (Some(u64::MAX), &b"xy"[..]));
    let cut = [with(0).as_bytes(), &[0; 7]].concat();
    assert_eq!(Frames::new(&cut).next_frame().unwrap_err(), FrameError::Truncated);
}

/// RR-FRAME-1, RR-FRAME-3, RR-RMA-1
#[test]
fn the_types_that_there_are_are_decoded_and_no_other() {
    let decoded = |kind: u8| {
        // As long as the longest header, and no more behind it than zeros.
        let mut bytes = [0; 40];
        bytes[0] = kind;
        match Frames::new(&bytes).next_frame() {
            Ok(frame) => frame.is_some(),
            Err(error) => {
                assert_eq!(error, FrameError::UnknownType(kind));
                false
            }
        }
    };
    let types: Vec<u8> = (0..=u8::MAX).filter(|kind| decoded(*kind)).collect();
    let later = frame::KIND_PROCESS_QUERY..=frame::KIND_PROCESS_STATUS;
    // 9 and 20 were of earlier versions.
    let earlier = (frame::KIND_EAGER..=frame::KIND_FLUSH).filter(|&kind| kind != 9);
    assert_eq!(types, earlier.chain(later).collect::<Vec<u8>>());
}

proptest! {
    /// What comes behind a frame changes nothing of it.
    #[test]
    fn any_bytes_behind_a_frame_are_decoded_or_refused_without_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        first in 0u8..24,
    ) {
        let mut all = eager(3).as_bytes().to_vec();
        all.extend_from_slice(b"abc");
        let behind = all.len();
        all.extend_from_slice(&bytes);
        if let Some(kind) = all.get_mut(behind) {
            *kind = first;
        }
        let mut frames = Frames::new(&all);
        let Ok(Some(Frame::Eager(header, None, payload))) = frames.next_frame() else {
            return Err(TestCaseError::fail("a whole frame is refused"));
        };
        prop_assert_eq!((header.tag.get(), payload), (4, &b"abc"[..]));
        let mut seen = 0;
        while let Ok(Some(_)) = frames.next_frame() {
            seen += 1;
            prop_assert!(seen <= bytes.len());
        }
    }

    /// RR-SEG-4
    #[test]
    fn a_cut_segment_is_never_read_past_its_end(cut in 0usize..80) {
        let mut bytes = eager(20).as_bytes().to_vec();
        bytes.extend_from_slice(&[7; 20]);
        bytes.extend_from_slice(rts(0, 8).as_bytes());
        bytes.truncate(cut);
        let mut frames = Frames::new(&bytes);
        while let Ok(Some(frame)) = frames.next_frame() {
            if let Frame::Eager(header, _, payload) = frame {
                prop_assert_eq!(header.length.get() as usize, payload.len());
            }
        }
    }
}
