//! What can happen to the rails of a lab that runs.
//!
//! Faults in the switch are silent: no interface loses its carrier, nobody is told. They take
//! effect at once, by a store to memory, for packets under way too that have not
//! reached the gate. Two faults of one rail and direction are one: the later.

use std::ffi::c_short;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::gates::Passage;
use super::namespace::Namespace;
use super::tools::ip;
use super::wiring::{lay_anew, routes};
use super::{Host, Lab, LabError, nic};

/// The share of packets that a brown-out drops.
pub const BROWN_OUT: f64 = 0.5;

impl Lab {
    /// The switch drops this share of the packets from `from` on `rail`, 0 to 1, until told
    /// otherwise. A packet of segmentation offload (up to 64 KiB) is dropped as a whole.
    ///
    /// # Errors
    ///
    /// [`LabError::NoSwitch`].
    ///
    /// # Panics
    ///
    /// If there is no such rail.
    pub fn set_loss(&self, rail: u8, from: Host, share: f64) -> Result<(), LabError> {
        self.check_rail(rail);
        let switch =
            self.switch.as_ref().ok_or(LabError::NoSwitch { what: "a fault of a rail" })?;
        switch.set_loss(rail, from, share);
        Ok(())
    }

    /// Everything on `rail` vanishes in the switch, both ways.
    ///
    /// # Errors
    ///
    /// As [`Self::set_loss`], and it panics likewise.
    pub fn blackhole(&self, rail: u8) -> Result<(), LabError> {
        self.set_loss_both(rail, 1.0)
    }

    /// Everything that `from` sends on `rail` vanishes in the switch; the other way is open.
    ///
    /// # Errors
    ///
    /// As [`Self::set_loss`], and it panics likewise.
    pub fn blackhole_one_way(&self, rail: u8, from: Host) -> Result<(), LabError> {
        self.set_loss(rail, from, 1.0)
    }

    /// Half of the packets on `rail` vanish in the switch, both ways.
    ///
    /// # Errors
    ///
    /// As [`Self::set_loss`], and it panics likewise.
    pub fn brown_out(&self, rail: u8) -> Result<(), LabError> {
        self.set_loss_both(rail, BROWN_OUT)
    }

    /// The switch passes what it passed when the lab was built, on `rail`, both ways.
    ///
    /// # Errors
    ///
    /// As [`Self::set_loss`], and it panics likewise.
    pub fn heal(&self, rail: u8) -> Result<(), LabError> {
        self.set_loss_both(rail, self.spec.loss)
    }

