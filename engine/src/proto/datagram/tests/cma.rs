//! Long messages read from the sender's memory (CMA).

use rand::RngExt;
use zerocopy::{FromZeros, IntoBytes};

use super::super::super::by_hand::Memory;
use super::super::super::core::Config;
use super::super::super::effects::{CompletionLevel, Effects, Ended};
use super::super::super::failure::PeerFailure;
use super::super::super::table::Id;
use super::world::{Stream, World};
use crate::wire::CmaSource;

/// Addresses identify operations, and are never 0.
const FIRST_ADDRESS: u64 = 1 << 40;

/// Returns the location of a send's message.
pub(super) fn source_of(memory: &Memory, id: Id) -> CmaSource {
    let address = FIRST_ADDRESS + id.to_u64();
    CmaSource { address: address.into(), revocations: memory.revocations.into() }
}

impl World {
    /// Sets whether all engines can read each other's memory.
    pub(super) fn use_cma(&mut self, is_able: bool) {
        for node in &mut self.nodes {
            node.slots.values().for_each(|&slot| node.core.set_cma(slot, is_able));
        }
    }

    /// Lets an engine read pieces of its matched messages.
    pub(super) fn read_by_cma(&mut self, number: usize) {
        let most = self.random.random_range(1..3000);
        for _ in 0..2 {
            let Some(read) = self.nodes[number].core.next_cma(most) else { return };
            let slots = &self.nodes[number].slots;
            let peer = *slots.iter().find(|(_, slot)| **slot == read.session).unwrap().0;
            let id = Id::from_u64(read.source.address.get() - FIRST_ADDRESS);
            let theirs = &self.nodes[peer].memory;
            let range = read.offset as usize..(read.offset + read.length) as usize;
            let bytes = theirs.bytes.get(&id).map(|message| message[range].to_vec());
            let is_valid = read.source.revocations.get() == theirs.revocations;
            assert!(bytes.is_some() || !is_valid, "memory is valid until DONE or revocation");
            let fails = self.cma_failure > 0.0 && self.random.random_bool(self.cma_failure);
            let bytes = bytes.filter(|_| is_valid && !fails);
            let node = &mut self.nodes[number];
            if let Some(bytes) = &bytes {
                self.cma_bytes += read.length;
                node.memory.place(read.operation, read.offset as usize, bytes);
            } else {
                node.memory.begin_anew(read.operation);
            }
            node.core.handle_cma(read, bytes.is_some(), &mut node.memory);
        }
    }
}

const STREAM: Stream = Stream { from: 0, source: 0, to: 1, target: 0, context: 1 };

fn world() -> World {
    let mut world = World::new(2, &Config::for_tests(), 1200, 1);
    world.use_streams(1);
    world.use_cma(true);
    world
}

fn receive(world: &mut World, capacity: usize) -> Id {
    world.receive((1, 0), Some((0, 0)), 1, capacity)
}

/// RR-SHM-7
#[test]
fn long_messages_are_read_posted_or_unexpected_and_truncated() {
    let mut world = world();
    for (number, (length, capacity)) in
        [(1000, 1000), (1300, 1300), (1300, 1100), (100_000, 100_000), (70_000, 500), (0, 0)]
            .into_iter()
            .enumerate()
    {
        if number % 2 == 0 {
            world.send(STREAM, length, CompletionLevel::Delivery);
            world.steps(10);
            receive(&mut world, capacity);
        } else {
            receive(&mut world, capacity);
            world.send(STREAM, length, CompletionLevel::Match);
        }
        world.settle(200);
    }
    assert_eq!(world.cma_bytes, 1300 + 1100 + 100_000 + 500);
    assert_eq!(world.segments, 0, "the stream was not used");
    world.check();
}

/// RR-SHM-7
#[test]
fn failed_cma_read_falls_back_to_grants() {
    let mut world = world();
    for number in 0..20 {
        receive(&mut world, 20_000);
        world.send(STREAM, 20_000, CompletionLevel::Delivery);
        // Half of some messages is read.
        world.steps(number);
        world.cma_failure = 1.0;
        world.settle(300);
        world.cma_failure = 0.0;
    }
    assert!(world.cma_bytes > 20_000);
    // The last one was announced while its peer could still read.
    world.send(STREAM, 20_000, CompletionLevel::Delivery);
    world.stage(0);
    world.use_cma(false);
    receive(&mut world, 20_000);
    world.settle(300);
    let before = world.cma_bytes;
    world.send(STREAM, 20_000, CompletionLevel::Delivery);
    receive(&mut world, 20_000);
    world.settle(300);
    assert_eq!(world.cma_bytes, before);
    world.check();
}

/// RR-SHM-7
#[test]
fn cancelled_send_revokes_its_memory_first() {
    let mut world = world();
    let first = world.send(STREAM, 90_000, CompletionLevel::Delivery).unwrap();
    let got = receive(&mut world, 90_000);
    world.steps(4);
    assert!(world.cma_bytes > 0, "the read is in progress");
    // No chunk is passed to the kernel, which would have to complete it.
    (world.refuses, world.has_bulk) = (true, false);
    // Its endpoint is closed while the session continues; that memory is reused.
    let node = &mut world.nodes[0];
    node.core.close_endpoint(0, &mut node.memory);
    node.core.cancel_closed(&mut node.memory);
    assert_eq!(node.memory.revocations, 1);
    assert_eq!(world.end_of(0, first), Some(&Ended::Cancelled));
    world.steps(300);
    let ended = world.end_of(1, got).expect("its sender is closed");
    assert!(matches!(ended, Ended::Failed(PeerFailure::Left, _)), "{ended:?}");
}

/// RR-SHM-7
#[test]
fn pending_cma_falls_back_to_grants_after_revoke() {
    let mut world = world();
    world.send(STREAM, 5000, CompletionLevel::Delivery);
    world.stage(0);
    world.nodes[0].memory.revoke();
    receive(&mut world, 5000);
    world.settle(300);
    assert_eq!(world.cma_bytes, 0);
    world.send(STREAM, 5000, CompletionLevel::Delivery);
    receive(&mut world, 5000);
    world.settle(300);
    assert_eq!(world.cma_bytes, 5000);
    world.check();
}

/// RR-SHM-7
#[test]
fn cma_source_with_wrong_length_or_null_address_is_rejected() {
    let mut world = world();
    world.send(STREAM, 5000, CompletionLevel::Delivery);
    let node = &mut world.nodes[0];
    let id = node.core.poll_waiting().unwrap();
    let super::super::super::send::Staged::Source { room } = node.core.stage(id) else { panic!() };
    assert_eq!(room.len(), 16);
    // In several pieces.
    room.copy_from_slice(CmaSource::new_zeroed().as_bytes());
    receive(&mut world, 5000);
    world.settle(300);
    assert_eq!(world.cma_bytes, 0);
    world.check();
}
