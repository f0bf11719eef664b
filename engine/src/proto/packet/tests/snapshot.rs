//! Goodput and latency over loss, round trip and message size, as a snapshot, so that a change of
//! the algorithm shows as a reviewable difference.

use super::*;
use crate::snapshot::{Figures, Link, Loss, compare};

/// Message lengths in bytes.
const MESSAGES: [(&str, u32); 3] = [("64B", 64), ("16KiB", 16 << 10), ("1MiB", 1 << 20)];

const PREAMBLE: &str = "\
# A datagram path over a simulated link: goodput in Mb/s, and times of messages in microseconds.
# Made by a test; RINGRAIL_WRITE_SNAPSHOTS=1 cargo test -p ringrail --lib snapshot makes it anew.
#
# Both directions lose the stated share of datagrams, at random. A link's queue holds half a round
# trip, at least 200 us. Round trips up to 1 ms: 10 Gb/s; 10 ms: 1 Gb/s; longer: 200 Mb/s. The
# interface takes datagrams of 8972 B, for messages up to 16 KiB on 10 Gb/s of 1472 B. Messages
# under way: 8 of 64 B, else two bandwidth-delay products, at least 16. The first quarter of the
# messages is not counted.
#
# message  rtt     loss    goodput      p50       p99
";

fn measure(bytes: u32, (_, rtt_ns, megabits): Link, (_, loss_ppm): Loss) -> Figures {
    let product_bytes = megabits * rtt_ns / 8_000;
    let (at_once, count) = match bytes {
        64 => (8, 800),
        _ => {
            let at_once = (2 * product_bytes / u64::from(bytes)).max(16) as u32;
            (at_once, (4 * at_once).max(if bytes == 1 << 20 { 64 } else { 400 }))
        }
    };
    let is_long = bytes == 1 << 20 || megabits < 10_000;
    let datagram_bytes_max = if is_long { 8972 } else { 1472 };
    let config = PathConfig { datagram_bytes_max, ..config(rtt_ns) };
    let sender = Sender::new(bytes, at_once, count);
    let links = lossy(megabits * 1_000_000, rtt_ns, loss_ppm);
    let mut pair = PathPair::new(&config, links, sender, loss_ppm + rtt_ns);
    let whole =
        |count: u32| move |pair: &PathPair| pair.ends[1].receiver.whole.len() == count as usize;
    // The tail, when fewer and fewer messages are in flight, does not fill a link.
    let marks = [count / 4, count * 15 / 16, count].map(|mark| {
        let done = pair.run(3600 * SECOND, whole(mark));
        assert!(done, "{bytes} bytes, {rtt_ns} ns, {loss_ppm} of a million lost");
        (pair.now_ns(), pair.ends[1].receiver.bytes)
    });
    let [(from_ns, from), (until_ns, until), _] = marks;
    let goodput = (until - from) * 8 * 1000 * 10 / (until_ns - from_ns);
    let whole = &pair.ends[1].receiver.whole;
    let begun_ns = &pair.ends[0].sender.begun_ns;
    let counted = &whole[count as usize / 4..];
    let mut times_ns: Vec<u64> =
        counted.iter().map(|&(message, at_ns)| at_ns - begun_ns[message as usize]).collect();
    times_ns.sort_unstable();
    Figures { goodput, times_ns }
}

#[test]
fn goodput_matches_the_snapshot() {
    compare("packet-goodput.txt", PREAMBLE, &MESSAGES, |&bytes, link, loss| {
        Some(measure(bytes, link, loss))
    });
}
