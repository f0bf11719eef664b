//! Sessions with several paths: what they are, and which are to be relied on.
//!
//! One lane of a session carries its contents; the others stand by, ask and answer. They are
//! handled by the same code: a lane that stands by takes the carrier's place for as long as that
//! takes, and is held, so that no content goes by it.

use std::net::{SocketAddr, TcpListener};

use super::lane::Lane;
use crate::progress::control::{Control, NO_PATH};
use crate::progress::engine::{Engine, State};
use crate::proto::failure::PeerFailure;
use crate::proto::packet::{Path, PathConfig};
use crate::proto::rails::health::{Health as RailHealth, Phase, Transition};
use crate::proto::rails::pairing::pairs;
use crate::proto::rails::{LAST_RESORT_NS, path_number, rails_of};
use crate::proto::table::Id;
use crate::types::{Address, Event, PathState, Rail};
use crate::wire::packet::PACKET_TAG_BYTES;

/// A phase as users know it.
pub(in crate::progress) fn state_of(phase: Phase) -> PathState {
    match phase {
        Phase::Probing => PathState::Probing,
        Phase::Active => PathState::Active,
        Phase::Suspect => PathState::Suspect,
        Phase::Down => PathState::Down,
    }
}

/// An address of a peer as it is reached by a rail: a link-local one means nothing without its NIC.
pub(in crate::progress) fn scoped(rails: &[Rail], rail: u8, remote: SocketAddr) -> SocketAddr {
    let mut remote = remote;
    if let SocketAddr::V6(v6) = &mut remote
        && v6.ip().is_unicast_link_local()
        && v6.scope_id() == 0
    {
        v6.set_scope_id(rails.get(usize::from(rail)).map_or(0, |rail| rail.nic_index));
    }
    remote
}

impl Control {
    /// Whether this session's datagrams have this id.
    #[inline]
    pub(super) fn is_of(&self, session_id: u64) -> bool {
        self.datagram.as_deref().is_some_and(|lane| lane.session_id == session_id)
    }

    /// Whether the path of this number and session is the only one.
    #[inline]
    pub(super) fn has_only(&self, session_id: u64, number: u16) -> bool {
        let lane = self.datagram.as_deref();
        let is_it = lane.is_some_and(|it| it.session_id == session_id && it.number == number);
        is_it && self.standby.is_empty()
    }

    /// Puts the lane that stands by at `at` in the carrier's place; the same call undoes it.
    pub(super) fn exchange(&mut self, at: usize) {
        if let (Some(carrier), Some(other)) = (&mut self.datagram, self.standby.get_mut(at)) {
            std::mem::swap(carrier, other);
        }
    }

    /// All lanes, the carrier first.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.datagram.iter().chain(&self.standby).map(|lane| &**lane)
    }

    pub(super) fn lanes_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.datagram.iter_mut().chain(&mut self.standby).map(|lane| &mut **lane)
    }

    /// Whether any of its paths is healthy, where there are several.
    pub(in crate::progress) fn has_active_path(&self) -> bool {
        self.lanes().any(Lane::is_active)
    }

    /// Whether anything sent then or later was answered by any path.
    pub(in crate::progress) fn has_answered_since(&mut self, since_ns: u64) -> bool {
        self.heard_ns().is_some_and(|sent_ns| sent_ns >= since_ns)
    }

    /// When the newest packet had been sent that was answered, by whichever path.
    pub(in crate::progress) fn heard_ns(&mut self) -> Option<u64> {
        let answered = self.lanes_mut().filter_map(|lane| {
            lane.path.apply_deferred_ack();
            lane.path.answered_sent_ns()
        });
        answered.max()
    }

    /// Whether a path is suspect, or does not answer, or is none.
    pub(in crate::progress) fn is_path_suspect(&self, at: u8) -> bool {
        let mut lanes = self.lanes().filter(|lane| lane.at == at);
        let is_suspect = |health: &RailHealth| health.phase() == Phase::Suspect;
        let is_suspected = lanes.any(|lane| lane.rail_health.as_ref().is_some_and(is_suspect));
        is_suspected || self.is_path_down(at)
    }

    /// Whether the path at a position does not answer, or is none.
    pub(in crate::progress) fn is_path_down(&self, at: u8) -> bool {
        if at == NO_PATH {
            return true;
        }
        let mut lanes = self.lanes().filter(|lane| lane.at == at);
        let is_lost = |health: &RailHealth| health.is_down() && !health.has_never_answered();
        lanes.any(|lane| lane.rail_health.as_ref().is_some_and(is_lost))
    }

    /// Position of the path that carries contents now, if any does.
    pub(in crate::progress) fn carrier(&self) -> Option<u8> {
        self.datagram.as_ref().filter(|lane| lane.is_open()).map(|lane| lane.at)
    }

    /// Position among those that stand by of the lane of a path; `None`: the carrier's, or unknown.
    pub(super) fn standing_by(&self, number: u16) -> Option<usize> {
        self.standby.iter().position(|lane| lane.number == number)
    }
}

