//! Tests of ringrail itself.

pub(crate) mod alltoall;
mod bw;
mod counted;
pub(crate) mod failover;
pub(crate) mod incast;
mod latency;
pub(crate) mod load;
mod mr;
pub(crate) mod one_sided;
pub(crate) mod overlap;
mod rails;
pub(crate) mod sharing;
pub(crate) mod threads;
pub(crate) mod wake;

use std::time::Instant;

use ringrail::settings::Settings;
use ringrail::{
    Address, Attached, Buffer, Completion, Counters, DatagramState, Domain, Endpoint, Envelope,
    Error, FrameState, Owned, Peer, ReceiveOptions, Selector, SharedMemoryState, topology,
};
use serde::de::DeserializeOwned;

use self::counted::Counts;
use self::rails::PathsUsed;
use crate::cli::{Buffers, Lanes, Reuse, TestName};
use crate::link::{Job, Link};
use crate::output::{EndpointKind, Histogram, Report};
use crate::progress::Progress;
use crate::secret;

/// Longest message of the tests that inject, in bytes: what goes without a rendezvous by default.
pub(crate) const INJECT_BYTES_MAX: usize = 16_384;
/// Longest message of the ping-pong under load, in bytes: much shorter than what it passes.
pub(crate) const LOADED_BYTES_MAX: usize = 1 << 20;
/// The smallest pages that memory comes in.
const PAGE_BYTES: usize = 4096;
/// Shortest message that holds its number, in bytes.
pub(crate) const STAMP_BYTES: usize = 8;

/// One side of a test.
pub(crate) struct Side<'a, M: Attached = Owned> {
    pub(crate) link: &'a mut Link,
    pub(crate) job: &'a Job,
    pub(crate) endpoint: Endpoint<M>,
    pub(crate) peer: Peer,
    pub(crate) is_server: bool,
    /// When the measured part of this round began and ended.
    span: Option<(Instant, Instant)>,
    /// The latencies of this round.
    histogram: Option<Histogram>,
    /// Threads of this process outnumber its cores: who spins keeps others from their turn.
    is_crowded: bool,
    completions: Vec<Completion>,
    /// [`Self::frames`] when this round began.
    frames_before: (u64, u64),
    /// The paths when this round began.
    paths_before: PathsUsed,
}

/// Whether rails that nobody named have this address among them: then all of them are used.
/// Otherwise whoever named it means it.
fn is_found(local: &std::net::IpAddr) -> bool {
    let Ok(defaults) = Settings::builder().insecure(true).build() else { return false };
    let rails = topology::nics().ok().and_then(|nics| topology::select(&nics, &defaults).ok());
    rails.is_some_and(|found| found.rails.iter().any(|rail| rail.address == *local))
}

/// Settings for a job, or for `info`.
pub(crate) fn settings(
    lanes: Lanes,
    nics: Option<&str>,
    local: Option<std::net::IpAddr>,
    arena_bytes: Option<usize>,
    extra: &[String],
) -> Result<Settings, String> {
    let mut builder = Settings::builder();
    for (name, value) in lanes.settings() {
        builder = builder.set(name, value);
    }
    if let Some(nics) = nics {
        builder = builder.set("nics", nics);
    } else if let Some(local) = local.filter(|local| !is_found(local)) {
        builder = builder.set("listen_address", &local.to_string());
    }
    if let Some(bytes) = arena_bytes {
        builder = builder.set("arena_bytes", &bytes.to_string());
    }
    if let Some(secret) = secret::of_this_run() {
        builder = builder.job_secret(Some(secret));
    }
    for setting in extra {
        let (name, value) =
            setting.split_once('=').ok_or_else(|| format!("--set {setting}: NAME=VALUE"))?;
        builder = builder.set(name, value);
    }
    builder.build().map_err(|error| error.to_string())
}

fn message(error: Error) -> String {
    error.to_string()
}

