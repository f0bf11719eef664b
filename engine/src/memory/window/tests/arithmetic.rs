//! Atomic operations against what they say, and against each other.

use super::*;
use crate::wire::atomic_op::{AtomicOp, Datatype};

/// Returns the new value of an element, as documented for `AtomicOp`, in numbers wider than all
/// integers.
fn integer(op: AtomicOp, old: i128, operand: i128, compare: i128) -> i128 {
    let swap = |holds: bool| if holds { operand } else { old };
    match op {
        AtomicOp::Min => old.min(operand),
        AtomicOp::Max => old.max(operand),
        AtomicOp::Sum => old + operand,
        AtomicOp::Difference => old - operand,
        AtomicOp::Product => old.wrapping_mul(operand),
        AtomicOp::LogicalOr => i128::from(old != 0 || operand != 0),
        AtomicOp::LogicalAnd => i128::from(old != 0 && operand != 0),
        AtomicOp::LogicalXor => i128::from((old != 0) != (operand != 0)),
        AtomicOp::BitOr => old | operand,
        AtomicOp::BitAnd => old & operand,
        AtomicOp::BitXor => old ^ operand,
        AtomicOp::Read => old,
        AtomicOp::Write => operand,
        AtomicOp::CompareSwap => swap(compare == old),
        AtomicOp::CompareSwapNe => swap(compare != old),
        AtomicOp::CompareSwapLe => swap(compare <= old),
        AtomicOp::CompareSwapLt => swap(compare < old),
        AtomicOp::CompareSwapGe => swap(compare >= old),
        AtomicOp::CompareSwapGt => swap(compare > old),
        AtomicOp::MaskedSwap => (operand & compare) | (old & !compare),
    }
}

/// The same of real numbers, in 64 bits: rounded once more, sums and products of two numbers of 32
/// bits are the same as in 32.
fn real(op: AtomicOp, old: f64, operand: f64, compare: f64) -> f64 {
    let swap = |holds: bool| if holds { operand } else { old };
    let truth = |holds: bool| if holds { 1.0 } else { 0.0 };
    match op {
        AtomicOp::Min => swap(operand < old),
        AtomicOp::Max => swap(operand > old),
        AtomicOp::Sum => old + operand,
        AtomicOp::Difference => old - operand,
        AtomicOp::Product => old * operand,
        AtomicOp::LogicalOr => truth(old != 0.0 || operand != 0.0),
        AtomicOp::LogicalAnd => truth(old != 0.0 && operand != 0.0),
        AtomicOp::LogicalXor => truth((old != 0.0) != (operand != 0.0)),
        AtomicOp::Read => old,
        AtomicOp::Write => operand,
        AtomicOp::CompareSwap => swap(compare == old),
        AtomicOp::CompareSwapNe => swap(compare != old),
        AtomicOp::CompareSwapLe => swap(compare <= old),
        AtomicOp::CompareSwapLt => swap(compare < old),
        AtomicOp::CompareSwapGe => swap(compare >= old),
        AtomicOp::CompareSwapGt => swap(compare > old),
        _ => unreachable!("real numbers have no bits"),
    }
}

/// The same of complex numbers.
fn complex(op: AtomicOp, old: [f64; 2], operand: [f64; 2], compare: [f64; 2]) -> [f64; 2] {
    let is_true = |number: [f64; 2]| number[0] != 0.0 || number[1] != 0.0;
    let truth = |holds: bool| [if holds { 1.0 } else { 0.0 }, 0.0];
    match op {
        AtomicOp::Sum => [old[0] + operand[0], old[1] + operand[1]],
        AtomicOp::Difference => [old[0] - operand[0], old[1] - operand[1]],
        AtomicOp::Product => {
            [old[0] * operand[0] - old[1] * operand[1], old[0] * operand[1] + old[1] * operand[0]]
        }
        AtomicOp::LogicalOr => truth(is_true(old) || is_true(operand)),
        AtomicOp::LogicalAnd => truth(is_true(old) && is_true(operand)),
        AtomicOp::LogicalXor => truth(is_true(old) != is_true(operand)),
        AtomicOp::Read => old,
        AtomicOp::Write => operand,
        AtomicOp::CompareSwap => {
            if compare == old {
                operand
            } else {
                old
            }
        }
        AtomicOp::CompareSwapNe => {
            if compare != old {
                operand
            } else {
                old
            }
        }
        _ => unreachable!("complex numbers have no order and no bits"),
    }
}

fn decode_integer(datatype: Datatype, bytes: &[u8]) -> i128 {
    let mut wide = [0; 16];
    let signed = matches!(datatype, Datatype::I8 | Datatype::I16 | Datatype::I32 | Datatype::I64);
    if signed && bytes[bytes.len() - 1] >= 0x80 {
        wide = [0xff; 16];
    }
    wide[..bytes.len()].copy_from_slice(bytes);
    i128::from_le_bytes(wide)
}

fn decode_reals(bytes: &[u8], size: usize) -> Vec<f64> {
    let decode = |bytes: &[u8]| match size {
        4 => f64::from(f32::from_le_bytes(bytes.try_into().expect("four"))),
        _ => f64::from_le_bytes(bytes.try_into().expect("eight")),
    };
    bytes.chunks(size).map(decode).collect()
}

