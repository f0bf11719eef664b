//! The totals of the windows of sessions, and the windows announced in hellos and replies in
//! progress. A peer may use an announced window as soon as the session is established, so it counts
//! as reserved from then on: of many peers that connect at once each gets a share of the remainder.
//!
//! An engine is offered one window, however many hellos it sends: replays reserve nothing.

use std::collections::HashMap;

use super::credit::{ReceiveCredit, ReceiveCredits, WINDOW_MAX};
use super::peer_engine::PeerEngine;
use super::{Limits, Session};
use crate::proto::context::{Cx, SharedState};
use crate::proto::core::{Core, ENVELOPES_MIN};
use crate::proto::ready::Work;

/// The window offered to one engine.
#[derive(Clone, Copy, Debug)]
struct Offer {
    limits: Limits,
    /// Connections in progress with this offer.
    holders: u32,
}

/// Limits on windows.
#[derive(Clone, Debug)]
pub(crate) struct CreditLimits {
    /// The most that is announced to one peer.
    most: Limits,
    /// Totals of the windows of all sessions.
    envelopes: u64,
    bytes: u64,
}

impl CreditLimits {
    /// At most `most` is announced to one peer; `envelopes` and `bytes` limit the windows of all
    /// sessions together.
    pub(crate) const fn new(most: Limits, envelopes: u64, bytes: u64) -> Self {
        Self { most, envelopes, bytes }
    }

    /// Returns how many unexpected messages `sessions` may have: each always gets the minimum,
    /// beyond the total.
    pub(in crate::proto) fn unexpected_max(&self, sessions: usize) -> usize {
        let total = usize::try_from(self.envelopes).unwrap_or(usize::MAX);
        total.saturating_add(sessions * ENVELOPES_MIN as usize)
    }

    /// Returns the longest windows with which sessions begin, of envelopes and of bytes: that of
    /// the session with this engine itself has space for the longest eager message.
    fn least_windows(&self) -> (u32, u32) {
        let Limits { envelope_limit, byte_limit, eager_limit, .. } = self.most;
        (envelope_limit.max(ENVELOPES_MIN), byte_limit.max(eager_limit))
    }
}

/// Totals of windows, and announced ones; see the module.
#[derive(Debug)]
pub(crate) struct Offers {
    limits: CreditLimits,
    /// Envelopes and bytes of the windows of sessions, and of unexpected messages of closed ones.
    reserved_envelopes: u64,
    reserved_bytes: u64,
    by_engine: HashMap<u64, Offer>,
    envelopes: u64,
    bytes: u64,
    /// The window of a session could not grow.
    has_met_bound: bool,
    /// Sessions with a low window that could not grow enough, in ascending order.
    low: Vec<u32>,
}

/// The windows of one session may take this share of a limit.
const SHARE: u64 = 4;

/// Returns whether unexpected messages take up most of a window.
fn is_low(credit: &ReceiveCredit) -> bool {
    credit.held() >= credit.window() - credit.window() / 4
}

impl Offers {
    /// Creates the totals of an engine without sessions.
    pub(in crate::proto) fn new(limits: CreditLimits) -> Self {
        Self {
            limits,
            reserved_envelopes: 0,
            reserved_bytes: 0,
            by_engine: HashMap::new(),
            envelopes: 0,
            bytes: 0,
            has_met_bound: false,
            low: Vec::new(),
        }
    }

    /// Doubles a session's window of which unexpected messages take up most, out of what is free:
    /// the receive that the program posts next may be for a message that is still to arrive.
    /// Without byte credit, payloads stay with the sender. Returns `true` if the limits are to be
    /// announced.
    ///
    /// `session`: its slot, and its engine; `windows`: of envelopes, and of bytes.
    ///
    /// RR-CREDIT-5.
    #[inline]
    pub(super) fn extend_windows(
        &mut self,
        session: (u32, u64),
        windows: [&mut ReceiveCredit; 2],
    ) -> bool {
        windows.iter().any(|credit| is_low(credit)) && self.double_windows(session, windows)
    }

