//! Stateless cookies: who says hello on a datagram lane shows that it receives at the address it
//! sends from, before this engine keeps anything or computes much for it.
//!
//! A cookie is a keyed hash over that address, the hello's nonce and the second in which it was
//! made. The server key is this engine's own and is replaced now and then; the one before it is
//! good until the cookies made with it are too old.

use std::net::{IpAddr, SocketAddr};

use zerocopy::IntoBytes;

use super::keys::{Key, Nonce, ProofTag, is_equal};
use crate::wire::cookie::{COOKIE_MAGIC, Cookie, CookieReply};

/// How long a cookie is good for, in seconds: some round trips on the slowest path, with losses.
pub(crate) const LIFETIME_S: u32 = 10;

/// Makes and checks cookies.
#[derive(Debug)]
pub(crate) struct Cookies {
    /// The key in use and the one before it.
    keys: [Option<Key>; 2],
    /// Number of the key in use.
    number: u32,
}

impl Cookies {
    /// With a random server key.
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self { keys: [Some(Key::from_random(key)), None], number: 0 }
    }

    /// Replaces the key by another random one. Cookies of the last key stay good, those of the
    /// key before that do not: call it at intervals longer than [`LIFETIME_S`].
    pub(crate) fn rotate(&mut self, key: [u8; 32]) {
        self.keys[1] = self.keys[0].replace(Key::from_random(key));
        self.number = self.number.wrapping_add(1);
    }

    /// The answer to a hello with `nonce` from `source`, in second `now_s` of any clock that does
    /// not go backwards.
    pub(crate) fn answer(&self, source: SocketAddr, nonce: Nonce, now_s: u32) -> CookieReply {
        let key = self.keys[0].as_ref();
        let tag = key.map_or([0; 16], |key| tag(key, source, &nonce, now_s));
        let cookie = Cookie { second: now_s.into(), key: self.number.into(), tag };
        CookieReply { magic: COOKIE_MAGIC, nonce, cookie }
    }

    /// Whether `cookie` was made here for `source` and `nonce`, within [`LIFETIME_S`].
    ///
    /// RR-AUTH-8.
    pub(crate) fn verify(
        &self,
        source: SocketAddr,
        nonce: &Nonce,
        cookie: &Cookie,
        now_s: u32,
    ) -> bool {
        let second = cookie.second.get();
        let age_s = now_s.wrapping_sub(second);
        let generation = self.number.wrapping_sub(cookie.key.get()) as usize;
        let Some(Some(key)) = self.keys.get(generation) else { return false };
        age_s <= LIFETIME_S && is_equal(&tag(key, source, nonce, second), &cookie.tag)
    }
}

fn tag(key: &Key, source: SocketAddr, nonce: &Nonce, second: u32) -> ProofTag {
    let ip = match source.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let scope = match source {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(source) => source.scope_id(),
    };
    let port = source.port().to_le_bytes();
    key.tag(&[&ip.octets(), &port, scope.as_bytes(), nonce, &second.to_le_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::cookie::COOKIE_REPLY_BYTES;
    use crate::wire::hello::HELLO_BYTES;

    const NONCE: Nonce = [7; 16];

    fn source(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// RR-AUTH-8
    #[test]
    fn a_cookie_is_good_for_its_address_nonce_and_time_only() {
        let cookies = Cookies::new([1; 32]);
        let from = source("10.0.0.1:5");
        let cookie = cookies.answer(from, NONCE, 100).cookie;
        for now_s in [100, 105, 100 + LIFETIME_S] {
            assert!(cookies.verify(from, &NONCE, &cookie, now_s));
        }
        // Too old, and from the future.
        assert!(!cookies.verify(from, &NONCE, &cookie, 101 + LIFETIME_S));
        assert!(!cookies.verify(from, &NONCE, &cookie, 99));
        for other in ["10.0.0.2:5", "10.0.0.1:6", "[::1]:5", "[fe80::1%3]:5"] {
            assert!(!cookies.verify(source(other), &NONCE, &cookie, 100), "{other}");
        }
        assert!(!cookies.verify(from, &[8; 16], &cookie, 100));
        // Its time cannot be changed to make it last.
        let renewed = Cookie { second: 200.into(), ..cookie };
        assert!(!cookies.verify(from, &NONCE, &renewed, 200));
        assert!(!Cookies::new([2; 32]).verify(from, &NONCE, &cookie, 100));
    }

    #[test]
    fn links_of_the_same_local_address_are_told_apart() {
        let cookies = Cookies::new([1; 32]);
        let cookie = cookies.answer(source("[fe80::1%3]:5"), NONCE, 0).cookie;
        assert!(cookies.verify(source("[fe80::1%3]:5"), &NONCE, &cookie, 0));
        assert!(!cookies.verify(source("[fe80::1%4]:5"), &NONCE, &cookie, 0));
    }

    #[test]
    fn the_last_key_stays_good_and_the_one_before_does_not() {
        let mut cookies = Cookies::new([1; 32]);
        let from = source("[2001:db8::1]:9");
        let cookie = cookies.answer(from, NONCE, 0).cookie;
        cookies.rotate([2; 32]);
        assert!(cookies.verify(from, &NONCE, &cookie, 1));
        let newer = cookies.answer(from, NONCE, 1).cookie;
        assert_ne!(newer.tag, cookie.tag);
        cookies.rotate([3; 32]);
        assert!(!cookies.verify(from, &NONCE, &cookie, 2));
        assert!(cookies.verify(from, &NONCE, &newer, 2));
        // No key has this number yet.
        let early = Cookie { key: 3.into(), ..newer };
        assert!(!cookies.verify(from, &NONCE, &early, 2));
    }

    #[test]
    fn time_may_wrap() {
        let cookies = Cookies::new([1; 32]);
        let from = source("10.0.0.1:5");
        let cookie = cookies.answer(from, NONCE, u32::MAX).cookie;
        assert!(cookies.verify(from, &NONCE, &cookie, 3));
    }

    /// RR-AUTH-8
    #[test]
    fn the_answer_is_shorter_than_the_question() {
        let reply = Cookies::new([1; 32]).answer(source("10.0.0.1:5"), NONCE, 0);
        assert_eq!(reply.as_bytes().len(), COOKIE_REPLY_BYTES);
        assert!(reply.as_bytes().len() < HELLO_BYTES);
        assert_eq!(reply.nonce, NONCE);
    }
}
