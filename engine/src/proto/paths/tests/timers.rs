//! Timers of sessions under arbitrary sequences of sets, expiries, begins and ends.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::path::PathId;
use super::super::*;
use super::pair::{MILLI, address_of, keys_of};
use crate::proto::core::{Config, Core};
use crate::proto::keys::LaneKeys;
use crate::proto::packet::{Path, PathConfig};
use crate::proto::sim::{Memory, locator};

const SESSIONS: u32 = 4;
/// Limit on stale entries beyond the number of valid ones.
const STALE_MAX: usize = 64;

/// A step of a sequence.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A path sets a timer in so many nanoseconds.
    Wake {
        session: u32,
        index: Index,
        after_ns: u64,
    },
    /// A turn, in so many nanoseconds.
    Turn {
        after_ns: u64,
    },
    /// A session with so many paths begins, after the previous one has ended.
    Begin {
        session: u32,
        paths: usize,
    },
    Close {
        session: u32,
    },
    /// The primary and another path change places.
    Swap {
        session: u32,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let session = 0..SESSIONS;
    prop_oneof![
        8 => (session.clone(), 0usize..3, 0u64..40)
            .prop_map(|(session, index, after_ns)| Step::Wake { session, index, after_ns }),
        4 => (0u64..20).prop_map(|after_ns| Step::Turn { after_ns }),
        1 => (session.clone(), 1usize..4)
            .prop_map(|(session, paths)| Step::Begin { session, paths }),
        1 => session.clone().prop_map(|session| Step::Close { session }),
        1 => session.prop_map(|session| Step::Swap { session }),
    ]
}

/// The paths of some sessions, and when their timers are due.
struct TimedPaths {
    table: PathTable,
    core: Core,
    memory: Memory,
    keys: LaneKeys,
    wanted: BTreeMap<(u32, u16), u64>,
    now_ns: u64,
    /// No timer may be before this time.
    served_ns: u64,
    next_id: u64,
}

impl TimedPaths {
    fn new() -> Self {
        let mut core = Core::new(1, Config::for_tests().into());
        for engine in 0..SESSIONS {
            core.insert_peer(2 + u64::from(engine), locator(), 0).unwrap();
        }
        Self {
            table: PathTable::default(),
            core,
            memory: Memory::default(),
            keys: keys_of(1).path(0, true),
            wanted: BTreeMap::new(),
            now_ns: 1,
            served_ns: 0,
            next_id: 1,
        }
    }

    fn begin(&mut self, session: u32, paths: usize) {
        self.close(session);
        self.table.begin(session, 0);
        let id = self.next_id;
        self.next_id += 1;
        self.table.shared.by_session.insert(id, session);
        for number in 0..paths as u16 {
            let packets = Path::new(PathConfig::default());
            let id = PathId { session: id, number, ..PathId::default() };
            let path = SessionPath::new(packets, self.keys.clone(), id, address_of(0, 0), false);
            let all = self.table.of_mut(session);
            match number {
                0 => all.primary = Some(Box::new(path)),
                _ => all.standby.push(Box::new(path)),
            }
            self.table.shared.standing_by += usize::from(number > 0);
        }
    }

    fn close(&mut self, session: u32) {
        self.table.close(session);
        self.wanted.retain(|&(of, _), _| of != session);
    }

    fn wake(&mut self, session: u32, index: Index, at_ns: u64) {
        let Some((paths, shared)) = self.table.paths_of(session) else { return };
        let Some(path) = paths.get_mut(index) else { return };
        path.visits_mut().wake_at(at_ns, session, &mut shared.timers);
        let wanted = self.wanted.entry((session, path.id().number)).or_insert(u64::MAX);
        *wanted = (*wanted).min(at_ns.max(self.served_ns));
    }

    fn turn(&mut self) {
        let Self { table, core, memory, wanted, now_ns, .. } = self;
        let now_ns = *now_ns;
        self.served_ns = self.served_ns.max(now_ns + 1);
        table.begin_timeouts(now_ns);
        let mut before_ns = 0;
        while let Some((at_ns, session)) = table.poll_timeout(now_ns) {
            assert!(at_ns >= before_ns && at_ns <= now_ns, "in order");
            before_ns = at_ns;
            let timeout = Timeout { at_ns, now_ns, late_ns: 0, is_drained: true };
            for index in 0..table.of(session).map_or(0, Paths::count) {
                if table.handle_timeout(core, (session, index), timeout, memory) {
                    let number = table.of(session).unwrap().get(index).unwrap().id().number;
                    assert_eq!(wanted.remove(&(session, number)), Some(at_ns));
                }
            }
        }
        table.end_timeouts();
        let missed: Vec<_> = wanted.iter().filter(|&(_, &at_ns)| at_ns <= now_ns).collect();
        assert!(missed.is_empty(), "{missed:?}");
        let standing: usize = table.by_slot.iter().map(Paths::count).sum();
        assert!(table.shared.timers.len() <= 2 * standing + STALE_MAX);
    }

    fn check(&mut self) {
        assert_eq!(self.table.next_timer_ns(), self.wanted.values().copied().min());
        let standing: usize = self.table.by_slot.iter().map(|paths| paths.standby.len()).sum();
        assert_eq!(self.table.shared.standing_by, standing);
    }

    fn carry_out(&mut self, step: Step) {
        match step {
            Step::Wake { session, index, after_ns } => {
                self.wake(session, index, self.now_ns + after_ns);
            }
            Step::Turn { after_ns } => {
                self.now_ns += after_ns;
                self.turn();
            }
            Step::Begin { session, paths } => self.begin(session, paths),
            Step::Close { session } => self.close(session),
            Step::Swap { session } => {
                let paths = self.table.of_mut(session);
                if let (Some(primary), Some(other)) = (&mut paths.primary, paths.standby.last_mut())
                {
                    std::mem::swap(primary, other);
                }
            }
        }
    }
}

proptest! {
    /// The earliest timer of each path is valid, earlier entries are skipped, and no session loses
    /// or gets a timer when another one ends.
    #[test]
    fn every_path_timer_fires_exactly_at_its_time(
        steps in proptest::collection::vec(step(), 1..400),
        // Whether stale entries are skipped at each step, besides the occasional sweep.
        looks in any::<bool>(),
    ) {
        let mut timed = TimedPaths::new();
        for session in 0..SESSIONS {
            timed.begin(session, 1 + session as usize % 3);
        }
        for step in steps {
            timed.carry_out(step);
            if looks {
                timed.check();
            }
        }
        timed.check();
        timed.now_ns += MILLI;
        timed.turn();
        prop_assert!(timed.wanted.is_empty());
        prop_assert_eq!(timed.table.next_timer_ns(), None);
        prop_assert!(!timed.table.has_timers());
    }
}

#[test]
fn repeated_sessions_leave_no_stale_entries() {
    let mut timed = TimedPaths::new();
    timed.begin(1, 3);
    for round in 0..2000 {
        timed.begin(0, 2);
        for index in 0..2 {
            timed.wake(0, index, timed.now_ns + 1_000_000 - round);
        }
        timed.turn();
    }
    timed.close(0);
    timed.wake(1, 2, timed.now_ns + 5);
    assert_eq!(timed.table.next_timer_ns(), Some(timed.now_ns + 5));
}
