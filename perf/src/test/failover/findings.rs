//! What the record of a receiver says about each fault.

use serde::{Deserialize, Serialize};

use super::record::{Record, Sample};
use super::schedule::Cut;
use super::tally::Tally;
use crate::cli::Fault;

const MS: u64 = 1_000_000;
/// What a fault is compared with: this long before it.
const BEFORE_NS: u64 = 1000 * MS;
/// A rate is there when it holds for so long.
const RATE_NS: u64 = 100 * MS;
/// And has this share of what it should be.
const RATE_SHARE: f64 = 0.95;
/// What a picture shows before a fault and after it.
const MARGIN_NS: u64 = 500 * MS;

/// What one fault did.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Effect {
    pub(super) rails: Vec<u8>,
    /// The longest time that the frontier stood still, from the fault to the next one.
    pub(super) standstill_ms: f64,
    /// The 99th percentile of such times in the second before.
    pub(super) before_ms: f64,
    /// From the end of the fault until the rate is what it was before; to the end if it never is.
    pub(super) recovered_ms: f64,
    pub(super) is_recovered: bool,
    /// What arrived, from a moment after the fault to its end, as share of what the rails that
    /// were left carry.
    pub(super) surviving_share: Option<f64>,
    /// From the fault until those rails are used fully.
    pub(super) surviving_ms: Option<f64>,
}

impl Effect {
    /// What the fault cost beyond what is usual.
    pub(super) fn gap_ms(&self) -> f64 {
        (self.standstill_ms - self.before_ms).max(0.0)
    }
}

/// Time since a fault began in milliseconds, and since the point before it what messages and what
/// each NIC got, in bytes per millisecond.
pub(super) type Point = (f64, f64, Vec<f64>);

/// One fault as a curve.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Course {
    pub(super) points: Vec<Point>,
    pub(super) healed_ms: f64,
}

/// All of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Findings {
    pub(super) effects: Vec<Effect>,
    /// Of the fault whose gap is the median.
    pub(super) course: Option<Course>,
    /// Messages' bytes per second before faults: the median.
    pub(super) rate_bytes_s: f64,
    /// What NICs got meanwhile, headers and all.
    pub(super) nic_rates_bytes_s: Vec<f64>,
    pub(super) lost: u64,
    pub(super) duplicated: u64,
    pub(super) reordered: u64,
    pub(super) corrupted: u64,
}

impl Findings {
    /// `alone_bytes_s`: what each rail carries alone.
    pub(super) fn of(
        record: &Record,
        tally: &Tally,
        sent: u64,
        cuts: &[Cut],
        fault: Fault,
        alone_bytes_s: &[f64],
    ) -> Self {
        let look = Look { record, alone_bytes_s, settled_ns: settled_ns(fault) };
        let mut before: Vec<f64> = cuts.iter().map(|cut| look.rate_before(cut)).collect();
        let rate_bytes_s = percentile(&mut before, 0.5).unwrap_or(0.0);
        let effects: Vec<_> = cuts.iter().map(|cut| look.effect(cut, rate_bytes_s)).collect();
        let nic_rates_bytes_s = (0..alone_bytes_s.len())
            .map(|rail| {
                let mut rates: Vec<f64> = cuts
                    .iter()
                    .map(|cut| {
                        look.rate(cut.cut_ns.saturating_sub(BEFORE_NS), cut.cut_ns, |sample| {
                            sample.nic_bytes.get(rail).copied().unwrap_or(0)
                        })
                    })
                    .collect();
                percentile(&mut rates, 0.5).unwrap_or(0.0)
            })
            .collect();
        let mut order: Vec<usize> = (0..effects.len()).collect();
        order.sort_by(|a, b| effects[*a].gap_ms().total_cmp(&effects[*b].gap_ms()));
        let course = order.get(order.len() / 2).map(|&at| look.course(&cuts[at]));
        Self {
            effects,
            course,
            rate_bytes_s,
            nic_rates_bytes_s,
            lost: tally.lost(sent),
            duplicated: tally.duplicated,
            reordered: tally.reordered,
            corrupted: tally.corrupted,
        }
    }
}

/// After so long the rails that are left should be used fully.
fn settled_ns(fault: Fault) -> u64 {
    match fault {
        Fault::Blackhole | Fault::LinkDown => 100 * MS,
        Fault::OneWay | Fault::BrownOut | Fault::Flap | Fault::AllRails => 200 * MS,
    }
}

struct Look<'a> {
    record: &'a Record,
    alone_bytes_s: &'a [f64],
    settled_ns: u64,
}

