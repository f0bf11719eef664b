//! The part of the field that one rank owns, with a halo row above and below.

use std::ops::Range;

/// The rows of the field that a rank owns: as even as possible, the first ones get one more.
pub(crate) fn rows_of(height: usize, ranks: usize, rank: usize) -> Range<usize> {
    let (each, more) = (height / ranks, height % ranks);
    let first = rank * each + rank.min(more);
    first..first + each + usize::from(rank < more)
}

/// See the module.
pub(crate) struct Field {
    width: usize,
    height: usize,
    rows: Range<usize>,
    now: Vec<f64>,
    next: Vec<f64>,
}

impl Field {
    /// The start: cold, with a hot edge at the top, a warm one on the left and a hot disc.
    pub(crate) fn new(width: usize, height: usize, rows: Range<usize>) -> Self {
        let mut now = vec![0.0; (rows.len() + 2) * width];
        for (line, row) in rows.clone().enumerate() {
            for column in 0..width {
                now[(line + 1) * width + column] = initial(width, height, row, column);
            }
        }
        let next = now.clone();
        Self { width, height, rows, now, next }
    }

    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// One Jacobi step; the halo must be up to date. Edges of the whole field stay as they are.
    pub(crate) fn step(&mut self) {
        let width = self.width;
        for (line, row) in (1..).zip(self.rows.clone()) {
            if row == 0 || row == self.height - 1 {
                continue;
            }
            for column in 1..width - 1 {
                let at = line * width + column;
                let sum = (self.now[at - width] + self.now[at + width])
                    + (self.now[at - 1] + self.now[at + 1]);
                self.next[at] = 0.25 * sum;
            }
        }
        std::mem::swap(&mut self.now, &mut self.next);
    }

    fn line(&self, line: usize) -> &[f64] {
        &self.now[line * self.width..(line + 1) * self.width]
    }

    /// The first or last own row, for a neighbour.
    pub(crate) fn edge_bytes(&self, is_top: bool) -> Vec<u8> {
        to_bytes(self.line(if is_top { 1 } else { self.rows.len() }))
    }

    /// The neighbour's row above or below.
    pub(crate) fn set_halo(&mut self, is_top: bool, bytes: &[u8]) {
        let line = if is_top { 0 } else { self.rows.len() + 1 };
        let first = line * self.width;
        for (at, value) in (first..).zip(from_bytes(bytes)) {
            self.now[at] = value;
        }
    }

    /// The own rows.
    pub(crate) fn interior(&self) -> Vec<f64> {
        self.now[self.width..(self.rows.len() + 1) * self.width].to_vec()
    }

    /// The own rows, to be sent.
    pub(crate) fn interior_bytes(&self) -> Vec<u8> {
        to_bytes(&self.interior())
    }
}

fn initial(width: usize, height: usize, row: usize, column: usize) -> f64 {
    if row == 0 {
        return 1.0;
    }
    if column == 0 {
        return 0.6;
    }
    if row == height - 1 || column == width - 1 {
        return 0.0;
    }
    let (x, y) = (column as f64 / width as f64 - 0.62, row as f64 / height as f64 - 0.58);
    if x * x + y * y < 0.03 { 1.0 } else { 0.0 }
}

fn to_bytes(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// What [`Field::interior_bytes`] made, as numbers again.
pub(crate) fn from_bytes(bytes: &[u8]) -> impl Iterator<Item = f64> + '_ {
    bytes.as_chunks::<8>().0.iter().map(|chunk| f64::from_le_bytes(*chunk))
}
