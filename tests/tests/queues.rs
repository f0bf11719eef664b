//! Who gets which queue of a NIC, and when.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::books::{assert_quiet, frames_of};
use crate::common::{attached, pair};
use crate::traffic::{LIMIT, both, ping_pong, rounds_until, until_frames};
use ringrail::{Endpoint, FrameState, Owned, Peer};
use ringrail_tests::lab::{Host, HostHandle, Lab, LabSpec};
use ringrail_tests::require_lab;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

const DRIVERS: [&str; 2] = ["uring", "sockets"];

fn lab() -> Lab {
    Lab::build(&LabSpec::rails(1)).unwrap()
}

/// Runs `ip` in a host.
fn ip(host: HostHandle<'_>, arguments: &str) {
    let mut ip = host.command("ip");
    let done = ip.args(arguments.split(' ')).output(LIMIT).unwrap();
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

fn is_up(endpoint: &Endpoint<Owned>) -> bool {
    matches!(frames_of(endpoint), FrameState::Up { .. })
}

fn refusal(endpoint: &Endpoint<Owned>) -> String {
    match frames_of(endpoint) {
        FrameState::Refused { cause, .. } => cause,
        state => panic!("{state:?}"),
    }
}

#[test]
fn an_engine_that_was_refused_gets_the_queue_when_its_holder_leaves() {
    require_lab!();
    // It waits for most of its time.
    thread::scope(|scope| {
        for driver in DRIVERS {
            scope.spawn(move || gets_the_queue(driver));
        }
    });
}

fn gets_the_queue(driver: &str) {
    let lab = lab();
    let settings = [("lanes", driver), ("control_lane", "auto")];
    let (taken, is_taken) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let (used, refused) = (both(), both());
    let local = lab.addr(Host::A, 0);
    let holder = move || {
        let holder = attached(local, &[("control_lane", "xdp")]).unwrap();
        assert!(is_up(&holder));
        taken.send(()).unwrap();
        left.recv_timeout(LIMIT).unwrap();
    };
    let side = |is_first: bool, leave: Option<mpsc::Sender<()>>| {
        let (used, refused) = (&used, &refused);
        move |endpoint: &Endpoint<Owned>, peer: Peer| {
            if let Some(leave) = leave {
                let cause = refusal(endpoint);
                assert!(cause.contains("queue 0"), "{cause}");
                // Messages go all the same.
                ping_pong(endpoint, peer, is_first, 0..100);
                assert_eq!(refusal(endpoint), cause);
                leave.send(()).unwrap();
            } else {
                ping_pong(endpoint, peer, is_first, 0..100);
            }
            let next = rounds_until(endpoint, peer, is_first, 100, refused, is_up);
            rounds_until(endpoint, peer, is_first, next, used, |endpoint| {
                let figures = crate::books::figures_of(endpoint);
                figures.sent > 100 && figures.received > 100
            });
            assert_quiet(endpoint);
        }
    };
    thread::scope(|scope| {
        let lab = &lab;
        scope.spawn(move || lab.host(Host::A).enter(holder).unwrap());
        is_taken.recv_timeout(LIMIT).unwrap();
        pair(lab, &settings, side(true, Some(leave)), side(false, None));
    });
}

#[test]
fn an_engine_without_privileges_gets_frames_when_it_has_them() {
    require_lab!();
    let all = capabilities(None).unwrap();
    let mut less = all;
    less.effective.remove(CapabilitySet::NET_ADMIN);
    let lab = lab();
    let local = lab.addr(Host::A, 0);
    let work = || {
        set_capabilities(None, less).unwrap();
        let endpoint = attached(local, &[("control_lane", "auto")]).unwrap();
        let cause = refusal(&endpoint);
        assert!(cause.contains("CAP_NET_ADMIN"), "{cause}");
        set_capabilities(None, all).unwrap();
        let deadline = Instant::now() + LIMIT;
        while !is_up(&endpoint) {
            assert!(Instant::now() < deadline, "{:?}", frames_of(&endpoint));
            endpoint.progress().unwrap();
        }
    };
    lab.host(Host::A).enter(work).unwrap();
}

#[test]
fn busy_polling_is_refused_with_a_reason_where_a_queue_has_no_napi() {
    require_lab!();
    for driver in DRIVERS {
        let used = both();
        let work = |first: bool| {
            let used = &used;
            move |endpoint: &Endpoint<Owned>, peer: Peer| {
                until_frames(endpoint, peer, first, used);
                let FrameState::Up { how, .. } = frames_of(endpoint) else { unreachable!() };
                assert!(how.contains("no busy poll") && how.contains("NAPI"), "{how}");
            }
        };
        let settings = [("lanes", driver), ("control_lane", "xdp"), ("busy_poll_us", "20")];
        pair(&lab(), &settings, work(true), work(false));
    }
}

/// Waits until the rail of the calling thread's host has its carrier.
fn wait_up() {
    let deadline = Instant::now() + LIMIT;
    let is_up = |nic: &ringrail::topology::Nic| nic.name == "rail0" && nic.up;
    while !ringrail::topology::nics().unwrap().iter().any(is_up) {
        assert!(Instant::now() < deadline, "rail0 does not come up");
        thread::sleep(Duration::from_millis(5));
    }
}

/// What the kernel's hash sends to queues without a socket comes by the UDP socket.
#[test]
fn what_arrives_on_other_queues_is_not_lost() {
    require_lab!();
    let lab = lab();
    for host in [Host::A, Host::B] {
        ip(lab.host(host), "link set dev rail0 down");
    }
    // The lab's own has one queue.
    ip(lab.host(Host::A), "link del dev rail0");
    let path = lab.host(Host::B).path();
    let add = format!(
        "link add name rail0 numrxqueues 4 numtxqueues 4 type veth peer name rail0 netns {} \
         numrxqueues 4 numtxqueues 4",
        path.display()
    );
    ip(lab.host(Host::A), &add);
    for host in [Host::A, Host::B] {
        ip(lab.host(host), &format!("addr add {}/24 dev rail0", lab.addr(host, 0)));
        ip(lab.host(host), "link set dev rail0 up");
    }
    for host in [Host::A, Host::B] {
        lab.host(host).enter(wait_up).unwrap();
    }
    // Frames leave by the queue that they have, so that the sender with a socket is what is spread.
    // Its hash is the kernel's: some of these peers are on a queue without frames.
    let mut is_elsewhere = 0;
    for _ in 0..8 {
        let work = |first: bool| {
            move |endpoint: &Endpoint<Owned>, peer: Peer| {
                ping_pong(endpoint, peer, first, 0..300);
                assert!(endpoint.counters().segments_by_datagram > 100);
                match frames_of(endpoint) {
                    FrameState::Up { figures, .. } => figures.received,
                    _ => u64::MAX,
                }
            }
        };
        let by_frames = [("control_lane", "xdp")];
        let by_socket = [("control_lane", "udp")];
        let (received, _) =
            crate::common::pair_of(&lab, [&by_frames, &by_socket], work(true), work(false));
        is_elsewhere += u32::from(received < 100);
    }
    assert!(is_elsewhere > 0, "all flows of eight pairs went to one of four queues");
}
