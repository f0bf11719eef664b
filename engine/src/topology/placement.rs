//! Where engines run: cores of this process on the node of the NIC, in the order of their use.
//!
//! Everything is read from `/sys/devices/system` (Documentation/ABI/stable/sysfs-devices-node and
//! sysfs-devices-system-cpu): one file for each core, and two for each node.

use std::fmt;
use std::fs;
use std::path::Path;

use super::cores::on_cores;
use crate::settings::{Cores, ValueKind as _};

/// A core (logical processor) that engines may run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuCore {
    number: usize,
    /// Distance of its node from that of the NIC, as the firmware reports it; equal for all nodes
    /// if it reports none.
    distance: u32,
    /// How many hardware threads of the same physical core have lower numbers.
    sibling: usize,
}

/// A NUMA node.
struct NumaNode {
    cores: Vec<usize>,
    distance: u32,
}

/// The cores that engines of a process may use, the best first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// In the order of their use: by node, the NIC's first, then one hardware thread of each
    /// physical core before the second ones.
    cores: Vec<usize>,
    /// How many of them are on the nearest node that has any.
    near: usize,
}

impl Placement {
    /// Places dedicated engines of a process that may run on `allowed` except `reserved`, with a
    /// NIC on `node` if that is known.
    ///
    /// If all allowed cores are reserved, the reservation is ignored: engines must run somewhere.
    pub fn of_host(allowed: &[usize], reserved: &[usize], node: Option<u32>) -> Self {
        Self::read(Path::new("/sys/devices/system"), allowed, reserved, node)
    }

    fn read(system: &Path, allowed: &[usize], reserved: &[usize], node: Option<u32>) -> Self {
        let nodes = nodes(system, node);
        let distance = |core: usize| {
            nodes.iter().find(|it| it.cores.contains(&core)).map_or(u32::MAX, |it| it.distance)
        };
        let sibling = |core: usize| {
            let path = format!("cpu/cpu{core}/topology/thread_siblings_list");
            list(&system.join(path)).iter().filter(|other| **other < core).count()
        };
        let free: Vec<usize> =
            allowed.iter().filter(|core| !reserved.contains(core)).copied().collect();
        let usable = if free.is_empty() { allowed.to_vec() } else { free };
        let mut cores: Vec<CpuCore> = usable
            .into_iter()
            .map(|number| CpuCore { number, distance: distance(number), sibling: sibling(number) })
            .collect();
        cores.sort_by_key(|core| (core.distance, core.sibling, core.number));
        let nearest = cores.first().map_or(0, |core| core.distance);
        Self {
            near: cores.iter().filter(|core| core.distance == nearest).count(),
            cores: cores.iter().map(|core| core.number).collect(),
        }
    }

    /// Returns the cores, the best first. Empty if the system does not report them.
    pub fn cores(&self) -> &[usize] {
        &self.cores
    }

    /// Returns the cores on the node of the NIC, or on the nearest one that the process may use.
    /// Threads of dedicated engines run there.
    ///
    /// Not one core each: other processes may have the same cores (ranks that a launcher binds to a
    /// socket, or not at all), and threads of the application may be bound to any of them. Two that
    /// spin on one core while others are idle would be worse than a thread that moves. The setting
    /// `pin_cores` overrides this.
    pub fn near(&self) -> &[usize] {
        &self.cores[..self.near]
    }

    /// Runs `make`, whose memory is to be on the node of the NIC: pages are where they are touched
    /// first. The calling thread runs there meanwhile, if it may.
    pub(crate) fn with_memory<T>(&self, make: impl FnOnce() -> T) -> T {
        if self.near == self.cores.len() {
            // All cores are equally near, or the distances are unknown.
            return make();
        }
        on_cores(self.near(), make)
    }
}

/// For display: `cores 2-5,8 (2-5 nearest to the NIC)`.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = ranges(&self.cores);
        match self.near {
            0 => f.write_str("the system reports no cores"),
            near if near == self.cores.len() => write!(f, "cores {all}"),
            _ => write!(f, "cores {all} ({} nearest to the NIC)", ranges(self.near())),
        }
    }
}

/// The nodes of the host, with their distances from `from`, or equal ones where that is not known.
fn nodes(system: &Path, from: Option<u32>) -> Vec<NumaNode> {
    let row = from.map(|from| system.join(format!("node/node{from}/distance")));
    let row = row.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    let mut row = row.split_whitespace().map(|text| text.parse().unwrap_or(0));
    let online = list(&system.join("node/online")).into_iter();
    let node = |number: usize| NumaNode {
        cores: list(&system.join(format!("node/node{number}/cpulist"))),
        distance: row.next().unwrap_or(0),
    };
    online.map(node).collect()
}

