//! `compare` from outside, in labs, with peers that are scripts: they listen and connect as the
//! real ones do, with help of the tool itself, and print what was recorded.

mod common;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::number;
use ringrail_tests::require_lab;
use serde_json::Value;

/// Beyond this something hangs.
const LIMIT: Duration = Duration::from_secs(240);

/// What the scripts of peers have in common: a server is a server of ringrail's, a client connects
/// to it before it prints anything.
const PEER: &str = r#"#!/bin/sh
case $1 in -*) ;; *) address=$1; shift ;; esac
while [ $# -gt 0 ]; do
    case $1 in
        -p) case $2 in tcp) ;; *) port=$2 ;; esac; shift ;;
        -B) port=$2; shift ;;
        -P) port=$2; is_client=1; shift ;;
        -s) size=$2; shift ;;
        -m | -f | -v) ;;
        -*) shift ;;
        *) address=$1 ;;
    esac
    shift
done
connect() { PERF floor tcp-latency --connect "$address:$port" --iters 5 --rounds 1 > /dev/null; }
"#;

/// UCX: `-s` is the size, and at 16 bytes it fails.
const UCX: &str = r#"
[ -n "$address" ] || exec PERF latency --listen "0.0.0.0:$port"
connect || exit 1
[ "$UCX_TLS:$UCX_NET_DEVICES" = tcp:rail0 ] || exit 2
if [ "$size" = 16 ]; then echo "UCX  ERROR no memory for 16" >&2; exit 3; fi
echo iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
echo 1000,2000.5,2,2,100.00,100.00,12500000,12500000
"#;

/// fabtests: the server has `-B`, the client `-P`; `-s` is the own address.
const FABTESTS: &str = r#"
[ -n "$is_client" ] || exec PERF latency --listen "$size:$port"
connect || exit 1
echo "- { xfer_size: 8, iterations: 9, MB/sec: 0.5, usec/xfer: 4000.5, Mxfers/sec: 1.0 }"
"#;

/// Open MPI: starts something in the other host by its agent, as it would its daemon.
const MPIRUN: &str = r##"#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
        plm_rsh_agent) agent=$2; shift ;;
        -m) size=${2%:*}; shift ;;
    esac
    shift
done
there=$("$agent" ringrail-b 'hostname; grep -o "rail[0-9]*" /proc/net/dev')
where="$(hostname):$(echo $there)"
[ "$where" = "ringrail-a:ringrail-b rail0" ] || { echo "not there: $where" >&2; exit 1; }
echo "# OSU MPI Latency Test v7.5"
echo "$size    3000.5"
"##;

/// A program in `folder`.
fn script(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    std::fs::write(&path, text.replace("PERF", env!("CARGO_BIN_EXE_ringrail-perf"))).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// All peers.
fn peers() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    script(folder.path(), "ucx_perftest", &format!("{PEER}{UCX}"));
    for program in ["fi_rdm_tagged_pingpong", "fi_rdm_tagged_bw"] {
        script(folder.path(), program, &format!("{PEER}{FABTESTS}"));
    }
    script(folder.path(), "mpirun", MPIRUN);
    script(folder.path(), "osu_latency", "");
    folder
}

fn compare(arguments: &[&str]) -> Output {
    common::perf(&[&["compare"], arguments].concat(), LIMIT)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What a row has of a system.
fn of<'a>(row: &'a Value, system: &str) -> &'a Value {
    let systems = row["systems"].as_array().unwrap();
    systems.iter().find(|it| it["system"] == system).unwrap_or_else(|| panic!("{system}: {row}"))
}

