//! Hints between two engines over loopback: the hint of each side counts, and the order is kept.

use crate::common::{domain, pair, pattern};
use ringrail::{
    CompletionLevel, Endpoint, Envelope, Hint, OperationKind, Owned, Peer, ReceiveOptions,
    Selector, SendOptions,
};

const HINTS: [Hint; 4] = [Hint::None, Hint::Latency, Hint::Bulk, Hint::Priority];
/// Short, pulled for the sake of a hint, and pulled in any case.
const LENGTHS: [usize; 3] = [8, 3000, 100_000];
const COUNT: u64 = 240;
const CONTEXT: u32 = 7;
const OVER: Envelope = Envelope::tagged(u64::MAX);

fn length_of(number: u64) -> usize {
    LENGTHS[(number / 4) as usize % LENGTHS.len()]
}

/// Posts everything at once, the hint and the level of each by its number.
fn send_all(endpoint: &Endpoint<Owned>, peer: Peer) {
    let levels = [CompletionLevel::Inject, CompletionLevel::Delivery, CompletionLevel::Match];
    for number in 0..COUNT {
        let hint = HINTS[number as usize % HINTS.len()];
        let level = levels[number as usize % levels.len()];
        let options = SendOptions::at(level).more(number % 5 == 0).hint(hint);
        let envelope = Envelope::new(CONTEXT, number);
        let bytes = pattern(number, length_of(number));
        if number % 7 == 0 && bytes.len() <= 16_384 {
            let injected = endpoint.inject(
                peer,
                envelope,
                &bytes,
                SendOptions::new().more(options.more).hint(hint),
            );
            match injected {
                Ok(()) => continue,
                Err(error) => assert!(error.is_would_block(), "{error}"),
            }
        }
        endpoint.post_send(peer, envelope, bytes, options.user_data(number)).unwrap();
    }
}

#[test]
fn messages_of_all_hints_match_in_the_order_in_which_they_were_sent() {
    let left = |endpoint: &Endpoint<Owned>, peer| {
        endpoint.connect(peer, None).unwrap();
        let before = endpoint.counters();
        send_all(endpoint, peer);
        endpoint
            .receive_blocking(Selector::from_peer(peer, OVER), &mut [], ReceiveOptions::new())
            .unwrap();
        let after = endpoint.counters();
        let sent = COUNT / HINTS.len() as u64;
        assert_eq!(after.latency_sends - before.latency_sends, sent);
        assert_eq!(after.bulk_sends - before.bulk_sends, sent);
        assert_eq!(after.priority_sends - before.priority_sends, sent);
        let text = endpoint.prometheus();
        assert!(text.contains("# TYPE ringrail_priority_sends_total counter\n"), "{text}");
    };
    let right = |endpoint: &Endpoint<Owned>, peer| {
        // Half of them find their receive posted, the others are unexpected.
        let any =
            Selector { ignore: u64::MAX, ..Selector::from_peer(peer, Envelope::new(CONTEXT, 0)) };
        for number in 0..COUNT / 2 {
            endpoint
                .post_receive(any, vec![0u8; 100_000], ReceiveOptions::new().user_data(number))
                .unwrap();
        }
        let (mut done, mut posted, mut count) = (Vec::new(), COUNT / 2, 0);
        while count < COUNT {
            endpoint.wait(&mut done, 64, None).unwrap();
            for completion in done.drain(..) {
                assert_eq!(completion.kind, OperationKind::Receive);
                let (number, status) = (completion.user_data, completion.result.unwrap());
                assert_eq!(status.envelope.tag(), number, "the receive of another one");
                let buffer = completion.buffer.unwrap();
                let bytes = &buffer.as_slice().unwrap()[..status.length];
                assert!(bytes == pattern(number, length_of(number)), "message {number}");
                count += 1;
            }
            while posted < COUNT && posted < count + COUNT / 2 {
                endpoint
                    .post_receive(any, vec![0u8; 100_000], ReceiveOptions::new().user_data(posted))
                    .unwrap();
                posted += 1;
            }
        }
        endpoint
            .send_blocking(peer, OVER, &[], SendOptions::at(CompletionLevel::Delivery))
            .unwrap();
    };
    pair(&[], left, right);
}

