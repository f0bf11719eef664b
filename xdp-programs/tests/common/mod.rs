//! What the tests share: an AF_XDP socket that can only receive, and looks at a NIC from outside.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything may take before a test fails.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Frames, and entries of the rings.
pub const FRAMES: u32 = 64;
const FRAME_BYTES: u32 = 2048;

/// Where the fill ring is mapped: `XDP_UMEM_PGOFF_FILL_RING`.
const UMEM_FILL_RING: i64 = 0x1_0000_0000;

/// A mapping that goes with its value.
struct Mapping {
    base: *mut u8,
    bytes: usize,
}

impl Mapping {
    fn new(bytes: usize, fd: RawFd, offset: i64) -> io::Result<Self> {
        let flags = match fd {
            -1 => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            _ => libc::MAP_SHARED | libc::MAP_POPULATE,
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: base.cast(), bytes })
    }
}

// SAFETY: the memory belongs to the value, whichever thread has it.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// A ring of entries `T` that kernel and process share.
struct Ring {
    map: Mapping,
    offsets: libc::xdp_ring_offset,
}

impl Ring {
    fn index(&self, at: u64) -> &AtomicU32 {
        // SAFETY: inside the mapping, aligned as the kernel lays rings out; both sides use atomics.
        unsafe { AtomicU32::from_ptr(self.map.base.add(at as usize).cast()) }
    }

    fn producer(&self) -> &AtomicU32 {
        self.index(self.offsets.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.index(self.offsets.consumer)
    }

    fn entry<T>(&self, at: u32) -> *mut T {
        // SAFETY: rings have FRAMES entries, a power of two, so this one is in the mapping.
        let first = unsafe { self.map.base.add(self.offsets.desc as usize) }.cast::<T>();
        first.wrapping_add((at % FRAMES) as usize)
    }
}

/// An AF_XDP socket with its own UMEM, in copy mode, that receives.
pub struct Xsk {
    // Closed before the memory goes.
    fd: OwnedFd,
    fill: Ring,
    rx: Ring,
    umem: Mapping,
}

impl Xsk {
    /// Binds to a queue of an interface of the calling thread's namespace. A queue that was just
    /// closed is busy for some milliseconds.
    pub fn bind(ifindex: u32, queue: u32) -> io::Result<Self> {
        let deadline = Instant::now() + LIMIT;
        loop {
            match Self::try_bind(ifindex, queue) {
                Err(error)
                    if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline =>
                {
                    sleep(Duration::from_millis(2));
                }
                other => return other,
            }
        }
    }

    pub fn try_bind(ifindex: u32, queue: u32) -> io::Result<Self> {
        // SAFETY: takes no pointer.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        check(fd)?;
        // SAFETY: just made for us.
        let xsk = Self::over(unsafe { OwnedFd::from_raw_fd(fd) })?;
        xsk.bind_to(ifindex, queue)?;
        Ok(xsk)
    }

    /// Memory and rings for a socket that has none.
    pub fn over(fd: OwnedFd) -> io::Result<Self> {
        for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING] {
            set(fd.as_raw_fd(), ring, &FRAMES)?;
        }
        Self::over_rings(fd)
    }

