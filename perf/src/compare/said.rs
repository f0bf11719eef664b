//! What the peers' tools print.

use super::CompareTest;
use crate::output::Report;

/// Bytes of what UCX calls a megabyte.
const UCX_MB: f64 = (1 << 20) as f64;

/// A value of ringrail's own programs, and the lanes that it went by.
pub(super) fn by_ringrail(said: &str, test: CompareTest) -> Result<(f64, Vec<String>), String> {
    let report: Report = serde_json::from_str(said.trim())
        .map_err(|error| format!("ringrail-perf printed no result: {error}"))?;
    if !report.verified {
        return Err("content was wrong; please report it".to_owned());
    }
    let value = test.metric().of(&report).ok_or("ringrail-perf printed no figure")?;
    Ok((value, report.lanes))
}

/// `ucx_perftest -f -v`: the only line of numbers has iterations, latency (percentile, average of
/// late, of all), bandwidth (the same two averages), and message rate (the same).
pub(super) fn by_ucx(said: &str, test: CompareTest, size: usize) -> Result<f64, String> {
    let numbers = |line: &str| -> Option<Vec<f64>> {
        let numbers: Result<Vec<f64>, _> =
            line.split(',').map(|number| number.trim().parse()).collect();
        numbers.ok().filter(|numbers| numbers.len() == 8)
    };
    let line = said.lines().rev().find_map(numbers);
    let line = line.ok_or_else(|| nothing("ucx_perftest", said))?;
    Ok(match test {
        CompareTest::Latency => line[1],
        CompareTest::Bw => {
            let (bandwidth, rate) = (line[5], line[7]);
            // The one is rounded to hundredths, the other to wholes.
            match bandwidth * 100.0 > rate {
                true => bandwidth * UCX_MB / 1e6,
                false => rate * size as f64 / 1e6,
            }
        }
    })
}

/// Programs of fabtests with `-m`: `- { xfer_size: 8, …, MB/sec: 1.9, usec/xfer: 4.2, … }`.
pub(super) fn by_fabtests(said: &str, test: CompareTest) -> Result<f64, String> {
    let key = match test {
        CompareTest::Latency => "usec/xfer: ",
        CompareTest::Bw => "MB/sec: ",
    };
    let value = said.lines().rev().find_map(|line| {
        let (_, rest) = line.strip_prefix("- {")?.split_once(key)?;
        rest.split([',', ' ']).next()?.parse().ok()
    });
    value.ok_or_else(|| nothing("fabtests", said))
}

/// `fi_pingpong`: columns with a line of names above.
pub(super) fn by_fi_pingpong(said: &str) -> Result<f64, String> {
    let mut lines = said.lines();
    let column = lines
        .by_ref()
        .find_map(|line| line.split_whitespace().position(|name| name == "usec/xfer"));
    let value = column.and_then(|at| lines.next()?.split_whitespace().nth(at)?.parse().ok());
    value.ok_or_else(|| nothing("fi_pingpong", said))
}

/// OSU's programs: comments, and a line of size and value.
pub(super) fn by_osu(said: &str, size: usize) -> Result<f64, String> {
    let value = said.lines().find_map(|line| {
        let mut columns = line.split_whitespace();
        (columns.next()?.parse() == Ok(size)).then(|| columns.next()?.parse().ok())?
    });
    value.ok_or_else(|| nothing("OSU's program", said))
}

fn nothing(who: &str, said: &str) -> String {
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing at all");
    format!("no figure in what {who} printed, at last: {}", last.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// UCX 1.23 on a busy host, with a warning of its own.
    const UCX: &str = "\
[1795383396.214847] [vm:4331 :0]     parser.c:2359 UCX  WARN  unused environment variable
iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
1000,5.976,653.563,1935.058,98.86,98.86,1582,1582
";
    /// fabtests of libfabric 2.7.
    const FABTESTS: &str = "\
---
/opt/bin/fi_rdm_tagged_bw -p tcp -P 21004 -S 65536 -I 1000 -m 127.0.0.1 :
- { xfer_size: 65536, iterations: 1000, total: 65536000, time: 0.475833, MB/sec: 137.728993, \
usec/xfer: 475.833008, Mxfers/sec: 0.002102 }
";
    const FI_PINGPONG: &str = "\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
8       1k      =1k      15k         1.62s      0.01     808.49       0.00
";
    const OSU: &str = "\
# OSU MPI Bandwidth Test v5.6.2
# Size      Bandwidth (MB/s)
8                       4.21
";
    /// Of version 7, which says what it sends.
    const OSU_7: &str = "
# OSU MPI Latency Test v7.5
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)
8                       3.80
";

    #[test]
    fn every_tool_is_understood() {
        use CompareTest::{Bw, Latency};
        assert_eq!(by_ucx(UCX, Latency, 65536), Ok(5.976));
        // Of two roundings the finer one, in units of 10^6 bytes.
        assert_eq!(by_ucx(UCX, Bw, 65536), Ok(98.86 * UCX_MB / 1e6));
        let short = "1000000,0.641,1.2,1.2,0.79,0.79,830000,830001\n";
        assert_eq!(by_ucx(short, Bw, 1), Ok(0.830_001));
        assert_eq!(by_fabtests(FABTESTS, Latency), Ok(475.833_008));
        assert_eq!(by_fabtests(FABTESTS, Bw), Ok(137.728_993));
        assert_eq!(by_fi_pingpong(FI_PINGPONG), Ok(808.49));
        assert_eq!(by_osu(OSU, 8), Ok(4.21));
        assert_eq!(by_osu(OSU_7, 8), Ok(3.8));
        let report = r#"{"test":"latency","size_bytes":8,"iterations":1,"threads":1,
            "lanes":["udp:rail0"],"latency_us_p50":2.5,"verified":true}"#;
        let lanes = vec!["udp:rail0".to_owned()];
        assert_eq!(by_ringrail(report, Latency), Ok((2.5, lanes)));
    }

    #[test]
    fn what_is_no_result_is_shown() {
        let error = by_ucx("iterations,avg\nit went wrong\n\n", CompareTest::Bw, 8).unwrap_err();
        assert!(error.ends_with("ucx_perftest printed, at last: it went wrong"), "{error}");
        assert!(by_osu(OSU, 16).is_err(), "a figure of another size");
        assert!(by_fabtests("", CompareTest::Bw).unwrap_err().ends_with("nothing at all"));
        assert!(by_fi_pingpong("bytes MB/sec usec/xfer\n").is_err(), "no line of values");
        let wrong = r#"{"test":"bw","size_bytes":8,"iterations":1,"threads":1,"lanes":[],
            "bandwidth_mb_s":2.5,"verified":false}"#;
        assert!(by_ringrail(wrong, CompareTest::Bw).unwrap_err().contains("content was wrong"));
    }
}
