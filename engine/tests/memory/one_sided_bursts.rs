//! Many short puts in a row, which come in datagrams of many: what is refused among them, what is
//! between them, and what they cost.

use std::sync::atomic::Ordering;

use crate::common::pair;
use crate::counting::allocations;
use ringrail::settings::Settings;
use ringrail::{
    Access, Domain, Endpoint, Envelope, Error, JobSecret, KeyOptions, Owned, Peer, ReceiveOptions,
    RemoteAddress, RemoteKey, Selector, SendOptions,
};

const WORDS: u64 = 512;
const KEYS: Envelope = Envelope::tagged(1);
const BETWEEN: Envelope = Envelope::tagged(2);
const END: Envelope = Envelope::tagged(3);
const DONE: SendOptions = SendOptions::at(ringrail::CompletionLevel::Delivery);

/// Puts a word; while there is no room the engine sends.
fn put(endpoint: &Endpoint<Owned>, peer: Peer, at: RemoteAddress, word: u64) {
    let options = SendOptions::new().more(true);
    loop {
        match endpoint.inject_put(peer, at, &word.to_ne_bytes(), options) {
            Ok(()) => return,
            Err(error) if error.is_would_block() => drop(endpoint.progress().unwrap()),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Puts that are refused stand between others, and messages too: each is handled once, those that
/// are refused change nothing and are counted, and those behind them are in place.
///
/// RR-RMA-2, RR-RMA-5
#[test]
fn a_burst_is_placed_but_for_what_is_refused() {
    for lane in ["udp", "tcp"] {
        let target = |endpoint: &Endpoint<Owned>, peer| {
            let region = endpoint.allocate_region(8 * WORDS as usize).unwrap();
            let narrow = KeyOptions { length: Some(8), ..KeyOptions::new(Access::REMOTE_WRITE) };
            let keys = [
                region.key(&KeyOptions::new(Access::REMOTE_WRITE)).unwrap(),
                region.key(&KeyOptions::new(Access::REMOTE_READ)).unwrap(),
                region.key(&narrow).unwrap(),
            ];
            let bytes: Vec<u8> = keys.iter().flat_map(|key| key.0.to_le_bytes()).collect();
            endpoint.send_blocking(peer, KEYS, &bytes, SendOptions::new()).unwrap();
            for number in 0..WORDS / 16 {
                let mut word = [0; 8];
                let selector = Selector::from_peer(peer, BETWEEN);
                endpoint.receive_blocking(selector, &mut word, ReceiveOptions::new()).unwrap();
                assert_eq!(u64::from_le_bytes(word), number);
            }
            let selector = Selector::from_peer(peer, END);
            endpoint.receive_blocking(selector, &mut [], ReceiveOptions::new()).unwrap();
            for word in 0..WORDS {
                let value = region.atomic_u64(8 * word as usize).unwrap().load(Ordering::Acquire);
                assert_eq!(value, if word % 7 == 3 { 0 } else { word + 1 }, "{word}");
            }
            let kept = (0..WORDS).filter(|word| word % 7 != 3).count() as u64;
            let counts = region.counters();
            assert_eq!((counts.puts, counts.bytes), (kept, 8 * kept));
        };
        let origin = |endpoint: &Endpoint<Owned>, peer| {
            let mut bytes = [0; 24];
            let selector = Selector::from_peer(peer, KEYS);
            endpoint.receive_blocking(selector, &mut bytes, ReceiveOptions::new()).unwrap();
            let keys: Vec<RemoteKey> = bytes
                .as_chunks()
                .0
                .iter()
                .map(|&bytes| RemoteKey(u64::from_le_bytes(bytes)))
                .collect();
            // An unknown key, one that does not write, one that is not for so much.
            let wrong = [RemoteKey(keys[0].0 ^ 1), keys[1], keys[2]];
            let mut refused = 0;
            for word in 0..WORDS {
                let is_refused = word % 7 == 3;
                let key = if is_refused { wrong[refused % 3] } else { keys[0] };
                refused += usize::from(is_refused);
                put(endpoint, peer, key.at(8 * word), word + 1);
                if word % 16 == 15 {
                    let (number, more) = ((word / 16).to_le_bytes(), true);
                    let options = SendOptions::new().more(more);
                    endpoint.send_blocking(peer, BETWEEN, &number, options).unwrap();
                }
            }
            match endpoint.flush(peer, SendOptions::new()) {
                Err(Error::Unflushed(count)) => assert_eq!(count, refused as u64),
                other => panic!("{other:?} of {refused} that were refused"),
            }
            endpoint.flush(peer, SendOptions::new()).unwrap();
            endpoint.send_blocking(peer, END, &[], DONE).unwrap();
        };
        pair(&[("control_lane", lane)], target, origin);
    }
}

/// Times that puts may allocate in a row: what a put needs it needs each time.
const TRIES: usize = 4;

/// Both engines are on this thread, so that every allocation is counted. The target is away for
/// long, and puts that find no room say so: nothing is kept for them.
#[test]
fn warm_puts_do_not_allocate() {
    let settings = Settings::isolated()
        .set("listen_address", "127.0.0.1")
        // What rings have no room for is kept in memory that grows and is given back.
        .set("shared_memory", "off")
        .set("send_queue_ops", "65536")
        .job_secret(Some(&JobSecret::random()))
        .build()
        .unwrap();
    let domain = Domain::with_settings(settings).unwrap();
    let left = domain.endpoint().unwrap().attach().unwrap();
    let right = domain.endpoint().unwrap().attach().unwrap();
    let to_right = left.insert_peer(&right.address()).unwrap();
    right.insert_peer(&left.address()).unwrap();
    let region = right.allocate_region(8 * WORDS as usize).unwrap();
    let key = region.key(&KeyOptions::new(Access::REMOTE_WRITE)).unwrap();
    let mut put = 0;
    let mut burst = |count: u64| {
        let wanted = put + count;
        let mut blocked = 0;
        while region.counters().puts < wanted {
            let options = SendOptions::new().more(put % 64 != 63);
            let at = key.at(8 * (put % WORDS));
            if put < wanted {
                match left.inject_put(to_right, at, &put.to_ne_bytes(), options) {
                    Ok(()) => {
                        put += 1;
                        continue;
                    }
                    Err(error) => assert!(error.is_would_block(), "{error}"),
                }
                blocked += 1;
            }
            left.progress().unwrap();
            right.progress().unwrap();
        }
        blocked
    };
    assert!(burst(200_000) > 0, "there is room for everything");
    let mut least = u64::MAX;
    for _ in 0..TRIES {
        let before = allocations();
        burst(50_000);
        least = least.min(allocations() - before);
    }
    assert_eq!(least, 0, "allocations in 50000 puts");
}
