//! Messages of an engine to itself: to the same endpoint, and to a sibling.

use std::thread;

use crate::common::{domain, pattern};
use ringrail::{
    Buffer, CompletionLevel, Domain, Endpoint, EndpointOptions, Envelope, Error, Layout,
    OperationKind, Owned, ReceiveOptions, Selector, SendOptions,
};

const SIZES: [usize; 8] = [0, 1, 8, 4096, 16_384, 16_385, 300_000, (4 << 20) + 7];

fn attached(domain: &Domain) -> Endpoint<Owned> {
    domain.endpoint().unwrap().attach().unwrap()
}

#[test]
fn messages_to_oneself_arrive_whether_expected_or_not() {
    for rts_bytes in ["0", "1000"] {
        let endpoint = attached(&domain(&[("rts_bytes", rts_bytes)]));
        let own = endpoint.insert_peer(&endpoint.address()).unwrap();
        assert_eq!(endpoint.peer_address(own), Some(endpoint.address()));
        endpoint.connect(own, None).unwrap();
        for expected in [true, false] {
            for (tag, size) in (0u64..).zip(SIZES) {
                let selector = Selector::from_peer(own, Envelope::tagged(tag));
                let options = SendOptions::default();
                let receive =
                    || endpoint.receive(selector, vec![0u8; size]).map_err(|error| error.error);
                let posted = expected.then(|| receive().unwrap());
                let bytes = pattern(tag, size);
                let send =
                    endpoint.send(own, Envelope::tagged(tag), bytes.clone(), options).unwrap();
                let outcome = posted.unwrap_or_else(|| receive().unwrap()).wait().unwrap();
                let status = outcome.status;
                assert_eq!((status.length, status.peer), (size, Some(own)));
                assert!(outcome.buffer.as_slice().unwrap() == bytes, "size {size}");
                let sent = send.wait().unwrap();
                assert_eq!(sent.status.length, size);
                assert!(sent.buffer.as_slice().unwrap() == bytes, "the send keeps its bytes");
            }
        }
    }
}

#[test]
fn siblings_exchange_layouts_at_every_level() {
    let first = attached(&domain(&[]));
    let second = first.open_endpoint(EndpointOptions::default()).unwrap();
    let to_second = first.insert_peer(&second.address()).unwrap();
    let to_first = second.insert_peer(&first.address()).unwrap();
    // 40 KiB of every other KiB: longer than an eager message.
    let layout = || Layout::Strided { offset: 0, block_bytes: 1024, stride_bytes: 2048, count: 40 };
    for level in [CompletionLevel::Inject, CompletionLevel::Delivery, CompletionLevel::Match] {
        let options = SendOptions::default().level(level);
        let bytes = pattern(3, 80 << 10);
        let shaped = Buffer::shaped(bytes.clone(), layout());
        let send = first.send(to_second, Envelope::tagged(1), shaped, options).unwrap();
        let target = Buffer::shaped(vec![0u8; 80 << 10], layout());
        let selector = Selector::from_peer(to_first, Envelope::tagged(1));
        let outcome = second.receive(selector, target).unwrap().wait().unwrap();
        assert_eq!(outcome.status.length, 40 << 10);
        let Buffer::Shaped(got) = outcome.buffer else { panic!("another buffer came back") };
        let got = got.buffer.into_vec().unwrap();
        for (at, (&got, &sent)) in got.iter().zip(&bytes).enumerate() {
            let wanted = if at / 1024 % 2 == 0 { sent } else { 0 };
            assert_eq!(got, wanted, "at {at}");
        }
        send.wait().unwrap();
    }
}

#[test]
fn a_matched_send_waits_for_its_receive_and_truncation_is_reported() {
    let endpoint = attached(&domain(&[]));
    let own = endpoint.insert_peer(&endpoint.address()).unwrap();
    for size in [100usize, 100_000] {
        let options = SendOptions::default().level(CompletionLevel::Match);
        let bytes = pattern(1, size);
        endpoint.post_send(own, Envelope::tagged(1), bytes.clone(), options.user_data(7)).unwrap();
        let mut done = Vec::new();
        for _ in 0..100 {
            endpoint.completions(&mut done, 10).unwrap();
        }
        assert!(done.is_empty(), "nothing has matched yet");
        let probe = endpoint.peek(Selector::from_any(Envelope::tagged(1))).unwrap().unwrap();
        assert_eq!(probe.length, size);
        endpoint
            .post_receive(
                Selector::from_any(Envelope::tagged(1)),
                vec![0u8; 60],
                ReceiveOptions::new().user_data(8),
            )
            .unwrap();
        while done.len() < 2 {
            endpoint.wait(&mut done, 10, None).unwrap();
        }
        let receive = done.iter().find(|one| one.kind == OperationKind::Receive).unwrap();
        let error = receive.result.as_ref().unwrap_err();
        assert!(
            matches!(error, Error::Truncated { status, capacity: 60 } if status.length == size),
            "{error}"
        );
        assert_eq!(receive.buffer.as_ref().unwrap().as_slice().unwrap(), &bytes[..60]);
    }
}

