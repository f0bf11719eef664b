//! Rails between two namespaces, by `ip` of iproute2.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::io::{FdFlags, fcntl_setfd};

use super::namespace::{Namespace, move_in};
use super::{Host, LabError, LabSpec, address, nic};

/// How long a rail may take to come up, in seconds. Takes milliseconds unless the machine is ill.
const UP_WITHIN_S: u64 = 5;

/// Bytes of an Ethernet payload on every rail.
const MTU_BYTES: u32 = 1500;

/// Lays every rail of `spec` between the two hosts and waits until they carry traffic.
pub(crate) fn connect(hosts: &[Arc<Namespace>; 2], spec: &LabSpec) -> Result<(), LabError> {
    let [a, b] = hosts;
    // `ip` inherits this descriptor, so no name for the other namespace is needed.
    let peer = format!("/proc/self/fd/{}", b.as_fd().as_raw_fd());
    let mut pairs = String::new();
    for rail in 0..spec.rails {
        let nic = nic(rail);
        let (mac_a, mac_b) = (mac(Host::A, rail), mac(Host::B, rail));
        let _ = writeln!(
            pairs,
            "link add name {nic} index {} address {mac_a} mtu {MTU_BYTES} type veth \
             peer name {nic} index {} address {mac_b} mtu {MTU_BYTES} netns {peer}",
            index(Host::A, rail),
            index(Host::B, rail)
        );
    }
    ip(a, b, &pairs)?;
    ip(a, b, &addresses(Host::A, spec))?;
    ip(b, a, &addresses(Host::B, spec))?;
    for host in hosts {
        host.enter(|| (0..spec.rails).try_for_each(|rail| wait_up(&nic(rail))))??;
    }
    Ok(())
}

/// Asks `ip` its version, to learn whether it is there.
pub(crate) fn tool_version() -> Result<(), LabError> {
    let status = Command::new("ip").arg("-Version").stdout(Stdio::null()).status();
    status.map(drop).map_err(|source| LabError::NoTool { source })
}

/// The commands that give `host` its addresses and switch its interfaces on.
fn addresses(host: Host, spec: &LabSpec) -> String {
    let mut batch = String::from("link set dev lo up\n");
    for rail in 0..spec.rails {
        let (nic, address) = (nic(rail), address(host, rail));
        let _ = writeln!(batch, "link set dev {nic} addrgenmode none");
        let _ = writeln!(batch, "addr add {address}/24 dev {nic}");
        let _ = writeln!(batch, "link set dev {nic} up");
    }
    batch
}

/// The interface's index. Different in the two hosts, because the kernel reports the carrier of a
/// veth up to a second late where its peer has the same index.
fn index(host: Host, rail: u8) -> u32 {
    100 * (u32::from(host.index()) + 1) + u32::from(rail)
}

/// A unicast, locally administered address: bridges drop frames from multicast sources.
fn mac(host: Host, rail: u8) -> String {
    format!("02:52:52:00:{rail:02x}:{:02x}", host.index() + 1)
}

/// Runs `batch` by `ip` inside `inside`; its process has the descriptor of `other` too.
fn ip(inside: &Arc<Namespace>, other: &Arc<Namespace>, batch: &str) -> Result<(), LabError> {
    let mut command = Command::new("ip");
    command.args(["-batch", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let (inside, other) = (Arc::clone(inside), Arc::clone(other));
    let before_exec = move || {
        move_in(inside.as_fd())?;
        Ok(fcntl_setfd(&*other, FdFlags::empty())?)
    };
    // SAFETY: the closure makes system calls only; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(before_exec) };
    let mut child = command.spawn().map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => LabError::NoTool { source },
        _ => LabError::Os { doing: "running `ip` in a host of the lab".to_owned(), source },
    })?;
    let fed = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(batch.as_bytes()));
    let output = child.wait_with_output().map_err(LabError::os("waiting for `ip`"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        return Err(LabError::Refused { stderr });
    }
    fed.map_err(LabError::os("writing to `ip`"))
}

/// Waits until `nic` of the calling thread's namespace can carry traffic.
fn wait_up(nic: &str) -> Result<(), LabError> {
    let path = format!("/sys/class/net/{nic}/operstate");
    let deadline = Instant::now() + Duration::from_secs(UP_WITHIN_S);
    loop {
        let state = fs::read_to_string(&path).map_err(LabError::os(format!("reading {path}")))?;
        if state.trim() == "up" {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let state = state.trim().to_owned();
            return Err(LabError::Down { nic: nic.to_owned(), state, waited_s: UP_WITHIN_S });
        }
        thread::sleep(Duration::from_millis(1));
    }
}
