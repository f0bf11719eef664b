//! An on-path attacker that reads datagrams and sends some, without a key.
//!
//! Everything sent is either a copy of what was seen, whole or mutilated, or looks like it: the
//! session's id and numbers that are about right, with a tag that is a guess. None of it may ever
//! be accepted; what was copied whole is at most one more duplicate.

use std::net::SocketAddr;

use zerocopy::{FromBytes, IntoBytes};

use crate::driver::sim::datagrams::Sighting;
use crate::driver::sim::net::Net;
use crate::driver::sim::random::Random;
use crate::driver::traits::DATAGRAM_BYTES_USUAL;
use crate::wire::packet::{PACKET_HEADER_BYTES, PacketHeader};

/// The last datagrams, which it remembers.
const SIGHTINGS: usize = 256;
/// Older ones, which it has put by.
const HOARD: usize = 64;

/// What it does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Attack {
    /// The same again, to the same host.
    Replay,
    /// The same, to the host that sent it.
    Reflect,
    /// The same, to any host.
    Misdirect,
    /// Some bits are turned over.
    Flip,
    /// Its end is missing, or it has a longer one.
    Resize,
    /// One datagram's header before another one's content.
    Splice,
    /// A header that is about right before noise.
    Forge,
    /// Noise.
    Noise,
}

const ATTACKS: [Attack; 8] = [
    Attack::Replay,
    Attack::Reflect,
    Attack::Misdirect,
    Attack::Flip,
    Attack::Resize,
    Attack::Splice,
    Attack::Forge,
    Attack::Noise,
];

/// See the module.
#[derive(Debug)]
pub(crate) struct Attacker {
    random: Random,
    /// Its next datagrams.
    bytes: Vec<u8>,
    hoard: Vec<Sighting>,
    /// How often each of [`ATTACKS`] was carried out.
    counts: [u64; ATTACKS.len()],
}

impl Attacker {
    /// Begins to read along.
    pub(crate) fn new(seed: u64, net: &mut Net) -> Self {
        net.observe_datagrams(SIGHTINGS);
        let bytes = Vec::with_capacity(DATAGRAM_BYTES_USUAL);
        let (hoard, counts) = (Vec::with_capacity(HOARD), [0; ATTACKS.len()]);
        Self { random: Random::new(seed ^ 0xa77ac), bytes, hoard, counts }
    }

