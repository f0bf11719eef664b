//! Atomic operations on elements of a window.
//!
//! Elements of up to 8 bytes are changed by atomic instructions of the CPU: they go together with
//! the program's own on `AtomicU8` to `AtomicU64` at the same place. Complex numbers of 16 bytes,
//! and those of 8 bytes at no multiple of 8, are changed in two halves under a lock: operations of
//! engines of this process keep each other whole, the program sees halves.
//!
//! Each operation acquires and releases: a thread that sees what it wrote, with `Acquire`, sees
//! what this thread stored before.

use std::sync::atomic::{
    AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
};

use super::elements::{Bits, Element, Halves, Ordered, Pair32, Real32, Real64, Value};
use super::error::AtomicError;
use super::{Window, unmapped};
use crate::wire::atomic_op::{AtomicOp, Datatype};

/// Elements in memory, and what is done to each.
struct AtomicRequest<'a> {
    /// The first element.
    at: *mut u8,
    count: usize,
    op: AtomicOp,
    operands: &'a [u8],
    compare: &'a [u8],
    fetched: Option<&'a mut [u8]>,
}

impl Window {
    /// Operates on the elements from `offset` on, one after the other: as many as there are
    /// operands, and of [`AtomicOp::Read`], which takes none, as many as `fetched` has room for.
    /// `compare` has as many where the operation takes them, else none; `fetched` gets the values
    /// of before. Each element is operated on by itself: the whole is not atomic.
    ///
    /// # Errors
    ///
    /// See [`AtomicError`]. Nothing was changed then.
    pub(crate) fn atomic(
        &self,
        offset: usize,
        op: AtomicOp,
        datatype: Datatype,
        operands: &[u8],
        compare: &[u8],
        fetched: Option<&mut [u8]>,
    ) -> Result<(), AtomicError> {
        if !op.is_valid_for(datatype) {
            return Err(AtomicError::Unsupported { op, datatype });
        }
        let room = fetched.as_ref().map_or(0, |fetched| fetched.len());
        let len = if op.takes_operands() { operands.len() } else { room };
        let fits = len > 0
            && len.is_multiple_of(datatype.size())
            && operands.len() == if op.takes_operands() { len } else { 0 }
            && compare.len() == if op.takes_compare() { len } else { 0 }
            && (fetched.is_none() || room == len);
        if !fits {
            let (operands, compare) = (operands.len(), compare.len());
            return Err(AtomicError::Length { op, datatype, operands, compare, fetched: room });
        }
        let mut at = self.place(offset, len)?;
        if !at.addr().is_multiple_of(datatype.align()) {
            return Err(AtomicError::Misaligned { offset, datatype });
        }
        if self.is_unmapped() {
            at = unmapped::populate(at.addr(), len, op != AtomicOp::Read)
                .map_err(|fault| fault.behind(offset))?;
        }
        let count = len / datatype.size();
        let request = AtomicRequest { at, count, op, operands, compare, fetched };
        // SAFETY: `count` elements of this type lie in the window, aligned, and are mapped: always,
        // or by `populate`, for as long as the program keeps to what `unmapped` asks of it.
        unsafe { request.run(datatype) };
        Ok(())
    }
}

