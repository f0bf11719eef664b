//! Generates frames and segments of a peer from the script.

use zerocopy::IntoBytes;

use super::script::Script;
use crate::proto::session::ControlFrame;
use crate::wire::cma_source::FLAG_CMA;
use crate::wire::eager::FLAG_DATA;
use crate::wire::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::wire::{
    DATA_BYTES, EAGER_BYTES_MAX, Eager, Grant, MESSAGE_BYTES_MAX, OneSided, Reply, ReplyRts, Rts,
    frame,
};

/// Protocol state of a peer, as it sees it.
#[derive(Clone, Copy, Default)]
pub(super) struct Peer {
    /// Frames received.
    pub(super) frames_received: u32,
    /// Frames sent.
    pub(super) frames_sent: u32,
    /// Limits announced last.
    pub(super) envelopes: u32,
    pub(super) bytes: u32,
}

impl Peer {
    pub(super) fn new(envelopes: u32, bytes: u32) -> Self {
        Self { frames_received: 0, frames_sent: 0, envelopes, bytes }
    }

    /// Returns a valid segment.
    pub(super) fn segment(&mut self, frames: u16, body: &[u8]) -> Vec<u8> {
        let header = SegmentHeader {
            length: ((SEGMENT_HEADER_BYTES + body.len()) as u32).into(),
            frames: frames.into(),
            flags: 1.into(),
            first_frame: self.frames_sent.into(),
            ack: self.frames_received.into(),
            envelope_limit: self.envelopes.into(),
            byte_limit: self.bytes.into(),
        };
        self.frames_sent = self.frames_sent.wrapping_add(u32::from(frames));
        [header.as_bytes(), body].concat()
    }

    /// Generates a segment of one or many frames, usually valid.
    pub(super) fn say(&mut self, script: &mut Script<'_>, names: &[u64], lanes: &[u32]) -> Vec<u8> {
        let body = frame(script, names, lanes);
        let most = (40_000 / body.len().max(1)).min(300) as u8;
        let count = match script.byte() {
            many if many > 220 => u16::from(most.max(1)),
            few => u16::from(few % 3) + 1,
        };
        if script.byte() > 200 {
            self.envelopes = self.envelopes.wrapping_add(script.u32() >> 24);
            self.bytes = self.bytes.wrapping_add(script.u32() >> 16);
        }
        let announced = if script.byte() == 255 { script.byte().into() } else { count };
        let mut segment = self.segment(announced, &body.repeat(count.into()));
        if script.byte() > 250 {
            let at = script.below(segment.len());
            segment[at] = script.byte();
        }
        segment
    }
}

/// Lengths at which behaviour changes.
const LENGTHS: [u64; 14] = [
    0,
    1,
    8,
    100,
    101,
    1000,
    1001,
    4096,
    5000,
    1 << 20,
    MESSAGE_BYTES_MAX,
    MESSAGE_BYTES_MAX + 1,
    1 << 63,
    u64::MAX,
];

pub(super) fn length(script: &mut Script<'_>) -> u64 {
    if script.byte() > 230 { script.u64() } else { script.pick(&LENGTHS) }
}

/// Returns one of `names`, or another number.
fn name(script: &mut Script<'_>, names: &[u64]) -> u64 {
    match script.byte() {
        0..10 => 0,
        10..20 => script.u64(),
        // A stale name.
        20..30 if !names.is_empty() => script.pick(names).wrapping_sub(1 << 32),
        _ if names.is_empty() => 0,
        _ => script.pick(names),
    }
}

fn lane(script: &mut Script<'_>, lanes: &[u32]) -> u32 {
    let other = u32::from(script.byte() % 8);
    if lanes.is_empty() || other == 0 { other } else { script.pick(lanes) }
}

fn frame(script: &mut Script<'_>, names: &[u64], lanes: &[u32]) -> Vec<u8> {
    match script.byte() % 12 {
        10 => one_sided(script, names),
        11 => reply(script, names),
        0 | 1 => eager(script, names),
        2 | 3 => rts(script, names),
        4 | 5 => {
            let grant = Grant {
                kind: frame::KIND_GRANT,
                eager_class: script.byte(),
                reserved: 0.into(),
                lane: lane(script, lanes).into(),
                send_operation: name(script, names).into(),
                receive_operation: name(script, names).into(),
                offset: length(script).into(),
                length: (length(script) as u32).into(),
                chunk: u32::from(script.byte() % 4).into(),
            };
            grant.as_bytes().to_vec()
        }
        6 => bytes_of(&ControlFrame::done(name(script, names), script.byte() % 3, length(script))),
        7 => bytes_of(&ControlFrame::matched(name(script, names))),
        8 => match script.byte() % 8 {
            0 => bytes_of(&ControlFrame::goodbye(script.byte() % 3)),
            1 | 2 => bytes_of(&ControlFrame::lanes_wanted()),
            _ => bytes_of(&ControlFrame::refused(lane(script, lanes), name(script, names))),
        },
        _ => {
            let count = script.below(64);
            script.bytes(count).to_vec()
        }
    }
}

