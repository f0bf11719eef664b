//! What is on a NIC, and getting our program there.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use libbpf_rs::MapHandle;

use crate::error::JoinError;
use crate::folder::{Gate, RUN_DIR, Users};
use crate::nic::{AttachMode, Attachment, Mode};
use crate::pins::Pins;
use crate::privileges::Missing;
use crate::program::{self, FAMILY, Kind, Loaded, Maps, NAME, plain};
use crate::sys::bpf::{self, Attached};

/// How long a program may outlive the process that was killed.
const DYING: Duration = Duration::from_secs(1);

/// A NIC that is being joined.
pub(crate) struct Site {
    pub(crate) name: String,
    pub(crate) ifindex: u32,
    pub(crate) driver: String,
    pub(crate) wanted: AttachMode,
    pub(crate) kind: Kind,
    pub(crate) pins: Option<Pins>,
}

impl Site {
    /// Joins the program that is there, or attaches it, and returns what the driver can do. Under
    /// the lock.
    pub(crate) fn settle(
        &self,
        users: &Users,
        gate: &Gate,
    ) -> Result<(Attachment, u64), JoinError> {
        let is_alone = users.is_alone(gate);
        if is_alone && let Some(pins) = &self.pins {
            // What killed processes left.
            pins.take_off();
        }
        let there = self.query(is_alone)?;
        let attachment = match there.id() {
            Some(id) => self.meet(id, mode_of(&there), is_alone)?,
            None => self.begin()?,
        };
        Ok((attachment, there.features))
    }

    /// What is attached. Where we are alone, a program of ours is about to go with the process that
    /// was killed last: the kernel gives locks back before it.
    fn query(&self, is_alone: bool) -> Result<Attached, JoinError> {
        let deadline = Instant::now() + DYING;
        loop {
            let there = bpf::query(self.ifindex)
                .map_err(JoinError::os("asking for the XDP program of the NIC"))?;
            let may_go = |id| is_alone && name_of(id).is_none_or(|name| name.starts_with(FAMILY));
            if !there.id().is_some_and(may_go) || Instant::now() >= deadline {
                return Ok(there);
            }
            sleep(Duration::from_millis(2));
        }
    }

    /// Shares the program that is there, if it is ours.
    fn meet(&self, id: u32, mode: Mode, is_alone: bool) -> Result<Attachment, JoinError> {
        let (link, maps) = match self.by_pins(id) {
            Ok(found) => found,
            Err(not_pinned) => self.by_id(id, mode, not_pinned)?,
        };
        if is_alone {
            // To leave would be to take it off them.
            return Err(self.out_of_reach(io::Error::other("its users hold no locks here")));
        }
        let is_wanted = match self.wanted {
            AttachMode::Auto => true,
            AttachMode::Native => mode == Mode::Native,
            AttachMode::Generic => mode == Mode::Generic,
        };
        if !is_wanted {
            return Err(JoinError::ModeInUse { nic: self.name.clone(), has: mode });
        }
        Ok(Attachment { link, program_id: id, mode, maps })
    }

    /// What is pinned, if that is what is attached.
    fn by_pins(&self, id: u32) -> io::Result<(OwnedFd, Maps)> {
        let pins = self.pins.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let link = pins.open("link")?;
        let info = bpf::link_info(link.as_fd())?;
        if !info.is_xdp || info.program_id != id || info.ifindex != self.ifindex {
            return Err(io::ErrorKind::NotFound.into());
        }
        let maps = Maps {
            claims: pins.map("claims")?,
            sockets: pins.map("sockets")?,
            counters: pins.map("counters")?,
            faults: pins.map("faults").ok(),
        };
        Ok((link, maps))
    }

