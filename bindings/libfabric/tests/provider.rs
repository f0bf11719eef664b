//! The provider as libfabric's own programs see it.

mod common;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use common::{Provider, finish, run, start, text};

const SECRET: &str = "5b0b3ea6ac6a1b1a1c5e2f0e0cf3ab265b0b3ea6ac6a1b1b1c5e2f0e0cf3ab27";

#[test]
fn fi_info_lists_one_info_for_all_rails() {
    let provider = Provider::new();
    let output = run(provider.command("fi_info").args(["-p", "ringrail"]));
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("provider: ringrail").count(), 1, "{said}");
    for layer in ["ofi_rxm", "ofi_rxd", "ofi_mrail"] {
        assert!(!said.contains(layer), "nobody else's layer is offered: {said}");
    }
    assert!(said.contains("type: FI_EP_RDM"), "{said}");
}

#[test]
fn fi_info_shows_what_is_offered() {
    let provider = Provider::new();
    let said = text(&run(provider.command("fi_info").args(["-p", "ringrail", "-v"])));
    for part in [
        "FI_MSG",
        "FI_TAGGED",
        "FI_RMA",
        "FI_ATOMIC",
        "FI_MULTI_RECV",
        "FI_DIRECTED_RECV",
        "FI_SOURCE",
        "FI_RMA_EVENT",
        "FI_FENCE",
        "msg_order: [ FI_ORDER_SAS ]",
        "threading: FI_THREAD_SAFE",
        "data_progress: FI_PROGRESS_AUTO",
        "resource_mgmt: FI_RM_ENABLED",
        "mr_mode: [  ]",
        "cq_data_size: 8",
        "src_addrlen: 48",
        "max_ep_tx_ctx: 1",
        "prov_name: ringrail",
        "nic: (nil)",
    ] {
        assert!(said.contains(part), "{part} is missing: {said}");
    }
}

#[test]
fn what_is_not_offered_is_not_found() {
    let provider = Provider::new();
    for arguments in [["-t", "FI_EP_DGRAM"], ["-c", "FI_MULTICAST"]] {
        let output = run(provider.command("fi_info").args(["-p", "ringrail"]).args(arguments));
        assert!(!output.status.success(), "{arguments:?}: {}", text(&output));
    }
}

#[test]
fn settings_are_parameters_with_their_help_and_the_secret_is_not() {
    let provider = Provider::new();
    let mut command = provider.command("fi_info");
    let said = text(&run(command.arg("-e").env("RINGRAIL_JOB_SECRET", SECRET)));
    for name in ["NICS", "RAILS_MAX", "CONTROL_LANE", "PEER_TIMEOUT", "JOB_SECRET_FILE"] {
        assert!(said.contains(&format!("FI_RINGRAIL_{name}: String")), "{name}: {said}");
    }
    assert!(said.contains("Maximum number of NICs in use"), "{said}");
    assert!(!said.contains("FI_RINGRAIL_JOB_SECRET:"), "{said}");
    assert!(!said.contains(SECRET));
}

#[test]
fn an_unknown_parameter_is_refused_as_an_unknown_setting_is() {
    let provider = Provider::new();
    let of = |variable: &str| {
        let mut command = provider.command("fi_info");
        text(&run(command.args(["-p", "ringrail"]).env(variable, "lo").env("FI_LOG_LEVEL", "warn")))
    };
    for variable in ["RINGRAIL_NICZ", "FI_RINGRAIL_NICZ"] {
        let printed = of(variable);
        assert!(printed.contains("nearest is `RINGRAIL_NICS`"), "{variable}: {printed}");
    }
    let printed = of("FI_RINGRAIL_JOB_SECRET");
    assert!(printed.contains("set RINGRAIL_JOB_SECRET"), "{printed}");
}

#[test]
fn a_parameter_is_in_force_and_a_wrong_value_is_named() {
    let provider = Provider::new();
    let of = |value: &str| {
        let mut command = provider.command("fi_info");
        command.args(["-p", "ringrail", "-v"]).env("FI_RINGRAIL_INJECT_LIMIT_BYTES", value);
        text(&run(&mut command))
    };
    assert!(of("8K").contains("inject_size: 8192"));
    let said = of("many");
    assert!(said.contains("inject_limit_bytes") && said.contains("many"), "{said}");
}

#[test]
fn the_library_exports_one_symbol_and_stays_loaded() {
    let provider = Provider::new();
    let library = provider.library();
    let symbols = std::process::Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(&library)
        .output()
        .expect("nm, of binutils");
    let symbols = String::from_utf8_lossy(&symbols.stdout).into_owned();
    let names: Vec<_> = symbols.lines().filter_map(|line| line.split(' ').next_back()).collect();
    assert_eq!(names, ["fi_prov_ini"]);
    let dynamic = std::process::Command::new("readelf").arg("-d").arg(&library).output();
    let dynamic =
        String::from_utf8_lossy(&dynamic.expect("readelf, of binutils").stdout).into_owned();
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    assert!(!dynamic.contains("libfabric"), "any libfabric may load it: {dynamic}");
}