    #[cold]
    fn double_windows(
        &mut self,
        (slot, engine): (u32, u64),
        [envelopes, bytes]: [&mut ReceiveCredit; 2],
    ) -> bool {
        let CreditLimits { most, envelopes: total, bytes: total_bytes } = self.limits;
        let taken = self.reserved_envelopes + self.envelopes;
        let more_envelopes = extend(envelopes, total, taken, most.envelope_limit);
        self.reserved_envelopes += u64::from(more_envelopes);
        let taken = self.reserved_bytes + self.bytes;
        let more_bytes = extend(bytes, total_bytes, taken, most.byte_limit);
        self.reserved_bytes += u64::from(more_bytes);
        if is_low(envelopes) || is_low(bytes) {
            self.note_low(slot);
        }
        if envelopes.held() == envelopes.window() {
            // It is extended when another one returns its windows.
            if !std::mem::replace(&mut self.has_met_bound, true) {
                tracing::warn!(
                    "{} messages of engine {engine:#x} wait for receives here, and the setting \
                     unexpected_messages ({total}; a quarter of it for each peer) allows no more: \
                     further ones wait at their sender. Post receives for some, or raise it",
                    envelopes.held(),
                );
            }
        }
        more_envelopes + more_bytes > 0
    }

    /// Extends a window of bytes to `wanted`, as far as half of all memory stays free: for
    /// unexpected messages, and for peers to come. Returns `true` if the limit is to be announced.
    ///
    /// RR-CREDIT-5.
    pub(super) fn extend_to(&mut self, bytes: &mut ReceiveCredit, wanted: u32) -> bool {
        let lacking = wanted.saturating_sub(bytes.window());
        if lacking == 0 {
            return false;
        }
        let (total, taken) = (self.limits.bytes / 2, self.reserved_bytes + self.bytes);
        let more = growth(bytes, total, taken, lacking);
        bytes.grow(more);
        self.reserved_bytes += u64::from(more);
        more > 0
    }

    /// Reserves the windows of a session that begins.
    pub(super) fn reserve(&mut self, ours: Limits) {
        self.reserved_envelopes += u64::from(ours.envelope_limit);
        self.reserved_bytes += u64::from(ours.byte_limit);
    }

    /// Releases windows, or parts of them: so many envelopes, and bytes.
    pub(in crate::proto) fn release(&mut self, envelopes: u64, bytes: u64) {
        debug_assert!(
            envelopes <= self.reserved_envelopes && bytes <= self.reserved_bytes,
            "only reserved windows are released"
        );
        self.reserved_envelopes -= envelopes;
        self.reserved_bytes -= bytes;
    }

    /// Returns the reserved envelopes and bytes.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn reserved(&self) -> (u64, u64) {
        (self.reserved_envelopes, self.reserved_bytes)
    }

    /// Returns whether half of the memory of unexpected messages is free.
    fn is_half_free(&self) -> bool {
        self.reserved_bytes + self.bytes <= self.limits.bytes / 2
    }

    /// Returns whether a window may grow, as far as the totals are concerned.
    fn has_free(&self) -> bool {
        self.reserved_envelopes + self.envelopes < self.limits.envelopes
            || self.reserved_bytes + self.bytes < self.limits.bytes
    }

    /// Returns the limits offered to a new peer.
    fn next(&self, id: u64) -> Limits {
        let share = |per_peer: u32, total: u64, given: u64, least: u32| -> u32 {
            // An eighth of the remainder: many peers get some, few peers get plenty.
            let left = total.saturating_sub(given) / 8;
            u32::try_from(left).unwrap_or(u32::MAX).min(per_peer).max(least)
        };
        let CreditLimits { most, envelopes, bytes } = self.limits;
        Limits {
            session: id,
            envelope_limit: share(
                most.envelope_limit,
                envelopes,
                self.reserved_envelopes + self.envelopes,
                ENVELOPES_MIN.min(most.envelope_limit),
            ),
            byte_limit: share(most.byte_limit, bytes, self.reserved_bytes + self.bytes, 0),
            ..most
        }
    }

    /// Makes an offer, or adds a connection to one, as [`SharedState::offer_to`] does.
    fn make(&mut self, engine: u64, id: u64) -> Limits {
        if let Some(offer) = self.by_engine.get_mut(&engine) {
            offer.holders += 1;
            return Limits { session: id, ..offer.limits };
        }
        let limits = self.next(id);
        if planted!(ForgetOffers) {
            return limits;
        }
        self.envelopes += u64::from(limits.envelope_limit);
        self.bytes += u64::from(limits.byte_limit);
        self.by_engine.insert(engine, Offer { limits, holders: 1 });
        limits
    }

    /// Ends an offer of one connection. Returns whether something is free with that: the caller
    /// extends the windows of others, after those of the session are reserved.
    pub(in crate::proto) fn end(&mut self, engine: u64) -> bool {
        let Some(offer) = self.by_engine.get_mut(&engine) else { return false };
        offer.holders -= 1;
        if offer.holders > 0 {
            return false;
        }
        self.envelopes -= u64::from(offer.limits.envelope_limit);
        self.bytes -= u64::from(offer.limits.byte_limit);
        self.by_engine.remove(&engine);
        debug_assert!(
            !self.by_engine.is_empty() || (self.envelopes, self.bytes) == (0, 0),
            "the totals are those of the offers"
        );
        true
    }

    /// Notes the windows of a session that begins: what others return may extend them.
    pub(super) fn note_windows(&mut self, slot: u32, credits: &ReceiveCredits) {
        if credits.both().into_iter().any(is_low) {
            self.note_low(slot);
        }
    }

    /// Notes a session with a low window: [`Core::extend_others`] extends it.
    fn note_low(&mut self, slot: u32) {
        if let Err(at) = self.low.binary_search(&slot) {
            self.low.insert(at, slot);
        }
    }
}

