//! Credit: limits on outstanding envelopes and eager bytes.
//!
//! Limits are cumulative and modulo 2^32, like QUIC's MAX_DATA: duplicates are harmless and losses
//! have no effect. Control frames need no credit; their number is bounded by the operations and
//! lanes that they refer to.

/// The longest configurable window: a quarter of the number space.
pub(crate) const WINDOW_MAX: u32 = 1 << 30;

/// Credit for sending.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendCredit {
    used: u32,
    limit: u32,
}

impl SendCredit {
    /// Creates the credit of a session in which the peer has announced `limit`.
    pub(crate) fn new(limit: u32) -> Self {
        Self { used: 0, limit }
    }

    /// Returns the credit of a peer that exceeds its limit by `more`.
    #[cfg(test)]
    pub(crate) fn forged(self, more: u32) -> Self {
        Self { limit: self.limit.wrapping_add(more), ..self }
    }

    /// Returns the amount that may be sent now.
    #[inline]
    pub(crate) fn available(&self) -> u32 {
        let left = self.limit.wrapping_sub(self.used);
        // More than half the number space means that a hostile limit decreased.
        if left > u32::MAX / 2 { 0 } else { left }
    }

    /// Consumes available credit.
    #[inline]
    pub(crate) fn spend(&mut self, amount: u32) {
        debug_assert!(amount <= self.available(), "credit is checked before it is spent");
        self.used = self.used.wrapping_add(amount);
    }

    /// Handles a limit of the peer; old limits are ignored. Returns `true` if there is more now.
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

/// Credit granted to the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceiveCredit {
    window: u32,
    largest: u32,
    /// With this credit left the peer needs no more: more than half of the window, and enough for
    /// its next message.
    much: u32,
    arrived: u32,
    consumed: u32,
    announced: u32,
}

impl ReceiveCredit {
    /// Creates a credit of `window` unconsumed, of which the peer uses up to `largest` at once.
    pub(crate) fn new(window: u32, largest: u32) -> Self {
        debug_assert!(window <= WINDOW_MAX, "windows stay far from the wrap");
        let credit = Self { window, largest, announced: window, ..Self::default() };
        credit.with_window(window)
    }

    /// Returns it with another window.
    fn with_window(self, window: u32) -> Self {
        Self { window, much: (window / 2 + 1).max(self.largest), ..self }
    }

    /// Returns the window.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// Enlarges the window by `more`; the next limit announces that.
    pub(crate) fn grow(&mut self, more: u32) {
        debug_assert!(self.window <= WINDOW_MAX - more, "windows stay far from the wrap");
        *self = self.with_window(self.window + more);
        debug_assert!(self.held() <= self.window, "no more is held than was given");
    }

    /// Gives up what the window has grown by beyond `least`, as far as the peer has no credit of
    /// it, and as far as what is held takes no more than half of the rest: little traffic does not
    /// make it grow and shrink by turns. Returns how much that is.
    pub(crate) fn shrink(&mut self, least: u32) -> u32 {
        let peer_credit = self.announced.wrapping_sub(self.consumed);
        debug_assert!(peer_credit <= self.window, "the peer has no credit beyond the window");
        let window = peer_credit.max(2 * self.held()).max(least).min(self.window);
        debug_assert!(self.held() <= window, "what is held stays within the window");
        let before = self.window;
        *self = self.with_window(window);
        before - window
    }

    /// Returns the received and unconsumed amount.
    pub(crate) fn held(&self) -> u32 {
        self.arrived.wrapping_sub(self.consumed)
    }

    /// Returns the remaining credit of the peer.
    #[inline]
    pub(crate) fn left(&self) -> u32 {
        self.announced.wrapping_sub(self.arrived)
    }

    /// Charges `amount` to the peer. Returns `false` if it had no such credit.
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

    /// Consumes a received amount; its credit returns with the next segment.
    #[inline]
    pub(crate) fn consume(&mut self, amount: u32) {
        debug_assert!(amount <= self.held(), "no more is consumed than has arrived");
        self.consumed = self.consumed.wrapping_add(amount);
    }

    /// Charges and consumes `amount`, which is at most [`Self::left`].
    #[inline]
    pub(crate) fn pass(&mut self, amount: u32) {
        debug_assert!(amount <= self.left(), "credit is checked before it is charged");
        self.arrived = self.arrived.wrapping_add(amount);
        self.consumed = self.consumed.wrapping_add(amount);
    }

