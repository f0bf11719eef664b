//! Fuzz tests: any file or variable gives settings or an error with a message.

use std::io::Write;
use std::time::Duration;

use super::*;

const TEST_TIME: Duration = Duration::from_millis(700);

/// Parts of settings files: random bytes alone hardly ever form a line.
const WORDS: [&str; 29] = [
    "spin",
    "nics",
    "backup_nics",
    "rails_max",
    "!10.1.0.0/16",
    "fd00::/8",
    "hot_lanes",
    "sessions_max",
    "cores",
    "listen_address",
    "port_range",
    "prometheus_address",
    "lanes",
    "eager_limit_bytes",
    "host",
    "[host.'n*']",
    "[host]",
    "[[host]]",
    "=",
    "\n",
    "\"",
    "'",
    ",",
    "[",
    "]",
    "1us",
    "18446744073709551616",
    "-1",
    "auto",
];

/// Bytes from 128 on name words, the others are letters.
fn text_of(input: &[u8]) -> String {
    let mut text = String::new();
    for &byte in input {
        match byte {
            128.. => text.push_str(WORDS[usize::from(byte) % WORDS.len()]),
            letter => text.push(char::from(letter)),
        }
    }
    text
}

/// Checks that settings can be set again from their text form, with the same result.
fn check(built: Result<Settings, SettingsError>) {
    match built {
        Ok(settings) => {
            let again = settings.entries().filter(|entry| entry.origin != Origin::Default);
            let again = again
                .fold(Settings::isolated(), |builder, entry| builder.set(entry.name, &entry.value));
            let again = again.build().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(again.values, settings.values);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

#[test]
fn files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settings.toml");
    bolero::check!().with_test_time(TEST_TIME).with_max_len(300).for_each(|input: &[u8]| {
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(text_of(input).as_bytes()).unwrap();
        check(Settings::isolated().with_file(&path).with_host("n1").build());
        // Raw bytes, which may not be UTF-8.
        std::fs::write(&path, input).unwrap();
        check(Settings::isolated().with_file(&path).with_host("n1").build());
    });
}

/// The first byte chooses the setting.
#[test]
fn values() {
    bolero::check!().with_test_time(TEST_TIME).with_max_len(40).for_each(|input: &[u8]| {
        let Some((&first, rest)) = input.split_first() else { return };
        let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
        let name = names[usize::from(first) % names.len()];
        check(Settings::isolated().set(name, &text_of(rest)).build());
        let text = String::from_utf8_lossy(rest);
        check(Settings::isolated().set(name, &text).build());
        // Most values consist of numbers and units.
        let digits = rest
            .iter()
            .map(|&byte| char::from(b"0123456789kmgiusbKMGB.,-:"[usize::from(byte) % 25]));
        check(Settings::isolated().set(name, &digits.collect::<String>()).build());
    });
}

#[test]
fn host_patterns() {
    bolero::check!().with_test_time(TEST_TIME).with_max_len(200).for_each(|input: &[u8]| {
        let text: String =
            input.iter().map(|&byte| char::from(b"ab*?."[usize::from(byte % 5)])).collect();
        let (pattern, name) = text.split_at(text.len() / 2);
        let name = name.replace(['*', '?'], "a");
        let is_match = glob::matches_host(pattern, &name);
        assert!(is_match || !pattern.chars().all(|letter| letter == '*') || pattern.is_empty());
    });
}
