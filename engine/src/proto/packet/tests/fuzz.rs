//! One path, and a peer that sends arbitrary packets.

use std::collections::HashMap;
use std::time::Duration;

use crate::proto::packet::{Filled, PacketEvent, Path, PathConfig, PayloadSource};
use crate::wire::packet::{FLAG_ACK, FLAG_ELICITS, FLAG_FLOOR, Packet};

const TEST_TIME: Duration = Duration::from_millis(1000);

/// Endless bytes, in pieces with a token each.
#[derive(Default)]
struct Endless {
    next: u64,
    bytes: usize,
    /// Packets in flight by their token.
    under_way: HashMap<u64, u32>,
}

impl Endless {
    fn sent(&mut self, token: u64, room: &mut [u8]) -> Option<Filled> {
        let bytes = self.bytes.min(room.len());
        room[..bytes].fill(7);
        *self.under_way.entry(token).or_default() += 1;
        Some(Filled { token, bytes, ack_now: token.is_multiple_of(5) })
    }
}

impl PayloadSource for Endless {
    fn waiting_bytes(&self) -> usize {
        self.bytes
    }

    fn fill(&mut self, room: &mut [u8]) -> Option<Filled> {
        self.next += 1;
        if room.is_empty() { None } else { self.sent(self.next, room) }
    }

    fn fill_again(&mut self, token: u64, room: &mut [u8]) -> Option<Filled> {
        assert!(self.under_way.contains_key(&token), "{token} was never sent, or has ended");
        if token.is_multiple_of(3) || room.is_empty() { None } else { self.sent(token, room) }
    }
}

/// Generates a packet with numbers near the expected one and an acknowledgement near `sent`.
fn packet(choice: [u8; 8], number: u32, sent: u64) -> Vec<u8> {
    let [flags, ahead, back, behind, windows, word, bits, length] = choice;
    let flags = if flags > 240 { flags } else { (flags & 15) | FLAG_ELICITS };
    let near = number.wrapping_add(u32::from(ahead % 8)).wrapping_sub(u32::from(back % 4));
    let mut bytes = super::packet(flags, near);
    if flags & FLAG_FLOOR != 0 {
        bytes.extend(number.wrapping_sub(u32::from(behind)).to_le_bytes());
    }
    if flags & FLAG_ACK != 0 {
        let cumulative = sent.saturating_sub(u64::from(behind % 32)) + u64::from(behind > 250);
        let words = [u64::from(bits) << (word % 64)];
        let window = |at: u8| (u64::from(word % 2 + at), &words[..]);
        let windows: Vec<_> = (0..windows % 3).map(window).collect();
        bytes.extend(super::ack(cumulative, u64::from(behind) << 10, &windows));
    }
    bytes.resize(bytes.len() + usize::from(length), 7);
    bytes
}

/// For arbitrary acknowledgements, duplicates, gaps and delays: each sent packet ends once, and
/// memory is bounded.
#[test]
fn hostile_packets() {
    bolero::check!().with_test_time(TEST_TIME).for_each(|input: &[u8]| {
        let mut path = Path::new(PathConfig::default());
        let mut out = vec![0; PathConfig::default().datagram_bytes_max];
        let mut payload = Endless::default();
        let (mut now_ns, mut sent, mut next_number) = (1_000_000u64, 0, 0u32);
        for choice in input.chunks_exact(8) {
            let choice: [u8; 8] = choice.try_into().unwrap();
            let [first, second, ..] = choice;
            path.start_turn(u64::from(first) << 10);
            match first % 4 {
                0 => now_ns += u64::from(second) << (choice[2] % 24),
                1 => payload.bytes = usize::from(second) * 8,
                _ => {
                    let bytes = packet(choice, next_number, sent);
                    if let Ok(packet) = Packet::decode(&bytes)
                        && path.handle_packet(now_ns, &packet).is_ok()
                    {
                        next_number = next_number.max(packet.header.number.get().wrapping_add(1));
                    }
                }
            }
            if path.poll_timeout().is_some_and(|due_ns| due_ns <= now_ns) {
                path.handle_timeout(now_ns, second & 1 == 0);
            }
            let mut ended = Vec::new();
            path.apply_deferred_ack_if_due(|token| ended.push(token));
            let events = std::iter::from_fn(|| path.poll_known_event());
            ended.extend(events.filter_map(|event| match event {
                PacketEvent::Acked { token } | PacketEvent::Lost { token } => Some(token),
                PacketEvent::PayloadBytesMax { .. } => None,
            }));
            for token in ended {
                let left = payload.under_way.get_mut(&token).expect("it was sent");
                *left -= 1;
                if *left == 0 {
                    payload.under_way.remove(&token);
                }
            }
            for _ in 0..second % 32 {
                let Some((length, number)) = path.poll_transmit(now_ns, &mut payload, &mut out)
                else {
                    break;
                };
                assert!(Packet::decode(&out[..length]).is_ok(), "sent packets are valid");
                assert_eq!(number, sent, "numbers are never used twice");
                sent += 1;
            }
            let (window, in_flight, _) = path.load();
            assert!(window > 0 && in_flight <= sent * out.len() as u64);
        }
    });
}
