//! Two jobs share a NIC that has one queue, and one of them is killed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::books::{figures_of, frames_of};
use crate::common::attached;
use crate::job::{Job, RANKS};
use crate::traces::{Cleaner, litter, nic};
use ringrail::FrameState;
use ringrail_tests::lab::{Host, Lab, LabSpec};
use ringrail_tests::require_lab;

const LIMIT: Duration = Duration::from_secs(60);

/// What processes of jobs run; alone it does nothing.
#[test]
#[ignore = "started by other tests"]
fn rank_of_a_job() {
    crate::job::be_a_rank();
}

/// Runs `test` inside host b, with a bpffs where `pinned`, and says afterwards that the NIC is as
/// it was found. The mount goes with the thread.
fn in_host_b(pinned: bool, test: impl Fn(&Lab, &Path) + Send + Sync) {
    let lab = Lab::build(&LabSpec::rails(1)).unwrap();
    let (bpffs, meetings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let _cleaner = Cleaner::of(&lab);
    let work = || {
        // Programs of the lab mount it again.
        rustix::mount::unmount(c"/sys", rustix::mount::UnmountFlags::DETACH).unwrap();
        if pinned {
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount(c"bpf", bpffs.path(), c"bpf", flags, None).unwrap();
        }
        let found = nic();
        assert!(!found.contains("prog/xdp"), "{found}");
        test(&lab, meetings.path());
        // The kernel takes what belonged to killed processes a little later.
        let deadline = Instant::now() + LIMIT;
        while nic() != found && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(nic(), found);
        assert_eq!(litter(&lab, bpffs.path()), Vec::<PathBuf>::new());
    };
    lab.host(Host::B).enter(work).unwrap();
}

/// Both jobs, the first of which owns the queue.
fn both_jobs(lab: &Lab, meetings: &Path) -> [Job; 2] {
    let first = Job::start(lab, &meetings.join("first"));
    assert_eq!(first.owners(), 1, "{:?}", first.frames);
    let second = Job::start(lab, &meetings.join("second"));
    assert_eq!(second.owners(), 0, "{:?}", second.frames);
    for cause in first.frames.iter().chain(&second.frames).filter(|text| *text != "up") {
        assert!(cause.contains("queue 0 of rail0"), "{cause}");
    }
    for job in [&first, &second] {
        job.see_rounds(20);
    }
    [first, second]
}

#[test]
fn a_job_that_owns_no_queue_is_killed() {
    require_lab!();
    for pinned in [false, true] {
        in_host_b(pinned, |lab, meetings| {
            let [first, second] = both_jobs(lab, meetings);
            second.kill();
            first.see_rounds(50);
            let before = first.frames.clone();
            assert_eq!(first.end(), before);
        });
    }
}

#[test]
fn the_job_that_owns_the_queue_is_killed() {
    require_lab!();
    for pinned in [false, true] {
        in_host_b(pinned, |lab, meetings| {
            let [first, second] = both_jobs(lab, meetings);
            first.kill();
            second.see_rounds(50);
            // The queue is free again, beside those who go on without it.
            let third = Job::start(lab, &meetings.join("third"));
            assert_eq!(third.owners(), 1, "{:?}", third.frames);
            for job in [&second, &third] {
                job.see_rounds(20);
            }
            third.end();
            assert_eq!(second.end().len(), RANKS + 1);
        });
    }
}

#[test]
fn a_start_after_all_were_killed_finds_all_it_needs() {
    require_lab!();
    for pinned in [false, true] {
        in_host_b(pinned, |lab, meetings| {
            for job in both_jobs(lab, meetings) {
                job.kill();
            }
            assert!(!pinned || nic().contains("prog/xdp"), "pins keep the program");
            for host in [Host::A, Host::B] {
                let start = || {
                    let settings = [("control_lane", "xdp")];
                    let again = attached(lab.addr(host, 0), &settings).unwrap();
                    assert!(matches!(frames_of(&again), FrameState::Up { .. }));
                    assert_eq!(figures_of(&again).sent, 0);
                };
                lab.host(host).enter(start).unwrap();
            }
        });
    }
}