/// Doubles a window, at least by the initial one; returns the increase. `taken` of `total` is
/// reserved already.
fn extend(credit: &mut ReceiveCredit, total: u64, taken: u64, least: u32) -> u32 {
    if !is_low(credit) {
        return 0;
    }
    let more = growth(credit, total, taken, credit.window().max(least));
    credit.grow(more);
    more
}

/// Returns by how much a window may grow, at most `wanted`, within the limit of all windows.
fn growth(credit: &ReceiveCredit, total: u64, taken: u64, wanted: u32) -> u32 {
    let window = credit.window();
    // Half of the free credit: some is left for others.
    let free = total.saturating_sub(taken).div_ceil(2);
    let share = (total / SHARE).max(1).saturating_sub(window.into());
    let room = u64::from(WINDOW_MAX.saturating_sub(window).min(wanted));
    let more = free.min(share).min(room) as u32;
    debug_assert!(
        more == 0 || taken + u64::from(more) <= total,
        "windows grow within the limit of all"
    );
    more
}

impl ReceiveCredits {
    /// Returns the windows that a session keeps whose byte window should have `wanted`: those of
    /// the beginning at least, and that while half of all memory is free.
    #[inline]
    fn kept_windows(offers: &Offers, wanted: u32) -> (u32, u32) {
        let (envelopes, bytes) = offers.limits.least_windows();
        let wanted = if offers.is_half_free() { wanted } else { 0 };
        (envelopes, bytes.max(wanted))
    }

    /// Returns whether a window is longer than the session keeps it.
    #[inline]
    fn has_grown(&self, offers: &Offers, wanted: u32) -> bool {
        let kept = Self::kept_windows(offers, wanted);
        let [envelopes, bytes] = self.both();
        envelopes.window() > kept.0 || bytes.window() > kept.1
    }

    /// Shrinks the windows to what the session keeps: what they have grown by is free again.
    /// Returns whether that is anything.
    ///
    /// RR-CREDIT-5.
    fn shrink(&mut self, offers: &mut Offers, wanted: u32) -> bool {
        let kept = Self::kept_windows(offers, wanted);
        let [envelopes, bytes] = self.both_mut();
        let (envelopes, bytes) = (envelopes.shrink(kept.0), bytes.shrink(kept.1));
        offers.release(envelopes.into(), bytes.into());
        envelopes + bytes > 0
    }
}

impl Cx<'_> {
    /// Extends the windows of the session with `engine`, if need be, after an unexpected message
    /// has come.
    #[inline]
    pub(in crate::proto) fn extend_windows(&mut self, credits: &mut ReceiveCredits, engine: u64) {
        if self.shared.offers.extend_windows((self.slot, engine), credits.both_mut()) {
            self.add_work(Work::Flush);
        }
    }
}