impl AtomicRequest<'_> {
    /// # Safety
    ///
    /// The elements are as [`Element::at`] wants them.
    unsafe fn run(self, datatype: Datatype) {
        // Elements of one vector are all whole words, or none is: their size is that of a word.
        let words = self.at.addr().is_multiple_of(datatype.size());
        // SAFETY: by the caller's contract, in each arm.
        unsafe {
            match datatype {
                Datatype::I8 => self.bits::<&AtomicI8>(),
                Datatype::U8 => self.bits::<&AtomicU8>(),
                Datatype::I16 => self.bits::<&AtomicI16>(),
                Datatype::U16 => self.bits::<&AtomicU16>(),
                Datatype::I32 => self.bits::<&AtomicI32>(),
                Datatype::U32 => self.bits::<&AtomicU32>(),
                Datatype::I64 => self.bits::<&AtomicI64>(),
                Datatype::U64 => self.bits::<&AtomicU64>(),
                Datatype::F32 => self.ordered::<Real32<'_>>(),
                Datatype::F64 => self.ordered::<Real64<'_>>(),
                Datatype::ComplexF32 if words => self.any::<Pair32<'_>>(),
                Datatype::ComplexF32 => self.any::<Halves<Real32<'_>>>(),
                Datatype::ComplexF64 => self.any::<Halves<Real64<'_>>>(),
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Self::run`].
    unsafe fn bits<E: Bits>(self) {
        // SAFETY: by the caller's contract, in each arm.
        unsafe {
            match self.op {
                AtomicOp::BitOr => self.each(|at: E, operand, _| at.or(operand)),
                AtomicOp::BitAnd => self.each(|at: E, operand, _| at.and(operand)),
                AtomicOp::BitXor => self.each(|at: E, operand, _| at.xor(operand)),
                AtomicOp::MaskedSwap => {
                    self.each(|at: E, operand, mask| at.masked_swap(mask, operand))
                }
                _ => self.ordered::<E>(),
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Self::run`].
    unsafe fn ordered<E: Ordered>(self) {
        // SAFETY: by the caller's contract, in each arm.
        unsafe {
            match self.op {
                AtomicOp::Min => self.each(|at: E, operand, _| at.min(operand)),
                AtomicOp::Max => self.each(|at: E, operand, _| at.max(operand)),
                AtomicOp::CompareSwapLe => self.swap_if::<E>(|compare, old| compare <= old),
                AtomicOp::CompareSwapLt => self.swap_if::<E>(|compare, old| compare < old),
                AtomicOp::CompareSwapGe => self.swap_if::<E>(|compare, old| compare >= old),
                AtomicOp::CompareSwapGt => self.swap_if::<E>(|compare, old| compare > old),
                _ => self.any::<E>(),
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Self::run`].
    unsafe fn any<E: Element>(self) {
        // SAFETY: by the caller's contract, in each arm.
        unsafe {
            match self.op {
                AtomicOp::Sum => self.each(|at: E, operand, _| at.sum(operand)),
                AtomicOp::Difference => self.each(|at: E, operand, _| at.difference(operand)),
                AtomicOp::Product => self.combine::<E>(Value::times),
                AtomicOp::LogicalOr => self.logical::<E>(|old, operand| old | operand),
                AtomicOp::LogicalAnd => self.logical::<E>(|old, operand| old & operand),
                AtomicOp::LogicalXor => self.logical::<E>(|old, operand| old ^ operand),
                AtomicOp::Read => self.each(|at: E, _, _| at.load()),
                AtomicOp::Write if self.fetched.is_some() => {
                    self.each(|at: E, operand, _| at.swap(operand))
                }
                AtomicOp::Write => self.each(|at: E, operand, _| {
                    at.store(operand);
                    operand
                }),
                AtomicOp::CompareSwap => {
                    self.each(|at: E, operand, compare| at.compare_swap(compare, operand))
                }
                AtomicOp::CompareSwapNe => self.swap_if::<E>(|compare, old| compare != old),
                AtomicOp::Min
                | AtomicOp::Max
                | AtomicOp::BitOr
                | AtomicOp::BitAnd
                | AtomicOp::BitXor
                | AtomicOp::CompareSwapLe
                | AtomicOp::CompareSwapLt
                | AtomicOp::CompareSwapGe
                | AtomicOp::CompareSwapGt
                | AtomicOp::MaskedSwap => unreachable!("`is_valid_for` was asked: {:?}", self.op),
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Self::run`].
    unsafe fn combine<E: Element>(self, next: impl Fn(E::Value, E::Value) -> E::Value) {
        // SAFETY: by the caller's contract.
        unsafe { self.each(|at: E, operand, _| at.change(|old| Some(next(old, operand)))) }
    }

    /// # Safety
    ///
    /// As for [`Self::run`].
    unsafe fn logical<E: Element>(self, next: impl Fn(bool, bool) -> bool) {
        let next = |old: E::Value, operand: E::Value| {
            E::Value::of_truth(next(old.is_true(), operand.is_true()))
        };
        // SAFETY: by the caller's contract.
        unsafe { self.combine::<E>(next) }
    }

    /// # Safety
    ///
    /// As for [`Self::run`].
    unsafe fn swap_if<E: Element>(self, holds: impl Fn(&E::Value, &E::Value) -> bool) {
        let swap =
            |at: E, operand, compare| at.change(|old| holds(&compare, &old).then_some(operand));
        // SAFETY: by the caller's contract.
        unsafe { self.each(swap) }
    }

    /// Calls `change` for each element with its operand and what it is compared with; it returns
    /// the value of before.
    ///
    /// # Safety
    ///
    /// As for [`Self::run`].
    #[inline]
    unsafe fn each<E: Element>(self, change: impl Fn(E, E::Value, E::Value) -> E::Value) {
        let size = size_of::<E::Value>();
        let value = |of: &[u8], from: usize| {
            of.get(from..from + size).map_or_else(E::Value::default, E::Value::from_bytes)
        };
        let mut fetched = self.fetched;
        for from in (0..self.count * size).step_by(size) {
            // SAFETY: an element of the request, by the caller's contract.
            let element = unsafe { E::at(self.at.wrapping_add(from)) };
            let old = change(element, value(self.operands, from), value(self.compare, from));
            if let Some(fetched) = &mut fetched {
                old.put_bytes(&mut fetched[from..from + size]);
            }
        }
    }
}
