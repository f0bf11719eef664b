//! Bounds that hold at any time, and what holds when nothing is under way.

use std::fmt::Write;

use super::oracle::{Fate, Sent};
use super::world::Step;
use super::{CHECK, Run};
use crate::progress::engine::Engine;
use crate::proto::core::{Core, ENVELOPES_MIN};
use crate::proto::session::connection::Phase;
use crate::proto::session::segments::segment::SegmentPool;

/// Bytes of bookkeeping that the smallest unexpected payload takes at the most.
const PAYLOAD_BYTES_MIN: u64 = 64;

/// Time between two looks for messages that no receive waits for, at the most, in nanoseconds.
const DRAIN_PAUSE_NS: u64 = 50_000_000;

/// How often one slot of sessions may be in the list of those that wait for the driver.
const BLOCKED_PER_SESSION: usize = 8;

impl Run {
    /// Memory of one engine is within what its settings say.
    pub(super) fn check_bounds(&self, host: usize) -> Result<(), String> {
        let Some(engine) = self.world.look(host) else { return Ok(()) };
        let core = engine.state.core();
        let (held, _) = core.shared().unexpected().held_bytes();
        let bound = 2 * core.shared().reserved().1 + PAYLOAD_BYTES_MIN * core.shared().reserved().0;
        if held as u64 > bound {
            return Err(format!("{held} bytes of unexpected messages, {bound} are the bound"));
        }
        let least = (core.sessions().limit() as u64 + 1) * u64::from(ENVELOPES_MIN);
        let own = u64::from(core.shared().offer_max().eager_limit);
        let (envelopes, bytes) = core.shared().offers().totals();
        if core.shared().reserved().0 > envelopes + least
            || core.shared().reserved().1 > bytes + own
        {
            return Err("windows for more unexpected messages than the settings allow".into());
        }
        let segments = &core.shared().pool();
        let ([short, long, longest], [short_max, long_max, longest_max]) =
            (segments.len(), segments.limit());
        let sessions = core.sessions().len();
        if short > short_max + SegmentPool::LEAST * sessions
            || long > long_max + sessions
            || longest > longest_max + sessions
        {
            return Err(format!(
                "{short} and {long} segments, {short_max} and {long_max} are the limits"
            ));
        }
        core.check();
        engine.state.session_paths().check();
        self.check_failures(core)?;
        if core.shared().lanes().len() > core.shared().lanes().limit() {
            return Err("more bulk lanes than the settings allow".into());
        }
        for (_, session) in core.sessions().iter().filter(|(_, session)| session.is_connected()) {
            let over = session
                .segments()
                .receive_credits()
                .both()
                .iter()
                .any(|credit| credit.held() > credit.window());
            if over {
                return Err("more credit is used than was given".into());
            }
            session.check_uncommon();
        }
        Ok(())
    }

    /// Sessions that wait for the driver do so once each: what makes more of them with every turn
    /// would have all memory soon.
    pub(super) fn check_waiting_room(&self, host: usize) -> Result<(), String> {
        let Some(engine) = self.world.look(host) else { return Ok(()) };
        // A slot may have had several sessions since the driver was full.
        if engine.state.sessions_blocked()
            > BLOCKED_PER_SESSION * engine.state.core().sessions().len()
        {
            return Err("more sessions wait for room in the driver than there are".into());
        }
        Ok(())
    }

    /// Checks that every session that failed had a reason to, whether or not it was in use then.
    pub(super) fn check_failures(&self, core: &Core) -> Result<(), String> {
        for (_, session) in core.sessions().iter() {
            if let Some(failure) = session.ending().failure() {
                self.oracle.check_failure(core.shared().engine(), session.peer().id(), failure)?;
            }
        }
        Ok(())
    }

    /// Sessions that the other side does not have any more end, if only because their hosts are
    /// silent: until then what has come of them, and what is due to them, is kept. So do attempts
    /// to connect: the last one may have been lost before the world was whole.
    ///
    /// RR-END-2, RR-CONN-6.
    pub(super) fn outlive(&mut self) -> Result<(), String> {
        let end_ns = self.world.now_ns() + self.plan.bound_ns();
        while self.is_any_one_sided() || self.is_any_connecting() {
            match self.next_step(end_ns) {
                Step::Limit => return Err("the end of a session is never noticed".into()),
                Step::Turn(host) => self.after_turn(host)?,
                Step::Planned(_) => {}
            }
        }
        Ok(())
    }

