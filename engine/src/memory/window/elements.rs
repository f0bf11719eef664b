//! Elements of memory that atomic operations are on: one word of the CPU's, or, of complex numbers,
//! two where no word holds both parts.

use std::ops::{Add, Mul, Sub};
use std::sync::atomic::{
    AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering,
};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value of an element, as it lies in buffers.
pub(super) trait Value: Copy + PartialEq + Default {
    /// The value of an element's bytes.
    fn from_bytes(bytes: &[u8]) -> Self;
    /// The bytes of a value.
    fn put_bytes(self, bytes: &mut [u8]);
    /// The sum; integers wrap around.
    fn plus(self, other: Self) -> Self;
    /// The difference; integers wrap around.
    fn minus(self, other: Self) -> Self;
    /// The product; integers wrap around.
    fn times(self, other: Self) -> Self;
    /// 1 or 0.
    fn of_truth(truth: bool) -> Self;

    /// Whether it is not 0.
    fn is_true(self) -> bool {
        self != Self::of_truth(false)
    }
}

/// An element in memory. Whatever changes it acquires and releases.
pub(super) trait Element: Copy {
    type Value: Value;

    /// # Safety
    ///
    /// The element is mapped (for writing, if it is written), aligned as its type wants, and only
    /// accessed by atomics for as long as the result is used.
    unsafe fn at(place: *mut u8) -> Self;
    fn load(self) -> Self::Value;
    fn store(self, value: Self::Value);
    fn swap(self, value: Self::Value) -> Self::Value;
    /// Replaces the value by what `next` makes of it, which may be called several times; `None`
    /// leaves it. Returns the value of before.
    fn change(self, next: impl Fn(Self::Value) -> Option<Self::Value>) -> Self::Value;

    fn sum(self, operand: Self::Value) -> Self::Value {
        self.change(|old| Some(old.plus(operand)))
    }

    fn difference(self, operand: Self::Value) -> Self::Value {
        self.change(|old| Some(old.minus(operand)))
    }

    fn compare_swap(self, compare: Self::Value, operand: Self::Value) -> Self::Value {
        self.change(|old| (compare == old).then_some(operand))
    }
}

/// Elements with an order.
pub(super) trait Ordered: Element<Value: PartialOrd> {
    fn min(self, operand: Self::Value) -> Self::Value {
        self.change(|old| (operand < old).then_some(operand))
    }

    fn max(self, operand: Self::Value) -> Self::Value {
        self.change(|old| (operand > old).then_some(operand))
    }
}

/// Elements with bits.
pub(super) trait Bits: Ordered {
    fn or(self, operand: Self::Value) -> Self::Value;
    fn and(self, operand: Self::Value) -> Self::Value;
    fn xor(self, operand: Self::Value) -> Self::Value;
    fn masked_swap(self, mask: Self::Value, operand: Self::Value) -> Self::Value;
}

/// Both parts of a complex number, as in C.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Complex<T> {
    pub(super) re: T,
    pub(super) im: T,
}

