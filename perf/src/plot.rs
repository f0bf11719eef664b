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
/// With their names, in the order in which they were measured.
type Curves = Vec<(String, Curve)>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Colours of curves that are told apart with colour blindness, too, and are dark enough for a
/// white ground (Okabe and Ito, without yellow).
const COLORS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(140, 140, 140),
];
/// Lines of the grid at labels, and between them.
pub(crate) const BOLD_GRID: RGBAColor = RGBAColor(0, 0, 0, 0.15);
pub(crate) const LIGHT_GRID: RGBAColor = RGBAColor(0, 0, 0, 0.05);

pub(crate) fn color(curve: usize) -> RGBColor {
    COLORS[curve % COLORS.len()]
}

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
    let kinds_of_tests = saved::kinds_of_tests(reports);
    let mut tests: Vec<&str> = Vec::new();
    for report in reports {
        if !tests.contains(&&*report.test) {
            tests.push(&report.test);
        }
    }
    for test in tests {
        let kinds = &kinds_of_tests[test];
        for kind in kinds {
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
        let curves = charts.entry(metric).or_default();
        match curves.iter_mut().find(|(known, _)| *known == name) {
            Some((_, curve)) => curve.push(point),
            None => curves.push((name, vec![point])),
        }
    }
}

/// Splits `compare latency (ucx)` into the test and the name.
fn split_name(name: &str) -> Option<(&str, &str)> {
    name.strip_suffix(')')?.split_once(" (")
}

/// The test of all curves, which the caption names once instead of each curve.
fn common_test(curves: &Curves) -> Option<String> {
    let mut tests = curves.iter().map(|(name, _)| split_name(name).map(|(test, _)| test));
    let first = tests.next()??;
    (curves.len() > 1 && tests.all(|test| test == Some(first))).then(|| first.to_owned())
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

/// The base of an axis: a range below two decades has a label at each power of 2.
fn base(range: &std::ops::Range<f64>) -> f64 {
    if range.end / range.start < 100.0 { 2.0 } else { 10.0 }
}

/// The corner with the fewest points, for the legend.
fn emptiest_corner(
    curves: &Curves,
    sizes: &std::ops::Range<f64>,
    values: &std::ops::Range<f64>,
) -> SeriesLabelPosition {
    let share = |value: f64, range: &std::ops::Range<f64>| {
        (value / range.start).ln() / (range.end / range.start).ln()
    };
    let points: Vec<(f64, f64)> = curves
        .iter()
        .flat_map(|(_, curve)| curve)
        .map(|(size, value)| (share(*size, sizes), share(*value, values)))
        .collect();
    let corners = [
        (SeriesLabelPosition::UpperLeft, true, false),
        (SeriesLabelPosition::UpperRight, false, false),
        (SeriesLabelPosition::LowerRight, false, true),
        (SeriesLabelPosition::LowerLeft, true, true),
    ];
    let points_in = |(_, is_left, is_low): &(SeriesLabelPosition, bool, bool)| {
        let is_in = |(x, y): &&(f64, f64)| {
            (if *is_left { *x < 0.4 } else { *x > 0.6 })
                && (if *is_low { *y < 0.4 } else { *y > 0.6 })
        };
        points.iter().filter(is_in).count()
    };
    let corner = corners.into_iter().min_by_key(points_in);
    corner.map_or(SeriesLabelPosition::UpperLeft, |(corner, ..)| corner)
}

fn chart(area: &Area<'_>, metric: Metric, curves: &Curves) -> Result<(), String> {
    let points = curves.iter().flat_map(|(_, curve)| curve);
    let sizes = range(points.clone().map(|point| point.0));
    let values = range(points.map(|point| point.1));
    let test = common_test(curves);
    let caption = match &test {
        Some(test) if !metric.name().starts_with(&**test) => {
            format!("{} ({test})", metric.name())
        }
        _ => metric.name().to_owned(),
    };
    let corner = emptiest_corner(curves, &sizes, &values);
    let base = base(&values);
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 22))
        .margin(15)
        .x_label_area_size(45)
        .y_label_area_size(70)
        .build_cartesian_2d(sizes.log_scale().base(2.0), values.log_scale().base(base))
        .map_err(text)?;
    chart
        .configure_mesh()
        .bold_line_style(BOLD_GRID)
        .light_line_style(LIGHT_GRID)
        .x_desc("message size (bytes)")
        .y_desc(metric.unit())
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 15))
        .y_max_light_lines(if base == 2.0 { 1 } else { 10 })
        .x_label_formatter(&|size| bytes(*size))
        .y_label_formatter(&|value| format!("{value}"))
        .draw()
        .map_err(text)?;
    for (index, (name, curve)) in curves.iter().enumerate() {
        let color = color(index);
        let line = LineSeries::new(curve.iter().copied(), color.stroke_width(2)).point_size(3);
        let entry = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2));
        let name = match (&test, split_name(name)) {
            (Some(_), Some((_, name))) => name,
            _ => name,
        };
        chart.draw_series(line).map_err(text)?.label(name).legend(entry);
    }
    // The first one, what the others are compared with, is not hidden by them.
    if let Some((_, curve)) = curves.first() {
        let style = color(0).stroke_width(3);
        let line = LineSeries::new(curve.iter().copied(), style).point_size(3);
        chart.draw_series(line).map_err(text)?;
    }
    chart
        .configure_series_labels()
        .position(corner)
        .label_font(("sans-serif", 14))
        .background_style(WHITE.mix(0.8))
        .border_style(BOLD_GRID)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn report(test: &str, size_bytes: usize, value: f64) -> Report {
        let latency_us_p50 = Some(value);
        Report {
            test: test.to_owned(),
            size_bytes,
            threads: 1,
            latency_us_p50,
            ..Report::default()
        }
    }

    #[test]
    fn curves_keep_the_order_of_the_measurement_and_the_test_is_named_once() {
        let names = ["compare latency (ringrail)", "compare latency (libfabric)"];
        let reports: Vec<Report> = [8, 16]
            .into_iter()
            .flat_map(|size| names.map(|name| report(name, size, size as f64)))
            .collect();
        let charts = charts(&reports);
        let curves = &charts[&Metric::LatencyP50];
        assert_eq!(curves.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), names);
        assert_eq!(curves[0].1, [(8.0, 8.0), (16.0, 16.0)]);
        let svg = drawn(&charts).unwrap();
        assert_eq!(svg.matches("compare latency").count(), 1, "{svg}");
        assert!(svg.contains("\nringrail\n") && svg.contains("\nlibfabric\n"), "{svg}");
    }

    #[test]
    fn values_below_ten_have_labels() {
        let reports = [report("latency", 8, 2.5), report("latency", 64, 30.0)];
        let svg = picture(&reports).unwrap();
        for label in ["\n2\n", "\n4\n", "\n8\n", "\n16\n", "\n32\n"] {
            assert!(svg.contains(label), "{label}: {svg}");
        }
    }

    #[test]
    fn the_legend_is_where_the_fewest_points_are() {
        let (sizes, values) = (1.0..1024.0, 1.0..1024.0);
        let line = |at: fn(f64) -> f64| {
            let points = (0..11).map(|power| f64::from(1 << power)).map(|size| (size, at(size)));
            vec![(String::new(), points.collect::<Curve>())]
        };
        let rising = emptiest_corner(&line(|size| size), &sizes, &values);
        assert!(matches!(rising, SeriesLabelPosition::UpperLeft));
        let falling = emptiest_corner(&line(|size| 1024.0 / size), &sizes, &values);
        assert!(matches!(falling, SeriesLabelPosition::UpperRight));
    }
}