    /// Whether a living process is connected to one that is not connected to it: that one is dead,
    /// or the notice of the session's end is late. A process without a control lane may be so soon.
    fn is_any_one_sided(&self) -> bool {
        (0..self.world.hosts()).filter_map(|host| self.world.look(host)).any(|engine| {
            let core = engine.state.core();
            let mut sessions = core.sessions().iter().filter(|(_, session)| session.is_connected());
            sessions.any(|(_, session)| {
                session.is_outlived() || !self.is_other_side_of(session.peer().id(), session.id())
            })
        })
    }

    /// Whether a living process attempts to connect to another one that lives.
    fn is_any_connecting(&self) -> bool {
        (0..self.world.hosts()).filter_map(|host| self.world.look(host)).any(|engine| {
            let mut sessions = engine.state.core().sessions().iter();
            sessions.any(|(_, session)| {
                is_trying(session.connection().phase()) && self.is_alive(session.peer().id())
            })
        })
    }

    /// Whether a process lives and has this session.
    fn is_other_side_of(&self, process: u64, id: u64) -> bool {
        let home = self.homes.get(&process).filter(|_| self.is_alive(process));
        home.and_then(|&host| self.world.look(host)).is_some_and(|engine| {
            let mut sessions = engine.state.core().sessions().iter();
            sessions.any(|(_, session)| session.id() == id && session.is_connected())
        })
    }

    /// Runs until all that was sent from `first_sent` on has been received, and a second longer.
    pub(super) fn await_greetings(&mut self, first_sent: usize) -> Result<(), String> {
        let end_ns = self.world.now_ns() + self.plan.bound_ns();
        self.world.plan(0, CHECK);
        let mut wait_ns = 1_000_000;
        loop {
            match self.next_step(end_ns) {
                Step::Limit => return Err("living processes cannot exchange messages".into()),
                Step::Turn(host) => self.after_turn(host)?,
                Step::Planned(CHECK) => {
                    let is_quiet = self.drain()?;
                    // Small settings leave no room for all of them at once: some were not taken.
                    // Older messages may come as well, if what carried them has gone silent.
                    let mut greetings = self.oracle.sent[first_sent..].iter();
                    let is_there = |it: &Sent| {
                        it.fate == Fate::Cancelled || it.is_discarded || it.taken_by.is_some()
                    };
                    if is_quiet && greetings.all(is_there) {
                        break;
                    }
                    self.world.plan(wait_ns, CHECK);
                    // Each look wakes every engine.
                    wait_ns = (2 * wait_ns).min(DRAIN_PAUSE_NS);
                }
                Step::Planned(_) => {}
            }
        }
        let end_ns = self.world.now_ns() + 1_000_000_000;
        while let Step::Turn(host) = self.next_step(end_ns) {
            self.after_turn(host)?;
        }
        self.oracle.check_end(|_| false)
    }

    /// Rest comes within the bound; not at once, for a path whose datagrams come back no more goes
    /// by TCP only after 5 probe timeouts, which are long after a path that was slow. Until then
    /// come the last words of the dead, too.
    pub(super) fn come_to_rest(&mut self) -> Result<(), String> {
        let end_ns = self.world.now_ns() + self.plan.bound_ns();
        self.world.plan(DRAIN_PAUSE_NS, CHECK);
        while let Err(what) = self.check_rest() {
            match self.next_step(end_ns) {
                Step::Limit => return Err(what),
                Step::Turn(host) => self.after_turn(host)?,
                Step::Planned(CHECK) => {
                    self.drain()?;
                    self.world.plan(DRAIN_PAUSE_NS, CHECK);
                }
                Step::Planned(_) => {}
            }
        }
        self.oracle.check_end(|_| false)
    }

