//! A small library of windows, MPI's memory that others reach, on regions, puts and atomic
//! operations, with MPI's three ways to keep accesses apart: fences; post, start, complete, wait;
//! locks. Then programs that use each, and check what they get.
//!
//! `cargo run --release -p ringrail --example window -- THREADS ROUNDS`

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, OnceLock};
use std::time::Duration;

use ringrail::settings::Settings;
use ringrail::{
    Access, Address, Atomic, AtomicOp, Datatype, Detached, Domain, Endpoint, JobSecret, KeyOptions,
    Owned, Peer, Region, RemoteAddress, RemoteKey, SendOptions,
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Who waits for others longer than this has lost one of them.
const PATIENCE: Duration = Duration::from_secs(60);

/// Words of each window that the library keeps for itself, before the data.
const FENCES: u64 = 0;
const LOCK: u64 = 8;
const COMPLETES: u64 = 16;
/// One for each rank: how often it posted to the owner.
const POSTS: u64 = 24;

/// In the lock word, beside the number of those that share it.
const EXCLUSIVE: u64 = 1 << 63;

/// How a window is locked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lock {
    Shared,
    Exclusive,
}

/// The window of one rank, and the way to those of the others.
struct Window {
    rank: usize,
    region: Region<Owned>,
    endpoint: Endpoint<Owned>,
    ranks: Vec<(Peer, RemoteKey)>,
    /// Fences that this rank has been at.
    fences: u64,
    /// How often others have completed to this rank, when the last wait returned.
    completes: u64,
    /// How often each rank has posted to this one, when the last start returned.
    posts: Vec<u64>,
}

impl Window {
    /// Makes a window of `length` bytes on every rank. All call it.
    fn create(job: &Job<'_>, endpoint: Endpoint<Detached>, length: usize) -> Outcome<Self> {
        let ranks = job.addresses.len();
        let opened = endpoint.attach().and_then(|endpoint| {
            let region = endpoint.allocate_region(data(ranks) as usize + length)?;
            let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
            let _ = job.keys[job.rank].set(region.key(&KeyOptions::new(access))?);
            Ok((endpoint, region))
        });
        // Even after an error, so that no rank waits for ever.
        job.meet.wait();
        let (endpoint, region) = opened?;
        let others = job.addresses.iter().zip(job.keys).map(|(address, key)| {
            Ok((endpoint.insert_peer(address)?, *key.get().ok_or("a rank has no window")?))
        });
        let others = others.collect::<Outcome<_>>()?;
        let (rank, posts) = (job.rank, vec![0; ranks]);
        Ok(Self { rank, region, endpoint, ranks: others, fences: 0, completes: 0, posts })
    }

    fn size(&self) -> usize {
        self.ranks.len()
    }

    fn word(&self, offset: u64) -> Outcome<&AtomicU64> {
        Ok(self.region.atomic_u64(offset as usize).ok_or("no word is there")?)
    }

    fn control(&self, target: usize, offset: u64) -> (Peer, RemoteAddress) {
        let (peer, key) = self.ranks[target];
        (peer, key.at(offset))
    }

    fn place(&self, target: usize, offset: u64) -> (Peer, RemoteAddress) {
        self.control(target, data(self.size()) + offset)
    }

    /// Makes progress until a word of this rank is so.
    fn wait_for(&self, offset: u64, is_so: impl Fn(u64) -> bool) -> Outcome<()> {
        let word = self.word(offset)?;
        match self.region.wait(Some(PATIENCE), |_| is_so(word.load(Ordering::Acquire)))? {
            true => Ok(()),
            false => Err("another rank is missing".into()),
        }
    }

    /// Posts until there is room, with progress in between.
    fn post_all(&self, mut post: impl FnMut() -> Result<(), ringrail::Error>) -> Outcome<()> {
        loop {
            match post() {
                Err(error) if error.is_would_block() => drop(self.endpoint.progress()?),
                posted => return Ok(posted?),
            }
        }
    }

    /// Adds to a word of another rank, without waiting.
    fn notify(&self, target: usize, offset: u64) -> Outcome<()> {
        let (peer, at) = self.control(target, offset);
        self.add(peer, at, 1)
    }

    fn add(&self, peer: Peer, at: RemoteAddress, value: u64) -> Outcome<()> {
        let operand = value.to_ne_bytes();
        let atomic = Atomic::new(AtomicOp::Sum, Datatype::U64, &operand);
        let options = SendOptions::new().silent(true);
        self.post_all(|| self.endpoint.post_atomic(peer, at, &atomic, options).map(drop))
    }

    // Accesses. They are done when the epoch ends that they are in.

    /// `MPI_Put`.
    fn put(&self, target: usize, offset: u64, bytes: &[u8]) -> Outcome<()> {
        let (peer, at) = self.place(target, offset);
        if bytes.len() <= self.endpoint.domain().settings().inject_limit_bytes() {
            let inject = || self.endpoint.inject_put(peer, at, bytes, SendOptions::new());
            return self.post_all(inject);
        }
        // The engine drops the copy when the put has ended.
        let options = SendOptions::new().silent(true);
        let put = || self.endpoint.post_put(peer, at, bytes.to_vec(), options);
        self.post_all(|| put().map(drop).map_err(|failed| failed.error))
    }