/// Runs all rounds of a job; the client's reports mean something.
pub(crate) fn run(
    link: &mut Link,
    job: &Job,
    is_server: bool,
    progress: &Progress,
) -> Result<Vec<Report>, String> {
    let arena = match (job.test, job.buffers) {
        (TestName::Bw | TestName::Bibw, Buffers::Region) => {
            let buffers = match job.reuse {
                Reuse::Window => job.window,
                Reuse::Same if job.test == TestName::Bw => 1,
                // One for each direction.
                Reuse::Same => 2,
            };
            Some((buffers * job.size.next_multiple_of(4096)).max(1 << 20))
        }
        (TestName::PutBw | TestName::GetBw, Buffers::Region) => {
            Some((job.window * job.size.next_multiple_of(4096)).max(1 << 20))
        }
        (TestName::Overlap, Buffers::Region) => Some((2 * job.size).max(1 << 20)),
        (TestName::LatencyUnderLoad, Buffers::Region) => {
            Some((load::TRANSFERS * job.bulk_size).max(1 << 20))
        }
        (TestName::Failover, Buffers::Region) => {
            Some((job.window * job.size.next_multiple_of(4096)).max(1 << 20))
        }
        _ => None,
    };
    let arena = arena.map(|bytes| bytes * job.threads);
    let mut extra = job.settings.clone();
    extra.extend(job.pcap.as_ref().map(|file| format!("pcap_file={file}")));
    // With several NICs to choose from the engine does so itself.
    let local = job.lab_rails.len() < 2 && !job.has_decoys;
    let local = local.then_some(link.local);
    let settings = settings(job.lanes, job.nics.as_deref(), local, arena, &extra)?;
    let domain = Domain::with_settings(settings).map_err(message)?;
    if job.test == TestName::Alltoall {
        return alltoall::run(link, job, &domain, is_server, progress);
    }
    if job.test == TestName::Incast {
        return incast::run(link, job, &domain, is_server, progress);
    }
    let is_dedicated = match job.test {
        TestName::Overlap => true,
        TestName::DedicatedWake => is_server,
        _ => false,
    };
    if is_dedicated {
        let endpoint = domain.endpoint().and_then(Endpoint::dedicate).map_err(message)?;
        return rounds(&mut Side::open(link, job, endpoint, is_server)?, progress);
    }
    if job.threads > 1 || job.is_shared || job.test == TestName::LatencyMt {
        return threads::run(link, job, &domain, is_server, progress);
    }
    let endpoint = domain.endpoint().and_then(Endpoint::attach).map_err(message)?;
    let mut side = Side::open(link, job, endpoint, is_server)?;
    if job.test == TestName::Failover {
        let report = failover::run(&mut side, progress)?;
        side.barrier()?;
        return Ok(vec![report]);
    }
    rounds(&mut side, progress)
}

/// All rounds of a job that has one thread.
fn rounds(side: &mut Side<'_, impl Attached>, progress: &Progress) -> Result<Vec<Report>, String> {
    let mut reports = Vec::new();
    // The first round warms up.
    for round in 0..=side.job.rounds {
        side.barrier()?;
        let report = side.round()?;
        if round > 0 {
            progress.keep(&report);
            reports.push(report);
        }
        progress.advance();
    }
    // Neither side leaves while the other still waits for something.
    side.barrier()?;
    Ok(reports)
}

/// The tag of everything but bulk under load.
pub(crate) const TAG: Envelope = Envelope::tagged(1);

impl<'a, M: Attached> Side<'a, M> {
    /// Connects an endpoint with that of the other side of `link`.
    fn open(
        link: &'a mut Link,
        job: &'a Job,
        endpoint: Endpoint<M>,
        is_server: bool,
    ) -> Result<Self, String> {
        if let Some(hint) = job.hint.filter(|_| job.test != TestName::LatencyUnderLoad) {
            endpoint.set_hint(hint.into());
        }
        link.put(&endpoint.address().to_bytes().to_vec())?;
        let address: Vec<u8> = link.get()?;
        let address = Address::from_bytes(&address).map_err(message)?;
        let peer = endpoint.insert_peer(&address).map_err(message)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let side = Self {
            link,
            job,
            endpoint,
            peer,
            is_server,
            span: None,
            histogram: None,
            is_crowded: job.threads > cores,
            completions: Vec::with_capacity(4096),
            frames_before: (0, 0),
            paths_before: PathsUsed::default(),
        };
        side.endpoint.connect(side.peer, None).map_err(message)?;
        Ok(side)
    }
}

