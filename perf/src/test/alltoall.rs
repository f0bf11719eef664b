//! Every rank sends a message to every other one, again and again: what that costs among many, and
//! among few, by turns.
//!
//! Ranks are engines. Half of them are in each process, whose one thread has them make progress by
//! turns, as a host does whose cores are fewer.

use std::fs;
use std::time::Instant;

use ringrail::{
    Address, Buffer, Completion, Domain, Endpoint, Envelope, Owned, Peer, ReceiveOptions, Selector,
    SendOptions,
};
use serde::{Deserialize, Serialize};

use super::{message, seconds_since};
use crate::link::{Job, Link};
use crate::output::Report;
use crate::progress::Progress;
use crate::stamp;

/// What many ranks are compared with.
pub(crate) const FEW: usize = 8;
/// Looks of one rank at what does not come.
const LOOKS: u32 = 100_000;
/// Messages from each rank to each before anything is measured: neighbours meet meanwhile.
const WARM: u64 = 50;

/// What `alltoall` reports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct AlltoallReport {
    pub(crate) ranks: usize,
    /// Time of a whole exchange by its messages, of both cores together.
    pub(crate) ns_per_message: f64,
    /// The same among [`FEW`].
    pub(crate) few_ns_per_message: f64,
    pub(crate) by_few: f64,
    /// A look of one rank while nothing comes, with as many neighbours, and with few.
    pub(crate) empty_look_ns: f64,
    pub(crate) few_empty_look_ns: f64,
    /// Memory that a rank has in common with each other one, as far as it was touched, and has with
    /// each on its heap and stack.
    pub(crate) shared_kib_per_pair: f64,
    pub(crate) own_kib_per_pair: f64,
}

/// One process's half of so many ranks.
struct Ranks {
    endpoints: Vec<Endpoint<Owned>>,
    /// Of each, all others.
    peers: Vec<Vec<Peer>>,
    /// The number of the next exchange, which all its messages have for a tag.
    next: u64,
    buffers: Vec<Buffer>,
}

impl Ranks {
    fn new(link: &mut Link, domain: &Domain, count: usize, size: usize) -> Result<Self, String> {
        let endpoint = || domain.endpoint().map_err(message)?.attach().map_err(message);
        let endpoints = (0..count / 2).map(|_| endpoint()).collect::<Result<Vec<_>, _>>()?;
        let ours: Vec<Vec<u8>> =
            endpoints.iter().map(|endpoint| endpoint.address().to_bytes().to_vec()).collect();
        link.put(&ours)?;
        let theirs: Vec<Vec<u8>> = link.get()?;
        let mut peers = Vec::new();
        for (at, endpoint) in endpoints.iter().enumerate() {
            let others = ours.iter().enumerate().filter(|&(other, _)| other != at);
            let others = others.map(|(_, address)| address).chain(&theirs);
            let insert = |bytes: &Vec<u8>| {
                let address = Address::from_bytes(bytes).map_err(message)?;
                endpoint.insert_peer(&address).map_err(message)
            };
            peers.push(others.map(insert).collect::<Result<Vec<_>, _>>()?);
        }
        let count = endpoints.len() * (count - 1);
        let buffers = (0..count).map(|_| Buffer::from(vec![0; size])).collect();
        Ok(Self { endpoints, peers, next: 0, buffers })
    }

    fn progress(&self) -> Result<(), String> {
        self.endpoints.iter().try_for_each(|it| it.progress().map(drop)).map_err(message)
    }

    /// A message from each rank to each other one, and from each. `true`: all had what they should.
    fn exchange(&mut self, bytes: &mut [u8]) -> Result<bool, String> {
        let number = self.next;
        self.next += 1;
        stamp::write(bytes, number);
        let tag = Envelope::tagged(number);
        let mut missing = 0;
        for (endpoint, peers) in self.endpoints.iter().zip(&self.peers) {
            for &peer in peers {
                let buffer = self.buffers.pop().ok_or("a buffer is missing")?;
                endpoint
                    .post_receive(Selector::from_peer(peer, tag), buffer, ReceiveOptions::new())
                    .map_err(|rejected| rejected.to_string())?;
                missing += 1;
            }
        }
        for (endpoint, peers) in self.endpoints.iter().zip(&self.peers) {
            for &peer in peers {
                loop {
                    match endpoint.inject(peer, tag, bytes, SendOptions::new()) {
                        Ok(()) => break,
                        Err(error) if error.is_would_block() => self.progress()?,
                        Err(error) => return Err(error.to_string()),
                    }
                }
            }
        }
        let (mut done, mut verified): (Vec<Completion>, _) = (Vec::with_capacity(64), true);
        while missing > 0 {
            for endpoint in &self.endpoints {
                endpoint.completions(&mut done, 64).map_err(message)?;
                for completion in done.drain(..) {
                    completion.result.map_err(message)?;
                    let Some(buffer) = completion.buffer else { continue };
                    verified &= stamp::check(buffer.as_slice().unwrap_or(&[]), number);
                    self.buffers.push(buffer);
                    missing -= 1;
                }
            }
        }
        Ok(verified)
    }

