//! Path MTU discovery at the packetisation layer (RFC 8899).
//!
//! The interface's own maximum is tried first, since it is the answer on a single Ethernet; then
//! the range is halved. A lost probe is no sign of congestion. When long datagrams are lost while
//! short ones pass, the path has become a black hole for long ones and discovery restarts.

/// Lost probes of one length after which it counts as too long.
const TRIES: u16 = 3;
/// Ranges shorter than this are not searched further, in bytes.
const STEP_BYTES: u32 = 16;
/// Long datagrams lost in a row, with a later short one acknowledged, that indicate a black hole.
const BLACK_HOLE_LOSSES: u32 = 8;
/// Time after which a path is searched again, in nanoseconds, as networks are repaired.
const AGAIN_NS: u64 = 60_000_000_000;

/// MTU discovery; see the module. All lengths are those of UDP payloads, tag included.
#[derive(Clone, Debug)]
pub(super) struct Mtu {
    least: u32,
    most: u32,
    current: u32,
    /// The smallest length known to be too long, or one more than the maximum.
    too_long: u32,
    /// Length of the outstanding probe.
    probing: Option<u32>,
    tries: u16,
    /// Long datagrams lost since one was acknowledged, and the highest of their numbers.
    long_lost: u32,
    long_lost_highest: u64,
    search_again_ns: u64,
    /// Before this time there is nothing to probe, without a new event.
    rests_until_ns: u64,
    /// The length that was too long when it was searched last, unless it has passed since; 0: none
    /// was.
    too_long_before: u16,
}

impl Mtu {
    pub(super) fn new(least: usize, most: usize) -> Self {
        let (least, most) = (least as u32, most.max(least) as u32);
        let mut mtu = Self {
            least,
            most,
            current: least,
            too_long: most + 1,
            probing: None,
            tries: 0,
            long_lost: 0,
            long_lost_highest: 0,
            search_again_ns: u64::MAX,
            rests_until_ns: 0,
            too_long_before: 0,
        };
        mtu.rests_until_ns = mtu.next_probe_ns();
        mtu
    }

    /// Returns the longest datagram that may be sent now.
    #[inline]
    pub(super) fn current(&self) -> usize {
        self.current as usize
    }

    /// Returns the length that any network takes.
    pub(super) fn least(&self) -> usize {
        self.least as usize
    }

    /// Whether longer datagrams are known to be lost, though both hosts take them.
    pub(super) fn is_limited(&self) -> bool {
        let is_found = self.too_long <= self.most && self.too_long - self.current <= STEP_BYTES;
        is_found || u32::from(self.too_long_before) > self.current
    }

    /// The length to probe next, if it is time to.
    #[inline]
    pub(super) fn wanted(&mut self, now_ns: u64) -> Option<usize> {
        if self.probing.is_some() {
            return None;
        }
        if now_ns >= self.search_again_ns {
            self.search_again_ns = u64::MAX;
            self.too_long = self.most + 1;
            self.tries = 0;
            self.rests_until_ns = self.next_probe_ns();
        }
        if self.too_long > self.most && self.current < self.most {
            return Some(self.most as usize);
        }
        let bytes = self.current + (self.too_long - self.current) / 2;
        (self.too_long - self.current > STEP_BYTES).then_some(bytes as usize)
    }

    /// Returns whether [`Self::wanted`] returns nothing now, and will not without a new event.
    #[inline]
    pub(super) fn rests(&self, now_ns: u64) -> bool {
        debug_assert_eq!(self.rests_until_ns, self.next_probe_ns(), "a new event was missed");
        now_ns < self.rests_until_ns
    }

    /// Returns when there is something to probe, without a new event; 0: now.
    fn next_probe_ns(&self) -> u64 {
        let is_open = self.too_long > self.most && self.current < self.most;
        let is_found = !is_open && self.too_long - self.current <= STEP_BYTES;
        match (self.probing, is_found) {
            (Some(_), _) => u64::MAX,
            (None, true) => self.search_again_ns,
            (None, false) => 0,
        }
    }

    /// Notes that a probe of this length was sent.
    pub(super) fn handle_probe_sent(&mut self, bytes: usize) {
        debug_assert!(self.probing.is_none(), "one probe is outstanding");
        debug_assert!(bytes as u32 > self.current, "a probe is longer than what passes");
        self.probing = Some(bytes as u32);
        self.rests_until_ns = self.next_probe_ns();
    }

    /// Handles the acknowledgement of a probe of this length. Returns `true` if datagrams may be
    /// longer now.
    pub(super) fn handle_probe_acked(&mut self, bytes: usize, now_ns: u64) -> bool {
        let bytes = bytes as u32;
        self.probing = None;
        self.tries = 0;
        let is_longer = bytes > self.current && bytes < self.too_long;
        if is_longer {
            self.current = bytes;
            self.debug_check();
            self.rest_if_done(now_ns);
        }
        self.rests_until_ns = self.next_probe_ns();
        is_longer
    }

    /// Handles the loss of a probe of this length.
    pub(super) fn handle_probe_lost(&mut self, bytes: usize, now_ns: u64) {
        let bytes = bytes as u32;
        // It may be an earlier one, from before a black hole was found.
        if self.probing != Some(bytes) {
            return;
        }
        self.probing = None;
        self.tries += 1;
        if self.tries >= TRIES {
            self.tries = 0;
            self.too_long = self.too_long.min(bytes).max(self.current + 1);
            self.debug_check();
            self.rest_if_done(now_ns);
        }
        self.rests_until_ns = self.next_probe_ns();
    }

