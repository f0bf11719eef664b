//! Three engines: one asks another about the process of the third, which is silent.

use std::net::SocketAddr;
use std::time::Duration;

use super::super::paths::by_hand::PathsByHand;
use super::super::process_status::ANSWER_NS;
use super::super::session::control_lane::{Decision, SilentTimeout};
use super::super::sim::connect;
use super::*;
use crate::proto::ready::Work;
use crate::wire::Frames;
use crate::wire::process_status::{ENDED, RUNNING, UNKNOWN};
use crate::wire::{ProcessQuery, ProcessStatus};

const SECOND: u64 = 1_000_000_000;
/// The engines, in this order: it asks, is silent, is asked.
const ENGINES: [u64; 3] = [10, 20, 30];
/// Long enough that the silence alone ends nothing here.
const TIMEOUT: SilentTimeout = SilentTimeout { limit: Duration::from_secs(3600), is_chosen: false };

struct Three {
    cores: [Core; 3],
    ends: [Results; 3],
    /// Both ends of each session: engine and slot.
    links: Vec<[(usize, u32); 2]>,
    paths: PathsByHand,
    now_ns: u64,
    /// Questions and answers that were sent.
    queries: usize,
    statuses: Vec<u8>,
}

impl Three {
    /// Reports the end of the silent peer's process, as the kernel does.
    fn note_process_ended(&mut self, silent: u32) {
        let engine = self.cores[2].session(silent).unwrap().peer().id();
        self.cores[2].shared_mut().processes_mut().note_ended(engine);
    }

    /// The first engine knows the others by these addresses, and the last one has this setting.
    fn new(locators: [SocketAddr; 2], process_status: bool) -> Self {
        let config = |process_status| Config { process_status, ..Config::for_tests() };
        let mut cores = [0, 1, 2].map(|at| {
            let mut core = Core::new(ENGINES[at], config(at < 2 || process_status).into());
            core.shared_mut().endpoints_mut().open().unwrap();
            core
        });
        let mut links = Vec::new();
        for (id, [from, to]) in (1..).zip([[0, 1], [0, 2], [1, 2]]) {
            let locator = if from == 0 { locators[to - 1] } else { locator() };
            let [one, other] = cores.get_disjoint_mut([from, to]).unwrap();
            one.insert_peer(ENGINES[to], locator, 0).unwrap();
            let (one, other) = ((one, ENGINES[from]), (other, ENGINES[to]));
            let slots = connect(one, other, id, SessionKeys::for_tests());
            links.push([(from, slots[0]), (to, slots[1])]);
        }
        let ends = [0; 3].map(|_| Results::default());
        let (paths, now_ns) = (PathsByHand::new(1), 100 * SECOND);
        let mut three =
            Self { cores, ends, links, paths, now_ns, queries: 0, statuses: Vec::new() };
        three.deliver();
        three.actions();
        three
    }

    fn on_one_host() -> Self {
        Self::new([locator(); 2], true)
    }

    /// The slot of the silent engine's session with the first, or the last, engine there.
    fn slot(&self, at: usize) -> u32 {
        let link = if at == 0 { self.links[0][0] } else { self.links[2][1] };
        link.1
    }

    /// Delivers what was sent; the silent engine takes nothing.
    fn deliver(&mut self) {
        let mut happened = true;
        while std::mem::take(&mut happened) {
            for from in 0..3 {
                while let Some(slot) = self.cores[from].shared_mut().ready_mut().take(Work::Flush) {
                    let bytes = next_bytes(&mut self.cores[from], slot);
                    let link = self.links.iter().find(|link| link.contains(&(from, slot)));
                    let ends = link.unwrap();
                    let (to, other) = if ends[0] == (from, slot) { ends[1] } else { ends[0] };
                    self.count(&bytes);
                    if to != 1 && !bytes.is_empty() {
                        let ends = &mut self.ends[to];
                        self.cores[to].handle_bytes(other, &bytes, self.now_ns, ends).unwrap();
                        happened = true;
                    }
                }
            }
        }
    }

