//! One program per NIC, shared by processes, whichever way they end.

#[path = "common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader, Read as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use common::{Xsk, addr, eventually, ip, lock_files, program_on, receive, udp};
use ringrail_tests::lab::{Host, Lab, LabChild, LabCommand, LabSpec};
use ringrail_tests::require_lab;
use ringrail_xdp::{AttachMode, Capability, ClaimError, Detached, JoinError, Mode, Nic};

const PORT: u16 = 7000;

/// What a child of a test does: the port that it claims on queue 0, 0 for none.
const CHILD: &str = "RINGRAIL_XDP_TEST_CHILD";

fn lab() -> Lab {
    Lab::build(&LabSpec::rails(1)).unwrap()
}

/// Runs `test` inside host b, with a bpffs of its own where `pinned`; says afterwards that nothing
/// is left. The mount goes with the thread.
fn in_host_b(pinned: bool, test: impl Fn(&Lab) + Send + Sync) {
    let lab = lab();
    let bpffs = tempfile::tempdir().unwrap();
    let work = || {
        // Commands of the lab mount it again.
        rustix::mount::unmount(c"/sys", rustix::mount::UnmountFlags::DETACH).unwrap();
        if pinned {
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount(c"bpf", bpffs.path(), c"bpf", flags, None).unwrap();
        }
        test(&lab);
        assert_eq!(program_on("rail0"), None, "the NIC is as it was found");
        assert_eq!(lock_files(), [""; 0]);
        let names = std::fs::read_dir(bpffs.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        // The kernel has files of its own there.
        let left: Vec<_> = names.filter(|name| name.contains("ringrail")).collect();
        assert_eq!(left, [""; 0]);
    };
    lab.host(Host::B).enter(work).unwrap();
}

/// A process of host b that has joined, and claimed `port` if that is not 0. Ends with the thread.
fn child(lab: &Lab, port: u16) -> Member {
    spawn(lab.host(Host::B).command(std::env::current_exe().unwrap()), port)
}

fn spawn(mut command: LabCommand, port: u16) -> Member {
    let claim = addr(ringrail_address(), port).to_string();
    command.args(["--ignored", "--exact", "child_of_a_test", "--nocapture"]).env(CHILD, claim);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let out = child.inner().stdout.take().unwrap();
    let mut out = BufReader::new(out);
    assert!(is_ready(&mut out), "the child ended");
    Member { child, _out: out }
}

/// Waits until a child has what it was asked for.
fn is_ready(out: &mut impl BufRead) -> bool {
    out.lines().map_while(Result::ok).any(|line| line.contains("ready"))
}

/// A process that has joined. Dropping it kills it.
struct Member {
    child: LabChild,
    /// Closing it would break its pipe.
    _out: BufReader<ChildStdout>,
}

impl Member {
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it in order.
    fn end(mut self) {
        drop(self.child.inner().stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Host b's.
fn ringrail_address() -> std::net::IpAddr {
    [10, 77, 0, 2].into()
}

/// What runs in children.
#[test]
#[ignore = "started by other tests"]
fn child_of_a_test() {
    let claim = std::env::var(CHILD).expect("other tests start it");
    let claim: SocketAddr = claim.parse().unwrap();
    let nic = Nic::join("rail0", AttachMode::Auto).unwrap();
    let held = (claim.port() != 0).then(|| {
        let xsk = Xsk::bind(nic.ifindex(), 0).unwrap();
        let claim = nic.claim(0, claim, xsk.fd()).unwrap();
        (claim, xsk)
    });
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    drop(held);
}

/// A socket of host a.
fn sender(lab: &Lab) -> UdpSocket {
    lab.host(Host::A).enter(|| udp(lab.addr(Host::A, 0), 0)).unwrap()
}

#[test]
fn the_last_one_to_leave_takes_it_off() {
    require_lab!();
    for pinned in [false, true] {
        in_host_b(pinned, |_| {
            let first = Nic::join("rail0", AttachMode::Auto).unwrap();
            assert_eq!(first.is_pinned(), pinned);
            assert_eq!((first.mode(), first.name()), (Mode::Generic, "rail0"));
            let program = program_on("rail0").unwrap();
            assert!(program.contains("name ringrail_xdp_1"), "{program}");
            let second = Nic::join(first.ifindex(), AttachMode::Auto).unwrap();
            assert_eq!(program_on("rail0").unwrap(), program);
            drop(first);
            assert_eq!(program_on("rail0").unwrap(), program);
            second.is_attached().unwrap();
            let clone = second.clone();
            drop(second);
            clone.is_attached().unwrap();
            drop(clone);
            assert_eq!(program_on("rail0"), None);
            // And again.
            drop(Nic::join("rail0", AttachMode::Native).unwrap());
        });
    }
}

#[test]
fn killing_one_leaves_the_others_alone() {
    require_lab!();
    for pinned in [false, true] {
        in_host_b(pinned, |lab| {
            let mut victim = child(lab, 0);
            let nic = Nic::join("rail0", AttachMode::Auto).unwrap();
            let survivor = child(lab, 0);
            let target = addr(ringrail_address(), PORT);
            let xsk = Xsk::bind(nic.ifindex(), 0).unwrap();
            let claim = nic.claim(0, target, xsk.fd()).unwrap();
            let sender = sender(lab);
            let program = program_on("rail0").unwrap();
            for round in 0..20_u8 {
                sender.send_to(&[round], target).unwrap();
                assert_eq!(xsk.receive().last(), Some(&round));
                if round == 10 {
                    victim.kill();
                }
                nic.is_attached().unwrap();
            }
            assert_eq!(program_on("rail0").unwrap(), program);
            drop((claim, nic));
            assert_eq!(program_on("rail0").unwrap(), program, "one process is left");
            survivor.end();
        });
    }
}

#[test]
fn the_next_start_cleans_up_after_all_were_killed() {
    require_lab!();
    in_host_b(true, |lab| {
        let mut children = [child(lab, PORT), child(lab, 0)];
        for child in &mut children {
            child.kill();
        }
        let left = program_on("rail0").expect("pins keep the program");
        // What it was to redirect reaches the kernel.
        let kernel = udp(ringrail_address(), PORT);
        sender(lab).send_to(b"nobody there", kernel.local_addr().unwrap()).unwrap();
        assert_eq!(receive(&kernel), b"nobody there");
        let nic = Nic::join("rail0", AttachMode::Auto).unwrap();
        assert_ne!(program_on("rail0").unwrap(), left, "it begins afresh");
        assert!(nic.is_pinned());
        assert!(nic.counters().unwrap().total() < 2);
        drop(nic);
    });
    in_host_b(false, |lab| {
        let mut only = child(lab, PORT);
        only.kill();
        // The program goes with the last descriptor, which may take the kernel a while.
        let nic = Nic::join("rail0", AttachMode::Auto).unwrap();
        assert!(nic.counters().unwrap().total() < 2);
    });
}

#[test]
fn claims_are_exclusive() {
    require_lab!();
    in_host_b(false, |_| {
        let nic = Nic::join("rail0", AttachMode::Auto).unwrap();
        let target = addr(ringrail_address(), PORT);
        let xsk = Xsk::bind(nic.ifindex(), 0).unwrap();
        let claim = nic.claim(0, target, xsk.fd()).unwrap();
        let other = nic.claim(0, addr(ringrail_address(), PORT + 1), xsk.fd()).unwrap();
        let second = Nic::join("rail0", AttachMode::Auto).unwrap();
        for nic in [&nic, &second] {
            let error = nic.claim(0, target, xsk.fd()).unwrap_err();
            let ClaimError::AddressTaken { owner, .. } = error else { panic!("{error}") };
            assert_eq!(owner.pid, Some(std::process::id()));
        }
        drop(claim);
        let claim = second.claim(0, target, xsk.fd()).unwrap();
        assert!(nic.claim(0, target, xsk.fd()).is_err());
        drop((claim, other));
        let error = nic.claim(nic.queues(), target, xsk.fd()).unwrap_err();
        assert!(matches!(error, ClaimError::NoSuchQueue { .. }), "{error}");
        for wrong in ["0.0.0.0:7000", "[::]:7000", "10.77.0.2:0"] {
            let error = nic.claim(0, wrong.parse().unwrap(), xsk.fd()).unwrap_err();
            assert!(matches!(error, ClaimError::Unspecified { .. }), "{error}");
        }
        let no_xsk = udp(ringrail_address(), 0);
        for fd in [no_xsk.as_raw_fd(), -1] {
            let error = nic.claim(0, target, fd).unwrap_err();
            assert!(matches!(error, ClaimError::NotASocket { .. }), "{error}");
        }
        // Failed ones take nothing.
        drop(nic.claim(0, target, xsk.fd()).unwrap());
    });
}

#[test]
fn claims_of_the_dead_are_taken_over() {
    require_lab!();
    in_host_b(true, |lab| {
        let nic = Nic::join("rail0", AttachMode::Auto).unwrap();
        let target = addr(ringrail_address(), PORT);
        let mut owner = child(lab, PORT);
        let error = nic.claim(0, target, -1).unwrap_err();
        assert!(matches!(error, ClaimError::AddressTaken { .. }), "{error}");
        let error = nic.claim(0, addr(ringrail_address(), PORT + 1), -1).unwrap_err();
        // The children of labs have process ids of their own.
        let ClaimError::QueueTaken { queue: 0, owner: of_queue, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(of_queue.pid, None);
        owner.kill();
        let xsk = Xsk::bind(nic.ifindex(), 0).unwrap();
        // The old entry must not lead into the new socket.
        let _claim = nic.claim(0, addr(ringrail_address(), PORT + 1), xsk.fd()).unwrap();
        let kernel = udp(ringrail_address(), PORT);
        let sender = sender(lab);
        sender.send_to(b"for the dead", target).unwrap();
        assert_eq!(receive(&kernel), b"for the dead");
        drop(kernel);
        let _taken = nic.claim(0, target, xsk.fd()).unwrap();
        sender.send_to(b"for us", target).unwrap();
        assert!(xsk.receive().ends_with(b"for us"));
        assert!(xsk.try_receive().is_none());
    });
}

#[test]
fn the_process_that_holds_a_queue_is_named() {
    require_lab!();
    in_host_b(false, |_| {
        let nic = Nic::join("rail0", AttachMode::Auto).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        let claim = addr(ringrail_address(), PORT).to_string();
        command.args(["--ignored", "--exact", "child_of_a_test", "--nocapture"]).env(CHILD, claim);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Dropping its standard input ends it, whatever happens here.
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        assert!(is_ready(&mut out), "the child ended");
        let error = nic.claim(0, addr(ringrail_address(), PORT + 1), -1).unwrap_err();
        drop(child.stdin.take());
        child.wait().unwrap();
        let pid = child.id();
        assert!(error.to_string().contains(&format!("belongs to process {pid}:")), "{error}");
    });
}

#[test]
fn programs_of_others_stay() {
    require_lab!();
    in_host_b(false, |_| {
        for flags in [libbpf_sys::XDP_FLAGS_SKB_MODE, libbpf_sys::XDP_FLAGS_DRV_MODE] {
            let link = common::attach_other("rail0", flags);
            let before = program_on("rail0").unwrap();
            assert!(before.contains("name not_ringrail"), "{before}");
            for mode in [AttachMode::Auto, AttachMode::Native, AttachMode::Generic] {
                let error = Nic::join("rail0", mode).unwrap_err();
                assert!(matches!(error, JoinError::Foreign { .. }), "{error:?}");
                assert!(error.to_string().contains("`not_ringrail`"), "{error}");
            }
            assert_eq!(program_on("rail0").unwrap(), before);
            assert_eq!(lock_files(), [""; 0]);
            drop(link);
            eventually("it goes with its link", || program_on("rail0").is_none());
        }
    });
}

#[test]
fn users_without_common_locks_do_not_meet() {
    require_lab!();
    in_host_b(false, |_| {
        let nic = Nic::join("rail0", AttachMode::Auto).unwrap();
        let name = nic.name().to_owned();
        // As in a container that has the host's network, and a /run of its own.
        let elsewhere = std::thread::spawn(move || {
            // SAFETY: only this thread's view of mounts changes.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount(c"tmpfs", c"/run", c"tmpfs", flags, None).unwrap();
            Nic::join(name.as_str(), AttachMode::Auto).map(drop)
        });
        let error = elsewhere.join().unwrap().unwrap_err();
        assert!(matches!(error, JoinError::OutOfReach { .. }), "{error}");
        nic.is_attached().unwrap();
    });
}

#[test]
fn what_cannot_be_joined_is_named() {
    require_lab!();
    in_host_b(false, |lab| {
        let error = Nic::join("nosuch0", AttachMode::Auto).unwrap_err();
        assert!(error.to_string().contains("nosuch0"), "{error}");
        assert!(matches!(error, JoinError::NoSuchNic { .. }));
        assert!(Nic::join(4711, AttachMode::Auto).is_err());
        let nic = Nic::join("rail0", AttachMode::Generic).unwrap();
        let error = Nic::join("rail0", AttachMode::Native).unwrap_err();
        assert!(matches!(error, JoinError::ModeInUse { has: Mode::Generic, .. }), "{error}");
        drop(nic);
        // Loopback has no driver.
        let lo = Nic::join("lo", AttachMode::Auto).unwrap();
        assert_eq!((lo.mode(), lo.driver(), lo.queues()), (Mode::Generic, "", 1));
        drop(lo);
        let error = Nic::join("lo", AttachMode::Native).unwrap_err();
        assert!(matches!(error, JoinError::Unsupported { .. }), "{error}");
        // Without any privilege.
        let mut command = lab.host(Host::B).command(env!("CARGO_BIN_EXE_ringrail-xdp"));
        let output = command.args(["join", "rail0"]).drop_privileges().output(common::LIMIT);
        let said = String::from_utf8(output.unwrap().stderr).unwrap();
        for capability in [Capability::Bpf, Capability::NetAdmin, Capability::NetRaw] {
            assert!(said.contains(&capability.to_string()), "{said}");
        }
        assert!(said.contains("setcap"), "{said}");
    });
}

#[test]
fn it_is_known_when_the_nic_brings_nothing_any_more() {
    require_lab!();
    in_host_b(true, |_| {
        let nic = Nic::join("rail0", AttachMode::Auto).unwrap();
        nic.is_attached().unwrap();
        ip("link set dev rail0 down");
        assert!(matches!(nic.is_attached(), Err(Detached::Down { .. })));
        ip("link set dev rail0 up");
        nic.is_attached().unwrap();
        common::detach_link("rail0");
        assert!(matches!(nic.is_attached(), Err(Detached::Program { .. })));
        // Whoever joins now attaches it anew; the old share does not come back.
        let again = Nic::join("rail0", AttachMode::Auto).unwrap();
        again.is_attached().unwrap();
        assert!(again.is_pinned());
        assert!(matches!(nic.is_attached(), Err(Detached::Program { .. })));
        drop(nic);
        again.is_attached().unwrap();
        assert!(again.is_pinned(), "who left was not the last");
        ip("link add gone0 type veth peer name gone1");
        let gone = Nic::join("gone0", AttachMode::Auto).unwrap();
        ip("link del gone0");
        assert!(matches!(gone.is_attached(), Err(Detached::Gone { .. })));
        assert!(gone.is_attached().unwrap_err().to_string().contains("gone0"));
    });
}

/// Whoever may make folders in bpffs can put links there: to a link of another NIC, say, which
/// would be taken off as the leftover of a killed process.
#[test]
fn pins_that_somebody_else_has_put_there_are_not_followed() {
    require_lab!();
    in_host_b(true, |_| {
        ip("link add other0 up type veth peer name other1");
        let other = Nic::join("other0", AttachMode::Auto).unwrap();
        let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let bpffs = mounts.lines().find(|line| line.contains(" - bpf ")).unwrap();
        let bpffs = Path::new(bpffs.split(' ').nth(4).unwrap());
        let pins = |ifindex: u32| {
            let namespace = std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
            bpffs.join(format!("ringrail-xdp-1-{namespace}-{ifindex}"))
        };
        let (theirs, folder) = (pins(other.ifindex()), pins(common::ifindex("rail0")));
        let makers: [fn(&Path, &Path) -> std::io::Result<()>; 2] =
            [|to, at| std::os::unix::fs::symlink(to, at), |to, at| std::fs::hard_link(to, at)];
        for link in makers {
            std::fs::create_dir(&folder).unwrap();
            for name in ["link", "program", "claims", "sockets", "counters"] {
                link(&theirs.join(name), &folder.join(name)).unwrap();
            }
            std::os::unix::fs::chown(&folder, Some(65_534), None).unwrap();
            let nic = Nic::join("rail0", AttachMode::Auto).unwrap();
            other.is_attached().unwrap();
            nic.is_attached().unwrap();
            drop(nic);
            other.is_attached().unwrap();
            assert!(other.is_pinned());
        }
    });
}

#[test]
fn three_capabilities_are_enough() {
    require_lab!();
    in_host_b(true, |lab| {
        if !has_setpriv() {
            ringrail_tests::skip("sharing", &"no `setpriv` of util-linux here");
            return;
        }
        let limited = || {
            let mut command = lab.host(Host::B).command("setpriv");
            let bounds = "-all,+bpf,+net_admin,+net_raw,+ipc_lock";
            command.args(["--bounding-set", bounds, "--inh-caps", bounds]);
            command.arg(std::env::current_exe().unwrap());
            command
        };
        // It attaches and pins; the next one finds the pins, as it may not ask by ids.
        let first = spawn(limited(), PORT);
        assert!(program_on("rail0").is_some());
        let second = spawn(limited(), 0);
        first.end();
        assert!(program_on("rail0").is_some());
        second.end();
    });
}

fn has_setpriv() -> bool {
    Path::new("/usr/bin/setpriv").exists() || Path::new("/bin/setpriv").exists()
}
