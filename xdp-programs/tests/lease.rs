//! `ringrail-xdpd` and clients that mean no good.

#[path = "common/mod.rs"]
mod common;

use std::fs::File;
use std::io::{BufRead as _, BufReader, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use common::{FRAMES, LIMIT, Xsk, eventually, ifindex, lock_files, program_on};
use ringrail_tests::lab::{Host, Lab, LabChild, LabSpec};
use ringrail_tests::require_lab;
use ringrail_xdp::lease::{Bound, LeaseError, Offer, RING_ENTRIES_MAX};
use rustix::net::sockopt::{
    Timeout, set_ipv6_v6only, set_socket_linger, set_socket_recv_buffer_size,
    set_socket_send_buffer_size, set_socket_timeout,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recv, sendmsg, socket_with,
};
use rustix::process::Signal;

const PORT: u16 = 7100;
const NIC: &str = "rail0";
/// Of the protocol.
const VERSION: u16 = 2;
const ASK: u16 = 1;
/// Queues that a user may have in these tests.
const QUEUES: &str = "2";

/// The daemon as it is shipped, in host b.
struct Running {
    child: LabChild,
    path: PathBuf,
}

impl Running {
    fn start(lab: &Lab, folder: &Path) -> Self {
        let path = folder.join("xdpd.sock");
        let mut command = lab.host(Host::B).command(env!("CARGO_BIN_EXE_ringrail-xdpd"));
        let arguments = ["--user", "0", "--group", "65534", "--queues", QUEUES, "--nic", NIC];
        command.args(arguments).arg("--socket").arg(&path).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.inner().stderr.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        // It is not to wait for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, path }
    }

    /// A client that does as it should.
    fn lease(&self, udp: impl AsFd) -> Result<(Bound, Xsk), LeaseError> {
        self.lease_for(udp, None)
    }

    fn lease_for(
        &self,
        udp: impl AsFd,
        address: Option<IpAddr>,
    ) -> Result<(Bound, Xsk), LeaseError> {
        let nic = ifindex(NIC);
        let (mut offer, socket) = Offer::ask(&self.path, nic, udp.as_fd(), address, FRAMES, LIMIT)?;
        let xsk = Xsk::over_rings(socket).unwrap();
        let deadline = std::time::Instant::now() + LIMIT;
        loop {
            match offer.try_bind(0) {
                Ok(bound) => return Ok((bound, xsk)),
                // The kernel gives a queue back a little later.
                Err((again, LeaseError::Busy { .. })) if std::time::Instant::now() < deadline => {
                    offer = again;
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err((_, error)) => return Err(error),
            }
        }
    }

    /// The words of its refusal.
    #[track_caller]
    fn refusal(&self, ifindex: u32, udp: impl AsFd) -> String {
        Offer::ask(&self.path, ifindex, udp.as_fd(), None, FRAMES, LIMIT)
            .expect_err("refused")
            .to_string()
    }

    fn connect(&self) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        set_socket_timeout(&socket, Timeout::Recv, Some(LIMIT)).unwrap();
        connect(&socket, &SocketAddrUnix::new(&self.path).unwrap()).unwrap();
        socket
    }

    fn signal(&self, signal: Signal) {
        let id = rustix::process::Pid::from_raw(self.child.id().cast_signed()).unwrap();
        rustix::process::kill_process(id, signal).unwrap();
    }

    /// Stops it as systemd does.
    fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.child.wait_timeout(LIMIT).unwrap().expect("an end");
        assert!(status.success(), "{status}");
        assert!(!self.path.exists());
    }
}

