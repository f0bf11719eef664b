//! Tests of sources, precedence and mistakes, and of the roundtrip of every value.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use proptest::collection::{hash_set, vec};
use proptest::prelude::*;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use super::types::NameSet;
use super::value::{
    AddressValue, AutoBytes, Bytes, Cores, Count, Names, Nics, OneOf, Ports, Range, Time,
};
use super::*;
use crate::wire::EAGER_BYTES_MAX;

fn settings_file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn from_file(text: &str, host: &str) -> Result<Settings, SettingsError> {
    let file = settings_file(text);
    Settings::isolated().with_file(file.path()).with_host(host).build()
}

fn origin(settings: &Settings, name: &str) -> Origin {
    settings.entry(name).origin
}

fn message(result: Result<Settings, SettingsError>) -> String {
    result.expect_err("these settings are wrong").to_string()
}

#[test]
fn defaults_are_valid_and_need_no_fitting() {
    let built = Settings::isolated().build().unwrap();
    assert_eq!(built, Settings::default());
    assert!(built.entries().all(|entry| entry.origin == Origin::Default));
    assert_eq!(built.eager_limit_bytes(), None);
    assert_eq!(built.connect_retry_delay(), Duration::from_millis(10));
    assert_eq!(built.lanes(), Lanes::Auto);
    assert_eq!(built.nics(), []);
    assert_eq!(built.rails_max(), 4);
    assert_eq!(built.port_range().ports().collect::<Vec<_>>(), [0]);
}

#[test]
fn every_default_can_be_set_as_it_is_listed() {
    let defaults = Values::defaults();
    for row in ROWS {
        let default = (row.format)(&defaults);
        let built = Settings::isolated().set(row.name, &default).build();
        let built = built.unwrap_or_else(|error| panic!("{error}"));
        let entry = built.entries().find(|entry| entry.name == row.name).unwrap();
        assert_eq!(entry.value, default);
        assert_eq!(entry.origin, Origin::Builder);
        assert!(!row.doc.is_empty() && !row.doc.contains('\n'));
    }
    let listed = |name: &str| {
        Settings::default().entries().any(|it| it.name == name)
            && Settings::definitions().any(|it| it.name == name)
    };
    assert!(listed("spin") && !listed("chunk_bytes"));
}

