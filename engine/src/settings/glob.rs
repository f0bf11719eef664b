//! Patterns over names of hosts and NICs: `*` is any run of characters, `?` any single one.

/// Whether the whole of `name` fits `pattern`.
///
/// Goes back to the last `*` only, which is enough and bounds the work by the product of the two
/// lengths whatever the pattern.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut at_pattern, mut at_name) = (0, 0);
    // The last `*` seen, and the name position that it was last tried up to.
    let mut star: Option<(usize, usize)> = None;
    while at_name < name.len() {
        match pattern.get(at_pattern) {
            Some('*') => {
                star = Some((at_pattern, at_name));
                at_pattern += 1;
            }
            Some(&letter) if letter == '?' || letter == name[at_name] => {
                at_pattern += 1;
                at_name += 1;
            }
            _ => {
                let Some((star_at, tried)) = star else { return false };
                star = Some((star_at, tried + 1));
                at_pattern = star_at + 1;
                at_name = tried + 1;
            }
        }
    }
    pattern[at_pattern..].iter().all(|&letter| letter == '*')
}

/// Whether a host section's pattern covers this host: by its full name or by the part before the
/// first dot, in whatever case.
pub(crate) fn matches_host(pattern: &str, host: &str) -> bool {
    let pattern = pattern.to_lowercase();
    let host = host.to_lowercase();
    let short = host.split('.').next().unwrap_or(&host);
    matches(&pattern, &host) || matches(&pattern, short)
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
    fn many_stars_do_not_explode() {
        let pattern = "*a".repeat(60) + "b";
        assert!(!matches(&pattern, &"a".repeat(2000)));
    }
}
