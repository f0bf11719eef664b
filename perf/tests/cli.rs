//! The command line from outside: every test over the loopback address, what it prints, and how
//! it ends.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[path = "common/loopback.rs"]
mod loopback;

use loopback::{LATENCIES, assert_counted, assert_report, objects, perf, text};
use serde_json::Value;

/// Runs a test of the engine at the sizes 8 and 16, or those given.
fn engine_test(test: &str, more: &[&str], sizes: &[u64], iters: u64, fields: &[&str]) {
    let range = format!("{}:{}", sizes[0], sizes[sizes.len() - 1]);
    let count = iters.to_string();
    let common = [test, "--loopback", "--rounds", "1", "--size", &range, "--iters", &count];
    let reports = objects(&[&common, more].concat());
    assert_eq!(reports.len(), sizes.len());
    for (report, size) in reports.iter().zip(sizes) {
        assert_report(report, test, *size, iters, fields);
        // By default datagrams carry what is short, and a path may go silent for a while.
        let control = report["control_lane"].as_str().unwrap();
        assert!(["udp", "tcp", "udp+tcp"].contains(&control), "{report}");
        assert_eq!(report["lanes"].as_array().unwrap().len(), 2, "{report}");
        assert_eq!(report["lanes"][0], format!("{control}:lo"), "{report}");
        assert_counted(report);
    }
}

#[test]
fn latency_reports_its_distribution() {
    engine_test("latency", &[], &[8, 16], 20, &LATENCIES);
    engine_test("latency", &["--verify", "--buffers", "heap"], &[65_536], 5, &LATENCIES);
}

#[test]
fn latency_runs_without_io_uring() {
    let arguments = ["latency", "--loopback", "--lanes", "sockets", "--iters", "10"];
    let reports = objects(&arguments);
    assert_report(&reports[0], "latency", 8, 10, &LATENCIES);
    assert_eq!(reports[0]["lanes"][0], "sockets:lo");
}

/// The test of the tool with datagrams as control lane; the reports, which have what all have.
fn datagram_test(test: &str, lanes: &str, iters: u64, fields: &[&str]) -> Vec<Value> {
    let iters_text = iters.to_string();
    let run = [test, "--loopback", "--lanes", lanes, "--rounds", "1", "--iters", &iters_text];
    let reports = objects(&run);
    let size = if test == "bw" { 1 << 20 } else { 8 };
    assert_eq!(reports.len(), 1);
    assert_report(&reports[0], test, size, iters, fields);
    assert_counted(&reports[0]);
    for field in ["datagrams_sent", "datagrams_lost", "datagrams_dropped"] {
        for side in ["", "_peer"] {
            let field = format!("{field}{side}");
            assert!(reports[0][&field].is_u64(), "{field}: {}", reports[0]);
        }
    }
    assert!(reports[0]["datagram_share"].as_f64().unwrap() > 0.0, "{}", reports[0]);
    reports
}

/// On a busy machine a path may go silent for a while, and then TCP takes over: both are named.
#[test]
fn control_lanes_of_datagrams_are_named_and_counted() {
    for (lanes, bulk) in [("udp", None), ("udp-sockets", Some("sockets:lo"))] {
        let fields = [&LATENCIES[..], &["datagrams_sent", "datagrams_sent_peer"]].concat();
        let report = &datagram_test("latency", lanes, 200, &fields)[0];
        let control = report["control_lane"].as_str().unwrap();
        assert!(["udp", "udp+tcp"].contains(&control), "{report}");
        assert_eq!(report["datagram_share"] == 1.0, control == "udp", "{report}");
        assert_eq!(report["lanes"][0], format!("{control}:lo"), "{report}");
        assert_eq!(report["lanes"].as_array().unwrap().len(), 2, "{report}");
        if let Some(bulk) = bulk {
            assert_eq!(report["lanes"][1], bulk, "{report}");
        }
    }
    datagram_test("mr", "udp", 2000, &["message_rate_per_s"]);
    datagram_test("bw", "udp-sockets", 10, &["bandwidth_mb_s"]);
    let fields = [&LATENCIES[..], &["bandwidth_mb_s"]].concat();
    datagram_test("latency-under-load", "udp", 5, &fields);
}

