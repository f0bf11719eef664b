//! Patterns over names of hosts and NICs: `*` is any run of characters, `?` any single one, and no
//! other character means anything but itself.

use wildmatch::WildMatch;

/// Returns whether the whole of `name` matches `pattern`.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    WildMatch::new(pattern).matches(name)
}

/// Returns whether a host section's pattern matches this host, by its full name or by the part
/// before the first dot, ignoring case.
pub(crate) fn matches_host(pattern: &str, host: &str) -> bool {
    let pattern = WildMatch::new_case_insensitive(pattern);
    let short = host.split('.').next().unwrap_or(host);
    pattern.matches(host) || pattern.matches(short)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, as slow as it reads.
    fn model(pattern: &[char], name: &[char]) -> bool {
        match (pattern.first(), name.first()) {
            (None, None) => true,
            (Some('*'), _) => {
                model(&pattern[1..], name) || (!name.is_empty() && model(pattern, &name[1..]))
            }
            (Some(p), Some(n)) if *p == '?' || p == n => model(&pattern[1..], &name[1..]),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(pattern in "[ab*?]{0,8}", name in "[ab]{0,8}") {
            let wanted = model(
                &pattern.chars().collect::<Vec<_>>(),
                &name.chars().collect::<Vec<_>>(),
            );
            prop_assert_eq!(matches(&pattern, &name), wanted);
        }
    }

    #[test]
    fn hosts_match_by_full_and_short_name() {
        assert!(matches_host("node*", "node17.cluster.example"));
        assert!(matches_host("Node17", "node17.cluster.example"));
        assert!(matches_host("*.cluster.example", "NODE17.cluster.example"));
        assert!(!matches_host("node1", "node17.cluster.example"));
        assert!(!matches_host("", "node17"));
    }

    #[test]
    fn many_stars_take_little_time() {
        let pattern = "*a".repeat(60) + "b";
        assert!(!matches(&pattern, &"a".repeat(2000)));
    }
}
