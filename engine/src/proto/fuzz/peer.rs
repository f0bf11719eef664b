//! Generates frames and segments of a peer from the script.

use zerocopy::IntoBytes;

use super::script::Script;
use crate::proto::session::ControlFrame;
use crate::proto::sim::{self, ScriptedPeer};
use crate::wire::cma_source::FLAG_CMA;
use crate::wire::eager::FLAG_DATA;
use crate::wire::rts::FLAG_UNSOLICITED;
use crate::wire::segment::FLAG_ACK_REQUESTED;
use crate::wire::unsolicited::UNSOLICITED_BYTES;
use crate::wire::{
    DATA_BYTES, EAGER_BYTES_MAX, Eager, Grant, GrantOver, LaneLost, MESSAGE_BYTES_MAX, OneSided,
    ProcessQuery, ProcessStatus, Refused, Reply, ReplyRts, Rts, frame,
};

impl ScriptedPeer {
    /// Returns a valid segment, which requests an acknowledgement.
    pub(super) fn next_segment(&mut self, frames: u16, body: &[u8]) -> Vec<u8> {
        let segment = self.segment(frames, FLAG_ACK_REQUESTED, body);
        self.sent = self.sent.wrapping_add(u32::from(frames));
        segment
    }

    /// Generates a segment of one or many frames, usually valid.
    pub(super) fn write(
        &mut self,
        script: &mut Script<'_>,
        names: &[u64],
        lanes: &[u32],
    ) -> Vec<u8> {
        let body = frame(script, names, lanes);
        let most = (40_000 / body.len().max(1)).min(300) as u8;
        let count = match script.byte() {
            many if many > 220 => u16::from(most.max(1)),
            few => u16::from(few % 3) + 1,
        };
        if script.byte() > 200 {
            self.envelope_limit = self.envelope_limit.wrapping_add(script.u32() >> 24);
            self.byte_limit = self.byte_limit.wrapping_add(script.u32() >> 16);
        }
        let announced = if script.byte() == 255 { script.byte().into() } else { count };
        let mut segment = self.next_segment(announced, &body.repeat(count.into()));
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

/// Where a GRANT states what carries its range.
const CARRIER_AT: usize = 2;

/// Returns what carries a range: usually a lane, which may not exist.
fn over(script: &mut Script<'_>, lanes: &[u32]) -> GrantOver {
    let chunk = u32::from(script.byte() % 4);
    match script.byte() {
        // Sessions of this fuzzing have no datagrams: these end them.
        254 => GrantOver::Datagrams,
        255 => GrantOver::Ring(chunk),
        byte => match u32::from(byte % 8) {
            other if lanes.is_empty() || other == 0 => GrantOver::Lane { lane: other, chunk },
            _ => GrantOver::Lane { lane: script.pick(lanes), chunk },
        },
    }
}

fn frame(script: &mut Script<'_>, names: &[u64], lanes: &[u32]) -> Vec<u8> {
    match script.byte() % 13 {
        10 => one_sided(script, names),
        11 => reply(script, names),
        12 => process(script, names),
        0 | 1 => eager(script, names),
        2 | 3 => rts(script, names),
        4 | 5 => {
            let eager_class = script.byte();
            let over = over(script, lanes);
            let (send, receive) = (name(script, names), name(script, names));
            let range = (length(script), length(script) as u32);
            let grant = Grant { eager_class, ..Grant::new(over, send, receive, range) };
            let mut bytes = grant.as_bytes().to_vec();
            if script.byte() == 255 {
                bytes[CARRIER_AT] = script.byte();
            }
            bytes
        }
        6 => bytes_of(&ControlFrame::done(name(script, names), script.byte() % 3, length(script))),
        7 => bytes_of(&ControlFrame::matched(name(script, names))),
        8 => match script.byte() % 8 {
            0 => bytes_of(&ControlFrame::goodbye(script.byte() % 3)),
            1 | 2 => bytes_of(&ControlFrame::lanes_wanted()),
            3 => {
                let lane = (script.byte() < 240).then(|| script.pick(&[lanes, &[0]].concat()));
                let lost = LaneLost::new(lane, script.byte() % 8, script.byte().into());
                lost.as_bytes().to_vec()
            }
            _ => Refused::new(over(script, lanes), name(script, names)).as_bytes().to_vec(),
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

/// Generates a question about a process, or an answer that may have no valid status.
fn process(script: &mut Script<'_>, names: &[u64]) -> Vec<u8> {
    let engine = name(script, names).into();
    let (flags, reserved, reserved_2) = (0, 0.into(), 0.into());
    if script.flag() {
        let kind = frame::KIND_PROCESS_QUERY;
        return ProcessQuery { kind, flags, reserved, reserved_2, engine }.as_bytes().to_vec();
    }
    let (kind, status) = (frame::KIND_PROCESS_STATUS, script.byte() % 4);
    ProcessStatus { kind, status, reserved, reserved_2, engine }.as_bytes().to_vec()
}

fn bytes_of(control: &ControlFrame) -> Vec<u8> {
    control.as_frame().to_vec()
}

fn eager(script: &mut Script<'_>, names: &[u64]) -> Vec<u8> {
    let carried = length(script).min(EAGER_BYTES_MAX as u64 + 1) as u32;
    let header = Eager {
        flags: flags(script),
        target_endpoint: u16::from(script.byte() % 3).into(),
        source_endpoint: source(script).into(),
        tag: u64::from(script.byte() % 3).into(),
        operation: name(script, names).into(),
        ..sim::eager(carried)
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
    let behind = script.pick(&[0, 0, 0, FLAG_UNSOLICITED]);
    let first = match behind {
        0 => script.pick(&[0, 0, 1, 100, length as u32]).min(EAGER_BYTES_MAX as u32 + 1),
        _ => UNSOLICITED_BYTES as u32,
    };
    let header = Rts {
        flags: flags(script) | behind,
        target_endpoint: u16::from(script.byte() % 3).into(),
        source_endpoint: source(script).into(),
        first_bytes: first.into(),
        tag: u64::from(script.byte() % 3).into(),
        operation: name(script, names).into(),
        ..sim::rts(length)
    };
    [header.as_bytes(), data(header.flags), &vec![7; first as usize]].concat()
}
