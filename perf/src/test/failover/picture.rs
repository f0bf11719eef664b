//! One fault as a picture: what each rail delivered in each millisecond.

use std::fmt::Display;

use plotters::prelude::*;

use super::findings::{Course, Point};
use crate::plot::{BOLD_GRID, LIGHT_GRID, color};

const SIZE: (u32, u32) = (1100, 480);
/// Samples to one point: packets of segmentation offload are a quarter of a millisecond long, and
/// single samples would show nothing else.
const SAMPLES: usize = 5;
/// The gray of what messages got.
const GRAY: RGBColor = RGBColor(150, 150, 150);
/// Of the area between the fault and its end.
const SHADE: RGBAColor = RGBAColor(220, 60, 60, 0.08);

/// SVG of a course on rails with these names.
pub(super) fn draw(course: &Course, rails: &[String], title: &str) -> Result<String, String> {
    let mut picture = String::new();
    draw_into(course, rails, title, &mut picture)
        .map_err(|error| format!("cannot draw: {error}"))?;
    Ok(picture)
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// Means of [`SAMPLES`] at a time.
fn smooth(points: &[Point], rails: usize) -> Vec<Point> {
    let mean = |points: &[Point]| {
        let mean =
            |of: &dyn Fn(&Point) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
        let nic = |rail: usize| mean(&|point| point.2.get(rail).copied().unwrap_or(0.0));
        (mean(&|point| point.0), mean(&|point| point.1), (0..rails).map(nic).collect())
    };
    points.chunks(SAMPLES).map(mean).collect()
}

fn draw_into(
    course: &Course,
    rails: &[String],
    title: &str,
    picture: &mut String,
) -> Result<(), String> {
    let Some(((first, ..), (last, ..))) = course.points.first().zip(course.points.last()) else {
        return Err("nothing was recorded".to_owned());
    };
    let points = smooth(&course.points, rails.len());
    // After a hole is filled the frontier jumps: what NICs get sets the scale.
    let all = points.iter().map(|(_, _, nics)| nics.iter().sum::<f64>());
    // The legend stands above the curves.
    let top = 1.4 * all.fold(1.0, f64::max);
    let area = SVGBackend::with_string(picture, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(text)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(65)
        .build_cartesian_2d(*first..*last, 0.0..top)
        .map_err(text)?;
    chart
        .configure_mesh()
        .bold_line_style(BOLD_GRID)
        .light_line_style(LIGHT_GRID)
        .max_light_lines(5)
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 15))
        .x_desc("time since the fault (ms)")
        .y_desc("received (MB/s)")
        // From bytes per millisecond.
        .y_label_formatter(&|bytes| format!("{:.0}", bytes / 1e3))
        .x_label_formatter(&|ms| format!("{ms:.0}"))
        .draw()
        .map_err(text)?;
    let fault = Rectangle::new([(0.0, 0.0), (course.healed_ms, top)], SHADE.filled());
    chart
        .draw_series([fault])
        .map_err(text)?
        .label("the fault lasts")
        .legend(|(x, y)| Rectangle::new([(x, y - 5), (x + 18, y + 5)], SHADE.mix(3.0).filled()));
    let frontier = points.iter().map(|(at, got, _)| (*at, got.min(top)));
    chart
        .draw_series(LineSeries::new(frontier, GRAY.stroke_width(1)))
        .map_err(text)?
        .label("complete messages, in order")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], GRAY));
    for (index, name) in rails.iter().enumerate() {
        let color = color(index);
        let line =
            points.iter().map(|(at, _, nics)| (*at, nics.get(index).copied().unwrap_or(0.0)));
        let entry = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2));
        chart
            .draw_series(LineSeries::new(line, color.stroke_width(1)))
            .map_err(text)?
            .label(name)
            .legend(entry);
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .label_font(("sans-serif", 14))
        .background_style(WHITE.mix(0.8))
        .border_style(BOLD_GRID)
        .draw()
        .map_err(text)?;
    area.present().map_err(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_means() {
        let points: Vec<Point> = (0..7).map(|at| (f64::from(at), 1.0, vec![10.0])).collect();
        assert_eq!(smooth(&points, 1), [(2.0, 1.0, vec![10.0]), (5.5, 1.0, vec![10.0])]);
    }

    #[test]
    fn rails_are_named_and_nothing_is_not_drawn() {
        let points = (0..10).map(|at| (f64::from(at), 5.0, vec![2.0, 3.0])).collect();
        let course = Course { points, healed_ms: 4.0 };
        let rails = ["rail0", "rail1"].map(str::to_owned);
        let picture = draw(&course, &rails, "a fault").unwrap();
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
        for name in ["rail0", "rail1", "messages, in order", "the fault lasts", "(MB/s)", "a fault"]
        {
            assert!(picture.contains(name), "{name}");
        }
        let nothing = Course { points: Vec::new(), healed_ms: 0.0 };
        assert!(draw(&nothing, &rails, "").is_err());
    }
}
