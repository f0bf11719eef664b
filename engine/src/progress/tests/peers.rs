//! Peers that come, go, fail and lie.

use super::net::{Net, Random};
use super::*;
use crate::types::{Event, PeerFailure};

/// Both ways between two engines, a short and a long message each.
fn talk(net: &Shared, engines: &mut [Engine], pair: [usize; 2], what: &str) {
    for (from, to) in [(pair[0], pair[1]), (pair[1], pair[0])] {
        for (tag, length) in [(1, 10), (2, 3000)] {
            let source = endpoint_at(engines, to, from);
            receive(&mut engines[to], Some(source), tag, length);
            let target = endpoint_at(engines, from, to);
            let bytes = content(tag, length);
            send(&mut engines[from], target, tag, bytes, Level::Matched).unwrap();
        }
    }
    let mut count = 0;
    run(engines, what, |engines| {
        for rank in pair {
            for completion in drain(net, &mut engines[rank]) {
                completion.result.unwrap_or_else(|error| panic!("{what}: {error}"));
                count += 1;
            }
        }
        count == 8
    });
    turns(engines, 100);
    pair.iter().for_each(|&rank| assert_eq!(engines[rank].state.core.operations.len(), 0));
}

/// What `engines[at]` calls `engines[of]`, whatever their ids are.
fn endpoint_at(engines: &mut [Engine], at: usize, of: usize) -> Id {
    let address = engines[of].state.address(0);
    let core = &mut engines[at].state.core;
    core.insert_peer(address.engine(), address.locator(), 0).unwrap()
}

/// Each connection is reported once and each end once, in turn.
fn assert_events_alternate(engine: &mut Engine) {
    let mut up = std::collections::BTreeSet::new();
    while let Some(event) = engine.state.completions.events.pop_front() {
        match event {
            Event::Connected { address } => {
                assert!(up.insert(address.engine()), "connected twice: {address}");
            }
            Event::Disconnected { address, failure } => {
                let was_up = up.remove(&address.engine());
                let may_fail_before = !matches!(failure, PeerFailure::Lost(_) | PeerFailure::Left);
                assert!(was_up || may_fail_before, "ended twice: {address}: {failure}");
            }
            _ => {}
        }
    }
}

/// Receives and sends that cannot all be over soon; how many are outstanding. The peer may fail
/// at any of them.
fn post_much(engine: &mut Engine, target: Id, random: &mut Random) -> usize {
    let mut pending = 0;
    for tag in 0..12 {
        let length = random.below(6000);
        let level = [Level::Delivered, Level::Matched][random.below(2)];
        let sent = send(engine, target, tag, content(tag, length), level);
        pending += usize::from(matches!(sent, Ok(Posted::Pending(_))));
        let tag = random.next() % 16;
        let received = try_receive(engine, Some(target), tag, 6000, tag);
        pending += usize::from(received.is_ok());
    }
    pending
}

#[test]
fn crossing_connects_make_one_session() {
    with_seeds(40, |seed| {
        let net = Net::new(seed);
        net.borrow_mut().connect_failures = [0, 4][seed as usize % 2];
        let mut engines = [engine(&net, 0, config()), engine(&net, 1, config())];
        talk(&net, &mut engines, [0, 1], "crossing connects");
        for engine in &mut engines {
            assert_eq!(engine.state.core.sessions.len(), 1);
            assert_eq!(engine.state.core.next_deadline_ns(), None);
            assert_events_alternate(engine);
        }
    });
}

#[test]
fn attempts_without_an_answer_are_tried_again() {
    with_seeds(40, |seed| {
        let net = Net::new(seed);
        net.borrow_mut().connects_swallowed = 2;
        let retry = Retry { timeout_ns: 5_000_000, retries: 60, delay_ns: 100_000 };
        // No bulk lanes: nobody but the keep-alive ends the attempts for these.
        let config = Config { retry, eager_limit: 4000, eager_credit_bytes: 4000, ..config() };
        let mut engines = [engine(&net, 0, config.clone()), engine(&net, 1, config)];
        talk(&net, &mut engines, [0, 1], "the peer answers at last");
    });
}

