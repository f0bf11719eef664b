//! Endpoints over loopback: every kind of message, with the driver that
//! `TEST_OF_RINGRAIL_LANES` names.

use std::time::Duration;

use crate::common::{self, pair, pattern};
use ringrail::{
    Buffer, CompletionLevel, EndpointOptions, Envelope, Error, ErrorKind, Layout, Peer,
    ReceiveOptions, Selector, SendOptions,
};

fn tag(tag: u64) -> Envelope {
    Envelope::tagged(tag)
}

#[test]
fn messages_of_all_sizes_arrive_whole() {
    let sizes = [0, 1, 7, 8, 1000, 4096, 16_384, 16_385, 65_537, 1 << 20, (8 << 20) + 13];
    pair(
        &[],
        move |endpoint, peer| {
            for (number, size) in sizes.into_iter().enumerate() {
                let bytes = pattern(number as u64, size);
                endpoint
                    .send_blocking(
                        peer,
                        tag(number as u64),
                        &bytes,
                        SendOptions::at(CompletionLevel::Match),
                    )
                    .unwrap();
            }
        },
        move |endpoint, peer| {
            for (number, size) in sizes.into_iter().enumerate() {
                let mut into = vec![0; size];
                let selector = Selector::from_peer(peer, tag(number as u64));
                let status =
                    endpoint.receive_blocking(selector, &mut into, ReceiveOptions::new()).unwrap();
                assert_eq!((status.length, status.peer), (size, Some(peer)));
                assert!(into == pattern(number as u64, size), "size {size}");
            }
        },
    );
}

#[test]
fn receives_posted_in_reverse_order_get_their_own_message() {
    const COUNT: u64 = 10_000;
    pair(
        &[],
        |endpoint, peer| {
            endpoint
                .receive_blocking(Selector::from_any(tag(u64::MAX)), &mut [], ReceiveOptions::new())
                .unwrap();
            for number in 0..COUNT {
                let bytes = number.to_le_bytes();
                endpoint.send_blocking(peer, tag(number), &bytes, SendOptions::new()).unwrap();
            }
            endpoint
                .receive_blocking(Selector::from_any(tag(u64::MAX)), &mut [], ReceiveOptions::new())
                .unwrap();
        },
        |endpoint, peer| {
            for number in (0..COUNT).rev() {
                endpoint
                    .post_receive(
                        Selector::from_any(tag(number)),
                        vec![0u8; 8],
                        ReceiveOptions::new().user_data(number),
                    )
                    .unwrap();
            }
            endpoint.send_blocking(peer, tag(u64::MAX), &[], SendOptions::new()).unwrap();
            let mut done = Vec::new();
            while done.len() < COUNT as usize {
                endpoint.wait(&mut done, 1000, None).unwrap();
            }
            for completion in done {
                let buffer = completion.buffer.unwrap();
                assert_eq!(buffer.as_slice().unwrap(), completion.user_data.to_le_bytes());
                assert_eq!(completion.result.unwrap().envelope.tag(), completion.user_data);
            }
            endpoint.send_blocking(peer, tag(u64::MAX), &[], SendOptions::new()).unwrap();
        },
    );
}

/// RR-MATCH-1
#[test]
fn unexpected_messages_keep_their_order_and_wildcards_take_the_oldest() {
    pair(
        &[],
        |endpoint, peer| {
            for number in 0..3000u64 {
                let bytes = number.to_le_bytes();
                endpoint
                    .send_blocking(
                        peer,
                        tag(number % 3),
                        &bytes,
                        SendOptions::at(CompletionLevel::Delivery),
                    )
                    .unwrap();
            }
            endpoint
                .receive_blocking(Selector::from_any(tag(9)), &mut [], ReceiveOptions::new())
                .unwrap();
        },
        |endpoint, peer| {
            let probe = Selector::from_any(tag(2));
            while endpoint.peek(probe).unwrap().is_none() {}
            assert_eq!(endpoint.peek(probe).unwrap().unwrap().length, 8);
            let mut last = [None; 3];
            for number in 0..3000u64 {
                let mut into = [0; 8];
                let any = Selector::from_any(tag(0)).ignoring(u64::MAX);
                let selector = if number < 1500 { any } else { Selector::from_peer(peer, tag(2)) };
                if number >= 2000 {
                    break;
                }
                let status =
                    endpoint.receive_blocking(selector, &mut into, ReceiveOptions::new()).unwrap();
                let got = u64::from_le_bytes(into);
                let which = status.envelope.tag() as usize;
                assert_eq!(got % 3, status.envelope.tag());
                assert!(last[which] < Some(got), "order within a tag");
                last[which] = Some(got);
            }
            endpoint.send_blocking(peer, tag(9), &[], SendOptions::new()).unwrap();
        },
    );
}