#[test]
fn the_documentation_of_getters_states_defaults_and_values() {
    let rows = ROWS.iter().filter(|row| !row.is_hidden).zip(Settings::definitions());
    let wrong = rows.filter_map(|(row, definition)| {
        let actual = [&*definition.default, &*definition.takes];
        (row.documented != actual)
            .then(|| format!("{}: {:?}, in the table {actual:?}", row.name, row.documented))
    });
    let wrong = wrong.collect::<Vec<_>>();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn builder_beats_environment_beats_file_beats_default() {
    let file = settings_file("spin = '1us'\nhot_lanes = 7\nsessions_max = 9\n");
    let built = Settings::isolated()
        .with_file(file.path())
        .with_environment([("RINGRAIL_SPIN", "2us"), ("RINGRAIL_HOT_LANES", "8"), ("HOME", "/x")])
        .spin(Duration::from_micros(3))
        .build()
        .unwrap();
    assert_eq!(built.spin(), Duration::from_micros(3));
    assert_eq!(built.hot_lanes(), 8);
    assert_eq!(built.sessions_max(), 9);
    assert_eq!(origin(&built, "spin"), Origin::Builder);
    assert_eq!(
        origin(&built, "hot_lanes"),
        Origin::Environment { variable: "RINGRAIL_HOT_LANES".into() }
    );
    assert_eq!(
        origin(&built, "sessions_max"),
        Origin::File { path: file.path().into(), section: None, line: 3 }
    );
    assert_eq!(origin(&built, "lanes"), Origin::Default);
}

#[test]
fn host_sections_win_by_their_order_in_the_file() {
    let text = "
        [host.'node7']
        spin = '1us'
        hot_lanes = 1
        [host.'*']
        spin = '2us'
        [host.'other']
        spin = '3us'
    ";
    let here = from_file(text, "node7.cluster").unwrap();
    assert_eq!((here.spin(), here.hot_lanes()), (Duration::from_micros(2), 1));
    assert_eq!(from_file(text, "OTHER").unwrap().spin(), Duration::from_micros(3));
    assert_eq!(from_file(text, "third").unwrap().hot_lanes(), 4);
    let Origin::File { section, line, .. } = origin(&here, "spin") else { panic!() };
    assert_eq!((section.as_deref(), line), (Some("*"), 6));
}

#[test]
fn a_section_beats_a_top_level_that_stands_below_it() {
    let text = "host.a.spin = '1us'\nspin = '2us'\n";
    assert_eq!(from_file(text, "a").unwrap().spin(), Duration::from_micros(1));
    assert_eq!(from_file(text, "b").unwrap().spin(), Duration::from_micros(2));
}

#[test]
fn files_take_numbers_booleans_strings_and_lists() {
    let text = "
        eager_limit_bytes = 0x2000
        nics = ['rail0', 'rail*', '!10.0.0.0/8']
        backup_nics = 'eth0'
        pin_cores = [0, 2, '4-6']
        port_range = 7000
        uring_disable = []
        listen_address = '::1'
    ";
    let built = from_file(text, "").unwrap();
    assert_eq!(built.eager_limit_bytes(), Some(8192));
    let nics: Vec<_> = built.nics().iter().map(ToString::to_string).collect();
    assert_eq!(nics, ["rail0", "rail*", "!10.0.0.0/8"]);
    assert_eq!(built.backup_nics(), ["eth0".parse().unwrap()]);
    assert_eq!(built.preferred_nics(), []);
    assert_eq!(built.pin_cores(), [0, 2, 4, 5, 6]);
    assert_eq!(built.port_range(), PortRange::new(7000, 7000).unwrap());
    assert_eq!(built.listen_address(), Some("::1".parse().unwrap()));
}

#[test]
fn unknown_names_are_errors_everywhere() {
    let in_file = message(from_file("\nzero_coppy = 'on'", ""));
    assert!(in_file.contains(":2") && in_file.contains("nearest is `zero_copy`"), "{in_file}");
    let in_section = message(from_file("[host.x]\nfoo = 1", "y"));
    assert!(in_section.contains(":2 [host.\"x\"]") && in_section.contains("`foo`"));
    let variable =
        message(Settings::isolated().with_environment([("RINGRAIL_EAGER_LIMIT", "1K")]).build());
    assert!(variable.contains("nearest is `RINGRAIL_EAGER_LIMIT_BYTES`"), "{variable}");
    let lower_case =
        message(Settings::isolated().with_environment([("RINGRAIL_lanes", "uring")]).build());
    assert!(lower_case.contains("nearest is `RINGRAIL_LANES`"), "{lower_case}");
    let built = message(Settings::isolated().set("pin_core", "1").build());
    assert!(built.contains("builder") && built.contains("nearest is `pin_cores`"), "{built}");
}

#[test]
fn variables_that_are_not_settings_pass() {
    let ours = JOB_VARIABLES.map(|name| (name, "x"));
    let others = [("RINGRAI", "1"), ("ringrail_x", "1"), ("MY_RINGRAIL_X", "1")];
    let environment = ours.into_iter().chain(others);
    assert!(Settings::isolated().with_environment(environment).build().is_ok());
}

#[test]
fn invalid_values_name_the_accepted_ones() {
    for (name, value, wanted) in [
        ("spin", "5", "no unit"),
        ("spin", "5 minutes", "not one of us"),
        ("spin", "11s", "outside 0s to 10s"),
        ("eager_limit_bytes", "16KB", "not one of K"),
        ("eager_limit_bytes", "-1", "whole number"),
        ("eager_limit_bytes", "257K", "outside 0 to 256K"),
        ("rts_bytes", "33K", "outside 0 to 32K"),
        ("chunk_bytes", "17M", "outside 4K to 16M"),
        ("eager_limit_bytes", "99999999999999999999", "too large"),
        ("arena_bytes", "18446744073709551615T", "too large"),
        ("hot_lanes", "4K", "no unit"),
        ("envelope_credits", "0", "outside 1 to"),
        ("lanes", "udp", "auto, uring, sockets"),
        ("port_range", "0-5", "port 0"),
        ("port_range", "9-5", "above the last"),
        ("port_range", "70000", "not a port"),
        ("listen_address", "localhost", "not an IP address"),
        ("nics", "a,,b", "not a name"),
        ("nics", "a,auto", "stands alone"),
        ("nics", "a,a", "twice"),
        ("nics", "10.0.0.1/8,10.0.0.0/8", "`10.0.0.0/8` is named twice"),
        ("nics", "10.0.0.0/40", "from 0 to 32"),
        ("preferred_nics", "auto", "stands alone"),
        ("rails_max", "0", "outside 1 to 16"),
        ("rails_max", "17", "outside 1 to 16"),
        ("pin_cores", "4-2", "backwards"),
        ("pin_cores", "0-4,3", "core 3 is named twice"),
        ("pin_cores", "1024", "outside 0 to 1023"),
    ] {
        let variable = format!("RINGRAIL_{}", name.to_uppercase());
        let text = message(Settings::isolated().with_environment([(&variable, value)]).build());
        assert!(text.contains(wanted) && text.contains(&variable), "{name}={value}: {text}");
    }
}

#[test]
fn wrong_values_for_other_hosts_are_errors_here() {
    let text = message(from_file("[host.b]\nspin = 'long'", "a"));
    assert!(text.contains("[host.\"b\"]") && text.contains("spin"), "{text}");
}

#[test]
fn broken_files_name_file_and_line() {
    let toml = message(from_file("spin = '1us'\nlanes = = 3", ""));
    assert!(toml.contains(":2: not TOML"), "{toml}");
    for text in ["host = 3", "[host]\nspin = '1us'", "spin = 1.5", "spin = { a = 1 }"] {
        assert!(matches!(from_file(text, ""), Err(SettingsError::Syntax { .. })), "{text}");
    }
    let comma = from_file("nics = ['a,b']", "");
    assert!(matches!(comma, Err(SettingsError::Syntax { .. })));
    let twice = message(from_file("spin = '1us'\nspin = '2us'", ""));
    assert!(twice.contains(":2"), "{twice}");
}

#[test]
fn unreadable_files_are_errors_only_where_they_must_exist() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("none.toml");
    let named = Settings::isolated().with_file(&missing).build();
    assert!(matches!(named, Err(SettingsError::Unreadable { .. })));
    let not_a_file = Settings::isolated().with_file(directory.path()).build();
    assert!(message(not_a_file).contains("not a regular file"));
    let binary = directory.path().join("binary");
    fs::write(&binary, [0xff, 0xfe]).unwrap();
    assert!(Settings::isolated().with_file(&binary).build().is_err());
    let huge = directory.path().join("huge");
    fs::File::create(&huge).unwrap().set_len(1 << 40).unwrap();
    assert!(Settings::isolated().with_file(&huge).build().is_err());
}

