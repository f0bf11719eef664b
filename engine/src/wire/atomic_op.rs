//! Atomic operations and the types that they are on, by the codes of ATOMIC. The codes are those
//! of libfabric's `enum fi_op` and `enum fi_datatype`, and never change.

/// An enum with a code for each case.
macro_rules! coded {
    (
        $(#[$about:meta])*
        pub enum $name:ident { $($(#[$doc:meta])* $case:ident = $code:literal,)* }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum $name { $($(#[$doc])* $case = $code,)* }

        impl $name {
            /// All there are, by their codes.
            pub const ALL: &'static [Self] = &[$(Self::$case,)*];

            /// Its code on the wire, which is that of libfabric.
            #[inline]
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// What has this code.
            #[inline]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$case),)*
                    _ => None,
                }
            }
        }
    };
}

coded! {
    /// The operation on each element of the target's memory, in one step that no other atomic
    /// operation on it divides. In the descriptions `target` is the element in memory, `operand`
    /// and `compare` are what the origin gives.
    ///
    /// Each can fetch: give the value of before. [`Self::Read`] does nothing else.
    pub enum AtomicOp {
        /// The smaller of both; of floating-point numbers the target stays where one is no number.
        Min = 0,
        /// The larger of both; of floating-point numbers as for [`Self::Min`].
        Max = 1,
        /// `target + operand`; integers wrap around.
        Sum = 2,
        /// `target * operand`; integers wrap around.
        Product = 3,
        /// 1 where one of both is not 0, else 0.
        LogicalOr = 4,
        /// 1 where both are not 0, else 0.
        LogicalAnd = 5,
        /// `target | operand`.
        BitOr = 6,
        /// `target & operand`.
        BitAnd = 7,
        /// 1 where exactly one of both is not 0, else 0.
        LogicalXor = 8,
        /// `target ^ operand`.
        BitXor = 9,
        /// Fetches; takes no operand.
        Read = 10,
        /// `operand`.
        Write = 11,
        /// `operand` where `compare == target`. Floating-point numbers compare as numbers.
        CompareSwap = 12,
        /// `operand` where `compare != target`.
        CompareSwapNe = 13,
        /// `operand` where `compare <= target`.
        CompareSwapLe = 14,
        /// `operand` where `compare < target`.
        CompareSwapLt = 15,
        /// `operand` where `compare >= target`.
        CompareSwapGe = 16,
        /// `operand` where `compare > target`.
        CompareSwapGt = 17,
        /// `(operand & compare) | (target & !compare)`: the bits that `compare` has are swapped.
        MaskedSwap = 18,
        /// `target - operand`; integers wrap around.
        Difference = 19,
    }
}

coded! {
    /// The type of the elements of an atomic operation, in the byte order of the target.
    pub enum Datatype {
        /// Signed, 8 bits.
        I8 = 0,
        /// Unsigned, 8 bits.
        U8 = 1,
        /// Signed, 16 bits.
        I16 = 2,
        /// Unsigned, 16 bits.
        U16 = 3,
        /// Signed, 32 bits.
        I32 = 4,
        /// Unsigned, 32 bits.
        U32 = 5,
        /// Signed, 64 bits.
        I64 = 6,
        /// Unsigned, 64 bits.
        U64 = 7,
        /// IEEE 754, 32 bits.
        F32 = 8,
        /// IEEE 754, 64 bits.
        F64 = 9,
        /// Two of [`Self::F32`]: the real part, then the imaginary one.
        ComplexF32 = 10,
        /// Two of [`Self::F64`]: the real part, then the imaginary one.
        ComplexF64 = 11,
    }
}

/// The kind of numbers of a type, which decides the valid operations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Numbers {
    Integer,
    Real,
    Complex,
}

impl AtomicOp {
    /// Whether it has values to compare with (of [`Self::MaskedSwap`] a mask) beside its operands.
    #[inline]
    pub const fn takes_compare(self) -> bool {
        matches!(
            self,
            Self::CompareSwap
                | Self::CompareSwapNe
                | Self::CompareSwapLe
                | Self::CompareSwapLt
                | Self::CompareSwapGe
                | Self::CompareSwapGt
                | Self::MaskedSwap
        )
    }

    /// Whether it has operands: all do but [`Self::Read`].
    #[inline]
    pub const fn takes_operands(self) -> bool {
        !matches!(self, Self::Read)
    }

    /// Whether elements of this type can be operated on like this: bits are those of integers, and
    /// complex numbers have no order.
    #[inline]
    pub const fn is_valid_for(self, datatype: Datatype) -> bool {
        match self {
            Self::BitOr | Self::BitAnd | Self::BitXor | Self::MaskedSwap => {
                matches!(datatype.numbers(), Numbers::Integer)
            }
            Self::Min
            | Self::Max
            | Self::CompareSwapLe
            | Self::CompareSwapLt
            | Self::CompareSwapGe
            | Self::CompareSwapGt => !matches!(datatype.numbers(), Numbers::Complex),
            Self::Sum
            | Self::Product
            | Self::LogicalOr
            | Self::LogicalAnd
            | Self::LogicalXor
            | Self::Read
            | Self::Write
            | Self::CompareSwap
            | Self::CompareSwapNe
            | Self::Difference => true,
        }
    }
}

impl Datatype {
    const fn numbers(self) -> Numbers {
        match self {
            Self::F32 | Self::F64 => Numbers::Real,
            Self::ComplexF32 | Self::ComplexF64 => Numbers::Complex,
            _ => Numbers::Integer,
        }
    }

    /// The length of an element, in bytes.
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::ComplexF32 => 8,
            Self::ComplexF64 => 16,
        }
    }

    /// What the address of an element is a multiple of, in bytes, as in C: its size, and of a
    /// complex number the size of a part.
    #[inline]
    pub const fn align(self) -> usize {
        match self.numbers() {
            Numbers::Complex => self.size() / 2,
            Numbers::Integer | Numbers::Real => self.size(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_libfabric_and_lead_back() {
        let codes: Vec<u8> = AtomicOp::ALL.iter().map(|op| op.code()).collect();
        assert_eq!(codes, (0..20).collect::<Vec<_>>());
        let codes: Vec<u8> = Datatype::ALL.iter().map(|datatype| datatype.code()).collect();
        assert_eq!(codes, (0..12).collect::<Vec<_>>());
        for code in 0..=u8::MAX {
            assert_eq!(AtomicOp::from_code(code).is_some(), code < 20);
            assert_eq!(Datatype::from_code(code).is_some(), code < 12);
        }
        for &op in AtomicOp::ALL {
            assert_eq!(AtomicOp::from_code(op.code()), Some(op));
        }
        for &datatype in Datatype::ALL {
            assert_eq!(Datatype::from_code(datatype.code()), Some(datatype));
        }
        // FI_MIN, FI_ATOMIC_READ, FI_CSWAP, FI_MSWAP, FI_DIFF; FI_INT8, FI_UINT64, FI_DOUBLE.
        assert_eq!(AtomicOp::Min.code(), 0);
        assert_eq!(AtomicOp::Read.code(), 10);
        assert_eq!(AtomicOp::CompareSwap.code(), 12);
        assert_eq!(AtomicOp::MaskedSwap.code(), 18);
        assert_eq!(AtomicOp::Difference.code(), 19);
        assert_eq!(Datatype::I8.code(), 0);
        assert_eq!(Datatype::U64.code(), 7);
        assert_eq!(Datatype::F64.code(), 9);
    }

    #[test]
    fn bits_are_of_integers_and_order_is_of_real_numbers() {
        let valid = |op: AtomicOp| {
            Datatype::ALL.iter().filter(|&&datatype| op.is_valid_for(datatype)).count()
        };
        for &op in AtomicOp::ALL {
            let types = match op {
                AtomicOp::BitOr | AtomicOp::BitAnd | AtomicOp::BitXor | AtomicOp::MaskedSwap => 8,
                AtomicOp::Min | AtomicOp::Max => 10,
                AtomicOp::CompareSwap | AtomicOp::CompareSwapNe => 12,
                _ if op.takes_compare() => 10,
                _ => 12,
            };
            assert_eq!(valid(op), types, "{op:?}");
        }
    }

    #[test]
    fn elements_are_as_long_and_aligned_as_in_c() {
        for &datatype in Datatype::ALL {
            assert_eq!(datatype.size() % datatype.align(), 0);
            assert!(datatype.align() <= 8);
        }
        assert_eq!((Datatype::ComplexF32.size(), Datatype::ComplexF32.align()), (8, 4));
        assert_eq!((Datatype::ComplexF64.size(), Datatype::ComplexF64.align()), (16, 8));
    }
}