    /// `MPI_Get`, done when it returns.
    fn get(&self, target: usize, offset: u64, into: &mut [u8]) -> Outcome<()> {
        let (peer, at) = self.place(target, offset);
        self.endpoint.get_blocking(peer, at, into, SendOptions::new())?;
        Ok(())
    }

    /// `MPI_Accumulate` with `MPI_SUM` on one word.
    fn accumulate(&self, target: usize, offset: u64, value: u64) -> Outcome<()> {
        let (peer, at) = self.place(target, offset);
        self.add(peer, at, value)
    }

    /// `MPI_Win_flush`: what was put to a rank before is in its memory.
    fn flush(&self, target: usize) -> Outcome<()> {
        Ok(self.endpoint.flush(self.ranks[target].0, SendOptions::new())?)
    }

    // Epochs.

    /// `MPI_Win_fence`: all that any rank did before is done, for all. All call it.
    fn fence(&mut self) -> Outcome<()> {
        (0..self.size()).try_for_each(|target| self.flush(target))?;
        (0..self.size()).try_for_each(|target| self.notify(target, FENCES))?;
        self.fences += 1;
        // No rank notifies of the next fence before all have notified of this one, so no number is
        // reached early.
        let notified = self.fences * self.size() as u64;
        self.wait_for(FENCES, |fences| fences >= notified)
    }

    /// `MPI_Win_post`: the ranks of a group may access this window, until [`Self::wait`].
    fn post(&self, origins: &[usize]) -> Outcome<()> {
        let word = POSTS + 8 * self.rank as u64;
        origins.iter().try_for_each(|&origin| self.notify(origin, word))
    }

    /// `MPI_Win_start`: waits until the ranks of a group have posted to this one.
    fn start(&mut self, targets: &[usize]) -> Outcome<()> {
        for &target in targets {
            self.posts[target] += 1;
            let wanted = self.posts[target];
            self.wait_for(POSTS + 8 * target as u64, |posts| posts >= wanted)?;
        }
        Ok(())
    }

    /// `MPI_Win_complete`: this rank is done with the group that it started with.
    fn complete(&self, targets: &[usize]) -> Outcome<()> {
        for &target in targets {
            self.flush(target)?;
            self.notify(target, COMPLETES)?;
        }
        Ok(())
    }

    /// `MPI_Win_wait`: waits until the ranks of the group that this one posted to are done.
    fn wait(&mut self, origins: &[usize]) -> Outcome<()> {
        self.completes += origins.len() as u64;
        let wanted = self.completes;
        self.wait_for(COMPLETES, |completes| completes >= wanted)
    }

    /// `MPI_Win_lock`. The target need not do anything for that.
    fn lock(&self, target: usize, lock: Lock) -> Outcome<()> {
        let (peer, at) = self.control(target, LOCK);
        loop {
            match lock {
                Lock::Exclusive if self.endpoint.compare_swap(peer, at, 0, EXCLUSIVE)? == 0 => {
                    return Ok(());
                }
                Lock::Exclusive => {}
                Lock::Shared if self.endpoint.fetch_add(peer, at, 1)? & EXCLUSIVE == 0 => {
                    return Ok(());
                }
                Lock::Shared => self.release(target, lock)?,
            }
            std::thread::yield_now();
        }
    }

    fn release(&self, target: usize, lock: Lock) -> Outcome<()> {
        let held = if lock == Lock::Exclusive { EXCLUSIVE } else { 1 };
        let (peer, at) = self.control(target, LOCK);
        self.endpoint.fetch_add(peer, at, held.wrapping_neg())?;
        Ok(())
    }

    /// `MPI_Win_unlock`: what this rank did under the lock is done before another one has it.
    fn unlock(&self, target: usize, lock: Lock) -> Outcome<()> {
        self.flush(target)?;
        self.release(target, lock)
    }

    /// A word of this rank's data.
    fn load(&self, offset: u64) -> Outcome<u64> {
        Ok(self.word(data(self.size()) + offset)?.load(Ordering::Acquire))
    }
}

/// Where data begins in a window: on a line of its own.
fn data(ranks: usize) -> u64 {
    (POSTS + 8 * ranks as u64).next_multiple_of(64)
}

fn expect(what: &str, found: u64, expected: u64) -> Outcome<()> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{what}: {found} instead of {expected}").into()),
    }
}

/// What each rank puts to its right neighbour in the programs: long enough to be pulled.
const LONG_WORDS: u64 = 20_000;
const WINDOW_BYTES: usize = 8 * LONG_WORDS as usize;

