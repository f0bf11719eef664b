//! Which length of datagram the path takes: packetisation-layer discovery as RFC 8899 has it.
//!
//! The interface's own maximum is tried first, since on one Ethernet it is the answer; then the
//! range is halved. A probe that is lost says nothing about congestion. When long datagrams
//! vanish while short ones pass, the path has become a black hole for long ones and starts over.

/// Probes of one length before it counts as too long.
const TRIES: u32 = 3;
/// Ranges shorter than this are not searched further, in bytes.
const STEP_BYTES: u32 = 16;
/// Long datagrams lost in a row, with a short one acknowledged after, that make a black hole.
const BLACK_HOLE_LOSSES: u32 = 8;
/// Time after which a path is searched again, in nanoseconds: networks get mended.
const AGAIN_NS: u64 = 60_000_000_000;

/// See the module. All lengths are those of UDP payloads, tag included.
#[derive(Clone, Debug)]
pub(super) struct Mtu {
    least: u32,
    most: u32,
    current: u32,
    /// The first length known to be too long, or one more than may be.
    too_long: u32,
    /// The probe under way.
    probing: Option<u32>,
    tries: u32,
    /// Long datagrams lost since one was acknowledged, and the highest of their numbers.
    long_lost: u32,
    long_lost_highest: u64,
    search_again_ns: u64,
    /// The length that was too long when it was searched last, unless it has passed since; 0: none
    /// was.
    too_long_before: u32,
}

impl Mtu {
    pub(super) fn new(least: usize, most: usize) -> Self {
        let (least, most) = (least as u32, most.max(least) as u32);
        Self {
            least,
            most,
            current: least,
            too_long: most + 1,
            probing: None,
            tries: 0,
            long_lost: 0,
            long_lost_highest: 0,
            search_again_ns: u64::MAX,
            too_long_before: 0,
        }
    }

    /// Longest datagram that may be sent now.
    #[inline]
    pub(super) fn current(&self) -> usize {
        self.current as usize
    }

    /// What passes on any network.
    pub(super) fn least(&self) -> usize {
        self.least as usize
    }

    /// Whether longer datagrams are known to be lost, though both hosts take them.
    pub(super) fn is_limited(&self) -> bool {
        let is_found = self.too_long <= self.most && self.too_long - self.current <= STEP_BYTES;
        is_found || self.too_long_before > self.current
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
        }
        if self.too_long > self.most && self.current < self.most {
            return Some(self.most as usize);
        }
        let bytes = self.current + (self.too_long - self.current) / 2;
        (self.too_long - self.current > STEP_BYTES).then_some(bytes as usize)
    }

    /// Whether [`Self::wanted`] is nothing now, and stays so without being asked.
    #[inline]
    pub(super) fn rests(&self, now_ns: u64) -> bool {
        let is_open = self.too_long > self.most && self.current < self.most;
        let is_found = !is_open && self.too_long - self.current <= STEP_BYTES;
        self.probing.is_some() || (is_found && now_ns < self.search_again_ns)
    }

    /// A probe of this length was sent.
    pub(super) fn handle_probe_sent(&mut self, bytes: usize) {
        self.probing = Some(bytes as u32);
    }

    /// The probe of this length was acknowledged. `true`: datagrams may be longer now.
    pub(super) fn handle_probe_acked(&mut self, bytes: usize, now_ns: u64) -> bool {
        let bytes = bytes as u32;
        self.probing = None;
        self.tries = 0;
        if bytes <= self.current || bytes >= self.too_long {
            return false;
        }
        self.current = bytes;
        self.rest_if_done(now_ns);
        true
    }

    /// The probe of this length was lost.
    pub(super) fn handle_probe_lost(&mut self, bytes: usize, now_ns: u64) {
        let bytes = bytes as u32;
        if self.probing.take() != Some(bytes) {
            return;
        }
        self.tries += 1;
        if self.tries >= TRIES {
            self.tries = 0;
            self.too_long = self.too_long.min(bytes).max(self.current + 1);
            self.rest_if_done(now_ns);
        }
    }

    fn rest_if_done(&mut self, now_ns: u64) {
        if self.current < self.most && self.too_long - self.current <= STEP_BYTES {
            self.too_long_before = self.too_long;
            self.search_again_ns = now_ns + AGAIN_NS;
        }
    }

    /// A datagram that is no probe was lost. One that is longer than what is sent now was sent
    /// before the path turned out to be a black hole, and says nothing new.
    ///
    /// RR-PKT-13.
    pub(super) fn handle_lost(&mut self, number: u64, bytes: usize) {
        if bytes > self.least() && bytes <= self.current() {
            self.long_lost += 1;
            self.long_lost_highest = self.long_lost_highest.max(number);
        }
    }

    /// A datagram that is no probe was acknowledged. `true`: the path is a black hole for long
    /// datagrams; [`Self::current`] went back to the least.
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
        self.too_long = self.current;
        self.current = self.least;
        self.too_long_before = 0;
        self.probing = None;
        self.tries = 0;
        self.search_again_ns = now_ns + AGAIN_NS;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches a path that takes `limit`; gives the lengths probed.
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
    fn one_probe_is_enough_where_the_path_takes_what_the_interface_does() {
        let mut mtu = Mtu::new(1200, 8972);
        assert_eq!(search(&mut mtu, 9000), [8972]);
        assert_eq!(mtu.current(), 8972);
        assert!(!mtu.is_limited());
    }

    #[test]
    fn the_length_in_between_is_found() {
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
    fn a_black_hole_takes_long_losses_and_a_short_arrival() {
        let mut mtu = Mtu::new(1200, 8972);
        search(&mut mtu, 9000);
        for number in 0..20 {
            mtu.handle_lost(number, 8000);
        }
        // Short ones that went before say nothing; long ones that arrive say that all is well.
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

    /// Of a window of long datagrams the losses are found bit by bit. RR-PKT-13
    #[test]
    fn a_black_hole_is_one_however_many_were_under_way() {
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