    /// Returns the limit to announce now.
    #[inline]
    pub(crate) fn announce(&mut self) -> u32 {
        let limit = self.consumed.wrapping_add(self.window);
        debug_assert!(
            limit.wrapping_sub(self.announced) <= u32::MAX / 2,
            "announced limits never decrease"
        );
        self.announced = limit;
        limit
    }

    /// Returns whether enough credit was freed to announce it without waiting for other traffic:
    /// half of the window, or any amount while the peer's remaining credit may be too little for
    /// its next message.
    #[inline(always)]
    pub(crate) fn is_update_due(&self) -> bool {
        // What was freed is part of what the peer has not left.
        self.left() < self.much && self.is_much_freed()
    }

    #[inline(never)]
    fn is_much_freed(&self) -> bool {
        let fresh = self.consumed.wrapping_add(self.window).wrapping_sub(self.announced);
        fresh > 0 && (fresh >= self.window.div_ceil(2) || self.left() < self.largest)
    }
}

/// Credit for messages to a peer: one envelope each, and the bytes of eager ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendCredits {
    envelopes: SendCredit,
    bytes: SendCredit,
    /// Eager bytes that the peer lets be under way at once, at least: its first limit.
    window_bytes: u32,
}

impl SendCredits {
    /// Creates credit up to the peer's first limits.
    pub(crate) fn new(envelope_limit: u32, byte_limit: u32) -> Self {
        Self {
            envelopes: SendCredit::new(envelope_limit),
            bytes: SendCredit::new(byte_limit),
            window_bytes: byte_limit,
        }
    }

    /// Returns the same with limits that the peer has not announced.
    #[cfg(test)]
    pub(crate) fn forged(self, envelopes: u32, bytes: u32) -> Self {
        Self {
            envelopes: self.envelopes.forged(envelopes),
            bytes: self.bytes.forged(bytes),
            ..self
        }
    }

    /// Returns whether a message can be sent at all.
    #[inline]
    pub(crate) fn has_envelope(&self) -> bool {
        self.envelopes.available() > 0
    }

    /// Returns the number of messages that can be sent.
    #[cfg(test)]
    pub(crate) fn envelopes_left(&self) -> u32 {
        self.envelopes.available()
    }

    /// Returns the bytes that can be sent.
    #[inline]
    pub(crate) fn bytes_left(&self) -> u32 {
        self.bytes.available()
    }

    /// Returns whether an eager message of `length` bytes can be sent.
    #[inline]
    pub(crate) fn covers(&self, length: u64) -> bool {
        self.has_envelope() && length <= u64::from(self.bytes_left())
    }

    /// Returns the window of bytes, as far as it is known: at least the first one, and if it has
    /// grown, what is left of it.
    pub(crate) fn window_bytes(&self) -> u32 {
        self.window_bytes.max(self.bytes_left())
    }

    /// Sets the first window to nothing, as if the peer granted it later.
    #[cfg(test)]
    pub(crate) fn forget_window(&mut self) {
        self.window_bytes = 0;
    }

    /// Spends the credit of a message with `bytes` of payload in its envelope's frame.
    ///
    /// RR-CREDIT-1.
    #[inline]
    pub(crate) fn spend(&mut self, bytes: u32) {
        if !planted!(SkipCredit) {
            self.envelopes.spend(1);
        }
        self.bytes.spend(bytes);
    }

    /// Handles limits from the peer. Returns whether one of them has grown.
    #[inline]
    pub(crate) fn handle_limits(&mut self, envelopes: u32, bytes: u32) -> bool {
        if planted!(LoseCredit) {
            self.envelopes.spend(self.envelopes.available() / 2);
        }
        let more = self.envelopes.handle_limit(envelopes);
        self.bytes.handle_limit(bytes) || more
    }
}

/// Credit of the peer for messages to this side: one envelope each, and the bytes of eager ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceiveCredits {
    envelopes: ReceiveCredit,
    bytes: ReceiveCredit,
}

impl ReceiveCredits {
    /// Creates windows of `envelopes` and `bytes`, for messages of at most `largest` bytes.
    pub(crate) fn new(envelopes: u32, bytes: u32, largest: u32) -> Self {
        let (envelopes, bytes) =
            (ReceiveCredit::new(envelopes, 1), ReceiveCredit::new(bytes, largest));
        Self { envelopes, bytes }
    }

    /// Returns the credit of envelopes, and that of bytes.
    pub(crate) fn both(&self) -> [&ReceiveCredit; 2] {
        [&self.envelopes, &self.bytes]
    }

    /// Returns the same, mutable.
    pub(crate) fn both_mut(&mut self) -> [&mut ReceiveCredit; 2] {
        [&mut self.envelopes, &mut self.bytes]
    }

