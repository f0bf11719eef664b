//! Results that were saved with `--json`, read again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::compare;
use crate::output::Report;

/// What a report measures: it has a unit, and less or more is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Metric {
    LatencyP50,
    Bandwidth,
    MessageRate,
}

impl Metric {
    pub(crate) const ALL: [Self; 3] = [Self::LatencyP50, Self::Bandwidth, Self::MessageRate];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::LatencyP50 => "latency, median",
            Self::Bandwidth => "bandwidth",
            Self::MessageRate => "message rate",
        }
    }

    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::LatencyP50 => "us",
            Self::Bandwidth => "MB/s",
            Self::MessageRate => "1/s",
        }
    }

    /// How many times `value` is as good as `reference`.
    pub(crate) fn ratio(self, value: f64, reference: f64) -> f64 {
        match self {
            Self::LatencyP50 => reference / value,
            Self::Bandwidth | Self::MessageRate => value / reference,
        }
    }

    /// The value of a report, if it has a positive one.
    pub(crate) fn of(self, report: &Report) -> Option<f64> {
        let value = match self {
            Self::LatencyP50 => report.latency_us_p50,
            Self::Bandwidth => report.bandwidth_mb_s,
            Self::MessageRate => report.message_rate_per_s,
        };
        value.filter(|value| value.is_finite() && *value > 0.0)
    }
}

/// What makes two measurements the same one: test, message size in bytes, threads, metric.
pub(crate) type Key = (String, usize, usize, Metric);

/// The kinds of lanes of a report, without their NICs: `udp+uring`.
pub(crate) fn kinds(report: &Report) -> String {
    let kinds = report.lanes.iter().map(|lane| lane.split_once(':').map_or(&**lane, |lane| lane.0));
    let mut kinds: Vec<_> = kinds.collect();
    // There is one for each rail.
    kinds.dedup();
    kinds.join("+")
}

/// The kinds of lanes over which each test was measured. A test of several has no one value.
pub(crate) fn kinds_of_tests(reports: &[Report]) -> BTreeMap<&str, BTreeSet<String>> {
    let mut all: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for report in reports {
        all.entry(&report.test).or_default().insert(kinds(report));
    }
    all
}

/// Reads the lines of a file; empty ones are left out.
pub(crate) fn read(path: &Path) -> Result<Vec<Report>, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
    parse(&text).map_err(|error| format!("{name}{error}"))
}

fn parse(text: &str) -> Result<Vec<Report>, String> {
    let mut reports = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        if let Ok(row) = serde_json::from_str::<compare::SavedRow>(line) {
            reports.extend(row.reports());
            continue;
        }
        let report: Report = serde_json::from_str(line)
            .map_err(|error| format!(":{number}: {error}; save the output of --json"))?;
        if !report.verified {
            return Err(format!(":{number}: its content was wrong: measure it again"));
        }
        reports.push(report);
    }
    if reports.is_empty() {
        return Err(": no results in it; save the output of --json".to_owned());
    }
    Ok(reports)
}

/// The values by what they measure; of repeated measurements the median.
pub(crate) fn values(reports: &[Report]) -> BTreeMap<Key, f64> {
    let mut all: BTreeMap<Key, Vec<f64>> = BTreeMap::new();
    for report in reports {
        for metric in Metric::ALL {
            if let Some(value) = metric.of(report) {
                let key = (report.test.clone(), report.size_bytes, report.threads, metric);
                all.entry(key).or_default().push(value);
            }
        }
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    all.into_iter().map(|(key, values)| (key, median(values))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"test":"latency","size_bytes":8,"iterations":1,"threads":1,
        "lanes":[],"latency_us_p50":VALUE,"verified":true}"#;

    fn line(value: &str) -> String {
        LINE.replace('\n', "").replace("VALUE", value)
    }

    #[test]
    fn repeated_measurements_have_one_value() {
        let lines = ["9.0", "2.0", "3.0"].map(line);
        let values = values(&parse(&lines.join("\n\n")).unwrap());
        let key = ("latency".to_owned(), 8, 1, Metric::LatencyP50);
        assert_eq!(values, BTreeMap::from([(key, 3.0)]));
    }

    #[test]
    fn lanes_are_told_apart_by_kind() {
        let lanes = [r#"["uring:a"]"#, r#"["uring:a","uring:b"]"#, r#"["udp:a","uring:a"]"#];
        let lines = lanes.map(|lanes| line("1.0").replace("[]", lanes));
        let reports = parse(&lines.join("\n")).unwrap();
        assert_eq!(kinds_of_tests(&reports[..2])["latency"], BTreeSet::from(["uring".to_owned()]));
        let both = ["udp+uring", "uring"].map(str::to_owned);
        assert_eq!(kinds_of_tests(&reports)["latency"], BTreeSet::from(both));
    }

    #[test]
    fn what_cannot_be_trusted_is_named_by_line() {
        let good = line("1.0");
        let wrong = good.replace("true", "false");
        assert!(parse(&format!("{good}\n{wrong}")).unwrap_err().starts_with(":2: "));
        assert!(parse(&format!("{good}\n# Size")).unwrap_err().starts_with(":2: "));
        assert!(parse("\n").is_err());
    }

    #[test]
    fn a_ratio_above_1_is_better_whichever_way_the_unit_points() {
        assert_eq!(Metric::LatencyP50.ratio(2.0, 4.0), 2.0);
        assert_eq!(Metric::Bandwidth.ratio(4.0, 2.0), 2.0);
    }

    /// Whatever a file holds, it is read, or refused with the line; what is read has values that
    /// can be compared.
    #[test]
    fn fuzz_saved_results() {
        const WORDS: [&str; 8] =
            ["9.0", "0", "-1", "1e999", "null", "true", "\"latency_us_p50\":", "\n"];
        let time = std::time::Duration::from_millis(500);
        bolero::check!().with_test_time(time).with_max_len(100).for_each(|input: &[u8]| {
            let mut text = line("1.0");
            let mut at = 0;
            for pair in input.chunks_exact(2) {
                at = (at + usize::from(pair[0])) % (text.len() + 1);
                let word = match pair[1] {
                    128.. => WORDS[usize::from(pair[1]) % WORDS.len()].to_owned(),
                    letter => char::from(letter).to_string(),
                };
                let end = (at + usize::from(pair[1] % 4)).min(text.len());
                text.replace_range(at..end, &word);
            }
            match parse(&text) {
                Ok(reports) => {
                    assert!(reports.iter().all(|report| report.verified));
                    assert!(values(&reports).values().all(|value| *value > 0.0));
                }
                Err(error) => assert!(error.starts_with(':')),
            }
        });
    }
}