/// RR-RDV-7
#[test]
fn truncation_names_both_lengths_and_the_message() {
    for size in [100usize, 1 << 20] {
        pair(
            &[],
            move |endpoint, peer| {
                let bytes = pattern(1, size);
                let sent = Envelope::new(7, 1);
                endpoint
                    .send_blocking(peer, sent, &bytes, SendOptions::at(CompletionLevel::Match))
                    .unwrap();
            },
            move |endpoint, peer| {
                // What MPI_Status shows of a receive with wildcards.
                let selector = Selector::from_any(Envelope::new(7, 0)).ignoring(u64::MAX);
                let outcome =
                    endpoint.receive(selector, vec![0u8; 60]).unwrap().wait().unwrap_err();
                let error = outcome.error;
                assert_eq!((error.kind(), error.errno()), (ErrorKind::Truncated, libc::EMSGSIZE));
                assert!(matches!(error, Error::Truncated { capacity: 60, .. }), "{error}");
                let status = error.status().unwrap();
                assert_eq!((status.peer, status.length), (Some(peer), size));
                assert_eq!(status.envelope, Envelope::new(7, 1));
                assert_eq!(outcome.buffer.as_slice().unwrap(), &pattern(1, size)[..60]);
            },
        );
    }
}

#[test]
fn layouts_scatter_and_gather() {
    let block = 24;
    let count = 5000;
    pair(
        &[],
        move |endpoint, peer| {
            let memory = pattern(3, block * count * 2);
            let layout = Layout::Strided {
                offset: block,
                block_bytes: block,
                stride_bytes: block * 2,
                count,
            };
            let buffer = Buffer::shaped(memory, layout);
            let options = SendOptions::default();
            endpoint.send(peer, tag(1), buffer, options).unwrap().wait().unwrap();
        },
        move |endpoint, peer| {
            let list = Buffer::list((0..2500).map(|_| Buffer::from(vec![0u8; block * 2])));
            let selector = Selector::from_peer(peer, tag(1));
            let mut outcome = endpoint.receive(selector, list).unwrap().wait().unwrap();
            assert_eq!(outcome.status.length, block * count);
            let whole = pattern(3, block * count * 2);
            let expected: Vec<u8> =
                whole.chunks(block).skip(1).step_by(2).flatten().copied().collect();
            assert!(outcome.buffer.gather().unwrap() == expected);
        },
    );
}

#[test]
fn head_to_head_exchanges_of_long_messages_do_not_lock_up() {
    let exchange = |endpoint: &ringrail::Endpoint<ringrail::Owned>, peer: Peer| {
        for round in 0..4u64 {
            let bytes = pattern(round, 3 << 20);
            // Both send first.
            let receive = endpoint.receive(Selector::from_peer(peer, tag(round)), vec![0; 3 << 20]);
            endpoint
                .send_blocking(peer, tag(round), &bytes, SendOptions::at(CompletionLevel::Match))
                .unwrap();
            let outcome = receive.unwrap().wait().unwrap();
            assert!(outcome.buffer.as_slice().unwrap() == bytes);
        }
    };
    pair(&[], exchange, exchange);
}

/// RR-CREDIT-3
#[test]
fn mutual_floods_at_credit_one_go_through() {
    let flood = |endpoint: &ringrail::Endpoint<ringrail::Owned>, peer: Peer| {
        let sends: Vec<_> = (0..500u64)
            .map(|number| {
                let bytes = number.to_le_bytes().to_vec();
                endpoint.send(peer, tag(1), bytes, SendOptions::default()).unwrap()
            })
            .collect();
        for number in 0..500u64 {
            let mut into = [0; 8];
            endpoint
                .receive_blocking(Selector::from_any(tag(1)), &mut into, ReceiveOptions::new())
                .unwrap();
            assert_eq!(u64::from_le_bytes(into), number);
        }
        for send in sends {
            send.wait().unwrap();
        }
    };
    pair(&[("envelope_credits", "1"), ("eager_credit_bytes", "8")], flood, flood);
}

