//! Many senders and one receiver: what of its link they have together, and who has least of it.
//!
//! All senders are engines of the client, which one thread runs by turns, so that no scheduler
//! prefers any of them. They send at once until each has sent its messages; what counts is what
//! came until the first one was through. Before each such round one of them sends alone: that is
//! what the link carries.

use std::time::{Duration, Instant};

use ringrail::{
    Address, Buffer, Completion, Domain, Endpoint, OperationKind, Owned, Peer, ReceiveOptions,
    Selector, SendOptions,
};
use serde::{Deserialize, Serialize};

use super::{TAG, message, seconds_since};
use crate::link::{Job, Link};
use crate::output::Report;
use crate::progress::Progress;
use crate::stamp;

/// Time after the last sender has begun that does not count.
const SETTLE: Duration = Duration::from_millis(50);
/// Where the number of a message begins in a completion's context.
const NUMBER_BITS: u32 = 48;

/// What `incast` reports besides the sum, as `bandwidth_mb_s`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct IncastReport {
    pub(crate) senders: usize,
    /// Of one sender alone, just before.
    pub(crate) single_mb_s: f64,
    /// All senders together, by one alone.
    pub(crate) link_share: f64,
    /// The slowest sender, by the mean of all.
    pub(crate) slowest_share: f64,
    pub(crate) sender_mb_s: Vec<f64>,
}

/// Bytes of each sender that came in so many seconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Shares {
    bytes: Vec<u64>,
    seconds: f64,
    verified: bool,
}

impl Shares {
    fn mb_s(&self) -> Vec<f64> {
        self.bytes.iter().map(|&bytes| bytes as f64 / self.seconds / 1e6).collect()
    }

    fn report(&self, alone: &Self, size: usize, iterations: u64) -> Report {
        let (sender_mb_s, single_mb_s) = (self.mb_s(), alone.mb_s().iter().sum::<f64>());
        let sum = sender_mb_s.iter().sum::<f64>();
        let least = sender_mb_s.iter().copied().fold(f64::INFINITY, f64::min);
        let senders = sender_mb_s.len();
        Report {
            test: "incast".to_owned(),
            size_bytes: size,
            iterations,
            threads: 1,
            bandwidth_mb_s: Some(sum),
            verified: self.verified && alone.verified,
            incast: Some(IncastReport {
                senders,
                single_mb_s,
                link_share: sum / single_mb_s,
                slowest_share: least * senders as f64 / sum,
                sender_mb_s,
            }),
            ..Report::default()
        }
    }
}

/// Runs all rounds of a job; the client's reports mean something.
pub(super) fn run(
    link: &mut Link,
    job: &Job,
    domain: &Domain,
    is_server: bool,
    progress: &Progress,
) -> Result<Vec<Report>, String> {
    let mut reports = Vec::new();
    let engines = Engines::new(link, job, domain, is_server)?;
    // The first round warms up.
    for round in 0..=job.rounds {
        let alone = engines.part(link, job, 1)?;
        let all = engines.part(link, job, job.senders)?;
        if round > 0 && !is_server {
            let mut report = all.report(&alone, job.size, job.iters);
            report.lanes = engines.lanes();
            progress.keep(&report);
            reports.push(report);
        }
        progress.advance();
    }
    link.barrier()?;
    Ok(reports)
}

/// One side: senders and their peer, or the receiver and its peers.
struct Engines {
    endpoints: Vec<Endpoint<Owned>>,
    peers: Vec<Peer>,
    addresses: Vec<Address>,
    is_server: bool,
}