#[test]
fn inaccessible_files_are_skipped_unless_named() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("home");
    let file = home.join(".config/ringrail.toml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "hot_lanes = 2").unwrap();
    let set_mode = |mode| fs::set_permissions(&home, fs::Permissions::from_mode(mode)).unwrap();
    set_mode(0o000);
    let build = || {
        // A thread has a user of its own, and root reads everything.
        if rustix::process::geteuid().is_root() {
            let (same, other_user) = (None::<Uid>, Uid::from_raw(65_534));
            set_thread_res_uid(same, other_user, same).unwrap();
        }
        let environment = [(OsStr::new("HOME"), home.as_os_str())];
        let mut found = Settings::isolated().with_environment(environment);
        found.files = Files::Search { system: directory.path().join("none") };
        (found.build(), Settings::isolated().with_file(&file).build())
    };
    let (found, named) = std::thread::scope(|scope| scope.spawn(build).join().unwrap());
    set_mode(0o700);
    assert_eq!(found.unwrap(), Settings::default());
    let named = message(named);
    assert!(named.contains("Permission denied"), "{named}");
}

#[test]
fn files_are_searched_in_the_documented_places() {
    let directory = tempfile::tempdir().unwrap();
    let system = directory.path().join("system.toml");
    let config = directory.path().join("home/.config");
    fs::create_dir_all(&config).unwrap();
    let search = |environment: &[(&str, &Path)]| {
        let mut builder = Settings::isolated().with_environment(
            environment.iter().map(|(name, value)| (OsString::from(name), value.as_os_str())),
        );
        builder.files = Files::Search { system: system.clone() };
        builder.build()
    };
    let home = directory.path().join("home");
    assert_eq!(search(&[("HOME", &home)]).unwrap(), Settings::default());

    fs::write(&system, "hot_lanes = 1\nsessions_max = 1\n[host.'*']\ncq_entries = 16").unwrap();
    fs::write(config.join("ringrail.toml"), "hot_lanes = 2\ncq_entries = 32").unwrap();
    let both = search(&[("HOME", &home)]).unwrap();
    assert_eq!((both.hot_lanes(), both.sessions_max(), both.cq_entries()), (2, 1, 32));

    let xdg = directory.path().join("xdg");
    fs::create_dir(&xdg).unwrap();
    fs::write(xdg.join("ringrail.toml"), "hot_lanes = 3").unwrap();
    let by_xdg = search(&[("HOME", &home), ("XDG_CONFIG_HOME", &xdg)]).unwrap();
    assert_eq!(by_xdg.hot_lanes(), 3);
    let relative = search(&[("HOME", &home), ("XDG_CONFIG_HOME", Path::new("xdg"))]).unwrap();
    assert_eq!(relative.hot_lanes(), 2);

    let named = directory.path().join("named.toml");
    assert!(search(&[("RINGRAIL_CONFIG", &named)]).is_err());
    fs::write(&named, "spin = '9us'").unwrap();
    let only = search(&[("HOME", &home), ("RINGRAIL_CONFIG", &named)]).unwrap();
    assert_eq!((only.spin(), only.hot_lanes()), (Duration::from_micros(9), 4));
    let none = search(&[("HOME", &home), ("RINGRAIL_CONFIG", Path::new(""))]).unwrap();
    assert_eq!(none, Settings::default());
}

