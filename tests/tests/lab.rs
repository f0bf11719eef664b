//! The lab does what it says, and leaves nothing behind however it ends.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use ringrail_tests::lab::{Host, Lab, LabSpec, ProcessId, users};
use ringrail_tests::require_lab;

const LIMIT: Duration = Duration::from_secs(10);

/// A shell line that leaves two grandchildren, one of them in a session of its own.
const TREE: &str = "setsid sleep 1000 & sleep 1000 & echo up; wait";

fn rails(rails: u8) -> LabSpec {
    LabSpec::rails(rails)
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Sends `text` from host a to host b over `rail`, and returns what arrived and from where.
fn carry(lab: &Lab, rail: u8, text: &str) -> (String, SocketAddr) {
    let bind = || TcpListener::bind((lab.addr(Host::B, rail), 0)).unwrap();
    let listener = lab.host(Host::B).enter(bind).unwrap();
    let target = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let connect = || TcpStream::connect_timeout(&target, LIMIT).unwrap();
            let mut stream = lab.host(Host::A).enter(connect).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
        });
        let (mut stream, from) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut arrived = String::new();
        stream.read_to_string(&mut arrived).unwrap();
        sender.join().unwrap();
        (arrived, from)
    })
}

#[test]
fn every_rail_carries_traffic() {
    require_lab!();
    let lab = Lab::build(&rails(3)).unwrap();
    for rail in 0..3 {
        let text = format!("over rail {rail}");
        let (arrived, from) = carry(&lab, rail, &text);
        assert_eq!(arrived, text);
        assert_eq!(from.ip(), lab.addr(Host::A, rail));
    }
}

#[test]
fn hosts_show_their_interfaces_and_nothing_of_this_one() {
    require_lab!();
    let lab = Lab::build(&rails(2)).unwrap();
    for host in [Host::A, Host::B] {
        let output = lab.host(host).command("sh").args(["-c", SHOW]).output(LIMIT).unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        let expected = format!("lo rail0 rail1 1500 {} 1\n", host.name());
        assert_eq!(shown, expected, "{}", String::from_utf8_lossy(&output.stderr));
        let macs = lab.host(host).enter(|| fs::read("/sys/class/net/rail1/address")).unwrap();
        // The lowest bit of the first byte marks a multicast address.
        assert!(macs.unwrap().starts_with(b"02:"));
    }
    const SHOW: &str = "echo $(ls /sys/class/net) $(cat /sys/class/net/rail0/mtu) $(uname -n) $$";
}

#[test]
fn two_labs_live_side_by_side() {
    require_lab!();
    let (one, two) = (Lab::build(&rails(1)).unwrap(), Lab::build(&rails(1)).unwrap());
    // Same addresses, different networks.
    assert_eq!(one.addr(Host::B, 0), two.addr(Host::B, 0));
    assert_eq!(carry(&one, 0, "one").0, "one");
    assert_eq!(carry(&two, 0, "two").0, "two");
    drop(one);
    assert_eq!(carry(&two, 0, "still two").0, "still two");
}

#[test]
fn programs_run_on_the_core_of_their_host() {
    require_lab!();
    let lab = Lab::build(&rails(1)).unwrap();
    let allowed = |host, core: Option<Option<usize>>| {
        let mut command = lab.host(host).command("grep");
        command.args(["Cpus_allowed_list", "/proc/self/status"]);
        if let Some(core) = core {
            command.core(core);
        }
        let output = command.output(LIMIT).unwrap();
        String::from_utf8(output.stdout).unwrap().split_whitespace().last().unwrap().to_owned()
    };
    let own = fs::read_to_string("/proc/thread-self/status").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    assert_eq!(allowed(Host::A, Some(None)), own, "unpinned");
    assert_eq!(allowed(Host::A, None), allowed(Host::B, Some(Some(0))));
    assert!(allowed(Host::B, None).parse::<usize>().is_ok(), "one core");
    if thread::available_parallelism().unwrap().get() > 1 {
        assert_ne!(allowed(Host::A, None), allowed(Host::B, None));
    }
}

