//! The kinds of values a setting can have, each with its text form.
//!
//! Every kind reads what it writes: `parse(format(value)) == value`.

use std::fmt::Debug;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::nics::NicPattern;
use super::types::{NameSet, PortRange};

/// A kind of value: how it is parsed, formatted and checked.
pub(crate) trait ValueKind {
    /// The value as it is kept.
    type Value: Clone + Debug + PartialEq;
    /// The value as getters give it and setters take it.
    type View<'a>;
    /// Whether no value may be shown anywhere.
    const IS_SECRET: bool = false;
    /// Describes the accepted texts, for error messages and listings.
    fn expected() -> String;
    /// Parses a text; the error describes what is wrong with it.
    fn parse(text: &str) -> Result<Self::Value, String>;
    /// Formats a value so that `parse` returns the same one; a secret is replaced by a placeholder.
    fn format(value: &Self::Value) -> String;
    /// Formats a value so that `parse` returns the same one, secrets included.
    fn write(value: &Self::Value) -> String {
        Self::format(value)
    }
    /// The value as a getter gives it.
    fn view(value: &Self::Value) -> Self::View<'_>;
    /// The value that a setter was given.
    fn own(view: Self::View<'_>) -> Self::Value;
    /// Checks a value against the range of a setting.
    fn check(_value: &Self::Value, _range: &Range) -> Result<(), String> {
        Ok(())
    }
    /// Writes a range for listings; `None` where the kind has none.
    fn format_range(_range: &Range) -> Option<String> {
        None
    }
}

/// The values that a setting takes.
#[derive(Clone, Debug)]
pub(crate) enum Range {
    /// Whatever the kind can express.
    Any,
    /// A number within bounds: bytes or a count. For a list: of its items.
    Numbers(RangeInclusive<usize>),
    /// A time within bounds.
    Times(RangeInclusive<Duration>),
}

fn check_number(
    value: usize,
    range: &Range,
    format: impl Fn(usize) -> String,
) -> Result<(), String> {
    match range {
        Range::Numbers(bounds) if !bounds.contains(&value) => {
            Err(format!("outside {} to {}", format(*bounds.start()), format(*bounds.end())))
        }
        _ => Ok(()),
    }
}

fn number_range(range: &Range, format: impl Fn(usize) -> String) -> Option<String> {
    match range {
        Range::Numbers(bounds) => {
            Some(format!("{} to {}", format(*bounds.start()), format(*bounds.end())))
        }
        _ => None,
    }
}

/// Splits `16K` into its digits and the rest.
fn split_number(text: &str) -> Result<(u64, &str), String> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(digits_end);
    if digits.is_empty() {
        return Err("it does not begin with a whole number".into());
    }
    let number = digits.parse().map_err(|_| "the number is too large".to_string())?;
    Ok((number, rest.trim_start()))
}

/// The parts of a `View = Value` kind that is copied.
macro_rules! copied {
    ($value:ty) => {
        type Value = $value;
        type View<'a> = $value;
        fn view(value: &Self::Value) -> Self::View<'_> {
            *value
        }
        fn own(view: Self::View<'_>) -> Self::Value {
            view
        }
    };
}

/// The parts of a kind that is a list.
macro_rules! listed {
    ($item:ty) => {
        type Value = Vec<$item>;
        type View<'a> = &'a [$item];
        fn view(value: &Self::Value) -> Self::View<'_> {
            value
        }
        fn own(view: Self::View<'_>) -> Self::Value {
            view.to_vec()
        }
    };
}

/// The parts of a kind that is a path, or none.
macro_rules! path_parts {
    () => {
        type Value = Option<PathBuf>;
        type View<'a> = Option<&'a Path>;
        fn view(value: &Self::Value) -> Self::View<'_> {
            value.as_deref()
        }
        fn own(view: Self::View<'_>) -> Self::Value {
            view.map(Path::to_owned)
        }
    };
}
pub(super) use path_parts;

/// A size in bytes.
pub(crate) struct Bytes;