#[cfg(unix)]
#[test]
fn variables_that_are_not_utf8_are_named() {
    use std::os::unix::ffi::OsStringExt;
    let value = OsString::from_vec(vec![0xff]);
    let text = message(Settings::isolated().with_environment([("RINGRAIL_NICS", value)]).build());
    assert!(text.contains("RINGRAIL_NICS"), "{text}");
    let name = OsString::from_vec(b"RINGRAIL_\xff".to_vec());
    assert!(Settings::isolated().with_environment([(name, "1")]).build().is_err());
    let foreign = OsString::from_vec(b"OTHER_\xff".to_vec());
    assert!(Settings::isolated().with_environment([(foreign, "1")]).build().is_ok());
}

#[test]
fn defaults_are_fitted_to_explicit_values() {
    let raised = Settings::isolated().eager_limit_bytes(Some(EAGER_BYTES_MAX)).build().unwrap();
    assert_eq!(raised.staging_bytes(), 64 << 10);
    assert_eq!(origin(&raised, "staging_bytes"), Origin::Default);
    let chunks = Settings::isolated().busy_chunk_bytes(1 << 20).build().unwrap();
    assert_eq!(chunks.chunk_bytes(), 1 << 20);
    assert_eq!(origin(&chunks, "chunk_bytes"), Origin::Fitted { to: "busy_chunk_bytes" });
    assert_eq!(origin(&chunks, "unexpected_bytes"), Origin::Default);

    let lowered = Settings::isolated().staging_bytes(2048).build().unwrap();
    assert_eq!(lowered.eager_limit_bytes(), None);
    assert_eq!(lowered.inject_limit_bytes(), 2048 - 256);
    assert_eq!(origin(&lowered, "inject_limit_bytes"), Origin::Fitted { to: "staging_bytes" });
    let pulled = Settings::isolated().eager_limit_bytes(Some(1000)).build().unwrap();
    assert_eq!(pulled.inject_limit_bytes(), 1000);
    assert_eq!(origin(&pulled, "inject_limit_bytes"), Origin::Fitted { to: "eager_limit_bytes" });

    let raised = Settings::isolated().inject_limit_bytes(20_000).build().unwrap();
    assert_eq!(raised.eager_limit_bytes(), None, "it is worked out with those in mind");
    assert_eq!(Settings::isolated().chunk_bytes(4096).build().unwrap().busy_chunk_bytes(), 4096);
}

#[test]
fn contradictions_name_both_sides() {
    let direct = Settings::isolated()
        .with_environment([("RINGRAIL_EAGER_LIMIT_BYTES", "32K")])
        .eager_credit_bytes(1024);
    let text = message(direct.build());
    for part in ["eager_limit_bytes = 32K", "RINGRAIL_EAGER_LIMIT_BYTES", "1K (builder)"] {
        assert!(text.contains(part), "{text}");
    }
    let chain = Settings::isolated().inject_limit_bytes(20_000).staging_bytes(1 << 14).build();
    assert!(matches!(chain, Err(SettingsError::Conflict { .. })), "{chain:?}");
    let cap = Settings::isolated().bulk_lanes(64).bulk_lanes_max(8).build();
    assert!(matches!(cap, Err(SettingsError::Conflict { .. })), "{cap:?}");
}

#[test]
fn settings_cross_threads() {
    fn wants<T: Clone + fmt::Debug + Send + Sync + 'static>() {}
    wants::<Settings>();
    wants::<Builder>();
}

#[test]
fn every_named_value_has_its_name() {
    fn round<T: NameSet>() {
        for (name, value) in T::NAMES {
            assert_eq!(OneOf::<T>::parse(name).as_ref(), Ok(value));
            assert_eq!(OneOf::<T>::format(value), *name);
        }
    }
    round::<Lanes>();
    round::<ZeroCopy>();
    // A value added to an enum without a name would panic when shown: this match must grow too.
    let all = [Lanes::Auto, Lanes::Uring, Lanes::Sockets];
    for lanes in all {
        match lanes {
            Lanes::Auto | Lanes::Uring | Lanes::Sockets => assert!(!lanes.to_string().is_empty()),
        }
    }
    for zero_copy in [ZeroCopy::Auto, ZeroCopy::On, ZeroCopy::Off] {
        match zero_copy {
            ZeroCopy::Auto | ZeroCopy::On | ZeroCopy::Off => {
                assert!(!zero_copy.to_string().is_empty());
            }
        }
    }
}