impl Engines {
    fn new(link: &mut Link, job: &Job, domain: &Domain, is_server: bool) -> Result<Self, String> {
        let count = if is_server { 1 } else { job.senders };
        let endpoint = || domain.endpoint().map_err(message)?.attach().map_err(message);
        let endpoints = (0..count).map(|_| endpoint()).collect::<Result<Vec<_>, _>>()?;
        let ours: Vec<Vec<u8>> =
            endpoints.iter().map(|endpoint| endpoint.address().to_bytes().to_vec()).collect();
        link.put(&ours)?;
        let theirs: Vec<Vec<u8>> = link.get()?;
        let address = |bytes: &Vec<u8>| Address::from_bytes(bytes).map_err(message);
        let addresses = theirs.iter().map(address).collect::<Result<Vec<_>, _>>()?;
        let mut peers = Vec::new();
        for at in 0..job.senders {
            let endpoint = endpoints.get(at).unwrap_or(&endpoints[0]);
            let address = addresses.get(at).unwrap_or(&addresses[0]);
            peers.push(endpoint.insert_peer(address).map_err(message)?);
        }
        let engines = Self { endpoints, peers, addresses, is_server };
        for (at, &peer) in engines.peers.iter().enumerate() {
            engines.endpoint(at).connect(peer, None).map_err(message)?;
        }
        Ok(engines)
    }

    /// The endpoint of a sender, or that of the receiver.
    fn endpoint(&self, at: usize) -> &Endpoint<Owned> {
        self.endpoints.get(at).unwrap_or(&self.endpoints[0])
    }

    /// The lanes that messages of the first engine went by.
    fn lanes(&self) -> Vec<String> {
        let endpoint = &self.endpoints[0];
        let nics = super::rails::PathsUsed::of(&endpoint.paths());
        nics.lanes(endpoint.driver())
    }

    /// `senders` of them send at once; the client has the receiver's figures.
    fn part(&self, link: &mut Link, job: &Job, senders: usize) -> Result<Shares, String> {
        // Alone a sender is faster.
        let count = if senders == 1 { job.iters * job.senders as u64 / 2 } else { job.iters };
        let count = count.max(job.window as u64);
        if self.is_server {
            let receiver = Receiver::new(self, job, senders, count)?;
            link.barrier()?;
            let shares = receiver.run()?;
            link.put(&shares)?;
            self.idle_until(link)?;
            return Ok(shares);
        }
        link.barrier()?;
        self.send(job, senders, count)?;
        self.idle_until(link)?;
        let shares = link.get()?;
        link.put(&0)?;
        Ok(shares)
    }

    /// Makes progress until the other side has said something; a number of the client is taken.
    fn idle_until(&self, link: &mut Link) -> Result<(), String> {
        while !link.is_ready()? {
            self.endpoints.iter().try_for_each(|it| it.progress().map(drop)).map_err(message)?;
            std::thread::yield_now();
        }
        if self.is_server { link.get::<u32>().map(drop) } else { Ok(()) }
    }

