//! Puts, fences and barriers over anything that can gather one byte string from each rank.

use std::collections::{HashMap, HashSet};

use super::{BootstrapError, KEY_BYTES_MAX, PART_BYTES_MAX, VALUE_BYTES_MAX};

/// The one operation that the ways to bootstrap differ in.
pub(crate) trait Gather: Send {
    /// The number of this rank.
    fn rank(&self) -> usize;
    /// The number of ranks.
    fn size(&self) -> usize;
    /// Contributes `part`, waits for all ranks and returns all parts in rank order.
    /// Not called again after an error.
    fn gather(&mut self, part: Vec<u8>) -> Result<Vec<Vec<u8>>, BootstrapError>;
}

/// The collective call that a rank has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CollectiveStep {
    Join = 0,
    Fence = 1,
    Barrier = 2,
}

/// A part begins with the step and the number of this collective call, so that ranks out of step
/// fail with an error instead of reading each other's values.
const PART_HEADER_BYTES: usize = 1 + 8;

#[derive(Debug)]
pub(crate) struct Collective<G> {
    gather: G,
    /// Collective calls made.
    calls: u64,
    /// Put since the last fence, encoded.
    pending: Vec<u8>,
    /// Keys that this rank has put.
    used: HashSet<String>,
    /// What can be got, of each rank.
    values: Vec<HashMap<String, Vec<u8>>>,
    failed: Option<BootstrapError>,
}

impl<G: Gather> Collective<G> {
    /// Waits until every rank has joined.
    pub(crate) fn join(gather: G) -> Result<Self, BootstrapError> {
        let mut joined = Self::assume_joined(gather);
        joined.step(CollectiveStep::Join, Vec::new())?;
        Ok(joined)
    }

    /// Creates the state of a rank whose peers are known to have joined.
    pub(crate) fn assume_joined(gather: G) -> Self {
        let values = vec![HashMap::new(); gather.size()];
        let (pending, used) = (Vec::new(), HashSet::new());
        Self { gather, calls: 0, pending, used, values, failed: None }
    }

    pub(crate) fn gather_mut(&mut self) -> &mut G {
        &mut self.gather
    }

    pub(crate) fn rank(&self) -> usize {
        self.gather.rank()
    }

    pub(crate) fn size(&self) -> usize {
        self.gather.size()
    }

    pub(crate) fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootstrapError> {
        self.check()?;
        let invalid = |problem| Err(BootstrapError::Invalid { problem });
        if key.len() > KEY_BYTES_MAX {
            return invalid(format!("a key of {} bytes; at most {KEY_BYTES_MAX}", key.len()));
        }
        if value.len() > VALUE_BYTES_MAX {
            return invalid(format!(
                "a value of {} bytes for `{key}`; at most {VALUE_BYTES_MAX}",
                value.len()
            ));
        }
        let grown = PART_HEADER_BYTES + self.pending.len() + 8 + key.len() + value.len();
        if grown > PART_BYTES_MAX {
            return invalid(format!(
                "more than {PART_BYTES_MAX} bytes put since the last fence; fence more often"
            ));
        }
        if !self.used.insert(key.into()) {
            return invalid(format!("`{key}` was put before; use a new key"));
        }
        for bytes in [key.as_bytes(), value] {
            // Both lengths were bounded above.
            self.pending.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            self.pending.extend_from_slice(bytes);
        }
        Ok(())
    }

    pub(crate) fn fence(&mut self) -> Result<(), BootstrapError> {
        let pending = std::mem::take(&mut self.pending);
        self.step(CollectiveStep::Fence, pending)
    }

    pub(crate) fn barrier(&mut self) -> Result<(), BootstrapError> {
        self.step(CollectiveStep::Barrier, Vec::new())
    }

    pub(crate) fn get(&mut self, rank: usize, key: &str) -> Result<Vec<u8>, BootstrapError> {
        self.check()?;
        let Some(values) = self.values.get(rank) else {
            let problem = format!("there is no rank {rank} among {} ranks", self.size());
            return Err(BootstrapError::Invalid { problem });
        };
        let value = values.get(key).cloned();
        value.ok_or_else(|| BootstrapError::NotPut { rank, key: key.into() })
    }