#[test]
fn byte_units_are_binary() {
    for text in ["16K", "16k", "16KiB", "16 K", "16384", "16384B"] {
        assert_eq!(Bytes::parse(text), Ok(16384), "{text}");
    }
    assert_eq!(Bytes::format(&0), "0");
    assert_eq!(Bytes::format(&(3 << 30)), "3G");
    assert_eq!(Bytes::format(&1025), "1025");
}

/// A formatted value parses as the same value.
fn round_trip<K: ValueKind>(value: &K::Value) -> Result<(), TestCaseError> {
    let text = K::format(value);
    let read = K::parse(&text);
    prop_assert_eq!(read.as_ref(), Ok(value), "{}", text);
    Ok(())
}

proptest! {
    #[test]
    fn sizes_and_counts(number: usize, shift in 0..64u32) {
        let number = number >> shift;
        round_trip::<Bytes>(&number)?;
        round_trip::<AutoBytes>(&Some(number))?;
        round_trip::<AutoBytes>(&None)?;
        round_trip::<Count>(&number)?;
        if let Some(round) = number.checked_shl(shift) {
            round_trip::<Bytes>(&round)?;
        }
    }

    #[test]
    fn times(seconds in 0..1u64 << 33, nanoseconds in 0..1_000_000_000u32, unit in 0..10u32) {
        let unit = 10u32.pow(unit);
        round_trip::<Time>(&Duration::new(seconds, nanoseconds / unit * unit))?;
        round_trip::<Time>(&Duration::from_secs(seconds << 31))?;
    }

    #[test]
    fn ports_and_addresses(a: u16, b: u16, address: IpAddr) {
        round_trip::<Ports>(&PortRange::new(a, b).unwrap_or(PortRange::ANY))?;
        round_trip::<AddressValue>(&Some(address))?;
        round_trip::<AddressValue>(&None)?;
    }

    #[test]
    fn lists(
        names in hash_set("[a-z0-9*?_.-]{1,9}[0-9]", 0..6),
        cores in hash_set(0..1024usize, 0..9),
    ) {
        let names: Vec<_> = names.into_iter().collect();
        round_trip::<Names<true>>(&names)?;
        round_trip::<Names<false>>(&names)?;
        // With their digits behind, none of them reads as a network.
        let patterns = names.iter().map(|name| format!("x{name}").parse().unwrap()).collect();
        round_trip::<Nics<true>>(&patterns)?;
        round_trip::<Nics<false>>(&patterns)?;
        round_trip::<Cores>(&cores.into_iter().collect())?;
    }

    #[test]
    fn no_text_panics(text in "[0-9KMGiBusmn ,*x-]{0,12}|\\PC{0,12}") {
        for row in ROWS {
            if let Ok(built) = Settings::isolated().set(row.name, &text).build() {
                // Every accepted value can be set again from its text form.
                let shown: Vec<_> = built.entries().collect();
                let mut again = Settings::isolated();
                for entry in &shown {
                    again = again.set(entry.name, &entry.value);
                }
                prop_assert_eq!(again.build().unwrap().values, built.values);
            }
        }
    }

    #[test]
    fn no_file_panics(
        lines in vec("[a-z_]{1,9} ?[=.] ?['0-9\\[\\]a-z.]{0,9}|\\[host\\.[a-z'*]{1,4}\\]", 0..6),
    ) {
        let _ = from_file(&lines.join("\n"), "node");
    }

    #[test]
    fn ranges_hold(number: usize) {
        let range = Range::Numbers(10..=20);
        let number = number % 40;
        prop_assert_eq!(Count::check(&number, &range).is_ok(), (10..=20).contains(&number));
    }
}

/// A text has no room for it: without a word another file would be read, or written.
#[test]
fn a_path_that_is_not_utf_8_is_refused() {
    let path = Path::new(OsStr::from_bytes(b"/nowhere/\xff"));
    for builder in [
        Settings::isolated().pcap_file(Some(path)),
        Settings::isolated().job_secret_file(Some(path)),
    ] {
        let error = message(builder.build());
        assert!(error.contains("not UTF-8: rename"), "{error}");
    }
}
