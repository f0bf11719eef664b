//! Calls that the kernel refuses, one system call at a time: before an engine is opened, after it
//! was, and in the middle of a session. Everything works by another way, or an error names the call
//! and the cure; no process aborts, hangs, or waits for what nothing brings.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::one_host::tag;
use crate::common::{SECRET, own_process, pattern, settings};
use ringrail::{
    Access, Address, CompletionLevel, Domain, Endpoint, Error, KeyOptions, Owned, Peer,
    ReceiveOptions, RemoteKey, Selector, SendOptions,
};

/// What one operation may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
/// What a child may take: operations end one after the other by then.
const CHILD_LIMIT: Duration = Duration::from_secs(90);
/// How many children run at the same time.
const AT_ONCE: usize = 4;

/// What is refused together: a name, the calls, and what an error's text has to contain.
struct Refused {
    name: &'static str,
    calls: &'static [libc::c_long],
    /// One of these names the call.
    printed: &'static [&'static str],
}

const fn row(
    name: &'static str,
    calls: &'static [libc::c_long],
    printed: &'static [&'static str],
) -> Refused {
    Refused { name, calls, printed }
}

const CALLS: [Refused; 37] = [
    row("io_uring_setup", &[libc::SYS_io_uring_setup], &["io_uring"]),
    row("io_uring_enter", &[libc::SYS_io_uring_enter], &["io_uring"]),
    row("io_uring_register", &[libc::SYS_io_uring_register], &["io_uring"]),
    row("clone", &[libc::SYS_clone, libc::SYS_clone3], &["thread"]),
    row("mmap", &[libc::SYS_mmap], &["mmap", "map"]),
    row("munmap", &[libc::SYS_munmap], &["munmap"]),
    row("mremap", &[libc::SYS_mremap], &["mremap"]),
    row("madvise", &[libc::SYS_madvise], &["madvise"]),
    row("memfd_create", &[libc::SYS_memfd_create], &["memfd"]),
    row("ftruncate", &[libc::SYS_ftruncate], &["ftruncate"]),
    row("fallocate", &[libc::SYS_fallocate], &["fallocate"]),
    row("eventfd2", &[libc::SYS_eventfd2], &["eventfd"]),
    row("epoll_create1", &[libc::SYS_epoll_create1], &["epoll"]),
    row("epoll_ctl", &[libc::SYS_epoll_ctl], &["epoll"]),
    row("epoll_wait", &[libc::SYS_epoll_wait, libc::SYS_epoll_pwait], &["epoll"]),
    row("poll", &[libc::SYS_poll, libc::SYS_ppoll], &["poll"]),
    row("timerfd_create", &[libc::SYS_timerfd_create], &["timerfd"]),
    row("timerfd_settime", &[libc::SYS_timerfd_settime], &["timerfd"]),
    row("socket", &[libc::SYS_socket], &["socket"]),
    row("socketpair", &[libc::SYS_socketpair], &["socketpair"]),
    row("bind", &[libc::SYS_bind], &["bind"]),
    row("listen", &[libc::SYS_listen], &["listen"]),
    row("accept4", &[libc::SYS_accept4], &["accept"]),
    row("accept", &[libc::SYS_accept4, libc::SYS_accept], &["accept"]),
    row("connect", &[libc::SYS_connect], &["connect"]),
    row("sendto", &[libc::SYS_sendto], &["sendto"]),
    row("sendmsg", &[libc::SYS_sendmsg], &["sendmsg"]),
    row("sendmmsg", &[libc::SYS_sendmmsg], &["sendmmsg"]),
    row("recvfrom", &[libc::SYS_recvfrom], &["recvfrom"]),
    row("recvmsg", &[libc::SYS_recvmsg], &["recvmsg"]),
    row("recvmmsg", &[libc::SYS_recvmmsg], &["recvmmsg"]),
    row("setsockopt", &[libc::SYS_setsockopt], &["setsockopt"]),
    row("getsockopt", &[libc::SYS_getsockopt], &["getsockopt"]),
    row("pidfd_open", &[libc::SYS_pidfd_open], &["pidfd"]),
    row("process_vm", &[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev], &["process_vm"]),
    row("sched_setaffinity", &[libc::SYS_sched_setaffinity], &["sched_setaffinity"]),
    row("getrandom", &[libc::SYS_getrandom], &["getrandom", "random"]),
];