#[test]
fn dropped_privileges_are_gone_for_good() {
    require_lab!();
    let lab = Lab::build(&rails(1)).unwrap();
    // Below a directory that only root may enter, as a checkout in root's home is.
    let closed = tempfile::Builder::new().prefix("ringrail-closed").tempdir().unwrap();
    let program = closed.path().join("grep");
    // By another process: children of other tests would inherit what this one writes by, and a
    // program that somebody may write to does not run.
    let copied = Command::new("cp").arg("/bin/grep").arg(&program).status();
    assert!(copied.unwrap().success());
    let mut command = lab.host(Host::A).command(&program);
    command.args(["-E", "^(Uid|Gid|Groups|Cap...|NoNewPrivs):", "/proc/self/status"]);
    let output = command.drop_privileges().output(LIMIT).unwrap();
    let status = String::from_utf8(output.stdout).unwrap();
    assert_eq!(status.lines().count(), 9, "{status}{}", String::from_utf8_lossy(&output.stderr));
    for line in status.lines() {
        let (key, values) = line.split_once(':').unwrap();
        let expected = match key {
            "Uid" | "Gid" => "65534 65534 65534 65534",
            "Groups" => "",
            "NoNewPrivs" => "1",
            _ => "0000000000000000",
        };
        assert_eq!(values.split_whitespace().collect::<Vec<_>>().join(" "), expected, "{key}");
    }
}

#[test]
fn a_dropped_child_takes_its_tree_along() {
    require_lab!();
    let lab = Lab::build(&rails(1)).unwrap();
    for unprivileged in [false, true] {
        let mut command = lab.host(Host::B).command("sh");
        command.args(["-c", TREE]).stdout(Stdio::piped());
        if unprivileged {
            command.drop_privileges();
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.inner().stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut tree = users(lab.host(Host::B).inode());
        tree.retain(|process| process.pid != std::process::id());
        assert_eq!(tree.len(), 3, "sh and two sleeps");
        drop(child);
        assert!(!tree.iter().any(|process| process.is_alive()));
    }
}

#[test]
fn waiting_has_a_limit() {
    require_lab!();
    let lab = Lab::build(&rails(1)).unwrap();
    let mut child = lab.host(Host::A).command("sleep").arg("1000").spawn().unwrap();
    assert!(child.wait_timeout(Duration::from_millis(20)).unwrap().is_none());
    child.kill().unwrap();
    assert!(!child.wait_timeout(LIMIT).unwrap().expect("an end after the kill").success());
    let mut command = lab.host(Host::A).command("sh");
    let error = command.args(["-c", TREE]).output(Duration::from_millis(200)).unwrap_err();
    assert!(error.to_string().contains("no end within 200ms"), "{error}");
    let error = lab.host(Host::A).command("ringrail-no-such-program").spawn().unwrap_err();
    assert!(error.to_string().contains("ringrail-no-such-program"), "{error}");
}

#[test]
fn threads_see_the_world_again_after_a_spawn() {
    require_lab!();
    let lab = Lab::build(&rails(1)).unwrap();
    let mine = fs::read_link("/proc/thread-self/ns/pid_for_children").unwrap();
    let child = lab.host(Host::A).command("true").spawn().unwrap();
    assert_eq!(fs::read_link("/proc/thread-self/ns/pid_for_children").unwrap(), mine);
    drop(child);
}

#[test]
fn a_panic_cleans_up() {
    require_lab!();
    let mut left = Vec::new();
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let lab = Lab::build(&rails(1)).unwrap();
        let child = lab.host(Host::A).command("sleep").arg("1000").spawn().unwrap();
        left.push(ProcessId::of(child.id()).unwrap());
        lab.host(Host::B).enter(|| panic!("inside a host")).unwrap();
    }));
    let panic = panic.expect_err("panics pass through a host");
    assert_eq!(panic.downcast_ref(), Some(&"inside a host"));
    assert!(!left[0].is_alive());
}

#[test]
fn a_killed_holder_leaves_nothing() {
    require_lab!();
    let mut holder = Command::new(env!("CARGO_BIN_EXE_ringrail-lab"))
        .args(["rails=2", "a", "sh", "-c", TREE])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let tree = descendants(holder.id());
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!((line.as_str(), tree.len()), ("up\n", 3), "sh and two sleeps");
    eventually("the tree ends", || !tree.iter().any(|process| process.is_alive()));
}

/// The processes below `ancestor`.
fn descendants(ancestor: u32) -> Vec<ProcessId> {
    let mut all = Vec::new();
    let mut queue = vec![ancestor];
    while let Some(parent) = queue.pop() {
        for task in fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let children = children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap());
            for child in children {
                all.extend(ProcessId::of(child));
                queue.push(child);
            }
        }
    }
    all
}