#[test]
fn first_bytes_travel_with_the_request_and_nothing_else_is_copied() {
    let size = 4 << 20;
    pair(
        &[("rts_bytes", "1000")],
        move |endpoint, peer| {
            let before = endpoint.counters().copied_bytes;
            let bytes = pattern(5, size);
            endpoint
                .send_blocking(peer, tag(1), &bytes, SendOptions::at(CompletionLevel::Match))
                .unwrap();
            assert_eq!(endpoint.counters().copied_bytes - before, 1000);
        },
        move |endpoint, peer| {
            let mut into = vec![0; size];
            let receive = Selector::from_peer(peer, tag(1));
            endpoint.receive_blocking(receive, &mut into, ReceiveOptions::new()).unwrap();
            assert!(into == pattern(5, size));
            // Once more if it was unexpected: out of the pool of frames that waited.
            assert!(endpoint.counters().copied_bytes <= 2000);
        },
    );
}

#[test]
fn cancelled_receives_end_as_cancelled_and_matched_ones_do_not() {
    pair(
        &[],
        |endpoint, peer| {
            endpoint
                .receive_blocking(Selector::from_any(tag(7)), &mut [], ReceiveOptions::new())
                .unwrap();
            endpoint
                .send_blocking(peer, tag(1), b"x", SendOptions::at(CompletionLevel::Match))
                .unwrap();
        },
        |endpoint, peer| {
            let never = endpoint.receive(Selector::from_peer(peer, tag(2)), vec![0; 4]);
            let mut never = never.unwrap();
            let once = endpoint.receive(Selector::from_peer(peer, tag(1)), vec![0; 4]).unwrap();
            assert!(never.cancel());
            assert!(!never.cancel());
            assert!(matches!(never.wait().unwrap_err().error, Error::Cancelled));
            endpoint.send_blocking(peer, tag(7), &[], SendOptions::new()).unwrap();
            let outcome = once.wait().unwrap();
            assert_eq!(outcome.status.length, 1);
        },
    );
}

#[test]
fn untagged_messages_and_siblings_keep_to_themselves() {
    pair(
        &[],
        |endpoint, peer| {
            let options = SendOptions::at(CompletionLevel::Match);
            let untagged =
                endpoint.send(peer, Envelope::UNTAGGED, b"plain".to_vec(), options).unwrap();
            endpoint
                .send_blocking(peer, tag(0), b"tagged", SendOptions::at(CompletionLevel::Match))
                .unwrap();
            untagged.wait().unwrap();
            let mut address = [0; ringrail::Address::BYTES];
            endpoint
                .receive_blocking(Selector::from_any(tag(5)), &mut address, ReceiveOptions::new())
                .unwrap();
            let sibling = ringrail::Address::from_bytes(&address).unwrap();
            let sibling = endpoint.insert_peer(&sibling).unwrap();
            endpoint
                .send_blocking(
                    sibling,
                    tag(0),
                    b"to the sibling",
                    SendOptions::at(CompletionLevel::Match),
                )
                .unwrap();
        },
        |endpoint, peer| {
            let mut into = [0; 16];
            let status = endpoint
                .receive_blocking(Selector::from_any(tag(0)), &mut into, ReceiveOptions::new())
                .unwrap();
            assert_eq!(&into[..status.length], b"tagged");
            let outcome =
                endpoint.receive(Selector::untagged(None), vec![0; 16]).unwrap().wait().unwrap();
            assert_eq!(outcome.status.length, 5);
            let sibling = endpoint.open_endpoint(EndpointOptions::default()).unwrap();
            let address = sibling.address().to_bytes();
            endpoint.send_blocking(peer, tag(5), &address, SendOptions::new()).unwrap();
            let status = sibling
                .receive_blocking(Selector::from_any(tag(0)), &mut into, ReceiveOptions::new())
                .unwrap();
            assert_eq!(&into[..status.length], b"to the sibling");
        },
    );
}

