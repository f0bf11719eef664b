//! One fault as a picture: what each rail delivered in each millisecond.

use std::fmt::Display;

use plotters::prelude::*;

use super::findings::Course;

const SIZE: (u32, u32) = (1100, 480);
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

fn draw_into(
    course: &Course,
    rails: &[String],
    title: &str,
    picture: &mut String,
) -> Result<(), String> {
    let Some(((first, ..), (last, ..))) = course.points.first().zip(course.points.last()) else {
        return Err("nothing was recorded".to_owned());
    };
    // After a hole is filled the frontier jumps: what NICs get sets the scale.
    let nics = course.points.iter().flat_map(|(_, _, nics)| nics.iter().copied());
    let top = 1.3 * nics.fold(1.0, f64::max);
    let area = SVGBackend::with_string(picture, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(text)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(80)
        .build_cartesian_2d(*first..*last, 0.0..top)
        .map_err(text)?;
    chart
        .configure_mesh()
        .x_desc("ms since the fault")
        .y_desc("bytes per ms")
        .draw()
        .map_err(text)?;
    let fault = Rectangle::new([(0.0, 0.0), (course.healed_ms, top)], SHADE.filled());
    chart.draw_series([fault]).map_err(text)?;
    let frontier = course.points.iter().map(|(at, got, _)| (*at, got.min(top)));
    chart
        .draw_series(LineSeries::new(frontier, GRAY.stroke_width(1)))
        .map_err(text)?
        .label("messages, in order")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], GRAY));
    for (index, name) in rails.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let line = course
            .points
            .iter()
            .map(|(at, _, nics)| (*at, nics.get(index).copied().unwrap_or(0.0)));
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
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
        .map_err(text)?;
    area.present().map_err(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rails_are_named_and_nothing_is_not_drawn() {
        let points = (0..10).map(|at| (f64::from(at), 5.0, vec![2.0, 3.0])).collect();
        let course = Course { points, healed_ms: 4.0 };
        let rails = ["rail0", "rail1"].map(str::to_owned);
        let picture = draw(&course, &rails, "a fault").unwrap();
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
        for name in ["rail0", "rail1", "messages, in order", "a fault"] {
            assert!(picture.contains(name), "{name}");
        }
        let nothing = Course { points: Vec::new(), healed_ms: 0.0 };
        assert!(draw(&nothing, &rails, "").is_err());
    }
}
