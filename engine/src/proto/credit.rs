//! Credits: how many envelopes and eager bytes may be under way.
//!
//! Limits are cumulative and modulo 2^32, like QUIC's MAX_DATA: repeating one does no harm and
//! losing one costs nothing. Control frames need no credit; their number is bounded by the
//! operations and lanes they speak of.

/// The longest window, which settings can ask for: a quarter of the circle.
pub(crate) const WINDOW_MAX: u32 = 1 << 30;

/// What this side may still send.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendCredit {
    used: u32,
    limit: u32,
}

impl SendCredit {
    /// Starts a session in which the peer allows `limit` in all so far.
    pub(crate) fn new(limit: u32) -> Self {
        Self { used: 0, limit }
    }

    /// That of somebody who takes `more` than was given.
    #[cfg(test)]
    pub(crate) fn forged(self, more: u32) -> Self {
        Self { limit: self.limit.wrapping_add(more), ..self }
    }

    /// How much may be sent now.
    #[inline]
    pub(crate) fn available(&self) -> u32 {
        let left = self.limit.wrapping_sub(self.used);
        // More than half the circle means that a hostile limit went backwards.
        if left > u32::MAX / 2 { 0 } else { left }
    }

    /// Uses some of what is available.
    #[inline]
    pub(crate) fn spend(&mut self, amount: u32) {
        debug_assert!(amount <= self.available(), "credit is checked before it is spent");
        self.used = self.used.wrapping_add(amount);
    }

    /// The peer announces its limit; old announcements do nothing. `true`: there is more now.
    ///
    /// RR-CREDIT-2.
    #[inline]
    pub(crate) fn handle_limit(&mut self, limit: u32) -> bool {
        let ahead = limit.wrapping_sub(self.limit);
        if ahead == 0 || ahead > u32::MAX / 2 {
            return false;
        }
        self.limit = limit;
        true
    }
}

/// What the peer may still send.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceiveCredit {
    window: u32,
    largest: u32,
    arrived: u32,
    consumed: u32,
    announced: u32,
}

impl ReceiveCredit {
    /// The peer may have `window` unconsumed, and uses up to `largest` at once.
    pub(crate) fn new(window: u32, largest: u32) -> Self {
        debug_assert!(window <= WINDOW_MAX, "windows stay far from the wrap");
        Self { window, largest, announced: window, ..Self::default() }
    }

    /// The window.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// The peer may have `more` unconsumed from now on; the next limit says so.
    pub(crate) fn grow(&mut self, more: u32) {
        debug_assert!(self.window <= WINDOW_MAX - more, "windows stay far from the wrap");
        self.window += more;
    }

    /// What arrived and was not consumed.
    pub(crate) fn held(&self) -> u32 {
        self.arrived.wrapping_sub(self.consumed)
    }

    /// What the peer may still use.
    #[inline]
    pub(crate) fn left(&self) -> u32 {
        self.announced.wrapping_sub(self.arrived)
    }

    /// The peer used `amount`. `false`: it had no such credit.
    #[inline]
    #[must_use]
    pub(crate) fn handle_arrival(&mut self, amount: u32) -> bool {
        let left = self.announced.wrapping_sub(self.arrived);
        if amount > left {
            return false;
        }
        self.arrived = self.arrived.wrapping_add(amount);
        true
    }

    /// What arrived was consumed; its credit goes back with the next segment.
    #[inline]
    pub(crate) fn consume(&mut self, amount: u32) {
        self.consumed = self.consumed.wrapping_add(amount);
    }

    /// The peer used `amount`, of which [`Self::left`] has so much, and it is consumed already.
    #[inline]
    pub(crate) fn pass(&mut self, amount: u32) {
        debug_assert!(amount <= self.left(), "credit is looked at before it is charged");
        self.arrived = self.arrived.wrapping_add(amount);
        self.consumed = self.consumed.wrapping_add(amount);
    }

    /// The limit to announce now.
    #[inline]
    pub(crate) fn announce(&mut self) -> u32 {
        self.announced = self.consumed.wrapping_add(self.window);
        self.announced
    }

    /// Whether so much came free that the peer should hear of it without waiting for other
    /// traffic: half of the window, or anything while what the peer has left may be too little
    /// for what it wants to send.
    #[inline]
    pub(crate) fn is_update_due(&self) -> bool {
        let fresh = self.consumed.wrapping_add(self.window).wrapping_sub(self.announced);
        let left = self.announced.wrapping_sub(self.arrived);
        fresh > 0 && (fresh >= self.window.div_ceil(2) || left < self.largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_one_goes_back_and_forth() {
        let mut receiver = ReceiveCredit::new(1, 1);
        let mut sender = SendCredit::new(1);
        for _ in 0..5 {
            assert_eq!(sender.available(), 1);
            sender.spend(1);
            assert_eq!(sender.available(), 0);
            assert!(receiver.handle_arrival(1));
            assert!(!receiver.handle_arrival(1));
            assert!(!receiver.is_update_due());
            receiver.consume(1);
            assert!(receiver.is_update_due());
            assert!(sender.handle_limit(receiver.announce()));
        }
    }

    #[test]
    fn a_peer_whose_credit_may_not_do_hears_of_what_comes_free() {
        let mut receiver = ReceiveCredit::new(100, 10);
        assert!(receiver.handle_arrival(90));
        receiver.consume(5);
        assert!(!receiver.is_update_due(), "ten are left, and no more are used at once");
        assert!(receiver.handle_arrival(1));
        assert!(receiver.is_update_due());
    }

    /// What is held may wait for its receive for ever: the rest of the window is all there is.
    #[test]
    fn a_peer_without_credit_hears_of_the_first_that_comes_free() {
        let mut receiver = ReceiveCredit::new(8, 1);
        assert!(receiver.handle_arrival(7));
        receiver.consume(1);
        assert!(!receiver.is_update_due(), "one is left, and one is less than half");
        assert!(receiver.handle_arrival(1));
        assert!(receiver.is_update_due());
        assert_eq!(receiver.announce(), 9);
        assert!(!receiver.is_update_due());
    }

    #[test]
    fn a_window_that_grows_is_announced_at_once() {
        let mut receiver = ReceiveCredit::new(8, 1);
        assert!(receiver.handle_arrival(6));
        assert!(!receiver.is_update_due());
        receiver.grow(8);
        assert!(receiver.is_update_due());
        assert_eq!(receiver.announce(), 16);
        assert!(receiver.handle_arrival(10));
        assert!(!receiver.handle_arrival(1));
    }

    #[test]
    fn the_longest_window_goes_round_the_circle() {
        let mut receiver = ReceiveCredit::new(WINDOW_MAX, 1);
        let mut sender = SendCredit::new(WINDOW_MAX);
        for _ in 0..9 {
            assert_eq!(sender.available(), WINDOW_MAX);
            sender.spend(WINDOW_MAX);
            assert!(receiver.handle_arrival(WINDOW_MAX));
            assert!(!receiver.handle_arrival(1));
            receiver.consume(WINDOW_MAX);
            assert!(receiver.is_update_due());
            assert!(sender.handle_limit(receiver.announce()));
        }
    }

    /// RR-CREDIT-2
    #[test]
    fn limits_wrap_and_never_go_back() {
        let mut sender = SendCredit { used: u32::MAX - 1, limit: u32::MAX };
        assert!(sender.handle_limit(3));
        assert_eq!(sender.available(), 5);
        assert!(!sender.handle_limit(1));
        assert_eq!(sender.available(), 5);
        sender.spend(5);
        assert_eq!(sender.available(), 0);
    }
}
