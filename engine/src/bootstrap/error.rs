//! Errors of the bootstrap.

use std::time::Duration;

/// The error of a bootstrap. Its text names the cause and the cure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// The environment does not define the rank of this process, or contradicts itself.
    #[error("{problem}; {cure}")]
    Misconfigured {
        /// What is missing or contradicts itself.
        problem: String,
        /// What to set.
        cure: String,
    },
    /// An argument is out of range: a mistake of the calling program.
    #[error("wrong use of the bootstrap: {problem}")]
    Invalid {
        /// What is wrong with it.
        problem: String,
    },
    /// Several processes claim the same rank.
    #[error(
        "several processes believe to be rank {rank} of this job: {who}; give every process its \
         own rank (RANK), and every job its own port or job id (MASTER_PORT, RINGRAIL_JOB_ID)"
    )]
    DuplicateRank {
        /// The rank.
        rank: usize,
        /// The processes, as far as they are known.
        who: String,
    },
    /// Ranks disagree about how many they are.
    #[error("{detail}; start all ranks with the same WORLD_SIZE")]
    SizeMismatch {
        /// The ranks and the numbers that they have.
        detail: String,
    },
    /// A deadline passed.
    #[error("gave up after {} waiting {what}; {cure}", crate::settings::format_time(*.after))]
    Timeout {
        /// What was waited for.
        what: String,
        /// The time that was allowed.
        after: Duration,
        /// What to look at.
        cure: String,
    },
    /// A rank left or died while others needed it.
    #[error("{detail}; look for the first error among that rank's output")]
    PeerLost {
        /// Which one, as far as it is known.
        detail: String,
    },
    /// Ranks call different collective operations.
    #[error(
        "{detail}: all ranks must make the same collective calls in the same order; \
         this is a mistake of the calling program"
    )]
    OutOfStep {
        /// The ranks and the calls that they have made.
        detail: String,
    },
    /// The value has not been put.
    #[error(
        "rank {rank} has put nothing under `{key}` before the last fence; put it there, then \
         fence on all ranks, then get"
    )]
    NotPut {
        /// The rank asked about.
        rank: usize,
        /// The key asked for.
        key: String,
    },
    /// The system refused something.
    #[error("{doing}: {problem}; {cure}")]
    System {
        /// What was tried.
        doing: String,
        /// The error that the system returned.
        problem: String,
        /// What to do about it.
        cure: String,
    },
    /// What a rank sent cannot be read.
    #[error("{detail}; start all ranks from the same build of the program")]
    Malformed {
        /// What is wrong with it.
        detail: String,
    },
}

/// How long a text may be that came from another process.
const TEXT_BYTES_MAX: usize = 4096;

impl BootstrapError {
    /// The form in which an error goes to the other ranks: a tag, a number, a text.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (tag, number, text) = match self {
            Self::DuplicateRank { rank, who } => (1, *rank as u64, who.clone()),
            Self::SizeMismatch { detail } => (2, 0, detail.clone()),
            Self::PeerLost { detail } => (3, 0, detail.clone()),
            Self::OutOfStep { detail } => (4, 0, detail.clone()),
            Self::Timeout { what, after, cure } => {
                (5, u64::try_from(after.as_nanos()).unwrap_or(u64::MAX), format!("{what}\n{cure}"))
            }
            other => (6, 0, other.to_string()),
        };
        let mut bytes = vec![tag];
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend(text.bytes().take(TEXT_BYTES_MAX));
        bytes
    }

    /// Decodes the output of `encode`; arbitrary bytes are accepted.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let malformed = || Self::Malformed { detail: "an error report cannot be read".into() };
        let Some((&tag, rest)) = bytes.split_first() else { return malformed() };
        let Some((number, text)) = rest.split_first_chunk::<8>() else { return malformed() };
        let number = u64::from_le_bytes(*number);
        let text = &text[..text.len().min(TEXT_BYTES_MAX)];
        let detail = String::from_utf8_lossy(text).into_owned();
        match tag {
            1 => Self::DuplicateRank { rank: number as usize, who: detail },
            2 => Self::SizeMismatch { detail },
            3 => Self::PeerLost { detail },
            4 => Self::OutOfStep { detail },
            5 => {
                let (what, cure) = detail.split_once('\n').unwrap_or((&detail, ""));
                let after = Duration::from_nanos(number);
                Self::Timeout { what: what.into(), after, cure: cure.into() }
            }
            6 => Self::PeerLost { detail: format!("another rank failed: {detail}") },
            _ => malformed(),
        }
    }
}

/// `0, 3, 7`, cut where it gets long.
pub(crate) fn rank_list(ranks: impl IntoIterator<Item = usize>) -> String {
    const SHOWN: usize = 16;
    let ranks: Vec<_> = ranks.into_iter().map(|rank| rank.to_string()).collect();
    match ranks.len() {
        0..=SHOWN => ranks.join(", "),
        count => format!("{} and {} more", ranks[..SHOWN].join(", "), count - SHOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn errors_survive_encoding() {
        for error in [
            BootstrapError::DuplicateRank { rank: 3, who: "a and b".into() },
            BootstrapError::SizeMismatch { detail: "x".into() },
            BootstrapError::PeerLost { detail: "y".into() },
            BootstrapError::OutOfStep { detail: String::new() },
            BootstrapError::Timeout {
                what: "for ranks 1".into(),
                after: Duration::from_millis(1500),
                cure: "z".into(),
            },
        ] {
            assert_eq!(BootstrapError::decode(&error.encode()), error);
        }
        let own = BootstrapError::Invalid { problem: "bad".into() };
        assert!(BootstrapError::decode(&own.encode()).to_string().contains("bad"));
    }

    proptest! {
        #[test]
        fn reports_of_any_payload_are_read(bytes: Vec<u8>) {
            prop_assert!(!BootstrapError::decode(&bytes).to_string().is_empty());
        }
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(rank_list([1, 5]), "1, 5");
        assert!(rank_list(0..100).ends_with("15 and 84 more"));
    }
}