#[test]
fn attempts_are_counted_and_can_start_afresh() {
    with_seeds(10, |seed| {
        let net = Net::new(seed);
        let retry = Retry { timeout_ns: 5_000_000, retries: 3, delay_ns: 100_000 };
        let mut engines = vec![engine(&net, 0, Config { retry, ..config() })];
        let target = peer(&mut engines[0], 1);
        send(&mut engines[0], target, 1, vec![1; 10], Level::Matched).unwrap();
        let mut failures = Vec::new();
        run(&mut engines, "the retries are spent", |engines| {
            failures.extend(drain(&net, &mut engines[0]));
            !failures.is_empty()
        });
        let Err(Error::Peer { failure: PeerFailure::Unreachable { attempts: 4, .. }, .. }) =
            failures[0].result
        else {
            panic!("{failures:?}")
        };
        engines.push(engine(&net, 1, config()));
        engines[0].start_connect(crate::types::Peer(target)).unwrap();
        talk(&net, &mut engines, [0, 1], "a later attempt");
    });
}

#[test]
fn a_killed_peer_takes_nothing_with_it() {
    with_seeds(40, |seed| {
        let net = Net::new(seed);
        let mut random = Random::new(seed);
        let mut engines =
            vec![engine(&net, 0, config()), engine(&net, 1, config()), engine(&net, 2, config())];
        talk(&net, &mut engines, [0, 2], "before");
        let target = peer(&mut engines[0], 2);
        let mut pending = post_much(&mut engines[0], target, &mut random);
        let target = peer(&mut engines[2], 0);
        post_much(&mut engines[2], target, &mut random);
        turns(&mut engines, random.below(200));
        let is_silent = random.one_in(2);
        if is_silent {
            net.borrow_mut().vanish(locator(2));
        }
        let killed = engines.pop();
        drop(killed);
        // What a receive waits for may never be sent: that does not end with a lone message.
        let target = peer(&mut engines[0], 2);
        if send(&mut engines[0], target, 99, vec![0; 3000], Level::Matched).is_ok() {
            pending += 1;
        }
        run(&mut engines, "everything ends", |engines| {
            pending -= drain(&net, &mut engines[0]).len();
            if is_silent {
                pass_time(engines, 10_000_000);
                if random.one_in(200) {
                    net.borrow_mut().end_keep_alive(locator(2));
                }
            }
            pending == 0
        });
        talk(&net, &mut engines, [0, 1], "others go on");
        assert_events_alternate(&mut engines[0]);
        // Another process in its place is another engine.
        if !is_silent {
            engines.push(restarted(&net, 2, 77, config()));
            talk(&net, &mut engines, [0, 2], "the successor");
        }
    });
}

#[test]
fn a_broken_control_lane_ends_what_was_under_way_and_nothing_else() {
    with_seeds(40, |seed| {
        let net = Net::new(seed);
        let mut random = Random::new(seed);
        let mut engines = [engine(&net, 0, config()), engine(&net, 1, config())];
        for round in 0..6 {
            let mut pending = [0; 2];
            for rank in 0..2 {
                let target = peer(&mut engines[rank], 1 - rank);
                if engines[rank].state.core.route(target).is_err() {
                    engines[rank].start_connect(crate::types::Peer(target)).unwrap();
                }
                pending[rank] = post_much(&mut engines[rank], target, &mut random);
                turns(&mut engines, random.below(40));
            }
            turns(&mut engines, random.below(100));
            // Until nobody waits: a receive may have no message to come.
            run(&mut engines, &format!("round {round} ends"), |engines| {
                net.borrow_mut().cut(false);
                for rank in 0..2 {
                    pending[rank] -= drain(&net, &mut engines[rank]).len();
                }
                // Long enough for some handshakes to come through: each failed attempt doubles the
                // time to the next.
                turns(engines, random.below(80));
                for rank in 0..2 {
                    let target = peer(&mut engines[rank], 1 - rank);
                    if pending[rank] > 0 && engines[rank].state.core.route(target).is_err() {
                        engines[rank].start_connect(crate::types::Peer(target)).unwrap();
                    }
                }
                pending == [0; 2]
            });
            for (rank, engine) in engines.iter_mut().enumerate() {
                let target = peer(engine, 1 - rank);
                engine.start_connect(crate::types::Peer(target)).unwrap();
            }
        }
        engines.iter_mut().for_each(assert_events_alternate);
    });
}