    /// Nothing is kept, and all credit is back.
    fn check_rest(&self) -> Result<(), String> {
        for host in 0..self.world.hosts() {
            if let Some(engine) = self.world.look(host) {
                check_all_but(engine, |process| !self.is_alive(process))?;
            }
        }
        match self.world.net.borrow().busy_pieces() {
            0 => Ok(()),
            pieces => Err(format!("{pieces} pieces of memory are with the kernel")),
        }
    }
}

/// Whether an attempt to connect has neither failed nor made a session yet.
fn is_trying(phase: Phase) -> bool {
    !matches!(phase, Phase::Closed | Phase::Connected | Phase::Failed)
}

/// Checks for what an engine must not have when nothing is under way.
#[cfg(test)]
pub(crate) fn check_at_rest(engine: &Engine) -> Result<(), String> {
    check_all_but(engine, |_| false)
}

/// Nothing is kept and all credit is back, but for what waits for the word of peers that are dead
/// and not known to be.
fn check_all_but(engine: &Engine, is_dead: impl Fn(u64) -> bool) -> Result<(), String> {
    let core = engine.state.core();
    let fail = |what: &str| Err(format!("engine {}: {what}", core.shared().engine()));
    if core.shared().operations().len() != 0 {
        return fail("operations are left");
    }
    if core.shared().unexpected().held_bytes().0 != 0 {
        return fail("unexpected messages are left");
    }
    if !core.shared().lanes().iter().all(|(_, lane)| lane.is_idle()) {
        return fail("a bulk lane has chunks");
    }
    if core.shared().rendezvous().pulled_bytes() != 0 {
        let bytes = core.shared().rendezvous().pulled_bytes();
        return Err(format!("{bytes} bytes were granted in datagrams and never came"));
    }
    let (mut envelopes, mut bytes, mut segments) = (0, 0, 0);
    for (_, session) in core.sessions().iter() {
        segments += session.segments().outstanding();
        let is_clear = session.rendezvous().is_empty()
            && (is_dead(session.peer().id()) || session.rendezvous().is_at_rest())
            && session.waiting().is_empty()
            && session.segments().control().is_empty()
            && (is_dead(session.peer().id()) || session.segments().is_at_rest());
        if !is_clear {
            return fail("a session has something under way");
        }
        if session.is_connected() {
            let credits = session.segments().receive_credits().both();
            if credits.iter().any(|credit| credit.held() != 0) {
                return fail("credit is not back");
            }
            envelopes += u64::from(credits[0].window());
            bytes += u64::from(credits[1].window());
        }
    }
    if core.shared().pool().len().iter().sum::<usize>() != segments {
        return fail("segments are kept that no session has");
    }
    let sessions = core.sessions().iter();
    let trying = sessions.filter(|(_, session)| is_trying(session.connection().phase())).count();
    if core.shared().offers().open() > trying + engine.state.pending_handshakes() {
        return fail("windows are kept for sessions that are not being made");
    }
    if (envelopes, bytes) != core.shared().reserved() {
        return fail("windows are reserved that no session has");
    }
    Ok(())
}

/// Describes an engine's state, for a report of a failure.
pub(crate) fn describe(engine: &Engine) -> String {
    let core = engine.state.core();
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "engine {}: {:?}", core.shared().engine(), core.shared().counters());
    for (id, operation) in core.shared().operations().iter().take(10) {
        let _ = writeln!(text, "  {id:?} {operation:?}");
    }
    for (id, receive) in core.shared().operations().waiting_receives().take(10) {
        let _ = writeln!(text, "  {id:?} {receive:?}");
    }
    for message in core.shared().unexpected().messages().take(10) {
        let _ = writeln!(text, "  {message:?}");
    }
    for (id, session) in core.sessions().iter() {
        let _ = writeln!(text, "  session {id:?}: {session:?}");
    }
    for session in 0..engine.state.session_paths().slots() {
        let primary = engine.state.session_paths().of(session).and_then(|paths| paths.all().next());
        let _ = writeln!(text, "  {primary:?} at {} ns", engine.state.now_ns());
    }
    for (id, lane) in core.shared().lanes().iter() {
        let _ = writeln!(text, "  lane {id:?}: {lane:?}");
    }
    text
}
