//! Bootstrap through files in a directory that all ranks see.
//!
//! Every file is published atomically, by renaming. In the job's directory:
//!
//! ```text
//! lock-R            held (flock) by the live rank R: its instance and label
//! join-R            rank R is here: instance, number of ranks, label
//! session           of rank 0: its instance, the number of ranks, the instances of all ranks
//! refuse-INSTANCE   an error for that process: the writer's instance, encoded error
//! session-I/ack-R          rank R has found its instance in the session of rank 0's instance I
//! session-I/part-N-R       the part of rank R in round N
//! session-I/abort          the job failed: encoded error
//! session-I/left-R         rank R needs nothing any more
//! ```
//!
//! Files of an earlier job name instances that no longer run. They acknowledge nothing, and the
//! session lists no live instance, so no process joins it.

use std::collections::{HashMap, HashSet};
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;

use super::collective::{Collective, Gather};
use super::error::rank_list;
use super::folder::{Folder, system};
use super::{BootstrapError, Member, PART_BYTES_MAX, own_label};

/// Bootstrap through files in a directory that all ranks can access.
///
/// Each job has a subdirectory, `ringrail-JOB`, which the last rank to leave removes. Files of an
/// earlier job that was killed, even of the same name, do no harm. If two live processes claim one
/// rank, both get [`BootstrapError::DuplicateRank`]; between hosts this requires a file system with
/// locks (NFS, unless it is mounted with `nolock`).
///
/// The job's directory is closed to other users. A directory that belongs to another user, or that
/// others may write to, is refused, and links in it are not followed: any user can create one
/// below `/tmp`.
#[derive(Debug)]
pub struct SharedDirectory(pub(super) Collective<DirectorySession>);

impl SharedDirectory {
    /// Joins the job in `directory`, which is created if it is missing. Returns when all ranks have
    /// joined.
    ///
    /// # Errors
    /// The directory cannot be used, two processes claim one rank, ranks disagree about their
    /// number, or a rank did not join before the timeout.
    pub fn join(directory: impl AsRef<Path>, member: &Member) -> Result<Self, BootstrapError> {
        member.check()?;
        let mut session = DirectorySession::open(directory.as_ref(), member)?;
        let met = if member.rank == 0 { session.convene() } else { session.attend() };
        if let Err(error) = met {
            session.abort(&error);
            return Err(error);
        }
        Ok(Self(Collective::join(session)?))
    }
}

/// The first pause between two polls of the directory; it grows up to `LONGEST_PAUSE`.
const PAUSE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// How long a process of the same rank may take to end after it has left its job.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// A rank's hold on the job's directory.
#[derive(Debug)]
pub(crate) struct DirectorySession {
    /// The directory that contains all jobs.
    top: Folder,
    /// The name of this job's directory in it.
    name: String,
    /// `ringrail-JOB`.
    job: Folder,
    /// `session-I` in it, known once rank 0's session is.
    room: String,
    member: Member,
    instance: String,
    label: String,
    round: u64,
    files: u64,
    /// Held as long as this rank lives; the lock is the kernel's, so it does not outlive us.
    _lock: File,
}

/// Parses the content of a `join-R` file: instance, number of ranks, label.
pub(super) fn parse_join(bytes: &[u8]) -> Option<(String, usize, String)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut words = text.splitn(3, ' ');
    let (instance, size) = (words.next()?, words.next()?.parse().ok()?);
    is_instance(instance).then(|| (instance.into(), size, words.next().unwrap_or("").into()))
}

/// Rank 0's instance, if this `session` is of `member`'s job and lists it as `instance`.
pub(super) fn parse_session<'a>(text: &'a str, member: &Member, instance: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    let (host, size) = (lines.next()?, lines.next()?);
    let is_listed = lines.nth(member.rank) == Some(instance);
    (is_listed && is_instance(host) && size.parse() == Ok(member.size)).then_some(host)
}

