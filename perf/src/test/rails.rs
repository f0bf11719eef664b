//! Which rails a round went by, and what they carried.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ringrail::PathStatistics;

/// What this program wants to know of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PathUse {
    nic: String,
    local: IpAddr,
    remote: IpAddr,
    /// Bytes of bulk lanes, both ways.
    bytes: u64,
    carries_messages: bool,
}

/// The paths to the peer, at one time or since another one.
#[derive(Clone, Debug, Default)]
pub(super) struct PathsUsed(Vec<PathUse>);

impl PathsUsed {
    pub(super) fn of(paths: &[PathStatistics]) -> Self {
        let uses = paths.iter().map(|path| PathUse {
            nic: path.nic.clone(),
            local: path.local,
            remote: path.remote,
            bytes: path.bytes_sent + path.bytes_received,
            carries_messages: path.carries_messages,
        });
        Self(uses.collect())
    }

    /// What was carried since `before`; a path that was not there then has carried all of it.
    pub(super) fn since(mut self, before: &Self) -> Self {
        for path in &mut self.0 {
            let is_it = |old: &&PathUse| (old.local, old.remote) == (path.local, path.remote);
            path.bytes -= before.0.iter().find(is_it).map_or(0, |old| old.bytes.min(path.bytes));
        }
        self
    }

    /// The NIC that messages go by.
    pub(super) fn primary_nic(&self) -> &str {
        let primary = self.0.iter().find(|path| path.carries_messages).or(self.0.first());
        primary.map_or("", |path| &path.nic)
    }

    /// The bulk lanes used, as reports have them: `kind:nic`, each NIC once. Where nothing went by
    /// bulk lanes: that of the NIC that messages go by.
    pub(super) fn lanes(&self, kind: &str) -> Vec<String> {
        let mut nics: Vec<&str> = Vec::new();
        for path in self.0.iter().filter(|path| path.bytes > 0) {
            if !nics.contains(&&*path.nic) {
                nics.push(&path.nic);
            }
        }
        if nics.is_empty() {
            nics.push(self.primary_nic());
        }
        nics.iter().map(|nic| format!("{kind}:{nic}")).collect()
    }

    /// Bytes of bulk lanes by NIC, both ways; `None`: there is one path.
    pub(super) fn bytes(&self) -> Option<BTreeMap<String, u64>> {
        let mut bytes = BTreeMap::new();
        for path in &self.0 {
            *bytes.entry(path.nic.clone()).or_default() += path.bytes;
        }
        (self.0.len() > 1).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(nic: &str, remote: u8, bytes: u64, carries_messages: bool) -> PathUse {
        let local = [10, 0, 0, nic.len() as u8].into();
        PathUse {
            nic: nic.into(),
            local,
            remote: [10, 0, 1, remote].into(),
            bytes,
            carries_messages,
        }
    }

    #[test]
    fn lanes_are_those_that_carried_something_in_this_round() {
        let before = PathsUsed(vec![path("a", 1, 100, true), path("bb", 1, 50, false)]);
        let after = vec![
            path("a", 1, 100, false),
            path("bb", 1, 80, true),
            path("bb", 2, 5, false),
            path("ccc", 1, 0, false),
        ];
        let used = PathsUsed(after).since(&before);
        assert_eq!(used.lanes("uring"), ["uring:bb"]);
        assert_eq!(used.primary_nic(), "bb");
        let expected = [("a", 0), ("bb", 35), ("ccc", 0)].map(|(nic, bytes)| (nic.into(), bytes));
        assert_eq!(used.bytes(), Some(BTreeMap::from(expected)));
    }

    #[test]
    fn a_round_of_short_messages_has_the_lane_of_its_primary_path() {
        let only = PathsUsed(vec![path("a", 1, 0, true)]);
        assert_eq!((only.lanes("sockets"), only.bytes()), (vec!["sockets:a".to_owned()], None));
        assert_eq!(PathsUsed::default().lanes("uring"), ["uring:"]);
    }
}