impl Look<'_> {
    fn effect(&self, cut: &Cut, rate_bytes_s: f64) -> Effect {
        let recovered = self.first_at_rate(cut.healed_ns, cut.end_ns, rate_bytes_s * RATE_SHARE);
        let left = self.alone_bytes_s.iter().zip(0..).filter(|(_, rail)| !cut.rails.contains(rail));
        let left_bytes_s: f64 = left.map(|(rate, _)| rate).sum();
        let has_left = left_bytes_s > 0.0;
        let settled_ns = cut.cut_ns + self.settled_ns;
        let surviving_share = (has_left && settled_ns < cut.healed_ns)
            .then(|| self.rate(settled_ns, cut.healed_ns, frontier) / left_bytes_s);
        let surviving = has_left
            .then(|| self.first_at_rate(cut.cut_ns, cut.healed_ns, left_bytes_s * RATE_SHARE))
            .flatten();
        Effect {
            rails: cut.rails.clone(),
            standstill_ms: ms(self.longest(cut.cut_ns, cut.end_ns)),
            before_ms: ms(self.p99_before(cut.cut_ns)),
            recovered_ms: ms(recovered.unwrap_or(cut.end_ns).saturating_sub(cut.healed_ns)),
            is_recovered: recovered.is_some(),
            surviving_share,
            surviving_ms: surviving.map(|at| ms(at - cut.cut_ns)),
        }
    }

    /// The last sample at `at_ns` or before.
    fn sample(&self, at_ns: u64) -> Option<&Sample> {
        let samples = &self.record.samples;
        let after = samples.partition_point(|sample| sample.at_ns <= at_ns);
        samples.get(after.saturating_sub(1))
    }

    /// Bytes per second.
    fn rate(&self, from_ns: u64, to_ns: u64, bytes: impl Fn(&Sample) -> u64) -> f64 {
        let (Some(from), Some(to)) = (self.sample(from_ns), self.sample(to_ns)) else { return 0.0 };
        let seconds = to.at_ns.saturating_sub(from.at_ns) as f64 / 1e9;
        if seconds > 0.0 { (bytes(to) - bytes(from)) as f64 / seconds } else { 0.0 }
    }

    fn rate_before(&self, cut: &Cut) -> f64 {
        self.rate(cut.cut_ns.saturating_sub(BEFORE_NS), cut.cut_ns, frontier)
    }

    /// From when on the rate holds for [`RATE_NS`], all of that before `to_ns`.
    fn first_at_rate(&self, from_ns: u64, to_ns: u64, bytes_s: f64) -> Option<u64> {
        (from_ns..)
            .step_by(MS as usize)
            .take_while(|at| at + RATE_NS <= to_ns)
            .find(|&at| self.rate(at, at + RATE_NS, frontier) >= bytes_s)
    }

    /// The longest standstill of which a part is in this time, in nanoseconds.
    fn longest(&self, from_ns: u64, to_ns: u64) -> u64 {
        let standstills = self.record.standstills.iter();
        let inside = standstills.filter(|one| one.end_ns() > from_ns && one.from_ns < to_ns);
        inside.map(|one| one.length_ns).max().unwrap_or(0)
    }

    /// The 99th percentile of the standstills that ended in the second before; 0 where it is one
    /// of those that are too short to be kept.
    fn p99_before(&self, cut_ns: u64) -> u64 {
        let from_ns = cut_ns.saturating_sub(BEFORE_NS);
        let short = |at_ns| self.sample(at_ns).map_or(0, |sample| sample.short);
        let short = short(cut_ns) - short(from_ns);
        let standstills = self.record.standstills.iter();
        let inside = standstills.filter(|one| (from_ns..cut_ns).contains(&one.end_ns()));
        let mut long: Vec<u64> = inside.map(|one| one.length_ns).collect();
        long.sort_unstable();
        let rank = ((short + long.len() as u64) as f64 * 0.99).ceil() as u64;
        let at = rank.checked_sub(short + 1).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| long.get(at)).copied().unwrap_or(0)
    }

    fn course(&self, cut: &Cut) -> Course {
        let inside = cut.cut_ns.saturating_sub(MARGIN_NS)..cut.healed_ns + MARGIN_NS;
        let samples = self.record.samples.windows(2);
        let points = samples.filter(|pair| inside.contains(&pair[1].at_ns)).map(|pair| {
            let passed = ms(pair[1].at_ns - pair[0].at_ns).max(1e-3);
            let got = |to: u64, from: u64| (to - from) as f64 / passed;
            let nics = pair[1].nic_bytes.iter().zip(&pair[0].nic_bytes);
            let nics = nics.map(|(to, from)| got(*to, *from)).collect();
            let at = pair[1].at_ns as f64 - cut.cut_ns as f64;
            (at / MS as f64, got(pair[1].frontier_bytes, pair[0].frontier_bytes), nics)
        });
        Course { points: points.collect(), healed_ms: ms(cut.healed_ns - cut.cut_ns) }
    }
}

