//! Processes that are killed while a child of theirs keeps their sockets open, seen from another
//! host.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::net::IpAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Set, attached};
use crate::peer_process::knows_processes_of_sockets;
use ringrail::{
    Address, Completion, Endpoint, Envelope, Error, JobSecret, Owned, Peer, ReceiveOptions,
    Selector, SendOptions, SendTransport,
};
use ringrail_tests::lab::{Host, Lab, LabChild};
use ringrail_tests::require_lab;

/// What a process of a test is given: where it listens, and the secret of the job.
const ROLE: &str = "TEST_OF_RINGRAIL_PROCESS";
/// The test that such a process runs.
const PROGRAM: &str = "ended_processes::process_of_a_test";
/// What its lines to the test begin with; the harness writes to the same pipe.
const MARK: &str = "@process ";
/// What such a process is started with.
const ARGUMENTS: [&str; 4] = ["--ignored", "--exact", PROGRAM, "--nocapture"];
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);
/// A child that is left ends after this, in seconds.
const CHILD_SECONDS: libc::c_uint = 120;

const TAG: Envelope = Envelope::tagged(1);

// ---- The processes in host b ----

/// The observer, which starts the other process: a lab ends all that its own children start.
struct Observer {
    child: LabChild,
    lines: Lines<BufReader<ChildStdout>>,
    address: Address,
}

impl Observer {
    fn start(lab: &Lab, secret: &str) -> Self {
        let mut command = lab.host(Host::B).command(std::env::current_exe().unwrap());
        command.args(ARGUMENTS).env(ROLE, format!("{} {secret}", lab.addr(Host::B, 0)));
        command.core(None).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.inner().stdout.take().unwrap()).lines();
        let address = address_of(&next_line(&mut lines));
        Self { child, lines, address }
    }

    /// Gives it a command; returns the answer.
    fn ask(&mut self, command: &str) -> String {
        writeln!(self.child.inner().stdin.as_mut().unwrap(), "{command}").unwrap();
        next_line(&mut self.lines)
    }
}

fn next_line(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    let mut lines = lines.map_while(Result::ok);
    let text = lines.find_map(|line| Some(line.split_once(MARK)?.1.to_owned()));
    text.expect("the process answers")
}

fn text_of(address: &Address) -> String {
    address.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn address_of(text: &str) -> Address {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
    Address::from_bytes(&(0..text.len() / 2).map(byte).collect::<Vec<_>>()).unwrap()
}

/// Commands of a test, each of which is answered by a line:
/// - `connect ADDRESS`: connects to a peer; answers `shares` once they share memory, or `connected`
///   if they are on different hosts;
/// - `clone`: makes a child, past the C library;
/// - `start`: starts another such process, whose address is the answer;
/// - `to COMMAND`: a command for that process;
/// - `kill`: kills it.
#[test]
#[ignore = "started by other tests"]
fn process_of_a_test() {
    let role = std::env::var(ROLE).expect("other tests start it");
    let (local, secret) = role.split_once(' ').unwrap();
    let local: IpAddr = local.parse().unwrap();
    let settings = [("nics", "rail*"), ("job_secret", secret)];
    let endpoint = attached(local, &settings).unwrap();
    println!("{MARK}{}", text_of(&endpoint.address()));
    let mut started: Option<Child> = None;
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("connect", address) => {
                println!("{MARK}{}", connect(&endpoint, local, &address_of(address)));
            }
            ("clone", _) => println!("{MARK}{}", clone_child()),
            ("start", _) => {
                let mut command = Command::new(std::env::current_exe().unwrap());
                started = Some(command.args(ARGUMENTS).stdin(Stdio::piped()).spawn().unwrap());
            }
            ("to", command) => {
                let input = started.as_mut().and_then(|child| child.stdin.as_mut()).unwrap();
                writeln!(input, "{command}").unwrap();
            }
            ("kill", _) => {
                let mut process = started.take().unwrap();
                process.kill().unwrap();
                process.wait().unwrap();
                println!("{MARK}killed");
            }
            other => panic!("what is {other:?}?"),
        }
    }
}

fn connect(endpoint: &Endpoint<Owned>, local: IpAddr, address: &Address) -> &'static str {
    let peer = endpoint.insert_peer(address).unwrap();
    endpoint.connect(peer, Some(LIMIT)).unwrap();
    if address.locator().ip() != local {
        return "connected";
    }
    let start = Instant::now();
    while !shares_memory(endpoint, peer) {
        assert!(start.elapsed() < LIMIT, "no shared memory");
        endpoint.progress().unwrap();
    }
    "shares"
}

