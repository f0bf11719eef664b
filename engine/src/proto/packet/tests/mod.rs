//! Two connected paths over simulated links, in virtual time.

mod faults;
mod figures;
mod fuzz;
mod path_pair;
mod properties;
mod snapshot;
mod traffic;

use zerocopy::{FromZeros, IntoBytes};

use super::{Filled, PathConfig, PayloadSource};
use crate::proto::sim::LinkConfig;
use crate::wire::ack::{ACK_BYTES_MAX, AckWriter};
use crate::wire::packet::{KIND_PACKET, PacketHeader};
use path_pair::PathPair;
use traffic::Sender;

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const GBIT: u64 = 1_000_000_000;

/// Returns a packet without content.
fn packet(flags: u8, number: u32) -> Vec<u8> {
    let (kind, number) = (KIND_PACKET, number.into());
    PacketHeader { kind, flags, number, ..PacketHeader::new_zeroed() }.as_bytes().to_vec()
}

/// Returns an acknowledgement of these packets: those before `cumulative`, and windows of words.
fn ack(cumulative: u64, delay_ns: u64, windows: &[(u64, &[u64])]) -> Vec<u8> {
    let mut room = [0; ACK_BYTES_MAX];
    let mut writer = AckWriter::new(&mut room, cumulative, delay_ns);
    for (word, bits) in windows {
        writer.window(*word, bits.iter().copied());
    }
    let length = writer.finish();
    room[..length].to_vec()
}

/// So many payloads of one byte.
struct Bytes(u64);

impl PayloadSource for Bytes {
    fn waiting_bytes(&self) -> usize {
        usize::from(self.0 > 0)
    }

    fn fill(&mut self, room: &mut [u8]) -> Option<Filled> {
        self.0 = self.0.saturating_sub(1);
        room[0] = 7;
        Some(Filled { token: self.0, bytes: 1, ack_now: false })
    }

    fn fill_again(&mut self, _: u64, room: &mut [u8]) -> Option<Filled> {
        self.fill(room)
    }
}

/// Returns a symmetric link with the same loss in either direction.
fn lossy(bits_per_second: u64, rtt_ns: u64, loss_ppm: u64) -> [LinkConfig; 2] {
    let link = LinkConfig { loss_ppm, ..LinkConfig::new(bits_per_second, rtt_ns) };
    [link.clone(), link]
}

/// Returns the configuration of a path over Ethernet with 1500 bytes.
fn config(rtt_ns: u64) -> PathConfig {
    PathConfig { rtt_initial_ns: rtt_ns, ..PathConfig::default() }
}

/// Returns the bits per second that arrive at end 1 from `from_ns` to `until_ns`.
fn goodput(pair: &mut PathPair, from_ns: u64, until_ns: u64) -> u64 {
    pair.run(from_ns, |_| false);
    let before = pair.ends[1].receiver.bytes;
    pair.run(until_ns, |_| false);
    (pair.ends[1].receiver.bytes - before) * 8 * SECOND / (until_ns - from_ns)
}

/// Returns a bulk sender: endless messages of 1 MiB, 16 at a time.
fn bulk() -> Sender {
    Sender::new(1 << 20, 16, u32::MAX)
}
