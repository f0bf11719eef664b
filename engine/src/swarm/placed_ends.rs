//! Messages that are received into receives which end before they are whole: one story each.

use super::placed::{
    CANARY, LENGTHS, Message, PEER_TIMEOUT_NS, ReceivePlan, SEEDS, TAG, check, events, go_on, next,
    partial_bytes, place, placed_bytes, world, world_of,
};
use super::scenarios::{MILLISECOND, connect, pass, peer, run, talk};
use super::world::World;
use crate::driver::sim::rails::LinkImpairments;
use crate::hooks::simulated::set_rare;
use crate::memory::Buffer;
use crate::progress::post::Memory;
use crate::proto::receive::ReceiveRequest;
use crate::proto::table::Id;
use crate::types::Error;

/// RR-MATCH-2
#[test]
fn a_receive_is_not_cancelled_while_its_message_arrives() {
    for seed in 0..SEEDS {
        let mut world = world(seed);
        let length = LENGTHS[seed as usize % 4];
        let message = Message::of(&mut world, length);
        let receive = ReceivePlan::of(&mut world, 1);
        let id = receive.post(&mut world, length);
        message.send(&mut world);
        place(&mut world, length * (1 + seed as usize % 3) / 4);
        assert!(!world.engine(1).unwrap().state.cancel(id), "its memory was written");
        let completion = next(&mut world);
        check(&mut world, completion, 1, &message, length);
        let other = receive.post(&mut world, length);
        assert!(world.engine(1).unwrap().state.cancel(other), "nothing arrives for it");
        let completion = world.pop(1).expect("it ends at once");
        assert!(matches!(completion.result, Err(Error::Cancelled)), "{:?}", completion.result);
        go_on(&mut world, "after a receive that was not cancelled");
    }
}

#[test]
fn a_message_whose_handle_is_dropped_while_it_arrives_is_received_by_another_receive() {
    for seed in 0..SEEDS {
        let mut world = world(seed);
        let length = LENGTHS[seed as usize % 4];
        let message = Message::of(&mut world, length);
        let next_one = ReceivePlan::of(&mut world, 1);
        let request = ReceiveRequest {
            endpoint: 0,
            peer: next_one.source,
            context: next_one.context,
            tag: 0,
            ignore: u64::MAX,
            capacity: length as u64,
            min_free: None,
        };
        let memory = Memory::copy_of(&vec![CANARY; length]);
        let state = &mut world.engine(1).unwrap().state;
        let handle = state.start_receive(&request, memory, None).unwrap();
        message.send(&mut world);
        place(&mut world, length / 2);
        world.engine(1).unwrap().state.give_up_receive(handle, 0);
        next_one.post(&mut world, length);
        let completion = next(&mut world);
        check(&mut world, completion, 1, &message, length);
        go_on(&mut world, "after a dropped handle");
    }
}

#[test]
fn cancelling_another_receive_leaves_a_message_in_its_receive() {
    for seed in 0..SEEDS {
        let mut world = world(seed);
        let length = LENGTHS[seed as usize % 4];
        let message = Message::of(&mut world, length);
        let [first, second] = [1, 2].map(|name| ReceivePlan::of(&mut world, name));
        first.post(&mut world, length);
        let cancelled = second.post(&mut world, length);
        message.send(&mut world);
        place(&mut world, length / 3);
        let placed = placed_bytes(&world);
        assert!(world.engine(1).unwrap().state.cancel(cancelled));
        assert_eq!(placed_bytes(&world), placed);
        assert_eq!(world.pop(1).unwrap().user_data, 2);
        let completion = next(&mut world);
        check(&mut world, completion, 1, &message, length);
        go_on(&mut world, "after another receive was cancelled");
    }
}

/// Opens a second endpoint at host 1; how host 0 names it.
fn second_endpoint(world: &mut World) -> (u16, Id) {
    let engine = world.engine(1).unwrap();
    let second = engine.state.open_endpoint().unwrap();
    let address = engine.state.address(second);
    let core = world.engine(0).unwrap().state.core_mut();
    (second, core.insert_peer(address.engine(), address.to_locators(), second).unwrap())
}