#[test]
fn strangers_and_noise_harm_nobody() {
    with_seeds(40, |seed| {
        let net = Net::new(seed);
        let mut random = Random::new(seed);
        let mut engines = [engine(&net, 0, config()), engine(&net, 1, config())];
        for round in 0..4 {
            let noise: Vec<u8> = (0..random.below(200)).map(|_| random.next() as u8).collect();
            net.borrow_mut().intrude(locator(round % 2), &noise);
            talk(&net, &mut engines, [0, 1], "beside strangers");
        }
        let target = peer(&mut engines[0], 1);
        let mut pending = post_much(&mut engines[0], target, &mut random);
        // Nothing that a lane carries may do more than end the session.
        for _ in 0..20 {
            turns(&mut engines, random.below(10));
            let is_bulk = random.one_in(2);
            net.borrow_mut().garble(is_bulk);
        }
        // Noise that looks like the head of a long segment says nothing more.
        run(&mut engines, "the session ends", |engines| {
            net.borrow_mut().cut(false);
            pending -= drain(&net, &mut engines[0]).len();
            drain(&net, &mut engines[1]);
            pending == 0
        });
    });
}

/// One side opens the lanes, the other one alone needs them: it has to be told that lanes were
/// lost, whichever side sees that first.
#[test]
fn lanes_come_again_for_the_side_that_cannot_open_them() {
    with_seeds(40, |seed| {
        let net = Net::new(seed);
        let mut random = Random::new(seed);
        let mut engines = [engine(&net, 0, config()), engine(&net, 1, config())];
        net.borrow_mut().connect_failures = [0, 4][seed as usize % 2];
        let opener = (seed / 2 % 2) as usize;
        let target = peer(&mut engines[opener], 1 - opener);
        let mut pending = 0;
        for tag in 0..8 {
            let bytes = content(tag, 5000);
            send(&mut engines[opener], target, tag, bytes, Level::Matched).unwrap();
            turns(&mut engines, random.below(100));
            let source = peer(&mut engines[1 - opener], opener);
            receive(&mut engines[1 - opener], Some(source), tag, 5000);
            pending += 2;
        }
        let mut cuts = 6;
        run(&mut engines, "all arrive", |engines| {
            if cuts > 0 && random.one_in(60) && net.borrow_mut().cut(true) {
                cuts -= 1;
            }
            for engine in engines.iter_mut() {
                for completion in drain(&net, engine) {
                    completion.result.unwrap_or_else(|error| panic!("{error}"));
                    pending -= 1;
                }
            }
            pending == 0
        });
        turns(&mut engines, 100);
        engines.iter().for_each(assert_at_rest);
    });
}

/// One side is back before the other has carried out what the end of the session asked for.
#[test]
fn a_new_connection_outlives_the_end_of_the_old_one() {
    with_seeds(100, |seed| {
        let net = Net::new(seed);
        let mut engines = [engine(&net, 0, config()), engine(&net, 1, config())];
        talk(&net, &mut engines, [0, 1], "before");
        net.borrow_mut().mute();
        let back = seed as usize % 2;
        let target = crate::types::Peer(peer(&mut engines[back], 1 - back));
        engines[back].lose(0, "the network");
        engines[back].start_connect(target).unwrap();
        turns(&mut engines, 1 + seed as usize / 2 % 25);
        engines[1 - back].lose(0, "the network");
        run(&mut engines, "they meet again", |engines| {
            engines.iter().all(|engine| {
                let mut sessions = engine.state.core.sessions.iter();
                sessions.all(|(_, session)| session.is_connected())
            })
        });
        talk(&net, &mut engines, [0, 1], "after");
        engines.iter_mut().for_each(assert_events_alternate);
    });
}

#[test]
fn a_session_ends_once_and_for_its_first_cause() {
    let net = Net::new(1);
    let mut engines = [engine(&net, 0, config()), engine(&net, 1, config())];
    talk(&net, &mut engines, [0, 1], "before");
    engines[0].state.completions.events.clear();
    engines[0].lose(0, "first");
    engines[0].lose(0, "second");
    turns(&mut engines, 10);
    let events: Vec<_> = engines[0].state.completions.events.drain(..).collect();
    let [Event::Disconnected { failure, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(*failure, PeerFailure::Lost("first".into()));
}
