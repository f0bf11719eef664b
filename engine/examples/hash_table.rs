//! A distributed hash table: each thread owns a share of the slots, in memory that the others
//! access, and no thread answers a request. A key is inserted by compare-and-swap, looked up by a
//! get, and counted by an atomic addition.
//!
//! `cargo run --release -p ringrail --example hash_table -- THREADS KEYS`

use std::error::Error;
use std::sync::{Barrier, OnceLock};

use ringrail::settings::Settings;
use ringrail::{
    Access, Address, CompletionLevel, Detached, Domain, Endpoint, JobSecret, KeyOptions, Owned,
    Peer, Region, RemoteAddress, RemoteKey, SendOptions,
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A slot is three words: the key, its value, and how often it was counted. 0 is no key, and no
/// value: an empty slot is all zeros, as fresh memory is.
const SLOT_BYTES: u64 = 24;
const VALUE: u64 = 8;
const COUNT: u64 = 16;

fn main() -> Outcome<()> {
    let mut numbers = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mut number = |default: usize| numbers.next().unwrap_or(Ok(default));
    let (threads, keys) = (number(4)?, number(1000)?);
    if threads == 0 || keys == 0 {
        return Err("hash_table THREADS KEYS: one of each at least".into());
    }
    let settings = Settings::builder()
        .set("listen_address", "127.0.0.1")
        .job_secret(Some(&JobSecret::random()))
        .build()?;
    let domain = Domain::with_settings(settings)?;
    let endpoints: Vec<Endpoint<Detached>> =
        (0..threads).map(|_| domain.endpoint()).collect::<Result<_, _>>()?;
    let addresses: Vec<Address> = endpoints.iter().map(|endpoint| endpoint.address()).collect();
    let shares: Vec<OnceLock<RemoteKey>> = (0..threads).map(|_| OnceLock::new()).collect();
    let step = Barrier::new(threads);
    let inserted: Vec<Outcome<usize>> = std::thread::scope(|scope| {
        let start = |(rank, endpoint)| {
            let job = Job { addresses: &addresses, shares: &shares, step: &step, rank, keys };
            scope.spawn(move || job.run(endpoint))
        };
        let running: Vec<_> = endpoints.into_iter().enumerate().map(start).collect();
        let joined = running.into_iter().map(|thread| thread.join());
        joined.map(|ended| ended.unwrap_or_else(|_| Err("a thread panicked".into()))).collect()
    });
    let inserted: usize = inserted.into_iter().sum::<Outcome<usize>>()?;
    if inserted != keys {
        return Err(format!("{keys} keys were inserted {inserted} times").into());
    }
    println!("{keys} keys on {threads} threads: each inserted once, and found by all");
    Ok(())
}

/// What one thread has to do.
struct Job<'a> {
    addresses: &'a [Address],
    shares: &'a [OnceLock<RemoteKey>],
    step: &'a Barrier,
    rank: usize,
    keys: usize,
}

