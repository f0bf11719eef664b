//! Users without privileges get frames from `ringrail-xdpd`, and go on without it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::books::frames_of;
use crate::common::attached;
use crate::traces::{Cleaner, litter, nic};
use ringrail::{
    Address, Endpoint, Envelope, FrameState, JobSecret, Owned, Peer, ReceiveOptions, Selector,
    SendOptions,
};
use ringrail_tests::lab::{Host, Lab, LabChild, LabSpec};
use ringrail_tests::require_lab;
use ringrail_xdp::lease::{Daemon, DaemonConfig};

/// What tells a process that it has a part.
const PART: &str = "TEST_OF_RINGRAIL_PART";
/// What lines to the test begin with.
const MARK: &str = "@part ";
/// Group of `nobody`, whose part in these tests processes without privileges have.
const NOBODY: u32 = 65534;
/// A group that nobody is in.
const OTHERS: u32 = 54_321;
const LIMIT: Duration = Duration::from_secs(60);
const LONGEST: usize = 20_000;

/// What processes of the tests run.
#[test]
#[ignore = "started by other tests"]
fn part_of_a_test() {
    let task = std::env::var(PART).expect("other tests start it");
    match task.split(' ').collect::<Vec<_>>()[..] {
        ["daemon", socket, group] => {
            let groups = vec![group.parse().unwrap()];
            let socket = socket.into();
            let (users, nics, queues_per_user) = (Vec::new(), Vec::new(), 4);
            let config = DaemonConfig {
                socket,
                groups,
                users,
                queues_per_user,
                nics,
                trusts_clients: false,
            };
            let daemon = Daemon::listen(config, |line| say(&format!("log {line}"))).unwrap();
            say("ready");
            daemon.run(std::io::stdin().as_fd()).unwrap();
        }
        ["peer", local, socket, secret] => be_a_peer(local, socket, secret),
        _ => panic!("{task}"),
    }
}

fn say(text: &str) {
    println!("{MARK}{text}");
}

/// A process and what it says.
struct Part {
    child: LabChild,
    lines: Receiver<String>,
}

