//! The keyed hash of bin keys.
//!
//! Peers choose contexts and tags, so a peer that could predict the hash could send tags that all
//! fall into one place and make every look-up walk them. Two rounds of folded 64 x 64 -> 128 bit
//! multiplication, every operand masked by a secret word, are the strength that wyhash and
//! foldhash offer. It is written out here because the fixed-seed states of the `foldhash` crate
//! share public constants between processes, and its per-seed states want `'static` tables: with a
//! public multiplier an attacker zeroes the product and collides under every seed.
//! SipHash-1-3, as in the standard library, costs several times as much per message
//! (`cargo bench -p ringrail --features bench --bench matching -- hash` compares them).

use super::bins::BinKey;

/// Secret words derived from the seed of one matcher.
#[derive(Clone, Debug)]
pub(crate) struct Hasher {
    secret: [u64; 4],
}

impl Hasher {
    /// Expands `seed` into the secret words (SplitMix64, Steele, Lea and Flood 2014).
    pub(crate) fn new(seed: u64) -> Self {
        let mut state = seed;
        let secret = std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        Self { secret }
    }

    /// Returns the hash of a bin key.
    #[inline]
    pub(super) fn hash(&self, key: &BinKey) -> u32 {
        self.hash_words(key.context, key.tag, key.source)
    }

    /// Returns the hash of the words of a bin key; every bit of the result is usable.
    #[inline]
    pub(crate) fn hash_words(&self, context: u64, tag: u64, source: u32) -> u32 {
        let [k0, k1, k2, k3] = self.secret;
        let inner = folded_multiply(context ^ k0, tag ^ k1);
        folded_multiply(inner ^ k2, u64::from(source) ^ k3) as u32
    }
}

/// Both halves of the 128-bit product, folded into one word.
#[inline]
fn folded_multiply(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}