    /// Datagrams sent so far.
    pub(crate) fn attacks(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sends one datagram, if any was ever seen.
    pub(crate) fn attack(&mut self, net: &mut Net) {
        let seen = net.sightings();
        if seen.is_empty() {
            return;
        }
        self.put_by(seen);
        let hoard = std::mem::take(&mut self.hoard);
        let known = if self.random.one_in(4) { &hoard[..] } else { seen };
        let sighting = &known[self.random.below(known.len())];
        let other = &seen[self.random.below(seen.len())];
        let (target, from, kind) = self.prepare(sighting, other, net);
        self.hoard = hoard;
        net.inject_datagram(from, target, &self.bytes);
        self.counts[kind] += 1;
    }

    /// Puts a datagram by, now and then, in the place of another one.
    fn put_by(&mut self, seen: &[Sighting]) {
        let sighting = &seen[self.random.below(seen.len())];
        if self.hoard.len() < HOARD {
            self.hoard.push(sighting.clone());
        } else if self.random.one_in(16) {
            let place = self.random.below(HOARD);
            self.hoard[place].clone_from(sighting);
        }
    }

    /// Makes a datagram of two that were seen: which host it is for, where it seems to come from,
    /// and the attack.
    fn prepare(
        &mut self,
        sighting: &Sighting,
        other: &Sighting,
        net: &Net,
    ) -> (usize, SocketAddr, usize) {
        let anybody = self.random.below(net.host_count());
        let target = sighting.target.unwrap_or(anybody);
        let kind = self.random.below(ATTACKS.len());
        self.bytes.clear();
        self.bytes.extend_from_slice(&sighting.bytes);
        let target = match ATTACKS[kind] {
            Attack::Replay => target,
            Attack::Reflect => sighting.sender,
            Attack::Misdirect => anybody,
            Attack::Flip => {
                self.flip();
                target
            }
            Attack::Resize => {
                self.resize();
                target
            }
            Attack::Splice => {
                let at = self.random.pick(&[4, 8, PACKET_HEADER_BYTES, other.bytes.len() / 2]);
                self.bytes.truncate(at);
                self.bytes.extend_from_slice(other.bytes.get(at..).unwrap_or_default());
                target
            }
            Attack::Forge => {
                self.forge(sighting);
                target
            }
            Attack::Noise => {
                self.bytes.clear();
                self.make_noise(1500);
                anybody
            }
        };
        (target, self.source(sighting, other, net.locator(target)), kind)
    }

    /// Where the datagram seems to come from: mostly from where the one seen came.
    fn source(&mut self, sighting: &Sighting, other: &Sighting, target: SocketAddr) -> SocketAddr {
        match self.random.below(8) {
            0 => SocketAddr::from(([127, 66, 6, 6], 1 + self.random.below(60_000) as u16)),
            1 => other.from,
            2 => target,
            _ => sighting.from,
        }
    }

    fn flip(&mut self) {
        if self.bytes.is_empty() {
            return;
        }
        // Headers are short, and what counts stands there.
        let within = self.random.pick(&[PACKET_HEADER_BYTES, 64, DATAGRAM_BYTES_USUAL]);
        for _ in 0..self.random.pick(&[1, 1, 2, 8]) {
            let bit = self.random.below(8 * within.min(self.bytes.len()));
            self.bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    fn resize(&mut self) {
        if self.random.one_in(2) {
            let length = self.random.below(self.bytes.len());
            self.bytes.truncate(length);
        } else {
            self.make_noise(64);
        }
    }

    /// Kind, path and session of a datagram that was seen, and a number close to its own.
    fn forge(&mut self, sighting: &Sighting) {
        self.bytes.truncate(PACKET_HEADER_BYTES);
        let Ok((header, _)) = PacketHeader::read_from_prefix(&sighting.bytes) else { return };
        let step = self.random.pick(&[0, 1, 2, 64, 1 << 19, 1 << 31]);
        let number = header.number.get();
        let number = match self.random.below(3) {
            0 => number.wrapping_sub(step),
            _ => number.wrapping_add(step),
        };
        let noise = self.random.next() as u8;
        let flags = self.random.pick(&[header.flags, noise & 31, noise]);
        let path = match self.random.below(4) {
            0 => header.path.get() ^ 1,
            _ => header.path.get(),
        };
        let forged = PacketHeader { flags, number: number.into(), path: path.into(), ..header };
        self.bytes.clear();
        self.bytes.extend_from_slice(forged.as_bytes());
        self.make_noise(200);
    }

    /// Adds up to `bytes_max` random bytes, as far as a datagram has room.
    fn make_noise(&mut self, bytes_max: usize) {
        let room = DATAGRAM_BYTES_USUAL - self.bytes.len();
        for _ in 0..self.random.below(bytes_max + 1).min(room) {
            let byte = self.random.next() as u8;
            self.bytes.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::rc::Rc;

    use super::*;
    use crate::driver::sim::SimDriver;
    use crate::driver::sim::net::Impairments;
    use crate::driver::traits::DatagramIo;
    use crate::swarm::world::{Step, World};
    use crate::wire::packet::{FLAG_ELICITS, KIND_PACKET};

    const MILLISECOND: u64 = 1_000_000;

    /// A packet as a path makes them, from one host of `world` to the other.
    fn packet(number: u32, session: u64) -> Vec<u8> {
        let header = PacketHeader {
            kind: KIND_PACKET,
            flags: FLAG_ELICITS,
            path: 1.into(),
            number: number.into(),
            session: session.into(),
        };
        [header.as_bytes(), &number.to_le_bytes().repeat(10)].concat()
    }

    fn open(world: &mut World) -> SimDriver {
        let host = world.add_host();
        let mut driver = SimDriver::new(&world.net, host);
        driver.open_datagrams(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).unwrap();
        driver
    }

    /// Returns what arrives at two hosts under attack, and the hash of the run.
    fn run(seed: u64) -> (Vec<(usize, Vec<u8>)>, u64, u64) {
        let mut world = World::new(seed, Impairments::ideal()).unwrap();
        let mut drivers = [open(&mut world), open(&mut world)];
        world.attack(seed, 10_000);
        let locators = [0, 1].map(|host| world.net.borrow().locator(host));
        let mut arrived = Vec::new();
        for number in 0..2_000 {
            let from = number as usize % 2;
            let bytes = packet(number / 2, 70 + from as u64);
            let room = drivers[from].datagram_room().unwrap();
            room[..bytes.len()].copy_from_slice(&bytes);
            drivers[from].send_datagram(
                locators[1 - from],
                0,
                bytes.len(),
                crate::driver::traits::TxFlags::PLAIN,
            );
            drivers[from].flush_datagrams();
            let until_ns = world.now_ns() + 10_000;
            while world.step(until_ns) != Step::Limit {}
        }
        let attacks = world.end_attack();
        while world.step(1_000 * MILLISECOND) != Step::Limit {}
        for (host, driver) in drivers.iter_mut().enumerate() {
            while let Some((_, bytes)) = driver.recv_datagram().unwrap() {
                arrived.push((host, bytes.to_vec()));
            }
        }
        let hash = world.net.borrow().trace_hash();
        let net = Rc::clone(&world.net);
        assert_eq!(net.borrow_mut().take_violation(), None);
        (arrived, attacks, hash)
    }

    #[test]
    fn it_repeats_turns_round_and_makes_up() {
        let (arrived, attacks, _) = run(1);
        assert!((1_500..2_500).contains(&attacks), "{attacks}");
        assert_eq!(arrived.len() as u64, 2_000 + attacks);
        let (mut repeated, mut reflected, mut made_up) = (0, 0, 0);
        let mut plausible = 0;
        let mut seen = std::collections::BTreeSet::new();
        for (host, bytes) in &arrived {
            let header = PacketHeader::read_from_prefix(bytes).ok().map(|(header, _)| header);
            let number = header.map_or(0, |header| header.number.get());
            let sound = |from: u64| *bytes == packet(number, 70 + from);
            if sound(*host as u64) {
                reflected += 1;
            } else if sound(1 - *host as u64) {
                repeated += usize::from(!seen.insert((host, bytes)));
            } else {
                made_up += 1;
                let session = header.map_or(0, |header| header.session.get());
                plausible += usize::from((70..72).contains(&session) && number < 1_100);
            }
        }
        assert_eq!(seen.len(), 2_000);
        assert!(repeated > 200 && reflected > 200, "{repeated}, {reflected}");
        assert!(made_up > 600 && plausible > 300, "{made_up}, {plausible}");
    }

    #[test]
    fn the_same_seed_attacks_alike() {
        assert_eq!(run(2), run(2));
        assert_ne!(run(2).2, run(3).2);
    }

    #[test]
    fn without_datagrams_there_is_nothing_to_attack() {
        let mut world = World::new(4, Impairments::ideal()).unwrap();
        let mut driver = open(&mut world);
        world.attack(4, 1_000);
        while world.step(MILLISECOND) != Step::Limit {}
        assert_eq!(world.end_attack(), 0);
        assert!(driver.recv_datagram().unwrap().is_none());
    }
}