    /// Blackholes and heals `rail` by turns, each for half of `period`, until `length` is over;
    /// then it is whole. Returns then.
    ///
    /// # Errors
    ///
    /// As [`Self::set_loss`], and it panics likewise.
    pub fn flap(&self, rail: u8, period: Duration, length: Duration) -> Result<(), LabError> {
        let end = Instant::now() + length;
        let mut turns = [Self::blackhole, Self::heal].into_iter().cycle();
        let mut next = Instant::now();
        while next < end {
            if let Some(turn) = turns.next() {
                turn(self, rail)?;
            }
            next += period / 2;
            let until = next.min(end);
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        self.heal(rail)
    }

    /// Packets on `rail` take so long from now on, either way. Those under way are not overtaken.
    ///
    /// # Errors
    ///
    /// [`LabError::NoWire`] where the lab was built without `delay` and `nat`.
    ///
    /// # Panics
    ///
    /// If there is no such rail.
    pub fn set_delay(&self, rail: u8, delay: Duration) -> Result<(), LabError> {
        self.check_rail(rail);
        match &self.switch {
            Some(switch) if switch.set_delay(rail, delay) => Ok(()),
            _ => Err(LabError::NoWire),
        }
    }

    /// What the switch has seen coming from `from` on `rail`.
    ///
    /// # Errors
    ///
    /// As [`Self::set_loss`], and it panics likewise.
    pub fn passage(&self, rail: u8, from: Host) -> Result<Passage, LabError> {
        self.check_rail(rail);
        let switch =
            self.switch.as_ref().ok_or(LabError::NoSwitch { what: "a count of packets" })?;
        Ok(switch.passage(rail, from))
    }

    /// Switches the interface of `rail` in `host` off, as `ip link set down` does: both ends lose
    /// their carrier, and the host is told.
    ///
    /// # Errors
    ///
    /// What the kernel refuses.
    ///
    /// # Panics
    ///
    /// If there is no such rail.
    pub fn link_down(&self, host: Host, rail: u8) -> Result<(), LabError> {
        self.check_rail(rail);
        self.handles[usize::from(host.index())].set_up(&nic(rail), false)
    }

    /// Switches the interface of `rail` in `host` on again.
    ///
    /// # Errors
    ///
    /// What the kernel refuses.
    ///
    /// # Panics
    ///
    /// If there is no such rail.
    pub fn link_up(&self, host: Host, rail: u8) -> Result<(), LabError> {
        self.check_rail(rail);
        self.handles[usize::from(host.index())].set_up(&nic(rail), true)?;
        // Routes by a router went with it.
        ip(&self.hosts[usize::from(host.index())], &[], &routes(host, &self.spec, rail))
    }

    /// Deletes the interfaces of `rail` in both hosts, which are told, and all that they had:
    /// addresses, routes, neighbours.
    ///
    /// # Errors
    ///
    /// What `ip` refuses.
    ///
    /// # Panics
    ///
    /// If there is no such rail, or the lab has a switch.
    pub fn remove_nics(&self, rail: u8) -> Result<(), LabError> {
        self.check_rail(rail);
        assert!(self.switch.is_none(), "the interfaces of a lab with a switch stay");
        ip(&self.hosts[0], &[], &format!("link del dev {}\n", nic(rail)))
    }

    /// Makes the interfaces of `rail` anew after [`Self::remove_nics`]: names and addresses are as
    /// before, indexes and MAC addresses are not. Returns when they carry traffic.
    ///
    /// # Errors
    ///
    /// As [`Self::remove_nics`], and it panics likewise.
    pub fn remake_nics(&self, rail: u8) -> Result<(), LabError> {
        self.check_rail(rail);
        assert!(self.switch.is_none(), "the interfaces of a lab with a switch stay");
        lay_anew(&self.hosts, &self.spec, rail)
    }

    fn set_loss_both(&self, rail: u8, share: f64) -> Result<(), LabError> {
        [Host::A, Host::B].into_iter().try_for_each(|host| self.set_loss(rail, host, share))
    }

    fn check_rail(&self, rail: u8) {
        assert!(rail < self.spec.rails, "rail {rail} of a lab of {} rails", self.spec.rails);
    }
}

/// A hold on the interfaces of a host from outside: a socket that is in its namespace for good.
#[derive(Debug)]
pub(crate) struct Handle {
    socket: OwnedFd,
}

impl Handle {
    pub(crate) fn of(namespace: &Arc<Namespace>) -> Result<Self, LabError> {
        let open = || {
            let flags = SocketFlags::CLOEXEC;
            socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)
        };
        let socket = namespace.enter(open)?;
        Ok(Self { socket: socket.map_err(LabError::os("opening a socket in a host of the lab"))? })
    }

    fn set_up(&self, nic: &str, is_up: bool) -> Result<(), LabError> {
        let doing = format!("switching {nic} {}", if is_up { "on" } else { "off" });
        self.change_flags(nic, is_up).map_err(LabError::os(doing))
    }

    fn change_flags(&self, nic: &str, is_up: bool) -> io::Result<()> {
        // SAFETY: all zeroes is an `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let name = request.ifr_name.iter_mut().zip(nic.bytes());
        name.for_each(|(to, byte)| *to = byte as libc::c_char);
        let ask = |code, request: &mut libc::ifreq| {
            // SAFETY: the request is an `ifreq` with a name that ends in 0, as both codes want.
            match unsafe { libc::ioctl(self.socket.as_raw_fd(), code, request) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        ask(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: SIOCGIFFLAGS has written this field of the union.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        let up = libc::IFF_UP as c_short;
        request.ifr_ifru.ifru_flags = if is_up { flags | up } else { flags & !up };
        ask(libc::SIOCSIFFLAGS, &mut request)
    }
}
