//! What sends to a process become that has exited.
//!
//! Goal: a send whose completion promises that the peer's engine has the message ends in an error
//! where no engine was there to take it, however its process ended, whatever the length. Method:
//! the child exits before the parent sends, and the parent has looked at nothing since.

use std::time::{Duration, Instant};

use crate::common::one_host::{Child, LONG, receive, send, tag, until_shared};
use ringrail::{CompletionLevel, Endpoint, ErrorKind, Owned, Peer, SendOptions};

/// How a process ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// It closes its endpoint: its engine sends a goodbye.
    Closed,
    /// It exits without.
    Exited,
    /// It is killed.
    Killed,
}

/// What goes with its envelope, and what is pulled.
const SIZES: [usize; 2] = [8, 1 << 20];

/// A peer whose process has ended, while this side looked at nothing.
fn with_a_departed_peer(
    end: End,
    settings: &[(&str, &str)],
    play: impl FnOnce(&Endpoint<Owned>, Peer),
) {
    let is_shared = settings.is_empty();
    let (child, endpoint, peer) = Child::start_with(settings, |endpoint, peer| {
        if is_shared {
            until_shared(&endpoint, peer, false);
        }
        send(&endpoint, peer, 1, &[]);
        match end {
            End::Closed => drop(endpoint),
            End::Exited => std::mem::forget(endpoint),
            End::Killed => loop {
                std::thread::sleep(Duration::from_secs(1));
            },
        }
    });
    if is_shared {
        until_shared(&endpoint, peer, true);
    }
    receive(&endpoint, peer, 1, 0);
    if matches!(end, End::Killed) {
        child.signal(libc::SIGKILL);
    }
    child.end();
    play(&endpoint, peer);
}

/// All ends, with shared memory and without.
fn each(play: impl Fn(End, &Endpoint<Owned>, Peer)) {
    for end in [End::Closed, End::Exited, End::Killed] {
        for settings in [&[][..], &[("shared_memory", "off")], &[("control_lane", "tcp")]] {
            // Without datagrams there is no shared memory either.
            with_a_departed_peer(end, settings, |endpoint, peer| play(end, endpoint, peer));
        }
    }
}

fn is_of(end: End, kind: ErrorKind) -> bool {
    match end {
        // The kernel determines whether the goodbye or the end of the connection is seen first.
        End::Closed => matches!(kind, ErrorKind::Left | ErrorKind::Lost),
        End::Exited | End::Killed => kind == ErrorKind::Lost,
    }
}

/// RR-END-1, RR-END-2.
#[test]
fn a_send_to_a_departed_process_is_not_delivered() {
    for size in SIZES {
        for level in [CompletionLevel::Delivery, CompletionLevel::Match] {
            each(|end, endpoint, peer| {
                let sent =
                    endpoint.send_blocking(peer, tag(2), &vec![1; size], SendOptions::at(level));
                let error = sent.expect_err("no engine was there to take it");
                assert!(is_of(end, error.kind()), "{end:?}, {size} bytes, {level:?}: {error}");
            });
        }
    }
}

/// A completion at `Inject` means that the memory is free again. A later call reports that such a
/// message was lost.
///
/// RR-END-5.
#[test]
fn a_send_that_promises_nothing_has_its_loss_reported_later() {
    each(|end, endpoint, peer| {
        let deadline = Instant::now() + LONG;
        let options = SendOptions::at(CompletionLevel::Inject);
        let error = loop {
            if let Err(error) = endpoint.send_blocking(peer, tag(2), &[1; 8], options) {
                break error;
            }
            assert!(Instant::now() < deadline, "{end:?}: sends go on succeeding");
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(is_of(end, error.kind()), "{end:?}: {error}");
        // What is pulled is never done without its receiver.
        let long = vec![1; SIZES[1]];
        let error = endpoint.send_blocking(peer, tag(2), &long, options).unwrap_err();
        assert!(is_of(end, error.kind()), "{end:?}: {error}");
    });
}
