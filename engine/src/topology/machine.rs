//! The machine as hwloc sees it (feature `hwloc`): packages, caches and cores, and where NICs are.
//!
//! Engines do not need it: placement reads `/sys`. This is for display, and for tests that compare
//! both.

use std::num::NonZeroU64;

use hwlocality::Topology;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::TypeFilter;

/// The error of hwloc.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "hwloc cannot read the topology of this host: {cause}; `lstopo` shows what it sees, and \
     HWLOC_COMPONENTS and HWLOC_XMLFILE change that"
)]
pub struct MachineError {
    cause: String,
}

/// A physical core.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PhysicalCore {
    /// The package (socket) that it is in, as the system numbers them.
    pub package: Option<usize>,
    /// The NUMA nodes that are nearest to it.
    pub numa_nodes: Vec<usize>,
    /// Bytes of the largest cache that it has or shares, and the logical processors that share it.
    pub cache: Option<(u64, Vec<usize>)>,
    /// Its logical processors (hardware threads), ascending, as the system numbers them.
    pub threads: Vec<usize>,
}

/// A snapshot of the machine.
#[derive(Debug)]
pub struct Machine(Topology);

impl Machine {
    /// Runs hwloc, which reads much of `/sys`: this takes milliseconds.
    ///
    /// # Errors
    /// hwloc fails; the error has its cause.
    pub fn read() -> Result<Self, MachineError> {
        let failed = |cause: String| MachineError { cause };
        let builder = Topology::builder();
        let builder = builder.with_io_type_filter(TypeFilter::KeepAll);
        let builder = builder.map_err(|error| failed(error.to_string()))?;
        builder.build().map(Self).map_err(|error| failed(error.to_string()))
    }

    /// Returns the physical cores that this process may use, in the order of hwloc: adjacent cores
    /// share more.
    pub fn cores(&self) -> Vec<PhysicalCore> {
        self.0.objects_with_type(ObjectType::Core).map(|core| self.core(core)).collect()
    }

    /// Returns the logical processors that are nearest to a NIC. `None` if hwloc does not know its
    /// location, as for NICs without a device (`lo`, veth, bridges).
    pub fn near_nic(&self, nic: &str) -> Option<Vec<usize>> {
        let devices = self.0.objects_with_type(ObjectType::OSDevice);
        let is_it = |device: &&TopologyObject| {
            device.name().is_some_and(|name| name.to_bytes() == nic.as_bytes())
        };
        let device = devices.into_iter().find(is_it)?;
        device.first_non_io_ancestor().map(processors)
    }

    /// The logical processors of a NUMA node.
    pub fn on_node(&self, node: usize) -> Vec<usize> {
        let mut nodes = self.0.objects_with_type(ObjectType::NUMANode);
        let found = nodes.find(|object| object.os_index() == Some(node));
        found.map(processors).unwrap_or_default()
    }

    fn core(&self, core: &TopologyObject) -> PhysicalCore {
        let package = core.first_ancestor_with_type(ObjectType::Package);
        let caches = core.ancestors().filter_map(|above| Some((cache_bytes(above)?, above)));
        let cache = caches.max_by_key(|(bytes, _)| *bytes);
        let mut nodes: Vec<usize> = core
            .nodeset()
            .map(|nodes| nodes.iter_set().map(usize::from).collect())
            .unwrap_or_default();
        nodes.sort_unstable();
        PhysicalCore {
            package: package.and_then(TopologyObject::os_index),
            numa_nodes: nodes,
            cache: cache.map(|(bytes, cache)| (bytes, processors(cache))),
            threads: processors(core),
        }
    }
}

/// The logical processors of an object, ascending.
fn processors(object: &TopologyObject) -> Vec<usize> {
    let set = object.cpuset();
    set.map(|set| set.iter_set().map(usize::from).collect()).unwrap_or_default()
}

/// Bytes of a cache of data.
fn cache_bytes(object: &TopologyObject) -> Option<u64> {
    match object.attributes() {
        Some(ObjectAttributes::Cache(cache)) if object.object_type().is_cpu_data_cache() => {
            cache.size().map(NonZeroU64::get)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Placement, cores};

    fn sorted(cores: &[usize]) -> Vec<usize> {
        let mut sorted = cores.to_vec();
        sorted.sort_unstable();
        sorted
    }

    /// Placement reads `/sys`; hwloc uses its own sources.
    #[test]
    fn placement_agrees_with_hwloc() {
        let machine = Machine::read().unwrap();
        let allowed = cores();
        let is_allowed = |core: &usize| allowed.contains(core);
        let physical = machine.cores();
        let all: Vec<usize> = physical.iter().flat_map(|core| core.threads.clone()).collect();
        let all: Vec<usize> = all.into_iter().filter(is_allowed).collect();
        assert_eq!(sorted(&all), allowed, "hwloc sees each logical processor once");

        for node in physical.iter().flat_map(|core| core.numa_nodes.clone()) {
            let placement = Placement::of_host(&allowed, &[], u32::try_from(node).ok());
            assert_eq!(sorted(placement.cores()), allowed, "node {node}");
            let there = machine.on_node(node).into_iter().filter(is_allowed);
            let there: Vec<usize> = there.collect();
            // A node without cores of this process has others that are the nearest ones.
            if !there.is_empty() {
                assert_eq!(sorted(placement.near()), there, "node {node}");
            }
        }
    }

    /// One hardware thread of each physical core is used before the second ones.
    #[test]
    fn placement_spreads_over_the_physical_cores_of_hwloc() {
        let machine = Machine::read().unwrap();
        let allowed = cores();
        let placement = Placement::of_host(&allowed, &[], None);
        let rank = |thread: usize| {
            let core = machine.cores().into_iter().find(|core| core.threads.contains(&thread));
            core.and_then(|core| core.threads.iter().position(|other| *other == thread))
        };
        let ranks: Vec<_> = placement.cores().iter().map(|thread| rank(*thread)).collect();
        assert!(ranks.iter().all(Option::is_some), "{placement}: {ranks:?}");
        assert!(ranks.is_sorted(), "{placement}: {ranks:?}");
    }

    #[test]
    fn caches_and_packages_hold_their_cores() {
        for core in Machine::read().unwrap().cores() {
            assert!(!core.threads.is_empty());
            if let Some((bytes, shared)) = &core.cache {
                assert!(
                    *bytes > 0 && core.threads.iter().all(|it| shared.contains(it)),
                    "{core:?}"
                );
            }
        }
        assert_eq!(Machine::read().unwrap().near_nic("no-such-nic"), None);
    }
}