macro_rules! integers {
    ($($value:ident in $atomic:ident;)*) => {$(
        impl Value for $value {
            #[inline]
            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_ne_bytes(bytes.try_into().expect("the bytes of one element"))
            }

            #[inline]
            fn put_bytes(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }

            #[inline]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }

            #[inline]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline]
            fn of_truth(truth: bool) -> Self {
                Self::from(truth)
            }
        }

        // One instruction each where the CPU has one.
        impl Element for &$atomic {
            type Value = $value;

            #[inline]
            unsafe fn at(place: *mut u8) -> Self {
                // SAFETY: by the caller's contract.
                unsafe { $atomic::from_ptr(place.cast()) }
            }

            #[inline]
            fn load(self) -> $value {
                $atomic::load(self, Ordering::Acquire)
            }

            #[inline]
            fn store(self, value: $value) {
                $atomic::store(self, value, Ordering::Release);
            }

            #[inline]
            fn swap(self, value: $value) -> $value {
                $atomic::swap(self, value, Ordering::AcqRel)
            }

            #[inline]
            fn change(self, next: impl Fn($value) -> Option<$value>) -> $value {
                match self.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
                    Ok(old) | Err(old) => old,
                }
            }

            #[inline]
            fn sum(self, operand: $value) -> $value {
                self.fetch_add(operand, Ordering::AcqRel)
            }

            #[inline]
            fn difference(self, operand: $value) -> $value {
                self.fetch_sub(operand, Ordering::AcqRel)
            }

            #[inline]
            fn compare_swap(self, compare: $value, operand: $value) -> $value {
                match self.compare_exchange(compare, operand, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(old) | Err(old) => old,
                }
            }
        }

        impl Ordered for &$atomic {
            #[inline]
            fn min(self, operand: $value) -> $value {
                self.fetch_min(operand, Ordering::AcqRel)
            }

            #[inline]
            fn max(self, operand: $value) -> $value {
                self.fetch_max(operand, Ordering::AcqRel)
            }
        }

        impl Bits for &$atomic {
            #[inline]
            fn or(self, operand: $value) -> $value {
                self.fetch_or(operand, Ordering::AcqRel)
            }

            #[inline]
            fn and(self, operand: $value) -> $value {
                self.fetch_and(operand, Ordering::AcqRel)
            }

            #[inline]
            fn xor(self, operand: $value) -> $value {
                self.fetch_xor(operand, Ordering::AcqRel)
            }

            #[inline]
            fn masked_swap(self, mask: $value, operand: $value) -> $value {
                self.change(|old| Some((operand & mask) | (old & !mask)))
            }
        }
    )*};
}

integers! {
    i8 in AtomicI8;
    u8 in AtomicU8;
    i16 in AtomicI16;
    u16 in AtomicU16;
    i32 in AtomicI32;
    u32 in AtomicU32;
    i64 in AtomicI64;
    u64 in AtomicU64;
}

macro_rules! reals {
    ($($value:ident;)*) => {$(
        impl Value for $value {
            #[inline]
            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_ne_bytes(bytes.try_into().expect("the bytes of one element"))
            }

            #[inline]
            fn put_bytes(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }

            #[inline]
            fn plus(self, other: Self) -> Self {
                self + other
            }

            #[inline]
            fn minus(self, other: Self) -> Self {
                self - other
            }

            #[inline]
            fn times(self, other: Self) -> Self {
                self * other
            }

            #[inline]
            fn of_truth(truth: bool) -> Self {
                Self::from(u8::from(truth))
            }
        }
    )*};
}

reals! {
    f32;
    f64;
}

impl<T> Value for Complex<T>
where
    T: Value + Add<Output = T> + Sub<Output = T> + Mul<Output = T>,
{
    #[inline]
    fn from_bytes(bytes: &[u8]) -> Self {
        let (re, im) = bytes.split_at(size_of::<T>());
        Self { re: T::from_bytes(re), im: T::from_bytes(im) }
    }

    #[inline]
    fn put_bytes(self, bytes: &mut [u8]) {
        let (re, im) = bytes.split_at_mut(size_of::<T>());
        self.re.put_bytes(re);
        self.im.put_bytes(im);
    }

    #[inline]
    fn plus(self, other: Self) -> Self {
        Self { re: self.re + other.re, im: self.im + other.im }
    }

    #[inline]
    fn minus(self, other: Self) -> Self {
        Self { re: self.re - other.re, im: self.im - other.im }
    }

    #[inline]
    fn times(self, other: Self) -> Self {
        Self {
            re: self.re * other.re - self.im * other.im,
            im: self.re * other.im + self.im * other.re,
        }
    }

    #[inline]
    fn of_truth(truth: bool) -> Self {
        Self { re: T::of_truth(truth), im: T::of_truth(false) }
    }
}