#[test]
fn floods_to_oneself_stay_within_the_bound_and_keep_their_order() {
    let settings =
        [("envelope_credits", "16"), ("unexpected_messages", "16"), ("send_queue_ops", "32")];
    let endpoint = attached(&domain(&settings));
    let own = endpoint.insert_peer(&endpoint.address()).unwrap();
    let mut posted = 0u64;
    loop {
        let options = SendOptions::default().silent(true);
        let bytes = posted.to_le_bytes().to_vec();
        match endpoint.post_send(own, Envelope::tagged(1), bytes, options.user_data(posted)) {
            Ok(_) => posted += 1,
            Err(rejected) => {
                assert!(rejected.error.is_would_block(), "{}", rejected.error);
                break;
            }
        }
        assert!(posted < 1000, "the bound of what waits is not kept");
    }
    assert!(posted >= 16 + 32);
    for number in 0..posted {
        let mut into = [0; 8];
        let selector = Selector::from_any(Envelope::tagged(1));
        endpoint.receive_blocking(selector, &mut into, ReceiveOptions::new()).unwrap();
        assert_eq!(u64::from_le_bytes(into), number);
    }
}

#[test]
fn removing_oneself_ends_what_is_outstanding_and_coming_back_works() {
    let endpoint = attached(&domain(&[]));
    let own = endpoint.insert_peer(&endpoint.address()).unwrap();
    let options = SendOptions::default();
    let long = endpoint.send(own, Envelope::tagged(1), vec![1u8; 100_000], options).unwrap();
    let receive =
        endpoint.receive(Selector::from_peer(own, Envelope::tagged(2)), vec![0u8; 8]).unwrap();
    endpoint.remove_peer(own).unwrap();
    assert!(long.wait().is_err());
    assert!(receive.wait().is_err());
    let own = endpoint.insert_peer(&endpoint.address()).unwrap();
    endpoint.inject(own, Envelope::tagged(3), b"again", SendOptions::new()).unwrap();
    let mut into = [0; 5];
    endpoint
        .receive_blocking(
            Selector::from_peer(own, Envelope::tagged(3)),
            &mut into,
            ReceiveOptions::new(),
        )
        .unwrap();
    assert_eq!(&into, b"again");
    let selector = Selector::from_any(Envelope::tagged(1));
    assert!(endpoint.peek(selector).unwrap().is_none(), "what was removed does not match");
}

#[test]
fn an_all_to_all_includes_oneself() {
    const RANKS: usize = 3;
    let domain = domain(&[]);
    let endpoints: Vec<_> = (0..RANKS).map(|_| domain.endpoint().unwrap()).collect();
    let addresses: Vec<_> = endpoints.iter().map(|endpoint| endpoint.address()).collect();
    let threads = endpoints.into_iter().enumerate().map(|(rank, endpoint)| {
        let addresses = addresses.clone();
        thread::spawn(move || {
            let endpoint = endpoint.attach().unwrap();
            let insert = |address| endpoint.insert_peer(address).unwrap();
            let peers: Vec<_> = addresses.iter().map(insert).collect();
            for round in 0..20u64 {
                let length = [8, 20_000, 200_000][round as usize % 3];
                let mut operations = Vec::new();
                for &peer in &peers {
                    let bytes = pattern(rank as u64 + round, length);
                    let options = SendOptions::default();
                    let label = Envelope::tagged(round);
                    operations.push(endpoint.send(peer, label, bytes, options).unwrap());
                }
                for (from, &peer) in peers.iter().enumerate() {
                    let mut into = vec![0; length];
                    let selector = Selector::from_peer(peer, Envelope::tagged(round));
                    endpoint.receive_blocking(selector, &mut into, ReceiveOptions::new()).unwrap();
                    assert!(into == pattern(from as u64 + round, length), "round {round}");
                }
                for operation in operations {
                    operation.wait().unwrap();
                }
            }
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        thread.join().unwrap();
    }
}
