//! Handles: names of objects that C holds as pointers to types that it does not know.
//!
//! A handle is no address. It has the object's kind, its place in a table and a number that the
//! place has never had before, so that one that is closed, of another kind, or made up finds
//! nothing, whatever it was; and who follows it by mistake faults at once, for no address of a
//! process looks like it. To find an object costs two loads and a comparison.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::fault::Fault;

/// Objects that C has handles of.
pub(crate) trait Handled: Sized {
    /// The type that C points to.
    type Name;
    /// 1 to 15, and no other's.
    const KIND: u64;
    /// What it is called in errors.
    const WHAT: &'static str;
}

/// Bits of a handle: the place, the number, the kind. With a kind they are no address.
const PLACE_BITS: u32 = 20;
const NUMBER_BITS: u32 = 32;
const CHUNK: usize = 1024;
const CHUNKS: usize = (1 << PLACE_BITS) / CHUNK;

const _: () = assert!(size_of::<usize>() == 8, "a handle has 64 bits");

/// A place of the table.
struct Place {
    /// The handle that is open here; 0: none.
    handle: AtomicU64,
    /// The thread that may use the object; 0: each.
    owner: AtomicU64,
    object: AtomicPtr<()>,
}

type Chunk = [Place; CHUNK];

/// Chunks stay where they are: a look-up takes no lock.
static TABLE: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];

/// Places that are free, and the numbers that they have next.
static FREE: Mutex<Free> = Mutex::new(Free { places: Vec::new(), fresh: 0 });

struct Free {
    places: Vec<(u32, u32)>,
    /// The first place that was never used.
    fresh: u32,
}

thread_local! {
    static ME: Cell<u64> = const { Cell::new(0) };
}

/// A number of the calling thread, which no other thread ever has.
pub(crate) fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let known = ME.get();
    if known != 0 {
        return known;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    ME.set(number);
    number
}

fn place(handle: u64) -> Option<&'static Place> {
    let index = (handle & ((1 << PLACE_BITS) - 1)) as usize;
    let chunk = TABLE[index / CHUNK].load(Ordering::Acquire);
    // SAFETY: a chunk is leaked when it is made, and only shared references to it are made.
    let chunk = unsafe { chunk.as_ref() }?;
    Some(&chunk[index % CHUNK])
}

/// Gives an object a handle. `owner`: the thread that may use it, 0 for each.
pub(crate) fn open<T: Handled>(owner: u64, value: T) -> Result<*mut T::Name, Fault> {
    let object = Box::into_raw(Box::new(value));
    let (index, number) = {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        match free.places.pop() {
            Some(known) => known,
            None if free.fresh < 1 << PLACE_BITS => {
                let index = free.fresh;
                let chunk = &TABLE[index as usize / CHUNK];
                if chunk.load(Ordering::Relaxed).is_null() {
                    let new = [const {
                        Place {
                            handle: AtomicU64::new(0),
                            owner: AtomicU64::new(0),
                            object: AtomicPtr::new(ptr::null_mut()),
                        }
                    }; CHUNK];
                    chunk.store(Box::into_raw(Box::new(new)), Ordering::Release);
                }
                free.fresh += 1;
                (index, 1)
            }
            None => {
                // SAFETY: it was made above, and there is no other reference.
                drop(unsafe { Box::from_raw(object) });
                let text = "a process has 1048576 handles; close some";
                return Err(Fault::Engine(ringrail::Error::Limit(text)));
            }
        }
    };
    let handle =
        T::KIND << (PLACE_BITS + NUMBER_BITS) | u64::from(number) << PLACE_BITS | u64::from(index);
    let place = place(handle).expect("a place that was given out is in a chunk");
    place.owner.store(owner, Ordering::Relaxed);
    place.object.store(object.cast(), Ordering::Relaxed);
    place.handle.store(handle, Ordering::Release);
    Ok(ptr::without_provenance_mut(handle as usize))
}

fn missing<T: Handled>(handle: u64) -> Fault {
    let what = T::WHAT;
    Fault::handle(match handle {
        0 => format!("the handle of the {what} is null"),
        _ => {
            format!("the handle {handle:#x} names no open {what}: it was closed, or never was one")
        }
    })
}

/// The object of a handle, if the calling thread may use it.
///
/// # Safety
///
/// It is not closed before the last use of the result.
#[inline]
pub(crate) unsafe fn get<'a, T: Handled>(handle: *mut T::Name) -> Result<&'a T, Fault> {
    let place = find::<T>(handle)?;
    let object: *const T = place.object.load(Ordering::Relaxed).cast();
    // SAFETY: the place has the handle, so it has an object of its kind, which lives until it is
    // closed: not before the caller has done with it.
    Ok(unsafe { &*object })
}

/// The place of a handle, if the calling thread may use it. It reads nothing of the object, which
/// another thread may be closing.
#[inline]
fn find<T: Handled>(handle: *mut T::Name) -> Result<&'static Place, Fault> {
    let number = handle.addr() as u64;
    let open = place(number).filter(|place| {
        number >> (PLACE_BITS + NUMBER_BITS) == T::KIND
            && place.handle.load(Ordering::Acquire) == number
    });
    let Some(place) = open else { return Err(missing::<T>(number)) };
    let owner = place.owner.load(Ordering::Relaxed);
    if owner != 0 && owner != this_thread() {
        return Err(Fault::thread(T::WHAT));
    }
    Ok(place)
}