fn encode_reals(numbers: &[f64], size: usize) -> Vec<u8> {
    let encode = |&number: &f64| match size {
        4 => (number as f32).to_le_bytes().to_vec(),
        _ => number.to_le_bytes().to_vec(),
    };
    numbers.iter().flat_map(encode).collect()
}

fn model(op: AtomicOp, datatype: Datatype, old: &[u8], operand: &[u8], compare: &[u8]) -> Vec<u8> {
    let part = datatype.align();
    let reals = |bytes| decode_reals(bytes, part);
    match datatype {
        Datatype::F32 | Datatype::F64 => {
            let new = real(op, reals(old)[0], reals(operand)[0], reals(compare)[0]);
            encode_reals(&[new], part)
        }
        Datatype::ComplexF32 | Datatype::ComplexF64 => {
            let pair = |bytes| <[f64; 2]>::try_from(reals(bytes)).expect("two parts");
            encode_reals(&complex(op, pair(old), pair(operand), pair(compare)), part)
        }
        _ => {
            let wide = |bytes| decode_integer(datatype, bytes);
            let new = integer(op, wide(old), wide(operand), wide(compare));
            new.to_le_bytes()[..datatype.size()].to_vec()
        }
    }
}

/// Bytes of an element: integers of any bits, reals out of few, so that they are often equal.
fn element(datatype: Datatype, random: u64) -> Vec<u8> {
    const REALS: [f64; 8] = [0.0, -0.0, 1.0, -3.0, 0.5, f64::INFINITY, f64::NAN, 7.25];
    // What complex products make of these is exact in 32 bits.
    const PARTS: [f64; 8] = [0.0, -0.0, 1.0, -3.0, 0.5, 2.0, -1.0, 7.25];
    let pick = |shift: u64, of: &[f64; 8]| of[(random >> shift) as usize % 8];
    match datatype {
        Datatype::F32 | Datatype::F64 => encode_reals(&[pick(0, &REALS)], datatype.size()),
        Datatype::ComplexF32 | Datatype::ComplexF64 => {
            encode_reals(&[pick(0, &PARTS), pick(8, &PARTS)], datatype.align())
        }
        // Small ones meet each other, all others the bounds.
        _ if random.is_multiple_of(2) => {
            let small = (i128::from(random >> 1) % 5) - 2;
            small.to_le_bytes()[..datatype.size()].to_vec()
        }
        _ => random.rotate_left(17).to_le_bytes()[..datatype.size()].to_vec(),
    }
}

/// Whether both are the same, or no number in the same places.
fn same(datatype: Datatype, one: &[u8], other: &[u8]) -> bool {
    let nan = |bytes| {
        let reals = decode_reals(bytes, datatype.align());
        reals.iter().map(|number: &f64| number.is_nan()).collect::<Vec<_>>()
    };
    let is_real = matches!(datatype, Datatype::F32 | Datatype::F64);
    one == other || (is_real && nan(one) == nan(other) && nan(one)[0])
}

proptest! {
    #[test]
    fn operations_do_what_they_say(
        kind in 0usize..4,
        odd in 0usize..2,
        datatype in prop::sample::select(Datatype::ALL),
        values in prop::collection::vec(any::<[u64; 3]>(), 1..6),
    ) {
        let size = datatype.size();
        // Complex numbers also where no word holds both parts.
        let odd = if datatype == Datatype::ComplexF32 { 4 * odd } else { 0 };
        let len = size * values.len() + 8;
        let windows = Windows::new(len, odd);
        let window = &windows.windows[kind];
        let all = |which: usize| -> Vec<u8> {
            values.iter().flat_map(|value| element(datatype, value[which])).collect()
        };
        let (old, operands, compare) = (all(0), all(1), all(2));
        for &op in AtomicOp::ALL.iter().filter(|op| op.is_valid_for(datatype)) {
            let operand = if op.takes_operands() { &operands[..] } else { &[] };
            let comparand = if op.takes_compare() { &compare[..] } else { &[] };
            let expected: Vec<u8> = (0..values.len())
                .flat_map(|at| {
                    let at = at * size..(at + 1) * size;
                    model(op, datatype, &old[at.clone()], &operands[at.clone()], &compare[at])
                })
                .collect();
            for fetches in [true, false] {
                if !fetches && op == AtomicOp::Read {
                    continue;
                }
                window.store(0, &old).expect("inside");
                let mut fetched = vec![0; old.len()];
                let into = fetches.then_some(&mut fetched[..]);
                let done = window.atomic(0, op, datatype, operand, comparand, into);
                prop_assert_eq!(done, Ok(()), "{:?} {:?}", op, datatype);
                let mut new = vec![0; old.len()];
                window.load(0, &mut new).expect("inside");
                let pairs = new.chunks(size).zip(expected.chunks(size));
                for (new, expected) in pairs {
                    prop_assert!(
                        same(datatype, new, expected),
                        "{:?} {:?}: {:?}, not {:?}", op, datatype, new, expected
                    );
                }
                prop_assert!(!fetches || fetched == old, "{:?} {:?}", op, datatype);
            }
        }
        windows.check_guards(len, odd);
    }
}

