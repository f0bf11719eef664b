//! A time-out bounds a blocking call, whatever its operation waits for.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::domain;
use ringrail::{
    CompletionLevel, Endpoint, Envelope, Error, ErrorKind, Owned, ReceiveOptions, Selector,
    SendOptions, TimeOutOutcome,
};

const TAG: Envelope = Envelope::tagged(0x2a);
/// Longer than a busy machine takes for anything here.
const LIMIT: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(2);

/// Runs what may hang.
fn within_limit(play: impl FnOnce() + Send + 'static) {
    let (over, is_over) = mpsc::channel();
    let thread = thread::spawn(move || {
        play();
        over.send(()).unwrap();
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = is_over.recv_timeout(LIMIT) {
        panic!("a call with a time-out of {SHORT:?} has not returned within {LIMIT:?}");
    }
    thread.join().unwrap();
}

fn ends(settings: &[(&str, &str)]) -> [Endpoint<Owned>; 2] {
    let domain = domain(settings);
    [(); 2].map(|()| domain.endpoint().unwrap().attach().unwrap())
}

/// A message of another tag goes from one to the other: their session has not ended.
fn pass_one(sends: &Endpoint<Owned>, to: ringrail::Peer, receives: &Endpoint<Owned>) {
    let tag = Envelope::tagged(1);
    for length in [8, 300_000] {
        let mut sent = sends.send(to, tag, vec![7; length], SendOptions::new()).unwrap();
        let mut got = receives.receive(Selector::from_any(tag), vec![0; length]).unwrap();
        let until = Instant::now() + LIMIT;
        let (mut is_sent, mut is_got) = (false, false);
        while !is_sent || !is_got {
            is_sent = is_sent || sent.test().unwrap().is_some();
            is_got = is_got || got.test().unwrap().is_some();
            assert!(Instant::now() < until, "no message passes any more");
        }
    }
}

/// The message has left, and no receive is posted for it.
fn send_what_is_not_received(settings: &[(&str, &str)]) {
    for length in [8, 3000, 300_000, 8 << 20] {
        let [sends, receives] = ends(settings);
        let to = sends.insert_peer(&receives.address()).unwrap();
        pass_one(&sends, to, &receives);
        let bytes = vec![3; length];
        let matched = SendOptions::at(CompletionLevel::Match).timeout(SHORT);
        let error = sends.send_blocking(to, TAG, &bytes, matched).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        let text = error.to_string();
        for part in ["send_blocking", "2ms", "0x2a", &receives.address().to_string()] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        let Error::TimedOut(late) = error else { unreachable!() };
        assert_eq!(late.outcome, TimeOutOutcome::Unknown);
        pass_one(&sends, to, &receives);
    }
}

#[test]
fn a_send_that_is_not_received_ends_with_its_time_out() {
    for settings in [
        &[][..],
        &[("shared_memory", "auto")],
        &[("bulk_lane", "datagram")],
        &[("lanes", "sockets"), ("control_lane", "tcp")],
    ] {
        let settings = settings.to_vec();
        within_limit(move || send_what_is_not_received(&settings));
    }
}

/// The time-out comes at any time of transfers that are under way, to both sides.
fn time_out_under_way(settings: &[(&str, &str)]) {
    const LENGTH: usize = 4 << 20;
    let domain = domain(settings);
    let shared = || domain.endpoint().unwrap().share().unwrap();
    let (sends, receives) = (shared(), shared());
    let to = sends.insert_peer(&receives.address()).unwrap();
    sends.connect(to, Some(LIMIT)).unwrap();
    for round in 0..40u64 {
        let tag = Envelope::tagged(100 + round);
        let after = Duration::from_micros(50 * round);
        thread::scope(|scope| {
            scope.spawn(|| {
                let bytes = vec![round as u8; LENGTH];
                let after = if round % 2 == 0 { after } else { LIMIT };
                let options = SendOptions::at(CompletionLevel::Match).timeout(after);
                let sent = sends.send_blocking(to, tag, &bytes, options);
                if let Err(error) = sent {
                    let is_expected = matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Left);
                    assert!(is_expected, "{error}");
                }
            });
            let mut into = vec![0; LENGTH];
            // A send that is taken back comes never.
            let after = if round % 2 == 0 { Duration::from_millis(500) } else { after };
            let options = ReceiveOptions::new().timeout(after);
            match receives.receive_blocking(Selector::from_any(tag), &mut into, options) {
                Ok(_) => assert!(into.iter().all(|&byte| byte == round as u8)),
                Err(Error::TimedOut(late)) if late.outcome == TimeOutOutcome::NotDone => {
                    // The sender waits for a receive, unless it has timed out.
                    let mut rest = vec![0; LENGTH];
                    let after = if round % 2 == 0 { Duration::from_millis(50) } else { LIMIT / 2 };
                    let options = ReceiveOptions::new().timeout(after);
                    let _ = receives.receive_blocking(Selector::from_any(tag), &mut rest, options);
                }
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Left));
                }
            }
        });
    }
    // Its session has not ended.
    let tag = Envelope::tagged(1);
    let sent = sends.send(to, tag, vec![1; LENGTH], SendOptions::new()).unwrap();
    let mut got = receives.receive(Selector::from_any(tag), vec![0; LENGTH]).unwrap();
    assert!(got.wait_timeout(LIMIT).unwrap().is_some());
    sent.wait().unwrap();
}

#[test]
fn a_time_out_ends_a_transfer_that_is_under_way() {
    for settings in [&[][..], &[("shared_memory", "auto")], &[("bulk_lane", "datagram")]] {
        let settings = settings.to_vec();
        within_limit(move || time_out_under_way(&settings));
    }
}
