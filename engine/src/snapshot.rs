//! Goodput and latency over loss, round trip and message size, written down in a file, so that a
//! change of the code becomes a difference that people read.

use std::fmt::Write;
use std::path::Path;

/// Set, the file is written anew.
const REWRITE: &str = "RINGRAIL_WRITE_SNAPSHOTS";
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots");

/// Name, and datagrams of a million that are lost.
pub(crate) type Loss = (&'static str, u64);
/// Name, round trip in nanoseconds, megabits per second.
pub(crate) type Link = (&'static str, u64, u64);

const LOSSES: [Loss; 7] = [
    ("0", 0),
    ("1e-5", 10),
    ("1e-4", 100),
    ("1e-3", 1_000),
    ("1e-2", 10_000),
    ("0.1", 100_000),
    ("0.3", 300_000),
];
const LINKS: [Link; 6] = [
    ("10us", 10_000, 10_000),
    ("100us", 100_000, 10_000),
    ("1ms", 1_000_000, 10_000),
    ("10ms", 10_000_000, 1_000),
    ("100ms", 100_000_000, 200),
    ("200ms", 200_000_000, 200),
];

/// What was measured of messages of one size over one link.
pub(crate) struct Figures {
    /// Of the messages that are counted, in tenths of a megabit per second.
    pub(crate) goodput: u64,
    /// How long they took, the shortest first.
    pub(crate) times_ns: Vec<u64>,
}

/// The time that so many percent of `sorted` do not exceed.
pub(crate) fn percentile(sorted: &[u64], percent: usize) -> u64 {
    sorted[(sorted.len() - 1) * percent / 100]
}

/// Measures messages of all `sizes` over all links, and compares with the file of this name, which
/// begins with `preamble`. `None`: a cell is left out.
pub(crate) fn compare<Size>(
    name: &str,
    preamble: &str,
    sizes: &[(&str, Size)],
    measure: impl Fn(&Size, Link, Loss) -> Option<Figures>,
) {
    let mut now = String::from(preamble);
    for (size_name, size) in sizes {
        for link in LINKS {
            for loss in LOSSES {
                let Some(Figures { goodput, times_ns }) = measure(size, link, loss) else {
                    continue;
                };
                let [p50, p99] = [50, 99].map(|percent| percentile(&times_ns, percent) / 1000);
                let (whole, tenth) = (goodput / 10, goodput % 10);
                let (link, loss) = (link.0, loss.0);
                let line = format!("{size_name:<9} {link:<7} {loss:<7} {whole:>5}.{tenth}");
                writeln!(now, "{line} {p50:>9} {p99:>9}").unwrap();
            }
        }
    }
    let file = Path::new(FOLDER).join(name);
    if std::env::var_os(REWRITE).is_some() {
        std::fs::create_dir_all(FOLDER).unwrap();
        std::fs::write(&file, &now).unwrap();
    }
    let then = std::fs::read_to_string(&file).unwrap_or_default();
    for (then, now) in then.lines().zip(now.lines()).filter(|(then, now)| then != now) {
        println!("- {then}\n+ {now}");
    }
    let file = file.display();
    assert!(then == now, "{file} differs; if that is meant, run again with {REWRITE}=1");
}
