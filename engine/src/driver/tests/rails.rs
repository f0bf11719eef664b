//! Several rails: who sends from where, and who is let in.

use std::net::IpAddr;

use crate::types::{Rail, RailRole};

/// A rail for tests.
pub(super) fn rail(address: IpAddr, nic_index: u32) -> Rail {
    let nic = "lo".to_owned();
    Rail { nic, nic_index, address, speed_mbps: None, mtu: None, role: RailRole::Ordinary }
}