#[test]
fn invalid_operations_are_errors_and_change_nothing() {
    for window in Windows::new(64, 0).windows {
        let bytes = [0x55; 32];
        for &op in AtomicOp::ALL {
            for &datatype in Datatype::ALL {
                let size = datatype.size();
                let operands = if op.takes_operands() { &bytes[..size] } else { &[] };
                let compare = if op.takes_compare() { &bytes[..size] } else { &[] };
                let mut room = [0; 48];
                let run = |offset, operands: &[u8], compare: &[u8], room: Option<&mut [u8]>| {
                    window.atomic(offset, op, datatype, operands, compare, room).expect_err("wrong")
                };
                if !op.is_valid_for(datatype) {
                    let error = run(0, operands, compare, Some(&mut room[..size]));
                    assert_eq!(error, AtomicError::Unsupported { op, datatype });
                    continue;
                }
                for offset in (1..datatype.align()).chain([64 + 1]) {
                    let error = run(offset, operands, compare, Some(&mut room[..size]));
                    let misaligned = error == AtomicError::Misaligned { offset, datatype };
                    assert!(misaligned || offset > 64, "{op:?} {datatype:?} at {offset}: {error}");
                }
                for offset in [64, usize::MAX - 15, 64 - size + datatype.align()] {
                    let error = run(offset, operands, compare, Some(&mut room[..size]));
                    assert!(matches!(error, AtomicError::Fault(Fault::Range { .. })), "{error:?}");
                }
                let is_length = |error| matches!(error, AtomicError::Length { .. });
                // None, too few, too many, not whole, what it does not take.
                assert!(is_length(run(0, &[], &[], None)));
                // The room determines how many elements a read has: two of one byte are right.
                if op.takes_operands() || size > 1 {
                    assert!(is_length(run(0, operands, compare, Some(&mut room[..size + 1]))));
                }
                let longer = &bytes[..operands.len() + 1];
                assert!(is_length(run(0, longer, compare, Some(&mut room[..size]))));
                let longer = &bytes[..compare.len() + 1];
                assert!(is_length(run(0, operands, longer, Some(&mut room[..size]))));
                assert!(is_length(run(0, operands, compare, Some(&mut room[..0]))));
            }
        }
        let mut all = [1; 64];
        window.load(0, &mut all).expect("all of it");
        assert_eq!(all, [0; 64]);
    }
}

#[test]
fn operations_of_peers_and_of_the_program_add_up() {
    const EACH: u64 = 10_000;
    let window = Window::allocate(64).expect("a few bytes");
    let sum = |offset, datatype, one: &[u8]| {
        window.atomic(offset, AtomicOp::Sum, datatype, one, &[], None).expect("a sum");
    };
    let pair = |re: f64, im: f64, size| encode_reals(&[re, im], size);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    sum(0, Datatype::U64, &1u64.to_ne_bytes());
                    sum(8, Datatype::I32, &(-1i32).to_ne_bytes());
                    sum(16, Datatype::F64, &1f64.to_ne_bytes());
                    sum(24, Datatype::ComplexF64, &pair(1.0, -1.0, 8));
                    // Across a word.
                    sum(44, Datatype::ComplexF32, &pair(1.0, 2.0, 4));
                    sum(56, Datatype::U8, &[1]);
                }
            });
        }
        for _ in 0..EACH {
            window.atomic_u64(0).expect("a word").fetch_add(1, Ordering::Relaxed);
            window.atomic_u32(8).expect("a word").fetch_sub(1, Ordering::Relaxed);
        }
    });
    let read = |offset, len| {
        let mut bytes = vec![0; len];
        window.load(offset, &mut bytes).expect("inside");
        bytes
    };
    assert_eq!(window.atomic_u64(0).expect("a word").load(Ordering::Relaxed), 3 * EACH);
    assert_eq!(decode_integer(Datatype::I32, &read(8, 4)), -3 * i128::from(EACH));
    let each = EACH as f64;
    assert_eq!(decode_reals(&read(16, 8), 8), [2.0 * each]);
    assert_eq!(decode_reals(&read(24, 16), 8), [2.0 * each, -2.0 * each]);
    assert_eq!(decode_reals(&read(44, 8), 4), [2.0 * each, 4.0 * each]);
    assert_eq!(read(56, 1), [(2 * EACH) as u8]);
}

#[test]
fn halves_are_whole_to_operations() {
    let window = Window::allocate(16).expect("an element");
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..ROUNDS {
                let both = encode_reals(&[round as f64; 2], 8);
                let write = AtomicOp::Write;
                window.atomic(0, write, Datatype::ComplexF64, &both, &[], None).expect("a write");
            }
        });
        while !writer.is_finished() {
            let mut seen = [0; 16];
            let read = AtomicOp::Read;
            let done = window.atomic(0, read, Datatype::ComplexF64, &[], &[], Some(&mut seen));
            done.expect("a read");
            assert_eq!(seen[..8], seen[8..]);
        }
    });
}
