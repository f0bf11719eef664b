//! Frames against a model of the kernel that injects kernel faults.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::exchange::FrameExchange;
use super::frame::XdpFrame;
use super::rings::{FramePacket, FrameRings};

const FRAME_BYTES: usize = 64;

/// Rings of a kernel that tracks the owner of each frame, and a network that delivers anything.
#[derive(Debug)]
struct Model {
    random: StdRng,
    memory: Vec<[u8; FRAME_BYTES]>,
    /// The frames that the kernel owns, by its own books.
    is_owned: Vec<bool>,
    fill_room: usize,
    to_fill: VecDeque<u32>,
    came_in: VecDeque<FramePacket>,
    transmit_room: usize,
    to_send: VecDeque<FramePacket>,
    under_way: Vec<u32>,
    completed: VecDeque<u32>,
    /// Bytes of sent packets, in order.
    sent: VecDeque<u64>,
    next_number: u64,
    /// Packets that arrived, in order, and are to be received.
    arrived: VecDeque<u64>,
    is_down: bool,
    /// Leaves packets in the transmit ring.
    is_idle: bool,
    /// Returns frames twice, or invalid indices.
    is_lying: bool,
}

impl Model {
    fn new(seed: u64, frames: usize) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            memory: vec![[0; FRAME_BYTES]; frames],
            is_owned: vec![false; frames],
            fill_room: frames / 3,
            to_fill: VecDeque::new(),
            came_in: VecDeque::new(),
            transmit_room: frames / 4,
            to_send: VecDeque::new(),
            under_way: Vec::new(),
            completed: VecDeque::new(),
            sent: VecDeque::new(),
            next_number: 0,
            arrived: VecDeque::new(),
            is_down: false,
            is_idle: false,
            is_lying: false,
        }
    }

    fn lend(&mut self, index: u32) {
        let was_owned = std::mem::replace(&mut self.is_owned[index as usize], true);
        assert!(!was_owned, "frame {index} is owned twice");
    }

    fn give_back(&mut self, index: u32) {
        let was_owned = std::mem::take(&mut self.is_owned[index as usize]);
        assert!(was_owned, "frame {index} comes back twice");
    }

    /// A part of `count`, mostly all.
    fn part(&mut self, count: usize) -> usize {
        if self.random.random_ratio(1, 4) { self.random.random_range(0..=count) } else { count }
    }

    /// Delivers packets: single-frame ones with a number, and some of two frames.
    fn bring(&mut self) {
        for _ in 0..self.random.random_range(0..8) {
            let is_split = self.random.random_ratio(1, 16);
            if self.to_fill.len() < 2 {
                return;
            }
            if is_split {
                for has_more in [true, false] {
                    let index = self.to_fill.pop_front().unwrap();
                    self.came_in.push_back(FramePacket { index, length: 8, has_more });
                }
                continue;
            }
            let index = self.to_fill.pop_front().unwrap();
            self.next_number += 1;
            let number = self.next_number;
            self.memory[index as usize][..8].copy_from_slice(&number.to_le_bytes());
            self.arrived.push_back(number);
            self.came_in.push_back(FramePacket { index, length: 8, has_more: false });
        }
    }

    /// Completes some sent packets, in any order.
    fn complete_some(&mut self) {
        for _ in 0..self.random.random_range(0..12) {
            if self.under_way.is_empty() {
                return;
            }
            let at = self.random.random_range(0..self.under_way.len());
            let index = self.under_way.swap_remove(at);
            self.completed.push_back(index);
        }
    }
}

impl FrameRings for Model {
    fn fill(&mut self, indices: &[u32]) -> usize {
        let room = self.fill_room.saturating_sub(self.to_fill.len());
        let taken = self.part(indices.len()).min(room);
        for &index in &indices[..taken] {
            self.lend(index);
            self.to_fill.push_back(index);
        }
        taken
    }

    fn transmit(&mut self, packets: &[FramePacket]) -> usize {
        let room = self.transmit_room.saturating_sub(self.to_send.len());
        let taken = self.part(packets.len()).min(room);
        for packet in &packets[..taken] {
            self.lend(packet.index);
            self.to_send.push_back(*packet);
        }
        taken
    }

    fn completed(&mut self, into: &mut [u32]) -> usize {
        let count = self.completed.len().min(into.len());
        let count = self.part(count);
        for place in &mut into[..count] {
            *place = self.completed.pop_front().unwrap();
            let index = *place;
            self.give_back(index);
        }
        if self.is_lying && count < into.len() && self.random.random_ratio(1, 8) {
            into[count] = self.random.random_range(0..self.memory.len() as u32 * 2);
            // A frame that is being sent would be in two places, which cannot be detected.
            let is_owned = self.is_owned.get(into[count] as usize) == Some(&true);
            let is_believable = is_owned && !self.to_fill.contains(&into[count]);
            return if is_believable { count } else { count + 1 };
        }
        count
    }

