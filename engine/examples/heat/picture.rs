//! The field as a picture.

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

/// Dark violet over red and orange to pale yellow, each brighter than the one before.
const COLOURS: [[f64; 3]; 6] = [
    [4.0, 4.0, 20.0],
    [66.0, 15.0, 110.0],
    [147.0, 38.0, 103.0],
    [221.0, 81.0, 58.0],
    [252.0, 165.0, 10.0],
    [252.0, 255.0, 164.0],
];

fn colour(value: f64) -> [u8; 3] {
    // The root shows small values, which most of the field has.
    let place = value.clamp(0.0, 1.0).sqrt() * (COLOURS.len() - 1) as f64;
    let index = (place as usize).min(COLOURS.len() - 2);
    let share = place - index as f64;
    let (from, to) = (COLOURS[index], COLOURS[index + 1]);
    std::array::from_fn(|at| (from[at] + (to[at] - from[at]) * share) as u8)
}

/// Writes a PNG, one pixel per value.
pub(crate) fn write(path: &Path, values: &[f64], width: usize) -> Result<(), Box<dyn Error>> {
    let height = values.len() / width;
    let file = BufWriter::new(File::create(path)?);
    let mut encoder = png::Encoder::new(file, width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let pixels: Vec<u8> = values.iter().flat_map(|&value| colour(value)).collect();
    encoder.write_header()?.write_image_data(&pixels)?;
    Ok(())
}
