//! Owned endpoints share their domain, and nothing writes to it on the way of a message: no lock,
//! no reference count, no counter.
//!
//! All that a domain allocates is in pages of its own. They are read-only while two threads
//! exchange messages: a write, of whatever kind, ends the process. So that is another process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};
use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use ringrail::settings::Settings;
use ringrail::{
    Address, Buffer, Detached, Domain, Endpoint, Envelope, JobSecret, OperationKind,
    ReceiveOptions, Selector, SendOptions,
};

/// The parameter of the other process: whether a thread writes to the domain.
const WRITES: &str = "TEST_OF_RINGRAIL_WRITES";
/// Messages each way, of each length.
const MESSAGES: u64 = 300;
/// What goes in a datagram, what goes on the TCP connection or is pulled, and what is pulled.
const LENGTHS: [usize; 3] = [8, 16_000, 1 << 20];
/// Bytes of all that a domain allocates, at most. Its arena is mapped and no part of that.
const BYTES: usize = 1 << 20;

static BASE: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether this thread allocates from the pages of the domain.
    static IS_DOMAIN: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, and for domains pages that nothing else is in.
struct Apart;

// SAFETY: memory is the system allocator's or, without overlap and never twice, of pages that are
// never unmapped; only the former goes back to the system's allocator.
unsafe impl GlobalAlloc for Apart {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !IS_DOMAIN.try_with(Cell::get).unwrap_or(false) {
            // SAFETY: the caller keeps to the contract of `alloc`, which is the same here.
            return unsafe { System.alloc(layout) };
        }
        let room = layout.size() + layout.align();
        let at = USED.fetch_add(room, Ordering::Relaxed);
        if at + room > BYTES {
            return ptr::null_mut();
        }
        let address = BASE.load(Ordering::Relaxed) + at;
        ptr::with_exposed_provenance_mut(address.next_multiple_of(layout.align()))
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let base = BASE.load(Ordering::Relaxed);
        if base == 0 || !(base..base + BYTES).contains(&pointer.addr()) {
            // SAFETY: it is not of the pages, so that it came from `System` with this layout.
            unsafe { System.dealloc(pointer, layout) }
        }
    }
}

#[global_allocator]
static ALLOCATOR: Apart = Apart;

/// Sets what threads may do with the pages of the domain.
fn protect(protection: libc::c_int) {
    let base = ptr::with_exposed_provenance_mut(BASE.load(Ordering::Relaxed));
    // SAFETY: these pages are mapped, and nothing but the domain is in them; a thread that
    // writes to it while they are read-only gets a signal, which is what is tested.
    let result = unsafe { libc::mprotect(base, BYTES, protection) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// A domain in pages of its own.
fn domain_apart() -> Domain {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a mapping at an address that the kernel chooses touches no other one.
    let base = unsafe { libc::mmap(ptr::null_mut(), BYTES, protection, flags, -1, 0) };
    assert_ne!(base, libc::MAP_FAILED);
    BASE.store(base.expose_provenance(), Ordering::Relaxed);
    let settings = Settings::isolated()
        .set("listen_address", "127.0.0.1")
        .job_secret(Some(&JobSecret::random()))
        .build()
        .unwrap();
    IS_DOMAIN.set(true);
    let domain = Domain::with_settings(settings);
    IS_DOMAIN.set(false);
    assert!(USED.load(Ordering::Relaxed) > 0, "the domain is elsewhere");
    domain.unwrap()
}

/// Exchanges messages with the other thread: first some that warm up; then `begin` and `end` are
/// called before and after those that count.
fn exchange(
    endpoint: Endpoint<Detached>,
    other: &Address,
    begin: impl FnOnce(&Domain),
    end: impl FnOnce(),
) {
    let endpoint = endpoint.attach().unwrap();
    let peer = endpoint.insert_peer(other).unwrap();
    let envelope = Envelope::tagged(1);
    let buffer = |length| Buffer::from(endpoint.domain().allocate(length).unwrap());
    let mut buffers = LENGTHS.map(|length| (buffer(length), buffer(length)));
    let mut done = Vec::with_capacity(16);
    let mut all = |number: u64| {
        for (out, back) in &mut buffers {
            for _ in 0..MESSAGES {
                let send = std::mem::replace(out, Buffer::from(Vec::new()));
                let receive = std::mem::replace(back, Buffer::from(Vec::new()));
                let selector = Selector::from_peer(peer, envelope);
                endpoint
                    .post_receive(selector, receive, ReceiveOptions::new().user_data(number))
                    .unwrap();
                endpoint
                    .post_send(peer, envelope, send, SendOptions::new().user_data(number))
                    .unwrap();
                let mut left = 2;
                while left > 0 {
                    endpoint.wait(&mut done, 2, None).unwrap();
                    for completion in done.drain(..) {
                        completion.result.unwrap();
                        let buffer = completion.buffer.unwrap();
                        match completion.kind {
                            OperationKind::Send => *out = buffer,
                            _ => *back = buffer,
                        }
                        left -= 1;
                    }
                }
            }
        }
    };
    all(0);
    begin(endpoint.domain());
    all(1);
    end();
}

/// Both threads; `writes`: one of them writes to the domain while it is read-only.
fn two_threads(writes: bool) {
    let domain = domain_apart();
    let endpoints = [(); 2].map(|()| domain.endpoint().unwrap());
    let [first, second] = [0, 1].map(|at| endpoints[at].address());
    let [left, right] = endpoints;
    let together = Barrier::new(2);
    let together = &together;
    thread::scope(|scope| {
        scope.spawn(move || {
            let begin = |domain: &Domain| {
                together.wait();
                protect(libc::PROT_READ);
                if writes {
                    drop(domain.clone());
                }
                together.wait();
            };
            let end = || {
                together.wait();
                protect(libc::PROT_READ | libc::PROT_WRITE);
                together.wait();
            };
            exchange(left, &second, begin, end);
        });
        let twice = move || {
            together.wait();
            together.wait();
        };
        exchange(right, &first, move |_| twice(), twice);
    });
}

#[test]
#[ignore = "started by other tests"]
fn messages_while_the_domain_is_read_only() {
    let writes = std::env::var(WRITES).expect("the test that starts this one sets it");
    two_threads(writes == "yes");
}

/// Runs the test above in a process of its own.
fn other_process(writes: &str) -> Output {
    let name = "shared_memory::messages_while_the_domain_is_read_only";
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", name])
        .env(WRITES, writes)
        .output()
        .unwrap()
}

#[test]
fn no_message_writes_to_what_owned_endpoints_share() {
    let output = other_process("no");
    let (output_text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {output_text}{errors}", output.status);
    assert!(output_text.contains("1 passed"), "{output_text}");
}

/// Otherwise the test above would see nothing.
#[test]
fn a_reference_count_is_such_a_write() {
    let output = other_process("yes");
    let errors = String::from_utf8_lossy(&output.stderr);
    // A sanitizer has a handler of that signal, and prints that.
    let is_seen = output.status.signal() == Some(libc::SIGSEGV) || errors.contains("SEGV");
    assert!(is_seen, "{}: {errors}", output.status);
}
