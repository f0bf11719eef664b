//! Loading the program.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{MapCore as _, MapHandle, ObjectBuilder, PrintLevel, set_print};

use crate::JoinError;
use crate::privileges::Missing;
use crate::sys::bpf;

/// What the program is called; the number is that of its interface (`bpf/shared.h`).
pub(crate) const NAME: &str = "ringrail_xdp_1";

/// What all versions of it are called.
pub(crate) const FAMILY: &str = "ringrail_xdp_";

/// An object file, aligned as ELF wants it.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

static PLAIN: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/ringrail.bpf.o")));
#[cfg(feature = "faults")]
static FAULTS: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/ringrail-faults.bpf.o")));

/// Which of the programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The one that ships.
    Plain,
    /// The one that drops and damages on demand.
    #[cfg(feature = "faults")]
    Faults,
}

/// The maps of a program.
#[derive(Debug)]
pub(crate) struct Maps {
    pub(crate) claims: MapHandle,
    pub(crate) sockets: MapHandle,
    pub(crate) counters: MapHandle,
    /// Only the program of tests has it.
    pub(crate) faults: Option<MapHandle>,
}

/// A program in the kernel, not attached to anything.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) program: OwnedFd,
    pub(crate) maps: Maps,
    pub(crate) instructions: usize,
    pub(crate) has_frags: bool,
}

/// What [`verify`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Verified {
    /// Length of the program, in BPF instructions.
    pub instructions: usize,
    /// Whether this kernel gives it frames that lie in several buffers, as jumbo frames do
    /// (Linux 5.18).
    pub has_frags: bool,
}

/// Loads the program through the kernel's verifier and drops it again. Nothing is attached and no
/// NIC is touched.
///
/// # Errors
///
/// [`JoinError::Privileges`], or [`JoinError::Rejected`] with the verifier's words.
pub fn verify() -> Result<Verified, JoinError> {
    let loaded = load(Kind::Plain, "any NIC")?;
    Ok(Verified { instructions: loaded.instructions, has_frags: loaded.has_frags })
}

/// Loads a program; without frames in several buffers where the kernel has none.
pub(crate) fn load(kind: Kind, nic: &str) -> Result<Loaded, JoinError> {
    let first = match try_load(kind, true) {
        Ok(loaded) => return Ok(loaded),
        Err(error) => error,
    };
    // EACCES is the verifier's.
    if first.0.raw_os_error() == Some(libc::EPERM) {
        let doing = "loading the XDP program";
        return Err(JoinError::Privileges { nic: nic.into(), doing, missing: Missing::look() });
    }
    try_load(kind, false).map_err(|_| JoinError::Rejected { source: first.0, log: first.1 })
}

/// One attempt; its error is the kernel's and the end of the messages on the way.
pub(crate) fn try_load(kind: Kind, has_frags: bool) -> Result<Loaded, (io::Error, String)> {
    // The listener is one for the whole process.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let before = set_print(Some((PrintLevel::Info, listen)));
    MESSAGES.with_borrow_mut(String::clear);
    let result = load_as(kind, has_frags);
    set_print(before);
    result.map_err(|error| {
        let last = MESSAGES.with_borrow(|messages| last_lines(messages));
        (error, last)
    })
}

fn load_as(kind: Kind, has_frags: bool) -> io::Result<Loaded> {
    let bytes = match kind {
        Kind::Plain => &PLAIN.0,
        #[cfg(feature = "faults")]
        Kind::Faults => &FAULTS.0,
    };
    let mut object = ObjectBuilder::default()
        .name("ringrail")
        .map_err(plain)?
        .open_memory(bytes)
        .map_err(plain)?;
    for mut map in object.maps_mut() {
        if map.name().as_encoded_bytes().ends_with(b".rodata") {
            // The only constant is `has_frags`.
            map.set_initial_value(&[u8::from(has_frags)]).map_err(plain)?;
        }
    }
    for mut program in object.progs_mut() {
        program.set_flags(if has_frags { bpf::HAS_FRAGS } else { 0 });
    }
    let object = object.load().map_err(plain)?;
    let program = object.progs().next().ok_or(io::ErrorKind::NotFound)?;
    let map = |name: &str| -> io::Result<Option<MapHandle>> {
        let found = object.maps().find(|map| map.name() == name);
        found.map(|map| MapHandle::try_from(&map).map_err(plain)).transpose()
    };
    let needed = |name: &str| map(name)?.ok_or(io::Error::from(io::ErrorKind::NotFound));
    Ok(Loaded {
        program: program.as_fd().try_clone_to_owned()?,
        instructions: program.insn_cnt(),
        maps: Maps {
            claims: needed("claims")?,
            sockets: needed("sockets")?,
            counters: needed("counters")?,
            faults: map("faults")?,
        },
        has_frags,
    })
}

/// The kernel's error behind one of libbpf-rs, which hides the number but writes it.
pub(crate) fn plain(error: libbpf_rs::Error) -> io::Error {
    const MARK: &str = "(os error ";
    let text = format!("{error:#}");
    let number = text.rfind(MARK).and_then(|at| text[at + MARK.len()..].split(')').next());
    match number.and_then(|number| number.parse().ok()) {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::other(text),
    }
}

thread_local! {
    /// Messages of libbpf to this thread, the verifier's log included.
    static MESSAGES: RefCell<String> = const { RefCell::new(String::new()) };
}

/// libbpf would print it on standard error.
fn listen(_level: PrintLevel, text: String) {
    MESSAGES.with_borrow_mut(|messages| messages.push_str(&text));
}

fn last_lines(messages: &str) -> String {
    let lines: Vec<&str> = messages.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(12)..].join(" | ")
}

#[cfg(test)]
mod tests;
