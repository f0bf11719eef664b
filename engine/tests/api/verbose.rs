//! The setting `verbose`: one line for each process shows what carries its traffic.

use crate::common::one_host::{ON, receive, send, until_shared};
use crate::common::own_process::{fork, run_and_read};
use crate::common::{pair, pattern};
use ringrail::{Endpoint, Owned, Peer};

/// Pulled by its receiver.
const LONG_BYTES: usize = 1 << 20;

/// A short message and a long one each way.
fn play(settings: &[(&str, &str)], shares_memory: bool) {
    let side = |is_first: bool| {
        move |endpoint: &Endpoint<Owned>, peer: Peer| {
            if shares_memory {
                until_shared(endpoint, peer, is_first);
            }
            for size in [8, LONG_BYTES] {
                let bytes = pattern(1, size);
                if is_first {
                    send(endpoint, peer, 1, &bytes);
                }
                assert!(receive(endpoint, peer, 1, size) == bytes, "{size} bytes");
                if !is_first {
                    send(endpoint, peer, 1, &bytes);
                }
            }
        }
    };
    pair(settings, side(true), side(false));
}

/// The lines of ringrail among others.
fn lines(errors: &str) -> Vec<&str> {
    errors.lines().filter(|line| line.starts_with("ringrail ")).collect()
}

#[test]
fn the_line_names_nics_and_protocols() {
    let settings = [("verbose", "1"), ("control_lane", "udp")];
    let errors = run_and_read("verbose::the_line_names_nics_and_protocols", || {
        // Two pairs of engines, one after the other: the line is that of the process.
        play(&settings, false);
        play(&settings, false);
        // A child has a copy of what its parent noted, and its functions at exit.
        let child = fork(|| std::process::exit(0));
        let mut status = 0;
        // SAFETY: the status is a local of this function.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    });
    let lines = lines(&errors);
    assert_eq!(lines.len(), 1, "{errors}");
    assert_eq!(lines[0], "ringrail 0.1: 4 ranks by lo (udp, tcp)");
}

#[test]
fn line_reports_missing_datagrams() {
    let errors = run_and_read("verbose::line_reports_missing_datagrams", || {
        play(&[("verbose", "true"), ("control_lane", "tcp")], false);
    });
    assert_eq!(lines(&errors), ["ringrail 0.1: 2 ranks by lo (tcp)"]);
}

#[test]
fn line_distinguishes_shared_memory_from_nics() {
    let errors = run_and_read("verbose::line_distinguishes_shared_memory_from_nics", || {
        play(&[ON, &[("verbose", "true")]].concat(), true);
    });
    assert_eq!(lines(&errors), ["ringrail 0.1: 2 ranks by shared memory"]);
}

#[test]
fn without_the_setting_there_is_no_line() {
    let errors = run_and_read("verbose::without_the_setting_there_is_no_line", || {
        play(&[("control_lane", "udp")], false);
    });
    assert_eq!(lines(&errors), [""; 0]);
}