#[test]
fn peers_stand_beside_ringrail_and_failures_are_told() {
    require_lab!();
    let peers = peers();
    let at = peers.path().to_str().unwrap();
    let picture = peers.path().join("x.svg");
    let run = ["latency", "--lab", "rails=1", "--size", "8:16", "--iters", "20", "--rounds", "1"];
    let more = ["--json", "--plot", picture.to_str().unwrap(), "--ucx", at, "--fabtests", at];
    let output = compare(&[&run[..], &more].concat());
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "the failure of a peer is no failure: {stderr}");
    assert!(stderr.contains("ucx at 16 bytes") && stderr.contains("no memory for 16"), "{stderr}");
    let rows: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [first, second] = &rows[..] else { panic!("{stdout}") };
    assert_eq!((&first["test"], &first["unit"]), (&"compare latency".into(), &"us".into()));
    assert_eq!((&first["size_bytes"], &second["size_bytes"]), (&8.into(), &16.into()));
    assert_eq!(number(of(first, "ucx"), "value"), 2000.5, "{first}");
    assert_eq!(of(first, "ucx")["statistic"], "p50");
    assert_eq!(number(of(first, "libfabric"), "value"), 4000.5, "{first}");
    assert_eq!(of(first, "libfabric")["statistic"], "mean");
    for row in &rows {
        let ours = number(of(row, "ringrail"), "value");
        let best = if row["size_bytes"] == 8 { ("ucx", 2000.5) } else { ("libfabric", 4000.5) };
        assert_eq!(row["best_peer"], best.0, "{row}");
        let ratio = number(row, "ratio");
        assert!((ratio * ours / best.1 - 1.0).abs() < 1e-9, "{row}");
        for floor in ["udp-latency", "udp-gso-latency", "tcp-latency"] {
            let floor = of(row, floor);
            assert!(number(floor, "value") > 0.0 && floor["kind"] == "floor", "{row}");
        }
        assert!(!row["lanes"].as_array().unwrap().is_empty(), "{row}");
    }
    let failed = of(second, "ucx");
    assert!(failed["value"].is_null(), "{failed}");
    assert!(failed["errors"][0].as_str().unwrap().contains("no memory for 16"), "{failed}");
    let picture = std::fs::read_to_string(picture).unwrap();
    for text in ["latency, median (compare latency)", "ringrail", "ucx", "libfabric", "tcp-latency"]
    {
        assert!(picture.contains(&format!("\n{text}\n")), "{text}: {picture}");
    }
    // What was saved is what the others read.
    let saved = peers.path().join("saved");
    std::fs::write(&saved, stdout).unwrap();
    let saved = saved.to_str().unwrap();
    let diff = common::perf(&["diff", saved, saved], LIMIT);
    assert!(diff.status.success(), "{}", text(&diff.stderr));
    assert!(text(&diff.stdout).contains("compare latency (ringrail)"), "{}", text(&diff.stdout));
}

#[test]
fn bandwidth_has_a_table_too_and_what_is_missing_is_left_out() {
    require_lab!();
    let peers = peers();
    let at = peers.path().to_str().unwrap();
    let empty = tempfile::tempdir().unwrap();
    let run = ["bw", "--size", "8", "--iters", "20", "--rounds", "1", "--ucx", at];
    let output = compare(&[&run[..], &["--fabtests", at]].concat());
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{stdout}");
    let names: Vec<&str> = lines[1].split_whitespace().collect();
    let values: Vec<&str> = lines[2].split_whitespace().collect();
    let at = |name: &str| names.iter().position(|it| *it == name).unwrap() - 1;
    // 12.5 million messages a second of 8 bytes; the other prints what it calls MB/s.
    assert_eq!((values[at("ucx")], values[at("libfabric")]), ("100.00", "0.50"), "{stdout}");
    // `Best peer` is two words.
    assert_eq!(values[at("Best")], "ucx", "{stdout}");
    let nowhere = empty.path().to_str().unwrap();
    let output = compare(&["bw", "--ucx", nowhere]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--ucx: no ucx_perftest at"), "{:?}", output.stderr);
}

/// Without peers it is a measurement all the same; `mpirun` has its daemon started in host b.
#[test]
fn mpi_runs_across_the_hosts() {
    require_lab!();
    let peers = peers();
    let path = std::env::var("PATH").unwrap();
    let run = ["compare", "latency", "--size", "64K", "--iters", "20", "--rounds", "1", "--json"];
    let output = Command::new(env!("CARGO_BIN_EXE_ringrail-perf"))
        .args(run)
        .env("COMPARE_OSU", peers.path())
        .env("PATH", format!("{}:{path}", peers.path().display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    let row: Value = serde_json::from_str(&stdout).unwrap();
    let osu = of(&row, "osu");
    assert!(osu["value"] == 3000.5, "{osu}: {stderr}");
    // Trains of datagrams of a usual MTU, and a message by several calls.
    for floor in ["udp-gso-latency", "tcp-pipeline-latency"] {
        assert!(number(of(&row, floor), "value") > 0.0, "{row}");
    }
}

/// Frames are a floor where ringrail may have them, too, and of messages of several frames.
#[test]
fn lanes_of_frames_have_a_floor_of_frames() {
    require_lab!();
    for size in ["8", "4K"] {
        let run = ["latency", "--lanes", "hybrid", "--size", size, "--iters", "20", "--json"];
        let output = compare(&[&run[..], &["--rounds", "1"]].concat());
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{stderr}");
        let row: Value = serde_json::from_str(&stdout).unwrap();
        assert!(number(of(&row, "xdp-latency"), "value") > 0.0, "{row}");
    }
}

#[test]
fn bad_arguments_are_named() {
    for (arguments, cause) in [
        (&["latency", "--window", "3"][..], "--window is of bw"),
        (&["bw", "--window", "0"], "1 to 65536"),
        (&["bw", "--lab", "rails=none"], "--lab rails=none"),
        (&["mr"], "mr"),
        (&["latency", "--set", "arena=1"], "arena"),
    ] {
        let output = compare(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(cause), "{arguments:?}: {stderr}");
    }
}