    fn check(&self) -> Result<(), BootstrapError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn step(&mut self, step: CollectiveStep, values: Vec<u8>) -> Result<(), BootstrapError> {
        self.check()?;
        let result = self.try_step(step, values);
        self.failed = result.as_ref().err().cloned();
        result
    }

    fn try_step(&mut self, step: CollectiveStep, values: Vec<u8>) -> Result<(), BootstrapError> {
        let mut part = Vec::with_capacity(PART_HEADER_BYTES + values.len());
        part.push(step as u8);
        part.extend_from_slice(&self.calls.to_le_bytes());
        part.extend_from_slice(&values);
        let header = part[..PART_HEADER_BYTES].to_vec();
        let parts = self.gather.gather(part)?;
        if parts.len() != self.size() {
            let detail = format!("{} parts came for {} ranks", parts.len(), self.size());
            return Err(BootstrapError::Malformed { detail });
        }
        for (rank, part) in parts.iter().enumerate() {
            let malformed = || {
                let detail = format!("what rank {rank} put cannot be read");
                BootstrapError::Malformed { detail }
            };
            let (theirs, values) =
                part.split_at_checked(PART_HEADER_BYTES).ok_or_else(malformed)?;
            if theirs != header {
                let detail = format!(
                    "rank {} is in {} while rank {rank} is in {}",
                    self.rank(),
                    step_name(&header),
                    step_name(theirs)
                );
                return Err(BootstrapError::OutOfStep { detail });
            }
            let mut rest = values;
            while !rest.is_empty() {
                let (key, after_key) = take_field(rest).ok_or_else(malformed)?;
                let (value, after_value) = take_field(after_key).ok_or_else(malformed)?;
                let key = std::str::from_utf8(key).map_err(|_| malformed())?;
                self.values[rank].insert(key.into(), value.into());
                rest = after_value;
            }
        }
        self.calls += 1;
        Ok(())
    }
}

/// `fence 3`, from a part's header.
fn step_name(header: &[u8]) -> String {
    let name = match header.first() {
        Some(0) => "join",
        Some(1) => "fence",
        Some(2) => "barrier",
        _ => "something unknown",
    };
    let number = header.get(1..PART_HEADER_BYTES).and_then(|bytes| bytes.try_into().ok());
    format!("{name} {}", u64::from_le_bytes(number.unwrap_or_default()))
}

/// Splits off a field with its length in front.
pub(crate) fn take_field(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A group of two ranks; the other one contributes the given bytes.
    #[derive(Debug)]
    struct Scripted(Vec<u8>);

    impl Gather for Scripted {
        fn rank(&self) -> usize {
            0
        }
        fn size(&self) -> usize {
            2
        }
        fn gather(&mut self, part: Vec<u8>) -> Result<Vec<Vec<u8>>, BootstrapError> {
            Ok(vec![part, self.0.clone()])
        }
    }

    proptest! {
        #[test]
        fn arbitrary_part_contents_never_panic(tail: Vec<u8>, with_header: bool) {
            let mut part = vec![CollectiveStep::Fence as u8, 0, 0, 0, 0, 0, 0, 0, 0];
            if !with_header {
                part.clear();
            }
            part.extend_from_slice(&tail);
            let mut collective = Collective::assume_joined(Scripted(part));
            collective.put("mine", b"1").unwrap();
            if let Err(error) = collective.fence() {
                // Further calls return the same error.
                prop_assert_eq!(collective.get(0, "mine"), Err(error.clone()));
                prop_assert_eq!(collective.barrier(), Err(error));
            }
        }
    }

    #[test]
    fn out_of_step_ranks_get_an_error() {
        let part = vec![CollectiveStep::Barrier as u8, 0, 0, 0, 0, 0, 0, 0, 0];
        let error = Collective::assume_joined(Scripted(part)).fence().unwrap_err();
        let text = error.to_string();
        assert!(text.contains("rank 0 is in fence 0 while rank 1 is in barrier 0"), "{text}");
    }

    #[test]
    fn truncated_field_is_rejected() {
        let mut part = vec![CollectiveStep::Fence as u8, 0, 0, 0, 0, 0, 0, 0, 0];
        part.extend_from_slice(&[0xff; 6]);
        let error = Collective::assume_joined(Scripted(part)).fence().unwrap_err();
        assert!(matches!(error, BootstrapError::Malformed { .. }));
    }
}