#[test]
fn a_session_outlives_an_endpoint_that_closes_within_a_message() {
    for seed in 0..SEEDS {
        let mut world = world(seed);
        let length = LENGTHS[seed as usize % 4];
        let (endpoint, target) = second_endpoint(&mut world);
        let message = Message { target, ..Message::of(&mut world, length) };
        let receive = ReceivePlan { endpoint, ..ReceivePlan::of(&mut world, 1) };
        receive.post(&mut world, length);
        message.send(&mut world);
        place(&mut world, length / 2);
        world.engine(1).unwrap().close_endpoint(endpoint);
        let completion = world.pop(1).expect("it ends at once");
        assert!(completion.result.is_err());
        let mut memory = completion.buffer.unwrap().into_vec().unwrap();
        memory.fill(CANARY);
        pass(&mut world, 100 * MILLISECOND);
        assert!(memory.iter().all(|&byte| byte == CANARY), "written after the receive has ended");
        go_on(&mut world, "after the end of an endpoint");
    }
}

#[test]
fn a_message_is_received_although_another_endpoint_closes() {
    for seed in 0..SEEDS {
        let mut world = world(seed);
        let length = LENGTHS[seed as usize % 4];
        let (endpoint, _) = second_endpoint(&mut world);
        let message = Message::of(&mut world, length);
        ReceivePlan::of(&mut world, 1).post(&mut world, length);
        message.send(&mut world);
        place(&mut world, length / 2);
        world.engine(1).unwrap().close_endpoint(endpoint);
        let completion = next(&mut world);
        check(&mut world, completion, 1, &message, length);
        go_on(&mut world, "after the end of another endpoint");
    }
}

/// A receive that ends with its session is not written any more.
#[test]
fn a_session_that_ends_within_a_message_leaves_the_memory_of_its_receive() {
    for seed in 0..SEEDS {
        let mut world = world(seed);
        let length = LENGTHS[seed as usize % 4];
        let message = Message::of(&mut world, length);
        ReceivePlan::of(&mut world, 1).post(&mut world, length);
        message.send(&mut world);
        place(&mut world, length / 2);
        world.engine(1).unwrap().state.lose(0, "as the test wants");
        let completion = world.pop(1).expect("it ends at once");
        assert!(matches!(completion.result, Err(Error::Peer { .. })), "{:?}", completion.result);
        let mut memory = completion.buffer.unwrap().into_vec().unwrap();
        memory.fill(CANARY);
        pass(&mut world, 100 * MILLISECOND);
        assert!(memory.iter().all(|&byte| byte == CANARY), "written after the receive has ended");
        [(0, 1), (1, 0)].into_iter().for_each(|(at, of)| connect(&mut world, at, of));
        events(&mut world);
        go_on(&mut world, "the next session");
    }
}

#[test]
fn a_message_is_dropped_whose_completion_queue_closes_before_it_is_whole() {
    for seed in 0..SEEDS {
        let mut world = world(seed);
        let length = LENGTHS[seed as usize % 4];
        let message = Message::of(&mut world, length);
        let queue = world.engine(1).unwrap().state.completions_mut().open_queue(16);
        let [first, second] = [1, 2].map(|name| ReceivePlan::of(&mut world, name));
        ReceivePlan { queue, ..first }.post(&mut world, length);
        second.post(&mut world, length);
        message.send(&mut world);
        place(&mut world, length / 2);
        world.engine(1).unwrap().state.completions_mut().close_queue(queue);
        run(&mut world, "it is whole", |world| {
            placed_bytes(world).is_none() && partial_bytes(world) == 0
        });
        assert!(world.pop(1).is_none(), "its completion is not reported");
        message.send(&mut world);
        let completion = next(&mut world);
        check(&mut world, completion, 2, &message, length);
        go_on(&mut world, "after the end of a queue");
    }
}

/// RR-END-2, RR-SEG-6
#[test]
fn a_sender_that_vanishes_within_a_message_is_known_within_the_peer_timeout() {
    for seed in 0..SEEDS {
        let mut world = world(seed);
        let length = LENGTHS[seed as usize % 4];
        let message = Message::of(&mut world, length);
        ReceivePlan::of(&mut world, 1).post(&mut world, length);
        message.send(&mut world);
        place(&mut world, length / 2);
        world.net.borrow_mut().power_off(0);
        drop(world.take(0));
        let start_ns = world.now_ns();
        assert!(next(&mut world).result.is_err());
        let took_ns = world.now_ns() - start_ns;
        let limit_ns = PEER_TIMEOUT_NS + 1000 * MILLISECOND;
        assert!(took_ns <= limit_ns, "seed {seed}: {took_ns} ns");
        assert_eq!(placed_bytes(&world), None);
    }
}