#[test]
fn control_lanes_of_tcp_are_named() {
    let run = ["latency", "--loopback", "--lanes", "sockets", "--rounds", "1", "--iters", "10"];
    let report = &objects(&run)[0];
    assert_eq!(report["lanes"], serde_json::json!(["sockets:lo"]), "{report}");
    assert_eq!(report["control_lane"], "tcp", "{report}");
    assert!(report["datagram_share"].is_null() && report["datagrams_sent"].is_null(), "{report}");
}

#[test]
fn tables_show_datagrams() {
    let run = ["latency", "--loopback", "--lanes", "udp-sockets", "--rounds", "1", "--iters"];
    let table = text(&perf(&[&run[..], &["200"]].concat()).stdout);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].contains("udp") && lines[0].contains("sockets:lo"), "{table}");
    for column in ["By datagram (%)", "Datagrams", "Datagrams lost", "Datagrams dropped"] {
        assert!(lines[1].contains(column), "{table}");
    }
}

/// What was measured over TCP is not printed as a figure of UDP.
#[test]
fn a_fallback_to_tcp_is_an_error() {
    let cases = [
        ("control_lane=tcp", &["no datagram was sent"][..]),
        // Probes are sent now and then, and none is answered.
        ("inject_faults=seed=1 lose=1", &["none carried a message", "no datagram was sent"]),
    ];
    for (setting, causes) in cases {
        let run = ["latency", "--loopback", "--lanes", "udp-sockets", "--rounds", "1"];
        let output = perf(&[&run[..], &["--iters", "2000", "--set", setting]].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{setting}: {stderr}");
        assert_eq!(text(&output.stdout), "", "{setting}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(causes.iter().any(|cause| stderr.contains(cause)), "{setting}: {stderr}");
        assert!(stderr.contains("went by TCP"), "{setting}: {stderr}");
    }
}

#[test]
fn streams_report_bandwidth() {
    let fields = ["bandwidth_mb_s", "message_rate_per_s"];
    engine_test("bw", &[], &[65_536, 131_072], 10, &fields);
    engine_test("bibw", &["--window", "3"], &[65_536], 10, &fields);
}

/// One buffer for all messages, whether they go with their envelopes or are pulled, and from
/// either kind of memory.
#[test]
fn streams_may_have_one_buffer() {
    let fields = ["bandwidth_mb_s", "message_rate_per_s"];
    let same = ["--reuse", "same"];
    for size in [1, 1024, 65_536] {
        engine_test("bw", &[&same[..], &["--window", "16"]].concat(), &[size], 50, &fields);
    }
    let both = [&same[..], &["--verify", "--buffers", "heap"]].concat();
    engine_test("bibw", &both, &[8, 16], 50, &fields);
}

#[test]
fn message_rate_reports_messages() {
    engine_test("mr", &[], &[8, 16], 500, &["message_rate_per_s"]);
}

#[test]
fn latency_under_load_reports_both() {
    let fields = [&LATENCIES[..], &["bandwidth_mb_s"]].concat();
    engine_test("latency-under-load", &[], &[8], 5, &fields);
}

#[test]
fn floors_of_two_sides_report_what_they_bound() {
    for (floor, size, fields) in [
        ("tcp-latency", 64, &LATENCIES[..]),
        ("tcp-pipeline-latency", 40_000, &LATENCIES),
        ("udp-latency", 64, &[&LATENCIES[..], &["datagrams_sent"]].concat()),
        ("udp-gso-latency", 64, &LATENCIES),
        ("udp-gso-latency", 65_536, &LATENCIES),
        ("tcp-stream", 64, &["bandwidth_mb_s"]),
    ] {
        let text = size.to_string();
        // Which lanes a script has for all of its tests is nothing to a floor.
        let script = ["--loopback", "--rounds", "1", "--iters", "10", "--lanes", "udp"];
        let run = [&["floor", floor, "--size", &text], &script[..]].concat();
        let reports = objects(&run);
        assert_eq!(reports.len(), 1);
        assert_report(&reports[0], &format!("floor {floor}"), size, 10, fields);
    }
}

#[test]
fn floors_of_one_host_need_no_other_side() {
    let reports = objects(&["floor", "wake"]);
    assert_eq!(reports[0]["test"], "floor wake");
    assert!(reports[0]["latency_us_p50"].as_f64().unwrap() > 0.0);
    let csv = text(&perf(&["floor", "wake", "--csv"]).stdout);
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("size,Latency (us),"), "{csv}");
    assert!(lines[1].starts_with("0,"), "{csv}");
}

#[test]
fn tables_and_csv_have_a_line_per_size() {
    let run = ["latency", "--loopback", "--brief", "--iters", "10", "--size", "8:32"];
    let table = text(&perf(&run).stdout);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("# ringrail-perf latency, kernel "), "{table}");
    assert!(lines[1].starts_with("# Size ") && lines[1].contains("Latency (us)"), "{table}");
    let sizes: Vec<&str> = lines[2..].iter().map(|l| l.split(' ').next().unwrap()).collect();
    assert_eq!(sizes, ["8", "16", "32"]);
    let csv = text(&perf(&[&run[..], &["--csv"]].concat()).stdout);
    let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns, [columns[0]; 4], "{csv}");
}

