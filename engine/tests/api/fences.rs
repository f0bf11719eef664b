//! Sends behind a fence.

use crate::common::{self, domain};
use ringrail::{
    Attached, CompletionLevel, Endpoint, EndpointOptions, Envelope, Error, ReceiveOptions,
    Selector, SendOptions,
};

const LONG: usize = 300_000;
const DATAGRAMS_OR_NOT: [&[(&str, &str)]; 2] = [&[], &[("control_lane", "tcp")]];

/// A long message without a receive holds back what is behind a fence, to its target and no
/// other. `right` may be the engine of `left`.
fn long_messages_hold_back<M: Attached>(left: &Endpoint<M>, right: &Endpoint<M>) {
    let beside = right.open_endpoint(EndpointOptions::default()).unwrap();
    let (to, to_beside) =
        (left.insert_peer(&right.address()).unwrap(), left.insert_peer(&beside.address()).unwrap());
    let tag = Envelope::tagged;
    let turn = || {
        left.progress().unwrap();
        right.progress().unwrap();
    };
    let mut long = left.send(to, tag(1), vec![7; LONG], SendOptions::new()).unwrap();
    let fenced = SendOptions::at(CompletionLevel::Delivery).fence(true);
    let mut behind = left.send(to, tag(2), vec![8; 8], fenced).unwrap();
    let mut later = left.send(to, tag(3), vec![9; 8], SendOptions::new()).unwrap();
    let other = left.send(to_beside, tag(4), vec![6; 8], fenced).unwrap();
    // Without a fence in its way it comes.
    let mut got = beside.receive(Selector::from_any(Envelope::tagged(4)), vec![0; 8]).unwrap();
    while got.test().unwrap().is_none() {
        turn();
    }
    drop(other);
    for _ in 0..1000 {
        turn();
    }
    assert!(right.peek(Selector::from_any(Envelope::tagged(2))).unwrap().is_none());
    assert!(right.peek(Selector::from_any(Envelope::tagged(3))).unwrap().is_none());
    assert!(behind.test().unwrap().is_none() && later.test().unwrap().is_none());
    let mut got = right.receive(Selector::from_any(Envelope::tagged(1)), vec![0; LONG]).unwrap();
    let (mut is_long_got, mut is_long_sent) = (false, false);
    let mut ends = [false; 2];
    while !(is_long_got && is_long_sent && ends == [true; 2]) {
        turn();
        is_long_got = is_long_got || got.test().unwrap().is_some();
        ends[0] = ends[0] || behind.test().unwrap().is_some();
        ends[1] = ends[1] || later.test().unwrap().is_some();
        // Each test makes progress: asked last, it knows of what the others saw.
        is_long_sent = is_long_sent || long.test().unwrap().is_some();
        assert!(is_long_sent || ends == [false; 2], "a fence was passed");
    }
    for number in [2, 3] {
        let mut got =
            right.receive(Selector::from_any(Envelope::tagged(number)), vec![0; 8]).unwrap();
        while got.test().unwrap().is_none() {
            turn();
        }
    }
}

#[test]
fn what_is_behind_a_fence_waits_for_what_is_before_it() {
    for settings in DATAGRAMS_OR_NOT {
        let domain = domain(settings);
        let owned = || domain.endpoint().unwrap().attach().unwrap();
        let (left, right) = (owned(), owned());
        long_messages_hold_back(&left, &right);
        // Its own engine is a peer like any other.
        let own = owned();
        long_messages_hold_back(&own, &own);
    }
    let domain = domain(&[]);
    let shared = || domain.endpoint().unwrap().share().unwrap();
    long_messages_hold_back(&shared(), &shared());
}

/// What was injected is acknowledged before the fence opens; nothing else makes it open.
#[test]
fn a_fence_opens_by_itself_behind_what_was_injected() {
    for settings in DATAGRAMS_OR_NOT {
        common::pair(
            settings,
            |left, to| {
                left.connect(to, None).unwrap();
                for round in 0..50u64 {
                    let tag = Envelope::tagged(round);
                    left.send_blocking(to, tag, &[1; 8], SendOptions::new()).unwrap();
                    let fenced = SendOptions::new().fence(true);
                    left.send_blocking(to, tag, &[2; 8], fenced).unwrap();
                }
            },
            |right, from| {
                for round in 0..50u64 {
                    for value in [1, 2] {
                        let mut into = [0; 8];
                        let selector = Selector::from_peer(from, Envelope::tagged(round));
                        let options = ReceiveOptions::new();
                        right.receive_blocking(selector, &mut into, options).unwrap();
                        assert_eq!(into, [value; 8]);
                    }
                }
            },
        );
    }
}

#[test]
fn a_cancelled_fence_holds_nothing_and_an_earlier_send_that_ends_opens_one() {
    for settings in DATAGRAMS_OR_NOT {
        let domain = domain(settings);
        let owned = || domain.endpoint().unwrap().attach().unwrap();
        let (left, right) = (owned(), owned());
        let to = left.insert_peer(&right.address()).unwrap();
        let send = |tag, length, options| {
            left.send(to, Envelope::tagged(tag), vec![1; length], options).unwrap()
        };
        let _long = send(1, LONG, SendOptions::new());
        let mut fenced = send(2, 8, SendOptions::new().fence(true));
        let _later = send(3, 8, SendOptions::new());
        let mut got = right.receive(Selector::from_any(Envelope::tagged(3)), vec![0; 8]).unwrap();
        left.progress().unwrap();
        assert!(fenced.cancel(), "it has not gone out");
        assert!(matches!(fenced.wait().unwrap_err().error, Error::Cancelled));
        while got.test().unwrap().is_none() {
            left.progress().unwrap();
        }
        // The peer leaves: all that waits for it ends.
        let fenced = send(4, 8, SendOptions::new().fence(true));
        left.remove_peer(to).unwrap();
        assert!(matches!(fenced.wait().unwrap_err().error, Error::Peer { .. }));
        assert!(matches!(
            left.inject(to, Envelope::tagged(5), &[0], SendOptions::new().fence(true)),
            Err(Error::UnknownPeer)
        ));
    }
}
