//! Limits of descriptors, and ports that are in use.

use std::time::Duration;

use ringrail::{Endpoint, ErrorKind, Shared};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::common::{domain, own_process};

fn limit_descriptors(soft: u64, hard: u64) {
    setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: Some(hard) }).unwrap();
}

fn open() -> Result<Endpoint<Shared>, ringrail::Error> {
    domain(&[]).endpoint()?.share()
}

#[test]
fn the_soft_limit_of_descriptors_is_raised_to_the_hard_one() {
    own_process::run(
        "descriptors::the_soft_limit_of_descriptors_is_raised_to_the_hard_one",
        || {
            limit_descriptors(64, 2048);
            let opened: Vec<_> = (0..16).map(|_| open().unwrap()).collect();
            assert_eq!(getrlimit(Resource::Nofile).current, Some(2048));
            drop(opened);
        },
    );
}

#[test]
fn the_error_names_the_limit_of_descriptors_and_the_cure() {
    own_process::run("descriptors::the_error_names_the_limit_of_descriptors_and_the_cure", || {
        limit_descriptors(96, 96);
        let mut opened = Vec::new();
        let error = loop {
            match open() {
                Ok(endpoint) => opened.push(endpoint),
                Err(error) => break error,
            }
        };
        assert_eq!((error.kind(), error.errno()), (ErrorKind::System, libc::EMFILE));
        let text = error.to_string();
        assert!(text.contains("(96)") && text.contains("ulimit -n"), "{text}");
    });
}

#[test]
fn a_port_in_use_is_the_error_of_that_name() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().try_into().unwrap();
    let error = domain(&[]).endpoint_at(port).unwrap_err();
    assert_eq!(error.errno(), libc::EADDRINUSE, "{error}");
}

/// `ppoll` fails where the limit is below the number of its descriptors.
#[test]
fn a_thread_waits_without_spinning_below_the_limit_of_descriptors() {
    own_process::run(
        "descriptors::a_thread_waits_without_spinning_below_the_limit_of_descriptors",
        || {
            let endpoint = open().unwrap();
            let queue = endpoint.transmit_queue();
            limit_descriptors(0, 2048);
            let cpu = || {
                let time = clock_gettime(ClockId::ThreadCPUTime);
                Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
            };
            let before = cpu();
            assert!(queue.wait(&mut Vec::new(), 1, Some(Duration::from_secs(2))).unwrap() == 0);
            let used = cpu() - before;
            assert!(used < Duration::from_secs(1), "the thread used {used:?} of 2 s");
        },
    );
}
