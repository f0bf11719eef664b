//! Gates of a switch: a BPF program where each port takes packets in drops, counts and forwards
//! them, by figures in memory that this process shares with it.
//!
//! A fault takes effect with the store of a number, without a system call, so that it is exact in
//! time and disturbs nothing. The programs run at the `tcx` hook, before bridge and router, and see
//! AF_XDP frames as well as sockets' packets.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use super::LabError;

/// Everything is dropped: random numbers have 32 bits and all are below.
const ALL: u64 = 1 << 32;

/// Figures of one port; the program knows where in it they are.
#[repr(C)]
#[derive(Debug)]
struct Gate {
    /// A packet is dropped if a random number of 32 bits is less.
    drops_below: AtomicU64,
    /// The port that packets leave by; 0: bridge or router decide.
    out_index: AtomicU64,
    /// What came and was not dropped; large packets of segmentation offload count as one.
    packets: AtomicU64,
    bytes: AtomicU64,
    dropped: AtomicU64,
    /// Longer packets, with Ethernet headers, are dropped.
    longest: AtomicU64,
}

const GATE_BYTES: usize = size_of::<Gate>();
const _: () = assert!(GATE_BYTES == 48);

/// What precedes an IP packet.
const ETHERNET_BYTES: u32 = 14;

/// What has come to one port so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Passage {
    /// Packets that were let through; those of segmentation offload are large.
    pub packets: u64,
    /// Bytes that were let through, with Ethernet headers.
    pub bytes: u64,
    /// Packets that were dropped.
    pub dropped: u64,
}

/// The gates of all ports of a switch. Dropping them takes the programs away.
#[derive(Debug)]
pub(crate) struct Gates {
    memory: Memory,
    count: usize,
    /// Programs end with these.
    links: Vec<OwnedFd>,
}

impl Gates {
    /// Puts a gate before each of `ports`: interface indexes of the calling thread's namespace, and
    /// where what comes in goes out, `None` if the stack behind the port decides.
    pub(crate) fn put_up(ports: &[(u32, Option<u32>)]) -> Result<Self, LabError> {
        let bytes = ports.len() * GATE_BYTES;
        let map = create_map(bytes).map_err(refused("a map of BPF"))?;
        let memory = Memory::of_map(&map, bytes).map_err(refused("memory of a BPF map"))?;
        let mut gates = Self { memory, count: ports.len(), links: Vec::new() };
        for (at, &(index, out)) in ports.iter().enumerate() {
            gates.gate(at).out_index.store(out.unwrap_or(0).into(), Ordering::Relaxed);
            gates.set_longest(at, None);
            let program = load(&program(map.as_raw_fd(), at)).map_err(refused("a program"))?;
            let link = attach(&program, index)
                .map_err(refused("a program at a port (`tcx`, from Linux 6.6 on)"))?;
            gates.links.push(link);
        }
        Ok(gates)
    }

    /// From now on the gate `at` drops this share of what comes, 0 to 1.
    pub(crate) fn set_loss(&self, at: usize, share: f64) {
        let drops_below = (share.clamp(0.0, 1.0) * ALL as f64) as u64;
        self.gate(at).drops_below.store(drops_below, Ordering::SeqCst);
    }

    /// From now on the gate `at` drops longer IP packets than this; `None`: none for their length.
    pub(crate) fn set_longest(&self, at: usize, bytes: Option<u32>) {
        let longest = bytes.map_or(u64::MAX, |bytes| (bytes + ETHERNET_BYTES).into());
        self.gate(at).longest.store(longest, Ordering::SeqCst);
    }

    /// What has come to the gate `at`.
    pub(crate) fn passage(&self, at: usize) -> Passage {
        let gate = self.gate(at);
        Passage {
            packets: gate.packets.load(Ordering::Relaxed),
            bytes: gate.bytes.load(Ordering::Relaxed),
            dropped: gate.dropped.load(Ordering::Relaxed),
        }
    }

    fn gate(&self, at: usize) -> &Gate {
        assert!(at < self.count, "gate {at} of {}", self.count);
        // SAFETY: the mapping holds `count` gates, is aligned to a page and lives as long as
        // `self`; every bit pattern is a gate, and others change it by atomic operations only.
        unsafe { &*self.memory.start.as_ptr().cast::<Gate>().add(at) }
    }
}

