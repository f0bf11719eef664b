//! The close of a region does not depend on what peers do that have begun something with it.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::common::own_process::fork;
use crate::common::{domain, own_process};
use ringrail::{
    Access, Address, Endpoint, Envelope, KeyOptions, RawSpan, Region, RemoteKey, Selector,
    SendOptions, Shared,
};

const TAG: Envelope = Envelope::tagged(1);
const LENGTH: usize = 64 << 20;
/// Longer than a busy machine takes for anything here, but not than a close may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The bound is little more than 100 ms; a busy machine may take longer.
const BOUND: Duration = Duration::from_secs(5);

const SETTINGS: [&[(&str, &str)]; 3] =
    [&[], &[("shared_memory", "auto")], &[("bulk_lane", "datagram")]];

fn endpoint(settings: &[(&str, &str)]) -> Endpoint<Shared> {
    domain(settings).endpoint().unwrap().share().unwrap()
}

/// The peer: begins a long operation, and stops itself in the middle of it. When it goes on the
/// operation ends, well or not, and messages pass.
fn begin_and_stop(mut link: UnixStream, settings: &[(&str, &str)], is_put: bool) {
    let endpoint = endpoint(settings);
    link.write_all(&endpoint.address().to_bytes()).unwrap();
    let (mut address, mut key) = ([0; Address::BYTES], [0; 8]);
    link.read_exact(&mut address).unwrap();
    link.read_exact(&mut key).unwrap();
    let peer = endpoint.insert_peer(&Address::from_bytes(&address).unwrap()).unwrap();
    let key = RemoteKey(u64::from_le_bytes(key));
    endpoint.connect(peer, Some(LIMIT)).unwrap();
    let options = SendOptions::at(ringrail::CompletionLevel::Delivery);
    let mut operation = match is_put {
        true => endpoint.put(peer, key.at(0), vec![1; LENGTH], options),
        false => endpoint.get(peer, key.at(0), vec![0; LENGTH], options),
    }
    .unwrap();
    let until = Instant::now() + Duration::from_millis(3);
    while Instant::now() < until {
        endpoint.progress().unwrap();
    }
    // SAFETY: it stops this process, which its parent lets go on.
    unsafe { libc::raise(libc::SIGSTOP) };
    let ended = operation.wait_timeout(LIMIT);
    assert!(!matches!(ended, Ok(None)), "the operation does not end");
    endpoint.send(peer, TAG, vec![5; 8], options).unwrap().wait().unwrap();
    // Until the parent has it.
    let _ = link.read(&mut [0]);
}

/// Whether the child has stopped, or its exit status; one that has done neither is left alone.
fn look_at(child: libc::pid_t) -> Option<i32> {
    let mut status = 0;
    // SAFETY: the status is a local of this function.
    let found = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
    (found == child).then_some(status)
}

fn close_while_stopped(
    settings: &[(&str, &str)],
    is_put: bool,
    make: impl Fn(&Endpoint<Shared>) -> Region<Shared>,
) {
    let (mut link, theirs) = UnixStream::pair().unwrap();
    let child = fork(|| begin_and_stop(theirs, settings, is_put));
    let endpoint = endpoint(settings);
    let mut address = [0; Address::BYTES];
    link.read_exact(&mut address).unwrap();
    endpoint.insert_peer(&Address::from_bytes(&address).unwrap()).unwrap();
    let region = make(&endpoint);
    let access = if is_put { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
    let key = region.key(&KeyOptions::new(access)).unwrap();
    link.write_all(&endpoint.address().to_bytes()).unwrap();
    link.write_all(&key.0.to_le_bytes()).unwrap();
    let until = Instant::now() + LIMIT;
    let status = loop {
        endpoint.progress().unwrap();
        if let Some(status) = look_at(child) {
            break status;
        }
        assert!(Instant::now() < until, "the child does not stop");
    };
    assert!(libc::WIFSTOPPED(status), "the child has ended: {status:#x}");
    let until = Instant::now() + Duration::from_millis(30);
    while Instant::now() < until {
        endpoint.progress().unwrap();
    }
    let begin = Instant::now();
    drop(region);
    let took = begin.elapsed();
    // SAFETY: a child of this process that was not waited for.
    unsafe { libc::kill(child, libc::SIGCONT) };
    assert!(took < BOUND, "{settings:?}: the close of the region took {took:?}");
    let mut got = endpoint.receive(Selector::from_any(TAG), vec![0; 8]).unwrap();
    assert!(got.wait_timeout(LIMIT).unwrap().is_some(), "no message passes any more");
    link.write_all(&[0]).unwrap();
    let until = Instant::now() + LIMIT;
    while look_at(child).is_none_or(|status| status != 0) {
        endpoint.progress().unwrap();
        assert!(Instant::now() < until, "the child does not end well");
    }
}

/// Where a close waits for its peer this ends the process.
fn set_alarm() {
    // SAFETY: a plain call.
    unsafe { libc::alarm(100) };
}

#[test]
fn a_region_closes_while_the_peer_of_a_long_get_is_stopped() {
    own_process::run(
        "closing_regions::a_region_closes_while_the_peer_of_a_long_get_is_stopped",
        || {
            set_alarm();
            for settings in SETTINGS {
                close_while_stopped(settings, false, |endpoint| {
                    endpoint.allocate_region(LENGTH).unwrap()
                });
            }
        },
    );
}

#[test]
fn a_region_closes_while_the_peer_of_a_long_put_is_stopped() {
    own_process::run(
        "closing_regions::a_region_closes_while_the_peer_of_a_long_put_is_stopped",
        || {
            set_alarm();
            let mut memory = vec![0; LENGTH];
            let span = RawSpan { ptr: memory.as_mut_ptr(), len: LENGTH };
            for settings in SETTINGS {
                // SAFETY: the memory outlives the region, and is not accessed meanwhile.
                close_while_stopped(settings, true, |endpoint| unsafe {
                    endpoint.register_raw(span).unwrap()
                });
            }
        },
    );
}