    fn send(&self, job: &Job, senders: usize, count: u64) -> Result<(), String> {
        let buffer = || Buffer::from(vec![0_u8; job.size]);
        let mut idle: Vec<Vec<Buffer>> =
            (0..senders).map(|_| (0..job.window).map(|_| buffer()).collect()).collect();
        let (mut sent, mut done) = (vec![0; senders], 0);
        let mut completions: Vec<Completion> = Vec::new();
        while done < count * senders as u64 {
            for at in 0..senders {
                let endpoint = self.endpoint(at);
                while sent[at] < count
                    && let Some(mut buffer) = idle[at].pop()
                {
                    let bytes = buffer.as_mut_slice().ok_or("the buffer is in pieces")?;
                    match job.verify {
                        true => stamp::fill(bytes, sent[at]),
                        false => stamp::write(bytes, sent[at]),
                    }
                    let options = SendOptions::default();
                    let posted = endpoint.post_send(
                        self.peers[at],
                        TAG,
                        buffer,
                        options.user_data(sent[at]),
                    );
                    posted.map_err(|rejected| rejected.to_string())?;
                    sent[at] += 1;
                }
                endpoint.completions(&mut completions, 64).map_err(message)?;
                for completion in completions.drain(..) {
                    completion.result.map_err(message)?;
                    if let (OperationKind::Send, Some(buffer)) =
                        (completion.kind, completion.buffer)
                    {
                        idle[at].push(buffer);
                        done += 1;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The receiver's part, for one time that senders send.
struct Receiver<'a> {
    engines: &'a Engines,
    job: &'a Job,
    count: u64,
    posted: Vec<u64>,
    came: Vec<u64>,
    verified: bool,
}

impl<'a> Receiver<'a> {
    fn new(engines: &'a Engines, job: &'a Job, senders: usize, count: u64) -> Result<Self, String> {
        let (posted, came) = (vec![0; senders], vec![0; senders]);
        let mut receiver = Self { engines, job, count, posted, came, verified: true };
        for at in 0..senders {
            for _ in 0..job.window {
                receiver.post(at, Buffer::from(vec![0_u8; job.size]))?;
            }
        }
        Ok(receiver)
    }

    fn post(&mut self, at: usize, buffer: Buffer) -> Result<(), String> {
        if self.posted[at] < self.count {
            let selector = Selector::from_peer(self.engines.peers[at], TAG);
            let context = (at as u64) << NUMBER_BITS | self.posted[at];
            let endpoint = &self.engines.endpoints[0];
            let posted =
                endpoint.post_receive(selector, buffer, ReceiveOptions::new().user_data(context));
            posted.map_err(|error| error.to_string())?;
            self.posted[at] += 1;
        }
        Ok(())
    }

    /// Bytes that bulk lanes brought from each sender so far.
    fn bytes(&self) -> Vec<u64> {
        let paths = self.engines.endpoints[0].paths();
        let of = |address: &Address| {
            let of_it = paths.iter().filter(|path| path.peer == *address);
            of_it.map(|path| path.bytes_received).sum()
        };
        self.engines.addresses[..self.came.len()].iter().map(of).collect()
    }

    fn run(mut self) -> Result<Shares, String> {
        let mut completions: Vec<Completion> = Vec::new();
        let mut all_begun: Option<Instant> = None;
        let mut begin: Option<(Instant, Vec<u64>)> = None;
        let mut shares: Option<Shares> = None;
        while self.came.iter().any(|&came| came < self.count) {
            self.engines.endpoints[0].completions(&mut completions, 256).map_err(message)?;
            for completion in completions.drain(..) {
                completion.result.map_err(message)?;
                let Some(buffer) = completion.buffer else { continue };
                self.take(completion.user_data, buffer)?;
            }
            if all_begun.is_none() && self.came.iter().all(|&came| came > 0) {
                all_begun = Some(Instant::now());
            }
            if begin.is_none() && all_begun.is_some_and(|since| since.elapsed() >= SETTLE) {
                begin = Some((Instant::now(), self.bytes()));
            }
            if shares.is_none() && self.came.contains(&self.count) {
                let Some((since, before)) = &begin else {
                    return Err("the first sender was through before all had begun: more --iters"
                        .to_owned());
                };
                let seconds = seconds_since(*since);
                let now = self.bytes();
                let bytes = now.iter().zip(before).map(|(now, before)| now - before).collect();
                shares = Some(Shares { bytes, seconds, verified: true });
            }
        }
        let shares = shares.ok_or("nothing was received")?;
        Ok(Shares { verified: self.verified, ..shares })
    }

    fn take(&mut self, context: u64, buffer: Buffer) -> Result<(), String> {
        let (at, number) = ((context >> NUMBER_BITS) as usize, context & ((1 << NUMBER_BITS) - 1));
        let bytes = buffer.as_slice().ok_or("the buffer is in pieces")?;
        self.verified &= match self.job.verify {
            true => stamp::check_all(bytes, number),
            false => stamp::check(bytes, number),
        };
        self.came[at] += 1;
        self.post(at, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_link_and_of_the_mean() {
        let shares = |bytes: &[u64]| Shares { bytes: bytes.to_vec(), seconds: 2.0, verified: true };
        let all = shares(&[40_000_000, 60_000_000, 80_000_000, 60_000_000]);
        let report = all.report(&shares(&[250_000_000]), 1 << 20, 32);
        let incast = report.incast.unwrap();
        assert_eq!((report.bandwidth_mb_s, incast.single_mb_s), (Some(120.0), 125.0));
        assert_eq!((incast.link_share, incast.senders), (0.96, 4));
        assert!((incast.slowest_share - 20.0 / 30.0).abs() < 1e-9);
    }
}