/// A message of 3000 bytes goes with its envelope, unless it can wait.
#[test]
fn the_setting_the_endpoint_the_context_and_the_send_have_their_say_in_turn() {
    const PULLED: u64 = 3;
    let left = |endpoint: &Endpoint<Owned>, peer: Peer| {
        assert_eq!(endpoint.hint(0), Hint::Bulk, "the setting");
        let send = |context, options| {
            let envelope = Envelope::new(context, 0);
            let bytes = pattern(1, 3000);
            endpoint.send(peer, envelope, bytes, options).unwrap().wait().unwrap();
        };
        let usual = SendOptions::at(CompletionLevel::Match);
        send(1, usual);
        send(1, usual.hint(Hint::None));
        endpoint.set_hint(Hint::Priority);
        send(1, usual);
        send(1, usual.hint(Hint::Bulk));
        endpoint.set_context_hint(2, Some(Hint::Bulk));
        send(1, usual);
        send(2, usual);
        endpoint.set_context_hint(2, None);
        assert_eq!(endpoint.hint(2), Hint::Priority);
        let counters = endpoint.statistics().counters;
        let sends = (counters.bulk_sends, counters.priority_sends, counters.latency_sends);
        assert_eq!(sends, (PULLED, 2, 0));
        let chunks: u64 = endpoint.paths().iter().map(|path| path.chunks_sent).sum();
        assert_eq!(chunks, PULLED);
    };
    let right = |endpoint: &Endpoint<Owned>, peer: Peer| {
        for context in [1, 1, 1, 1, 1, 2] {
            let mut room = vec![0; 3000];
            let selector = Selector::from_peer(peer, Envelope::new(context, 0));
            endpoint.receive_blocking(selector, &mut room, ReceiveOptions::new()).unwrap();
            assert!(room == pattern(1, 3000));
        }
    };
    pair(&[("hint", "bulk")], left, right);
}

#[test]
fn what_can_wait_waits_for_the_next_turn_and_what_is_waited_for_does_not() {
    let domain = domain(&[]);
    let left = domain.endpoint().unwrap().attach().unwrap();
    let right = domain.endpoint().unwrap().attach().unwrap();
    let (to_right, from_left) =
        (left.insert_peer(&right.address()).unwrap(), right.insert_peer(&left.address()).unwrap());
    // Both are of this thread: each has its turns when it is asked.
    let exchange = |hint, tag| {
        left.post_send(to_right, Envelope::tagged(tag), vec![1u8], SendOptions::new().hint(hint))
            .unwrap();
        let mut done = Vec::new();
        right
            .post_receive(
                Selector::from_peer(from_left, Envelope::tagged(tag)),
                vec![0u8],
                ReceiveOptions::new(),
            )
            .unwrap();
        while done.is_empty() {
            left.progress().unwrap();
            right.completions(&mut done, 1).unwrap();
        }
        while left.completions(&mut done, 8).unwrap() > 0 {}
    };
    (0..20).for_each(|tag| exchange(Hint::None, tag));
    // Whether the second of two messages of one turn is there with the first.
    let came = |hint, tag: u64| {
        // The first message of a turn goes at once in any case.
        left.progress().unwrap();
        left.inject(to_right, Envelope::tagged(tag), &[1], SendOptions::new().hint(Hint::None))
            .unwrap();
        left.inject(to_right, Envelope::tagged(tag + 1), &[2], SendOptions::new().hint(hint))
            .unwrap();
        let mut done = Vec::new();
        for number in [tag, tag + 1] {
            let selector = Selector::from_peer(from_left, Envelope::tagged(number));
            right
                .post_receive(selector, vec![0u8], ReceiveOptions::new().user_data(number))
                .unwrap();
        }
        while done.is_empty() {
            right.completions(&mut done, 8).unwrap();
        }
        for _ in 0..20 {
            right.completions(&mut done, 8).unwrap();
        }
        let both_came = done.len() == 2;
        while done.len() < 2 {
            left.progress().unwrap();
            right.completions(&mut done, 8).unwrap();
        }
        both_came
    };
    let mut early = [0; 3];
    for round in 0..40 {
        let tag = 100 + 10 * round;
        let hints = [Hint::Bulk, Hint::None, Hint::Latency];
        for ((hint, early), tag) in hints.into_iter().zip(&mut early).zip((tag..).step_by(2)) {
            *early += usize::from(came(hint, tag));
        }
    }
    // If a thread is away for a few milliseconds, as on a busy machine, others do its sending.
    assert!(early[0] < 40 && early[1] < 40, "{early:?}: these wait for the next turn");
    assert_eq!(early[2], 40, "it goes at once");
}
