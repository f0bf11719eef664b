//! Programs inside a host that leave nothing behind.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};
use rustix::thread::{
    CapabilitySet, CpuSet, Gid, LinkNameSpaceType, Uid, UnshareFlags, clear_ambient_capability_set,
    move_into_link_name_space, remove_capability_from_bounding_set, sched_getaffinity,
    sched_setaffinity, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::namespace::{Namespace, move_in, unshare};
use super::{Host, LabError};

/// User and group `nobody`, which owns nothing and may do nothing special.
const NOBODY: u32 = 65534;

/// A program to run inside a host: `std::process::Command` plus what makes it one of the lab.
///
/// It runs pinned to the host's core, under the host's name, with a `/sys` that shows the host's
/// interfaces, and as the first process of a PID namespace: however it ends, everything that it
/// started ends with it. It ends when the thread that started it does. As every first process it
/// ignores signals that it has no handler for, SIGKILL from outside excepted, and sees its own
/// process id as 1.
#[derive(Debug)]
pub struct LabCommand {
    host: Host,
    namespace: Arc<Namespace>,
    program: OsString,
    inner: Command,
    core: Option<usize>,
    keep_root: bool,
}

impl LabCommand {
    pub(super) fn new(host: Host, namespace: Arc<Namespace>, program: &OsStr) -> Self {
        // An open file runs where a path would not: unprivileged, below a closed directory.
        let inner = match open_program(program) {
            Some(file) => {
                let mut inner = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
                inner.arg0(program);
                keep_open(&mut inner, file);
                inner
            }
            None => Command::new(program),
        };
        let core = Some(usize::from(host.index()));
        Self { host, namespace, program: program.to_owned(), inner, core, keep_root: true }
    }

    /// Adds an argument.
    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Self {
        self.inner.arg(arg);
        self
    }

    /// Adds arguments.
    pub fn args(&mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> &mut Self {
        self.inner.args(args);
        self
    }

    /// Sets an environment variable.
    pub fn env(&mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.inner.env(key, value);
        self
    }

    /// Where standard input comes from; inherited unless set.
    pub fn stdin(&mut self, from: impl Into<Stdio>) -> &mut Self {
        self.inner.stdin(from);
        self
    }

    /// Where standard output goes to; inherited unless set.
    pub fn stdout(&mut self, to: impl Into<Stdio>) -> &mut Self {
        self.inner.stdout(to);
        self
    }

    /// Where standard error goes to; inherited unless set.
    pub fn stderr(&mut self, to: impl Into<Stdio>) -> &mut Self {
        self.inner.stderr(to);
        self
    }

    /// Pins to the `core`-th of the cores that this process may use, or to none. The default is
    /// 0 in host a and 1 in host b. Where there are fewer, they are taken round again.
    pub fn core(&mut self, core: Option<usize>) -> &mut Self {
        self.core = core;
        self
    }

    /// Runs as `nobody`, without groups, without a single capability and with no way to regain
    /// one.
    pub fn drop_privileges(&mut self) -> &mut Self {
        self.keep_root = false;
        self
    }

    /// Starts it. Call once per value: what it prepares is used up.
    ///
    /// # Errors
    ///
    /// When the program is not there or cannot run, or the kernel refuses the host.
    pub fn spawn(&mut self) -> Result<LabChild, LabError> {
        let doing = format!("starting {:?} in host {}", self.program, self.host.name());
        self.try_spawn().map_err(LabError::os(doing))
    }

    /// Starts it with both outputs captured and waits at most `limit` for its end.
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn) and [`LabChild::output`].
    pub fn output(&mut self, limit: Duration) -> Result<Output, LabError> {
        self.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?.output(limit)
    }

    fn try_spawn(&mut self) -> io::Result<LabChild> {
        let parent = pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
        let cores = self.core.map(nth_allowed_core).transpose()?;
        let (namespace, host, keep_root) = (Arc::clone(&self.namespace), self.host, self.keep_root);
        let before_exec = move || {
            move_in(namespace.as_fd())?;
            unshare(UnshareFlags::NEWUTS)?;
            rustix::system::sethostname(host.name().as_bytes())?;
            if let Some(cores) = &cores {
                sched_setaffinity(None, cores)?;
            }
            if !keep_root {
                become_nobody()?;
            }
            // After the change of user, which clears it.
            set_parent_process_death_signal(Some(Signal::KILL))?;
            refuse_if_ended(&parent)
        };
        // SAFETY: the closure makes system calls only; it neither allocates nor takes a lock.
        unsafe { self.inner.pre_exec(before_exec) };
        let _children = NewPidNamespace::for_children_of_this_thread()?;
        Ok(LabChild { program: self.program.clone(), inner: self.inner.spawn()? })
    }
}

/// A program that runs inside a host. Dropping it kills it and everything that it started, and
/// waits for their end.
#[derive(Debug)]
pub struct LabChild {
    program: OsString,
    inner: Child,
}

impl LabChild {
    /// Its process id, as this process sees it.
    pub fn id(&self) -> u32 {
        self.inner.id()
    }

    /// The child itself, for its pipes.
    pub fn inner(&mut self) -> &mut Child {
        &mut self.inner
    }

    /// Kills it and everything that it started (SIGKILL); [`wait`](Self::wait) sees the end.
    ///
    /// # Errors
    ///
    /// When the kernel refuses; not when it has ended already.
    pub fn kill(&mut self) -> Result<(), LabError> {
        self.inner.kill().map_err(LabError::os(format!("killing {:?}", self.program)))
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// What the kernel answers.
    pub fn wait(&mut self) -> Result<ExitStatus, LabError> {
        self.inner.wait().map_err(LabError::os(format!("waiting for {:?}", self.program)))
    }

    /// Waits for its end, at most `limit`; `None` if it still runs then.
    ///
    /// # Errors
    ///
    /// What the kernel answers.
    pub fn wait_timeout(&mut self, limit: Duration) -> Result<Option<ExitStatus>, LabError> {
        let doing = format!("waiting for {:?}", self.program);
        self.try_wait_timeout(limit).map_err(LabError::os(doing))
    }

    /// Collects piped outputs until it ends. After `limit` it is killed, and that is an error that
    /// shows the end of what it wrote on standard error.
    ///
    /// # Errors
    ///
    /// When it takes longer than `limit`, or reading fails.
    pub fn output(mut self, limit: Duration) -> Result<Output, LabError> {
        let doing = format!("collecting the output of {:?}", self.program);
        let (stdout, stderr) = (self.inner.stdout.take(), self.inner.stderr.take());
        let collected = thread::scope(|scope| {
            let stdout = scope.spawn(|| read_all(stdout));
            let stderr = scope.spawn(|| read_all(stderr));
            let status = self.try_wait_timeout(limit);
            // Ends the readers: no process of this child keeps a pipe open after this.
            self.end();
            let join = |reader: thread::ScopedJoinHandle<'_, io::Result<Vec<u8>>>| {
                reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            let (stdout, stderr) = (join(stdout)?, join(stderr)?);
            match status? {
                Some(status) => Ok(Output { status, stdout, stderr }),
                None => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no end within {limit:?}; its last words: {}", last_words(&stderr)),
                )),
            }
        });
        collected.map_err(LabError::os(doing))
    }

    fn try_wait_timeout(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        if let Some(status) = self.inner.try_wait()? {
            return Ok(Some(status));
        }
        let pid = Pid::from_child(&self.inner);
        let end = pidfd_open(pid, PidfdFlags::empty())?;
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Less than i64::MAX seconds, or it waits that long.
            let left = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&end, PollFlags::IN)], left.as_ref()) {
                Ok(0) => return self.inner.try_wait(),
                Ok(_) => return self.inner.wait().map(Some),
                Err(rustix::io::Errno::INTR) => {}
                Err(other) => return Err(other.into()),
            }
        }
    }

    fn end(&mut self) {
        // Fails only for a child that has been waited for.
        let _ = self.inner.kill();
        let _ = self.inner.wait();
    }
}

