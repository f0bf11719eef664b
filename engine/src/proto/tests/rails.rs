//! Rails announced by the peer, and the data permitted on the paths between them.

use zerocopy::IntoBytes as _;

use super::*;
use crate::proto::session::rails::{RailInfo, path_number};
use crate::wire::rail::{ROLE_BACKUP, RailFrame};

fn info(last: u8) -> RailInfo {
    RailInfo { address: [10, 0, last, 1].into(), speed_mbps: 1000, role: 0 }
}

fn rail(index: u8, count: u8) -> RailFrame {
    RailFrame::new(index, count, 0, 1000, [10, 0, index, 2].into())
}

/// Creates an engine and its peer with two rails each, paired one by one.
fn two_paths(config: Config) -> Bench {
    let mut bench = Bench::new(config);
    bench.core.shared_mut().rails_mut().set(vec![info(0), info(1)]);
    bench.core.with(bench.slot, |it, cx| it.announce_rails(cx));
    assert_eq!(bench.transmit(), [frame::KIND_RAIL; 2]);
    assert_eq!(
        bench.core.shared_mut().poll_action(),
        Some(Action::Established { session: bench.slot })
    );
    bench.deliver(rail(0, 2).as_bytes()).unwrap();
    assert_eq!(bench.core.shared_mut().poll_action(), None, "one is missing");
    bench.deliver(rail(1, 2).as_bytes()).unwrap();
    assert_eq!(
        bench.core.shared_mut().poll_action(),
        Some(Action::PairRails { session: bench.slot })
    );
    bench.core.with(bench.slot, |it, cx| it.rails_mut().describe_first_path(&cx));
    bench
}

fn join_path(number: u32, path: u16) -> Hello {
    let hello = Hello { path: path.into(), ..lane_hello(PEER, SESSION, number) };
    *Initiator::join(&SessionKeys::for_tests(), hello, [2; 16], locator()).hello()
}

impl Bench {
    fn lane_of(&mut self, number: u32, path: u16) -> Id {
        let lane = self.core.join_as_lane(&join_path(number, path), 0).unwrap();
        self.core.make_lane_ready(lane, 0);
        lane
    }

    fn abandoned(&mut self) -> Vec<Id> {
        let actions = std::iter::from_fn(|| self.core.shared_mut().poll_action());
        let lanes = actions.filter_map(|action| match action {
            Action::AbandonLane { lane, .. } => Some(lane),
            _ => None,
        });
        lanes.collect()
    }
}

/// RR-RAIL-1
#[test]
fn invalid_rails_close_the_session() {
    for second in [rail(0, 2), rail(1, 3), rail(2, 2)] {
        let mut bench = Bench::new(Config::for_tests());
        bench.deliver(rail(0, 2).as_bytes()).unwrap();
        let refused = bench.deliver(second.as_bytes());
        assert!(matches!(refused, Err(FrameError::BadRail { .. })), "{second:?}");
    }
}

/// RR-RAIL-1
#[test]
fn single_rail_is_announced_to_a_multi_rail_peer() {
    let mut bench = Bench::new(Config::for_tests());
    bench.core.shared_mut().rails_mut().set(vec![info(0)]);
    bench.core.with(bench.slot, |it, cx| it.announce_rails(cx));
    assert!(bench.transmit().is_empty());
    bench.deliver(rail(1, 2).as_bytes()).unwrap();
    assert_eq!(bench.transmit(), [frame::KIND_RAIL]);
    bench.deliver(rail(0, 2).as_bytes()).unwrap();
    assert!(bench.transmit().is_empty(), "once");
}

/// RR-RAIL-2
#[test]
fn paths_connect_announced_rails_only() {
    let mut bench = two_paths(Config::for_tests());
    let slot = bench.slot;
    assert_eq!(
        bench.core.enter(slot).and_then(|(it, cx)| it.rails_mut().add_path(&cx, path_number(0, 0))),
        None,
        "it exists"
    );
    assert_eq!(
        bench.core.enter(slot).and_then(|(it, cx)| it.rails_mut().add_path(&cx, path_number(2, 0))),
        None
    );
    assert_eq!(
        bench.core.enter(slot).and_then(|(it, cx)| it.rails_mut().add_path(&cx, path_number(0, 2))),
        None
    );
    assert_eq!(
        bench.core.enter(slot).and_then(|(it, cx)| it.rails_mut().add_path(&cx, path_number(1, 1))),
        Some(1)
    );
    assert_eq!(
        bench.core.enter(slot).and_then(|(it, cx)| it.rails_mut().add_path(&cx, path_number(1, 1))),
        None,
        "once"
    );
    let joined = bench.core.join_as_lane(&join_path(3, path_number(7, 7)), 0);
    assert_eq!(joined.unwrap_err(), HelloStatus::Malformed);
    // Without datagrams a lane is the first frame of its path.
    bench.lane_of(4, path_number(1, 0));
    let known = bench.core.sessions.at(slot as usize).unwrap();
    let remotes: Vec<_> = known.rails().paths.iter().map(|path| path.remote).collect();
    assert_eq!(remotes, [None, Some([10, 0, 1, 2].into()), Some([10, 0, 1, 2].into())]);
}