    /// What is attached, by its ids; and what it is, if it is not ours.
    fn by_id(
        &self,
        id: u32,
        mode: Mode,
        not_pinned: io::Error,
    ) -> Result<(OwnedFd, Maps), JoinError> {
        let nic = || self.name.clone();
        let Ok(program) = bpf::program_by_id(id) else {
            // Without CAP_SYS_ADMIN its name is hidden. Pins would show that it is ours.
            if not_pinned.kind() == io::ErrorKind::PermissionDenied {
                return Err(self.out_of_reach(not_pinned));
            }
            let program = format!("with id {id}");
            return Err(JoinError::Foreign { nic: nic(), program, mode });
        };
        let info = bpf::program_info(program.as_fd())
            .map_err(JoinError::os("asking what the XDP program of the NIC is"))?;
        let program = format!("`{}` (id {})", info.name, info.id);
        if info.name != NAME {
            return Err(if info.name.starts_with(FAMILY) {
                JoinError::OtherVersion { nic: nic(), program }
            } else {
                JoinError::Foreign { nic: nic(), program, mode }
            });
        }
        let mut maps = Vec::new();
        for id in info.map_ids {
            maps.push(MapHandle::from_map_id(id).map_err(|error| self.out_of_reach(plain(error)))?);
        }
        let missing = || self.out_of_reach(io::ErrorKind::NotFound.into());
        let mut take = |name: &str| {
            use libbpf_rs::MapCore as _;
            let at = maps.iter().position(|map| map.name() == name)?;
            Some(maps.swap_remove(at))
        };
        let maps = Maps {
            claims: take("claims").ok_or_else(missing)?,
            sockets: take("sockets").ok_or_else(missing)?,
            counters: take("counters").ok_or_else(missing)?,
            faults: take("faults"),
        };
        let link = bpf::link_of_program(id).map_err(|error| self.out_of_reach(error))?;
        Ok((link, maps))
    }

    fn out_of_reach(&self, source: io::Error) -> JoinError {
        JoinError::OutOfReach { nic: self.name.clone(), run_dir: RUN_DIR, source }
    }

    /// Loads, attaches and pins the program.
    fn begin(&self) -> Result<Attachment, JoinError> {
        let loaded = program::load(self.kind, &self.name)?;
        let (link, mode) = self.attach(loaded.program.as_fd())?;
        let info = bpf::link_info(link.as_fd())
            .map_err(JoinError::os("asking about the link just made"))?;
        self.pin(&loaded, link.as_fd());
        Ok(Attachment { link, program_id: info.program_id, mode, maps: loaded.maps })
    }

    fn attach(&self, program: BorrowedFd<'_>) -> Result<(OwnedFd, Mode), JoinError> {
        let (native, generic) =
            ((bpf::ATTACH_NATIVE, Mode::Native), (bpf::ATTACH_GENERIC, Mode::Generic));
        let order: &[(u32, Mode)] = match self.wanted {
            AttachMode::Native => &[native],
            AttachMode::Generic => &[generic],
            AttachMode::Auto if is_slow_natively(&self.driver) => &[generic],
            AttachMode::Auto => &[native, generic],
        };
        let mut refusal = io::Error::from(io::ErrorKind::Unsupported);
        for &(flags, mode) in order {
            match bpf::link_create(program, self.ifindex, flags) {
                Ok(link) => return Ok((link, mode)),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(JoinError::Privileges {
                        nic: self.name.clone(),
                        doing: "attaching the XDP program",
                        missing: Missing::look(),
                    });
                }
                Err(error) => refusal = error,
            }
        }
        Err(JoinError::Unsupported {
            nic: self.name.clone(),
            driver: self.driver.clone(),
            wanted: self.wanted,
            source: refusal,
        })
    }

    /// Gives everything names, if it can be done for all.
    fn pin(&self, loaded: &Loaded, link: BorrowedFd<'_>) {
        let Some(pins) = &self.pins else { return };
        // Nothing was attached, so what is there is of a program that was taken off.
        pins.remove();
        let all = || -> io::Result<()> {
            pins.create()?;
            pins.pin("program", loaded.program.as_fd())?;
            pins.pin("claims", loaded.maps.claims.as_fd())?;
            pins.pin("sockets", loaded.maps.sockets.as_fd())?;
            pins.pin("counters", loaded.maps.counters.as_fd())?;
            if let Some(faults) = &loaded.maps.faults {
                pins.pin("faults", faults.as_fd())?;
            }
            // Last: who finds a link finds the rest.
            pins.pin("link", link)
        };
        // Without names it works, too, among processes that need none.
        if all().is_err() {
            pins.remove();
        }
    }
}

/// Whether a driver is better served in the kernel's stack: veth takes segmentation offload from
/// TCP while a program runs in it.
pub(crate) fn is_slow_natively(driver: &str) -> bool {
    driver == "veth"
}

/// The name of a program, if this process may ask.
fn name_of(id: u32) -> Option<String> {
    let program = bpf::program_by_id(id).ok()?;
    Some(bpf::program_info(program.as_fd()).ok()?.name)
}

pub(crate) fn mode_of(there: &Attached) -> Mode {
    if there.generic != 0 {
        Mode::Generic
    } else if there.native != 0 {
        Mode::Native
    } else {
        Mode::Offloaded
    }
}
