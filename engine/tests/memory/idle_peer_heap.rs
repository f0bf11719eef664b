//! What an idle connected peer costs in memory: at most 3 KiB of the heap.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::common;
use crate::counting::live_bytes;
use ringrail::{
    Buffer, Completion, Endpoint, Envelope, Owned, Peer, ReceiveOptions, Selector, SendOptions,
};

/// Most bytes that an idle peer costs.
const LIMIT: i64 = 3 * 1024;
/// Tables that double are about as far from full as on average, with so many peers and with twice
/// as many.
const PEERS: usize = 96;
/// Messages to and from each peer before it rests: it has a past, as idle peers have.
const ROUNDS: usize = 40;
/// Peers that get messages at the same time: buffers of messages are shared by all.
const GROUP: usize = 8;
/// On a busy machine the caretaker may take the hub over, and frees what this thread allocated.
const TRIES: usize = 3;
const TAG: Envelope = Envelope::tagged(1);
/// For what was needed to be given back.
const REST: Duration = Duration::from_millis(2500);

/// Which side connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Initiator,
    Acceptor,
}

/// An engine with many peers, all in this thread. What the calls of the hub allocate is counted.
struct Star {
    hub: Endpoint<Owned>,
    peers: Vec<(Endpoint<Owned>, Peer, Peer)>,
    done: Vec<Completion>,
    bytes: i64,
}

impl Star {
    fn new(count: usize) -> Self {
        let domain = common::domain(&[("control_lane", "udp")]);
        let open = || domain.endpoint().unwrap().attach().unwrap();
        let hub = open();
        let others: Vec<_> = (0..count).map(|_| open()).collect();
        let mut star = Self { hub, peers: Vec::new(), done: Vec::with_capacity(1024), bytes: 0 };
        for other in others {
            let to_hub = other.insert_peer(&star.hub.address()).unwrap();
            let address = other.address();
            let of_hub = star.counted(|hub| hub.insert_peer(&address).unwrap());
            star.peers.push((other, to_hub, of_hub));
        }
        star
    }

    fn counted<T>(&mut self, call: impl FnOnce(&Endpoint<Owned>) -> T) -> T {
        let before = live_bytes();
        let result = call(&self.hub);
        self.bytes += live_bytes() - before;
        result
    }

    fn turn(&mut self, peers: Range<usize>) {
        for (peer, ..) in &self.peers[peers] {
            peer.progress().unwrap();
        }
        self.counted(|hub| {
            hub.progress().unwrap();
            while hub.next_event().is_some() {}
        });
    }

    /// A message from the hub to each of these peers, or the other way.
    fn send(&mut self, from_hub: bool, peers: Range<usize>) {
        for at in peers.clone() {
            let buffer = Buffer::from(vec![0u8; 8]);
            let (peer, to_hub, of_hub) = &self.peers[at];
            if from_hub {
                peer.post_receive(Selector::from_peer(*to_hub, TAG), buffer, ReceiveOptions::new())
                    .unwrap();
            } else {
                let selector = Selector::from_peer(*of_hub, TAG);
                self.counted(|hub| {
                    hub.post_receive(selector, buffer, ReceiveOptions::new()).unwrap()
                });
            }
        }
        for at in peers.clone() {
            loop {
                let (_, to_hub, of_hub) = self.peers[at];
                let sent = match from_hub {
                    true => {
                        self.counted(|hub| hub.inject(of_hub, TAG, &[1; 8], SendOptions::new()))
                    }
                    false => self.peers[at].0.inject(to_hub, TAG, &[1; 8], SendOptions::new()),
                };
                match sent {
                    Ok(()) => break,
                    Err(error) if error.is_would_block() => self.turn(peers.clone()),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut missing = peers.len();
        while missing > 0 {
            assert!(Instant::now() < deadline, "{missing} messages have not come");
            self.turn(peers.clone());
            let mut done = std::mem::take(&mut self.done);
            if from_hub {
                for (peer, ..) in &self.peers[peers.clone()] {
                    peer.completions(&mut done, 8).unwrap();
                }
            } else {
                self.counted(|hub| hub.completions(&mut done, 64).unwrap());
            }
            for completion in done.drain(..) {
                completion.result.unwrap();
                missing -= 1;
            }
            self.done = done;
        }
    }

    /// The hub is never silent for so long that the caretaker takes over, which is another thread.
    fn rest(&mut self) {
        let start = Instant::now();
        while start.elapsed() < REST {
            for first in (0..self.peers.len()).step_by(GROUP) {
                self.turn(first..first + GROUP);
            }
        }
    }
}

/// Bytes that the hub has, once its peers are idle.
fn bytes_of(role: Role, count: usize) -> i64 {
    let mut star = Star::new(count);
    for first in (0..count).step_by(GROUP) {
        for _ in 0..ROUNDS {
            star.send(role == Role::Initiator, first..first + GROUP);
            star.send(role == Role::Acceptor, first..first + GROUP);
        }
    }
    star.rest();
    star.bytes
}

#[test]
fn an_idle_peer_costs_little_memory() {
    for role in [Role::Initiator, Role::Acceptor] {
        let mut least = i64::MAX;
        for _ in 0..TRIES {
            let each = (bytes_of(role, 2 * PEERS) - bytes_of(role, PEERS)) / PEERS as i64;
            println!("an idle peer costs the {role:?} {each} bytes");
            least = least.min(each);
            if least <= LIMIT {
                break;
            }
        }
        assert!(least <= LIMIT, "{least} bytes");
    }
}