impl Session {
    /// Notes a message of `length` bytes, whose credit is charged, and whether its receive was
    /// posted. If it was, or no other message waits for its receive, receives keep up with
    /// messages.
    pub(in crate::proto) fn note_matched(&mut self, length: u64, is_posted: bool) {
        let [envelopes, _] = self.segments.receive_credits().both();
        let keep_up = is_posted || envelopes.held() == 1;
        self.segments.eager_limit_mut().note_receives(length, keep_up);
    }
}

impl PeerEngine {
    /// Returns the limits to announce in this engine's hello to it. They are reserved during all
    /// attempts to connect.
    ///
    /// RR-CREDIT-4.
    pub(crate) fn offer_in_hello(&mut self, cx: &mut Cx<'_>, id: u64) -> Limits {
        let offers = &mut cx.shared.offers;
        let limits = offers.make(self.id(), id);
        if self.begin_offer() {
            let is_over = offers.end(self.id());
            debug_assert!(!is_over, "the offer goes on with this hello");
        }
        limits
    }

    /// Ends the own offer of the session, which is connected, or stops trying. Returns whether
    /// something is free with that.
    fn end_own_offer(&mut self, cx: &mut Cx<'_>) -> bool {
        let (has_offer, offers) = (self.end_offer(), &mut cx.shared.offers);
        debug_assert!(
            !has_offer || offers.by_engine.contains_key(&self.id()) || planted!(ForgetOffers),
            "an offer stays until it ends"
        );
        has_offer && offers.end(self.id())
    }
}

impl SharedState {
    /// Returns the limits to announce to an engine in a hello or a reply, for a session with id
    /// `id`. They are reserved until the connection becomes a session, or fails: once for each call
    /// of this ([`Core::admit_peer`], [`Core::withdraw`]).
    ///
    /// RR-CREDIT-4.
    pub(crate) fn offer_to(&mut self, engine: u64, id: u64) -> Limits {
        self.offers.make(engine, id)
    }

    /// Returns the limits offered to a new peer.
    pub(crate) fn offer(&self, id: u64) -> Limits {
        self.offers.next(id)
    }

    /// Returns the most that this engine announces to a peer.
    pub(crate) fn offer_max(&self) -> &Limits {
        &self.offers.limits.most
    }

    /// Sets whether a thread answers for the engine while its owner computes; hellos announce it.
    pub(crate) fn set_answers(&mut self, answers: bool) {
        self.offers.limits.most.answers = answers;
    }

    /// Returns the totals of windows, and announced ones.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn offers(&self) -> &Offers {
        &self.offers
    }
}

impl Core {
    /// Ends the own offer of a session that is connected, or stops trying.
    pub(in crate::proto) fn end_own_offer(&mut self, session: u32) {
        if self.with(session, |it, mut cx| it.peer.end_own_offer(&mut cx)) == Some(true) {
            self.extend_others();
        }
    }

    /// Shrinks the windows of a session if they are longer than it keeps them.
    #[inline]
    pub(in crate::proto) fn shrink_grown_windows(&mut self, slot: u32) {
        let has_grown = self.with(slot, |it, cx| {
            let wanted = it.segments.eager_limit().wanted_window();
            it.segments.receive_credits().has_grown(&cx.shared.offers, wanted)
        });
        if has_grown == Some(true) {
            self.shrink_windows(slot);
        }
    }

    /// Shrinks the windows of a session, and extends those of others.
    #[cold]
    fn shrink_windows(&mut self, slot: u32) {
        let has_shrunk = self.with(slot, |it, cx| {
            let wanted = it.segments.eager_limit().wanted_window();
            it.segments.receive_credits_mut().shrink(&mut cx.shared.offers, wanted)
        });
        if has_shrunk == Some(true) {
            self.extend_others();
        }
    }

    /// Extends the windows of sessions at their limit, after others were returned, as far as
    /// something is free. This happens with each message of a closed session, so that it visits no
    /// other session.
    #[cold]
    pub(in crate::proto) fn extend_others(&mut self) {
        if !std::mem::take(&mut self.shared.offers.has_met_bound) {
            return;
        }
        let mut low = std::mem::take(&mut self.shared.offers.low);
        let mut visited = 0;
        while let Some(&slot) = low.get(visited)
            && self.shared.offers.has_free()
        {
            visited += 1;
            if let Some((session, mut cx)) = self.enter(slot)
                && session.is_connected()
            {
                cx.extend_windows(session.segments.receive_credits_mut(), session.peer.id());
            }
        }
        // Those of the visited that still are low have been noted again, and come first.
        let offers = &mut self.shared.offers;
        offers.has_met_bound |= visited < low.len();
        let ends = offers.low.last().zip(low.get(visited));
        debug_assert!(ends.is_none_or(|(last, next)| last < next), "the list is in order");
        low.splice(..visited, offers.low.drain(..));
        offers.low = low;
    }
}