/// The secret of the environment is in force, and nowhere to be seen.
#[test]
fn secrets_are_not_printed() {
    const SECRET: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    for arguments in [&["info"][..], &["latency", "--loopback", "--iters", "10", "--json"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_ringrail-perf"))
            .args(arguments)
            .env("RINGRAIL_JOB_SECRET", SECRET)
            .env("RUST_LOG", "trace")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let shown = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "{shown}");
        assert!(!shown.contains(&SECRET[..8]), "{arguments:?}");
        if arguments == ["info"] {
            let line = shown.lines().find(|line| line.contains("job_secret ")).unwrap();
            assert!(line.contains("(hidden)") && line.contains("RINGRAIL_JOB_SECRET"), "{line}");
        }
    }
    let setting = format!("job_secret={SECRET}");
    let refused = perf(&["latency", "--loopback", "--set", &setting]);
    assert!(!refused.status.success());
    let error = text(&refused.stderr);
    assert!(error.contains("RINGRAIL_JOB_SECRET") && !error.contains(&SECRET[..8]), "{error}");
}

#[test]
fn pcap_writes_what_the_client_carries() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lanes.pcap");
    let run = ["latency", "--loopback", "--rounds", "1", "--iters", "10", "--size", "8:16"];
    let output = perf(&[&run[..], &["--pcap", file.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    for name in ["lanes.pcap", "lanes-2.pcap"] {
        let bytes = std::fs::read(folder.path().join(name)).unwrap();
        let hello = bytes.windows(8).filter(|word| *word == b"RINGRAIL").count();
        assert!(hello >= 2, "{name}: {hello}; a hello and its reply, more where connects cross");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "the server writes none");
    let nowhere = folder.path().join("missing/x.pcap");
    let output = perf(&[&run[..], &["--pcap", nowhere.to_str().unwrap()]].concat());
    assert!(!output.status.success() && text(&output.stderr).contains("missing/x.pcap"));
}

#[test]
fn info_names_the_settings() {
    let output = perf(&["info", "--set", "chunk_bytes=65536"]);
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let line = stdout.lines().find(|line| line.trim_start().starts_with("chunk_bytes "));
    assert!(line.is_some_and(|line| line.contains("64K") && line.contains("builder")), "{stdout}");
}

#[test]
fn info_tells_facts_as_json() {
    let info = &objects(&["info", "--lanes", "udp"])[0];
    let text_of = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{info}")).to_owned();
    assert!(text_of(&info["kernel"]).starts_with(|c: char| c.is_ascii_digit()), "{info}");
    let nics = info["nics"].as_array().unwrap();
    let lo = nics.iter().find(|nic| nic["name"] == "lo").unwrap();
    assert_eq!((&lo["queues"], &lo["driver"]), (&Value::from(1), &Value::from("")), "{lo}");
    assert!(text_of(&lo["no_frames"]).contains("loopback"), "{lo}");
    for nic in nics {
        assert!(!text_of(&nic["steering"]).is_empty() && !text_of(&nic["xdp_mode"]).is_empty());
        assert!(nic["mtu_bytes"].as_u64().is_some_and(|mtu| mtu > 0), "{nic}");
    }
    if cfg!(feature = "hwloc") {
        let cores = info["machine"]["cores"].as_array().unwrap();
        let places = info["machine"]["nics"].as_array().unwrap();
        assert!(places.iter().any(|place| place["nic"] == "lo" && place["processors"].is_null()));
        let has_processors = |core: &Value| !core["processors"].as_array().unwrap().is_empty();
        assert!(cores.iter().all(has_processors), "{info}");
    }
    let frames = &info["frames"];
    let is_missing = !frames["missing"].as_array().unwrap().is_empty();
    assert!(!is_missing || text_of(&frames["cure"]).contains("setcap"), "{frames}");
    assert!(info["endpoint"]["locator"].is_string() && info["settings"].is_array(), "{info}");
}

#[test]
fn info_prints_how_messages_to_a_listening_peer_travel() {
    let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
    let settings = settings.insecure(true).build().unwrap();
    let server = ringrail::Domain::with_settings(settings).and_then(|domain| domain.endpoint());
    let server = server.and_then(|endpoint| endpoint.share()).unwrap();
    let at = server.address().locator();
    let run = ["info", "--nics", "127.0.0.1", "--set", "insecure=true", "--peer"];
    let text_of = |lanes: &str| {
        let output = perf(&[&run[..], &[&at.to_string(), "--lanes", lanes]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let stdout = text(&output.stdout);
        let line = stdout.lines().find(|line| line.starts_with(&format!("  {at}: messages go ")));
        line.unwrap_or_else(|| panic!("{stdout}")).to_owned()
    };
    assert!(text_of("shm").contains("through shared memory"));
    assert!(text_of("udp").contains("in one datagram"));
    let at = at.to_string();
    let info = &objects(&[&run[..], &[at.as_str()]].concat())[0]["peers"][0];
    assert_eq!(info["is_connected"], true, "{info}");
    drop(server);
    let output = text(&perf(&[&run[..], &[at.as_str()]].concat()).stdout);
    assert!(output.contains(&format!("{at} cannot be reached: ")), "{output}");
}

#[test]
fn info_prints_rails_and_how_a_peer_is_reached() {
    let run = ["info", "--nics", "127.0.0.1,127.0.0.2", "--peer", "127.0.0.9,localhost"];
    let info = &objects(&run)[0]["candidates"];
    let rows = info["rows"].as_array().unwrap();
    for (rail, address) in ["127.0.0.1", "127.0.0.2"].into_iter().enumerate() {
        let row = &rows[rail];
        assert_eq!((&row["rail"], &row["nic"]), (&Value::from(rail), &Value::from("lo")), "{row}");
        assert_eq!((&row["address"], &row["role"]), (&address.into(), &"ordinary".into()), "{row}");
        assert_eq!(row["routes"][0]["kind"], "local", "{row}");
    }
    let others = &rows[2..];
    assert!(others.iter().all(|row| row["reason"].as_str().unwrap().contains("not named")));
    assert!(info["peers"].as_array().unwrap().iter().any(|peer| peer == "127.0.0.1"), "{info}");
    let output = perf(&run);
    let stdout = text(&output.stdout);
    let row = stdout.lines().find(|line| line.starts_with("  1     lo "));
    assert!(row.is_some_and(|row| row.contains("127.0.0.2") && row.contains("local")), "{stdout}");
    let output = perf(&["info", "--peer", "nobody.invalid"]);
    assert!(!output.status.success() && text(&output.stderr).contains("nobody.invalid"));
}

#[test]
fn the_crossover_is_measured_in_three_ways() {
    let run = ["crossover", "--loopback", "--brief", "--iters", "20", "--size", "4096:8192"];
    let reports = objects(&run);
    assert_eq!(reports.len(), 6);
    for (at, report) in reports.iter().enumerate() {
        let way = ["crossover-eager", "crossover-pulled", "crossover-default"][at % 3];
        assert_report(report, way, 4096 << (at / 3), 20, &LATENCIES);
        assert!(report["crossover_bytes"].as_u64().is_some(), "{report}");
        let limit = report["eager_limit_bytes"].as_u64().unwrap();
        match way {
            "crossover-eager" => assert_eq!(limit, 262_144),
            "crossover-pulled" => assert_eq!(limit, 0),
            _ => assert_eq!(limit, 65_536),
        }
    }
}

#[test]
fn info_says_what_becomes_of_datagrams() {
    let line = |arguments: &[&str]| {
        let common = ["info", "--set", "listen_address=127.0.0.1"];
        let output = perf(&[&common[..], arguments].concat());
        let stdout = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        stdout.lines().skip_while(|line| *line != "endpoint").nth(1).unwrap().trim().to_owned()
    };
    let taken = line(&["--lanes", "udp-sockets"]);
    assert!(taken.starts_with("127.0.0.1:") && taken.contains("by sockets"), "{taken}");
    let number = |after: &str| -> u64 {
        let rest = taken.split_once(after).unwrap_or_else(|| panic!("{after}: {taken}")).1;
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    assert!(number("UDP port ") > 0 && number("buffers of ") > 4096 && number(" in and ") > 4096);
    let off = line(&["--lanes", "sockets"]);
    assert!(off.contains("no datagrams") && off.contains("control_lane"), "{off}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let none = line(&["--lanes", "sockets", "--set", &format!("port_range={port}-{port}")]);
    assert!(none.contains("cannot be had") && none.contains("cannot listen"), "{none}");
}

/// Bad arguments: exit code 2, and a word of the cause on standard error.
#[test]
fn bad_arguments_are_named() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["latenc"], "latenc"),
        (&["latency"], "--loopback"),
        (&["latency", "--loopback", "--size", "x"], "`x` is not a size"),
        (&["latency", "--loopback", "--size", "16:8"], "16 is more than 8"),
        (&["latency", "--loopback", "--iters", "-1"], "-1"),
        (&["latency", "--loopback", "--json", "--csv"], "--csv"),
        (&["latency", "--loopback", "--connect", "127.0.0.1:1"], "--connect"),
        (&["latency", "--loopback", "--set", "arena_bytes"], "NAME=VALUE"),
        (&["latency", "--loopback", "--set", "arena=1"], "arena"),
        (&["latency", "--lab", "rails=none"], "--lab rails=none"),
        (&["latency", "--lab", "rate=fast"], "`rate=fast` is not `rate=1gbit:3gbit`"),
        (
            &["latency", "--loopback", "--reuse", "same"],
            "--reuse is no option of latency: it is of bw",
        ),
        (
            &["bw", "--loopback", "--pause-us", "5"],
            "--pause-us is no option of bw: it is of latency",
        ),
        (&["floor", "tcp-latency", "--loopback", "--pause-us", "5"], "--pause-us is of latency"),
        (
            &["latency", "--loopback", "--plot", "x.svg"],
            "--plot is no option of latency: it is of failover",
        ),
        (&["failover", "--loopback"], "--lab rails=2"),
        (&["failover", "--lab", "rails=2", "--size", "5000"], "4 KiB"),
        (&["failover", "--lab", "rails=2", "--fault", "fire"], "fire"),
        (&["latency", "wake", "--loopback"], "wake"),
        (&["mr", "--loopback", "--size", "1M"], "16384"),
        (&["mr", "--loopback", "--threads", "0"], "1 to 64"),
        (&["latency", "--loopback", "--threads", "2"], "latency-mt"),
        (&["mr", "--loopback", "--threads", "2", "--pcap", "x"], "--threads 1"),
        (&["incast", "--loopback", "--shared"], "--shared is no option of incast"),
        (&["mr", "--loopback", "--shared", "--lanes", "udp"], "udp-sockets"),
        (&["mr", "--loopback", "--window", "0"], "1 to 65536"),
        (&["bw", "--loopback", "--window", "18446744073709551615"], "1 to 65536"),
        (&["latency-under-load", "--loopback", "--size", "4"], "8 to 1048576"),
        (&["latency-under-load", "--loopback", "--size", "8:2M"], "8 to 1048576"),
        (&["floor", "tcp-latency", "--loopback", "--size", "0:8"], "1 byte"),
        (&["floor", "udp-latency", "--loopback", "--size", "64K"], "65507"),
        (&["floor", "udp-gso-latency", "--loopback", "--size", "128K"], "65536"),
        (&["floor"], "which floor"),
        (&["floor", "tcp-latency"], "--loopback"),
        (&["floor", "memcpy", "--pcap", "x.pcap"], "--pcap is no option of floor"),
    ];
    for (arguments, cause) in cases {
        let output = perf(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(cause), "{arguments:?}: {stderr}");
        assert_eq!(text(&output.stdout), "", "{arguments:?}");
    }
}

/// A sweep that Ctrl-C ends: what was measured by then is there, and the server is gone.
#[test]
fn an_interruption_prints_what_is_there() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ringrail-perf"))
        .env("RINGRAIL_SHARED_MEMORY", "off")
        .args(["latency", "--loopback", "--json", "--rounds", "1000000", "--iters", "10"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    // A round takes milliseconds; on a busy machine there may be none yet.
    let deadline = Instant::now() + Duration::from_secs(60);
    let output = loop {
        std::thread::sleep(Duration::from_secs(2));
        // SAFETY: a signal to a child that was not waited for.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
        assert!(Instant::now() < deadline, "it does not end");
        std::thread::sleep(Duration::from_millis(500));
        if child.try_wait().unwrap().is_some() {
            break child.wait_with_output().unwrap();
        }
    };
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted"), "{stderr}");
    if !stdout.is_empty() {
        let report: Value = serde_json::from_str(stdout.trim()).unwrap();
        assert_report(&report, "latency", 8, 10, &LATENCIES);
        assert!(stderr.contains("of 1000000 rounds"), "{stderr}");
    }
}

/// A measurement that fails: exit code 1, one line on standard error.
#[test]
fn a_failure_is_one_line() {
    // A port that nobody listens on, of a host that cannot be there.
    let output = perf(&["latency", "--listen", "192.0.2.1:1"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("cannot listen on 192.0.2.1:1"), "{stderr}");
}

/// A file of one result, with a latency and a bandwidth.
fn saved(folder: &tempfile::TempDir, name: &str, latency: f64, bandwidth: f64) -> String {
    let common = r#""size_bytes":8,"iterations":1,"threads":1,"lanes":["uring:lo"]"#;
    let text = format!(
        "{{\"test\":\"latency\",{common},\"latency_us_p50\":{latency},\"verified\":true}}\n\
         {{\"test\":\"bw\",{common},\"bandwidth_mb_s\":{bandwidth},\"verified\":true}}\n"
    );
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn diff_finds_a_regression_either_way() {
    let folder = tempfile::tempdir().unwrap();
    let before = saved(&folder, "before", 4.0, 1000.0);
    let cases = [
        ("slower", 5.0, 1000.0, "0.1", 1),
        ("slower but tolerated", 5.0, 1000.0, "0.3", 0),
        ("narrower", 4.0, 800.0, "0.1", 1),
        ("better", 2.0, 2000.0, "0", 0),
    ];
    for (name, latency, bandwidth, tolerance, code) in cases {
        let after = saved(&folder, name, latency, bandwidth);
        let run = ["diff", &before, &after, "--tolerance", tolerance];
        let output = perf(&run);
        assert_eq!(output.status.code(), Some(code), "{name}: {}", text(&output.stdout));
        assert_eq!(text(&output.stdout).contains("WORSE"), code == 1, "{name}");
        let output = perf(&[&run[..], &["--json"]].concat());
        let lines = text(&output.stdout);
        let lines: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let ratios: Vec<f64> = lines.iter().map(|line| line["ratio"].as_f64().unwrap()).collect();
        assert_eq!(ratios, [bandwidth / 1000.0, 4.0 / latency], "{name}");
    }
}

#[test]
fn diff_refuses_what_has_nothing_in_common() {
    let folder = tempfile::tempdir().unwrap();
    let one = saved(&folder, "one", 4.0, 1000.0);
    let half = folder.path().join("half");
    let line = std::fs::read_to_string(&one).unwrap().lines().next().unwrap().to_owned();
    std::fs::write(&half, &line).unwrap();
    let other = folder.path().join("other");
    std::fs::write(&other, line.replace(":8,", ":16,")).unwrap();
    let (half, other) = (half.to_str().unwrap(), other.to_str().unwrap());
    for (arguments, code, cause) in [
        (&["diff", &one, half][..], 1, "bw of 8 bytes is not in"),
        (&["diff", half, other], 2, "no measurement in common"),
        (&["diff", &one, "/nonexistent/file"], 2, "/nonexistent/file"),
        (&["diff", &one], 2, "SUBJECT"),
        (&["diff", &one, &one, "--tolerance", "2"], 2, "from 0 to below 1"),
    ] {
        let output = perf(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(cause), "{arguments:?}: {stderr}");
    }
}

/// The same test by two control lanes: files of their own are compared, one of both is not, and
/// a picture has a curve for each.
#[test]
fn control_lanes_are_kept_apart() {
    let folder = tempfile::tempdir().unwrap();
    let tcp = saved(&folder, "tcp", 4.0, 1000.0);
    let udp = saved(&folder, "udp", 2.0, 1000.0);
    let lines = std::fs::read_to_string(&udp).unwrap();
    std::fs::write(&udp, lines.replace(r#"["uring:lo"]"#, r#"["udp:lo","uring:lo"]"#)).unwrap();
    assert!(perf(&["diff", &tcp, &udp]).status.success());
    let both = folder.path().join("both");
    let lines = [&tcp, &udp].map(|file| std::fs::read_to_string(file).unwrap());
    std::fs::write(&both, lines.concat()).unwrap();
    let both = both.to_str().unwrap();
    let output = perf(&["diff", &tcp, both]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("udp+uring, uring"), "{stderr}");
    let picture = folder.path().join("both.svg");
    assert!(perf(&["plot", both, "--out", picture.to_str().unwrap()]).status.success());
    let svg = std::fs::read_to_string(&picture).unwrap();
    for text in ["latency, median", "bandwidth (bw)", "udp+uring", "uring"] {
        assert!(svg.contains(&format!("\n{text}\n")), "{text}: {svg}");
    }
}

#[test]
fn plot_draws_a_curve_for_each_test() {
    let folder = tempfile::tempdir().unwrap();
    let one = saved(&folder, "one", 4.0, 1000.0);
    let picture = folder.path().join("x.svg");
    let out = picture.to_str().unwrap();
    let output = perf(&["plot", &one, "--out", out]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let svg = std::fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    for word in ["latency, median", "bandwidth", "MB/s", "bw", "message size (bytes)"] {
        assert!(svg.contains(word), "{word}: {svg}");
    }
    assert!(svg.contains("<circle"), "the points are drawn: {svg}");
    let output = perf(&["plot", out, "--out", out]);
    assert_eq!(output.status.code(), Some(2), "a picture is no result");
}
