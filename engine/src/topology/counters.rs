//! What the NICs of rails count.

use std::io;

use crate::netlink::{self, Ethtool, NetlinkSocket};
use crate::types::rail::Rail;
use crate::types::statistics::{NicCounters, PauseCounters};

/// Reads the counters of NICs, those of one network namespace.
#[derive(Debug)]
pub(crate) struct NicReader {
    netlink: NetlinkSocket,
    /// `None`: this kernel has none.
    ethtool: Option<Ethtool>,
}

impl NicReader {
    /// For the network namespace of the calling thread.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { netlink: NetlinkSocket::open()?, ethtool: Ethtool::open().ok() })
    }

    /// Four system calls.
    pub(crate) fn read(&mut self, nic_index: u32) -> io::Result<NicCounters> {
        let counters = netlink::nic_counters(&mut self.netlink, nic_index)?;
        // Not every driver reports pauses.
        let pauses = self.ethtool.as_mut().and_then(|it| it.pauses(nic_index).ok().flatten());
        Ok(NicCounters {
            packets_received: counters.rx_packets,
            packets_sent: counters.tx_packets,
            bytes_received: counters.rx_bytes,
            bytes_sent: counters.tx_bytes,
            errors_received: counters.rx_errors,
            errors_sent: counters.tx_errors,
            dropped_received: counters.rx_dropped,
            dropped_sent: counters.tx_dropped,
            missed: counters.rx_missed_errors,
            pauses: pauses.map(|it| PauseCounters { sent: it.sent, received: it.received }),
        })
    }
}

impl Rail {
    /// What its NIC counted so far, asked of the kernel now, in the network namespace of the
    /// calling thread. Takes tens of microseconds.
    ///
    /// # Errors
    ///
    /// The NIC is gone, or no descriptor is left.
    pub fn nic_counters(&self) -> io::Result<NicCounters> {
        NicReader::open()?.read(self.nic_index)
    }
}
