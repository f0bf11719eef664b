//! What hints do in virtual time: which message comes first, and that nothing else changes.

use super::*;

const LENGTH: usize = 256 << 10;
/// Messages without a hint that are under way when another one is sent.
const CROWD: usize = 16;

/// Usual settings, as far as hints depend on them; bulk data by lanes or by datagrams.
fn usual(bulk_in_datagrams: bool) -> Config {
    Config {
        eager_limit: 16 << 10,
        inject_limit: 16 << 10,
        rts_bytes: 0,
        chunk_bytes: 127 << 10,
        busy_chunk_bytes: 63 << 10,
        horizon_chunks: 8,
        bulk_lanes: 1,
        envelope_credits: 16_384,
        eager_credit_bytes: 256 << 10,
        unexpected_bytes: 64 << 20,
        staging_bytes: 64 << 10,
        staging_buffers_max: 128,
        bulk_in_datagrams,
        datagram_window_bytes: 200 << 10,
        ..config()
    }
}

/// A message of a crowd.
#[derive(Clone, Copy, Debug)]
struct Message {
    length: usize,
    context: u64,
    hint: Hint,
}

const PLAIN: Message = Message { length: LENGTH, context: 1, hint: Hint::None };

fn bytes_of(number: usize, length: usize) -> Vec<u8> {
    super::super::form::content(number as u64, length)
}

/// Posts a receive and a send of a message; returns whether the send has ended.
fn post(world: &mut World, number: usize, message: Message, peers: [Id; 2]) -> bool {
    let Message { length, context, hint } = message;
    let route = CompletionRoute::Queue { queue: 0, user_data: number as u64, silent: false };
    // Any message of its context: which one it gets shows the order of matching.
    let (tag, ignore, capacity) = (0, u64::MAX, length as u64);
    let request = ReceiveRequest {
        endpoint: 0,
        peer: Some(peers[1]),
        context,
        tag,
        ignore,
        capacity,
        min_free: None,
    };
    let mut buffer = Buffer::Heap(vec![0; length]);
    let shape = buffer.shape_for_recv().unwrap();
    let memory = Memory { buffer: Some(buffer), shape };
    world.engine(1).unwrap().state.post_receive(&request, memory, route).expect("it is posted");
    let (tag, length_bytes, level) = (number as u64, length as u64, CompletionLevel::Inject);
    let peer = peers[0];
    let request = SendRequest {
        endpoint: 0,
        peer,
        context,
        tag,
        length: length_bytes,
        level,
        hint,
        data: None,
        fence: false,
    };
    let mut buffer = Buffer::Heap(bytes_of(number, length));
    let shape = buffer.shape_for_send().unwrap();
    let memory = Memory { buffer: Some(buffer), shape };
    let posted = world.engine(0).unwrap().post_send(&request, memory, route, false);
    matches!(posted.expect("it is posted"), PostResult::Sent(..))
}

/// Sends all at once; in which order they came. Each is whole, and each receive has the message
/// that was sent as the same one of its context.
fn race(world: &mut World, messages: &[Message]) -> Vec<usize> {
    let peers = [peer(world, 0, 1), peer(world, 1, 0)];
    let (mut came, mut sent) = (Vec::new(), 0);
    for (number, message) in messages.iter().enumerate() {
        sent += usize::from(post(world, number, *message, peers));
    }
    let end_ns = world.now_ns() + 60 * SECOND;
    while came.len() < messages.len() || sent < messages.len() {
        let Step::Turn(host) = world.step(end_ns) else { panic!("only {came:?} came") };
        while let Some(completion) = world.pop(host) {
            let status = completion.result.expect("nothing is lost here");
            if host == 0 {
                sent += usize::from(completion.kind == crate::types::OperationKind::Send);
                continue;
            }
            let number = completion.user_data as usize;
            assert_eq!(status.envelope.tag() as usize, number, "matching keeps the order");
            let Some(Buffer::Heap(bytes)) = completion.buffer else { panic!("no buffer") };
            assert!(bytes == bytes_of(number, messages[number].length), "message {number}");
            came.push(number);
        }
    }
    came
}