/// A ring: each rank puts the number of the round to its right neighbour, and adds to the first.
fn with_fences(window: &mut Window, rounds: u64) -> Outcome<()> {
    let (rank, size) = (window.rank as u64, window.size() as u64);
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    window.fence()?;
    for round in 1..=rounds {
        window.put(right as usize, 8, &(1000 * round + rank).to_ne_bytes())?;
        window.accumulate(0, 0, round)?;
        window.fence()?;
        expect("put before a fence", window.load(8)?, 1000 * round + left)?;
        if rank == 0 {
            expect("sum before a fence", window.load(0)?, size * round * (round + 1) / 2)?;
        }
        // No rank puts the next one while this one is read.
        window.fence()?;
    }
    Ok(())
}

/// The same ring with many words; only neighbours wait for each other.
fn with_groups(window: &mut Window, rounds: u64) -> Outcome<()> {
    let (rank, size) = (window.rank, window.size());
    let (left, right) = ([(rank + size - 1) % size], [(rank + 1) % size]);
    for round in 1..=rounds {
        let words = |rank: usize, word| (rank as u64) << 40 | round << 20 | word;
        let bytes: Vec<u8> =
            (0..LONG_WORDS).flat_map(|word| words(rank, word).to_ne_bytes()).collect();
        window.post(&left)?;
        window.start(&right)?;
        window.put(right[0], 0, &bytes)?;
        window.complete(&right)?;
        window.wait(&left)?;
        for word in 0..LONG_WORDS {
            expect("put to a group", window.load(8 * word)?, words(left[0], word))?;
        }
    }
    Ok(())
}

/// All count, in a word of the last rank that no atomic operation touches, and read it in between.
fn with_locks(window: &mut Window, rounds: u64) -> Outcome<()> {
    let (size, target) = (window.size() as u64, window.size() - 1);
    window.fence()?;
    if window.rank == 0 {
        window.put(target, 0, &0u64.to_ne_bytes())?;
    }
    window.fence()?;
    let mut seen = 0;
    for _ in 0..rounds {
        let mut word = [0; 8];
        window.lock(target, Lock::Exclusive)?;
        window.get(target, 0, &mut word)?;
        window.put(target, 0, &(u64::from_ne_bytes(word) + 1).to_ne_bytes())?;
        window.unlock(target, Lock::Exclusive)?;
        window.lock(target, Lock::Shared)?;
        window.get(target, 0, &mut word)?;
        window.unlock(target, Lock::Shared)?;
        let now = u64::from_ne_bytes(word);
        if now <= seen || now > size * rounds {
            return Err(format!("counted under a lock: {now} after {seen}").into());
        }
        seen = now;
    }
    window.fence()?;
    if window.rank == target {
        expect("counted under locks", window.load(0)?, size * rounds)?;
    }
    window.fence()
}

/// What one rank knows of all.
struct Job<'a> {
    addresses: &'a [Address],
    keys: &'a [OnceLock<RemoteKey>],
    meet: &'a Barrier,
    rank: usize,
    rounds: u64,
}

impl Job<'_> {
    fn run(&self, endpoint: Endpoint<Detached>) -> Outcome<()> {
        let mut window = Window::create(self, endpoint, WINDOW_BYTES);
        let worked = window.as_mut().map_err(|error| error.to_string().into()).and_then(|window| {
            with_fences(window, self.rounds)?;
            with_groups(window, self.rounds)?;
            with_locks(window, self.rounds)
        });
        // The window is there until all are done with it.
        self.meet.wait();
        worked
    }
}

fn main() -> Outcome<()> {
    let mut numbers = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mut number = |default: usize| numbers.next().unwrap_or(Ok(default));
    let (threads, rounds) = (number(4)?, number(20)?);
    if threads == 0 || rounds == 0 || rounds >= 1 << 20 {
        return Err("window THREADS ROUNDS: one of each at least".into());
    }
    let settings = Settings::builder()
        .set("listen_address", "127.0.0.1")
        .job_secret(Some(&JobSecret::random()))
        .build()?;
    let domain = Domain::with_settings(settings)?;
    let endpoints: Vec<Endpoint<Detached>> =
        (0..threads).map(|_| domain.endpoint()).collect::<Result<_, _>>()?;
    let addresses: Vec<Address> = endpoints.iter().map(|endpoint| endpoint.address()).collect();
    let keys: Vec<OnceLock<RemoteKey>> = (0..threads).map(|_| OnceLock::new()).collect();
    let meet = Barrier::new(threads);
    std::thread::scope(|scope| {
        let start = |(rank, endpoint)| {
            let (addresses, keys, meet) = (&addresses, &keys, &meet);
            let job = Job { addresses, keys, meet, rank, rounds: rounds as u64 };
            scope.spawn(move || job.run(endpoint))
        };
        let running: Vec<_> = endpoints.into_iter().enumerate().map(start).collect();
        let joined = running.into_iter().map(|thread| thread.join());
        joined.into_iter().try_for_each(|ended| ended.unwrap_or_else(|_| Err("a panic".into())))
    })?;
    println!("{threads} ranks, {rounds} rounds: fences, groups and locks keep accesses apart");
    Ok(())
}