    /// Both processes make `count` exchanges: how long that takes, and whether all was right.
    fn exchanges(
        &mut self,
        link: &mut Link,
        size: usize,
        count: u64,
    ) -> Result<(f64, bool), String> {
        let (mut bytes, mut verified) = (vec![0; size], true);
        link.barrier()?;
        let start = Instant::now();
        for _ in 0..count {
            verified &= self.exchange(&mut bytes)?;
        }
        let seconds = seconds_since(start);
        // The last messages of the other process may need this one.
        link.put(&seconds)?;
        while !link.is_ready()? {
            self.progress()?;
        }
        let theirs: f64 = link.get()?;
        Ok((seconds.max(theirs), verified))
    }

    /// What a look of one of them costs while nothing comes, in nanoseconds.
    fn empty_look_ns(&self) -> Result<f64, String> {
        let endpoint = &self.endpoints[0];
        let start = Instant::now();
        for _ in 0..LOOKS {
            endpoint.progress().map_err(message)?;
        }
        Ok(seconds_since(start) * 1e9 / f64::from(LOOKS))
    }
}

/// Pages that this process has touched, of shared memory and of its own, in KiB.
fn resident_kib() -> Result<[f64; 2], String> {
    let status = fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse().ok()
    };
    [of("RssShmem:"), of("RssAnon:")]
        .into_iter()
        .collect::<Option<Vec<f64>>>()
        .and_then(|both| both.try_into().ok())
        .ok_or_else(|| "the kernel does not say how much memory is in use".to_owned())
}

/// Runs all rounds of a job.
pub(super) fn run(
    link: &mut Link,
    job: &Job,
    domain: &Domain,
    is_server: bool,
    progress: &Progress,
) -> Result<Vec<Report>, String> {
    let size = job.size;
    let mut few = Ranks::new(link, domain, FEW, size)?;
    let mut verified = few.exchanges(link, size, WARM)?.1;
    let before = resident_kib()?;
    let mut many = Ranks::new(link, domain, job.ranks, size)?;
    verified &= many.exchanges(link, size, WARM)?.1;
    let after = resident_kib()?;
    // A rank of this process and another one, whichever process that is in.
    let pairs = (job.ranks / 2 * (job.ranks - 1)) as f64;
    let [shared_kib_per_pair, own_kib_per_pair] =
        [0, 1].map(|at| (after[at] - before[at]).max(0.0) / pairs);
    let mut reports = Vec::new();
    for round in 0..=job.rounds {
        let mut part = |ranks: &mut Ranks, count: usize| {
            let messages = (count * (count - 1)) as u64;
            let exchanges = (job.iters / messages).max(2);
            let (seconds, is_right) = ranks.exchanges(link, size, exchanges)?;
            verified &= is_right;
            let ns = seconds * 1e9 / (exchanges * messages) as f64;
            Ok::<_, String>((ns, ranks.empty_look_ns()?))
        };
        let (few_ns_per_message, few_empty_look_ns) = part(&mut few, FEW)?;
        let (ns_per_message, empty_look_ns) = part(&mut many, job.ranks)?;
        // The first round warms up.
        if round > 0 && !is_server {
            let driver = many.endpoints[0].driver();
            let nics = super::rails::PathsUsed::of(&many.endpoints[0].paths());
            let report = Report {
                test: "alltoall".to_owned(),
                size_bytes: size,
                iterations: job.iters,
                threads: 1,
                lanes: nics.lanes(driver),
                verified,
                message_rate_per_s: Some(1e9 / ns_per_message),
                alltoall: Some(AlltoallReport {
                    ranks: job.ranks,
                    ns_per_message,
                    few_ns_per_message,
                    by_few: ns_per_message / few_ns_per_message,
                    empty_look_ns,
                    few_empty_look_ns,
                    shared_kib_per_pair,
                    own_kib_per_pair,
                }),
                ..Report::default()
            };
            progress.keep(&report);
            reports.push(report);
        }
        progress.advance();
    }
    link.barrier()?;
    Ok(reports)
}
