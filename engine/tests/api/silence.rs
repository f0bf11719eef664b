//! Engines without datagrams whose owners make no call, and processes that stand still.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{domain, own_process};
use ringrail::{
    Address, CompletionLevel, Endpoint, Envelope, Error, Owned, Peer, PeerFailure, ReceiveOptions,
    Selector, SendOptions,
};

const TAG: Envelope = Envelope::tagged(1);
/// Longer than a busy machine takes for anything here.
const LONG: Duration = Duration::from_secs(60);
/// Answers come within a second, but for a busy machine.
const SILENT: Duration = Duration::from_secs(8);

const SETTINGS: [[(&str, &str); 3]; 2] = [
    [("control_lane", "tcp"), ("silent_timeout", "8s"), ("lanes", "auto")],
    [("control_lane", "tcp"), ("silent_timeout", "8s"), ("lanes", "sockets")],
];

fn open(settings: &[(&str, &str)]) -> Endpoint<Owned> {
    domain(settings).endpoint().unwrap().attach().unwrap()
}

/// Exchanges addresses with the process at the other end of `link`.
fn meet(endpoint: &Endpoint<Owned>, link: &mut UnixStream) -> Peer {
    let mut bytes = endpoint.address().to_bytes();
    link.write_all(&bytes).unwrap();
    link.read_exact(&mut bytes).unwrap();
    endpoint.insert_peer(&Address::from_bytes(&bytes).unwrap()).unwrap()
}

fn send(endpoint: &Endpoint<Owned>, peer: Peer) {
    let options = SendOptions::at(CompletionLevel::Match).timeout(LONG);
    endpoint.send_blocking(peer, TAG, b"message", options).unwrap();
}

fn receive(endpoint: &Endpoint<Owned>, peer: Peer) {
    let options = ReceiveOptions::new().timeout(LONG);
    endpoint.receive_blocking(Selector::from_peer(peer, TAG), &mut [0; 7], options).unwrap();
}

/// A child that opens an endpoint and does `play` with it, and the link to it.
fn child(
    settings: &'static [(&'static str, &'static str)],
    play: impl FnOnce(&Endpoint<Owned>, Peer, &mut UnixStream),
) -> (libc::pid_t, UnixStream) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let id = own_process::fork(|| {
        let endpoint = open(settings);
        let peer = meet(&endpoint, &mut theirs);
        play(&endpoint, peer, &mut theirs);
    });
    (id, ours)
}

fn end(child: libc::pid_t) {
    // SAFETY: a child of this process that was not waited for: its id is not reused.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}

/// RR-END-7
#[test]
fn an_engine_without_datagrams_answers_while_its_owner_makes_no_call() {
    let name = "silence::an_engine_without_datagrams_answers_while_its_owner_makes_no_call";
    own_process::run(name, || {
        for settings in &SETTINGS {
            let (id, mut link) = child(settings, |endpoint, peer, link| {
                // Before the first contact, too.
                link.read_exact(&mut [0]).unwrap();
                receive(endpoint, peer);
                thread::sleep(3 * SILENT);
                send(endpoint, peer);
                link.read_exact(&mut [0]).unwrap();
            });
            let endpoint = open(settings);
            let peer = meet(&endpoint, &mut link);
            // Its owner makes no call meanwhile.
            endpoint.connect(peer, Some(LONG)).unwrap();
            link.write_all(&[1]).unwrap();
            send(&endpoint, peer);
            receive(&endpoint, peer);
            link.write_all(&[1]).unwrap();
            end(id);
        }
    });
}

/// RR-END-7
#[test]
fn a_process_without_datagrams_that_stands_still_is_lost_in_time() {
    let name = "silence::a_process_without_datagrams_that_stands_still_is_lost_in_time";
    own_process::run(name, || {
        for settings in &SETTINGS {
            let (id, mut link) = child(settings, |endpoint, peer, link| {
                send(endpoint, peer);
                link.read_exact(&mut [0]).unwrap();
            });
            let endpoint = open(settings);
            let peer = meet(&endpoint, &mut link);
            receive(&endpoint, peer);
            // SAFETY: a child of this process that was not waited for.
            assert_eq!(unsafe { libc::kill(id, libc::SIGSTOP) }, 0);
            let before = Instant::now();
            let options = ReceiveOptions::new().timeout(LONG);
            let waiting =
                endpoint.receive_blocking(Selector::from_peer(peer, TAG), &mut [0; 7], options);
            let Error::Peer { failure: PeerFailure::Lost(why), .. } = waiting.unwrap_err() else {
                panic!("it is not lost");
            };
            assert!(why.contains("silent_timeout"), "{why}");
            assert!(before.elapsed() >= SILENT / 2, "too early");
            end(id);
        }
    });
}