/// Refuses `calls` with `errno` in all threads of the process, from now on.
fn refuse(calls: &[libc::c_long], errno: i32) {
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let mut program = vec![statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0)];
    for (at, &call) in calls.iter().enumerate() {
        // Over those behind it and the permission.
        let jt = (calls.len() - at) as u8;
        let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        program.push(libc::sock_filter { code, jt, jf: 0, k: call as u32 });
    }
    let ret = (libc::BPF_RET | libc::BPF_K) as u16;
    program.push(statement(ret, libc::SECCOMP_RET_ALLOW));
    program.push(statement(ret, libc::SECCOMP_RET_ERRNO | errno as u32));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the filter and its program are locals, which the kernel copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
        assert_eq!(libc::syscall(libc::SYS_seccomp, mode, flags, &raw const filter), 0);
    }
}

/// From when on calls are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moment {
    /// The sides have a thread each and no more.
    Begun,
    /// Their engines are open, and have not met.
    Opened,
    /// They have exchanged messages.
    Connected,
}

const MOMENTS: [Moment; 3] = [Moment::Begun, Moment::Opened, Moment::Connected];

/// Where the sides wait for each other, and for who refuses calls.
#[derive(Default)]
struct Gate {
    /// The moments that each side has reached, and those that are open.
    state: Mutex<([usize; 2], usize)>,
    changed: Condvar,
}

impl Gate {
    /// A side has reached `moment`; returns when it is open.
    fn pass(&self, side: usize, moment: Moment) {
        self.reach(side, moment as usize + 1);
        let state = self.state.lock().unwrap();
        let closed = |state: &mut ([usize; 2], usize)| state.1 <= moment as usize;
        drop(self.changed.wait_while(state, closed).unwrap());
    }

    fn reach(&self, side: usize, count: usize) {
        self.state.lock().unwrap().0[side] = count;
        self.changed.notify_all();
    }

    /// Waits for both sides to reach `moment` or to end, does `then`, and opens it.
    fn open(&self, moment: Moment, then: impl FnOnce()) {
        let state = self.state.lock().unwrap();
        let missing =
            |state: &mut ([usize; 2], usize)| state.0.iter().any(|&at| at <= moment as usize);
        let mut state = self.changed.wait_while(state, missing).unwrap();
        then();
        state.1 = moment as usize + 1;
        self.changed.notify_all();
    }
}

/// What ends a side: where, and the error.
type Ended = Result<(), String>;

trait At {
    type Value;
    fn at(self, place: &str) -> Result<Self::Value, String>;
}

impl<T> At for Result<T, Error> {
    type Value = T;

    /// `[place]` before the text of an error, with its kind.
    fn at(self, place: &str) -> Result<T, String> {
        self.map_err(|error| format!("[{place}] {:?}: {error}", error.kind()))
    }
}

/// One of two engines, on a thread of its own.
struct Side<'a> {
    number: usize,
    settings: &'a [(&'a str, &'a str)],
    gate: &'a Gate,
    to: Sender<[u8; Address::BYTES]>,
    from: Receiver<[u8; Address::BYTES]>,
}

const GONE: &str = "[meet] the other side has ended";