    /// Memory for a socket with rings of [`FRAMES`] entries.
    pub fn over_rings(fd: OwnedFd) -> io::Result<Self> {
        let raw = fd.as_raw_fd();
        let umem = Mapping::new((FRAMES * FRAME_BYTES) as usize, -1, 0)?;
        let register = libc::xdp_umem_reg {
            addr: umem.base as u64,
            len: umem.bytes as u64,
            chunk_size: FRAME_BYTES,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        set(raw, libc::XDP_UMEM_REG, &register)?;
        // SAFETY: plain numbers, of which zero is one.
        let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
        let mut size = size_of_val(&offsets) as u32;
        // SAFETY: the kernel writes at most `size` bytes there.
        check(unsafe {
            libc::getsockopt(
                raw,
                libc::SOL_XDP,
                libc::XDP_MMAP_OFFSETS,
                (&raw mut offsets).cast(),
                &mut size,
            )
        })?;
        let ring = |offsets: libc::xdp_ring_offset, entry: usize, page: i64| {
            let bytes = offsets.desc as usize + FRAMES as usize * entry;
            Ok::<_, io::Error>(Ring { map: Mapping::new(bytes, raw, page)?, offsets })
        };
        let fill = ring(offsets.fr, size_of::<u64>(), UMEM_FILL_RING)?;
        let rx = ring(offsets.rx, size_of::<libc::xdp_desc>(), libc::XDP_PGOFF_RX_RING)?;
        let xsk = Self { fd, fill, rx, umem };
        for frame in 0..FRAMES {
            xsk.give(u64::from(frame * FRAME_BYTES));
        }
        Ok(xsk)
    }

    /// Binds it.
    pub fn bind_to(&self, ifindex: u32, queue: u32) -> io::Result<()> {
        let addr = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_COPY,
            sxdp_ifindex: ifindex,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        // SAFETY: `addr` is as large as said.
        check(unsafe { libc::bind(self.fd(), (&raw const addr).cast(), size_of_val(&addr) as u32) })
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Gives a frame to the kernel.
    fn give(&self, addr: u64) {
        let at = self.fill.producer().load(Ordering::Relaxed);
        // SAFETY: each frame is in the ring at most once, so there is room; the kernel reads it
        // only after the producer index has moved.
        unsafe { self.fill.entry::<u64>(at).write(addr) };
        self.fill.producer().store(at.wrapping_add(1), Ordering::Release);
    }

    /// The next frame, if one is there.
    pub fn try_receive(&self) -> Option<Vec<u8>> {
        let at = self.rx.consumer().load(Ordering::Relaxed);
        if at == self.rx.producer().load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the kernel wrote this entry before it moved the producer index.
        let desc = unsafe { self.rx.entry::<libc::xdp_desc>(at).read() };
        let (from, bytes) = (desc.addr as usize, desc.len as usize);
        assert!(from + bytes <= self.umem.bytes, "a descriptor inside the UMEM");
        // SAFETY: inside the UMEM, and the kernel leaves the frame alone until it is given back.
        let frame = unsafe { std::slice::from_raw_parts(self.umem.base.add(from), bytes) }.to_vec();
        self.rx.consumer().store(at.wrapping_add(1), Ordering::Release);
        self.give(desc.addr - desc.addr % u64::from(FRAME_BYTES));
        Some(frame)
    }

    /// Waits for a frame.
    pub fn receive(&self) -> Vec<u8> {
        let mut frame = None;
        eventually("a frame in the AF_XDP socket", || {
            frame = self.try_receive();
            frame.is_some()
        });
        frame.unwrap()
    }
}

/// An option of an AF_XDP socket.
pub fn set<T>(socket: RawFd, what: i32, value: &T) -> io::Result<()> {
    // SAFETY: `value` is as large as said.
    check(unsafe {
        libc::setsockopt(
            socket,
            libc::SOL_XDP,
            what,
            ptr::from_ref(value).cast(),
            size_of::<T>() as u32,
        )
    })
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits until something holds.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        sleep(Duration::from_millis(2));
    }
}

/// Runs `ip` in the calling thread's namespace; its output.
#[track_caller]
pub fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What `ip` says of an XDP program on a NIC: its line with id and name.
pub fn program_on(nic: &str) -> Option<String> {
    let text = ip(&format!("link show dev {nic}"));
    text.lines().find(|line| line.contains("prog/xdp")).map(|line| line.trim().to_owned())
}

/// A UDP socket on `port` of `ip` that waits at most [`LIMIT`].
pub fn udp(ip: IpAddr, port: u16) -> UdpSocket {
    let socket = UdpSocket::bind((ip, port)).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

/// What arrives next.
#[track_caller]
pub fn receive(socket: &UdpSocket) -> Vec<u8> {
    let mut bytes = vec![0; 65536];
    let length = socket.recv(&mut bytes).expect("a datagram within the limit");
    bytes.truncate(length);
    bytes
}

/// The lock files that there are for the namespace of the calling thread.
pub fn lock_files() -> Vec<String> {
    use std::os::unix::fs::MetadataExt as _;
    let inode = std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino().to_string();
    let Ok(entries) = std::fs::read_dir("/run/ringrail-xdp") else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("{inode}-"))).collect()
}