/// RR-SEG-6
#[test]
fn a_sender_that_stands_still_within_a_message_is_waited_for() {
    for seed in 0..SEEDS {
        let mut world = world(seed);
        let length = LENGTHS[seed as usize % 4];
        let message = Message::of(&mut world, length);
        ReceivePlan::of(&mut world, 1).post(&mut world, length);
        message.send(&mut world);
        place(&mut world, length / 2);
        world.net.borrow_mut().pause(0, PEER_TIMEOUT_NS * 3 / 4);
        let completion = next(&mut world);
        check(&mut world, completion, 1, &message, length);
        go_on(&mut world, "after a sender stood still");
    }
}

/// Lets a message arrive by datagram while a part of it has arrived in its receive by TCP, which
/// stands still for a while. `None`: the rare branch is not taken by which that occurs although it
/// is short.
fn message_by_datagram(seed: u64) -> Option<(World, Vec<u8>)> {
    let link = LinkImpairments { delay_ns: 10_000, ns_per_kib: 1000, ..LinkImpairments::default() };
    let mut world = world_of(seed, true, &[link; 2]);
    pass(&mut world, 100 * MILLISECOND);
    for (from, to) in [(0, 1), (1, 0)] {
        world.net.borrow_mut().cut_datagrams_way(from, to);
    }
    pass(&mut world, 1000 * MILLISECOND);
    talk(&mut world, [0, 1], "by TCP");
    world.net.borrow_mut().impairments.capacity = 300;
    set_rare(Some(seed));
    let message = Message::of(&mut world, 1000);
    ReceivePlan::of(&mut world, 1).post(&mut world, message.length);
    message.send(&mut world);
    let mut is_placed = false;
    run(&mut world, "some of it arrives", |world| {
        is_placed = placed_bytes(world).is_some();
        is_placed || partial_bytes(world) > 0
    });
    set_rare(None);
    if !is_placed {
        return None;
    }
    assert!(world.net.borrow_mut().stall_one(false, 2000 * MILLISECOND));
    for (from, to) in [(0, 1), (1, 0)] {
        world.net.borrow_mut().open_datagrams_way(from, to);
    }
    let start_ns = world.now_ns();
    let completion = next(&mut world);
    assert!(world.now_ns() - start_ns < 2000 * MILLISECOND, "TCP stands still");
    assert!(completion.result.is_ok(), "{:?}", completion.result);
    let mut memory = completion.buffer.unwrap().into_vec().unwrap();
    assert!(memory == message.content());
    memory.fill(CANARY);
    Some((world, memory))
}

/// RR-DGRAM-1
#[test]
fn a_message_that_arrives_by_datagram_meanwhile_is_received_once() {
    let mut worlds = 0;
    for (mut world, memory) in (0..3 * SEEDS).filter_map(message_by_datagram) {
        // The memory of its receive is another one's, and its slot another receive's.
        let second = Message { tag: TAG + 1, ..Message::of(&mut world, 100) };
        ReceivePlan::of(&mut world, 2).post(&mut world, 2000);
        pass(&mut world, 3000 * MILLISECOND);
        assert!(memory.iter().all(|&byte| byte == CANARY), "written after the receive has ended");
        second.send(&mut world);
        let completion = next(&mut world);
        check(&mut world, completion, 2, &second, second.length);
        go_on(&mut world, "after the rest of the message");
        worlds += 1;
    }
    assert!(worlds > 4, "{worlds}");
}

#[test]
fn an_endpoint_closes_after_a_message_has_arrived_by_datagram_meanwhile() {
    for (mut world, _) in (0..3 * SEEDS).filter_map(message_by_datagram) {
        let (endpoint, _) = second_endpoint(&mut world);
        world.engine(1).unwrap().close_endpoint(endpoint);
        pass(&mut world, 3000 * MILLISECOND);
        go_on(&mut world, "an endpoint closed");
    }
}