const BYTE_UNITS: [(&str, u64); 4] =
    [("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];

impl ValueKind for Bytes {
    copied!(usize);

    fn expected() -> String {
        "bytes (such as 512, 16K or 4M; K is 1024)".into()
    }

    fn parse(text: &str) -> Result<usize, String> {
        let (number, unit) = split_number(text)?;
        let factor = match unit {
            "" | "B" => 1,
            _ => {
                let short = unit.strip_suffix("iB").unwrap_or(unit).to_ascii_uppercase();
                let known = BYTE_UNITS.iter().find(|(name, _)| *name == short);
                known.ok_or_else(|| format!("`{unit}` is not one of K, M, G, T"))?.1
            }
        };
        let bytes = number.checked_mul(factor).ok_or("the number is too large")?;
        usize::try_from(bytes).map_err(|_| "the number is too large".into())
    }

    fn format(value: &usize) -> String {
        let bytes = *value as u64;
        match BYTE_UNITS.iter().find(|(_, factor)| bytes != 0 && bytes.is_multiple_of(*factor)) {
            Some((unit, factor)) => format!("{}{unit}", bytes / factor),
            None => bytes.to_string(),
        }
    }

    fn check(value: &usize, range: &Range) -> Result<(), String> {
        check_number(*value, range, |bytes| Self::format(&bytes))
    }

    fn format_range(range: &Range) -> Option<String> {
        number_range(range, |bytes| Self::format(&bytes))
    }
}

/// A size in bytes, or `auto` (`None`): the engine chooses it.
pub(crate) struct AutoBytes;

impl ValueKind for AutoBytes {
    copied!(Option<usize>);

    fn expected() -> String {
        format!("`auto`, or {}", Bytes::expected())
    }

    fn parse(text: &str) -> Result<Option<usize>, String> {
        if text == "auto" { Ok(None) } else { Bytes::parse(text).map(Some) }
    }

    fn format(value: &Option<usize>) -> String {
        value.map_or_else(|| "auto".into(), |bytes| Bytes::format(&bytes))
    }

    fn check(value: &Option<usize>, range: &Range) -> Result<(), String> {
        value.map_or(Ok(()), |bytes| Bytes::check(&bytes, range))
    }

    fn format_range(range: &Range) -> Option<String> {
        Bytes::format_range(range)
    }
}

/// How many.
pub(crate) struct Count;

impl ValueKind for Count {
    copied!(usize);

    fn expected() -> String {
        "a whole number".into()
    }

    fn parse(text: &str) -> Result<usize, String> {
        match split_number(text)? {
            (number, "") => {
                usize::try_from(number).map_err(|_| "the number is too large".to_string())
            }
            (_, rest) => Err(format!("`{rest}` after the number: counts have no unit")),
        }
    }

    fn format(value: &usize) -> String {
        value.to_string()
    }

    fn check(value: &usize, range: &Range) -> Result<(), String> {
        check_number(*value, range, |count| count.to_string())
    }

    fn format_range(range: &Range) -> Option<String> {
        number_range(range, |count| count.to_string())
    }
}

/// A length of time.
pub(crate) struct Time;

const TIME_UNITS: [(&str, u128); 4] =
    [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

impl ValueKind for Time {
    copied!(Duration);

    fn expected() -> String {
        "a time (such as 50us, 10ms or 5s)".into()
    }

    fn parse(text: &str) -> Result<Duration, String> {
        let (number, unit) = split_number(text)?;
        if number == 0 && unit.is_empty() {
            return Ok(Duration::ZERO);
        }
        if unit == "s" {
            return Ok(Duration::from_secs(number));
        }
        let Some((_, factor)) = TIME_UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(match unit {
                "" => "it has no unit: us, ms or s".into(),
                _ => format!("`{unit}` is not one of us, ms, s"),
            });
        };
        let nanoseconds = u128::from(number) * factor;
        let seconds = u64::try_from(nanoseconds / 1_000_000_000);
        let seconds = seconds.map_err(|_| "the number is too large".to_string())?;
        // The remainder of a division by 10^9 fits.
        Ok(Duration::new(seconds, (nanoseconds % 1_000_000_000) as u32))
    }

    fn format(value: &Duration) -> String {
        let nanoseconds = value.as_nanos();
        let whole = TIME_UNITS.iter().find(|(_, factor)| nanoseconds.is_multiple_of(*factor));
        let (unit, factor) = whole.unwrap_or(&TIME_UNITS[3]);
        format!("{}{unit}", nanoseconds / factor)
    }

    fn check(value: &Duration, range: &Range) -> Result<(), String> {
        match range {
            Range::Times(bounds) if !bounds.contains(value) => Err(format!(
                "outside {} to {}",
                Self::format(bounds.start()),
                Self::format(bounds.end())
            )),
            _ => Ok(()),
        }
    }

    fn format_range(range: &Range) -> Option<String> {
        match range {
            Range::Times(bounds) => {
                Some(format!("{} to {}", Self::format(bounds.start()), Self::format(bounds.end())))
            }
            _ => None,
        }
    }
}

/// A value with a fixed set of names.
pub(crate) struct OneOf<T>(std::marker::PhantomData<T>);

impl<T: NameSet> ValueKind for OneOf<T> {
    copied!(T);

    fn expected() -> String {
        let names: Vec<_> = T::NAMES.iter().map(|(name, _)| *name).collect();
        format!("one of {}", names.join(", "))
    }

    fn parse(text: &str) -> Result<T, String> {
        let found = T::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, value)| *value).ok_or_else(|| "it is none of the names".into())
    }

    fn format(value: &T) -> String {
        value.name().into()
    }
}