/// Generates an operation on this engine's memory, by a key that may be valid.
fn one_sided(script: &mut Script<'_>, names: &[u64]) -> Vec<u8> {
    let kinds = [
        frame::KIND_PUT,
        frame::KIND_GET,
        frame::KIND_ATOMIC,
        frame::KIND_PUT_RTS,
        frame::KIND_FLUSH,
    ];
    let kind = script.pick(&kinds);
    let flags = script.byte();
    let header = OneSided {
        kind,
        flags: (flags % 8) | (flags & FLAG_CMA) | if flags < 64 { FLAG_DATA } else { 0 },
        target_endpoint: u16::from(script.byte() % 3).into(),
        source_endpoint: source(script).into(),
        atomic: script.byte() % 21,
        datatype: script.byte() % 13,
        length: length(script).into(),
        key: u64::from(script.byte() % 3).into(),
        offset: length(script).into(),
        operation: name(script, names).into(),
    };
    let behind = match kind {
        frame::KIND_PUT => header.length.get(),
        frame::KIND_ATOMIC => header.operand_bytes(),
        frame::KIND_PUT_RTS if header.flags & FLAG_CMA != 0 => 16,
        _ => 0,
    };
    let behind = behind.min(EAGER_BYTES_MAX as u64 + 1) as usize;
    [header.as_bytes(), data(header.flags), &vec![7; behind]].concat()
}

fn reply(script: &mut Script<'_>, names: &[u64]) -> Vec<u8> {
    let (operation, status) = (name(script, names).into(), script.byte() % 12);
    if script.flag() {
        let send_operation = script.u64().into();
        let (kind, flags) = (frame::KIND_REPLY_RTS, script.pick(&[0, 0, FLAG_CMA]));
        let (reserved, reserved_2) = (0.into(), 0.into());
        let reply = ReplyRts { kind, flags, reserved, reserved_2, operation, send_operation };
        let source = if flags == 0 { 0 } else { script.pick(&[16, 16, 8]) };
        return [reply.as_bytes(), &vec![7; source]].concat();
    }
    let bytes = script.pick(&[0, 1, 8, 16, 100]);
    let (kind, reserved, length) = (frame::KIND_REPLY, 0.into(), (bytes as u32).into());
    let reply = Reply { kind, status, reserved, length, operation };
    [reply.as_bytes(), &vec![7; bytes]].concat()
}

fn bytes_of(control: &ControlFrame) -> Vec<u8> {
    control.as_frame().to_vec()
}

fn eager(script: &mut Script<'_>, names: &[u64]) -> Vec<u8> {
    let carried = length(script).min(EAGER_BYTES_MAX as u64 + 1) as u32;
    let header = Eager {
        kind: frame::KIND_EAGER,
        flags: flags(script),
        target_endpoint: u16::from(script.byte() % 3).into(),
        source_endpoint: source(script).into(),
        predecessor_distance: 0.into(),
        context: 5.into(),
        length: carried.into(),
        tag: u64::from(script.byte() % 3).into(),
        operation: name(script, names).into(),
    };
    [header.as_bytes(), data(header.flags), &vec![7; carried as usize]].concat()
}

/// Generates flags: untagged or not, with a report or not, with remote data or not.
fn flags(script: &mut Script<'_>) -> u8 {
    let flags = script.byte();
    let data = if flags < 64 { FLAG_DATA } else { 0 };
    (flags % 4) | data
}

fn data(flags: u8) -> &'static [u8] {
    if flags & FLAG_DATA == 0 { &[] } else { &[9; DATA_BYTES] }
}

/// Returns the peer's endpoint: usually one of the first.
fn source(script: &mut Script<'_>) -> u16 {
    match script.byte() {
        255 => script.u32() as u16,
        other => u16::from(other % 3),
    }
}

fn rts(script: &mut Script<'_>, names: &[u64]) -> Vec<u8> {
    let length = length(script);
    let first = script.pick(&[0, 0, 1, 100, length as u32]).min(EAGER_BYTES_MAX as u32 + 1);
    let header = Rts {
        kind: frame::KIND_RTS,
        flags: flags(script),
        target_endpoint: u16::from(script.byte() % 3).into(),
        source_endpoint: source(script).into(),
        predecessor_distance: 0.into(),
        context: 5.into(),
        first_bytes: first.into(),
        tag: u64::from(script.byte() % 3).into(),
        operation: name(script, names).into(),
        length: length.into(),
    };
    [header.as_bytes(), data(header.flags), &vec![7; first as usize]].concat()
}