/// Instances become parts of file names, so they may hold nothing else.
pub(super) fn is_instance(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl DirectorySession {
    /// Makes the job's directory and takes this rank's lock in it.
    fn open(directory: &Path, member: &Member) -> Result<Self, BootstrapError> {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
        let name: String = member.job.chars().map(plain).take(128).collect();
        let name = format!("ringrail-{name}");
        let failed = system("cannot use", directory);
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(&failed)?;
        let top = Folder::open(directory).map_err(&failed)?;
        let instance = format!("{:032x}", UnwrapErr(SysRng).random::<u128>());
        let label = own_label();
        let (job, lock) = take_lock(&top, &name, member, &instance, &label)?;
        let mut session = Self {
            room: String::new(),
            member: member.clone(),
            instance,
            label,
            round: 0,
            files: 0,
            _lock: lock,
            job,
            top,
            name,
        };
        let join = format!("{} {} {}", session.instance, member.size, session.label);
        session.publish(&format!("join-{}", member.rank), join.as_bytes())?;
        Ok(session)
    }

    /// Publishes a file atomically.
    fn publish(&mut self, name: &str, bytes: &[u8]) -> Result<(), BootstrapError> {
        let temporary = format!("new-{}-{}", self.instance, self.files);
        self.files += 1;
        self.job.publish(name, &temporary, bytes)
    }

    /// Polls the directory until `look` returns a result. `what` describes what was awaited, for
    /// the timeout error.
    fn poll<T>(
        &mut self,
        mut look: impl FnMut(&mut Self) -> Result<Option<T>, BootstrapError>,
        what: impl FnOnce(&Self) -> String,
    ) -> Result<T, BootstrapError> {
        let deadline = Instant::now().checked_add(self.member.timeout);
        let mut pause = PAUSE;
        loop {
            self.check_refused()?;
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let cure = format!(
                    "check that they were started with the same directory ({}) and job id, and \
                     check their output",
                    self.job.path().display()
                );
                let (what, after) = (what(self), self.member.timeout);
                return Err(BootstrapError::Timeout { what, after, cure });
            }
            std::thread::sleep(pause);
            pause = (pause * 3 / 2).min(LONGEST_PAUSE);
        }
    }

    /// Returns the error that another process has left for this one, if any.
    fn check_refused(&mut self) -> Result<(), BootstrapError> {
        let read = self.job.read(&format!("refuse-{}", self.instance))?;
        let Some(refusal) = read else { return Ok(()) };
        let (writer, report) = refusal.split_at_checked(32).unwrap_or((&refusal, &[]));
        let error = BootstrapError::decode(report);
        // A dead process's file could disagree with us about the size as well as a live one's;
        // answering shows that we live, and then both know.
        if let (Ok(writer), BootstrapError::SizeMismatch { .. }) =
            (std::str::from_utf8(writer), &error)
            && is_instance(writer)
            && self.member.rank != 0
        {
            refuse(&self.job, writer, &self.instance, &error)?;
        }
        Err(error)
    }

    /// Finds a live process for every rank (rank 0 only).
    fn convene(&mut self) -> Result<(), BootstrapError> {
        // With rank 0's lock in hand no other job runs here: older sessions are dead.
        self.job.remove("session");
        for name in self.job.names(".")?.iter().filter(|name| name.starts_with("session-")) {
            // Sessions that cannot be removed are ignored by all ranks.
            self.job.remove_with_files(name);
        }
        self.room = format!("session-{}", self.instance);
        self.job.make(&self.room).map_err(self.job.failed("cannot create", &self.room))?;
        let size = self.member.size;
        let mut known: Vec<Option<String>> = vec![None; size];
        let mut acknowledged: Vec<bool> = vec![false; size];
        (known[0], acknowledged[0]) = (Some(self.instance.clone()), true);
        let mut asked = HashSet::new();
        let mut published = Vec::new();
        let mut missing = Vec::new();
        let found = self.poll(
            |session| {
                let (present, acks) = (session.job.names(".")?, session.job.names(&session.room)?);
                for rank in beyond(&present, size) {
                    session.joined(rank, &mut asked)?;
                }
                for rank in 1..size {
                    if acknowledged[rank] || !present.contains(&format!("join-{rank}")) {
                        continue;
                    }
                    known[rank] = session.joined(rank, &mut asked)?;
                    if acks.contains(&format!("ack-{rank}")) {
                        let ack = session.job.read(&format!("{}/ack-{rank}", session.room))?;
                        acknowledged[rank] = ack.is_some()
                            && ack.as_deref() == known[rank].as_deref().map(str::as_bytes);
                    }
                }
                missing = (0..size).filter(|rank| !acknowledged[*rank]).collect();
                if missing.is_empty() {
                    return Ok(Some(()));
                }
                if known.iter().all(Option::is_some) && known != published {
                    let instances: Vec<_> = known.iter().flatten().map(String::as_str).collect();
                    let text = format!("{}\n{size}\n{}", session.instance, instances.join("\n"));
                    session.publish("session", text.as_bytes())?;
                    published.clone_from(&known);
                }
                Ok(None)
            },
            |_| String::new(),
        );
        found.map_err(|error| match error {
            BootstrapError::Timeout { after, cure, .. } => {
                let mut what = format!("for ranks {}", rank_list(missing));
                if let Some((_, rank, theirs)) = asked.iter().next() {
                    what += &format!(" (rank {rank} was there with WORLD_SIZE = {theirs})");
                }
                BootstrapError::Timeout { what, after, cure }
            }
            other => other,
        })
    }

    /// Returns the instance of a rank that has joined. A rank with another number of ranks gets an
    /// error once; if it is alive, it answers, and `check_refused` finds the answer.
    fn joined(
        &self,
        rank: usize,
        asked: &mut HashSet<(String, usize, usize)>,
    ) -> Result<Option<String>, BootstrapError> {
        let read = self.job.read(&format!("join-{rank}"))?;
        let Some((instance, size, label)) = read.as_deref().and_then(parse_join) else {
            return Ok(None);
        };
        if size == self.member.size {
            return Ok(Some(instance));
        }
        if asked.insert((instance.clone(), rank, size)) {
            let detail = format!(
                "rank 0 ({}) has WORLD_SIZE = {}, but rank {rank} ({label}) has {size}",
                self.label, self.member.size
            );
            let error = BootstrapError::SizeMismatch { detail };
            refuse(&self.job, &instance, &self.instance, &error)?;
        }
        Ok(None)
    }

    /// Waits until rank 0's session lists this process (other ranks).
    fn attend(&mut self) -> Result<(), BootstrapError> {
        self.poll(
            |session| {
                let read = session.job.read("session")?;
                let Some(text) = read.and_then(|bytes| String::from_utf8(bytes).ok()) else {
                    return Ok(None);
                };
                let Some(host) = parse_session(&text, &session.member, &session.instance) else {
                    return Ok(None);
                };
                session.room = format!("session-{host}");
                let ack = format!("{}/ack-{}", session.room, session.member.rank);
                let instance = session.instance.clone();
                session.publish(&ack, instance.as_bytes()).map(Some)
            },
            |_| "for rank 0 to open the session".into(),
        )
    }

    /// Reports to the other ranks why this one gives up.
    fn abort(&mut self, error: &BootstrapError) {
        if !self.room.is_empty() {
            let name = format!("{}/abort", self.room);
            // If even that cannot be written, the others find out by their deadline.
            let _ = self.publish(&name, &error.encode());
        }
    }

    fn part_path(&self, round: u64, rank: usize) -> String {
        format!("{}/part-{round}-{rank}", self.room)
    }

    fn collect(&mut self, part: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let (round, size) = (self.round, self.member.size);
        let own = self.part_path(round, self.member.rank);
        self.publish(&own, part)?;
        let mut missing = Vec::new();
        let mut parts: HashMap<usize, Vec<u8>> = HashMap::new();
        let found = self.poll(
            |session| {
                let present = session.job.names(&session.room)?;
                if present.contains("abort") {
                    let read = session.job.read(&format!("{}/abort", session.room))?;
                    return Err(BootstrapError::decode(&read.unwrap_or_default()));
                }
                missing.clear();
                for rank in 0..size {
                    if parts.contains_key(&rank) {
                        continue;
                    }
                    if !present.contains(&format!("part-{round}-{rank}")) {
                        if present.contains(&format!("left-{rank}")) {
                            let detail = format!("rank {rank} left while others wait for it");
                            return Err(BootstrapError::PeerLost { detail });
                        }
                        missing.push(rank);
                        continue;
                    }
                    match session.job.read(&session.part_path(round, rank))? {
                        Some(part) if part.len() > PART_BYTES_MAX => {
                            let detail = format!("the part of rank {rank} is too long");
                            return Err(BootstrapError::Malformed { detail });
                        }
                        Some(part) => drop(parts.insert(rank, part)),
                        None => missing.push(rank),
                    }
                }
                Ok(missing.is_empty().then_some(()))
            },
            |_| String::new(),
        );
        found.map_err(|error| match error {
            BootstrapError::Timeout { after, cure, .. } => {
                let what = format!("for ranks {}", rank_list(missing.iter().copied()));
                BootstrapError::Timeout { what, after, cure }
            }
            other => other,
        })?;
        self.round += 1;
        // All have come to this round, so all have read the one before.
        if let Some(before) = round.checked_sub(1) {
            self.job.remove(&self.part_path(before, self.member.rank));
        }
        Ok((0..size).filter_map(|rank| parts.remove(&rank)).collect())
    }
}