    fn count(&mut self, bytes: &[u8]) {
        let Ok((_, body)) = SegmentHeader::ref_from_prefix(bytes) else { return };
        let mut frames = Frames::new(body);
        while let Some(frame) = frames.next_frame().unwrap() {
            match frame {
                Frame::ProcessQuery(query) => {
                    assert_eq!(query.engine.get(), ENGINES[1]);
                    self.queries += 1;
                }
                Frame::ProcessStatus(status) => self.statuses.push(status.status),
                _ => {}
            }
        }
    }

    /// The first engine probes the silent one, as its loop does.
    fn probe(&mut self) {
        let (slot, paths) = (self.slot(0), &mut self.paths.paths);
        let decision = self.cores[0]
            .enter(slot)
            .and_then(|(it, _)| it.judge_engine(self.now_ns, TIMEOUT, paths));
        assert_eq!(decision, Some(Decision::AskForAnswer));
        self.cores[0].with(slot, |it, cx| it.segments_mut().ask_for_answer(cx));
        self.deliver();
        self.now_ns += ANSWER_NS;
        let (now_ns, paths) = (self.now_ns, &mut self.paths.paths);
        self.cores[0].with(slot, |it, cx| it.check_answer(cx, now_ns, paths));
    }

    /// Time passes, and the loop of the first engine judges its silent peers.
    fn pass(&mut self, for_ns: u64) {
        let end_ns = self.now_ns + for_ns;
        while self.now_ns < end_ns {
            while let Some(slot) = self.cores[0].shared.processes_mut().next_silent(self.now_ns) {
                let paths = &mut self.paths.paths;
                let decision = self.cores[0].judge_silent_peer(slot, self.now_ns, paths);
                if decision == Decision::AskForAnswer {
                    self.cores[0].with(slot, |it, cx| it.segments_mut().ask_for_answer(cx));
                }
            }
            self.deliver();
            self.now_ns += SECOND / 10;
        }
    }

    /// What the first engine is to do about ended processes.
    fn actions(&mut self) -> Vec<Action> {
        let actions = std::iter::from_fn(|| self.cores[0].shared_mut().poll_action());
        actions.filter(|it| matches!(it, Action::ProcessEnded { .. })).collect()
    }
}

/// RR-END-8
#[test]
fn an_engine_of_the_host_reports_that_the_process_of_a_silent_peer_has_ended() {
    let mut three = Three::on_one_host();
    let silent = three.slot(2);
    three.note_process_ended(silent);
    three.probe();
    three.pass(2 * SECOND);
    assert_eq!(three.queries, 0, "several probes come before that");
    three.pass(SECOND);
    assert_eq!((three.queries, &three.statuses[..]), (1, &[ENDED][..]));
    let (session, session_id, observer) = (three.slot(0), 1, locator());
    assert_eq!(three.actions(), [Action::ProcessEnded { session, session_id, observer }]);
    three.pass(100 * SECOND);
    assert_eq!((three.queries, three.cores[0].shared.processes_mut().next_due_ns()), (1, None));
}

/// RR-END-8
#[test]
fn a_process_that_no_engine_observes_is_asked_about_now_and_then() {
    let mut three = Three::on_one_host();
    three.probe();
    three.pass(200 * SECOND);
    assert_eq!(three.actions(), []);
    // After 3, 8, 18, 38, 78, 138 and 198 seconds.
    assert_eq!(three.queries, 7);
    assert!(three.statuses.iter().all(|&status| status == UNKNOWN), "{:?}", three.statuses);
}

/// RR-END-8
#[test]
fn an_engine_that_does_not_answer_questions_is_asked_none() {
    let elsewhere = SocketAddr::from(([192, 0, 2, 9], 1));
    for (locators, status) in [([locator(); 2], false), ([locator(), elsewhere], true)] {
        let mut three = Three::new(locators, status);
        let silent = three.slot(2);
        three.note_process_ended(silent);
        three.probe();
        three.pass(100 * SECOND);
        assert_eq!((three.queries, three.actions()), (0, vec![]));
    }
}