impl Drop for LabChild {
    fn drop(&mut self) {
        self.end();
    }
}

/// While it lives, processes forked by this thread are the first of a new PID namespace.
struct NewPidNamespace {
    before: File,
}

impl NewPidNamespace {
    fn for_children_of_this_thread() -> io::Result<Self> {
        let before = File::open("/proc/thread-self/ns/pid")?;
        unshare(UnshareFlags::NEWPID)?;
        Ok(Self { before })
    }
}

impl Drop for NewPidNamespace {
    fn drop(&mut self) {
        move_into_link_name_space(self.before.as_fd(), Some(LinkNameSpaceType::ProcessID))
            .expect("a thread may always go back to the PID namespace it is in itself");
    }
}

/// Opens what `exec` would run; `None` leaves the error message to `exec`.
fn open_program(program: &OsStr) -> Option<File> {
    let path = if program.as_encoded_bytes().contains(&b'/') {
        PathBuf::from(program)
    } else {
        let search = std::env::var_os("PATH")?;
        std::env::split_paths(&search).map(|dir| dir.join(program)).find(|path| path.is_file())?
    };
    let mut magic = [0; 2];
    let mut file = File::open(Path::new(&path)).ok()?;
    file.read_exact(&mut magic).ok()?;
    // The interpreter of a script opens it again by its path.
    (&magic != b"#!").then_some(file)
}

/// Keeps `file` open in the parent until `command` is dropped.
fn keep_open(command: &mut Command, file: File) {
    // SAFETY: the closure does nothing; it only owns the file.
    unsafe {
        command.pre_exec(move || {
            let _ = &file;
            Ok(())
        })
    };
}

/// The set of one core: the `nth` of those this process may use, counted round.
fn nth_allowed_core(nth: usize) -> io::Result<CpuSet> {
    let allowed = sched_getaffinity(None)?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
    let mut set = CpuSet::new();
    set.set(cores[nth % cores.len()]);
    Ok(set)
}

/// Gives up root for good. Makes system calls only.
fn become_nobody() -> io::Result<()> {
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // Past the last capability of this kernel.
            Err(rustix::io::Errno::INVAL) => break,
            Err(other) => return Err(other.into()),
        }
    }
    clear_ambient_capability_set()?;
    set_thread_groups(&[])?;
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    set_thread_res_gid(group, group, group)?;
    // Takes the effective and permitted capabilities away.
    set_thread_res_uid(user, user, user)?;
    Ok(set_no_new_privs(true)?)
}

/// Refuses to go on when the process behind `parent` ended before it could signal its end.
fn refuse_if_ended(parent: &OwnedFd) -> io::Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut [PollFd::new(parent, PollFlags::IN)], Some(&now))? {
        0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error())),
    }
}

fn read_all(pipe: Option<impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes))?;
    Ok(bytes)
}

fn last_words(bytes: &[u8]) -> String {
    let tail = &bytes[bytes.len().saturating_sub(500)..];
    String::from_utf8_lossy(tail).trim().to_owned()
}
