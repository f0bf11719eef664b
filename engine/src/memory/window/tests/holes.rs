//! Windows of memory that is not mapped, or not all of it, or not for writing.

use std::ptr;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

use super::*;
use crate::wire::atomic_op::{AtomicOp, Datatype};

/// Pages of a test, of which some are taken away.
struct Pages {
    base: *mut u8,
    page: usize,
    count: usize,
}

impl Pages {
    fn new(count: usize) -> Self {
        let page = rustix::param::page_size();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel picks addresses that nothing else uses.
        let base =
            unsafe { mmap_anonymous(ptr::null_mut(), count * page, protection, MapFlags::PRIVATE) };
        Self { base: base.expect("a few pages").cast(), page, count }
    }

    fn protect(&self, index: usize, protection: MprotectFlags) {
        let page = self.base.wrapping_add(index * self.page).cast();
        // SAFETY: a page of our own, to which no reference exists.
        unsafe { mprotect(page, self.page, protection) }.expect("our own page");
    }

    /// The window of all there is, in which addresses are offsets.
    fn everything() -> Window {
        // SAFETY: these tests only reach pages of their own, and addresses that nothing has.
        unsafe { Window::unmapped(ptr::null_mut(), usize::MAX) }
    }

    fn window(&self) -> Window {
        // SAFETY: pages of our own, to which no reference exists.
        unsafe { Window::unmapped(self.base, self.count * self.page) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping; windows on it are not used any more.
        unsafe { munmap(self.base.cast(), self.count * self.page) }.expect("our own pages");
    }
}

fn fetch(window: &Window, offset: usize, op: AtomicOp) -> Result<u64, AtomicError> {
    let mut fetched = [0; 8];
    let operands = 1u64.to_ne_bytes();
    let operands = if op.takes_operands() { &operands[..] } else { &[] };
    window.atomic(offset, op, Datatype::U64, operands, &[], Some(&mut fetched))?;
    Ok(u64::from_ne_bytes(fetched))
}

#[test]
fn all_of_the_address_space_is_a_window() {
    let pages = Pages::new(2);
    let window = Pages::everything();
    assert_eq!(window.len(), usize::MAX);
    let address = pages.base.addr() + pages.page - 5;
    window.store(address, b"over the edge").expect("mapped");
    let mut seen = [0; 13];
    window.load(address, &mut seen).expect("mapped");
    assert_eq!(&seen, b"over the edge");
    pages.window().load(pages.page - 5, &mut seen).expect("mapped");
    assert_eq!(&seen, b"over the edge");
    let word = pages.base.addr() + 64;
    assert_eq!(fetch(&window, word, AtomicOp::Sum), Ok(0));
    assert_eq!(fetch(&window, word, AtomicOp::Sum), Ok(1));
    assert_eq!(fetch(&window, word, AtomicOp::Read), Ok(2));
    let misaligned = fetch(&window, word + 4, AtomicOp::Read);
    assert!(matches!(misaligned, Err(AtomicError::Misaligned { .. })), "{misaligned:?}");
}

#[test]
fn addresses_that_nothing_has_are_faults() {
    let window = Pages::everything();
    // The null page; what no user has; the kernel's; the last bytes there are.
    for offset in [0, 8, 1 << 47, (1 << 63) + 64, usize::MAX - 4095, usize::MAX - 15] {
        let fault = Fault::Memory { offset };
        assert_eq!(window.store(offset, &[1; 8]), Err(fault), "{offset:#x}");
        assert_eq!(window.load(offset, &mut [0; 8]), Err(fault), "{offset:#x}");
        for op in [AtomicOp::Sum, AtomicOp::Read] {
            let offset = offset & !7;
            let fault = AtomicError::Fault(Fault::Memory { offset });
            assert_eq!(fetch(&window, offset, op), Err(fault), "{offset:#x}");
        }
    }
    let outside = window.store(usize::MAX - 3, &[1; 8]);
    assert!(matches!(outside, Err(Fault::Range { .. })), "{outside:?}");
}

#[test]
fn no_page_means_a_fault_behind_what_was_written() {
    let pages = Pages::new(3);
    let page = pages.page;
    pages.protect(1, MprotectFlags::empty());
    let window = pages.window();
    let fault = Fault::Memory { offset: page };
    assert_eq!(window.store(page - 8, &[7; 16]), Err(fault));
    let mut seen = [0; 8];
    window.load(page - 8, &mut seen).expect("the page before");
    assert_eq!(seen, [7; 8], "the bytes before a fault that names its place are written");
    assert_eq!(window.load(page - 8, &mut [0; 16]), Err(fault));
    assert_eq!(window.store(page, &[7; 16]), Err(fault));
    window.store(2 * page, &[7; 16]).expect("the page behind");

    for op in [AtomicOp::Sum, AtomicOp::Write, AtomicOp::Read] {
        let fault = AtomicError::Fault(Fault::Memory { offset: page });
        assert_eq!(fetch(&window, page, op), Err(fault), "{op:?}");
    }
    // Of a vector over the edge no element is changed.
    let vector = [1; 64];
    let over = window.atomic(page - 32, AtomicOp::Write, Datatype::U8, &vector, &[], None);
    assert!(matches!(over, Err(AtomicError::Fault(Fault::Memory { .. }))), "{over:?}");
    let mut before = [9; 24];
    window.load(page - 32, &mut before).expect("the page before");
    assert_eq!(before, [0; 24]);
}

#[test]
fn pages_that_are_only_read_are_not_written() {
    let pages = Pages::new(1);
    let window = pages.window();
    window.store(8, &5u64.to_ne_bytes()).expect("mapped");
    pages.protect(0, MprotectFlags::READ);
    assert_eq!(window.store(8, &[1; 8]), Err(Fault::Memory { offset: 8 }));
    assert_eq!(fetch(&window, 8, AtomicOp::Read), Ok(5));
    for op in [AtomicOp::Sum, AtomicOp::Write, AtomicOp::Min] {
        let fault = AtomicError::Fault(Fault::Memory { offset: 8 });
        assert_eq!(fetch(&window, 8, op), Err(fault), "{op:?}");
    }
    let mut seen = [0; 8];
    window.load(8, &mut seen).expect("it may be read");
    assert_eq!(u64::from_ne_bytes(seen), 5);
    pages.protect(0, MprotectFlags::READ | MprotectFlags::WRITE);
    assert_eq!(fetch(&window, 8, AtomicOp::Sum), Ok(5), "it is a window again");
}

#[test]
fn unmapped_memory_is_a_fault() {
    // Other tests may map memory at the same place at once, but not every time. Only reads: what
    // is there then is theirs.
    let faulted = (0..50).any(|_| {
        let pages = Pages::new(1);
        let address = pages.base.addr();
        drop(pages);
        let window = Pages::everything();
        let fault = Fault::Memory { offset: address };
        window.load(address, &mut [0; 8]) == Err(fault)
            && fetch(&window, address, AtomicOp::Read) == Err(AtomicError::Fault(fault))
    });
    assert!(faulted);
}

#[test]
fn where_a_file_ends_is_a_fault_and_no_signal() {
    let page = rustix::param::page_size();
    let file = memfd_create("window", MemfdFlags::CLOEXEC).expect("a file in memory");
    ftruncate(&file, page as u64).expect("one page");
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel picks addresses that nothing else uses.
    let base = unsafe { mmap(ptr::null_mut(), 2 * page, protection, MapFlags::SHARED, &file, 0) };
    let pages = Pages { base: base.expect("two pages").cast(), page, count: 2 };
    let window = pages.window();
    window.store(0, &[1; 8]).expect("the file has a page");
    let fault = Fault::Memory { offset: page };
    assert_eq!(window.store(page, &[1; 8]), Err(fault));
    assert_eq!(window.load(page, &mut [0; 8]), Err(fault));
    for op in [AtomicOp::Sum, AtomicOp::Read] {
        assert_eq!(fetch(&window, page, op), Err(AtomicError::Fault(fault)), "{op:?}");
    }
}

#[test]
fn faults_name_the_cause_and_the_cure() {
    let texts = [
        Fault::Range { offset: 8, len: 9, window_bytes: 16 }.to_string(),
        Fault::Memory { offset: 4096 }.to_string(),
        Fault::System { offset: 0, os_error: libc::EPERM }.to_string(),
    ];
    assert!(texts[0].contains("9 bytes at offset 8") && texts[0].contains("16 bytes"));
    assert!(texts[1].contains("4096") && texts[1].contains("not mapped"));
    assert!(texts[2].contains("seccomp") && texts[2].contains("not permitted"), "{}", texts[2]);
}
