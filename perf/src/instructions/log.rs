//! The output of valgrind: the totals of callgrind, and a list of system calls.

/// The system call by which the program marks where what is counted begins and ends.
const MARK: &str = "sys_getpgid";
/// Calls that the vDSO answers without the kernel, and that valgrind makes system calls.
const OF_VDSO: [&str; 5] =
    ["sys_clock_gettime", "sys_clock_getres", "sys_gettimeofday", "sys_time", "sys_getcpu"];

/// System calls between marks, of the thread that marks, and the number of batches; `None`: there
/// are no marks.
pub(super) fn syscalls(log: &str) -> Option<(u64, u64)> {
    let (mut calls, mut batches) = (0, 0);
    let mut marking = None;
    for (thread, name) in log.lines().filter_map(system_call) {
        match marking {
            None if name == MARK => marking = Some(thread),
            Some(_) if name == MARK => (marking, batches) = (None, batches + 1),
            Some(marking) if marking == thread && !OF_VDSO.contains(&name) => calls += 1,
            _ => {}
        }
    }
    (batches > 0).then_some((calls, batches))
}

/// `SYSCALL[PROCESS,THREAD](NUMBER) sys_NAME ( ...`: thread and name. Where a call may block, its
/// end has a line of its own, without a name.
fn system_call(line: &str) -> Option<(&str, &str)> {
    let (thread, rest) = line.strip_prefix("SYSCALL[")?.split_once(',')?.1.split_once(']')?;
    let name = rest.split_once(' ')?.1.split([' ', '(']).next()?;
    name.starts_with("sys_").then_some((thread, name))
}

/// Returns callgrind's counts of these events, in their order; `None`: they are not there.
pub(super) fn totals<const N: usize>(log: &str, events: [&str; N]) -> Option<[u64; N]> {
    let words = |what: &str| {
        let line = log.lines().find_map(|line| line.split_once(what));
        line.and_then(|(_, words)| words.split_once(':')).map(|(_, words)| words)
    };
    let names: Vec<&str> = words("Events ")?.split_whitespace().collect();
    let counts: Vec<&str> = words("Collected ")?.split_whitespace().collect();
    let mut totals = [0; N];
    for (total, event) in totals.iter_mut().zip(events) {
        let at = names.iter().position(|name| *name == event)?;
        *total = counts.get(at)?.parse().ok()?;
    }
    Some(totals)
}

/// The end of the output, without the list of system calls, for an error message.
pub(super) fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|line| !line.starts_with("SYSCALL[")).collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As valgrind 3.19 writes it.
    const MARKED: &str = "SYSCALL[7,1](121) sys_getpgid ( 0 )[sync] --> Success(0x4fff) \n";
    const CALLS: &str = "\
SYSCALL[7,1](44) sys_sendto ( 3, 0x1fff000638, 8, 0, 0x0, 0 ) --> [async] ... \n\
SYSCALL[7,1](44) ... [async] --> Success(0x8) \n\
SYSCALL[7,1](45) sys_recvfrom ( 4, 0x1fff000638, 8, 0, 0x0, 0x0 ) --> [async] ... \n\
SYSCALL[7,1](45) ... [async] --> Failure(0xb) \n\
SYSCALL[7,1](228) sys_clock_gettime( 1, 0x1fff000640 )[sync] --> Success(0x0) \n\
SYSCALL[7,1](24) sys_sched_yield()[sync] --> Success(0x0) \n\
SYSCALL[7,2](230) sys_clock_nanosleep( 0, 0, 0x1fff000600, 0x0 ) --> [async] ... \n\
packets 7\n";
    const TOTALS: &str = "\
==7== \n\
==7== Events    : Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw\n\
==7== Collected : 2859 1020 647 126 93 39 126 93 39\n\
==7== \n\
==7== I   refs:      2,859\n";

    #[test]
    fn system_calls_between_marks_are_counted_once() {
        let text = [CALLS, MARKED, CALLS, MARKED, CALLS, MARKED, MARKED, CALLS].concat();
        assert_eq!(syscalls(&text), Some((3, 2)));
        assert_eq!(syscalls(CALLS), None);
        assert_eq!(syscalls(""), None);
    }

    #[test]
    fn totals_are_found_by_their_names() {
        assert_eq!(totals(TOTALS, ["ILmr", "DLmr", "DLmw"]), Some([126, 93, 39]));
        assert_eq!(totals(TOTALS, ["Ir"]), Some([2859]));
        assert_eq!(totals(TOTALS, ["Bcm"]), None);
        assert_eq!(totals(CALLS, ["Ir"]), None);
    }

    #[test]
    fn errors_show_the_end_without_system_calls() {
        let many: String = (0..100).map(|number| format!("line {number}\n")).collect();
        let last = tail(&(many + CALLS));
        assert!(last.starts_with("line 61\n") && last.ends_with("line 99\npackets 7"), "{last}");
    }
}