/// Lets host 1 remove endpoint 0 of host 0 while a message of it arrives. Another endpoint of host
/// 0, which it knows, keeps the session.
fn remove_source(seed: u64, is_placed: bool) -> (World, Vec<u8>) {
    let mut world = world(seed);
    let length = LENGTHS[seed as usize % 4];
    let other = world.engine(0).unwrap();
    let second = other.state.open_endpoint().unwrap();
    let address = other.state.address(second);
    let core = world.engine(1).unwrap().state.core_mut();
    core.insert_peer(address.engine(), address.to_locators(), second).unwrap();
    let message = Message::of(&mut world, length);
    let receive = ReceivePlan::of(&mut world, 1);
    message_begins(&mut world, &receive, &message, is_placed);
    let source = receive.source.unwrap();
    let state = &mut world.engine(1).unwrap().state;
    assert!(state.with_core(|core, ended| core.remove_peer(source, ended)));
    let completion = world.pop(1).expect("it ends at once");
    assert!(completion.result.is_err());
    let mut memory = completion.buffer.unwrap().gather().unwrap();
    memory.fill(CANARY);
    (world, memory)
}

/// Lets half of a message arrive, in its receive, or beside it, because that has two pieces.
fn message_begins(world: &mut World, receive: &ReceivePlan, message: &Message, is_placed: bool) {
    let length = message.length;
    if is_placed {
        receive.post(world, length);
        message.send_alone(world);
        place(world, length / 2);
    } else {
        let pieces = [1, length - 1].map(|it| Buffer::Heap(vec![CANARY; it]));
        receive.post_into(world, Buffer::list(pieces));
        message.send_alone(world);
        run(world, "half of it arrives", |world| partial_bytes(world) > length / 2);
    }
}

#[test]
fn a_session_outlives_the_removal_of_a_peer_within_its_message() {
    for seed in 0..SEEDS {
        for is_placed in [false, true] {
            let (mut world, _) = remove_source(seed, is_placed);
            go_on(&mut world, &format!("seed {seed}, placed {is_placed}: a peer was removed"));
        }
    }
}

#[test]
fn an_endpoint_closes_after_a_peer_was_removed_within_its_message() {
    for seed in 0..SEEDS {
        for is_placed in [false, true] {
            let (mut world, _) = remove_source(seed, is_placed);
            let (endpoint, _) = second_endpoint(&mut world);
            world.engine(1).unwrap().close_endpoint(endpoint);
            go_on(&mut world, &format!("seed {seed}, placed {is_placed}: an endpoint closed"));
        }
    }
}

/// RR-MATCH-2
#[test]
fn a_message_that_is_put_back_takes_a_receive_within_the_message_of_that() {
    for seed in 0..SEEDS {
        for is_placed in [false, true] {
            let mut world = world(seed);
            let length = LENGTHS[seed as usize % 4];
            // A handle gets the first message, and is dropped before its result is taken.
            let request = ReceiveRequest {
                endpoint: 0,
                peer: Some(peer(&mut world, 1, 0)),
                context: 0,
                tag: 0,
                ignore: u64::MAX,
                capacity: 8,
                min_free: None,
            };
            let memory = Memory::copy_of(&[CANARY; 8]);
            let state = &mut world.engine(1).unwrap().state;
            let handle = state.start_receive(&request, memory, None).unwrap();
            let first = Message { tag: 1, ..Message::of(&mut world, 8) };
            first.send(&mut world);
            run(&mut world, "the first message arrives", |world| {
                world.look(1).unwrap().state.completions().operation_of(handle).is_none()
            });
            let second = Message::of(&mut world, length);
            let receives = [1, 2].map(|name| ReceivePlan::of(&mut world, name));
            message_begins(&mut world, &receives[0], &second, is_placed);
            receives[1].post(&mut world, length);
            world.engine(1).unwrap().state.give_up_receive(handle, 0);
            let completion = world.pop(1).expect("the message is put back into the next receive");
            let status = completion.result.as_ref().unwrap();
            assert_eq!((completion.user_data, status.length), (1, first.length));
            let bytes = completion.buffer.unwrap().gather().unwrap();
            assert_eq!(bytes[..first.length], first.content());
            let completion = next(&mut world);
            check(&mut world, completion, 2, &second, length);
            go_on(&mut world, &format!("seed {seed}, placed {is_placed}: a message was put back"));
        }
    }
}
