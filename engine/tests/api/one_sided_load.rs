//! What operations on memory and messages cost each other. These print figures and take seconds:
//! run them alone, optimised, with `--ignored --nocapture`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{domain, pair, pattern};
use ringrail::{
    Access, Completion, Endpoint, Envelope, Error, KeyOptions, OperationKind, Owned, Peer,
    ReceiveOptions, RemoteKey, Selector, SendOptions,
};

const KEY: Envelope = Envelope::tagged(1);
const OVER: Envelope = Envelope::tagged(2);
const BULK: Envelope = Envelope::tagged(3);
const PING: Envelope = Envelope::tagged(4);
/// How long each figure is measured.
const SPAN: Duration = Duration::from_millis(800);
const DEPTH: usize = 8;

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// What flows in one run, of sends, puts and gets.
type Flows = [bool; 3];
const NAMES: [&str; 3] = ["send", "put", "get"];

fn post(endpoint: &Endpoint<Owned>, peer: Peer, key: RemoteKey, flow: usize, buffer: Vec<u8>) {
    let options = SendOptions::at(ringrail::CompletionLevel::Delivery).user_data(flow as u64);
    let posted = match flow {
        0 => endpoint.post_send(peer, BULK, buffer, options).map(drop),
        1 => endpoint.post_put(peer, key.at(0), buffer, options).map(drop),
        _ => endpoint.post_get(peer, key.at(0), buffer, options).map(drop),
    };
    posted.map_err(|failed| failed.error).unwrap();
}

/// Bytes per second of each flow.
fn flow(
    endpoint: &Endpoint<Owned>,
    peer: Peer,
    key: RemoteKey,
    flows: Flows,
    size: usize,
) -> [f64; 3] {
    let (mut done, mut under_way, mut ended) = (Vec::<Completion>::new(), 0, [0u64; 3]);
    for flow in (0..3).filter(|&flow| flows[flow]) {
        for _ in 0..DEPTH {
            post(endpoint, peer, key, flow, vec![0; size]);
            under_way += 1;
        }
    }
    let since = Instant::now();
    let mut took = None;
    while under_way > 0 {
        endpoint.completions(&mut done, 64).unwrap();
        let is_over = since.elapsed() > SPAN;
        for done in done.drain(..) {
            done.result.unwrap();
            under_way -= 1;
            if is_over {
                took.get_or_insert_with(|| since.elapsed());
                continue;
            }
            let flow = done.user_data as usize;
            ended[flow] += 1;
            let buffer = done.buffer.unwrap().into_vec().unwrap();
            post(endpoint, peer, key, flow, buffer);
            under_way += 1;
        }
    }
    ended.map(|ended| (ended * size as u64) as f64 / took.unwrap_or(SPAN).as_secs_f64())
}

/// The synthetic test of the thesis: sends, puts and gets, each alone and all together. One that
/// had the link for itself is to keep its share of it among three.
#[test]
#[ignore = "it measures"]
fn sends_puts_and_gets_share_what_there_is() {
    for (lane, size) in
        [("udp", 4096), ("udp", 65_536), ("udp", 1 << 20), ("tcp", 65_536), ("tcp", 1 << 20)]
    {
        let target = move |endpoint: &Endpoint<Owned>, peer| {
            let region = endpoint.register(pattern(1, size)).unwrap();
            let key = region.key(&KeyOptions::new(Access::all())).unwrap();
            endpoint.send_blocking(peer, KEY, &key.0.to_le_bytes(), SendOptions::new()).unwrap();
            let over = Selector::from_peer(peer, OVER);
            let mut over = endpoint.receive(over, Vec::new()).unwrap();
            let receive = |buffer: Vec<u8>| {
                let selector = Selector::from_peer(peer, BULK);
                endpoint.post_receive(selector, buffer, ReceiveOptions::new()).unwrap();
            };
            (0..2 * DEPTH).for_each(|_| receive(vec![0; size]));
            let mut done = Vec::new();
            while over.test().unwrap().is_none() {
                endpoint.completions(&mut done, 64).unwrap();
                for done in done.drain(..).filter(|it| it.kind == OperationKind::Receive) {
                    receive(done.buffer.unwrap().into_vec().unwrap());
                }
            }
        };
        let origin = move |endpoint: &Endpoint<Owned>, peer| {
            let mut key = [0; 8];
            endpoint
                .receive_blocking(Selector::from_peer(peer, KEY), &mut key, ReceiveOptions::new())
                .unwrap();
            let key = RemoteKey(u64::from_le_bytes(key));
            let mut figures: [[Vec<f64>; 3]; 2] = Default::default();
            for _ in 0..3 {
                for flow_alone in 0..3 {
                    let alone = std::array::from_fn(|flow| flow == flow_alone);
                    let rates = flow(endpoint, peer, key, alone, size);
                    figures[0][flow_alone].push(rates[flow_alone]);
                }
                let together = flow(endpoint, peer, key, [true; 3], size);
                (0..3).for_each(|flow| figures[1][flow].push(together[flow]));
            }
            let [alone, together] = figures.map(|of| of.map(median));
            for flow in 0..3 {
                let share = together[flow] / alone[flow];
                eprintln!(
                    "{lane} {size:>8} B {:>5}: alone {:7.1} MB/s, together {:7.1} MB/s, \
                     {share:.2} of it",
                    NAMES[flow],
                    alone[flow] / 1e6,
                    together[flow] / 1e6
                );
            }
            endpoint.send_blocking(peer, OVER, &[], SendOptions::new()).unwrap();
        };
        pair(&[("control_lane", lane)], target, origin);
    }
}