impl Part {
    fn start(lab: &Lab, host: Host, task: &str, is_root: bool) -> Self {
        let mut command = lab.host(host).command(std::env::current_exe().unwrap());
        command
            .args(["--ignored", "--exact", "helper::part_of_a_test", "--nocapture"])
            .env(PART, task);
        command.core(None).stdin(Stdio::piped()).stdout(Stdio::piped());
        if !is_root {
            command.drop_privileges();
        }
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.inner().stdout.take().unwrap());
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if let Some((_, text)) = line.split_once(MARK) {
                    // The test may have gone.
                    let _ = tell.send(text.to_owned());
                }
            }
        });
        Self { child, lines }
    }

    /// The daemon at `socket`, once it listens.
    fn daemon(lab: &Lab, host: Host, socket: &Path, group: u32) -> Self {
        let daemon = Self::start(lab, host, &format!("daemon {} {group}", socket.display()), true);
        assert_eq!(daemon.line(), "ready");
        daemon
    }

    #[track_caller]
    fn line(&self) -> String {
        match self.lines.recv_timeout(LIMIT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("nothing heard for {LIMIT:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("it has ended"),
        }
    }

    /// Waits for a line, from now on, that is as wanted.
    #[track_caller]
    fn see(&self, is_wanted: impl Fn(&str) -> bool) -> String {
        while self.lines.try_recv().is_ok() {}
        let deadline = Instant::now() + LIMIT;
        loop {
            let line = self.line();
            if is_wanted(&line) {
                return line;
            }
            assert!(Instant::now() < deadline, "still {line}");
        }
    }

    /// Ends it by the end of its input.
    #[track_caller]
    fn end(mut self) {
        drop(self.child.inner().stdin.take());
        let status = self.child.wait_timeout(LIMIT).unwrap().expect("an end");
        assert!(status.success(), "{status}");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Two peers, the first of which asks and the second answers.
struct Pair {
    first: Part,
    second: Part,
}

impl Pair {
    /// Starts both without privileges; each uses the daemon of its host.
    fn start(lab: &Lab, sockets: [&Path; 2]) -> Self {
        let secret = JobSecret::random().to_hex();
        let [mut first, mut second] =
            [(Host::A, sockets[0]), (Host::B, sockets[1])].map(|(host, socket)| {
                let (local, socket) = (lab.addr(host, 0), socket.display());
                let task = format!("peer {local} {socket} {}", secret.as_str());
                Part::start(lab, host, &task, false)
            });
        let addresses = [&first, &second].map(Part::line);
        let tell = |part: &mut Part, address: &str, role: &str| {
            let input = part.child.inner().stdin.as_mut().unwrap();
            writeln!(input, "{address} {role}").unwrap();
        };
        tell(&mut second, &addresses[0], "answers");
        tell(&mut first, &addresses[1], "asks");
        Self { first, second }
    }

    fn both(&self) -> [&Part; 2] {
        [&self.first, &self.second]
    }

    /// Waits until frames were used both ways on both sides.
    #[track_caller]
    fn see_frames(&self) {
        for part in self.both() {
            part.see(uses_frames);
        }
    }

    /// Waits for some rounds more.
    #[track_caller]
    fn see_rounds(&self) {
        let round = |line: &str| line.split(' ').next().unwrap().parse::<u64>().unwrap();
        let before = round(&self.first.see(|_| true));
        self.first.see(|line| round(line) > before + 100);
    }

    /// Has both end in order: the first one leaves when its input ends, and tells the other.
    #[track_caller]
    fn end(self) {
        self.first.end();
        self.second.end();
    }
}

/// Whether a peer's line says so.
fn uses_frames(line: &str) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    let [_, "up", sent, received, ..] = words[..] else { return false };
    assert!(line.contains("leased from ringrail-xdpd"), "{line}");
    sent.parse::<u64>().unwrap() > 100 && received.parse::<u64>().unwrap() > 100
}

fn be_a_peer(local: &str, socket: &str, secret: &str) {
    assert!(ringrail_xdp::Missing::of_this_thread().is_some(), "no privileges are wanted here");
    let settings = [("job_secret", secret), ("control_lane", "auto"), ("xdpd_socket", socket)];
    let endpoint = attached(local.parse().unwrap(), &settings).unwrap();
    let bytes = endpoint.address().to_bytes();
    say(&bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let (address, role) = line.trim().split_once(' ').unwrap();
    let bytes: Vec<u8> = (0..address.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&address[at..at + 2], 16).unwrap())
        .collect();
    let peer = endpoint.insert_peer(&Address::from_bytes(&bytes).unwrap()).unwrap();
    let (end, is_over) = mpsc::channel::<()>();
    thread::spawn(move || {
        // Until the input ends.
        let _ = std::io::stdin().read_line(&mut String::new());
        drop(end);
    });
    let is_over = || matches!(is_over.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    let mut told = Instant::now();
    for round in 0_u64.. {
        let is_last = if role == "asks" {
            let is_last = is_over();
            send(&endpoint, peer, round, is_last);
            assert_eq!(receive(&endpoint, peer, round), is_last);
            is_last
        } else {
            let is_last = receive(&endpoint, peer, round);
            send(&endpoint, peer, round, is_last);
            is_last
        };
        if told.elapsed() > Duration::from_millis(50) {
            told = Instant::now();
            say(&format!("{round} {}", frames(&endpoint)));
        }
        if is_last {
            return;
        }
    }
}

fn message(round: u64, is_last: bool) -> Vec<u8> {
    const LENGTHS: [usize; 7] = [8, 1, 64, 1000, 3000, 9000, LONGEST];
    let length = LENGTHS[round as usize % LENGTHS.len()];
    let mut bytes: Vec<u8> =
        (0..length as u64).map(|at| (at.wrapping_mul(29) ^ round) as u8).collect();
    bytes[0] = u8::from(is_last);
    bytes
}

fn send(endpoint: &Endpoint<Owned>, peer: Peer, round: u64, is_last: bool) {
    let bytes = message(round, is_last);
    endpoint.send_blocking(peer, Envelope::tagged(round), &bytes, SendOptions::new()).unwrap();
}

fn receive(endpoint: &Endpoint<Owned>, peer: Peer, round: u64) -> bool {
    let mut into = vec![0; LONGEST];
    let selector = Selector::from_peer(peer, Envelope::tagged(round));
    let status = endpoint.receive_blocking(selector, &mut into, ReceiveOptions::new()).unwrap();
    let is_last = into[0] == 1;
    assert!(into[..status.length] == message(round, is_last), "round {round}");
    is_last
}

/// How frames fare, in one line.
fn frames(endpoint: &Endpoint<Owned>) -> String {
    match frames_of(endpoint) {
        FrameState::Up { how, figures, .. } => {
            format!("up {} {} {how}", figures.sent, figures.received)
        }
        FrameState::Down { cause, .. } => format!("down {cause}"),
        FrameState::Refused { cause, .. } => format!("refused {cause}"),
        state => panic!("{state:?}"),
    }
}

/// Runs `test` inside host a, with a bpffs where `is_pinned` and paths of two daemons, and says
/// afterwards that the NIC is as it was found.
fn in_host_a(is_pinned: bool, test: impl Fn(&Lab, [&Path; 2]) + Send + Sync) {
    let lab = Lab::build(&LabSpec::rails(1)).unwrap();
    let (bpffs, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let sockets = ["a", "b"].map(|name| folder.path().join(name));
    let _cleaner = Cleaner::of(&lab);
    let work = || {
        // Programs of the lab mount it again.
        rustix::mount::unmount(c"/sys", rustix::mount::UnmountFlags::DETACH).unwrap();
        if is_pinned {
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount(c"bpf", bpffs.path(), c"bpf", flags, None).unwrap();
        }
        let found = nic();
        test(&lab, [&sockets[0], &sockets[1]]);
        // The kernel takes what belonged to killed processes a little later.
        let deadline = Instant::now() + LIMIT;
        while nic() != found && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(nic(), found);
        assert_eq!(litter(&lab, bpffs.path()), Vec::<PathBuf>::new());
        assert!(!sockets[0].exists() && !sockets[1].exists());
    };
    lab.host(Host::A).enter(work).unwrap();
}

/// A daemon in each host.
fn both_daemons(lab: &Lab, sockets: [&Path; 2], groups: [u32; 2]) -> [Part; 2] {
    let of = |at: usize, host| Part::daemon(lab, host, sockets[at], groups[at]);
    [of(0, Host::A), of(1, Host::B)]
}

#[test]
fn users_without_privileges_get_frames() {
    require_lab!();
    for is_pinned in [false, true] {
        in_host_a(is_pinned, |lab, sockets| {
            let daemons = both_daemons(lab, sockets, [NOBODY; 2]);
            for _ in 0..2 {
                let pair = Pair::start(lab, sockets);
                pair.see_frames();
                pair.end();
            }
            daemons.into_iter().for_each(Part::end);
        });
    }
}

#[test]
fn who_is_not_in_the_group_goes_on_by_udp() {
    require_lab!();
    in_host_a(false, |lab, sockets| {
        let daemons = both_daemons(lab, sockets, [OTHERS, NOBODY]);
        let pair = Pair::start(lab, sockets);
        pair.second.see(uses_frames);
        let line = pair.first.see(|_| true);
        for words in ["refused not permitted", "run as root", "CAP_NET_RAW", "join group ringrail"]
        {
            assert!(line.contains(words), "{line}");
        }
        pair.see_rounds();
        pair.end();
        daemons.into_iter().for_each(Part::end);
        // Without any daemon, likewise.
        let pair = Pair::start(lab, sockets);
        let line = pair.first.see(|_| true);
        assert!(line.contains("start ringrail-xdpd"), "{line}");
        pair.see_rounds();
        pair.end();
    });
}

#[test]
fn the_queue_of_a_killed_client_is_free_for_the_next_one() {
    require_lab!();
    in_host_a(false, |lab, sockets| {
        let daemons = both_daemons(lab, sockets, [NOBODY; 2]);
        for _ in 0..3 {
            let pair = Pair::start(lab, sockets);
            pair.see_frames();
            pair.first.kill();
            pair.second.kill();
        }
        let pair = Pair::start(lab, sockets);
        pair.see_frames();
        pair.end();
        daemons.into_iter().for_each(Part::end);
    });
}

#[test]
fn a_killed_daemon_costs_no_message_and_a_new_one_is_found() {
    require_lab!();
    for is_pinned in [false, true] {
        in_host_a(is_pinned, |lab, sockets| {
            let [first, other] = both_daemons(lab, sockets, [NOBODY; 2]);
            let pair = Pair::start(lab, sockets);
            pair.see_frames();
            first.kill();
            let line = pair.first.see(|line| line.contains(" down "));
            assert!(line.contains("ringrail-xdpd"), "{line}");
            pair.see_rounds();
            pair.second.see(uses_frames);
            let again = Part::daemon(lab, Host::A, sockets[0], NOBODY);
            pair.see_frames();
            // In order, it says so.
            again.end();
            pair.first.see(|line| line.contains(" down "));
            pair.see_rounds();
            pair.end();
            other.end();
        });
    }
}