impl<M: Attached> Side<'_, M> {
    /// One round of the job.
    fn round(&mut self) -> Result<Report, String> {
        self.frames_before = self.frames();
        self.paths_before = PathsUsed::of(&self.endpoint.paths());
        match self.job.test {
            TestName::Bw => bw::run(self, false),
            TestName::Bibw => bw::run(self, true),
            TestName::Mr => mr::run(self),
            TestName::LatencyUnderLoad => load::run(self),
            TestName::PutLatency
            | TestName::PutBw
            | TestName::GetLatency
            | TestName::GetBw
            | TestName::AtomicLatency
            | TestName::PutMr => one_sided::run(self),
            TestName::Overlap => overlap::run(self),
            TestName::DedicatedWake => wake::run(self),
            _ => latency::run(self),
        }
    }

    /// A turn brought nothing: where threads outnumber cores, another one has its turn.
    #[inline]
    fn relax(&self) {
        match self.is_crowded {
            true => std::thread::yield_now(),
            false => std::hint::spin_loop(),
        }
    }

    /// A buffer of the job's kind. Its pages are there: what the kernel takes to get them is no
    /// part of what is measured.
    fn buffer(&self, length: usize) -> Result<Buffer, String> {
        let mut buffer = match self.job.buffers {
            Buffers::Region => {
                self.endpoint.domain().allocate(length).map(Buffer::from).map_err(message)?
            }
            Buffers::Heap => Buffer::from(vec![0u8; length]),
        };
        let bytes = buffer.as_mut_slice().unwrap_or_default();
        bytes.chunks_mut(PAGE_BYTES).for_each(|page| page[0] = 1);
        Ok(buffer)
    }

    /// Posts a receive, at a limit when there is room: a shared engine has one for the posts that
    /// wait for the thread that is at it.
    fn post_receive(
        &self,
        selector: Selector,
        mut buffer: Buffer,
        user_data: u64,
    ) -> Result<(), String> {
        let options = ReceiveOptions::new().user_data(user_data);
        loop {
            match self.endpoint.post_receive(selector, buffer, options) {
                Ok(_) => return Ok(()),
                Err(rejected) if rejected.error.is_would_block() => buffer = rejected.buffer,
                Err(rejected) => return Err(rejected.to_string()),
            }
            if !self.endpoint.progress().map_err(message)? {
                self.relax();
            }
        }
    }

    /// Waits for completions, spinning; they are handed out one by one.
    fn next_completions(&mut self) -> Result<std::vec::Drain<'_, Completion>, String> {
        while self.endpoint.completions(&mut self.completions, 4096).map_err(message)? == 0 {
            self.relax();
        }
        Ok(self.completions.drain(..))
    }

    /// Receives a value from the other side. Meanwhile this side makes progress: what the other
    /// one waits for may still be staged here.
    fn get<T: DeserializeOwned>(&mut self) -> Result<T, String> {
        while !self.link.is_ready()? {
            self.endpoint.progress().map_err(message)?;
            std::thread::yield_now();
        }
        self.link.get()
    }

    /// Datagrams that went or came as AF_XDP frames so far, and those by shared memory.
    fn frames(&self) -> (u64, u64) {
        let by_frame = match self.endpoint.datagrams() {
            DatagramState::Taken { frames: FrameState::Up { figures, .. }, .. }
            | DatagramState::Taken { frames: FrameState::Down { figures, .. }, .. } => {
                figures.sent + figures.received
            }
            _ => 0,
        };
        let by_ring = match self.endpoint.shared_memory() {
            SharedMemoryState::On { figures, .. } => figures.sent + figures.received,
            _ => 0,
        };
        (by_frame, by_ring)
    }

    /// Both sides are here.
    fn barrier(&mut self) -> Result<(), String> {
        self.link.put(&0)?;
        self.get::<u32>().map(drop)
    }

    /// An empty report of this job.
    fn report(&self) -> Report {
        Report {
            test: serde_json::to_value(self.job.test)
                .ok()
                .and_then(|value| value.as_str().map(str::to_owned))
                .unwrap_or_default(),
            size_bytes: self.job.size,
            iterations: self.job.iters,
            threads: self.job.threads,
            endpoints: Some(EndpointKind::of(self.job.is_shared)),
            hint: self.job.hint,
            pause_us: self.job.pause(),
            ..Report::default()
        }
    }

    /// Fills in which lanes it went by and what both sides counted: verification, system calls,
    /// datagrams, zero copy.
    fn conclude(
        &mut self,
        report: &mut Report,
        before: &Counters,
        messages: u64,
        verified: bool,
    ) -> Result<(), String> {
        let after = self.endpoint.counters();
        // A shared engine counts what all threads do.
        let messages =
            if self.job.is_shared { messages * self.job.threads as u64 } else { messages };
        let (frames, rings) = self.frames();
        let by = (frames - self.frames_before.0, rings - self.frames_before.1);
        let ours = Counts::between(before, &after, by, messages);
        self.link.put(&(ours, verified))?;
        let (theirs, their_verified): (Counts, bool) = self.get()?;
        report.syscalls_per_message = Some(ours.syscalls_per_message);
        report.syscalls_per_message_peer = Some(theirs.syscalls_per_message);
        report.verified = verified && their_verified;
        report.eager_limit_bytes = self.endpoint.eager_limit_bytes(self.peer);
        let asked = self.endpoint.domain().settings().control_lane();
        let paths = PathsUsed::of(&self.endpoint.paths()).since(&self.paths_before);
        report.lanes = paths.lanes(self.endpoint.driver());
        report.rail_bytes = paths.bytes();
        counted::control_lane(report, asked, &ours, &theirs, paths.primary_nic());
        if self.job.lanes.is_datagrams_only() {
            // There is no other lane.
            report.lanes.truncate(1);
        }
        let sent = after.zero_copy_sends - before.zero_copy_sends;
        let copied = after.zero_copy_copied - before.zero_copy_copied;
        let kind = if sent == 0 {
            "off"
        } else if copied > 0 {
            "copied"
        } else {
            "on"
        };
        report.zero_copy = Some(kind.to_owned());
        Ok(())
    }
}

/// Time since `start` in seconds, never 0.
pub(crate) fn seconds_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64().max(1e-9)
}