    /// Returns the number of messages, and the bytes, that the peer can send.
    #[inline]
    pub(crate) fn left(&self) -> (u32, u32) {
        (self.envelopes.left(), self.bytes.left())
    }

    /// Charges a message with `bytes` of payload. An error names what it lacks: the peer violated
    /// the protocol.
    ///
    /// RR-CREDIT-1.
    #[inline]
    pub(crate) fn charge(&mut self, bytes: u32) -> Result<(), &'static str> {
        if !self.envelopes.handle_arrival(1) {
            return Err("envelope");
        }
        if !self.bytes.handle_arrival(bytes) {
            self.envelopes.consume(1);
            return Err("eager byte");
        }
        Ok(())
    }

    /// Notes that a message with `bytes` of payload that was charged uses no memory any more.
    #[inline]
    pub(crate) fn consume(&mut self, bytes: u32) {
        self.envelopes.consume(1);
        self.bytes.consume(bytes);
    }

    /// Charges messages that used no memory.
    #[inline]
    pub(crate) fn pass(&mut self, envelopes: u32, bytes: u32) {
        self.envelopes.pass(envelopes);
        self.bytes.pass(bytes);
    }

    /// Returns the limits to announce: envelopes, and bytes.
    #[inline]
    pub(crate) fn announce(&mut self) -> (u32, u32) {
        (self.envelopes.announce(), self.bytes.announce())
    }

    /// Returns whether a limit should be announced without waiting for traffic.
    #[inline(always)]
    pub(crate) fn is_update_due(&self) -> bool {
        !planted!(LoseCreditUpdates)
            && (self.envelopes.is_update_due() || self.bytes.is_update_due())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_of_one_is_usable() {
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
    fn low_credit_is_updated_as_soon_as_any_is_freed() {
        let mut receiver = ReceiveCredit::new(100, 10);
        assert!(receiver.handle_arrival(90));
        receiver.consume(5);
        assert!(!receiver.is_update_due(), "ten are left, and no more are used at once");
        assert!(receiver.handle_arrival(1));
        assert!(receiver.is_update_due());
    }

    /// Buffered messages may wait forever for receives: the rest of the window is all that is
    /// usable.
    #[test]
    fn exhausted_credit_is_updated_at_the_first_release() {
        let mut receiver = ReceiveCredit::new(8, 1);
        assert!(receiver.handle_arrival(7));
        receiver.consume(1);
        assert!(!receiver.is_update_due(), "one is left, and one is less than half");
        assert!(receiver.handle_arrival(1));
        assert!(receiver.is_update_due());
        assert_eq!(receiver.announce(), 9);
        assert!(!receiver.is_update_due());
    }

    /// RR-CREDIT-5
    #[test]
    fn grown_window_shrinks_as_what_is_held_is_consumed() {
        let mut receiver = ReceiveCredit::new(8, 1);
        let mut sender = SendCredit::new(8);
        receiver.grow(56);
        sender.handle_limit(receiver.announce());
        sender.spend(40);
        assert!(receiver.handle_arrival(40));
        let mut window = 64;
        for held in (0..40).rev() {
            receiver.consume(1);
            window -= receiver.shrink(8);
            assert_eq!(receiver.window(), window);
            assert!(window >= (2 * held).min(64) && window >= receiver.left() + held);
            assert!(receiver.left() > 0);
        }
        // The peer has what was announced, and no more beyond the least.
        while receiver.window() > 8 {
            assert!(sender.available() > 0);
            sender.spend(1);
            assert!(receiver.handle_arrival(1));
            receiver.consume(1);
            receiver.shrink(8);
        }
        assert_eq!((receiver.window(), receiver.left(), sender.available()), (8, 8, 8));
        for _ in 0..20 {
            sender.spend(1);
            assert!(receiver.handle_arrival(1));
            receiver.consume(1);
            assert_eq!(receiver.shrink(8), 0);
            if receiver.is_update_due() {
                assert!(sender.handle_limit(receiver.announce()));
            }
        }
    }

    #[test]
    fn window_growth_is_announced_at_once() {
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
    fn longest_window_wraps_around() {
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
    fn limits_wrap_and_never_decrease() {
        let mut sender = SendCredit { used: u32::MAX - 1, limit: u32::MAX };
        assert!(sender.handle_limit(3));
        assert_eq!(sender.available(), 5);
        assert!(!sender.handle_limit(1));
        assert_eq!(sender.available(), 5);
        sender.spend(5);
        assert_eq!(sender.available(), 0);
    }
}
