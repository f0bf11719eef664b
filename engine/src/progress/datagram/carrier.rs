//! Which of several paths carries a session's contents.

use std::cmp::Reverse;

use super::lane::{Health, Lane};
use crate::progress::control::Control;
use crate::progress::engine::State;
use crate::proto::rails::PathState;
use crate::proto::rails::preference::{Distance, is_nearer};
use crate::proto::rails::trial::Used;
use crate::proto::session::Session;

/// What may be under way for a round trip to say something of the path, in bytes.
const UNLOADED_BYTES: u64 = 4 << 10;

/// Contents in a row by another path than the carrier that make the peer's choice this side's, too.
const ELSEWHERE: u32 = 8;
/// Who gets fewer long datagrams between two readings is not led by the peer.
const LED_FROM: u32 = 32;

/// Whether contents may go by a path.
fn is_fit(lane: &Lane) -> bool {
    lane.is_active() && lane.health == Health::Good
}

/// What users said of a path's rails: less is better.
fn class_of(session: &Session, lane: &Lane) -> (bool, bool) {
    let path = session.rails.paths.get(usize::from(lane.at));
    path.map_or((true, true), |path| (path.is_backup, !path.is_preferred))
}

/// Round trip of short packets by the carrier. Its own load, also that of the stream while
/// something of it is not acknowledged (`is_streaming`), may wait in front of it, and would do so
/// elsewhere.
fn round_trip_ns(carrier: &Lane, is_streaming: bool) -> Option<u64> {
    let (_, in_flight, _) = carrier.path.load();
    let short_ns = carrier.path.short_round_trip_ns()?;
    match carrier.path.least_round_trip_ns() {
        Some(least_ns) if in_flight > UNLOADED_BYTES || is_streaming => Some(least_ns),
        _ => Some(short_ns),
    }
}

/// Whether another path is not clearly farther than the carrier.
fn is_near(other: &Lane, carrier: &Lane, is_streaming: bool) -> bool {
    let both = round_trip_ns(carrier, is_streaming).zip(other.path.short_round_trip_ns());
    both.is_some_and(|(used_ns, its_ns)| !is_nearer(used_ns, its_ns))
}

impl Control {
    /// Contents came in a datagram of `length` bytes, by the carrier or elsewhere. `true`: the peer
    /// goes on sending them by another path.
    #[inline]
    pub(super) fn note_contents(&mut self, length: usize, is_elsewhere: bool) -> bool {
        let Some(choice) = &mut self.choice else { return false };
        let is_long = length >= choice.content_bytes.div_ceil(2);
        choice.contents_came = choice.contents_came.saturating_add(u32::from(is_long));
        if !is_elsewhere {
            choice.contents_elsewhere = 0;
            return false;
        }
        choice.contents_elsewhere = (choice.contents_elsewhere + 1) % ELSEWHERE;
        choice.contents_elsewhere == 0
    }
}

impl State {
    /// The best healthy path carries the contents: a preferred one, a backup last, of these the
    /// one with the shortest round trip, otherwise the fastest, or the first. While none is healthy
    /// the one that did stays.
    ///
    /// RR-RAIL-4.
    pub(super) fn choose_carrier(&mut self, session: u32) {
        let Some(known) = self.core.sessions.at(session as usize) else { return };
        let Some(control) = self.controls.get_mut(session as usize) else { return };
        let favourite = control.choice.as_ref().and_then(|it| it.preference.favourite());
        let rank = |lane: &Lane| {
            let speed = known.rails.paths.get(usize::from(lane.at)).map_or(0, PathState::speed);
            let is_other = Some(lane.number) != favourite;
            (class_of(known, lane), is_other, Reverse(speed), lane.at)
        };
        let best = control.standby.iter().enumerate().filter(|(_, lane)| is_fit(lane));
        let best = best.map(|(at, lane)| (rank(lane), at)).min();
        let carrier = control.datagram.as_deref();
        let current = carrier.filter(|lane| is_fit(lane)).map(rank);
        if let Some((rank, at)) = best
            && current.is_none_or(|current| rank < current)
        {
            if let Some(lane) = &mut control.datagram {
                lane.is_held = true;
            }
            control.exchange(at);
            if let Some(choice) = &mut control.choice {
                choice.carries_since_ns = self.now_ns;
            }
            tracing::debug!(session, "another path carries its contents");
        }
        let carrier = control.datagram.as_deref_mut();
        if let Some(lane) = carrier.filter(|lane| is_fit(lane) && lane.is_held) {
            lane.is_held = false;
            // What went by TCP meanwhile may be stuck on a rail that is down; what only goes by TCP
            // goes again by the next connection.
            self.core.resend_all(session, true);
        }
        // What is made from now on fits every path that may have to carry it.
        let least = control.lanes().filter(|lane| is_fit(lane));
        if let Some(bytes) = least.map(|lane| lane.path.content_bytes_max()).min()
            && let Some(choice) = &mut control.choice
            && bytes != choice.content_bytes
        {
            choice.content_bytes = bytes;
            self.core.set_content_bytes(session, bytes);
        }
        self.choose_stream(session);
        self.core.mark_dirty(session);
    }

