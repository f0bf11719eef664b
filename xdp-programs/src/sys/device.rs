//! Questions about network interfaces, by ioctl.

use std::ffi::CStr;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, BorrowedFd};

const ETHTOOL_GDRVINFO: u32 = 3;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GRXRINGS: u32 = 0x2d;
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
const ETHTOOL_GRXFHINDIR: u32 = 0x38;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; 32],
    bus: [u8; 32],
    eeprom: [u8; 32],
    reserved: [u8; 12],
    lengths: [u32; 5],
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    rx_max: u32,
    tx_max: u32,
    other_max: u32,
    combined_max: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_rxnfc`, as far as `ETHTOOL_GRXRINGS` uses it, in its full size.
#[repr(C)]
struct RxRings {
    command: u32,
    flow_type: u32,
    rings: u64,
    rest: [u64; 32],
}

/// `ETH_FLAG_NTUPLE`.
const FLAG_NTUPLE: u32 = 1 << 27;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Entries of an indirection table that are read at most; those of today's NICs have up to 2048.
const SPREAD_MAX: usize = 4096;

/// `struct ethtool_rxfh_indir` with room for a table.
#[repr(C)]
struct Spread {
    command: u32,
    size: u32,
    queues: [u32; SPREAD_MAX],
}

/// Rules that send a flow to a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rules {
    /// The NIC has none.
    None,
    /// It has, and they are switched off.
    Off,
    On,
}

/// An interface as a socket's network namespace sees it.
pub(crate) struct Device<'socket> {
    socket: BorrowedFd<'socket>,
    request: libc::ifreq,
}

impl<'socket> Device<'socket> {
    /// The interface with this index. `socket` is of any network protocol.
    ///
    /// # Errors
    ///
    /// `ENODEV` if there is none in the namespace that the socket was made in.
    pub(crate) fn find(socket: BorrowedFd<'socket>, ifindex: u32) -> io::Result<Self> {
        // SAFETY: plain numbers and null pointers, of which zero is one.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = ifindex.cast_signed();
        ioctl(socket, libc::SIOCGIFNAME, &mut request)?;
        Ok(Self { socket, request })
    }

    /// What it is called now.
    pub(crate) fn name(&self) -> String {
        // SAFETY: `c_char` has the size and alignment of `u8`, and every bit pattern is one.
        let name = unsafe { &*(&raw const self.request.ifr_name).cast::<[u8; libc::IFNAMSIZ]>() };
        CStr::from_bytes_until_nul(name).unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether it is set up (`IFF_UP`), with or without carrier.
    pub(crate) fn is_up(&mut self) -> io::Result<bool> {
        ioctl(self.socket, libc::SIOCGIFFLAGS, &mut self.request)?;
        // SAFETY: the kernel just wrote the flags there.
        let flags = unsafe { self.request.ifr_ifru.ifru_flags };
        Ok(i32::from(flags) & libc::IFF_UP != 0)
    }

    /// Name of its driver; empty where it has none, as `lo`.
    pub(crate) fn driver(&mut self) -> String {
        // SAFETY: plain numbers, of which zero is one.
        let mut info: DriverInfo = unsafe { mem::zeroed() };
        info.command = ETHTOOL_GDRVINFO;
        if self.ethtool(&mut info).is_err() {
            return String::new();
        }
        let name = CStr::from_bytes_until_nul(&info.driver).unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Receive queues that are in use now, at least 1.
    pub(crate) fn queues(&mut self) -> u32 {
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        if self.ethtool(&mut channels).is_ok() && channels.rx + channels.combined > 0 {
            return channels.rx + channels.combined;
        }
        let mut rings =
            RxRings { command: ETHTOOL_GRXRINGS, flow_type: 0, rings: 0, rest: [0; 32] };
        match self.ethtool(&mut rings) {
            Ok(()) => u32::try_from(rings.rings).unwrap_or(u32::MAX).max(1),
            Err(_) => 1,
        }
    }

    /// Receive queues that it could have; `None` where the driver does not report it.
    pub(crate) fn queues_max(&mut self) -> Option<u32> {
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        self.ethtool(&mut channels).ok()?;
        Some(channels.rx_max.max(channels.combined_max)).filter(|&most| most > 0)
    }

    /// Whether it can be configured to send a flow to a queue.
    pub(crate) fn rules(&mut self) -> Rules {
        let mut count =
            RxRings { command: ETHTOOL_GRXCLSRLCNT, flow_type: 0, rings: 0, rest: [0; 32] };
        if self.ethtool(&mut count).is_err() {
            return Rules::None;
        }
        let mut flags = Value { command: ETHTOOL_GFLAGS, data: 0 };
        match self.ethtool(&mut flags) {
            Ok(()) if flags.data & FLAG_NTUPLE != 0 => Rules::On,
            _ => Rules::Off,
        }
    }

    /// Queues that its hash spreads flows over, each once and the least number first; `None` where
    /// that is not to be had.
    pub(crate) fn hash_queues(&mut self) -> Option<Vec<u32>> {
        let mut spread = Spread { command: ETHTOOL_GRXFHINDIR, size: 0, queues: [0; SPREAD_MAX] };
        self.ethtool(&mut spread).ok()?;
        let size = spread.size as usize;
        if !(1..=SPREAD_MAX).contains(&size) {
            return None;
        }
        self.ethtool(&mut spread).ok()?;
        let mut queues = spread.queues[..size].to_vec();
        queues.sort_unstable();
        queues.dedup();
        Some(queues)
    }

    /// Its largest packet, in bytes.
    pub(crate) fn mtu(&mut self) -> io::Result<u32> {
        ioctl(self.socket, libc::SIOCGIFMTU, &mut self.request)?;
        // SAFETY: the kernel just wrote the number there.
        Ok(unsafe { self.request.ifr_ifru.ifru_mtu }.cast_unsigned())
    }

    /// `command` must be one of the structures above, which are as large as what the kernel reads
    /// and writes for the number that they begin with.
    fn ethtool<T>(&mut self, command: &mut T) -> io::Result<()> {
        self.request.ifr_ifru.ifru_data = (&raw mut *command).cast();
        ioctl(self.socket, libc::SIOCETHTOOL, &mut self.request)
    }
}

fn ioctl(socket: BorrowedFd<'_>, what: libc::c_ulong, on: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: `on` is what these requests take, and a pointer in it outlives the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), what as _, &raw mut *on) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
