//! `info --peer` in labs: how a peer is reached by each rail, and what is made of it.

use std::time::Duration;

use ringrail_tests::lab::{Host, Lab, STRAY};
use ringrail_tests::require_lab;
use serde_json::Value;

/// Beyond this something hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// What is said in host a of rails and routes to `peer`.
fn candidates(lab: &Lab, peer: &str) -> Value {
    let mut command = lab.host(Host::A).command(env!("CARGO_BIN_EXE_ringrail-perf"));
    let output = command.args(["info", "--json", "--peer", peer]).output(LIMIT).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let info: Value = serde_json::from_slice(&output.stdout).unwrap();
    info["candidates"].clone()
}

/// The findings and cures.
fn warnings(candidates: &Value) -> Vec<String> {
    let all = candidates["warnings"].as_array().unwrap();
    let text = |one: &Value| format!("{}; {}", one["finding"], one["cure"]);
    all.iter().map(text).collect()
}

/// The only warning there is has all of this.
fn warned(candidates: &Value, parts: &[&str]) {
    let all = warnings(candidates);
    assert!(all.len() == 1 && parts.iter().all(|part| all[0].contains(part)), "{parts:?}: {all:?}");
}

#[test]
fn one_address_of_a_peer_does_not_make_the_other_rail_a_bad_one() {
    require_lab!();
    let lab = Lab::build(&"rails=2".parse().unwrap()).unwrap();
    let one = candidates(&lab, "10.77.0.2");
    warned(&one, &["rail1 has no route to 10.77.0.2 (", "by rail0)", "--peer A,B"]);
    assert!(!warnings(&one)[0].contains("!rail1"), "{one}");
    assert_eq!(warnings(&candidates(&lab, "10.77.0.2,10.77.1.2")), Vec::<String>::new());
}

#[test]
fn a_rail_that_leads_nowhere_is_named() {
    require_lab!();
    let lab = Lab::build(&"rails=2,decoys".parse().unwrap()).unwrap();
    let two = candidates(&lab, "10.77.0.2,10.77.1.2");
    let row = &two["rows"][0];
    assert_eq!((&row["nic"], &row["rail"]), (&STRAY.into(), &0.into()), "{two}");
    let kinds = [0, 1].map(|peer| row["routes"][peer]["kind"].as_str().unwrap());
    assert_eq!(kinds, ["other-nic"; 2], "{two}");
    warned(&two, &["stray1 has no route to 10.77.0.2 or 10.77.1.2", "carries nothing"]);
    // The peer's addresses are all there: rail0 and rail1 are no issue, and this one is.
    let all = candidates(&lab, "10.67.0.2,10.77.0.2,10.77.1.2");
    let texts = warnings(&all);
    assert!(texts.iter().any(|text| text.contains("no rail leads to 10.67.0.2")), "{texts:?}");
    assert!(texts.iter().any(|text| text.contains("nics = !stray1")), "{texts:?}");
    let route = &all["rows"][0]["routes"][0];
    assert_eq!(route["kind"], "none", "{all}");
    assert_eq!(route["cause"], "Network is unreachable", "no number of an error: {all}");
}

#[test]
fn addresses_of_this_host_are_local() {
    require_lab!();
    let lab = Lab::build(&"rails=2".parse().unwrap()).unwrap();
    let ours = candidates(&lab, "10.77.1.1");
    for row in [0, 1] {
        assert_eq!(ours["rows"][row]["routes"][0]["kind"], "local", "{ours}");
    }
    assert_eq!(warnings(&ours), Vec::<String>::new());
}