impl Side<'_> {
    /// Prints how it ends, in one line.
    fn run(self) {
        let (number, gate) = (self.number, self.gate);
        let ended = self.play();
        match ended {
            Ok(()) => eprintln!("side {number} ends well"),
            Err(error) => eprintln!("side {number} ends with {error}"),
        }
        gate.reach(number, usize::MAX);
    }

    fn play(self) -> Ended {
        self.gate.pass(self.number, Moment::Begun);
        let endpoint = domain_of(self.settings)?.endpoint().at("open")?;
        let endpoint = endpoint.attach().at("attach")?;
        self.gate.pass(self.number, Moment::Opened);
        self.to.send(endpoint.address().to_bytes()).map_err(|_| GONE)?;
        let theirs = self.from.recv().map_err(|_| GONE)?;
        let peer = endpoint.insert_peer(&Address::from_bytes(&theirs).unwrap()).at("insert")?;
        self.exchange(&endpoint, peer, 0)?;
        self.gate.pass(self.number, Moment::Connected);
        self.exchange(&endpoint, peer, 1)?;
        self.access_memory(&endpoint, peer)?;
        self.exchange(&endpoint, peer, 2)
    }

    /// A message each way, both of one length.
    fn swap(
        &self,
        endpoint: &Endpoint<Owned>,
        peer: Peer,
        number: u64,
        bytes: &[u8],
    ) -> Result<Vec<u8>, String> {
        if self.number == 0 {
            send(endpoint, peer, number, bytes)?;
        }
        let came = receive(endpoint, peer, number, bytes.len())?;
        if self.number == 1 {
            send(endpoint, peer, number, bytes)?;
        }
        Ok(came)
    }

    /// Short and long messages both ways.
    fn exchange(&self, endpoint: &Endpoint<Owned>, peer: Peer, round: u64) -> Ended {
        for size in [8, 3000, 300_000, 1 << 20] {
            let number = round * 100 + (size as u64).ilog2() as u64;
            let bytes = pattern(number, size);
            let came = self.swap(endpoint, peer, number, &bytes)?;
            assert!(came == bytes, "other bytes came");
        }
        Ok(())
    }

    /// Puts, gets and atomics of the other side's memory.
    fn access_memory(&self, endpoint: &Endpoint<Owned>, peer: Peer) -> Ended {
        const SIZE: usize = 200_000;
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region = endpoint.allocate_region(SIZE).at("allocate_region")?;
        let key = region.key(&KeyOptions::new(all)).at("key")?;
        let theirs = self.swap(endpoint, peer, 1000, &key.0.to_le_bytes())?;
        let theirs = RemoteKey(u64::from_le_bytes(theirs.try_into().unwrap()));
        let options = SendOptions::at(CompletionLevel::Delivery).timeout(LIMIT);
        for size in [16, 150_000] {
            let bytes = pattern(9, size);
            endpoint.put_blocking(peer, theirs.at(8), &bytes, options).at("put")?;
            let mut back = vec![0; size];
            endpoint.get_blocking(peer, theirs.at(8), &mut back, options).at("get")?;
            assert!(back == bytes, "other bytes are there");
        }
        let at = theirs.at(SIZE as u64 / 8 * 8 - 8);
        if endpoint.fetch_add(peer, at, 3).at("fetch_add")? != 0 {
            return Err("[fetch_add] another value is there".into());
        }
        self.swap(endpoint, peer, 1001, b"over")?;
        Ok(())
    }
}

fn domain_of(changed: &[(&str, &str)]) -> Result<Domain, String> {
    Domain::with_settings(settings(Some(&SECRET), changed)).at("domain")
}

fn send(endpoint: &Endpoint<Owned>, peer: Peer, number: u64, bytes: &[u8]) -> Ended {
    let options = SendOptions::at(CompletionLevel::Match).timeout(LIMIT);
    endpoint.send_blocking(peer, tag(number), bytes, options).at("send")?;
    Ok(())
}

fn receive(
    endpoint: &Endpoint<Owned>,
    peer: Peer,
    number: u64,
    size: usize,
) -> Result<Vec<u8>, String> {
    let mut into = vec![0; size];
    let selector = Selector::from_peer(peer, tag(number));
    let options = ReceiveOptions::new().timeout(LIMIT);
    endpoint.receive_blocking(selector, &mut into, options).at("receive")?;
    Ok(into)
}

/// What the filter of a child refuses, and when.
#[derive(Clone, Copy)]
struct Case {
    row: &'static Refused,
    errno: i32,
    moment: Moment,
    settings: &'static [(&'static str, &'static str)],
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let errno = std::io::Error::from_raw_os_error(self.errno);
        write!(f, "{} ({errno}), {:?}, {:?}", self.row.name, self.moment, self.settings)
    }
}

