//! Decisions derived from bytes.

/// Reads an input byte by byte; at its end everything is 0.
pub(super) struct Script<'a> {
    rest: &'a [u8],
}

impl<'a> Script<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            if let Some((&first, rest)) = self.rest.split_first() {
                (*byte, self.rest) = (first, rest);
            }
        }
        bytes
    }

    pub(super) fn byte(&mut self) -> u8 {
        let [byte] = self.take();
        byte
    }

    pub(super) fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    /// Returns a number below `count`; 0 if that is 0.
    pub(super) fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count.max(1)
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(super) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        bytes
    }
}