/// RR-END-8
#[test]
fn a_peer_that_answers_again_is_asked_about_no_longer() {
    let mut three = Three::on_one_host();
    three.probe();
    three.pass(4 * SECOND);
    assert_eq!(three.queries, 1);
    three.paths.answer(0, three.now_ns);
    three.pass(20 * SECOND);
    assert_eq!((three.queries, three.cores[0].shared.processes_mut().next_due_ns()), (1, None));
    // What comes then is late.
    let silent = three.slot(2);
    three.note_process_ended(silent);
    three.cores[2].with(three.links[1][1].1, |it, mut cx| {
        it.send_control(&mut cx, status(ENGINES[1], ENDED))
    });
    three.deliver();
    assert_eq!(three.actions(), []);
}

fn status(engine: u64, status: u8) -> ControlFrame {
    ControlFrame::ProcessStatus(ProcessStatus {
        kind: frame::KIND_PROCESS_STATUS,
        status,
        reserved: 0.into(),
        reserved_2: 0.into(),
        engine: engine.into(),
    })
}

fn query(engine: u64) -> Vec<u8> {
    let query = ProcessQuery {
        kind: frame::KIND_PROCESS_QUERY,
        flags: 0,
        reserved: 0.into(),
        reserved_2: 0.into(),
        engine: engine.into(),
    };
    query.as_bytes().to_vec()
}

/// RR-END-8
#[test]
fn answers_that_were_not_asked_for_have_no_effect_and_others_than_these_are_refused() {
    let mut bench = Bench::new(Config::for_tests());
    for known in [UNKNOWN, RUNNING, ENDED] {
        bench.deliver(status(PEER, known).as_frame()).unwrap();
        bench.deliver(status(5, known).as_frame()).unwrap();
    }
    assert!(bench.core.sessions.at(bench.slot as usize).unwrap().is_connected());
    let no_action = std::iter::from_fn(|| bench.core.shared_mut().poll_action());
    assert!(no_action.into_iter().all(|it| !matches!(it, Action::ProcessEnded { .. })));
    let refused = bench.deliver(status(PEER, 3).as_frame());
    assert_eq!(refused, Err(FrameError::BadProcessStatus(3)));
    let mut bench = Bench::new(Config::for_tests());
    for frame in [query(PEER), status(PEER, ENDED).as_frame().to_vec()] {
        assert_eq!(bench.deliver(&frame[..frame.len() - 1]), Err(FrameError::Truncated));
        bench = Bench::new(Config::for_tests());
    }
}

/// RR-END-8
#[test]
fn a_peer_gets_so_many_answers_in_a_second_and_no_more() {
    let mut bench = Bench::new(Config::for_tests());
    for second in 0..3 {
        for _ in 0..1000 {
            let segment = bench.segment(1, &query(5));
            bench.there.sent = bench.there.sent.wrapping_add(1);
            let (slot, results) = (bench.slot, &mut bench.results);
            bench.core.handle_bytes(slot, &segment, second * SECOND, results).unwrap();
        }
        let answers = bench.transmit();
        assert!(answers.iter().all(|&kind| kind == frame::KIND_PROCESS_STATUS));
        assert_eq!(answers.len(), 64, "second {second}");
    }
}

/// RR-END-8
#[test]
fn an_engine_that_observes_the_process_is_asked_again_soon() {
    let mut three = Three::on_one_host();
    three.probe();
    three.pass(4 * SECOND);
    let observer = three.links[1][1].1;
    three.cores[2]
        .with(observer, |it, mut cx| it.send_control(&mut cx, status(ENGINES[1], RUNNING)));
    three.deliver();
    // At 8, 13, 18, ... seconds, not at 8, 18, 38, 78.
    three.pass(60 * SECOND);
    assert!((12..=14).contains(&three.queries), "{}", three.queries);
    let silent = three.slot(2);
    three.note_process_ended(silent);
    three.pass(6 * SECOND);
    assert_eq!(three.actions().len(), 1);
}

/// RR-END-8
#[test]
fn another_session_in_the_slot_of_one_that_was_asked_has_not_been_asked() {
    let mut three = Three::on_one_host();
    three.probe();
    three.pass(4 * SECOND);
    assert_eq!(three.queries, 1);
    let (asked, there) = (three.links[1][0].1, three.links[1][1].1);
    three.cores[0].sessions.at_mut(asked as usize).unwrap().change_id();
    three.cores[2].with(there, |it, mut cx| it.send_control(&mut cx, status(ENGINES[1], ENDED)));
    three.deliver();
    assert_eq!(three.actions(), []);
}