impl Engine {
    /// The rails of both sides are known. The side that opened the session says which paths there
    /// are, by using them.
    ///
    /// RR-RAIL-2.
    pub(in crate::progress) fn pair_rails(&mut self, session: u32) {
        self.state.core.describe_first_path(session);
        let core = &self.state.core;
        let Some(known) = core.sessions.at(session as usize) else { return };
        let Some(theirs) = known.rails.theirs() else { return };
        if !known.connection.is_initiator() || !known.is_connected() {
            return;
        }
        let ours = core.rails();
        let driver = &mut self.driver;
        let reach = |our: usize, their: usize| {
            // No more than 16 each, as frames bound them.
            driver.reach(our as u8, theirs[their].address)
        };
        for (our, their) in pairs(ours, &theirs, reach) {
            let number = path_number(our as u8, their as u8);
            let Some(at) = self.state.core.add_path(session, number) else { continue };
            if self.control(session).has_contents {
                self.state.open_other_path(session, number, at);
            } else {
                // There are no datagrams to ask by: a lane that comes shows that it is a path.
                let now_ns = self.state.now_ns;
                self.state.core.path_ready(session, at, now_ns);
            }
        }
    }

    /// Sends what all lanes of a session want to send.
    pub(super) fn transmit_all(&mut self, session: u32) {
        self.transmit(session, false);
        for at in 0..self.control(session).standby.len() {
            self.control(session).exchange(at);
            self.transmit(session, false);
            self.control(session).exchange(at);
        }
    }

    /// The times of lanes that stand by may have come; then all paths are looked at.
    pub(super) fn fire_timers_standing_by(&mut self, session: u32, at_ns: u64, until_ns: u64) {
        let count = self.control(session).standby.len();
        if count == 0 {
            return;
        }
        for at in 0..count {
            let control = self.control(session);
            if control.standby.get(at).is_some_and(|lane| lane.timer_ns == at_ns) {
                control.exchange(at);
                self.fire_timer(session, until_ns);
                self.control(session).exchange(at);
            }
        }
        self.state.ask_while_busy(session);
        self.state.judge_paths(session);
    }

    /// The link of a NIC of this host came or went.
    pub(in crate::progress) fn handle_link(&mut self, rail: u8, is_up: bool) {
        let (now_ns, bit) = (self.state.now_ns, 1 << (rail % 16));
        if let (Some(index), Some(known)) =
            (self.driver.nic_of(rail), self.state.rails.get_mut(usize::from(rail)))
        {
            let is_moved = std::mem::replace(&mut known.nic_index, index) != index;
            // The same rail, for whoever asks for statistics.
            if let Some(chosen) = self.state.rails_chosen.get_mut(usize::from(rail)) {
                chosen.nic_index = index;
            }
            if is_moved && self.state.rails.len() > 1 {
                self.state.listeners_due |= bit;
                self.listen_anew();
            }
        }
        match is_up {
            true => self.state.rails_down &= !bit,
            false => self.state.rails_down |= bit,
        }
        for session in 0..self.state.controls.len() {
            let control = &mut self.state.controls[session];
            if control.standby.is_empty() {
                continue;
            }
            for lane in control.lanes_mut().filter(|lane| lane.rail == rail) {
                if let Some(health) = &mut lane.rail_health {
                    health.handle_link(now_ns, is_up);
                }
            }
            self.state.judge_paths(session as u32);
        }
    }
}

