//! Datagrams as AF_XDP frames between two hosts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::books::{assert_quiet, figures_of, frames_of};
use crate::common::{attached, pair, pair_of};
use crate::program::detach_program;
use crate::traffic::{LIMIT, both, ping_pong, receive, rounds_until, send, until_frames};
use ringrail::{Endpoint, FrameState, Owned, Peer};
use ringrail_tests::lab::{Host, Lab, LabSpec};
use ringrail_tests::require_lab;

const DRIVERS: [&str; 2] = ["uring", "sockets"];
fn lab() -> Lab {
    Lab::build(&LabSpec::rails(1)).unwrap()
}

#[test]
fn messages_of_all_sizes_go_by_frames() {
    require_lab!();
    for driver in DRIVERS {
        let used = both();
        let work = |first: bool| {
            let used = &used;
            move |endpoint: &Endpoint<Owned>, peer: Peer| {
                assert_eq!(endpoint.driver(), driver);
                until_frames(endpoint, peer, first, used);
                assert_quiet(endpoint);
                let counters = endpoint.counters();
                assert!(counters.segments_by_datagram > 0, "{counters:?}");
            }
        };
        let settings = [("lanes", driver), ("control_lane", "xdp")];
        pair(&lab(), &settings, work(true), work(false));
    }
}

#[test]
fn frames_and_sockets_understand_each_other() {
    require_lab!();
    for driver in DRIVERS {
        let by_frames = [("lanes", driver), ("control_lane", "xdp")];
        let by_socket = [("lanes", driver), ("control_lane", "udp")];
        for (left, right) in [(by_frames, by_socket), (by_socket, by_frames)] {
            let enough = AtomicU64::new(0);
            let work = |first: bool| {
                let enough = &enough;
                move |endpoint: &Endpoint<Owned>, peer: Peer| {
                    ping_pong(endpoint, peer, first, 0..500);
                    let by_datagram = endpoint.counters().segments_by_datagram;
                    assert!(by_datagram > 100, "{:?}", endpoint.counters());
                    if let FrameState::Up { .. } = frames_of(endpoint) {
                        let figures = figures_of(endpoint);
                        // What a socket sends arrives by frames, and the other way round.
                        assert!(figures.sent > 100 && figures.received > 100, "{figures:?}");
                        enough.fetch_add(1, Ordering::SeqCst);
                    }
                }
            };
            pair_of(&lab(), [&left, &right], work(true), work(false));
            assert_eq!(enough.load(Ordering::SeqCst), 1);
        }
    }
}

#[test]
fn waiting_long_for_a_frame_sleeps_and_wakes() {
    require_lab!();
    for driver in DRIVERS {
        let settings = [("lanes", driver), ("control_lane", "xdp"), ("spin", "0us")];
        let used = both();
        let work = |first: bool| {
            let used = &used;
            move |endpoint: &Endpoint<Owned>, peer: Peer| {
                let next = until_frames(endpoint, peer, first, used);
                for number in next..next + 20 {
                    if first {
                        thread::sleep(Duration::from_millis(20));
                        send(endpoint, peer, number);
                    } else {
                        receive(endpoint, peer, number);
                    }
                }
                ping_pong(endpoint, peer, first, next + 20..next + 21);
                assert_quiet(endpoint);
            }
        };
        pair(&lab(), &settings, work(true), work(false));
    }
}

#[test]
fn a_nic_that_goes_down_and_comes_back_costs_no_message() {
    require_lab!();
    for driver in DRIVERS {
        let settings = [("lanes", driver), ("control_lane", "xdp"), ("peer_timeout", "60s")];
        let lab = lab();
        let (used, back) = (both(), both());
        let ip = |state: &str| {
            let mut ip = lab.host(Host::A).command("ip");
            ip.args(["link", "set", "rail0", state]);
            assert!(ip.output(LIMIT).unwrap().status.success());
        };
        // Programs of the lab are not started from inside it.
        let (ask, asked) = mpsc::channel::<&str>();
        let (tell, told) = mpsc::channel();
        let switch = move |state| {
            ask.send(state).unwrap();
            told.recv_timeout(LIMIT).unwrap();
        };
        let side = |is_first: bool, switch: Option<Box<dyn Fn(&'static str) + Send>>| {
            let (used, back) = (&used, &back);
            move |endpoint: &Endpoint<Owned>, peer: Peer| {
                let next = until_frames(endpoint, peer, is_first, used);
                if let Some(switch) = switch {
                    switch("down");
                    let deadline = Instant::now() + LIMIT;
                    while !matches!(frames_of(endpoint), FrameState::Down { .. }) {
                        assert!(Instant::now() < deadline, "{:?}", frames_of(endpoint));
                        endpoint.progress().unwrap();
                    }
                    switch("up");
                }
                let is_up = |endpoint: &Endpoint<Owned>| {
                    matches!(frames_of(endpoint), FrameState::Up { .. })
                };
                rounds_until(endpoint, peer, is_first, next, back, is_up);
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                for state in asked {
                    ip(state);
                    tell.send(()).unwrap();
                }
            });
            pair(&lab, &settings, side(true, Some(Box::new(switch))), side(false, None));
        });
    }
}

#[test]
fn a_program_that_is_taken_off_in_mid_traffic_costs_no_message() {
    require_lab!();
    for driver in DRIVERS {
        let settings = [("lanes", driver), ("control_lane", "xdp")];
        let (used, seen, back) = (both(), both(), both());
        let side = |is_first: bool| {
            let (used, seen, back) = (&used, &seen, &back);
            move |endpoint: &Endpoint<Owned>, peer: Peer| {
                let next = until_frames(endpoint, peer, is_first, used);
                if is_first {
                    detach_program("rail0");
                }
                let next = rounds_until(endpoint, peer, is_first, next, seen, |endpoint| {
                    !is_first || matches!(frames_of(endpoint), FrameState::Down { .. })
                });
                rounds_until(endpoint, peer, is_first, next, back, |endpoint| {
                    matches!(frames_of(endpoint), FrameState::Up { .. })
                });
                assert_quiet(endpoint);
            }
        };
        pair(&lab(), &settings, side(true), side(false));
    }
}

#[test]
fn without_frames_auto_uses_the_socket_and_xdp_says_why() {
    require_lab!();
    let lab = lab();
    // A queue has one owner.
    let local = lab.addr(Host::A, 0);
    lab.host(Host::A)
        .enter(|| {
            let first = attached(local, &[("control_lane", "xdp")]).unwrap();
            assert!(matches!(frames_of(&first), FrameState::Up { .. }));
            let second = attached(local, &[("control_lane", "auto")]).unwrap();
            let FrameState::Refused { cause, .. } = frames_of(&second) else {
                panic!("{:?}", frames_of(&second));
            };
            assert!(cause.contains("queue 0"), "{cause}");
            let error = attached(local, &[("control_lane", "xdp")]).err().unwrap();
            assert!(error.to_string().contains("queue 0"), "{error}");
            drop(first);
            // The kernel lets go of the queue a little later.
            let third = attached(local, &[("control_lane", "xdp")]).unwrap();
            assert!(matches!(frames_of(&third), FrameState::Up { .. }));
        })
        .unwrap();
}