#[cfg(any(test, feature = "sim"))]
impl Offers {
    /// Returns the number of engines with an offer and no session yet.
    pub(crate) fn open(&self) -> usize {
        self.by_engine.len()
    }

    /// Returns the limits on the envelopes and bytes of all windows.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.limits.envelopes, self.limits.bytes)
    }

    /// Returns the sessions that [`Core::extend_others`] visits.
    #[cfg(test)]
    pub(in crate::proto) fn low(&self) -> &[u32] {
        &self.low
    }

    /// Checks that the totals are the sums of the offers, and that no session is listed twice.
    pub(crate) fn check(&self) {
        let sum = self.by_engine.values().fold((0, 0), |(envelopes, bytes), offer| {
            let Limits { envelope_limit, byte_limit, .. } = offer.limits;
            (envelopes + u64::from(envelope_limit), bytes + u64::from(byte_limit))
        });
        assert_eq!(sum, (self.envelopes, self.bytes), "the totals are those of the offers");
        assert!(self.by_engine.values().all(|offer| offer.holders > 0), "each offer is held");
        assert!(self.low.is_sorted_by(|one, other| one < other), "each session is there once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::core::Config;

    /// RR-CREDIT-4
    #[test]
    fn simultaneous_peers_share_the_credit() {
        let config = Config { eager_credit_bytes: 1 << 20, ..Config::for_tests() };
        let mut core = Core::new(1, Config { unexpected_bytes: 8000, ..config }.into());
        let sum: u32 =
            (2..50).map(|engine| core.shared_mut().offer_to(engine, engine).byte_limit).sum();
        assert!(sum <= 8000, "{sum}");
        assert_eq!(core.shared().offers().open(), 48);
        for engine in 2..50 {
            core.shared.offers.end(engine);
        }
        assert_eq!(
            (core.shared().offers().open(), core.shared.offers.bytes, core.shared.offers.envelopes),
            (0, 0, 0)
        );
    }

    /// RR-CREDIT-4, RR-CREDIT-5
    #[test]
    fn windows_of_one_session_take_at_most_a_quarter() {
        const TOTAL: u64 = 1 << 20;
        let config = Config { unexpected_messages: TOTAL, ..Config::for_tests() };
        let mut core = Core::new(1, config.into());
        let mut windows = [ReceiveCredit::new(64, 1), ReceiveCredit::new(0, 1)];
        core.shared.offers.reserved_envelopes = 64;
        let mut arrived = 0;
        while arrived < TOTAL && windows[0].handle_arrival(1) {
            arrived += 1;
            let [first, second] = &mut windows;
            if core.shared.offers.extend_windows((0, 2), [first, second]) {
                for credit in &mut windows {
                    credit.announce();
                }
            }
        }
        let (envelopes, bytes) = core.shared().reserved();
        assert_eq!((arrived, envelopes), (TOTAL / SHARE, TOTAL / SHARE));
        assert!(bytes > 0, "a window that was empty grows, too");
        assert!(core.shared.offers.has_met_bound);
    }

    #[test]
    fn one_engine_gets_one_offer() {
        let config = Config { eager_credit_bytes: 1 << 20, ..Config::for_tests() };
        let mut core = Core::new(1, config.into());
        let first = core.shared_mut().offer_to(2, 10);
        let taken = core.shared.offers.bytes;
        let again = core.shared_mut().offer_to(2, 11);
        assert_eq!((first.byte_limit, again.session), (again.byte_limit, 11));
        assert_eq!(core.shared.offers.bytes, taken);
        core.shared.offers.end(2);
        assert_eq!(core.shared.offers.bytes, taken, "one connection is still in progress");
        core.shared.offers.end(2);
        core.shared.offers.end(2);
        assert_eq!(core.shared.offers.bytes, 0);
    }
}