fn shares_memory(endpoint: &Endpoint<Owned>, peer: Peer) -> bool {
    let protocol = endpoint.send_protocol(peer).unwrap();
    protocol.ranges.iter().any(|range| range.transport == SendTransport::Ring)
}

/// No handler of a fork runs, so that the child keeps all sockets.
fn clone_child() -> libc::pid_t {
    // SAFETY: without a stack of its own the child goes on here, with a copy of this memory; it
    // sleeps, allocates nothing, and ends by a signal, with the lab's process at the latest.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    assert!(child >= 0, "no child");
    if child == 0 {
        // SAFETY: these calls take no memory.
        unsafe {
            libc::alarm(CHILD_SECONDS);
            loop {
                libc::pause();
            }
        }
    }
    child as libc::pid_t
}

// ---- The tests ----

/// Runs `work` in host a, with a peer whose process is killed while a child of it goes on; another
/// process of that host shares memory with it, and has a session with this side. Returns how the
/// operation of `work` ended, and after what time.
fn kill_a_parent(settings: &Set<'_>, work: fn(&Endpoint<Owned>, Peer)) -> (String, Duration) {
    let lab = Lab::build(&"switch".parse().unwrap()).unwrap();
    let secret = JobSecret::random().to_hex();
    let mut all = vec![("nics", "rail*"), ("job_secret", secret.as_str())];
    all.extend_from_slice(settings);
    let inside = || {
        let endpoint = attached(lab.addr(Host::A, 0), &all).unwrap();
        let mut observer = Observer::start(&lab, secret.as_str());
        let parent = address_of(&observer.ask("start"));
        let own = text_of(&endpoint.address());
        assert_eq!(observer.ask(&format!("connect {own}")), "connected");
        assert_eq!(observer.ask(&format!("to connect {own}")), "connected");
        assert_eq!(observer.ask(&format!("connect {}", text_of(&parent))), "shares");
        let beside = text_of(&observer.address);
        assert_eq!(observer.ask(&format!("to connect {beside}")), "shares");
        observer.ask("to clone");
        let peer = endpoint.insert_peer(&parent).unwrap();
        endpoint.connect(peer, Some(LIMIT)).unwrap();
        assert_eq!(observer.ask("kill"), "killed");
        let start = Instant::now();
        work(&endpoint, peer);
        let mut completions: Vec<Completion> = Vec::new();
        while completions.is_empty() {
            assert!(start.elapsed() < LIMIT, "it does not end");
            endpoint.wait(&mut completions, 64, Some(Duration::from_millis(100))).unwrap();
        }
        assert_eq!(completions.len(), 1);
        match completions.remove(0).result {
            Err(Error::Peer { address, failure, .. }) => {
                assert_eq!(address.locator(), parent.locator());
                (failure.to_string(), start.elapsed())
            }
            other => panic!("{other:?}"),
        }
    };
    lab.host(Host::A).enter(inside).unwrap()
}

/// Skips a test where the kernel does not know the process at the other end of a unix socket, as
/// before 6.5.
macro_rules! require_processes_of_sockets {
    () => {
        require_lab!();
        if !knows_processes_of_sockets() {
            let cause = "this kernel does not know processes of sockets";
            return ringrail_tests::skip(env!("CARGO_CRATE_NAME"), &cause);
        }
    };
}

/// A receive waits, and nothing is sent: the next probe shows that the engine does not answer.
///
/// RR-END-8
#[test]
fn a_receive_from_a_killed_process_ends_although_a_child_keeps_its_sockets() {
    require_processes_of_sockets!();
    let (why, took) = kill_a_parent(&[("silent_timeout", "40s")], |endpoint, peer| {
        let from = Selector::from_peer(peer, TAG);
        endpoint.post_receive(from, vec![0; 8], ReceiveOptions::new()).unwrap();
    });
    eprintln!("after {took:?}: {why}");
    assert!(why.contains("its process has ended") && why.contains("on its host reports"), "{why}");
    assert!(took < Duration::from_secs(30), "{took:?}: {why}");
}

/// What is sent is not answered: that is noticed at once, whatever the silent timeout, which is
/// minutes.
///
/// RR-END-8
#[test]
fn a_send_to_a_killed_process_ends_although_a_child_keeps_its_sockets() {
    require_processes_of_sockets!();
    let (why, took) = kill_a_parent(&[], |endpoint, peer| {
        let matched = SendOptions::at(ringrail::CompletionLevel::Match);
        endpoint.post_send(peer, TAG, vec![1; 8], matched).unwrap();
    });
    eprintln!("after {took:?}: {why}");
    assert!(why.contains("its process has ended") && why.contains("on its host reports"), "{why}");
    assert!(took < Duration::from_secs(30), "{took:?}: {why}");
}
