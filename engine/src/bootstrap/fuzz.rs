//! Fuzz tests of the files and error reports that ranks exchange.

use std::time::Duration;

use super::collective::take_field;
use super::directory::{is_instance, parse_join, parse_session};
use super::{BootstrapError, Member};

const TEST_TIME: Duration = Duration::from_millis(500);

/// A decoded error can be encoded again.
#[test]
fn error_reports() {
    bolero::check!().with_test_time(TEST_TIME).for_each(|input: &[u8]| {
        let mut bytes = input.to_vec();
        if let Some(tag) = bytes.first_mut() {
            *tag %= 8;
        }
        let error = BootstrapError::decode(&bytes);
        assert!(!error.to_string().is_empty());
        let passed_on = BootstrapError::decode(&error.encode());
        assert!(!passed_on.to_string().is_empty());
    });
}

#[test]
fn fields() {
    bolero::check!().with_test_time(TEST_TIME).for_each(|input: &[u8]| {
        let mut bytes = input.to_vec();
        // Lengths that fit now and then.
        if let [low, high @ .., _] = &mut bytes[..]
            && *low < 128
            && high.len() > 3
        {
            high[..3].fill(0);
        }
        let mut rest = &bytes[..];
        let mut used = 0;
        while let Some((field, after)) = take_field(rest) {
            used += 4 + field.len();
            assert_eq!(after, &bytes[used..]);
            rest = after;
        }
        assert!(
            rest.len() < 4
                || u32::from_le_bytes(*rest.first_chunk().unwrap()) as usize > rest.len() - 4
        );
    });
}

/// What stands in such files, so that inputs come close to it.
const WORDS: [&str; 8] = [
    "0123456789abcdef0123456789abcdef",
    "ffffffffffffffffffffffffffffffff",
    "\n",
    "\n",
    " ",
    "2",
    "3",
    "-1",
];

/// Names from files become names of files: nothing but an instance may come through.
#[test]
fn directory_entries() {
    bolero::check!().with_test_time(TEST_TIME).with_max_len(60).for_each(|input: &[u8]| {
        let mut bytes = Vec::new();
        for &byte in input {
            match byte {
                60.. => bytes.extend_from_slice(WORDS[usize::from(byte) % WORDS.len()].as_bytes()),
                other => bytes.push(other.wrapping_mul(5)),
            }
        }
        if let Some((instance, size, label)) = parse_join(&bytes) {
            assert!(is_instance(&instance) && !instance.contains('/'));
            let again = format!("{instance} {size} {label}");
            assert_eq!(parse_join(again.as_bytes()), Some((instance, size, label)));
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Some(host) = parse_session(&text, &Member::new(1, 2), WORDS[1]) {
            assert!(is_instance(host));
            assert!(text.starts_with(host) && text.contains(WORDS[1]));
        }
    });
}
