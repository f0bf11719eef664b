//! The marks that a program below valgrind makes around what is counted.

use std::arch::asm;

/// Valgrind's numbers of callgrind's requests (`valgrind/callgrind.h`).
const START_INSTRUMENTATION: usize = 0x4354_0004;
const STOP_INSTRUMENTATION: usize = 0x4354_0005;

/// Does `work`, which is counted: callgrind begins with an empty cache, and a system call that
/// nothing else makes shows in valgrind's list where it begins and ends.
#[inline(never)]
pub(super) fn counted<T>(work: impl FnOnce() -> T) -> T {
    let _begin = rustix::process::getpgid(None);
    request(START_INSTRUMENTATION);
    let result = work();
    request(STOP_INSTRUMENTATION);
    let _end = rustix::process::getpgid(None);
    result
}

/// A request to the valgrind that runs this program; nothing happens without one.
#[inline(always)]
fn request(number: usize) {
    let request = [number, 0, 0, 0, 0, 0];
    // SAFETY: valgrind recognizes the sequence. On the processor it rotates a register by 128 bits
    // in all, which leaves it as it was, and exchanges another one with itself.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") 0_usize => _,
            options(nostack)
        );
    }
    // SAFETY: as above; the last instruction is a register or-ed with itself.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "ror x12, x12, 3",
            "ror x12, x12, 13",
            "ror x12, x12, 51",
            "ror x12, x12, 61",
            "orr x10, x10, x10",
            in("x4") request.as_ptr(),
            inout("x3") 0_usize => _,
            options(nostack)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_do_nothing_without_valgrind() {
        assert_eq!(counted(|| 7), 7);
        // As the header makes them of two letters and a number.
        let base = (usize::from(b'C') << 24) | (usize::from(b'T') << 16);
        assert_eq!([START_INSTRUMENTATION, STOP_INSTRUMENTATION], [base + 4, base + 5]);
    }
}