/// Plays both sides in this process.
fn play(case: Case) {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(std::io::stderr)
        .init();
    let gate = Gate::default();
    let (to_second, from_first) = channel();
    let (to_first, from_second) = channel();
    let (settings, gate) = (case.settings, &gate);
    let sides = [(to_second, from_second), (to_first, from_first)];
    thread::scope(|scope| {
        for (number, (to, from)) in sides.into_iter().enumerate() {
            scope.spawn(move || Side { number, settings, gate, to, from }.run());
        }
        for moment in MOMENTS {
            gate.open(moment, || {
                if moment == case.moment {
                    refuse(case.row.calls, case.errno);
                }
            });
        }
    });
}

/// A child that plays a case, and what it prints.
struct Child {
    case: Case,
    id: libc::pid_t,
    output: File,
    until: Instant,
}

impl Child {
    fn start(case: Case) -> Self {
        let output = tempfile::tempfile().unwrap();
        let id = own_process::fork(|| {
            // SAFETY: descriptors of this process, which nothing else here uses.
            unsafe {
                assert_eq!(libc::dup2(output.as_raw_fd(), 1), 1);
                assert_eq!(libc::dup2(output.as_raw_fd(), 2), 2);
            }
            play(case);
        });
        Self { case, id, output, until: Instant::now() + CHILD_LIMIT }
    }

    /// What is wrong with how it ended; `None`: it goes on.
    fn ended(&mut self) -> Option<Result<String, String>> {
        let mut status = 0;
        // SAFETY: the status is a local of this function.
        if unsafe { libc::waitpid(self.id, &raw mut status, libc::WNOHANG) } != self.id {
            if Instant::now() < self.until {
                return None;
            }
            // SAFETY: a child of this process that was not waited for: its id is not reused.
            unsafe {
                libc::kill(self.id, libc::SIGKILL);
                libc::waitpid(self.id, &raw mut status, 0);
            }
            return Some(Err(format!("it hangs\n{}", self.printed())));
        }
        let printed = self.printed();
        let judged = judge(&self.case, status, &printed);
        Some(judged.map_err(|fault| format!("{fault}\n{printed}")))
    }

    fn printed(&mut self) -> String {
        let mut printed = Vec::new();
        self.output.rewind().unwrap();
        self.output.read_to_end(&mut printed).unwrap();
        String::from_utf8_lossy(&printed).into_owned()
    }
}

/// Words of which a cure has one.
const CURES: [&str; 8] =
    ["setting", "limit", "seccomp", "allow", "raise", "check", "choose", "give"];

/// How a child ended, or what is wrong with it.
fn judge(case: &Case, status: i32, printed: &str) -> Result<String, String> {
    if status != 0 {
        return Err(format!("the status of the process is {status:#x}"));
    }
    if printed.contains("panicked at") {
        return Err("a thread panicked".into());
    }
    let errors: Vec<_> = printed.lines().filter(|line| line.contains(" ends with ")).collect();
    let well = printed.lines().filter(|line| line.contains(" ends well")).count();
    if errors.len() + well != 2 {
        return Err("a side has not printed how it ends".into());
    }
    let is_late = |error: &&&str| error.contains("TimedOut");
    if let Some(late) = errors.iter().find(is_late) {
        // What the other side never sent is not received.
        let may_be = late.contains("[receive]") && errors.iter().any(|error| !is_late(&error));
        if !may_be {
            return Err(format!("progress was reported that does not happen: {late}"));
        }
    }
    if errors.is_empty() {
        return Ok("works".into());
    }
    // In the error, or in the log of the side whose call was refused.
    let is_named = |line: &&str| case.row.printed.iter().any(|text| line.contains(text));
    let Some(named) = printed.lines().find(is_named) else {
        return Err("nothing names the call".into());
    };
    if !CURES.iter().any(|cure| named.contains(cure)) {
        return Err(format!("this names no cure: {named}"));
    }
    Ok(format!("prints {named}"))
}