fn frontier(sample: &Sample) -> u64 {
    sample.frontier_bytes
}

fn ms(ns: u64) -> f64 {
    ns as f64 / MS as f64
}

/// The value that this share of all does not exceed; sorts them.
pub(super) fn percentile(values: &mut [f64], share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * share).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::super::record::Standstill;
    use super::*;

    /// 10 s at 1000 bytes per millisecond; from 4 s on, for 20 ms nothing and then half as much,
    /// until 5 s; from 5.3 s on everything.
    fn record() -> Record {
        let mut record = Record::default();
        let mut frontier_bytes = 0;
        for at in 0..10_000 {
            let nic = if (4000..5300).contains(&at) { 0 } else { 500 };
            frontier_bytes += if (4000..4020).contains(&at) { 0 } else { 500 + nic };
            let last = record.samples.last().map_or(0, |sample: &Sample| sample.nic_bytes[0]);
            record.samples.push(Sample {
                at_ns: at * MS,
                frontier_bytes,
                nic_bytes: vec![last + nic, 0],
                short: at * 10,
            });
        }
        let mut stop = |from_ms: u64, length_ns| {
            record.standstills.push(Standstill { from_ns: from_ms * MS, length_ns });
        };
        // 0.2 % of all are longer than 0.1 ms, then 2 %.
        (0..20).for_each(|at| stop(3000 + at, 3 * MS));
        (0..200).for_each(|at| stop(6000 + at, 2 * MS));
        stop(3999, 21 * MS);
        record.standstills.sort_by_key(|one| one.from_ns);
        record
    }

    fn cut(cut_ms: u64, rail: u8) -> Cut {
        let (cut_ns, healed_ns) = (cut_ms * MS, (cut_ms + 1000) * MS);
        Cut { rails: vec![rail], cut_ns, healed_ns, end_ns: healed_ns + 2000 * MS }
    }

    #[test]
    fn a_fault_is_compared_with_what_was_before() {
        let record = record();
        let cuts = [cut(4000, 0)];
        let alone = [500e3, 500e3];
        let tally = Tally::default();
        let all = Findings::of(&record, &tally, 0, &cuts, Fault::Blackhole, &alone);
        let effect = &all.effects[0];
        assert_eq!((effect.standstill_ms, effect.before_ms, effect.gap_ms()), (21.0, 0.0, 21.0));
        // 100 ms of which 95 or more are as before.
        assert!((285.0..=300.0).contains(&effect.recovered_ms) && effect.is_recovered);
        let share = effect.surviving_share.unwrap();
        assert!((0.99..1.01).contains(&share), "{share}");
        let since = effect.surviving_ms.unwrap();
        assert!((14.0..=20.0).contains(&since), "{since}");
        assert!((all.rate_bytes_s - 1e6).abs() < 2e3, "{}", all.rate_bytes_s);
        assert!((all.nic_rates_bytes_s[0] - 5e5).abs() < 2e3);
        let course = all.course.unwrap();
        assert_eq!((course.points.len(), course.healed_ms), (2000, 1000.0));
        let point = &course.points[600];
        assert_eq!(point, &(100.0, 500.0, vec![0.0, 0.0]));
    }

    #[test]
    fn what_is_usual_is_taken_off() {
        let record = record();
        let look = Look { record: &record, alone_bytes_s: &[], settled_ns: 0 };
        assert_eq!(look.p99_before(7000 * MS), 2 * MS);
        assert_eq!(look.p99_before(9000 * MS), 0);
    }

    #[test]
    fn what_never_comes_back_is_not_called_recovered() {
        let mut record = record();
        record.samples.truncate(5200);
        let look = Look { record: &record, alone_bytes_s: &[500e3], settled_ns: 0 };
        let effect = look.effect(&cut(4000, 0), 1e6);
        assert_eq!((effect.is_recovered, effect.recovered_ms), (false, 2000.0));
        assert_eq!((effect.surviving_share, effect.surviving_ms), (None, None));
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let mut values: Vec<f64> = (1..=50).rev().map(f64::from).collect();
        assert_eq!(percentile(&mut values, 0.5), Some(25.0));
        assert_eq!(percentile(&mut values, 0.99), Some(50.0));
        assert_eq!(percentile(&mut [], 0.5), None);
    }
}
