//! What the engine and this provider log goes to libfabric (`FI_LOG_LEVEL`).

use std::fmt::{self, Write};
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::symbols::{self, Level as Theirs};

/// The number of lines that suffices for a process that cannot start, or that has lost its peers.
const LINES_MAX: usize = 16;
/// The text behind the last of them.
const LAST: &str = "further errors are not printed here; FI_LOG_LEVEL=warn prints all";

struct ToLibfabric;

impl<S: Subscriber> Layer<S> for ToLibfabric {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        let (metadata, text) = (event.metadata(), line.text);
        let level = match *metadata.level() {
            Level::ERROR | Level::WARN => Theirs::Warn,
            Level::INFO => Theirs::Info,
            Level::DEBUG | Level::TRACE => Theirs::Debug,
        };
        let is_printed = symbols::log(level, metadata.target(), &text);
        if !is_printed && *metadata.level() == Level::ERROR {
            // libfabric prints nothing unless it is asked to; what ends a job is printed.
            say(&text);
        }
    }
}

/// Message and fields of an event, as one line.
#[derive(Default)]
struct Line {
    text: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // To write to a string does not fail.
        let _written = match field.name() {
            "message" => write!(self.text, "{value:?} "),
            name => write!(self.text, "{name}={value:?} "),
        };
    }
}

/// A line on standard error, once for each reason to give up, for MPI asks several times, and for
/// each peer that is lost (setting `report_lost_peers`).
fn say(text: &str) {
    static PRINTED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut printed = PRINTED.lock().unwrap_or_else(PoisonError::into_inner);
    if printed.len() > LINES_MAX || printed.iter().any(|line| line == text) {
        return;
    }
    let text = if printed.len() == LINES_MAX { LAST } else { text };
    printed.push(text.to_owned());
    // Where stderr is closed there is nothing left to do.
    let _written =
        std::io::Write::write_all(&mut std::io::stderr(), format!("ringrail: {text}\n").as_bytes());
}

/// From here on lines go to libfabric, as far as it prints them.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Read once, so that a line that is not printed costs a comparison.
        let most = [
            (Theirs::Debug, LevelFilter::DEBUG),
            (Theirs::Info, LevelFilter::INFO),
            (Theirs::Warn, LevelFilter::WARN),
        ];
        let wanted = most.into_iter().find(|(level, _)| symbols::is_logged(*level));
        let filter = wanted.map_or(LevelFilter::ERROR, |(_, filter)| filter);
        let subscriber = tracing_subscriber::registry().with(ToLibfabric.with_filter(filter));
        // Taken already: a test has its own.
        let _set = tracing::subscriber::set_global_default(subscriber);
    });
}