impl Engine {
    /// Rails that have another NIC get another listener. From the owner, as the caretaker may be in
    /// another network namespace; until then the listener at the wildcard address takes what comes.
    pub(in crate::progress) fn listen_anew(&mut self) {
        while self.state.listeners_due != 0 && !self.owner_is_absent {
            let rail = self.state.listeners_due.trailing_zeros();
            self.state.listeners_due &= self.state.listeners_due - 1;
            self.replace_listener(rail as u8);
        }
    }

    fn replace_listener(&mut self, rail: u8) {
        let state = &mut *self.state;
        let Some(fresh) = self.driver.listen_anew(rail, &state.listener) else { return };
        let ip = |listener: &TcpListener| listener.local_addr().map(|local| local.ip()).ok();
        let all = &mut state.listeners_of_rails;
        match all.iter_mut().find(|it| ip(it) == ip(&fresh)) {
            Some(old) => *old = fresh,
            None => all.push(fresh),
        }
        self.renew_wake_fds();
    }
}

impl State {
    /// A packet of one of several paths. What it brings is handled as that of any other.
    pub(super) fn handle_on_one_of_several(
        &mut self,
        session: u32,
        number: u16,
        from: SocketAddr,
        bytes: &mut [u8],
        length: usize,
    ) -> Result<(), (u32, PeerFailure)> {
        let Some(control) = self.controls.get_mut(session as usize) else { return Ok(()) };
        let is_carrier = control.datagram.as_ref().is_some_and(|lane| lane.number == number);
        let is_known = is_carrier || control.standing_by(number).is_some();
        if !is_known && !self.meet_path(session, number, bytes) {
            self.datagrams.dropped.unknown += 1;
            return Ok(());
        }
        let Some(control) = self.controls.get_mut(session as usize) else { return Ok(()) };
        let at = control.standing_by(number);
        if let Some(at) = at {
            control.exchange(at);
        }
        let (dropped, segments) = (self.datagrams.dropped, self.datagrams.segments);
        let handled = self.handle_on_path(session, from, bytes, length);
        let is_genuine = self.datagrams.dropped == dropped;
        let Some(control) = self.controls.get_mut(session as usize) else { return handled };
        let is_active = control.datagram.as_deref().is_some_and(Lane::is_active);
        if let Some(at) = at {
            control.exchange(at);
        }
        if !is_genuine {
            return handled;
        }
        let is_led =
            self.datagrams.segments != segments && control.note_contents(length, at.is_some());
        if control.is_doubtful || !is_active {
            self.judge_paths(session);
        }
        let control = self.controls.get(session as usize);
        let is_comparing = control.is_some_and(|it| it.preference.is_due(self.now_ns));
        if is_comparing {
            self.compare_paths(session);
        }
        let streams_elsewhere = |it: &Control| it.has_streamed && it.carrier() == Some(it.lane_at);
        if at.is_some() && self.controls.get(session as usize).is_some_and(streams_elsewhere) {
            // The peer sends by another path than the stream's: it may know why.
            self.ask_stream(session);
        }
        self.compare_deliveries(session, is_led.then_some(number));
        handled
    }

    /// Something came by a session's stream: what that delivers counts as what datagrams do. Of
    /// round trips it says nothing: while long messages go to and fro, nothing carries
    /// acknowledgements of short ones.
    pub(in crate::progress) fn note_stream(&mut self, session: u32) {
        let Some(control) = self.controls.get_mut(session as usize) else { return };
        let streams_at = control.lane_at;
        let is_elsewhere = control.carrier() != Some(streams_at);
        let is_led = control.note_contents(control.content_bytes, is_elsewhere);
        let path = control.lanes().find(|lane| lane.at == streams_at).map(|lane| lane.number);
        self.compare_deliveries(session, path.filter(|_| is_led));
    }