/// Runs `test` in host b beside a daemon, which then is stopped and has left nothing.
fn with_daemon(test: impl Fn(&Lab, &Running, IpAddr) + Send + Sync) {
    let lab = Lab::build(&LabSpec::rails(2)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let work = || {
        // Commands of the lab mount it again.
        rustix::mount::unmount(c"/sys", rustix::mount::UnmountFlags::DETACH).unwrap();
        // Of killed processes of networks that had this one's number before.
        let stale = lock_files();
        let running = Running::start(&lab, folder.path());
        test(&lab, &running, lab.addr(Host::B, 0));
        running.stop();
        eventually("the NIC is as it was found", || program_on(NIC).is_none());
        let left: Vec<_> = lock_files().into_iter().filter(|name| !stale.contains(name)).collect();
        assert_eq!(left, [""; 0]);
    };
    lab.host(Host::B).enter(work).unwrap();
}

/// A request as the protocol has it.
fn request(version: u16, kind: u16, number: u32) -> Vec<u8> {
    let mut bytes = b"RRXL".to_vec();
    bytes.extend(version.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(number.to_ne_bytes());
    bytes.extend(if kind == ASK { FRAMES } else { 0 }.to_ne_bytes());
    bytes
}

fn say(connection: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    let slices = [IoSlice::new(bytes)];
    sendmsg(connection, &slices, &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// What comes; empty at the end.
fn hear(connection: &OwnedFd) -> Vec<u8> {
    let mut bytes = [0_u8; 2048];
    loop {
        match recv(connection, &mut bytes, RecvFlags::empty()) {
            Ok((length, _)) => return bytes[..length].to_vec(),
            // It has not read all that was said; what it said itself comes next.
            Err(rustix::io::Errno::CONNRESET) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// A refusal and the end.
#[track_caller]
fn assert_refused(connection: &OwnedFd) {
    let reply = hear(connection);
    assert_eq!(reply.get(..8), Some(&request(VERSION, 3, 0)[..8]), "{reply:?}");
    assert_eq!(hear(connection), [0_u8; 0]);
}

#[test]
fn what_is_no_request_is_refused() {
    require_lab!();
    with_daemon(|_, running, local| {
        let udp = UdpSocket::bind((local, PORT)).unwrap();
        let udp = udp.as_fd();
        let ask = request(VERSION, ASK, ifindex(NIC));
        let with_entries = |entries: u32| {
            let mut ask = ask.clone();
            ask[12..].copy_from_slice(&entries.to_ne_bytes());
            ask
        };
        let packets: [(Vec<u8>, usize); 16] = [
            (vec![0; 16], 1),
            (vec![0xff; 16], 0),
            (b"R".to_vec(), 1),
            (ask[..15].to_vec(), 1),
            ([&ask[..], b"x"].concat(), 1),
            ([&ask[..], &[0; 60_000]].concat(), 1),
            (request(VERSION, 2, 0), 0),
            (request(VERSION, 9, 0), 1),
            (request(VERSION + 1, ASK, ifindex(NIC)), 1),
            (ask.clone(), 0),
            (ask.clone(), 2),
            (ask.clone(), 12),
            // Rings that the kernel would not make, and such as would cost it too much.
            (with_entries(0), 1),
            (with_entries(65), 1),
            (with_entries(2 * RING_ENTRIES_MAX), 1),
            (with_entries(1 << 31), 1),
        ];
        for (packet, descriptors) in packets {
            let connection = running.connect();
            say(&connection, &packet, &vec![udp; descriptors]);
            assert_refused(&connection);
            assert_eq!(program_on(NIC), None, "nothing was attached for {packet:?}");
        }
        // After all of them it does what it is there for.
        drop(running.lease(udp).unwrap());
    });
}

fn bind_to_interface(socket: &impl AsFd, index: u32) {
    let index = index.cast_signed();
    // SAFETY: the kernel reads the bytes of `index` during the call.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTOIFINDEX,
            (&raw const index).cast(),
            size_of_val(&index) as libc::socklen_t,
        )
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn only_the_port_of_a_udp_socket_of_this_nic_is_lent() {
    require_lab!();
    with_daemon(|lab, running, local| {
        let nic = ifindex(NIC);
        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        let unix = running.connect();
        let tcp = TcpListener::bind((local, 0)).unwrap();
        let file = File::open("/dev/null").unwrap();
        let none: [&dyn AsFd; 4] = [&pipe, &unix, &tcp, &file];
        for descriptor in none {
            let words = running.refusal(nic, descriptor);
            assert!(words.contains("no UDP socket"), "{words}");
        }
        let family = AddressFamily::INET;
        let unbound = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
        let any = UdpSocket::bind("0.0.0.0:0").unwrap();
        for descriptor in [unbound.as_fd(), any.as_fd()] {
            let words = running.refusal(nic, descriptor);
            assert!(words.contains("not one address and port"), "{words}");
        }
        let loopback = UdpSocket::bind("127.0.0.1:0").unwrap();
        let second = UdpSocket::bind((lab.addr(Host::B, 1), 0)).unwrap();
        for descriptor in [loopback.as_fd(), second.as_fd()] {
            let words = running.refusal(nic, descriptor);
            assert!(words.contains("is no address of interface"), "{words}");
        }
        let words = running.refusal(ifindex("lo"), &loopback);
        assert!(words.contains("the loopback"), "{words}");
        // The kernel lets two sockets have one port if they are bound to different interfaces.
        let good = UdpSocket::bind((local, PORT)).unwrap();
        bind_to_interface(&good, ifindex(NIC));
        let rival = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
        bind_to_interface(&rival, ifindex("rail1"));
        rustix::net::bind(&rival, &SocketAddr::new(local, PORT)).unwrap();
        let words = running.refusal(nic, &rival);
        assert!(words.contains("bound to interface"), "{words}");
        drop((good, rival));
        // The daemon closes what it has refused after it has said so.
        let mut good = None;
        eventually("the port is free", || {
            good = UdpSocket::bind((local, PORT)).ok();
            good.is_some()
        });
        let good = good.unwrap();
        for index in [0, 99_999, u32::MAX, ifindex("rail1")] {
            let words = running.refusal(index, &good);
            assert!(words.contains("is no address of interface"), "{words}");
        }
        // The same address may be another host's in another network.
        let elsewhere = lab.host(Host::A).enter(|| UdpSocket::bind((lab.addr(Host::A, 0), PORT)));
        let words = running.refusal(nic, elsewhere.unwrap().unwrap());
        assert!(words.contains("another network namespace"), "{words}");
        assert_eq!(program_on(NIC), None);
    });
}

/// The C library calls the interface of an IPv4 address by the address's label.
#[test]
fn an_address_with_a_label_is_one_of_its_nic() {
    require_lab!();
    with_daemon(|_, running, _| {
        common::ip(&format!("addr add 10.88.0.2/24 dev {NIC} label {NIC}:other"));
        let udp = UdpSocket::bind(("10.88.0.2", PORT)).unwrap();
        let (bound, _xsk) = running.lease(&udp).unwrap();
        assert_eq!(bound.lease.nic(), NIC);
    });
}

#[test]
fn a_port_of_all_addresses_is_lent_for_one_of_them() {
    require_lab!();
    with_daemon(|lab, running, local| {
        let refusal = |udp: &dyn AsFd, address: IpAddr| {
            running.lease_for(udp, Some(address)).map(drop).expect_err("refused").to_string()
        };
        let all = UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
        let words = refusal(&all, lab.addr(Host::B, 1));
        assert!(words.contains("is no address of interface"), "{words}");
        let words = refusal(&all, "0.0.0.0".parse().unwrap());
        assert!(words.contains("not one address and port"), "{words}");
        let words = refusal(&all, "::1".parse().unwrap());
        assert!(words.contains("has no port of"), "{words}");
        // Somebody else's port of this address is not that of those.
        let elsewhere = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let words = refusal(&elsewhere, local);
        assert!(words.contains("has no port of"), "{words}");
        let family = AddressFamily::INET6;
        let apart = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
        set_ipv6_v6only(&apart, true).unwrap();
        rustix::net::bind(&apart, &SocketAddr::new("::".parse().unwrap(), PORT)).unwrap();
        let words = refusal(&apart, local);
        assert!(words.contains("has no port of"), "{words}");
        drop(apart);
        let (bound, _xsk) = running.lease_for(&all, Some(local)).unwrap();
        assert_eq!(bound.lease.check(), Ok(()));
        // It is not its port any more.
        all.connect((lab.addr(Host::A, 0), PORT)).unwrap();
        let mut words = String::new();
        eventually("the lease is over", || {
            // It is said once.
            words = bound.lease.check().err().unwrap_or_default();
            !words.is_empty()
        });
        assert!(words.contains("was bound to 0.0.0.0"), "{words}");
    });
}

#[test]
fn a_lent_socket_is_good_for_its_nic_and_port_alone() {
    require_lab!();
    with_daemon(|_, running, local| {
        let udp = UdpSocket::bind((local, 0)).unwrap();
        let addr = udp.local_addr().unwrap();
        let (bound, xsk) = running.lease(&udp).unwrap();
        assert_eq!((bound.queue, bound.lease.nic()), (0, NIC));
        // It is bound, for good.
        let error = xsk.bind_to(ifindex(NIC), 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
        // The port stays taken although its owner has closed the socket.
        drop(udp);
        let taken = UdpSocket::bind(addr).unwrap_err();
        assert_eq!(taken.raw_os_error(), Some(libc::EADDRINUSE));
        bound.lease.check().unwrap();
        drop(bound);
        let udp = UdpSocket::bind(addr).expect("the daemon has let go of it");
        drop(xsk);
        let (bound, _xsk) = running.lease(&udp).unwrap();
        // One that gives its port up has nothing any more.
        let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
        // SAFETY: the address is as large as said.
        let done = unsafe {
            libc::connect(udp.as_raw_fd(), &raw const nowhere, size_of_val(&nowhere) as u32)
        };
        assert_eq!(done, 0);
        if udp.local_addr().unwrap() == addr {
            // A port that was asked for by number is not given up that way.
            bound.lease.check().unwrap();
        } else {
            eventually("the lease is over", || bound.lease.check().is_err());
        }
    });
}

#[test]
fn a_socket_without_root_takes_no_other_nic_or_queue() {
    require_lab!();
    with_daemon(|_, running, local| {
        let udp = UdpSocket::bind((local, PORT)).unwrap();
        let (offer, socket) =
            Offer::ask(&running.path, ifindex(NIC), udp.as_fd(), None, FRAMES, LIMIT).unwrap();
        // Its rings are what was asked for, for good.
        for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING] {
            let error = common::set(socket.as_raw_fd(), ring, &(1_u32 << 20)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        }
        let xsk = Xsk::over_rings(socket).unwrap();
        for (nic, queue) in [(ifindex("rail1"), 0), (ifindex("lo"), 0), (ifindex(NIC), 7)] {
            let error = xsk.bind_to(nic, queue).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "NIC {nic}, queue {queue}");
        }
        let (_, error) = offer.try_bind(7).expect_err("no such queue");
        assert!(error.to_string().contains("no queue 7"), "{error}");
        // Without memory there is nothing to bind.
        let (offer, _socket) =
            Offer::ask(&running.path, ifindex(NIC), udp.as_fd(), None, FRAMES, LIMIT).unwrap();
        let (_, error) = offer.try_bind(0).expect_err("no memory");
        assert!(error.to_string().contains("registered first"), "{error}");
    });
}

#[test]
fn nobody_has_more_than_the_limits() {
    require_lab!();
    with_daemon(|_, running, local| {
        let sockets: Vec<UdpSocket> =
            (0..3).map(|at| UdpSocket::bind((local, PORT + at)).unwrap()).collect();
        // Those who say nothing are in nobody's way.
        let silent: Vec<OwnedFd> = (0..32).map(|_| running.connect()).collect();
        let ask = |udp: &UdpSocket| {
            Offer::ask(&running.path, ifindex(NIC), udp.as_fd(), None, FRAMES, LIMIT)
        };
        let first = running.lease(&sockets[0]).unwrap();
        let second = ask(&sockets[1]).unwrap();
        let error = ask(&sockets[2]).unwrap_err();
        assert!(error.to_string().contains("has its 2 queues"), "{error}");
        // A queue that is taken is a matter of the next one.
        let xsk = Xsk::over_rings(second.1).unwrap();
        let (again, error) = second.0.try_bind(0).expect_err("somebody has it");
        assert!(matches!(error, LeaseError::Busy { .. }), "{error}");
        drop((again, xsk));
        // As many as there may be; who is one too many is told so.
        let many: Vec<OwnedFd> = (0..80).map(|_| running.connect()).collect();
        assert_refused(&many[79]);
        first.0.lease.check().unwrap();
        drop((silent, many, first));
        eventually("room for others", || running.lease(&sockets[2]).is_ok());
    });
}

#[test]
fn one_who_talks_during_a_lease_loses_it() {
    require_lab!();
    with_daemon(|_, running, local| {
        let udp = UdpSocket::bind((local, PORT)).unwrap();
        let connection = running.connect();
        say(&connection, &request(VERSION, ASK, ifindex(NIC)), &[udp.as_fd()]);
        let mut bytes = [0_u8; 2048];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
        let mut slices = [std::io::IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        rustix::net::recvmsg(&connection, &mut slices, &mut control, flags).unwrap();
        let mut sockets: Vec<OwnedFd> = Vec::new();
        for message in control.drain() {
            if let rustix::net::RecvAncillaryMessage::ScmRights(some) = message {
                sockets.extend(some);
            }
        }
        let [socket] = <[OwnedFd; 1]>::try_from(sockets).unwrap();
        let _xsk = Xsk::over_rings(socket).unwrap();
        say(&connection, &request(VERSION, 2, 0), &[]);
        assert_eq!(hear(&connection)[6..8], 2_u16.to_ne_bytes(), "bound");
        say(&connection, &vec![7; 10_000], &[udp.as_fd(); 9]);
        assert_eq!(hear(&connection)[6..8], 4_u16.to_ne_bytes(), "lost");
        assert_eq!(hear(&connection), [0_u8; 0]);
        // The program goes with the last lease.
        eventually("the NIC is left", || program_on(NIC).is_none());
    });
}

#[test]
fn the_daemon_says_when_the_nic_goes_down_and_serves_again_when_it_is_up() {
    require_lab!();
    with_daemon(|_, running, local| {
        let udp = UdpSocket::bind((local, PORT)).unwrap();
        let (bound, xsk) = running.lease(&udp).unwrap();
        common::ip(&format!("link set {NIC} down"));
        let mut why = String::new();
        eventually("the lease is over", || {
            why = bound.lease.check().err().unwrap_or_default();
            !why.is_empty()
        });
        assert!(why.contains("is down"), "{why}");
        drop((bound, xsk));
        common::ip(&format!("link set {NIC} up"));
        drop(running.lease(&udp).unwrap());
    });
}

#[test]
fn a_descriptor_that_is_slow_to_close_holds_up_nobody_else() {
    require_lab!();
    with_daemon(|_, running, local| {
        // One whose end waits until all is read, and nobody reads.
        let listener = TcpListener::bind((local, 0)).unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _reader = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 65_536]).is_ok() {}
        set_socket_linger(&stream, Some(Duration::from_secs(3600))).unwrap();
        // While it is stopped, so that it is the one who closes last.
        running.signal(Signal::STOP);
        let connections: Vec<OwnedFd> = (0..8).map(|_| running.connect()).collect();
        for connection in &connections {
            let ask = request(VERSION, ASK, ifindex(NIC));
            say(connection, &ask, &[stream.as_fd()]);
        }
        drop(stream);
        running.signal(Signal::CONT);
        let udp = UdpSocket::bind((local, PORT)).unwrap();
        for _ in 0..3 {
            drop(running.lease(&udp).unwrap());
        }
        let is_held_up = |connection: &&OwnedFd| {
            let reply = recv(connection, &mut [0_u8; 1], RecvFlags::DONTWAIT | RecvFlags::PEEK);
            reply == Err(rustix::io::Errno::AGAIN)
        };
        assert!(connections.iter().any(|one| is_held_up(&one)), "closing did not wait");
        // Stopping does not wait for it either.
    });
}

/// A connection whose end nobody reads: closing the last descriptor of it waits for an hour.
fn lingering(listener: &TcpListener) -> TcpStream {
    let family = AddressFamily::INET;
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    set_socket_send_buffer_size(&socket, 4096).unwrap();
    connect(&socket, &listener.local_addr().unwrap()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 65_536]).is_ok() {}
    set_socket_linger(&stream, Some(Duration::from_secs(3600))).unwrap();
    stream
}

#[test]
fn strangers_with_descriptors_that_are_slow_to_close_hold_up_nobody() {
    const ROUND: usize = 100;
    require_lab!();
    with_daemon(|_, running, local| {
        let folder = running.path.parent().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder, open).unwrap();
        // Fewer than strangers will have connected with.
        let id = rustix::process::Pid::from_raw(running.child.id().cast_signed());
        let limit = rustix::process::Rlimit { current: Some(160), maximum: Some(160) };
        rustix::process::prlimit(id, rustix::process::Resource::Nofile, limit).unwrap();
        let listener = TcpListener::bind((local, 0)).unwrap();
        set_socket_recv_buffer_size(&listener, 4096).unwrap();
        let mut readers = Vec::new();
        let mut told: Vec<OwnedFd> = Vec::new();
        for _ in 0..4 {
            let mut streams = Vec::new();
            for _ in 0..ROUND {
                streams.push(lingering(&listener));
                readers.push(listener.accept().unwrap());
            }
            // While it is stopped, so that it is the one who closes last.
            running.signal(Signal::STOP);
            let connect = || as_stranger(|| running.connect());
            let connections: Vec<OwnedFd> = (0..ROUND).map(|_| connect()).collect();
            for (connection, stream) in connections.iter().zip(&streams) {
                say(connection, &request(VERSION, ASK, ifindex(NIC)), &[stream.as_fd()]);
            }
            drop(streams);
            running.signal(Signal::CONT);
            let udp = UdpSocket::bind((local, 0)).unwrap();
            drop(running.lease(&udp).unwrap());
            told.extend(connections);
        }
        for connection in &told {
            assert_refused(connection);
        }
    });
}

#[test]
fn who_asks_and_leaves_in_turns_attaches_once() {
    require_lab!();
    with_daemon(|_, running, local| {
        let udp = UdpSocket::bind((local, PORT)).unwrap();
        drop(running.lease(&udp).unwrap());
        let program = program_on(NIC);
        assert!(program.is_some());
        for _ in 0..5 {
            drop(running.lease(&udp).unwrap());
            assert_eq!(program_on(NIC), program);
        }
        eventually("the NIC is left in the end", || program_on(NIC).is_none());
        drop(running.lease(&udp).unwrap());
    });
}

/// A client that keeps its socket gets nothing of what comes for its port of before.
#[test]
fn claims_of_a_killed_daemon_end_with_the_start_of_the_next() {
    require_lab!();
    with_daemon(|lab, running, local| {
        // Somebody else has the NIC in use, so that the program stays.
        let _nic = ringrail_xdp::Nic::join(NIC, ringrail_xdp::AttachMode::Auto).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let killed = Running::start(lab, folder.path());
        let target = SocketAddr::new(local, PORT);
        let udp = UdpSocket::bind(target).unwrap();
        let (_bound, xsk) = killed.lease(&udp).unwrap();
        killed.signal(Signal::KILL);
        drop((udp, killed));
        // Nobody keeps the port any more.
        let mut another = None;
        eventually("the port is free", || {
            another = UdpSocket::bind(target).ok();
            another.is_some()
        });
        let another = another.unwrap();
        another.set_read_timeout(Some(LIMIT)).unwrap();
        let sender = lab.host(Host::A).enter(|| UdpSocket::bind((lab.addr(Host::A, 0), 0)));
        let sender = sender.unwrap().unwrap();
        sender.send_to(b"claimed", target).unwrap();
        assert!(xsk.receive().ends_with(b"claimed"));
        let next = Running::start(lab, folder.path());
        sender.send_to(b"kernel", target).unwrap();
        let mut bytes = [0; 16];
        assert_eq!(another.recv(&mut bytes).map(|length| &bytes[..length]).unwrap(), b"kernel");
        assert!(xsk.try_receive().is_none());
        next.stop();
        // It works beside the one that was there all the time.
        drop((another, xsk));
        // A test beside this one may have started a process that has the socket for a moment.
        let mut last = None;
        eventually("the port is free again", || {
            last = UdpSocket::bind(target).ok();
            last.is_some()
        });
        drop(running.lease(last.unwrap()).unwrap());
    });
}

#[test]
fn a_path_has_one_daemon_and_no_other_file_is_removed() {
    require_lab!();
    with_daemon(|lab, running, local| {
        let folder = running.path.parent().unwrap();
        let file = folder.join("file");
        std::fs::write(&file, "mine").unwrap();
        for path in [&running.path, &file] {
            let mut command = lab.host(Host::B).command(env!("CARGO_BIN_EXE_ringrail-xdpd"));
            let output = command.args(["--user", "0", "--socket"]).arg(path).output(LIMIT).unwrap();
            let words = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && words.contains("is in use"), "{words}");
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
        let udp = UdpSocket::bind((local, PORT)).unwrap();
        drop(running.lease(&udp).unwrap());
        // What a killed one has left is taken over.
        let dead = folder.join("dead");
        drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
        let mut command = lab.host(Host::B).command(env!("CARGO_BIN_EXE_ringrail-xdpd"));
        command.args(["--user", "0", "--socket"]).arg(&dead).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let err = BufReader::new(child.inner().stderr.take().unwrap());
        assert_eq!(err.lines().next().unwrap().unwrap(), "ready");
    });
}

/// Does it as a user whom the daemon does not serve.
fn as_stranger<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    // Credentials of the thread alone, which ends here.
    std::thread::scope(|scope| {
        let work = || {
            let (user, group) = (rustix::thread::Uid::from_raw(4321), 4321);
            let group = rustix::thread::Gid::from_raw(group);
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(group, group, group).unwrap();
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            work()
        };
        scope.spawn(work).join().unwrap()
    })
}

#[test]
fn a_user_of_no_group_is_told_so() {
    require_lab!();
    with_daemon(|_, running, local| {
        let udp = UdpSocket::bind((local, PORT)).unwrap();
        let folder = running.path.parent().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder, open).unwrap();
        let stranger = as_stranger(|| {
            Offer::ask(&running.path, ifindex(NIC), udp.as_fd(), None, FRAMES, LIMIT).map(drop)
        });
        let Err(LeaseError::NotAllowed { text }) = stranger else { panic!("{stranger:?}") };
        assert!(text.contains("user 4321 is in none of the groups"), "{text}");
        let member = std::thread::scope(|scope| {
            let ask = || {
                let (user, group) = (rustix::thread::Uid::from_raw(4321), 4321);
                let group = rustix::thread::Gid::from_raw(group);
                // A group besides the user's own.
                let more = [10_000, 65_534].map(rustix::thread::Gid::from_raw);
                rustix::thread::set_thread_groups(&more).unwrap();
                rustix::thread::set_thread_res_gid(group, group, group).unwrap();
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
                running.lease(&udp).map(drop)
            };
            scope.spawn(ask).join().unwrap()
        });
        member.unwrap();
    });
}