/// What a third engine does to the one that serves.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Flood {
    Nothing,
    RightKeys,
    Guesses,
    Messages,
}

/// Half a round trip between two engines, in us, while a third floods one of them; and how many
/// operations per second came of that.
fn latency_under(lane: &str, flood: Flood) -> (f64, f64) {
    let domain = domain(&[("control_lane", lane)]);
    let (served, pinger) = (domain.endpoint().unwrap(), domain.endpoint().unwrap());
    let flooder = domain.endpoint().unwrap();
    let addresses = [served.address(), pinger.address()];
    let (is_over, flooded) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (keys, key) = mpsc::channel();
    let server = thread::spawn({
        let (is_over, from) = (Arc::clone(&is_over), addresses[1]);
        move || {
            let endpoint = served.attach().unwrap();
            let peer = endpoint.insert_peer(&from).unwrap();
            let region = endpoint.allocate_region(4096).unwrap();
            keys.send(region.key(&KeyOptions::new(Access::all())).unwrap()).unwrap();
            let mut ping = endpoint.receive(Selector::from_peer(peer, PING), vec![0; 8]).unwrap();
            let mut done = Vec::new();
            let any = || {
                let selector = Selector::from_any(BULK);
                endpoint.post_receive(selector, vec![0; 8], ReceiveOptions::new()).unwrap();
            };
            (0..256).for_each(|_| any());
            while !is_over.load(Ordering::Relaxed) {
                endpoint.completions(&mut done, 64).unwrap();
                done.drain(..).filter(|it| it.kind == OperationKind::Receive).for_each(|_| any());
                if ping.test().unwrap().is_some() {
                    endpoint.send_blocking(peer, PING, &[0; 8], SendOptions::new()).unwrap();
                    ping = endpoint.receive(Selector::from_peer(peer, PING), vec![0; 8]).unwrap();
                }
            }
        }
    });
    let key = key.recv().unwrap();
    let flooding = thread::spawn({
        let (is_over, flooded, to) = (Arc::clone(&is_over), Arc::clone(&flooded), addresses[0]);
        move || {
            let endpoint = flooder.attach().unwrap();
            let peer = endpoint.insert_peer(&to).unwrap();
            let options = SendOptions::new().more(true);
            let mut guess = 1u64;
            while !is_over.load(Ordering::Relaxed) {
                guess = guess.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let posted = match flood {
                    Flood::Nothing => return,
                    Flood::RightKeys => endpoint.inject_put(peer, key.at(0), &[1; 8], options),
                    Flood::Guesses => {
                        endpoint.inject_put(peer, RemoteKey(guess).at(0), &[1; 8], options)
                    }
                    Flood::Messages => endpoint.inject(peer, BULK, &[1; 8], options),
                };
                match posted {
                    Ok(()) => drop(flooded.fetch_add(1, Ordering::Relaxed)),
                    Err(Error::WouldBlock(_)) => drop(endpoint.progress().unwrap()),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    });
    let endpoint = pinger.attach().unwrap();
    let peer = endpoint.insert_peer(&addresses[0]).unwrap();
    let trip = || {
        let since = Instant::now();
        endpoint.send_blocking(peer, PING, &[0; 8], SendOptions::new()).unwrap();
        endpoint
            .receive_blocking(Selector::from_peer(peer, PING), &mut [0; 8], ReceiveOptions::new())
            .unwrap();
        since.elapsed().as_secs_f64() * 1e6 / 2.0
    };
    for _ in 0..200 {
        trip();
    }
    let (since, before) = (Instant::now(), flooded.load(Ordering::Relaxed));
    let mut trips = Vec::new();
    while since.elapsed() < SPAN {
        trips.push(trip());
    }
    let rate = (flooded.load(Ordering::Relaxed) - before) as f64 / since.elapsed().as_secs_f64();
    is_over.store(true, Ordering::Relaxed);
    server.join().unwrap();
    flooding.join().unwrap();
    (median(trips), rate)
}

/// A peer that guesses keys costs others no more than one with permitted accesses at that rate.
#[test]
#[ignore = "it measures"]
fn guessing_keys_costs_others_what_any_flood_does() {
    for lane in ["udp", "tcp"] {
        let floods = [Flood::Nothing, Flood::RightKeys, Flood::Guesses, Flood::Messages];
        let mut figures = floods.map(|_| (Vec::new(), Vec::new()));
        // By turns, that a busy machine is busy for all.
        for _ in 0..5 {
            for (number, flood) in floods.into_iter().enumerate() {
                let (latency, rate) = latency_under(lane, flood);
                figures[number].0.push(latency);
                figures[number].1.push(rate);
            }
        }
        for (flood, (latencies, rates)) in floods.into_iter().zip(figures) {
            let (latency, rate) = (median(latencies), median(rates) / 1e6);
            eprintln!("{lane} {flood:?}: {latency:.1} us, by {rate:.2} M operations/s");
        }
    }
}