/// Where a message comes that is sent behind a crowd of those of another hint, for each way of
/// bulk data.
fn places(crowd: Hint, last: Message) -> [usize; 2] {
    [false, true].map(|bulk_in_datagrams| {
        let mut world = Link::new(GBIT, 40 * MICRO).world(&usual(bulk_in_datagrams), 5);
        // The first ones open the lane and measure its rate.
        race(&mut world, &[PLAIN; 8]);
        let mut messages = vec![Message { hint: crowd, ..PLAIN }; CROWD];
        messages.push(last);
        let came = race(&mut world, &messages);
        let ahead = world.look(1).unwrap().state.core().shared().rendezvous().hinted().grants_ahead;
        assert_eq!(ahead > 0, last.hint.passes(crowd), "{ahead} grants passed others");
        came.iter().position(|&number| number == CROWD).unwrap()
    })
}

/// RR-RDV-8, RR-MATCH-1
pub(super) fn a_message_of_priority_passes_those_without() {
    let [by_lane, by_datagrams] = places(Hint::None, Message { hint: Hint::Priority, ..PLAIN });
    // What was granted before it came stays granted: a millisecond's worth and a chunk.
    assert!(by_lane <= 1, "{by_lane} came before it");
    assert!(by_datagrams <= 1, "{by_datagrams} came before it");
}

/// RR-RDV-8, RR-MATCH-1
pub(super) fn messages_without_a_hint_pass_those_that_can_wait() {
    for context in [1, 2] {
        let places = places(Hint::Bulk, Message { context, ..PLAIN });
        assert!(places.iter().all(|&place| place <= 1), "{places:?} came before it");
    }
}

pub(super) fn without_hints_the_order_of_sending_is_that_of_coming() {
    assert_eq!(places(Hint::None, PLAIN), [CROWD; 2]);
    assert_eq!(places(Hint::Bulk, Message { hint: Hint::Bulk, ..PLAIN }), [CROWD; 2]);
}

/// Messages that are pulled in one chunk, always so many on their way.
fn stream(count: usize) -> Traffic {
    Traffic::new(32 << 10, 64, count)
}

/// RR-RDV-8
pub(super) fn in_a_steady_stream_short_messages_come_in_order() {
    for bulk_in_datagrams in [false, true] {
        let mut world = Link::new(GBIT, 40 * MICRO).world(&usual(bulk_in_datagrams), 5);
        let mut stream = stream(1000);
        stream.run(&mut world, 60 * SECOND, Traffic::is_done);
        let late = stream.come_ns.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert_eq!(late, 0, "passed by the next one; datagrams: {bulk_in_datagrams}");
    }
}

/// RR-RDV-8
pub(super) fn a_steady_stream_of_short_messages_lets_a_long_one_through() {
    const CHUNKS: usize = 20;
    for bulk_in_datagrams in [false, true] {
        let config = usual(bulk_in_datagrams);
        let mut world = Link::new(GBIT, 40 * MICRO).world(&config, 5);
        let length = CHUNKS * config.chunk_bytes as usize;
        let mut all = [stream(4000), Traffic::new(length, 1, 1).in_context(2)];
        run_all(&mut world, &mut all, 60 * SECOND, |all| all[1].is_done());
        // Sixteen pass each chunk, and a short range is granted where the window is.
        let [short, _] = all;
        let per_chunk = short.received / CHUNKS;
        assert!((4..64).contains(&per_chunk), "{per_chunk} passed each of its chunks");
    }
}

/// A short message of another context behind a burst that fills the window.
pub(super) fn a_message_that_is_waited_for_passes_datagrams_that_wait() {
    const COUNT: usize = 448;
    let place = |hint| {
        let config = Config { eager_limit: 2048, eager_credit_bytes: 64 << 20, ..usual(false) };
        let mut world = Link::new(GBIT, 400 * MICRO).world(&config, 9);
        // None waits for one that was lost; each fits a datagram of the shortest length.
        let of = |at| Message { length: 1000, context: 10 + at, ..PLAIN };
        let mut messages: Vec<Message> = (0..COUNT as u64).map(of).collect();
        messages.push(Message { length: 64, context: 2, hint });
        race(&mut world, &messages).iter().position(|&number| number == COUNT).unwrap()
    };
    // Those of which a datagram was lost come after it.
    let plain = place(Hint::None);
    assert!(plain >= COUNT * 13 / 16, "{plain}");
    let (latency, priority) = (place(Hint::Latency), place(Hint::Priority));
    assert!(
        latency < COUNT * 3 / 4 && priority < COUNT * 3 / 4,
        "{latency} and {priority} came before them"
    );
}