/// Plays cases in children, some at the same time, and panics with what is wrong.
fn run_all(cases: impl IntoIterator<Item = Case>) {
    // The C library cannot allocate in a new thread that finds no arena and may map none, which
    // Rust answers with an abort. All threads use the first arena, which grows by brk(2).
    // SAFETY: it sets a number, under the lock of that arena.
    assert_eq!(unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) }, 1);
    let mut cases = cases.into_iter();
    let (mut under_way, mut faults) = (Vec::<Child>::new(), String::new());
    let mut count = 0;
    loop {
        while under_way.len() < AT_ONCE
            && let Some(case) = cases.next()
        {
            under_way.push(Child::start(case));
            count += 1;
        }
        if under_way.is_empty() {
            break;
        }
        under_way.retain_mut(|child| {
            let Some(ended) = child.ended() else { return true };
            match ended {
                Ok(how) => println!("{}: {how}", child.case),
                Err(fault) => {
                    println!("FAULT {}: {fault}", child.case);
                    writeln!(faults, "{}", child.case).unwrap();
                }
            }
            false
        });
        thread::sleep(Duration::from_millis(2));
    }
    println!("{count} cases");
    assert!(faults.is_empty(), "{faults}");
}

/// What a seccomp profile returns, and a kernel that is short of memory. (`EAGAIN` means to wait.)
const ERRNOS: [i32; 2] = [libc::EPERM, libc::ENOMEM];

const SETTINGS: [&[(&str, &str)]; 3] = [
    &[("shared_memory", "auto"), ("close_linger", "2s"), ("silent_timeout", "4s")],
    &[("lanes", "uring"), ("close_linger", "2s"), ("silent_timeout", "4s")],
    &[("lanes", "sockets"), ("close_linger", "2s"), ("silent_timeout", "4s")],
];

/// Of io_uring and memory that is shared the first settings have all; others are with sockets, too.
fn cases(
    settings: &'static [(&'static str, &'static str)],
    is_of_driver: fn(&str) -> bool,
) -> impl Iterator<Item = Case> {
    // Some of them, by name.
    let only = std::env::var("TEST_OF_RINGRAIL_REFUSED_CALLS").unwrap_or_default();
    let is_all = !only.is_empty() || std::env::var_os("TEST_OF_RINGRAIL_ALL_CASES").is_some();
    let is_in = move |name: &str| {
        is_of_driver(name) && (only.is_empty() || only.split(',').any(|it| it == name))
    };
    // Each call at each moment with one of the errors, unless all are asked for.
    let rows = CALLS.iter().enumerate().filter(move |(_, row)| is_in(row.name));
    rows.flat_map(move |(number, row)| {
        MOMENTS.into_iter().flat_map(move |moment| {
            let skipped = ERRNOS[(number + moment as usize) % ERRNOS.len()];
            let errors = ERRNOS.into_iter().filter(move |&errno| is_all || errno != skipped);
            errors.map(move |errno| Case { row, errno, moment, settings })
        })
    })
}

#[test]
fn a_refused_call_ends_in_another_way_or_in_an_error_with_shared_memory() {
    own_process::run(
        "refused_calls::a_refused_call_ends_in_another_way_or_in_an_error_with_shared_memory",
        || run_all(cases(SETTINGS[0], |_| true)),
    );
}

#[test]
fn a_refused_call_ends_in_another_way_or_in_an_error_with_io_uring() {
    own_process::run(
        "refused_calls::a_refused_call_ends_in_another_way_or_in_an_error_with_io_uring",
        || run_all(cases(SETTINGS[1], |name| name.starts_with("io_uring"))),
    );
}

#[test]
fn a_refused_call_ends_in_another_way_or_in_an_error_with_sockets() {
    own_process::run(
        "refused_calls::a_refused_call_ends_in_another_way_or_in_an_error_with_sockets",
        || {
            run_all(cases(SETTINGS[2], |name| {
                name.starts_with("epoll")
                    || name.starts_with("accept")
                    || name.starts_with("send")
                    || name.starts_with("recv")
                    || ["mmap", "munmap", "socket", "connect", "getsockopt"].contains(&name)
            }))
        },
    );
}