    /// Checks the order of the lengths.
    fn debug_check(&self) {
        debug_assert!(
            (self.least..=self.most).contains(&self.current),
            "datagrams have lengths that both sides take"
        );
        debug_assert!(
            self.current < self.too_long && self.too_long <= self.most + 1,
            "what passes is shorter than what does not"
        );
    }

    fn rest_if_done(&mut self, now_ns: u64) {
        if self.current < self.most && self.too_long - self.current <= STEP_BYTES {
            self.too_long_before = self.too_long.try_into().unwrap_or(u16::MAX);
            self.search_again_ns = now_ns + AGAIN_NS;
        }
    }

    /// Handles the loss of a datagram that is no probe. One that exceeds the current length was
    /// sent before a black hole was detected, and gives no new information.
    ///
    /// RR-PKT-13.
    pub(super) fn handle_lost(&mut self, number: u64, bytes: usize) {
        if bytes > self.least() && bytes <= self.current() {
            self.long_lost += 1;
            self.long_lost_highest = self.long_lost_highest.max(number);
        }
    }

    /// Handles the acknowledgement of a datagram that is no probe. Returns `true` if the path is a
    /// black hole for long datagrams; [`Self::current`] was reset to the minimum.
    #[inline]
    pub(super) fn handle_acked(&mut self, number: u64, bytes: usize, now_ns: u64) -> bool {
        if bytes > self.least() {
            self.long_lost = 0;
            return false;
        }
        if self.long_lost < BLACK_HOLE_LOSSES || number < self.long_lost_highest {
            return false;
        }
        self.long_lost = 0;
        debug_assert!(self.current > self.least, "the lost ones were longer than the shortest");
        self.too_long = self.current;
        self.current = self.least;
        self.too_long_before = 0;
        self.probing = None;
        self.tries = 0;
        self.search_again_ns = now_ns + AGAIN_NS;
        self.rests_until_ns = self.next_probe_ns();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_of_an_earlier_probe_leaves_the_current_one() {
        let mut mtu = Mtu::new(1000, 4000);
        let earlier = mtu.wanted(0).unwrap();
        mtu.handle_probe_sent(earlier);
        // As when a black hole is found.
        mtu.probing = None;
        mtu.handle_probe_sent(earlier - 1);
        mtu.handle_probe_lost(earlier, 0);
        assert!(mtu.rests(0), "the current probe is unanswered");
        mtu.handle_probe_lost(earlier - 1, 0);
        assert!(!mtu.rests(0) && mtu.wanted(0).is_some());
    }

    /// Searches a path that takes `limit`; returns the lengths probed.
    fn search(mtu: &mut Mtu, limit: usize) -> Vec<usize> {
        let mut probed = Vec::new();
        while let Some(bytes) = mtu.wanted(0) {
            probed.push(bytes);
            mtu.handle_probe_sent(bytes);
            assert_eq!(mtu.wanted(0), None);
            if bytes <= limit {
                assert!(mtu.handle_probe_acked(bytes, 0));
            } else {
                mtu.handle_probe_lost(bytes, 0);
            }
        }
        probed
    }

    #[test]
    fn one_probe_suffices_where_the_path_takes_the_interface_mtu() {
        let mut mtu = Mtu::new(1200, 8972);
        assert_eq!(search(&mut mtu, 9000), [8972]);
        assert_eq!(mtu.current(), 8972);
        assert!(!mtu.is_limited());
    }

    #[test]
    fn intermediate_mtu_is_found() {
        for limit in [1200, 1201, 1400, 1472, 4000, 8971] {
            let mut mtu = Mtu::new(1200, 8972);
            let probes = search(&mut mtu, limit).len();
            assert!(
                mtu.current() <= limit && limit - mtu.current() <= STEP_BYTES as usize,
                "{limit}"
            );
            assert!(probes <= 40, "{probes}");
            assert!(mtu.is_limited());
            assert_eq!(mtu.wanted(AGAIN_NS), Some(8972));
            assert!(mtu.is_limited(), "until a longer one has passed");
            mtu.handle_probe_sent(8972);
            mtu.handle_probe_acked(8972, AGAIN_NS);
            assert!(!mtu.is_limited());
        }
    }

    #[test]
    fn black_hole_requires_long_losses_and_a_short_ack() {
        let mut mtu = Mtu::new(1200, 8972);
        search(&mut mtu, 9000);
        for number in 0..20 {
            mtu.handle_lost(number, 8000);
        }
        // Earlier short ones prove nothing; acknowledged long ones prove that there is none.
        assert!(!mtu.handle_acked(5, 300, 0));
        assert!(!mtu.handle_acked(21, 8000, 0));
        assert!(!mtu.handle_acked(22, 300, 0));
        for number in 30..30 + u64::from(BLACK_HOLE_LOSSES) {
            assert!(!mtu.handle_acked(29, 300, 0));
            mtu.handle_lost(number, 8000);
        }
        assert!(mtu.handle_acked(60, 300, 0));
        assert_eq!(mtu.current(), 1200);
        assert!(mtu.wanted(0).is_some_and(|bytes| bytes < 8972));
    }

    /// Losses within a window of long datagrams are detected gradually.
    /// RR-PKT-13
    #[test]
    fn black_hole_is_counted_once_per_window() {
        let mut mtu = Mtu::new(1200, 8972);
        search(&mut mtu, 9000);
        let mut holes = 0;
        for number in 0..100 {
            mtu.handle_lost(number, 8972);
            holes += u64::from(mtu.handle_acked(200 + number, 300, 0));
        }
        assert_eq!((holes, mtu.current()), (1, 1200));
        search(&mut mtu, 1472);
        assert!((1472 - STEP_BYTES as usize..=1472).contains(&mtu.current()), "{}", mtu.current());
    }
}
