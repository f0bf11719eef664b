//! `ringrail-perf plot`: saved results as curves over the message size.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;

use clap::Parser;
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::output::Report;
use crate::saved::{self, Metric};

const WIDTH: u32 = 900;
/// Of one metric, in pixels.
const HEIGHT: u32 = 500;

/// Draws results that were saved with --json: one chart for each of latency, bandwidth and
/// message rate that is in the file, one curve for each test; where a test was measured over
/// several kinds of lanes, one for each (`latency (udp+uring)`).
#[derive(Debug, Parser)]
#[command(name = "plot")]
pub(crate) struct Arguments {
    /// The results.
    file: PathBuf,
    /// Where the picture goes, as SVG.
    #[arg(long)]
    out: PathBuf,
}

/// Sizes in bytes and values.
type Curve = Vec<(f64, f64)>;
/// By name.
type Curves = BTreeMap<String, Curve>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Writes the picture.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let charts = charts(&saved::read(&arguments.file)?);
    if charts.is_empty() {
        return Err(format!("{}: no values in it to draw", arguments.file.display()));
    }
    let out = &arguments.out;
    let picture = drawn(&charts)?;
    std::fs::write(out, picture).map_err(|error| format!("{}: {error}", out.display()))
}

/// Results as a picture in SVG.
pub(crate) fn picture(reports: &[Report]) -> Result<String, String> {
    drawn(&charts(reports))
}

fn drawn(charts: &BTreeMap<Metric, Curves>) -> Result<String, String> {
    let mut picture = String::new();
    draw(charts, &mut picture).map_err(|error| format!("cannot draw: {error}"))?;
    Ok(picture)
}

fn charts(reports: &[Report]) -> BTreeMap<Metric, Curves> {
    let mut charts: BTreeMap<Metric, Curves> = BTreeMap::new();
    for (test, kinds) in saved::kinds_of_tests(reports) {
        for kind in &kinds {
            let is_of_curve =
                |report: &&Report| report.test == test && saved::kinds(report) == *kind;
            let curve: Vec<Report> = reports.iter().filter(is_of_curve).cloned().collect();
            let test = match kinds.len() {
                1 => test.to_owned(),
                _ => format!("{test} ({kind})"),
            };
            add_curves(&mut charts, &test, &curve);
        }
    }
    charts
}

fn add_curves(charts: &mut BTreeMap<Metric, Curves>, test: &str, reports: &[Report]) {
    for ((_, size, threads, metric), value) in saved::values(reports) {
        let name = match threads {
            1 => test.to_owned(),
            _ => format!("{test}, {threads} threads"),
        };
        // A logarithm has no 0: an empty message stands beside that of one byte.
        let point = (size.max(1) as f64, value);
        charts.entry(metric).or_default().entry(name).or_default().push(point);
    }
}

fn draw(charts: &BTreeMap<Metric, Curves>, picture: &mut String) -> Result<(), String> {
    let size = (WIDTH, HEIGHT * charts.len() as u32);
    let area = SVGBackend::with_string(picture, size).into_drawing_area();
    area.fill(&WHITE).map_err(text)?;
    for (part, (metric, curves)) in area.split_evenly((charts.len(), 1)).iter().zip(charts) {
        chart(part, *metric, curves)?;
    }
    area.present().map_err(text)
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// The least and the greatest, apart by a factor of 2 at least, so that an axis has a length.
fn range(values: impl Iterator<Item = f64> + Clone) -> std::ops::Range<f64> {
    let least = values.clone().fold(f64::INFINITY, f64::min);
    let greatest = values.fold(0.0, f64::max);
    least / 1.5..greatest * 1.5
}

fn chart(area: &Area<'_>, metric: Metric, curves: &Curves) -> Result<(), String> {
    let points = curves.values().flatten();
    let sizes = range(points.clone().map(|point| point.0));
    let values = range(points.map(|point| point.1));
    let mut chart = ChartBuilder::on(area)
        .caption(metric.name(), ("sans-serif", 22))
        .margin(15)
        .x_label_area_size(45)
        .y_label_area_size(85)
        .build_cartesian_2d(sizes.log_scale().base(2.0), values.log_scale())
        .map_err(text)?;
    chart
        .configure_mesh()
        .x_desc("message size (bytes)")
        .y_desc(metric.unit())
        .x_label_formatter(&|size| bytes(*size))
        .y_label_formatter(&|value| format!("{value}"))
        .draw()
        .map_err(text)?;
    for (index, (name, curve)) in curves.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let line = LineSeries::new(curve.iter().copied(), color.stroke_width(2)).point_size(3);
        let entry = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2));
        chart.draw_series(line).map_err(text)?.label(name).legend(entry);
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
        .map_err(text)
}

/// As `--size` takes it.
fn bytes(size: f64) -> String {
    match size {
        size if size >= (1 << 20) as f64 => format!("{}M", size / (1 << 20) as f64),
        size if size >= 1024.0 => format!("{}K", size / 1024.0),
        size => format!("{size}"),
    }
}