#[test]
fn who_asks_for_connected_endpoints_gets_them() {
    let provider = Provider::new();
    let of = |kind| text(&run(provider.command("fi_info").args(["-p", "ringrail", "-t", kind])));
    let said = of("FI_EP_MSG");
    assert_eq!(said.matches("type: FI_EP_MSG").count(), 1, "{said}");
    assert!(!said.contains("FI_EP_RDM") && !of("FI_EP_RDM").contains("FI_EP_MSG"), "{said}");
}

/// A server of `fi_pingpong` at a port that is free, and its client.
fn pingpong(provider: &Provider, variables: &[(&str, &str)], arguments: &[&str]) -> [String; 2] {
    pingpong_of("rdm", provider, variables, arguments)
}

fn pingpong_of(
    kind: &str,
    provider: &Provider,
    variables: &[(&str, &str)],
    arguments: &[&str],
) -> [String; 2] {
    let free = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = free.local_addr().expect("it is bound").port().to_string();
    drop(free);
    let command = |is_server: bool| {
        let mut command = provider.command("fi_pingpong");
        let place = if is_server { "-B" } else { "-P" };
        command.args(["-p", "ringrail", "-e", kind, "-c", place, &port]).args(arguments);
        command.envs(variables.iter().copied());
        command
    };
    let server = start(&mut command(true));
    let deadline = Instant::now() + Duration::from_secs(30);
    let client = loop {
        // The client gives up at once if the server does not listen yet.
        let output = run(command(false).arg("127.0.0.1"));
        let said = text(&output);
        if !said.contains("Connection refused") || Instant::now() > deadline {
            break said;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    [text(&finish(server)), client]
}

#[test]
fn fi_pingpong_checks_every_size() {
    let provider = Provider::new();
    let (secret, all) = ([("RINGRAIL_JOB_SECRET", SECRET)], ["-I", "5", "-S", "all"]);
    let rdm = pingpong_of("rdm", &provider, &secret, &all);
    let msg = pingpong_of("msg", &provider, &secret, &all);
    for said in rdm.into_iter().chain(msg) {
        for size in ["64 ", "4k", "64k", "1m"] {
            assert!(said.lines().any(|line| line.starts_with(size)), "{size}: {said}");
        }
        assert!(!said.contains("mismatch"), "{said}");
    }
}

#[test]
fn without_a_secret_it_says_what_to_do_and_refuses() {
    let provider = Provider::new();
    // Who opens its domain first says so, and the other one that its peer is gone.
    let both = pingpong(&provider, &[], &["-I", "1"]);
    let said = both.concat();
    assert!(said.contains("set RINGRAIL_JOB_SECRET"), "{said}");
    assert!(said.contains("Permission denied"), "{said}");
    let lines = said.lines().filter(|line| line.starts_with("ringrail: ")).count();
    assert!((1..=2).contains(&lines), "one line of each that says it: {said}");
    let both = pingpong(&provider, &[("RINGRAIL_INSECURE", "true")], &["-I", "1", "-S", "64"]);
    assert!(both.iter().all(|said| said.contains("64 ")), "{both:?}");
}

#[test]
fn without_a_nic_it_says_so_once_and_is_not_offered() {
    let provider = Provider::new();
    let mut command = provider.command("fi_info");
    command.args(["-p", "ringrail"]).env("RINGRAIL_NICS", "no-such-nic");
    let said = text(&run(&mut command));
    let lines: Vec<_> = said.lines().filter(|line| line.starts_with("ringrail: ")).collect();
    let [line] = lines[..] else { panic!("one line that says it: {said}") };
    for part in ["no NIC can be used", "names `no-such-nic`", "FI_RINGRAIL_NICS"] {
        assert!(line.contains(part), "{part} is missing: {line}");
    }
    assert!(!said.contains("provider: ringrail"), "{said}");
}

#[test]
fn a_secret_and_insecure_contradict_each_other() {
    let provider = Provider::new();
    let mut command = provider.command("fi_info");
    let both = [("RINGRAIL_JOB_SECRET", SECRET), ("RINGRAIL_INSECURE", "true")];
    assert!(run(command.args(["-p", "ringrail"]).envs(both)).status.success());
    // They contradict each other, and a domain says so.
    let said = pingpong(&provider, &both, &["-I", "1"]).concat();
    assert!(said.contains("insecure = true asks to run without"), "{said}");
}