/// A range of ports, or any port.
pub(crate) struct Ports;

impl ValueKind for Ports {
    copied!(PortRange);

    fn expected() -> String {
        "`any`, a port, or a range such as 20000-20100".into()
    }

    fn parse(text: &str) -> Result<PortRange, String> {
        if matches!(text, "any" | "0") {
            return Ok(PortRange::ANY);
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| {
            let port: u16 = text.trim().parse().map_err(|_| format!("`{text}` is not a port"))?;
            if port == 0 { Err("port 0 cannot be part of a range".to_string()) } else { Ok(port) }
        };
        PortRange::new(port(first)?, port(last)?)
            .ok_or_else(|| "the first port is above the last".into())
    }

    fn format(value: &PortRange) -> String {
        value.to_string()
    }
}

/// An IP address, or none (`any`).
pub(crate) struct AddressValue;

impl ValueKind for AddressValue {
    copied!(Option<IpAddr>);

    fn expected() -> String {
        "`any`, or an IPv4 or IPv6 address".into()
    }

    fn parse(text: &str) -> Result<Option<IpAddr>, String> {
        if text == "any" {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| "it is not an IP address".into())
    }

    fn format(value: &Option<IpAddr>) -> String {
        value.map_or_else(|| "any".into(), |address| address.to_string())
    }
}

/// The words for an empty list; neither can be an item.
const EMPTY_WORDS: [&str; 2] = ["none", "auto"];

/// A list of names; the empty one is written `none`, or `auto` where [`AUTO`](Self) is set.
pub(crate) struct Names<const AUTO: bool>;

impl<const AUTO: bool> ValueKind for Names<AUTO> {
    listed!(String);

    fn expected() -> String {
        format!("`{}`, or names with commas between them", EMPTY_WORDS[usize::from(AUTO)])
    }

    fn parse(text: &str) -> Result<Vec<String>, String> {
        if text.is_empty() || text == EMPTY_WORDS[usize::from(AUTO)] {
            return Ok(Vec::new());
        }
        let mut names: Vec<String> = Vec::new();
        for name in text.split(',').map(str::trim) {
            if name.is_empty() || name.contains(char::is_whitespace) {
                return Err(format!("`{name}` is not a name"));
            }
            if EMPTY_WORDS.contains(&name) {
                return Err(format!("`{name}` stands alone, not in a list"));
            }
            if names.iter().any(|known| known == name) {
                return Err(format!("`{name}` is named twice"));
            }
            names.push(name.into());
        }
        Ok(names)
    }