pub fn addr(ip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(ip, port)
}

/// Sends frames as they are.
pub fn send_raw<'a>(nic: &str, frames: impl Iterator<Item = &'a Vec<u8>>) {
    let name = std::ffi::CString::new(nic).unwrap();
    // SAFETY: a string that ends in NUL.
    let ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) };
    // SAFETY: takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    check(fd).unwrap();
    // SAFETY: just made for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: plain numbers, of which zero is one.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_ifindex = ifindex.cast_signed();
    for frame in frames {
        // SAFETY: frame and address are as large as said.
        let sent = unsafe {
            libc::sendto(
                fd.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                size_of_val(&to) as u32,
            )
        };
        assert_eq!(sent, frame.len() as isize, "{}", io::Error::last_os_error());
    }
}

/// Attaches a program that passes everything and is not ringrail's.
pub fn attach_other(nic: &str, flags: u32) -> OwnedFd {
    // r0 = XDP_PASS; exit.
    let code = [
        libbpf_sys::bpf_insn { code: 0xb7, imm: 2, ..Default::default() },
        libbpf_sys::bpf_insn { code: 0x95, ..Default::default() },
    ];
    let name = std::ffi::CString::new(nic).unwrap();
    // SAFETY: strings end in NUL, and everything is as large as said.
    unsafe {
        let program = libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_XDP,
            c"not_ringrail".as_ptr(),
            c"MIT".as_ptr(),
            code.as_ptr(),
            code.len() as libbpf_sys::size_t,
            ptr::null_mut(),
        );
        assert!(program >= 0, "{program}");
        let program = OwnedFd::from_raw_fd(program);
        let options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
            flags,
            ..Default::default()
        };
        let ifindex = libc::if_nametoindex(name.as_ptr()).cast_signed();
        let link = libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            ifindex,
            libbpf_sys::BPF_XDP,
            &options,
        );
        assert!(link >= 0, "{link}");
        OwnedFd::from_raw_fd(link)
    }
}

/// Takes the XDP program off a NIC by force, as `bpftool link detach` does.
pub fn detach_link(nic: &str) {
    let name = std::ffi::CString::new(nic).unwrap();
    let mut id = 0;
    let mut detached = 0;
    // SAFETY: strings end in NUL, and everything is as large as said.
    unsafe {
        let ifindex = libc::if_nametoindex(name.as_ptr()).cast_signed();
        let mut program = 0;
        assert_eq!(libbpf_sys::bpf_xdp_query_id(ifindex, 0, &mut program), 0);
        assert_ne!(program, 0, "a program on {nic}");
        while libbpf_sys::bpf_link_get_next_id(id, &mut id) == 0 {
            let link = libbpf_sys::bpf_link_get_fd_by_id(id);
            if link < 0 {
                continue;
            }
            let link = OwnedFd::from_raw_fd(link);
            let mut info = libbpf_sys::bpf_link_info::default();
            let mut size = size_of_val(&info) as u32;
            let raw = link.as_raw_fd();
            assert_eq!(libbpf_sys::bpf_link_get_info_by_fd(raw, &mut info, &mut size), 0);
            let is_xdp = info.type_ == libbpf_sys::BPF_LINK_TYPE_XDP;
            if is_xdp && info.prog_id == program {
                assert_eq!(libbpf_sys::bpf_link_detach(raw), 0);
                detached += 1;
            }
        }
    }
    assert_eq!(detached, 1, "links on {nic}");
}

/// The number of an interface.
pub fn ifindex(name: &str) -> u32 {
    let any = UdpSocket::bind("0.0.0.0:0").unwrap();
    rustix::net::netdevice::name_to_index(&any, name).unwrap()
}
