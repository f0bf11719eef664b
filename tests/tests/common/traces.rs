//! What ringrail leaves on a NIC and in folders.

use std::path::{Path, PathBuf};
use std::process::Command;

use ringrail_tests::lab::{Host, Lab};

/// All that `ip` says of the NIC, its XDP program included.
pub(crate) fn nic() -> String {
    let output = Command::new("ip").args(["-details", "link", "show", "rail0"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Files and folders of ringrail's for the hosts of a lab.
pub(crate) fn litter(lab: &Lab, bpffs: &Path) -> Vec<PathBuf> {
    let entries = ["/run/ringrail-xdp".as_ref(), bpffs].map(std::fs::read_dir);
    let mut paths: Vec<_> =
        entries.into_iter().flatten().flatten().map(|entry| entry.unwrap().path()).collect();
    let inodes = [Host::A, Host::B].map(|host| format!("{}-", lab.host(host).inode()));
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        inodes.iter().any(|inode| name.contains(inode))
    });
    paths
}

/// Removes the lock files that killed processes of a failed test have left, whose hosts nobody
/// will see again. What is pinned goes with its bpffs.
pub(crate) struct Cleaner<'a>(&'a Lab);

impl<'a> Cleaner<'a> {
    /// For a new lab. What is there under the numbers of its hosts is of others that had them
    /// before.
    pub(crate) fn of(lab: &'a Lab) -> Self {
        drop(Self(lab));
        Self(lab)
    }
}

impl Drop for Cleaner<'_> {
    fn drop(&mut self) {
        for path in litter(self.0, "/nowhere".as_ref()) {
            // The test has failed already.
            let _ = std::fs::remove_file(path);
        }
    }
}