    /// Contents of both ways had best go by the same path: acknowledgements go with what goes back,
    /// and what each way costs cannot be told where a message waits for the answer of the other.
    /// The side that opened the session chooses, for one of them has to.
    #[cold]
    pub(super) fn follow(&mut self, session: u32, path: u16) {
        let Some(known) = self.core.sessions.at(session as usize) else { return };
        let Some(control) = self.controls.get_mut(session as usize) else { return };
        control.lanes_mut().for_each(|lane| lane.path.apply_deferred_ack());
        let carrier = control.datagram.as_deref().filter(|lane| is_fit(lane));
        let theirs = control.standby.iter().find(|lane| lane.number == path && is_fit(lane));
        let (Some(carrier), Some(theirs)) = (carrier, theirs) else { return };
        let is_streaming = self.core.holds_long(session);
        let may_follow = class_of(known, theirs) == class_of(known, carrier)
            && is_near(theirs, carrier, is_streaming);
        let Some(choice) = &mut control.choice else { return };
        let is_free = !known.connection.is_initiator() && !choice.trial.is_trying();
        if may_follow && is_free {
            choice.preference.choose(path);
            self.choose_carrier(session);
        }
    }

    /// Reads what the carrier delivers, and tries whether a path that is as good and as near
    /// otherwise delivers more. Called when a packet came.
    #[cold]
    pub(super) fn try_paths(&mut self, session: u32) {
        let now_ns = self.now_ns;
        let Some(known) = self.core.sessions.at(session as usize) else { return };
        let Some(control) = self.controls.get_mut(session as usize) else { return };
        let Some(choice) = &mut control.choice else { return };
        choice.trial.put_off(now_ns);
        let came = std::mem::take(&mut choice.contents_came);
        let is_led = came >= LED_FROM && !known.connection.is_initiator();
        let carrier = control.datagram.as_deref_mut().filter(|lane| is_fit(lane));
        let Some(carrier) = carrier else { return };
        let mut delivered = carrier.path.delivered();
        if carrier.at == control.lane_at {
            delivered.bytes += self.core.delivered_by_stream(session);
        }
        let is_streaming = self.core.holds_long(session);
        let content_bytes = choice.content_bytes.max(1) as u64;
        let used = Used { path: carrier.number, delivered, content_bytes };
        let class = class_of(known, carrier);
        let claimed =
            |lane: &Lane| known.rails.paths.get(usize::from(lane.at)).map_or(0, PathState::speed);
        let speed = claimed(carrier);
        let is_candidate = |lane: &&Lane| {
            let is_slow = claimed(lane) > 0 && claimed(lane) <= speed / 2;
            let is_alike = is_fit(lane) && class_of(known, lane) == class;
            is_alike && is_near(lane, carrier, is_streaming) && !is_slow && !is_led
        };
        let standby = control.standby.iter().map(|lane| &**lane);
        let others = standby.filter(is_candidate).map(|lane| lane.number);
        if let Some(path) = choice.trial.read(now_ns, &used, others) {
            choice.preference.choose(path);
            self.choose_carrier(session);
        }
    }

    /// Compares the round trips of paths that are as good otherwise, and asks all of them for the
    /// next time. Called when a packet came, so an idle session asks nothing.
    #[cold]
    pub(super) fn compare_paths(&mut self, session: u32) {
        let now_ns = self.now_ns;
        let Some(known) = self.core.sessions.at(session as usize) else { return };
        let Some(control) = self.controls.get_mut(session as usize) else { return };
        if let Some(choice) = &mut control.choice {
            choice.preference.put_off(now_ns);
        }
        control.lanes_mut().for_each(|lane| lane.path.apply_deferred_ack());
        let Some(carrier) = control.datagram.as_deref().filter(|lane| is_fit(lane)) else { return };
        let class = class_of(known, carrier);
        let distance = |lane: &Lane| {
            let round_trip_ns = lane.path.short_round_trip_ns()?;
            Some(Distance { path: lane.number, round_trip_ns })
        };
        let alike = |lane: &&Lane| is_fit(lane) && class_of(known, lane) == class;
        let is_streaming = carrier.at == control.lane_at && self.core.holds_long(session);
        let used = round_trip_ns(carrier, is_streaming)
            .map(|round_trip_ns| Distance { path: carrier.number, round_trip_ns });
        let standby = control.standby.iter().map(|lane| &**lane);
        let others = standby.filter(alike).filter_map(distance);
        let choice = control.choice.as_mut();
        let is_moved = used
            .zip(choice)
            .is_some_and(|(used, choice)| choice.preference.compare(now_ns, used, others));
        let known = self.core.sessions.at_mut(session as usize);
        let mut paths = known.map(|known| &mut known.rails.paths);
        for lane in control.lanes_mut().filter(|lane| is_fit(lane)) {
            if let Some(path) = paths.as_mut().and_then(|all| all.get_mut(usize::from(lane.at)))
                && let Some(least_ns) = lane.path.least_round_trip_ns()
            {
                path.round_trip_ns = least_ns;
            }
            lane.path.ask();
            lane.wake_at(now_ns, session, &mut self.datagrams.timers);
        }
        if is_moved {
            self.choose_carrier(session);
        }
    }
}
