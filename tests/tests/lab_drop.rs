//! Alone in its process, because it counts the process's descriptors and threads.

use ringrail_tests::lab::{Host, Lab, LabSpec, ProcessId, users};
use ringrail_tests::require_lab;

#[test]
fn a_dropped_lab_is_kept_by_nobody() {
    require_lab!();
    let this = ProcessId::of(std::process::id()).unwrap();
    let lab = Lab::build(&LabSpec::default()).unwrap();
    let inodes = [Host::A, Host::B].map(|host| lab.host(host).inode());
    for inode in inodes {
        assert_eq!(users(inode), [this], "the lab itself, and no helper of its building");
    }
    lab.host(Host::A).enter(|| ()).unwrap();
    drop(lab);
    for inode in inodes {
        // Somebody else's new namespace may have the number already.
        assert!(!users(inode).contains(&this));
    }
}