/// RR-LANE-2
#[test]
fn more_peers_than_bulk_lanes_take_turns() {
    use std::sync::mpsc;
    // One engine with room for two bulk lanes receives long messages from five others.
    let domain = common::domain(&[("bulk_lanes_max", "2")]);
    let hub = domain.endpoint().unwrap();
    let address = hub.address();
    let (done, finished) = mpsc::channel();
    for number in 0..5u64 {
        let endpoint = domain.endpoint().unwrap();
        let done = done.clone();
        std::thread::spawn(move || {
            let endpoint = endpoint.attach().unwrap();
            let hub = endpoint.insert_peer(&address).unwrap();
            for round in 0..3 {
                let bytes = pattern(number + round, 300_000);
                endpoint
                    .send_blocking(
                        hub,
                        tag(number),
                        &bytes,
                        SendOptions::at(CompletionLevel::Match),
                    )
                    .unwrap();
            }
            done.send(number).unwrap();
        });
    }
    let hub = hub.attach().unwrap();
    let mut into = vec![0; 300_000];
    for round in 0..3 {
        for number in 0..5u64 {
            let status = hub
                .receive_blocking(Selector::from_any(tag(number)), &mut into, ReceiveOptions::new())
                .unwrap();
            assert_eq!(status.length, into.len());
            assert!(into == pattern(number + round, 300_000));
        }
    }
    for _ in 0..5 {
        finished.recv_timeout(Duration::from_secs(30)).unwrap();
    }
}

#[test]
fn a_detached_endpoint_goes_on_in_another_thread() {
    let domain = common::domain(&[]);
    let (moving, fixed) = (domain.endpoint().unwrap(), domain.endpoint().unwrap());
    let (moving_address, fixed_address) = (moving.address(), fixed.address());
    let other = std::thread::spawn(move || {
        let fixed = fixed.attach().unwrap();
        let peer = fixed.insert_peer(&moving_address).unwrap();
        for round in 0..4 {
            let bytes = pattern(round, 200_000);
            fixed
                .send_blocking(peer, tag(round), &bytes, SendOptions::at(CompletionLevel::Match))
                .unwrap();
        }
    });
    let mut detached = moving;
    for round in 0..4 {
        detached = std::thread::spawn(move || {
            let endpoint = detached.attach().unwrap();
            let peer = endpoint.insert_peer(&fixed_address).unwrap();
            let mut into = vec![0; 200_000];
            let selector = Selector::from_peer(peer, tag(round));
            endpoint.receive_blocking(selector, &mut into, ReceiveOptions::new()).unwrap();
            assert!(into == pattern(round, 200_000));
            let mut endpoint = endpoint;
            loop {
                // What the last message left to be sent goes out first.
                endpoint.progress().unwrap();
                endpoint = match endpoint.detach() {
                    Ok(detached) => break detached,
                    Err((endpoint, _)) => endpoint,
                };
            }
        })
        .join()
        .unwrap();
    }
    drop(detached);
    other.join().unwrap();
}

fn inject_up_to_the_limit(settings: &[(&str, &str)]) {
    pair(
        settings,
        |endpoint, peer| {
            endpoint.connect(peer, None).unwrap();
            let limit = endpoint.domain().settings().inject_limit_bytes();
            let error =
                endpoint.inject(peer, tag(0), &vec![0; limit + 1], SendOptions::new()).unwrap_err();
            assert!(error.to_string().contains("inject_limit_bytes"), "{error}");
            for (number, length) in [0, 8, limit, limit, 100, limit].into_iter().enumerate() {
                let bytes = pattern(number as u64, length);
                loop {
                    match endpoint.inject(peer, tag(number as u64), &bytes, SendOptions::new()) {
                        Ok(()) => break,
                        Err(error) => assert!(error.is_would_block(), "{error}"),
                    }
                    endpoint.progress().unwrap();
                }
            }
            endpoint
                .receive_blocking(Selector::from_peer(peer, tag(9)), &mut [], ReceiveOptions::new())
                .unwrap();
        },
        |endpoint, peer| {
            let limit = endpoint.domain().settings().inject_limit_bytes();
            for (number, length) in [0, 8, limit, limit, 100, limit].into_iter().enumerate() {
                let mut into = vec![0; length];
                let selector = Selector::from_peer(peer, tag(number as u64));
                endpoint.receive_blocking(selector, &mut into, ReceiveOptions::new()).unwrap();
                assert!(into == pattern(number as u64, length), "message {number}");
            }
            endpoint.send_blocking(peer, tag(9), &[], SendOptions::new()).unwrap();
        },
    );
}