/// Takes an object from its handle, which is spent. Of two threads that close it one succeeds.
///
/// # Safety
///
/// No other thread is in a call with it, but for closing it.
pub(crate) unsafe fn close<T: Handled>(handle: *mut T::Name) -> Result<T, Fault> {
    let place = find::<T>(handle)?;
    let number = handle.addr() as u64;
    let closed = place.handle.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed);
    if closed.is_err() {
        return Err(missing::<T>(number));
    }
    // The place is this thread's until it is free, and what was found above is of this handle: a
    // place has a number once.
    let object: *mut T = place.object.load(Ordering::Relaxed).cast();
    let index = (number & ((1 << PLACE_BITS) - 1)) as u32;
    // A place whose numbers are used up stays unused.
    if let Some(next) = ((number >> PLACE_BITS) as u32).checked_add(1) {
        FREE.lock().unwrap_or_else(PoisonError::into_inner).places.push((index, next));
    }
    // SAFETY: `open` made it of a box, and who clears the handle is the one to take it.
    Ok(*unsafe { Box::from_raw(object) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::RR_EHANDLE;

    struct Number(u32);
    enum CNumber {}
    struct Other;
    enum COther {}

    impl Handled for Number {
        type Name = CNumber;
        const KIND: u64 = 14;
        const WHAT: &'static str = "number";
    }

    impl Handled for Other {
        type Name = COther;
        const KIND: u64 = 15;
        const WHAT: &'static str = "other thing";
    }

    fn value(handle: *mut CNumber) -> Option<u32> {
        // SAFETY: tests close what they have done with.
        unsafe { get::<Number>(handle) }.ok().map(|number| number.0)
    }

    #[test]
    fn closed_and_foreign_handles_find_nothing() {
        let (one, two) = (open(0, Number(1)).ok().unwrap(), open(0, Number(2)).ok().unwrap());
        assert_eq!((value(one), value(two)), (Some(1), Some(2)));
        // SAFETY: no other thread has it.
        assert!(unsafe { get::<Other>(one.cast()) }.is_err(), "it is of another kind");
        // SAFETY: as above.
        assert!(unsafe { close::<Number>(one) }.is_ok_and(|number| number.0 == 1));
        // SAFETY: as above.
        assert!(unsafe { close::<Number>(one) }.is_err());
        let again = open(0, Number(3)).ok().unwrap();
        assert_ne!(again, one);
        assert_eq!((value(one), value(again), value(two)), (None, Some(3), Some(2)));
        for made_up in [0, 1, usize::MAX, two.addr() ^ 1 << 40, &raw const TABLE as usize] {
            assert_eq!(value(ptr::without_provenance_mut(made_up)), None, "{made_up:#x}");
        }
        for handle in [again, two] {
            // SAFETY: as above.
            assert!(unsafe { close::<Number>(handle) }.is_ok());
        }
    }

    #[test]
    fn an_owner_is_alone() {
        let mine = open(this_thread(), Number(4)).ok().unwrap();
        assert_eq!(value(mine), Some(4));
        let address = mine.addr();
        let other = std::thread::spawn(move || {
            let handle = ptr::without_provenance_mut::<CNumber>(address);
            // SAFETY: it is refused.
            value(handle).is_none() && unsafe { close::<Number>(handle) }.is_err()
        });
        assert!(other.join().unwrap());
        // SAFETY: no other thread has it.
        assert!(unsafe { close::<Number>(mine) }.is_ok());
    }

    /// Of two threads that close a handle the second finds it closed, and never another owner: that
    /// would be read of memory that the first has freed.
    #[test]
    fn of_threads_that_close_one_handle_one_succeeds() {
        const ROUNDS: usize = 20_000;
        const THREADS: usize = 2;
        let barrier = std::sync::Barrier::new(THREADS);
        let shared = AtomicU64::new(0);
        let closed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (barrier, shared, closed) = (&barrier, &shared, &closed);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        if thread == 0 {
                            let handle = open(0, Number(round as u32)).ok().unwrap();
                            shared.store(handle.addr() as u64, Ordering::Release);
                        }
                        barrier.wait();
                        let number = shared.load(Ordering::Acquire);
                        let handle = ptr::without_provenance_mut::<CNumber>(number as usize);
                        // SAFETY: other threads do nothing with it but to close it.
                        match unsafe { close::<Number>(handle) } {
                            Ok(object) => {
                                assert_eq!(object.0, round as u32);
                                closed.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(fault) => {
                                assert!(matches!(fault, Fault::Here(RR_EHANDLE, _)), "{round}")
                            }
                        }
                        barrier.wait();
                    }
                });
            }
        });
        assert_eq!(closed.load(Ordering::Relaxed), ROUNDS as u64);
    }

    #[test]
    fn threads_open_and_close_beside_each_other() {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                std::thread::spawn(move || {
                    for round in 0..2000 {
                        let handle = open(0, Number(thread * 10_000 + round)).ok().unwrap();
                        assert_eq!(value(handle), Some(thread * 10_000 + round));
                        // SAFETY: no other thread has it.
                        assert!(unsafe { close::<Number>(handle) }.is_ok());
                        assert_eq!(value(handle), None);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