/// A shared mapping.
#[derive(Debug)]
struct Memory {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: an address that is good in the whole process; what is there is atomic.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn of_map(map: &OwnedFd, bytes: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, where the kernel likes.
        let start = unsafe {
            libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, map.as_raw_fd(), 0)
        };
        match NonNull::new(start) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED => Ok(Self { start, bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `of_map`; borrows of it end before `self` does.
        unsafe { libc::munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// One instruction of BPF (`struct bpf_insn`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Instruction {
    code: u8,
    /// Destination in the low half, source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: from << 4 | to, offset, immediate }
}

/// Opcodes, as `linux/bpf_common.h` and `linux/bpf.h` put them together.
mod code {
    pub(super) const MOVE: u8 = 0xbf;
    pub(super) const MOVE_IMMEDIATE: u8 = 0xb7;
    /// 64 bits of constant, two instructions.
    pub(super) const CONSTANT: u8 = 0x18;
    pub(super) const LOAD_64: u8 = 0x79;
    pub(super) const LOAD_32: u8 = 0x61;
    pub(super) const ATOMIC_64: u8 = 0xdb;
    pub(super) const JUMP_IF_GREATER: u8 = 0x2d;
    pub(super) const JUMP_IF_EQUAL_IMMEDIATE: u8 = 0x15;
    pub(super) const CALL: u8 = 0x85;
    pub(super) const EXIT: u8 = 0x95;
}

/// The program of the gate `at` of the map `map`:
///
/// ```text
/// if random() < gate.drops_below || packet.len > gate.longest { gate.dropped += 1; return DROP }
/// gate.packets += 1; gate.bytes += packet.len;
/// if gate.out_index == 0 { return NEXT }
/// return redirect(gate.out_index)
/// ```
fn program(map: RawFd, at: usize) -> [Instruction; 24] {
    use code::*;
    /// The source of a constant: an address in the only value of a map.
    const MAP_VALUE: u8 = 2;
    const RANDOM: i32 = 7;
    const REDIRECT: i32 = 23;
    const NEXT: i32 = -1;
    const DROP: i32 = 2;
    /// In `struct __sk_buff`.
    const LEN: i16 = 0;
    const DROPS_BELOW: i16 = 0;
    const OUT_INDEX: i16 = 8;
    const PACKETS: i16 = 16;
    const BYTES: i16 = 24;
    const DROPPED: i16 = 32;
    const LONGEST: i16 = 40;
    // 6: the packet, 7: the gate.
    [
        instruction(MOVE, 6, 1, 0, 0),
        instruction(CONSTANT, 7, MAP_VALUE, 0, map),
        instruction(0, 0, 0, 0, (at * GATE_BYTES) as i32),
        instruction(CALL, 0, 0, 0, RANDOM),
        instruction(LOAD_64, 1, 7, DROPS_BELOW, 0),
        instruction(JUMP_IF_GREATER, 1, 0, 14, 0),
        instruction(LOAD_32, 3, 6, LEN, 0),
        instruction(LOAD_64, 1, 7, LONGEST, 0),
        instruction(JUMP_IF_GREATER, 3, 1, 11, 0),
        instruction(MOVE_IMMEDIATE, 2, 0, 0, 1),
        instruction(ATOMIC_64, 7, 2, PACKETS, 0),
        instruction(MOVE, 2, 3, 0, 0),
        instruction(ATOMIC_64, 7, 2, BYTES, 0),
        instruction(LOAD_64, 1, 7, OUT_INDEX, 0),
        instruction(JUMP_IF_EQUAL_IMMEDIATE, 1, 0, 3, 0),
        instruction(MOVE_IMMEDIATE, 2, 0, 0, 0),
        instruction(CALL, 0, 0, 0, REDIRECT),
        instruction(EXIT, 0, 0, 0, 0),
        instruction(MOVE_IMMEDIATE, 0, 0, 0, NEXT),
        instruction(EXIT, 0, 0, 0, 0),
        instruction(MOVE_IMMEDIATE, 2, 0, 0, 1),
        instruction(ATOMIC_64, 7, 2, DROPPED, 0),
        instruction(MOVE_IMMEDIATE, 0, 0, 0, DROP),
        instruction(EXIT, 0, 0, 0, 0),
    ]
}

/// `BPF_MAP_CREATE`: the first fields of its attributes, and of the others below likewise.
#[repr(C)]
#[derive(Default)]
struct MapAttributes {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

#[repr(C)]
struct LoadAttributes {
    kind: u32,
    instructions: u32,
    start: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

#[repr(C)]
struct LinkAttributes {
    program: u32,
    target_index: u32,
    hook: u32,
    flags: u32,
    relative: u64,
    expected_revision: u64,
}

fn create_map(bytes: usize) -> io::Result<OwnedFd> {
    const CREATE: libc::c_int = 0;
    const ARRAY: u32 = 2;
    const MAPPABLE: u32 = 1 << 10;
    // One value, because only then programs may have addresses in it.
    let value_bytes = bytes as u32;
    bpf(
        CREATE,
        &MapAttributes { kind: ARRAY, key_bytes: 4, value_bytes, entries: 1, flags: MAPPABLE },
    )
}

fn load(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    const LOAD: libc::c_int = 5;
    const OF_TRAFFIC_CONTROL: u32 = 3;
    bpf(
        LOAD,
        &LoadAttributes {
            kind: OF_TRAFFIC_CONTROL,
            instructions: instructions.len() as u32,
            start: instructions.as_ptr().addr() as u64,
            license: c"Dual MIT/GPL".as_ptr().addr() as u64,
            log_level: 0,
            log_bytes: 0,
            log: 0,
            kernel_version: 0,
            flags: 0,
        },
    )
}

fn attach(program: &OwnedFd, target_index: u32) -> io::Result<OwnedFd> {
    const LINK: libc::c_int = 28;
    const TCX_INGRESS: u32 = 46;
    let program = program.as_raw_fd() as u32;
    let hook = TCX_INGRESS;
    bpf(
        LINK,
        &LinkAttributes {
            program,
            target_index,
            hook,
            flags: 0,
            relative: 0,
            expected_revision: 0,
        },
    )
}

/// `bpf(2)` for the commands that return a descriptor.
fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    let bytes = size_of::<T>();
    // SAFETY: the attributes are as long as said and readable, and so is what they point to.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_ref(attributes), bytes) };
    match RawFd::try_from(answer) {
        // SAFETY: a new descriptor, nobody else's.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn refused(what: &str) -> impl FnOnce(io::Error) -> LabError {
    LabError::os(format!("building the lab's switch: the kernel refuses {what}"))
}