#[test]
fn injected_messages_keep_to_their_limit_and_arrive_at_peers_of_small_windows() {
    // A window is an eighth of the total: 8 KiB, less than the longest injected message.
    inject_up_to_the_limit(&[("unexpected_bytes", "65536"), ("eager_credit_bytes", "65536")]);
}

#[test]
fn injected_messages_may_be_longer_than_a_datagram() {
    inject_up_to_the_limit(&[("control_lane", "udp")]);
}

#[test]
fn attached_threads_take_the_cores_of_the_setting_in_turn() {
    let allowed = ringrail::topology::cores();
    let listed: Vec<usize> = allowed.iter().rev().take(2).copied().collect();
    let setting = listed.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let domain = common::domain(&[("pin_cores", &setting)]);
    for turn in 0..3 {
        let endpoint = domain.endpoint().unwrap();
        let pinned = std::thread::spawn(move || {
            let _endpoint = endpoint.attach().unwrap();
            ringrail::topology::cores()
        });
        assert_eq!(pinned.join().unwrap(), [listed[turn % listed.len()]]);
    }
}

#[test]
fn a_thread_with_two_endpoints_keeps_its_first_core() {
    let allowed = ringrail::topology::cores();
    let listed: Vec<usize> = allowed.iter().take(2).copied().collect();
    let setting = listed.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let domain = common::domain(&[("pin_cores", &setting)]);
    for turn in 0..2 {
        let domain = domain.clone();
        let thread = std::thread::spawn(move || {
            let _first = domain.endpoint().unwrap().attach().unwrap();
            let cores = ringrail::topology::cores();
            let _second = domain.endpoint().unwrap().attach().unwrap();
            assert_eq!(ringrail::topology::cores(), cores);
            cores
        });
        assert_eq!(thread.join().unwrap(), [listed[turn % listed.len()]]);
    }
}

/// All of them connect before any is answered.
#[test]
fn a_hundred_clients_at_once_are_all_served() {
    const CLIENTS: u64 = 100;
    let domain = common::domain(&[("arena_bytes", "4M")]);
    let server = domain.endpoint().unwrap().attach().unwrap();
    let address = server.address();
    let (is_served, served) = std::sync::mpsc::channel();
    let clients = std::thread::spawn(move || {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let client = domain.endpoint().unwrap().attach().unwrap();
                let peer = client.insert_peer(&address).unwrap();
                let bytes = pattern(number, 3000);
                client.post_send(peer, tag(number), bytes, SendOptions::new()).unwrap();
                client
                    .post_receive(
                        Selector::from_peer(peer, tag(number)),
                        vec![0; 3000],
                        ReceiveOptions::new().user_data(1),
                    )
                    .unwrap();
                client
            })
            .collect();
        let mut done: Vec<Vec<_>> = clients.iter().map(|_| Vec::new()).collect();
        while done.iter().any(|done| done.len() < 2) {
            for (client, done) in clients.iter().zip(&mut done) {
                client.wait(done, 2, Some(Duration::ZERO)).unwrap();
            }
        }
        for (number, completion) in done.into_iter().enumerate().flat_map(|(number, done)| {
            done.into_iter().map(move |completion| (number as u64, completion))
        }) {
            completion.result.unwrap();
            if completion.user_data == 1 {
                let Some(Buffer::Heap(bytes)) = completion.buffer else { panic!("no buffer") };
                assert!(bytes == pattern(number, 3000), "client {number}");
            }
        }
        is_served.send(()).unwrap();
    });
    let any = Selector::from_any(tag(0)).ignoring(u64::MAX);
    for _ in 0..CLIENTS {
        let mut bytes = vec![0; 3000];
        let status = server.receive_blocking(any, &mut bytes, ReceiveOptions::new()).unwrap();
        let back = tag(status.envelope.tag());
        server.send_blocking(status.peer.unwrap(), back, &bytes, SendOptions::new()).unwrap();
    }
    while served.try_recv().is_err() {
        assert!(!clients.is_finished(), "the clients failed");
        server.progress().unwrap();
    }
    clients.join().unwrap();
}

