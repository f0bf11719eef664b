//! Goodput and latency over loss, round trip and message size, written down, so that a change of
//! the algorithm becomes a difference that people read.

use std::fmt::Write;

use super::*;

const LOSSES: [(&str, u64); 7] = [
    ("0", 0),
    ("1e-5", 10),
    ("1e-4", 100),
    ("1e-3", 1_000),
    ("1e-2", 10_000),
    ("0.1", 100_000),
    ("0.3", 300_000),
];
/// Name, nanoseconds, megabits per second.
const PATHS: [(&str, u64, u64); 6] = [
    ("10us", 10 * MICRO, 10_000),
    ("100us", 100 * MICRO, 10_000),
    ("1ms", MILLI, 10_000),
    ("10ms", 10 * MILLI, 1_000),
    ("100ms", 100 * MILLI, 200),
    ("200ms", 200 * MILLI, 200),
];
const MESSAGES: [(&str, u32); 3] = [("64B", 64), ("16KiB", 16 << 10), ("1MiB", 1 << 20)];
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/packet-goodput.txt");
/// Set, the file is written anew.
const REWRITE: &str = "RINGRAIL_WRITE_SNAPSHOTS";

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

/// One line of the file.
fn cell(message: (&str, u32), path: (&str, u64, u64), loss: (&str, u64)) -> String {
    let (message_name, bytes) = message;
    let (rtt_name, rtt_ns, megabits) = path;
    let (loss_name, loss_ppm) = loss;
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
    let mut world = World::new(&config, links, sender, loss_ppm + rtt_ns);
    let whole =
        |count: u32| move |world: &World| world.ends[1].receiver.whole.len() == count as usize;
    // The end, when fewer and fewer are under way, is not what a link is filled with.
    let marks = [count / 4, count * 15 / 16, count].map(|mark| {
        let done = world.run(3600 * SECOND, whole(mark));
        assert!(done, "{message_name} {rtt_name} {loss_name}");
        (world.now_ns, world.ends[1].receiver.bytes)
    });
    let [(from_ns, from), (until_ns, until), _] = marks;
    let goodput = (until - from) * 8 * 1000 * 10 / (until_ns - from_ns);
    let whole = &world.ends[1].receiver.whole;
    let begun_ns = &world.ends[0].sender.begun_ns;
    let counted = &whole[count as usize / 4..];
    let mut times_ns: Vec<u64> =
        counted.iter().map(|&(message, at_ns)| at_ns - begun_ns[message as usize]).collect();
    times_ns.sort_unstable();
    let percentile = |percent: usize| times_ns[(times_ns.len() - 1) * percent / 100] / 1000;
    format!(
        "{message_name:<9} {rtt_name:<7} {loss_name:<7} {:>5}.{} {:>9} {:>9}",
        goodput / 10,
        goodput % 10,
        percentile(50),
        percentile(99),
    )
}

#[test]
fn goodput_is_what_the_snapshot_says() {
    let mut now = String::from(PREAMBLE);
    for message in MESSAGES {
        for path in PATHS {
            for loss in LOSSES {
                writeln!(now, "{}", cell(message, path, loss)).unwrap();
            }
        }
    }
    if std::env::var_os(REWRITE).is_some() {
        std::fs::create_dir_all(std::path::Path::new(FILE).parent().unwrap()).unwrap();
        std::fs::write(FILE, &now).unwrap();
    }
    let then = std::fs::read_to_string(FILE).unwrap_or_default();
    let changed: Vec<(&str, &str)> =
        then.lines().zip(now.lines()).filter(|(then, now)| then != now).collect();
    for (then, now) in &changed {
        println!("- {then}\n+ {now}");
    }
    assert!(then == now, "{FILE} differs; if that is meant, run again with {REWRITE}=1");
}