    /// Looks at which path delivers most, if it is time for that. The peer has chosen `theirs`.
    fn compare_deliveries(&mut self, session: u32, theirs: Option<u16>) {
        let Some(control) = self.controls.get(session as usize) else { return };
        let is_reading = control.trial.is_due(self.now_ns);
        if let Some(theirs) = theirs {
            self.follow(session, theirs);
        }
        if is_reading {
            self.try_paths(session);
        }
    }

    /// Opens the lane of a path besides the first one. It carries nothing before it has answered.
    ///
    /// RR-RAIL-3.
    fn open_other_path(&mut self, session: u32, number: u16, at: usize) {
        let now_ns = self.now_ns;
        let Some(known) = self.core.sessions.at(session as usize) else { return };
        let Some(path) = known.rails.paths.get(at) else { return };
        let Some(keys) = known.keys.as_ref() else { return };
        let is_initiator = known.connection.is_initiator();
        let Some(control) = self.controls.get_mut(session as usize) else { return };
        let Some(carrier) = control.datagram.as_deref_mut() else { return };
        let (initiators, acceptors) = rails_of(number);
        let rail = if is_initiator { initiators } else { acceptors };
        let remote = match path.remote {
            Some(address) => scoped(&self.rails, rail, SocketAddr::new(address, carrier.port)),
            None => SocketAddr::new(known.locators.first().ip(), carrier.port),
        };
        let config = PathConfig {
            session: known.id,
            path: number,
            tag_bytes: PACKET_TAG_BYTES,
            datagram_bytes_max: carrier.bytes_max,
            ..PathConfig::default()
        };
        let mut lane = Lane::new(Path::new(config), keys.path(number, is_initiator), remote);
        (lane.session_id, lane.number, lane.rail, lane.at) = (known.id, number, rail, at as u8);
        (lane.port, lane.bytes_max) = (carrier.port, carrier.bytes_max);
        lane.takes_trains = carrier.takes_trains;
        lane.is_held = true;
        let down = self.rails_down;
        let health_of = |rail: u8| {
            let mut health = RailHealth::new(now_ns);
            if down >> (rail % 16) & 1 != 0 {
                health.handle_link(now_ns, false);
            }
            health
        };
        lane.rail_health = Some(health_of(rail));
        lane.path.ask();
        lane.wake_at(now_ns, session, &mut self.datagrams.timers);
        if carrier.rail_health.is_none() {
            carrier.rail_health = Some(health_of(carrier.rail));
        }
        control.standby.push(Box::new(lane));
        self.datagrams.standing_by += 1;
        control.is_doubtful = true;
    }

    /// A packet names a path that this side does not know. The peer opened the session, and so
    /// says which there are: the packet itself has to prove it.
    ///
    /// RR-RAIL-2.
    pub(super) fn meet_path(&mut self, session: u32, number: u16, bytes: &[u8]) -> bool {
        let Some(known) = self.core.sessions.at(session as usize) else { return false };
        let Some(keys) = known.keys.as_ref() else { return false };
        if known.connection.is_initiator() || !known.rails.are_announced() {
            return false;
        }
        let first = u64::from(u32::from_le_bytes(bytes[4..8].try_into().unwrap_or_default()));
        // The check takes the tag's place.
        if !keys.path(number, false).receive.open_packet(&mut bytes.to_vec(), first) {
            return false;
        }
        // A bulk lane of it may have come before.
        let known = self.core.sessions.at(session as usize);
        let at = known.and_then(|known| known.rails.position(number));
        let Some(at) = at.or_else(|| self.core.add_path(session, number)) else { return false };
        self.open_other_path(session, number, at);
        true
    }