/// A peer that reads nothing does not delay a close: its kernel has everything.
///
/// RR-END-1
#[test]
fn closing_does_not_wait_for_a_peer_that_computes() {
    let domain = common::domain(&[("control_lane", "tcp"), ("close_linger", "60s")]);
    let [near, far] = [(); 2].map(|()| domain.endpoint().unwrap().attach().unwrap());
    let peer = near.insert_peer(&far.address()).unwrap();
    far.insert_peer(&near.address()).unwrap();
    near.post_send(peer, tag(1), vec![1; 8], SendOptions::new()).unwrap();
    let mut done = Vec::new();
    while done.is_empty() {
        near.wait(&mut done, 1, Some(Duration::ZERO)).unwrap();
        far.progress().unwrap();
    }
    let start = std::time::Instant::now();
    drop(near);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    let mut message = [0; 8];
    far.receive_blocking(Selector::from_any(tag(1)), &mut message, ReceiveOptions::new()).unwrap();
    assert_eq!(message, [1; 8]);
}

#[test]
fn misuse_is_named_and_waits_for_nothing() {
    let endpoint = common::domain(&[("sessions_max", "1")]).endpoint().unwrap().attach().unwrap();
    // No completion will ever come.
    assert_eq!(endpoint.wait(&mut Vec::new(), 0, None).unwrap(), 0);

    let own = endpoint.insert_peer(&endpoint.address()).unwrap();
    let options = SendOptions::default();
    endpoint.post_send(own, tag(2), vec![1u8], options).unwrap();
    // The clock does not reach that far.
    assert_eq!(endpoint.wait(&mut Vec::new(), 9, Some(Duration::MAX)).unwrap(), 1);
    let unknown = common::domain(&[]).endpoint().unwrap();
    let full = endpoint.insert_peer(&unknown.address()).unwrap_err();
    assert!(!full.is_would_block() && full.to_string().contains("sessions_max"), "{full}");

    let mut send = endpoint.send(own, tag(1), vec![1u8], SendOptions::default()).unwrap();
    while send.test().unwrap().is_none() {}
    let spent = send.test().unwrap_err();
    assert!(spent.to_string().contains("taken already"), "{spent}");
    assert!(!send.cancel());

    endpoint.remove_peer(own).unwrap();
    let rejected = endpoint.send(own, tag(1), vec![7u8; 3], SendOptions::default()).unwrap_err();
    assert!(matches!(rejected.error, Error::UnknownPeer));
    assert_eq!(rejected.to_string(), rejected.error.to_string());
    assert!(std::error::Error::source(&rejected).is_none(), "the cause is printed once");
    assert_eq!(rejected.buffer.as_slice().unwrap(), [7; 3]);
    assert!(matches!(endpoint.remove_peer(own), Err(Error::UnknownPeer)));
    assert!(matches!(endpoint.connect(own, None), Err(Error::UnknownPeer)));
    assert_eq!(endpoint.peer_address(own), None);
}

/// Engines name their peers by themselves, and the names of one mean nothing to another one: what
/// is posted under a foreign handle goes to no peer at all.
#[test]
fn a_peer_of_another_engine_is_unknown() {
    let [one, two] = [(); 2].map(|()| common::domain(&[]).endpoint().unwrap().attach().unwrap());
    let own = two.insert_peer(&two.address()).unwrap();
    let foreign = one.insert_peer(&one.address()).unwrap();
    assert_ne!(own, foreign);
    assert_eq!(two.peer_address(foreign), None);
    let options = SendOptions::default();
    let sent = two.post_send(foreign, tag(1), vec![1u8], options).unwrap_err().error;
    let injected = two.inject(foreign, tag(1), &[1u8], options).unwrap_err();
    let received = two.receive(Selector::from_peer(foreign, tag(1)), vec![0u8; 1]);
    let received = received.err().unwrap().error;
    let connected = two.connect(foreign, None).unwrap_err();
    let removed = two.remove_peer(foreign).unwrap_err();
    for error in [sent, injected, received, connected, removed] {
        assert!(matches!(error, Error::UnknownPeer), "{error}");
        assert!(error.to_string().contains("another engine"), "{error}");
    }
    assert!(two.peer_address(own).is_some() && one.peer_address(foreign).is_some());
}