impl Job<'_> {
    /// How many keys this thread inserted.
    fn run(self, endpoint: Endpoint<Detached>) -> Outcome<usize> {
        let threads = self.addresses.len();
        // On average every other slot stays empty.
        let slots = (2 * self.keys / threads + 16) as u64;
        let opened = self.open(endpoint, (slots * SLOT_BYTES) as usize);
        // All meet here as often, whatever happens: none waits for ever. A waiter makes no
        // progress; its engine answers all the same, a little later.
        self.step.wait();
        let filled = opened.and_then(|(endpoint, region)| {
            let inserted = self.fill(&endpoint, slots)?;
            Ok((inserted, endpoint, region))
        });
        self.step.wait();
        let checked = filled.and_then(|(inserted, endpoint, region)| {
            self.check(&endpoint, slots)?;
            Ok((inserted, endpoint, region))
        });
        // The memory is there until all have looked.
        self.step.wait();
        checked.map(|(inserted, ..)| inserted)
    }

    /// The share of this thread: memory that the others reach.
    fn open(
        &self,
        endpoint: Endpoint<Detached>,
        length: usize,
    ) -> Outcome<(Endpoint<Owned>, Region<Owned>)> {
        let endpoint = endpoint.attach()?;
        let region = endpoint.allocate_region(length)?;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let key = region.key(&KeyOptions::new(access))?;
        self.shares[self.rank].set(key).map_err(|_| "two threads have one rank")?;
        Ok((endpoint, region))
    }

    fn table<'e>(&self, endpoint: &'e Endpoint<Owned>, slots: u64) -> Outcome<Table<'e>> {
        let shares = self.addresses.iter().zip(self.shares).map(|(address, key)| {
            let key = *key.get().ok_or("a thread has no memory")?;
            Ok((endpoint.insert_peer(address)?, key))
        });
        Ok(Table { endpoint, shares: shares.collect::<Outcome<_>>()?, slots })
    }

    /// Two threads want to insert each key, at about the same time; all count it.
    fn fill(&self, endpoint: &Endpoint<Owned>, slots: u64) -> Outcome<usize> {
        let (table, threads) = (self.table(endpoint, slots)?, self.addresses.len());
        let mut inserted = 0;
        for number in 0..self.keys {
            let is_mine = number % threads == self.rank || (number + 1) % threads == self.rank;
            if is_mine && table.insert(key_of(number), value_of(number))? {
                inserted += 1;
            }
        }
        Ok(inserted)
    }

    fn check(&self, endpoint: &Endpoint<Owned>, slots: u64) -> Outcome<()> {
        let table = self.table(endpoint, slots)?;
        for number in 0..self.keys {
            let found = table.get(key_of(number))?;
            if found != Some(value_of(number)) {
                return Err(format!("key {number} has {found:?}").into());
            }
            let count = table.count(key_of(number))?;
            if count.is_none_or(|count| count >= self.addresses.len() as u64) {
                return Err(format!("key {number} was counted {count:?} times").into());
            }
        }
        match table.get(key_of(self.keys))? {
            None => Ok(()),
            Some(value) => Err(format!("{value} was found where nothing was inserted").into()),
        }
    }
}

fn key_of(number: usize) -> u64 {
    (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn value_of(number: usize) -> u64 {
    3 * number as u64 + 1
}

/// The table as one thread sees it.
struct Table<'e> {
    endpoint: &'e Endpoint<Owned>,
    /// Who has a share of the slots, and what opens it.
    shares: Vec<(Peer, RemoteKey)>,
    /// Of each share.
    slots: u64,
}

impl Table<'_> {
    /// The slots that a key may be in, in this order: all of one share, from its own on.
    fn places(&self, key: u64) -> impl Iterator<Item = (Peer, RemoteAddress)> {
        let shares = self.shares.len() as u64;
        let (peer, opens) = self.shares[(key % shares) as usize];
        let (first, slots) = (key / shares, self.slots);
        (0..slots).map(move |step| (peer, opens.at((first + step) % slots * SLOT_BYTES)))
    }

    /// `false`: it is there already.
    fn insert(&self, key: u64, value: u64) -> Outcome<bool> {
        for (peer, at) in self.places(key) {
            let before = self.endpoint.compare_swap(peer, at, 0, key)?;
            if before == key {
                return Ok(false);
            }
            if before == 0 {
                // The slot is ours. At this level the value is there when the call returns.
                let (at, bytes) = (at.key.at(at.offset + VALUE), value.to_ne_bytes());
                let options = SendOptions::at(CompletionLevel::Delivery);
                self.endpoint.put_blocking(peer, at, &bytes, options)?;
                return Ok(true);
            }
        }
        Err("the table is full".into())
    }

    /// The value of a key; `None`: it is not there, or its value is not yet.
    fn get(&self, key: u64) -> Outcome<Option<u64>> {
        let found = self.find(key)?;
        Ok(found.map(|(.., value)| value).filter(|&value| value != 0))
    }

    /// Counts a key: how often it was counted before, if it is there.
    fn count(&self, key: u64) -> Outcome<Option<u64>> {
        let Some((peer, at, _)) = self.find(key)? else { return Ok(None) };
        let at = at.key.at(at.offset + COUNT);
        Ok(Some(self.endpoint.fetch_add(peer, at, 1)?))
    }

    /// Where a key is, and what is beside it.
    fn find(&self, key: u64) -> Outcome<Option<(Peer, RemoteAddress, u64)>> {
        for (peer, at) in self.places(key) {
            let mut slot = [0; VALUE as usize + 8];
            self.endpoint.get_blocking(peer, at, &mut slot, SendOptions::new())?;
            let word =
                |at: usize| u64::from_ne_bytes(slot[at..at + 8].try_into().unwrap_or([0; 8]));
            match word(0) {
                0 => return Ok(None),
                found if found == key => return Ok(Some((peer, at, word(VALUE as usize)))),
                _ => {}
            }
        }
        Ok(None)
    }
}
