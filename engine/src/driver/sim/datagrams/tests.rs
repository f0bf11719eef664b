//! Driver calls under one kind of impairment at a time.

mod faults;
mod impairments;
mod queues;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use super::super::net::{Impairments, Net};
use super::super::{Shared, SimDriver};
use super::{DatagramCounts, DatagramImpairments};
use crate::driver::traits::{ConnectionIo, DATAGRAM_BYTES_MAX, DatagramIo, Driver, DriverEvent};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
/// Delay of a datagram.
const DELAY_NS: u64 = 5 * MICROSECOND;

/// Hosts with a process each, and a constant delay.
struct Bench {
    net: Shared,
    drivers: Vec<Option<SimDriver>>,
}

impl Bench {
    fn new(seed: u64, hosts: usize, datagrams: DatagramImpairments) -> Self {
        let impairments = Impairments { delay_ns: DELAY_NS, jitter_ns: 0, ..Impairments::ideal() };
        let net = Net::new(seed, impairments);
        net.borrow_mut().datagram_impairments = datagrams;
        let mut bench = Self { net, drivers: Vec::new() };
        for host in 0..hosts {
            let locator = SocketAddr::from(([127, 77, 0, host as u8], 20_000));
            bench.net.borrow_mut().add_host(locator);
            bench.drivers.push(None);
            bench.start(host);
        }
        bench
    }

    fn start(&mut self, host: usize) {
        let mut driver = SimDriver::new(&self.net, host);
        driver.open_datagrams(socket()).unwrap();
        self.drivers[host] = Some(driver);
    }

    /// Kills a process.
    fn kill(&mut self, host: usize) {
        self.drivers[host] = None;
    }

    fn locator(&self, host: usize) -> SocketAddr {
        self.net.borrow().locator(host)
    }

    fn counts(&self) -> DatagramCounts {
        self.net.borrow().datagram_counts()
    }

    fn now_ns(&self) -> u64 {
        self.net.borrow().now_ns()
    }

    /// Queues a datagram; `false`: no room.
    fn queue(&mut self, host: usize, to: SocketAddr, bytes: &[u8]) -> bool {
        let driver = self.drivers[host].as_mut().unwrap();
        let room = match driver.datagram_room() {
            Ok(room) => room,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return false;
            }
        };
        assert!(room.len() >= DATAGRAM_BYTES_MAX);
        room[..bytes.len()].copy_from_slice(bytes);
        driver.send_datagram(to, 0, bytes.len(), crate::driver::traits::TxFlags::PLAIN);
        true
    }

    fn flush(&mut self, host: usize) {
        self.drivers[host].as_mut().unwrap().flush_datagrams();
    }

    /// Sends a datagram from one host to another's locator.
    fn send(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let to = self.locator(to);
        assert!(self.queue(from, to, bytes));
        self.flush(from);
    }

    fn receive(&mut self, host: usize) -> Option<(SocketAddr, Vec<u8>)> {
        let received = self.drivers[host].as_mut().unwrap().recv_datagram().unwrap();
        received.map(|(from, bytes)| (from, bytes.to_vec()))
    }

    fn receive_all(&mut self, host: usize) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.receive(host)).map(|(_, bytes)| bytes).collect()
    }

    /// Lets time pass without a turn.
    fn pass(&mut self, for_ns: u64) {
        let mut net = self.net.borrow_mut();
        let until_ns = net.now_ns() + for_ns;
        while net.next(until_ns).is_some() {}
        assert_eq!(net.take_violation(), None);
    }

    fn poll(&mut self, host: usize) -> Vec<DriverEvent> {
        let mut events = Vec::new();
        self.drivers[host].as_mut().unwrap().poll(&mut events).unwrap();
        events
    }

    fn watch(&mut self, host: usize) {
        self.drivers[host].as_mut().unwrap().watch_datagrams().unwrap();
    }

    /// Sleeps; returns the duration, and the events of the poll that ends the sleep.
    fn park(&mut self, host: usize, limit_ns: u64) -> (u64, Vec<DriverEvent>) {
        let mut events = Vec::new();
        let driver = self.drivers[host].as_mut().unwrap();
        driver.park(Duration::from_nanos(limit_ns), &mut events).unwrap();
        let since_ns = self.now_ns();
        if events.is_empty() {
            let mut net = self.net.borrow_mut();
            while net.is_asleep(host) {
                net.next(u64::MAX).expect("a sleeper wakes at its limit");
            }
            drop(net);
            events = self.poll(host);
        }
        (self.now_ns() - since_ns, events)
    }
}

/// A placeholder socket.
fn socket() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

/// The number at the start of a datagram.
fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}