    /// Looks at all paths of a session that has several: which are to be relied on now, and which
    /// carries the contents.
    ///
    /// RR-RAIL-4, RR-RAIL-6.
    pub(super) fn judge_paths(&mut self, session: u32) {
        let now_ns = self.now_ns;
        let Some(control) = self.controls.get_mut(session as usize) else { return };
        if control.standby.is_empty() {
            return;
        }
        let streamed_bytes = self.core.delivered_by_stream(session);
        if std::mem::replace(&mut control.streamed_bytes, streamed_bytes) != streamed_bytes {
            control.streamed_ns = now_ns;
        }
        let (streams_at, streamed_ns) = (control.lane_at, control.streamed_ns);
        let mut changes = Vec::new();
        let was_open = control.carrier().is_some();
        control.is_doubtful = false;
        let mut active = control.lanes().filter(|lane| lane.is_active()).count();
        for index in 0..=control.standby.len() {
            let witness = control
                .lanes()
                .enumerate()
                .filter(|&(other, _)| other != index)
                .filter_map(|(_, lane)| lane.rail_health.as_ref()?.witness())
                .max_by_key(|witness| witness.sent_ns);
            let Some(lane) = control.lanes_mut().nth(index) else { break };
            let mut evidence = lane.evidence();
            (evidence.bulk_ns, evidence.is_stalled) =
                self.core.bulk_evidence(session, lane.at, now_ns);
            if lane.at == streams_at {
                evidence.bulk_ns = evidence.bulk_ns.max(streamed_ns);
            }
            let Some(health) = &mut lane.rail_health else { continue };
            let is_needed = active == 0;
            if let Some(change) = health.observe(now_ns, &evidence, witness, is_needed) {
                if !lane.is_off {
                    active += usize::from(change.to == Phase::Active);
                    active -= usize::from(change.from == Phase::Active);
                }
                changes.push((lane.at, lane.number, change));
                lane.is_held |= matches!(change.to, Phase::Suspect | Phase::Down);
            }
            let timers = &mut self.datagrams.timers;
            if health.take_probe(now_ns) {
                lane.path.ask();
                lane.wake_at(now_ns, session, timers);
            }
            if let Some(next_ns) = lane.rail_health.as_ref().and_then(RailHealth::next_ns) {
                lane.wake_at(next_ns.max(now_ns + 100_000), session, timers);
            } else if evidence.probes > 0 && witness.is_some() {
                let soon_ns = now_ns + evidence.round_trip_max_ns.max(500_000);
                lane.wake_at(soon_ns, session, timers);
            }
            // One that is down, or was never up, says more by its own packets and timers: those of
            // others need not ask.
            let health = lane.rail_health.as_ref();
            let is_settled = health.is_some_and(|health| {
                health.is_down()
                    || health.has_never_answered()
                    || (health.is_active() && evidence.probes == 0)
            });
            control.is_doubtful |= !is_settled;
        }
        control.silent_since_ns = match control.silent_since_ns {
            _ if active > 0 => None,
            since => Some(since.unwrap_or(now_ns)),
        };
        // The others are to bear witness.
        let probed = control.lanes().filter(|lane| lane.path.load().2 > 0);
        if let Some(probed_ns) = probed.map(|lane| lane.path.probed_ns()).max() {
            let timers = &mut self.datagrams.timers;
            for lane in control.lanes_mut() {
                let (_, _, probes) = lane.path.load();
                if probes == 0 && lane.path.asked_ns() < probed_ns {
                    lane.path.ask();
                    lane.wake_at(now_ns, session, timers);
                }
            }
        }
        for (at, number, change) in changes {
            self.path_changed(session, at, number, change);
        }
        if active > 0 {
            self.leave_mute_paths(session);
        } else {
            self.try_mute_paths(session);
        }
        self.choose_carrier(session);
        let control = self.controls.get(session as usize);
        if was_open && control.is_some_and(|control| control.carrier().is_none()) {
            // By TCP, as far as that passes: what was under way may have gone with the path.
            self.core.resend_all(session, false);
        }
    }

    /// Long messages go by the control lane where that is on the path that carries the others: it
    /// is as near and as fast then, and known to be alive.
    ///
    /// RR-DGRAM-12.
    pub(in crate::progress) fn choose_stream(&mut self, session: u32) {
        let Some(control) = self.controls.get(session as usize) else { return };
        let is_there = control.lane.is_some()
            && (control.standby.is_empty() || control.carrier() == Some(control.lane_at));
        self.core.use_stream(session, is_there && self.core.config.eager_by_stream);
    }