/// RR-RAIL-3
#[test]
fn no_grants_on_an_unvalidated_path() {
    let mut bench = two_paths(Config { bulk_lanes_max: 4, ..Config::for_tests() });
    let at = bench
        .core
        .enter(bench.slot)
        .and_then(|(it, cx)| it.rails_mut().add_path(&cx, path_number(1, 1)))
        .unwrap();
    let lanes = [bench.lane_of(3, 0), bench.lane_of(4, path_number(1, 1))];
    bench.receive(4 * 4096);
    bench.deliver(&rts(0, 4 * 4096)).unwrap();
    assert_eq!(bench.transmit(), [frame::KIND_GRANT; 2]);
    assert!(bench.core.shared_mut().next_receive(lanes[0]).is_some());
    assert!(bench.core.shared_mut().next_receive(lanes[1]).is_none());
    bench.core.with(bench.slot, |it, mut cx| it.path_ready(&mut cx, at, 0));
    assert_eq!(bench.transmit(), [frame::KIND_GRANT; 2]);
    assert!(bench.core.shared_mut().next_receive(lanes[1]).is_some());
}

/// RR-RAIL-5
#[test]
fn grants_of_a_failed_path_move_to_another() {
    let mut bench = two_paths(Config { bulk_lanes_max: 4, ..Config::for_tests() });
    let slot = bench.slot;
    let at = bench
        .core
        .enter(slot)
        .and_then(|(it, cx)| it.rails_mut().add_path(&cx, path_number(1, 1)))
        .unwrap();
    bench.core.with(slot, |it, mut cx| it.path_ready(&mut cx, at, 0));
    let lanes = [bench.lane_of(3, 0), bench.lane_of(4, path_number(1, 1))];
    bench.receive(4 * 4096);
    bench.deliver(&rts(0, 4 * 4096)).unwrap();
    assert_eq!(bench.transmit(), [frame::KIND_GRANT; 4]);
    let in_kernel = bench.core.shared_mut().next_receive(lanes[0]).unwrap();
    bench.core.with(slot, |it, mut cx| it.path_lost(&mut cx, 0, 0));
    assert_eq!(bench.abandoned(), [lanes[0]]);
    bench.core.lane_lost(lanes[0], true, "its path fails", 0, &mut bench.results);
    // The other path has two chunks already, which is all of its horizon.
    assert_eq!(bench.transmit(), [frame::KIND_LANE_LOST]);
    let first = bench.core.shared_mut().next_receive(lanes[1]).unwrap();
    assert_ne!(first.offset, in_kernel.offset, "the kernel may still write there");
    // The kernel has released it.
    bench.core.handle_chunk_received(lanes[0], in_kernel, None, 0, &mut bench.results);
    let known = bench.core.sessions.at(slot as usize).unwrap();
    assert_eq!(known.rendezvous().missing_count(), 2);
    assert_eq!(known.rails().paths[0].counters().regrants, 2);
}

/// RR-RAIL-5
#[test]
fn lane_abandoned_by_the_peer_is_closed() {
    let mut bench = two_paths(Config::for_tests());
    let lane = bench.lane_of(3, 0);
    let word = |lane: u32| [[frame::KIND_LANE_LOST, 0, 0, 0], lane.to_le_bytes()].concat();
    bench.deliver(&word(9)).unwrap();
    assert!(bench.abandoned().is_empty());
    bench.deliver(&word(3)).unwrap();
    assert_eq!(bench.abandoned(), [lane]);
}

#[test]
fn backup_carries_bulk_data_while_no_other_path_does() {
    let mut bench = Bench::new(Config { bulk_lanes_max: 4, ..Config::for_tests() });
    bench
        .core
        .shared_mut()
        .rails_mut()
        .set(vec![info(0), RailInfo { role: ROLE_BACKUP, ..info(1) }]);
    for index in 0..2 {
        bench.deliver(rail(index, 2).as_bytes()).unwrap();
    }
    let slot = bench.slot;
    bench.core.with(slot, |it, cx| it.rails_mut().describe_first_path(&cx));
    let at = bench
        .core
        .enter(slot)
        .and_then(|(it, cx)| it.rails_mut().add_path(&cx, path_number(1, 1)))
        .unwrap();
    bench.core.with(slot, |it, mut cx| it.path_ready(&mut cx, at, 0));
    let carries = |bench: &Bench| {
        let rails = &bench.core.sessions.at(slot as usize).unwrap().rails();
        [rails.carries_bulk(0), rails.carries_bulk(1)]
    };
    assert_eq!(carries(&bench), [true, false]);
    bench.core.with(slot, |it, mut cx| it.path_lost(&mut cx, 0, 0));
    assert_eq!(carries(&bench), [false, true]);
    bench.core.with(slot, |it, mut cx| it.path_ready(&mut cx, 0, 0));
    assert_eq!(carries(&bench), [true, false]);
}
