//! The text that describes a lab, as given to `--lab`.

use std::str::FromStr;

use super::LabError;

/// Rails a lab can have: the fields of an address are bytes, and more tells nothing new.
const RAILS_MAX: u8 = 32;

/// Keys that a lab has a meaning for, but that this version cannot build.
const NOT_OFFERED: &[&str] = &["switch", "rate", "loss", "same-subnet", "decoys", "delay"];

/// What a lab looks like. Parsed from comma-separated `key` or `key=value`; an empty text is the
/// default.
///
/// | key | meaning | default |
/// |---|---|---|
/// | `rails=N` | veth pairs between the hosts, 1 to 32 | 1 |
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabSpec {
    /// Veth pairs between the two hosts.
    pub rails: u8,
}

impl Default for LabSpec {
    fn default() -> Self {
        Self { rails: 1 }
    }
}

impl FromStr for LabSpec {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let wrong = |reason: String| LabError::Spec { text: text.to_owned(), reason };
        let mut rails = None;
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key.trim(), Some(value.trim())),
                None => (part, None),
            };
            match key {
                "rails" => {
                    let count = value
                        .and_then(|value| value.parse().ok())
                        .filter(|count| (1..=RAILS_MAX).contains(count))
                        .ok_or_else(|| {
                            wrong(format!("`{part}` is not `rails=N` with N from 1 to {RAILS_MAX}"))
                        })?;
                    if rails.replace(count).is_some() {
                        return Err(wrong("`rails` is given twice".to_owned()));
                    }
                }
                later if NOT_OFFERED.contains(&later) => {
                    return Err(wrong(format!("`{later}` is not offered yet; there is `rails=N`")));
                }
                unknown => {
                    return Err(wrong(format!("no key `{unknown}`; there is `rails=N`")));
                }
            }
        }
        Ok(Self { rails: rails.unwrap_or(Self::default().rails) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(text: &str) -> String {
        text.parse::<LabSpec>().expect_err("a wrong spec").to_string()
    }

    #[test]
    fn rails_are_counted() {
        assert_eq!("".parse::<LabSpec>().unwrap(), LabSpec { rails: 1 });
        assert_eq!("rails=1".parse::<LabSpec>().unwrap().rails, 1);
        assert_eq!(" rails = 32 ,".parse::<LabSpec>().unwrap().rails, 32);
    }

    #[test]
    fn errors_name_the_part_and_what_there_is() {
        for wrong in ["rails", "rails=", "rails=0", "rails=33", "rails=-1", "rails=two"] {
            let reason = reason(wrong);
            assert!(reason.contains(wrong) && reason.contains("1 to 32"), "{reason}");
        }
        assert!(reason("rails=1,rails=2").contains("twice"));
        assert!(reason("rials=2").contains("no key `rials`; there is `rails=N`"));
        for later in ["switch", "rate=1gbit:3gbit", "loss=1e-3", "decoys", "delay=1ms"] {
            assert!(reason(later).contains("not offered yet"), "{later}");
        }
    }
}