    fn received(&mut self, into: &mut [FramePacket]) -> usize {
        let count = self.came_in.len().min(into.len());
        for place in &mut into[..count] {
            *place = self.came_in.pop_front().unwrap();
            let index = place.index;
            self.give_back(index);
        }
        count
    }

    fn has_received(&mut self) -> bool {
        !self.came_in.is_empty()
    }

    fn sleeps(&self) -> bool {
        false
    }

    fn wake(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn kick(&mut self) -> io::Result<()> {
        if self.is_down {
            return Err(io::Error::from_raw_os_error(libc::ENETDOWN));
        }
        if self.is_idle {
            return Ok(());
        }
        for _ in 0..32 {
            let Some(packet) = self.to_send.pop_front() else { return Ok(()) };
            let bytes = &self.memory[packet.index as usize][..packet.length as usize];
            self.sent.push_back(u64::from_le_bytes(bytes.try_into().unwrap()));
            self.under_way.push(packet.index);
            if self.random.random_ratio(1, 40) {
                break;
            }
        }
        if self.to_send.is_empty() { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    fn frame_bytes(&self) -> usize {
        FRAME_BYTES
    }

    fn bytes(&mut self, frame: &mut XdpFrame) -> &mut [u8] {
        assert!(!self.is_owned[frame.index() as usize], "{frame:?} is written while it is owned");
        &mut self.memory[frame.index() as usize]
    }

    fn packet(&mut self, frame: &mut XdpFrame, length: u32) -> &mut [u8] {
        assert!(!self.is_owned[frame.index() as usize], "{frame:?} is read while it is owned");
        &mut self.memory[frame.index() as usize][..length as usize]
    }

    fn fd(&self) -> RawFd {
        -1
    }
}

/// Drives an exchange at random and compares it with the model.
fn drive(seed: u64, operations: u64, is_lying: bool) {
    const FRAMES: u32 = 96;
    let mut random = StdRng::seed_from_u64(seed ^ 0x5eed);
    let mut model = Model::new(seed, FRAMES as usize);
    model.is_lying = is_lying;
    let mut exchange = FrameExchange::new(model, FRAMES, 40, 0);
    let mut staged = VecDeque::new();
    let mut number = 0u64;
    let mut failures = 0;
    for _ in 0..operations {
        match random.random_range(0..100) {
            0..35 => {
                if let Some(room) = exchange.room() {
                    number += 1;
                    room[..8].copy_from_slice(&number.to_le_bytes());
                    if random.random_ratio(9, 10) {
                        exchange.stage(8);
                        staged.push_back(number);
                    }
                }
            }
            35..55 => match exchange.flush() {
                Ok(()) => assert!(!exchange.rings().is_down || !exchange.is_behind()),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::ENETDOWN));
                    failures += 1;
                }
            },
            55..80 => {
                let expected = exchange.rings().arrived.front().copied();
                let got = exchange
                    .receive()
                    .map(|bytes| u64::from_le_bytes((&*bytes).try_into().unwrap()));
                if let Some(got) = got {
                    assert_eq!(Some(got), expected);
                    exchange.rings().arrived.pop_front();
                }
            }
            80..90 => exchange.rings().bring(),
            90..97 => exchange.rings().complete_some(),
            97 => exchange.reap(),
            98 => {
                let model = exchange.rings();
                model.is_down = !model.is_down && random.random_ratio(1, 4);
            }
            _ => exchange.refill(),
        }
        assert_eq!(exchange.counts().total(), FRAMES);
        while let Some(sent) = exchange.rings().sent.pop_front() {
            assert_eq!(staged.pop_front(), Some(sent), "packets leave once, in order");
        }
    }
    settle(&mut exchange, FRAMES);
    assert!(failures > 0, "the NIC never went down");
    assert!(number > operations / 20, "only {number} packets");
    assert!(exchange.split > 0);
    assert_eq!(exchange.counts().strays > 0, is_lying);
}

/// With nothing outstanding every frame is free or in the fill ring.
fn settle(exchange: &mut FrameExchange<Model>, frames: u32) {
    exchange.rings().is_down = false;
    for _ in 0..1000 {
        exchange.flush().unwrap();
        exchange.rings().complete_some();
        exchange.reap();
        while exchange.receive().is_some() {}
    }
    if exchange.counts().in_hand > 0 {
        // A buffer that was not sent is returned again.
        exchange.room().unwrap()[..8].fill(0);
        exchange.stage(8);
        settle(exchange, frames);
    }
    let counts = exchange.counts();
    assert_eq!((counts.in_hand, counts.sending), (0, 0), "{counts:?}");
    assert_eq!(counts.free + counts.filled, frames);
    assert!(counts.filled > 0);
    let owned = exchange.rings().is_owned.iter().filter(|is_owned| **is_owned).count();
    assert_eq!(owned as u32, counts.filled, "both books say the same");
}

