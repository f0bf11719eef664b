//! NICs, packages, caches and cores, as hwloc sees them.

use std::fmt;

use ringrail::topology::{Candidate, Machine};
use serde::Serialize;

/// The machine around the NICs.
#[derive(Serialize)]
pub(super) struct MachineInfo {
    /// Why hwloc tells nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    nics: Vec<NicPlace>,
    cores: Vec<CoreInfo>,
}

/// Where a NIC is.
#[derive(Serialize)]
struct NicPlace {
    nic: String,
    /// Packages of the cores that are nearest to it.
    packages: Vec<usize>,
    /// The logical processors that are; `None`: it is no device, or hwloc does not know it.
    processors: Option<Vec<usize>>,
}

/// A physical core.
#[derive(Serialize)]
struct CoreInfo {
    package: Option<usize>,
    numa_nodes: Vec<usize>,
    /// Of the largest cache above it.
    cache_bytes: Option<u64>,
    /// The logical processors that share that.
    cache_processors: Vec<usize>,
    /// Its logical processors.
    processors: Vec<usize>,
}

impl MachineInfo {
    pub(super) fn gather<'a>(candidates: impl Iterator<Item = &'a Candidate>) -> Self {
        let machine = match Machine::read() {
            Ok(machine) => machine,
            Err(error) => {
                let refused = Some(error.to_string());
                return Self { refused, nics: Vec::new(), cores: Vec::new() };
            }
        };
        let core = |core: ringrail::topology::PhysicalCore| {
            let (cache_bytes, cache_processors) = core.cache.unzip();
            CoreInfo {
                package: core.package,
                numa_nodes: core.numa_nodes,
                cache_bytes,
                cache_processors: cache_processors.unwrap_or_default(),
                processors: core.threads,
            }
        };
        let cores: Vec<CoreInfo> = machine.cores().into_iter().map(core).collect();
        let place = |nic: &str| {
            let processors = machine.near_nic(nic);
            let near = |core: &&CoreInfo| {
                let near = processors.as_deref().unwrap_or_default();
                core.processors.iter().any(|it| near.contains(it))
            };
            let mut packages: Vec<usize> =
                cores.iter().filter(near).filter_map(|core| core.package).collect();
            packages.dedup();
            NicPlace { nic: nic.to_owned(), packages, processors }
        };
        let mut nics: Vec<NicPlace> = Vec::new();
        for candidate in candidates {
            if !nics.iter().any(|known| known.nic == candidate.nic.name) {
                nics.push(place(&candidate.nic.name));
            }
        }
        Self { refused: None, nics, cores }
    }
}

impl fmt::Display for MachineInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(refused) = &self.refused {
            return write!(f, "  {refused}");
        }
        for NicPlace { nic, packages, processors } in &self.nics {
            match processors {
                Some(processors) => {
                    writeln!(f, "  {nic}: package {packages:?}, nearest cores {processors:?}")?;
                }
                None => writeln!(f, "  {nic}: no device, so no core is nearer than others")?,
            }
        }
        for (at, core) in self.cores.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            let package = core.package.map_or("unknown".to_owned(), |package| package.to_string());
            write!(
                f,
                "  core {:?}: package {package}, node {:?}",
                core.processors, core.numa_nodes
            )?;
            if let Some(bytes) = core.cache_bytes {
                let kib = bytes / 1024;
                write!(f, ", cache of {kib} KiB shared by {:?}", core.cache_processors)?;
            }
        }
        Ok(())
    }
}