    fn format(value: &Vec<String>) -> String {
        if value.is_empty() { EMPTY_WORDS[usize::from(AUTO)].into() } else { value.join(",") }
    }
}

/// A list of NICs; the empty one is written `none`, or `auto` where [`AUTO`](Self) is set.
pub(crate) struct Nics<const AUTO: bool>;

impl<const AUTO: bool> ValueKind for Nics<AUTO> {
    listed!(NicPattern);

    fn expected() -> String {
        format!(
            "`{}`, or names (rail0, rail*), networks (10.1.0.0/16) and exclusions (!docker*) with \
             commas between them",
            EMPTY_WORDS[usize::from(AUTO)]
        )
    }

    fn parse(text: &str) -> Result<Vec<NicPattern>, String> {
        let texts = Names::<AUTO>::parse(text)?;
        let mut patterns: Vec<NicPattern> = Vec::with_capacity(texts.len());
        for text in texts {
            let pattern = text.parse()?;
            if patterns.contains(&pattern) {
                return Err(format!("`{pattern}` is named twice"));
            }
            patterns.push(pattern);
        }
        Ok(patterns)
    }

    fn format(value: &Vec<NicPattern>) -> String {
        Names::<AUTO>::format(&value.iter().map(ToString::to_string).collect())
    }
}

/// A list of CPU numbers.
pub(crate) struct Cores;

impl ValueKind for Cores {
    listed!(usize);

    fn expected() -> String {
        "`none`, or cores (such as 0,2,4-7)".into()
    }

    fn parse(text: &str) -> Result<Vec<usize>, String> {
        if text.is_empty() || text == EMPTY_WORDS[0] {
            return Ok(Vec::new());
        }
        let mut cores = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            // Sixteen bits bound the work of a range such as 0-99999999999.
            let core = |text: &str| {
                let number: u16 =
                    text.trim().parse().map_err(|_| format!("`{text}` is no core"))?;
                Ok::<_, String>(usize::from(number))
            };
            let (first, last) = (core(first)?, core(last)?);
            if first > last {
                return Err(format!("`{part}` runs backwards"));
            }
            cores.extend(first..=last);
        }
        let mut sorted = cores.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("core {} is named twice", pair[0]));
        }
        Ok(cores)
    }

    fn format(value: &Vec<usize>) -> String {
        if value.is_empty() {
            return EMPTY_WORDS[0].into();
        }
        value.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
    }

    fn check(value: &Vec<usize>, range: &Range) -> Result<(), String> {
        value.iter().try_for_each(|core| check_number(*core, range, |core| core.to_string()))
    }

    fn format_range(range: &Range) -> Option<String> {
        number_range(range, |core| core.to_string())
    }
}

/// A path. Settings are texts, in which what is not UTF-8 was replaced: that is another file.
pub(super) fn path_of(text: &str) -> Result<PathBuf, String> {
    match text.contains(char::REPLACEMENT_CHARACTER) {
        true => Err("the path is not UTF-8: rename the file or a folder above it".into()),
        false => Ok(text.into()),
    }
}

/// The path of a file, absolute or relative to the working directory, or none (`none`).
pub(crate) struct AnyPath;

impl ValueKind for AnyPath {
    path_parts!();

    fn expected() -> String {
        "`none`, or the path of a file".into()
    }

    fn parse(text: &str) -> Result<Option<PathBuf>, String> {
        match text {
            "" => Err("it is empty".into()),
            "none" => Ok(None),
            path => path_of(path).map(Some),
        }
    }

    fn format(value: &Option<PathBuf>) -> String {
        value.as_ref().map_or_else(|| "none".into(), |path| path.to_string_lossy().into_owned())
    }
}
