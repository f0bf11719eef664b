//! Faults that a driver injects, for tests of the layers above it.

use std::fmt;

use super::value::ValueKind;

/// How often a driver misbehaves as a kernel, a network or a peer may: each rate is the chance,
/// from 0 to 1, that one call or event is hit. The text form is `seed=1 short=0.1 late=0.05`;
/// what is not named is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Where the random numbers begin: the same seed and the same calls give the same faults.
    pub seed: u64,
    /// A send or receive of a control lane moves only some of the bytes that it could.
    pub short: f64,
    /// A send or receive of a control lane, a datagram or a ring finds no room, or nothing to read
    /// (`EAGAIN`).
    pub again: f64,
    /// An event is held back for up to 16 polls, and what must follow it as well.
    pub late: f64,
    /// A chunk's lane is reset at about the time at which the chunk moves.
    pub reset: f64,
    /// A connection attempt fails.
    pub refuse: f64,
    /// A lane is reset at a send or receive of its bytes: for a control lane, the session ends.
    pub cut: f64,
    /// A bit of a chunk's payload is another one when it has arrived.
    pub garble: f64,
    /// A bit of what a control lane receives is another one; greetings are spared.
    pub garble_control: f64,
    /// A datagram is lost on its way out.
    pub lose: f64,
    /// A datagram arrives twice.
    pub repeat: f64,
    /// A datagram leaves up to 16 polls later than it would, after others.
    pub reorder: f64,
    /// One bit of a datagram is wrong.
    pub flip: f64,
    /// A datagram loses its end, or all of its bytes.
    pub truncate: f64,
    /// The rings of two engines of one host end at a write, and are made anew soon.
    pub ring_end: f64,
    /// A piece of a message cannot be read from the memory of its sender's process.
    pub unread: f64,
}

impl Faults {
    const RATES: [&'static str; 15] = [
        "short",
        "again",
        "late",
        "reset",
        "refuse",
        "cut",
        "garble",
        "garble_control",
        "lose",
        "repeat",
        "reorder",
        "flip",
        "truncate",
        "ring_end",
        "unread",
    ];

    fn rates(&mut self) -> [&mut f64; 15] {
        [
            &mut self.short,
            &mut self.again,
            &mut self.late,
            &mut self.reset,
            &mut self.refuse,
            &mut self.cut,
            &mut self.garble,
            &mut self.garble_control,
            &mut self.lose,
            &mut self.repeat,
            &mut self.reorder,
            &mut self.flip,
            &mut self.truncate,
            &mut self.ring_end,
            &mut self.unread,
        ]
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut faults = Self::default();
        let mut seen = Vec::new();
        for word in text.split_whitespace() {
            let (name, value) =
                word.split_once('=').ok_or_else(|| format!("`{word}` is not NAME=VALUE"))?;
            if seen.contains(&name) {
                return Err(format!("`{name}` is named twice"));
            }
            seen.push(name);
            if name == "seed" {
                faults.seed = value.parse().map_err(|_| format!("`{value}` is not a seed"))?;
                continue;
            }
            let index = Self::RATES.iter().position(|known| *known == name);
            let index = index.ok_or_else(|| format!("there is no fault `{name}`"))?;
            let rate: f64 = value.parse().map_err(|_| format!("`{value}` is not a rate"))?;
            if !(0.0..=1.0).contains(&rate) {
                return Err(format!("{name}={value}: a rate is from 0 to 1"));
            }
            *faults.rates()[index] = rate;
        }
        Ok(faults)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "seed={}", self.seed)?;
        let mut copy = *self;
        for (name, rate) in Self::RATES.iter().zip(copy.rates()) {
            if *rate != 0.0 {
                write!(out, " {name}={rate}")?;
            }
        }
        Ok(())
    }
}

/// A set of faults, or `none`.
pub(crate) struct FaultSet;

impl ValueKind for FaultSet {
    type Value = Option<Faults>;
    type View<'a> = Option<Faults>;

    fn expected() -> String {
        format!(
            "`none`, or a seed and rates from 0 to 1 of {}, such as `seed=1 short=0.1 late=0.1`",
            Faults::RATES.join(", ")
        )
    }

    fn parse(text: &str) -> Result<Option<Faults>, String> {
        match text.trim() {
            "" | "none" => Ok(None),
            text => Faults::parse(text).map(Some),
        }
    }

    fn format(value: &Option<Faults>) -> String {
        value.map_or_else(|| "none".into(), |faults| faults.to_string())
    }

    fn view(value: &Option<Faults>) -> Option<Faults> {
        *value
    }

    fn own(view: Option<Faults>) -> Option<Faults> {
        view
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    #[test]
    fn faults_roundtrip() {
        let text = "seed=7 short=0.1 again=0.05 late=1 reset=0.001 refuse=0.01 cut=0.25 \
                    lose=0.5 repeat=0.02 reorder=0.03 flip=0.04 truncate=0.06";
        let faults = Faults::parse(text).unwrap();
        assert_eq!((faults.seed, faults.again, faults.late), (7, 0.05, 1.0));
        assert_eq!(faults.to_string(), text);
        assert_eq!(Faults::parse(&Faults::default().to_string()), Ok(Faults::default()));
        let built = Settings::isolated().inject_faults(Some(faults)).build().unwrap();
        assert_eq!(built.inject_faults(), Some(faults));
        assert_eq!(Settings::default().inject_faults(), None);
        let none = Settings::isolated().set("inject_faults", "none").build().unwrap();
        assert_eq!(none.inject_faults(), None);
    }

    #[test]
    fn invalid_faults_are_named() {
        for (text, expected) in [
            ("shorts=0.1", "no fault `shorts`"),
            ("short", "not NAME=VALUE"),
            ("short=1.5", "from 0 to 1"),
            ("short=-0.1", "from 0 to 1"),
            ("short=NaN", "from 0 to 1"),
            ("late=x", "not a rate"),
            ("seed=-1", "not a seed"),
            ("late=0 late=0", "named twice"),
        ] {
            let error = Settings::isolated().set("inject_faults", text).build().unwrap_err();
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
    }
}