/// A list of the kernel's such as `0-3,8`; empty if it cannot be read.
fn list(path: &Path) -> Vec<usize> {
    let text = fs::read_to_string(path).unwrap_or_default();
    Cores::parse(text.trim()).unwrap_or_default()
}

/// Cores as the kernel lists them, ascending.
fn ranges(cores: &[usize]) -> String {
    let mut sorted = cores.to_vec();
    sorted.sort_unstable();
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for core in sorted {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => parts.push((core, core)),
        }
    }
    let shown = parts.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    shown.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use rustix::thread::CpuSet;

    use super::*;
    use crate::topology::cores;

    /// Two nodes of two physical cores with two hardware threads each: 0, 1, 4, 5 and 2, 3, 6, 7.
    fn host() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: String, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("node/online".into(), "0-1\n");
        for (node, list, distance) in [(0, "0-1,4-5\n", "10 21\n"), (1, "2-3,6-7\n", "21 10\n")] {
            write(format!("node/node{node}/cpulist"), list);
            write(format!("node/node{node}/distance"), distance);
        }
        for core in 0..8 {
            let path = format!("cpu/cpu{core}/topology/thread_siblings_list");
            write(path, &format!("{},{}\n", core % 4, core % 4 + 4));
        }
        root
    }

    const ALL: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

    #[test]
    fn the_node_of_the_nic_comes_first_and_physical_cores_before_their_second_threads() {
        let host = host();
        let of = |node| Placement::read(host.path(), &ALL, &[], node);
        assert_eq!(of(Some(0)).cores(), [0, 1, 4, 5, 2, 3, 6, 7]);
        assert_eq!(of(Some(1)).cores(), [2, 3, 6, 7, 0, 1, 4, 5]);
        assert_eq!(of(Some(1)).near(), [2, 3, 6, 7]);
        assert_eq!(of(Some(1)).to_string(), "cores 0-7 (2-3,6-7 nearest to the NIC)");
        // The node of the NIC is unknown.
        assert_eq!(of(None).cores(), ALL);
        assert_eq!(of(None).near().len(), 8);
        assert_eq!(of(None).to_string(), "cores 0-7");
    }

    #[test]
    fn only_what_is_allowed_and_not_reserved_is_used() {
        let host = host();
        let of = |allowed: &[usize], reserved: &[usize]| {
            Placement::read(host.path(), allowed, reserved, Some(1)).cores().to_vec()
        };
        assert_eq!(of(&[0, 1, 2], &[]), [2, 0, 1]);
        assert_eq!(of(&ALL, &[2, 3]), [6, 7, 0, 1, 4, 5]);
        assert_eq!(of(&[0, 1], &[]), [0, 1], "none on the node of the NIC");
        assert_eq!(of(&[2, 3], &[3, 2]), [2, 3], "all of them are reserved");
        assert_eq!(of(&[], &[]), [0; 0]);
    }

    #[test]
    fn missing_information_gives_no_preference() {
        let host = host();
        // A core without a node comes last.
        let odd = Placement::read(host.path(), &[0, 8], &[], Some(0));
        assert_eq!((odd.cores(), odd.near()), (&[0, 8][..], &[0][..]));
        let silent = Placement::read(Path::new("/nonexistent"), &[5, 4], &[], Some(1));
        assert_eq!((silent.cores(), silent.near()), (&[4, 5][..], &[4, 5][..]));
        let nothing = Placement::read(Path::new("/nonexistent"), &[], &[], Some(1));
        assert_eq!(nothing.near(), [0; 0]);
        assert_eq!(nothing.to_string(), "the system reports no cores");
    }

    #[test]
    fn thread_moves_while_it_allocates_memory() {
        let before = cores();
        let mut here = Placement::of_host(&before, &[], None);
        assert_eq!(here.cores().len(), before.len());
        assert_eq!(here.with_memory(cores), before, "one node");
        if before.len() > 1 {
            here.near = 1;
            assert_eq!(here.with_memory(cores), here.near());
            assert_eq!(cores(), before);
            let failed = std::panic::catch_unwind(|| here.with_memory(|| panic!("on purpose")));
            assert!(failed.is_err() && cores() == before);
        }
        // A call that the kernel refuses has no effect.
        here.cores = vec![CpuSet::MAX_CPU - 1, 0];
        here.near = 1;
        assert_eq!(here.with_memory(cores), before);
        assert_eq!(cores(), before);
    }
}