    /// The peer has given up a lane because its path fails there.
    ///
    /// RR-RAIL-5.
    pub(in crate::progress) fn suspect_path_of(&mut self, lane: Id) {
        let Some(bulk) = self.core.lanes.get(lane) else { return };
        let (session, at) = (bulk.session, bulk.path);
        let Some(control) = self.controls.get_mut(session as usize) else { return };
        let doubted = control.lanes_mut().find(|lane| lane.at == at);
        if let Some(health) = doubted.and_then(|lane| lane.rail_health.as_mut()) {
            health.suspect();
            self.judge_paths(session);
        }
    }

    /// Where no path has ever answered, datagrams may not pass at all: then bulk lanes are tried on
    /// all paths, and one that comes shows that its path is one.
    ///
    /// RR-RAIL-3.
    fn try_mute_paths(&mut self, session: u32) {
        let now_ns = self.now_ns;
        let Some(control) = self.controls.get(session as usize) else { return };
        let is_long = |since: u64| now_ns.saturating_sub(since) >= LAST_RESORT_NS;
        let is_mute =
            |lane: &Lane| lane.rail_health.as_ref().is_some_and(RailHealth::has_never_answered);
        if control.silent_since_ns.is_some_and(is_long) && control.lanes().all(is_mute) {
            for lane in control.lanes() {
                self.core.path_ready(session, usize::from(lane.at), now_ns);
            }
        }
    }

    /// A path that answers shows that datagrams pass: what never answered is no last resort any
    /// more, and nobody would notice its end.
    ///
    /// RR-RAIL-3.
    fn leave_mute_paths(&mut self, session: u32) {
        let now_ns = self.now_ns;
        let Some(known) = self.core.sessions.at(session as usize) else { return };
        let Some(control) = self.controls.get(session as usize) else { return };
        let is_heard = |at: usize| {
            let mut lanes = control.lanes().filter(|lane| usize::from(lane.at) == at);
            lanes.any(|lane| lane.rail_health.as_ref().is_some_and(|it| !it.has_never_answered()))
        };
        let paths = known.rails.paths.iter().enumerate();
        // The first one is there from the beginning where the control lane goes by it.
        let is_by_tcp = |at: usize| usize::from(control.lane_at) == at;
        let mute = paths.filter(|&(at, path)| path.is_usable && !is_heard(at) && !is_by_tcp(at));
        let mute: Vec<usize> = mute.map(|(at, _)| at).collect();
        for at in mute {
            self.core.path_lost(session, at, now_ns);
        }
    }

    fn path_changed(&mut self, session: u32, at: u8, number: u16, change: Transition) {
        let now_ns = self.now_ns;
        let health = self
            .controls
            .get(session as usize)
            .and_then(|control| control.lanes().find(|lane| lane.at == at)?.rail_health.as_ref());
        // What never answered carries nothing, or is the last resort of a network that drops
        // datagrams: this is for people.
        let is_mute = health.is_some_and(RailHealth::has_never_answered);
        match change.to {
            _ if is_mute => {}
            Phase::Active => self.core.path_ready(session, usize::from(at), now_ns),
            Phase::Suspect | Phase::Down => {
                self.core.path_lost(session, usize::from(at), now_ns);
            }
            Phase::Probing => {}
        }
        let Some(known) = self.core.sessions.at_mut(session as usize) else { return };
        known.rails.note_change(usize::from(at), change.cause, now_ns);
        let remote = known.rails.paths.get(usize::from(at)).and_then(|path| path.remote);
        let (initiators, acceptors) = rails_of(number);
        let rail = if known.connection.is_initiator() { initiators } else { acceptors };
        let cause = change.cause;
        let address = Address::new(known.engine, known.locators, 0);
        let remote = remote.unwrap_or(known.locators.first().ip());
        let nic = self.rails.get(usize::from(rail)).map_or("", |rail| &rail.nic);
        let (from, to) = (change.from, change.to);
        tracing::info!(peer = %address, nic, %remote, ?from, ?to, "a path changed: {cause}");
        let (rail, state) = (usize::from(rail), state_of(change.to));
        self.completions.push_event(Event::PathChanged { address, rail, remote, state, cause });
    }
}