/// Returns the ranks that have joined although they are not below `size`.
fn beyond(present: &HashSet<String>, size: usize) -> Vec<usize> {
    let joined = present.iter().filter_map(|name| name.strip_prefix("join-")?.parse().ok());
    joined.filter(|rank| *rank >= size).collect()
}

/// Leaves an error for the process that is `instance`.
fn refuse(
    job: &Folder,
    instance: &str,
    writer: &str,
    error: &BootstrapError,
) -> Result<(), BootstrapError> {
    let temporary = format!("new-{writer}-for-{instance}");
    let bytes = [writer.as_bytes(), &error.encode()].concat();
    job.publish(&format!("refuse-{instance}"), &temporary, &bytes)
}

/// Opens the job's directory, creating it if necessary, and takes the lock of a rank in it. If
/// another process holds the lock, both processes get an error.
fn take_lock(
    top: &Folder,
    job: &str,
    member: &Member,
    instance: &str,
    label: &str,
) -> Result<(Folder, File), BootstrapError> {
    let name = format!("lock-{}", member.rank);
    let patience = Instant::now() + LOCK_PATIENCE.min(member.timeout);
    // The last rank of an earlier job may remove the directory at any time.
    let was_removed =
        |error: &io::Error| error.kind() == io::ErrorKind::NotFound && Instant::now() < patience;
    loop {
        top.make(job).map_err(top.failed("cannot create", job))?;
        let folder = match top.below(job) {
            Ok(folder) => folder,
            Err(error) if was_removed(&error) => continue,
            Err(error) => return Err(top.failed("cannot use", job)(error)),
        };
        let failed = folder.failed("cannot lock", &name);
        let mut file = match folder.open_file(&name) {
            Ok(file) => file,
            Err(error) if was_removed(&error) => continue,
            Err(error) => return Err(failed(error)),
        };
        match file.try_lock() {
            Ok(()) => {
                // An earlier owner may have removed the file between opening and locking it.
                if !folder.has(&name, &file) {
                    continue;
                }
                let text = format!("{instance} {} {label}", member.size);
                file.set_len(0).and_then(|()| file.write_all(text.as_bytes())).map_err(&failed)?;
                return Ok((folder, file));
            }
            Err(TryLockError::WouldBlock) if Instant::now() < patience => {
                std::thread::sleep(LONGEST_PAUSE);
            }
            Err(TryLockError::WouldBlock) => {
                let held = folder.read(&name)?;
                let holder = held.as_deref().and_then(parse_join);
                let other = holder.as_ref().map_or("an unknown process", |(_, _, label)| label);
                let who = format!("{other}, and {label}");
                let error = BootstrapError::DuplicateRank { rank: member.rank, who };
                if let Some((holder, _, _)) = &holder {
                    refuse(&folder, holder, instance, &error)?;
                }
                return Err(error);
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
}

impl Gather for DirectorySession {
    fn rank(&self) -> usize {
        self.member.rank
    }

    fn size(&self) -> usize {
        self.member.size
    }

    fn gather(&mut self, part: Vec<u8>) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let result = self.collect(&part);
        if let Err(error) = &result {
            self.abort(error);
        }
        result
    }
}

impl Drop for DirectorySession {
    /// Removes the files of this rank and, in the last rank, the shared ones. Errors are ignored:
    /// leftover files do no harm.
    fn drop(&mut self) {
        let rank = self.member.rank;
        self.job.remove(&format!("join-{rank}"));
        self.job.remove(&format!("refuse-{}", self.instance));
        if !self.room.is_empty() {
            let _ = self.publish(&format!("{}/left-{rank}", self.room), &[]);
            let gone = self.job.names(&self.room).unwrap_or_default();
            if (0..self.member.size).all(|rank| gone.contains(&format!("left-{rank}"))) {
                self.job.remove_with_files(&self.room);
                // The next job's session may be there already.
                let own = self.room.trim_start_matches("session-");
                let text = self.job.read("session").ok().flatten().unwrap_or_default();
                if text.starts_with(own.as_bytes()) {
                    self.job.remove("session");
                }
            }
        }
        // Removed while still locked: a process that waits for it finds that its file is gone.
        self.job.remove(&format!("lock-{rank}"));
        // Succeeds for the last rank, when the directory is empty.
        self.top.remove_empty(&self.name);
    }
}