/// A word whose bits are a value that the CPU has no atomic instructions for.
macro_rules! words {
    ($(
        $(#[$about:meta])*
        $name:ident: $value:ty, $atomic:ident, $decode:expr, $encode:expr;
    )*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy)]
        pub(super) struct $name<'a>(&'a $atomic);

        impl Element for $name<'_> {
            type Value = $value;

            #[inline]
            unsafe fn at(place: *mut u8) -> Self {
                // SAFETY: by the caller's contract.
                Self(unsafe { $atomic::from_ptr(place.cast()) })
            }

            #[inline]
            fn load(self) -> $value {
                $decode(self.0.load(Ordering::Acquire))
            }

            #[inline]
            fn store(self, value: $value) {
                self.0.store($encode(value), Ordering::Release);
            }

            #[inline]
            fn swap(self, value: $value) -> $value {
                $decode(self.0.swap($encode(value), Ordering::AcqRel))
            }

            #[inline]
            fn change(self, next: impl Fn($value) -> Option<$value>) -> $value {
                let next = |bits| next($decode(bits)).map($encode);
                match self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
                    Ok(old) | Err(old) => $decode(old),
                }
            }
        }
    )*};
}

words! {
    /// A real number of 32 bits.
    Real32: f32, AtomicU32, f32::from_bits, f32::to_bits;
    /// A real number of 64 bits.
    Real64: f64, AtomicU64, f64::from_bits, f64::to_bits;
    /// A complex number of 64 bits, at a multiple of 8 bytes.
    Pair32: Complex<f32>, AtomicU64, complex_of_word, word_of_complex;
}

impl Ordered for Real32<'_> {}
impl Ordered for Real64<'_> {}

#[inline]
fn complex_of_word(bits: u64) -> Complex<f32> {
    Complex::from_bytes(&bits.to_ne_bytes())
}

#[inline]
fn word_of_complex(value: Complex<f32>) -> u64 {
    let mut bytes = [0; size_of::<u64>()];
    value.put_bytes(&mut bytes);
    u64::from_ne_bytes(bytes)
}

/// A complex number in two words: of 128 bits, or of 64 at no multiple of 8 bytes.
///
/// A lock keeps operations of this process on it apart. Others see each part whole, and may see
/// one of before and one of after; what they write at the same time may be lost.
#[derive(Clone, Copy)]
pub(super) struct Halves<E> {
    re: E,
    im: E,
    lock: &'static Mutex<()>,
}

/// One lock for all elements would be met by all; one each has no place.
const LOCKS: usize = 64;

static HALVES: [Mutex<()>; LOCKS] = [const { Mutex::new(()) }; LOCKS];

impl<E, T> Halves<E>
where
    E: Element<Value = T>,
    Complex<T>: Value,
    T: Value,
{
    fn lock(&self) -> MutexGuard<'static, ()> {
        // It guards memory outside of it: there is nothing that a panic could leave half done.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load_locked(self) -> Complex<T> {
        Complex { re: self.re.load(), im: self.im.load() }
    }

    fn store_locked(self, value: Complex<T>) {
        self.re.store(value.re);
        self.im.store(value.im);
    }
}

impl<E, T> Element for Halves<E>
where
    E: Element<Value = T>,
    Complex<T>: Value,
    T: Value,
{
    type Value = Complex<T>;

    #[inline]
    unsafe fn at(place: *mut u8) -> Self {
        let size = size_of::<T>();
        let lock = &HALVES[place.addr() / (2 * size) % LOCKS];
        // SAFETY: by the caller's contract: an element of this type has two parts.
        unsafe { Self { re: E::at(place), im: E::at(place.wrapping_add(size)), lock } }
    }

    fn load(self) -> Complex<T> {
        let _locked = self.lock();
        self.load_locked()
    }

    fn store(self, value: Complex<T>) {
        let _locked = self.lock();
        self.store_locked(value);
    }

    fn swap(self, value: Complex<T>) -> Complex<T> {
        self.change(|_| Some(value))
    }

    fn change(self, next: impl Fn(Complex<T>) -> Option<Complex<T>>) -> Complex<T> {
        let _locked = self.lock();
        let old = self.load_locked();
        if let Some(new) = next(old) {
            self.store_locked(new);
        }
        old
    }
}
