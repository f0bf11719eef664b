//! Goodput and latency of whole sessions over loss, round trip and message size, written down, so
//! that a change of the engine becomes a difference that people read.

use super::*;
use crate::snapshot::{self, Figures, Loss, compare};

/// Bytes, how many are under way, how many are sent.
const SHAPES: [(&str, (usize, usize, usize)); 3] =
    [("8B", (8, 8, 400)), ("4KiB", (4096, 32, 320)), ("1MiB", (MIB, 8, 16))];

const PREAMBLE: &str = "\
# A session of two whole engines whose messages all go by datagrams: goodput in Mb/s, and times
# from post to completed receive in microseconds. RINGRAIL_WRITE_SNAPSHOTS=1
# cargo xtask swarm --figures snapshot makes it anew.
#
# Both directions lose the stated share of datagrams, at random. A link takes 1472 B of UDP
# payload; its queue holds half a round trip, at least 200 us. Round trips up to 1 ms: 10 Gb/s;
# 10 ms: 1 Gb/s; longer: 200 Mb/s. A turn of an engine takes 0.5 to 1 us and 0.35 us more per
# datagram. Under way: 8 of 8 B, 32 of 4 KiB, 8 of 1 MiB; sent: 400, 320 and 16, of which the
# first quarter is not counted (p99 of 1 MiB is so the longest time). Usual settings have
# messages of 1 MiB go over bulk lanes.
#
# Left out, because they cost seconds and show what the adjacent ones show: of 1 MiB loss below
# 1e-2, and round trips other than 100 us and 10 ms; engine/tests/snapshots/packet-goodput.txt
# has those cells for the packet layer.
#
# message  rtt     loss    goodput      p50       p99
";

fn measure(
    &(length, at_once, count): &(usize, usize, usize),
    (_, rtt_ns, megabits): snapshot::Link,
    (_, loss_ppm): Loss,
) -> Figures {
    let link = Link::new(megabits * 1_000_000, rtt_ns).with_loss(loss_ppm);
    let mut world = link.world(&roomy(), loss_ppm + rtt_ns);
    let mut traffic = Traffic::new(length, at_once, count);
    let first = count / 4;
    // The end, when fewer and fewer are under way, is not what a link is filled with.
    let marks = [first, count - at_once / 2, count].map(|mark| {
        traffic.run(&mut world, 3600 * SECOND, |it| it.received >= mark);
        (world.now_ns(), traffic.received)
    });
    let [(from_ns, from), (until_ns, until), _] = marks;
    let bits = ((until - from) * length * 8) as u64;
    let goodput = bits * 10_000 / (until_ns - from_ns);
    Figures { goodput, times_ns: traffic.times_ns(first) }
}

fn is_left_out(length: usize, rtt_ns: u64, loss_ppm: u64) -> bool {
    length == MIB
        && ((1..10_000).contains(&loss_ppm) || ![100 * MICRO, 10 * MILLI].contains(&rtt_ns))
}

pub(super) fn session_goodput_matches_the_snapshot() {
    compare("session-goodput.txt", PREAMBLE, &SHAPES, |shape, link, loss| {
        let is_wanted = !is_left_out(shape.0, link.1, loss.1);
        is_wanted.then(|| measure(shape, link, loss))
    });
}
