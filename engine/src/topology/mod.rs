//! NIC discovery and selection, cores.
