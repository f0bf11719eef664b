//! Sites of rare branches and short cuts. Each has a name and draws from a stream of its own, which
//! the seed of the run and that name decide: a site that comes, goes, moves or is asked more often
//! changes nothing at the others.

use std::cell::Cell;

/// One short cut in so many is not taken where rare branches are.
const LONG_WAY_ONE_IN: u64 = 4;

thread_local! {
    /// Of the rare branches of this run; `None`: none is taken.
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
    /// Counts the runs, so that a site knows when its stream is an old one.
    static RUN: Cell<u64> = const { Cell::new(0) };
    static TAKEN: Cell<u64> = const { Cell::new(0) };
    static LONG_WAYS: Cell<bool> = const { Cell::new(false) };
}

/// Rare branches are taken from now on, as `seed` has it; `None`: none are.
pub(crate) fn set_rare(seed: Option<u64>) {
    SEED.set(seed);
    RUN.set(RUN.get() + 1);
    TAKEN.set(0);
}

/// Rare branches taken since [`set_rare`].
pub(crate) fn rare_taken() -> u64 {
    TAKEN.get()
}

/// What `run` gives when no short cut is taken.
pub(crate) fn by_long_ways<T>(run: impl FnOnce() -> T) -> T {
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            LONG_WAYS.set(false);
        }
    }
    LONG_WAYS.set(true);
    let _back = Back;
    run()
}

/// One use of `rare!`, `rare_value!` or `shortcut!`, in one thread.
#[derive(Debug)]
pub(crate) struct Site {
    name_hash: u64,
    /// The run that `state` is of.
    run: Cell<u64>,
    state: Cell<u64>,
}

impl Site {
    pub(crate) const fn new(name: &str) -> Self {
        // FNV-1a.
        let (mut name_hash, mut at) = (0xcbf2_9ce4_8422_2325_u64, 0);
        while at < name.len() {
            let byte = name.as_bytes()[at] as u64;
            name_hash = (name_hash ^ byte).wrapping_mul(0x0000_0100_0000_01b3);
            at += 1;
        }
        Self { name_hash, run: Cell::new(0), state: Cell::new(0) }
    }

    /// The next number of this site's stream, of 53 bits; `None`: rare branches are not taken.
    fn draw(&self) -> Option<u64> {
        let seed = SEED.get()?;
        let run = RUN.get();
        if self.run.replace(run) != run {
            // Xorshift: never 0 once it is not.
            self.state.set(mix(mix(seed) ^ self.name_hash) | 1);
        }
        let state = self.state.get();
        let state = state ^ (state << 13);
        let state = state ^ (state >> 7);
        let state = state ^ (state << 17);
        self.state.set(state);
        Some(state >> 11)
    }

    pub(crate) fn is_rare(&self, one_in: u64) -> bool {
        let is_taken = self.draw().is_some_and(|drawn| drawn.is_multiple_of(one_in));
        TAKEN.set(TAKEN.get() + u64::from(is_taken));
        is_taken
    }

    pub(crate) fn value(&self, count: u64) -> u64 {
        self.draw().map_or(0, |drawn| drawn % count)
    }

    pub(crate) fn may_cut_short(&self) -> bool {
        !LONG_WAYS.get() && !self.is_rare(LONG_WAY_ONE_IN)
    }
}

/// Splitmix: seeds and names that are nearly the same have nothing in common behind it.
const fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use super::*;

    /// What a site draws in a run, while `between` happens between its draws.
    fn drawn(seed: u64, site: &Site, mut between: impl FnMut()) -> Vec<u64> {
        set_rare(Some(seed));
        let drawn = (0..64).map(|_| {
            between();
            site.value(1 << 20)
        });
        let drawn = drawn.collect();
        set_rare(None);
        drawn
    }

    #[test]
    fn a_site_draws_the_same_whatever_others_draw() {
        let (site, other) = (Site::new("one"), Site::new("another one"));
        let alone = drawn(7, &site, || {});
        let beside = drawn(7, &site, || _ = (other.value(3), other.is_rare(2)));
        assert_eq!(alone, beside);
        assert_ne!(alone, drawn(7, &other, || {}));
        assert_ne!(alone, drawn(6, &site, || {}));
        assert_ne!(alone, drawn(8, &site, || {}));
    }

    #[test]
    fn rare_sites_are_off_outside_of_a_run() {
        let site = Site::new("one");
        assert!((0..1000).all(|_| !site.is_rare(2) && site.value(9) == 0 && site.may_cut_short()));
        set_rare(Some(0));
        let taken = (0..1000).filter(|_| site.is_rare(2)).count();
        assert!((400..600).contains(&taken) && rare_taken() == taken as u64, "{taken}");
        assert!(by_long_ways(|| (0..100).all(|_| !site.may_cut_short())));
        set_rare(None);
        assert!((0..1000).all(|_| !site.is_rare(2)));
    }

    #[test]
    fn macros_give_what_their_sites_draw() {
        let all = || {
            set_rare(Some(3));
            let all: Vec<_> = (0..100)
                .map(|_| {
                    let is_rare = rare!("a rare branch of a test", 2);
                    let value = rare_value!("a value of a test", 100);
                    (is_rare, value, shortcut!("a short cut of a test"))
                })
                .collect();
            set_rare(None);
            all
        };
        let first = all();
        assert_eq!(first, all());
        assert!(first.iter().any(|it| it.0) && first.iter().any(|it| !it.0));
        assert!(first.iter().any(|it| it.1 > 0) && first.iter().any(|it| !it.2));
    }

    /// Names of the sites in the files below a folder.
    fn names_below(folder: &Path, names: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                names_below(&path, names);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                // In pieces, so that they are not found here.
                for site in
                    [concat!("rare", "!("), concat!("rare_value", "!("), concat!("shortcut", "!(")]
                {
                    for (at, _) in text.match_indices(site) {
                        let rest = text[at + site.len()..].trim_start();
                        let name = rest.strip_prefix('"').and_then(|it| it.split('"').next());
                        names.push(name.unwrap_or_else(|| panic!("{path:?}: {rest}")).to_owned());
                    }
                }
            }
        }
    }

    #[test]
    fn every_site_has_a_name_of_its_own() {
        let mut names = Vec::new();
        names_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut names);
        assert!(names.len() > 25, "{names:?}");
        let mut known = HashSet::new();
        let twice: Vec<_> = names.iter().filter(|name| !known.insert(*name)).collect();
        assert!(twice.is_empty(), "sites of the same name draw the same: {twice:?}");
    }
}