#[test]
fn frames_are_conserved_over_millions_of_operations() {
    for seed in 0..4 {
        drive(seed, 600_000, false);
    }
}

#[test]
fn frames_not_owned_by_the_kernel_are_rejected() {
    drive(77, 300_000, true);
}

/// A packet whose bytes depend on its number, of any length.
fn long_packet(number: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (number.wrapping_mul(31) ^ at.wrapping_mul(7)) as u8).collect()
}

/// Sent multi-frame packets come back as received ones, as if by a loopback cable.
#[test]
fn multi_frame_packets_round_trip() {
    const LONG: usize = 3 * FRAME_BYTES - 10;
    let mut exchange = FrameExchange::new(Model::new(5, 96), 96, 40, LONG);
    (exchange.rings().transmit_room, exchange.rings().fill_room) = (96, 96);
    exchange.rings().is_idle = true;
    exchange.refill();
    for number in 0..500u64 {
        let length = [1, FRAME_BYTES, FRAME_BYTES + 1, 2 * FRAME_BYTES, LONG][number as usize % 5];
        let packet = long_packet(number, length);
        let room = exchange.room().expect("frames are free");
        assert_eq!(room.len(), LONG);
        room[..length].copy_from_slice(&packet);
        exchange.stage(length);
        while exchange.is_behind() {
            exchange.flush().unwrap();
        }
        let model = exchange.rings();
        let parts: Vec<FramePacket> = model.to_send.drain(..).collect();
        assert_eq!(parts.len(), length.div_ceil(FRAME_BYTES), "{length}");
        assert!(parts.iter().rev().skip(1).all(|part| part.has_more));
        assert!(!parts[parts.len() - 1].has_more);
        for part in &parts {
            let into = model.to_fill.pop_front().expect("frames to receive into");
            model.memory[into as usize] = model.memory[part.index as usize];
            model.came_in.push_back(FramePacket { index: into, ..*part });
            model.completed.push_back(part.index);
        }
        assert_eq!(exchange.receive().map(|bytes| bytes.to_vec()), Some(packet), "{number}");
        exchange.reap();
        assert_eq!(exchange.counts().total(), 96);
    }
    // A packet that is too long is counted and has no other effect.
    for has_more in [true, true, true, false] {
        let model = exchange.rings();
        let index = model.to_fill.pop_front().unwrap();
        model.came_in.push_back(FramePacket { index, length: FRAME_BYTES as u32, has_more });
    }
    assert!(exchange.receive().is_none());
    assert_eq!(exchange.split, 1);
    exchange.rings().is_idle = false;
    settle(&mut exchange, 96);
}

/// A batch holds whole packets only, and receiving keeps its frames.
#[test]
fn multi_frame_packets_leave_receive_frames_alone() {
    let mut exchange = FrameExchange::new(Model::new(6, 96), 96, 40, 3 * FRAME_BYTES);
    let mut staged = 0;
    while exchange.room().is_some() {
        exchange.stage(3 * FRAME_BYTES);
        staged += 3;
        let counts = exchange.counts();
        assert!(counts.free + counts.filled >= 40 && staged <= 64, "{counts:?}");
    }
    assert!(staged > 40, "{staged}");
}

#[test]
fn transmit_does_not_starve_receive() {
    let mut exchange = FrameExchange::new(Model::new(3, 96), 96, 40, 0);
    exchange.rings().transmit_room = 96;
    let mut staged = 0;
    while exchange.room().is_some() {
        exchange.stage(8);
        exchange.flush().unwrap();
        staged += 1;
        assert!(staged < 96);
    }
    let counts = exchange.counts();
    assert!(counts.free >= 40 - counts.filled, "{counts:?}");
}

#[test]
fn refused_queue_is_retried_with_backoff_forever() {
    let start = std::time::Instant::now();
    let mut fallback = super::FallbackState::new("busy".to_owned(), start);
    let mut pauses = Vec::new();
    let mut now = start;
    for _ in 0..8 {
        pauses.push(fallback.retry_at.duration_since(now).as_secs());
        now = fallback.retry_at;
        fallback = fallback.again("still busy".to_owned(), now);
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 32, 32]);
    assert_eq!(fallback.cause, "still busy");
}
