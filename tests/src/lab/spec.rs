//! The text that describes a lab, as given to `--lab`.

use std::str::FromStr;
use std::time::Duration;

use super::LabError;

/// Rails a lab can have: the fields of an address are bytes, and more tells nothing new.
const RAILS_MAX: u8 = 32;

/// What an error about an unknown key says there is.
const KEYS: &str = "there are `rails=N`, `switch`, `rate=1gbit:3gbit`, `loss=1e-3`, `delay=1ms`, \
                    `mtu=9000`, `passes=1500`, `same-subnet`, `decoys`, `routed`, `nat`";

/// Bytes of an Ethernet payload on every rail, unless the text says otherwise.
const MTU_BYTES: u32 = 1500;

/// Units of a rate in bits per second, the longer name first.
const RATE_UNITS: [(&str, f64); 4] = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];

/// Units of a time in seconds, the longer name first.
const TIME_UNITS: [(&str, f64); 3] = [("ms", 1e-3), ("us", 1e-6), ("s", 1.0)];

/// What a lab looks like. Parsed from comma-separated `key` or `key=value`; an empty text is the
/// default.
///
/// Those marked `switch` imply it. A wire in user space is a thread of who holds the lab; beside
/// `same-subnet` and `routed` there is none, so that `delay` takes a kernel with netem there.
///
/// | key | meaning | default |
/// |---|---|---|
/// | `rails=N` | NICs that each host has, 1 to 32 | 1 |
/// | `switch` | a third namespace carries the rails, so that they can be cut at run time | no |
/// | `rate=R:R…` | bit/s of each rail, each way (`1gbit`), the last for the rest; `switch` | none |
/// | `loss=P` | share of packets dropped, each way; `switch`, no segmentation offload | 0 |
/// | `delay=T` | one-way delay (`200us`, `1ms`), by a wire in user space; `switch` | none |
/// | `mtu=N` | longest IP packet of each NIC, 1280 to 9000 | 1500 |
/// | `passes=N` | longer IP packets vanish in the switch; `switch`, no segmentation offload | all |
/// | `nat` | host a is behind a translator of addresses, by such a wire; `switch` | no |
/// | `same-subnet` | all rails in one IP network on one bridge; `switch` | no |
/// | `routed` | a router between two networks per rail; `switch` | no |
/// | `decoys` | what is no rail: docker0, virbr0, a NIC that is down, networks without a way | no |
#[derive(Clone, PartialEq, Debug)]
pub struct LabSpec {
    /// NICs that each host has.
    pub rails: u8,
    /// A third namespace carries the rails. Other fields imply it: see [`Self::has_switch`].
    pub switch: bool,
    /// Bits per second of the rails, either way; the last one is for all rails that are left.
    /// Empty: no limit.
    pub rates_bit_s: Vec<u64>,
    /// Share of the packets that the switch drops, either way.
    pub loss: f64,
    /// One-way delay.
    pub delay: Duration,
    /// Bytes of the longest IP packet of each NIC.
    pub mtu: u32,
    /// Bytes of the longest IP packet that the switch passes; longer ones vanish. `None`: all pass.
    pub passes: Option<u32>,
    /// All rails are in one IP network, on one bridge.
    pub same_subnet: bool,
    /// A router stands between two networks per rail.
    pub routed: bool,
    /// Host a is behind a translator of addresses: host b sees it by others, and reaches it only
    /// where host a has written first.
    pub nat: bool,
    /// Interfaces that are no rail stand beside them.
    pub decoys: bool,
}

impl Default for LabSpec {
    fn default() -> Self {
        Self {
            rails: 1,
            switch: false,
            rates_bit_s: Vec::new(),
            loss: 0.0,
            delay: Duration::ZERO,
            mtu: MTU_BYTES,
            passes: None,
            same_subnet: false,
            routed: false,
            nat: false,
            decoys: false,
        }
    }
}

impl LabSpec {
    /// Plain rails: veth pairs from host to host.
    pub fn rails(rails: u8) -> Self {
        Self { rails, ..Self::default() }
    }

    /// Whether a third namespace carries the rails: faults at run time need it.
    pub fn has_switch(&self) -> bool {
        let is_shaped = !self.rates_bit_s.is_empty() || self.loss > 0.0 || !self.delay.is_zero();
        self.switch
            || is_shaped
            || self.passes.is_some()
            || self.same_subnet
            || self.routed
            || self.nat
    }

    /// Whether a thread carries the frames.
    pub fn has_wire(&self) -> bool {
        (self.nat || !self.delay.is_zero()) && !self.same_subnet && !self.routed
    }

    /// What `rail` carries either way, in bits per second; `None`: as fast as it goes.
    pub fn rate_bit_s(&self, rail: u8) -> Option<u64> {
        self.rates_bit_s.get(usize::from(rail)).or(self.rates_bit_s.last()).copied()
    }
}

impl FromStr for LabSpec {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let wrong = |reason: String| LabError::Spec { text: text.to_owned(), reason };
        let mut spec = Self::default();
        let mut seen = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key.trim(), Some(value.trim())),
                None => (part, None),
            };
            if seen.contains(&key) {
                return Err(wrong(format!("`{key}` is given twice")));
            }
            seen.push(key);
            spec.set(part, key, value).map_err(wrong)?;
        }
        if [spec.same_subnet, spec.routed, spec.nat].iter().filter(|&&is_so| is_so).count() > 1 {
            let reason = "`same-subnet`, `routed` and `nat` exclude each other";
            return Err(wrong(reason.to_owned()));
        }
        Ok(spec)
    }
}

impl LabSpec {
    /// Takes in one `part` of a text.
    fn set(&mut self, part: &str, key: &str, value: Option<&str>) -> Result<(), String> {
        let flag = match key {
            "switch" => Some(&mut self.switch),
            "same-subnet" => Some(&mut self.same_subnet),
            "decoys" => Some(&mut self.decoys),
            "routed" => Some(&mut self.routed),
            "nat" => Some(&mut self.nat),
            _ => None,
        };
        if let Some(flag) = flag {
            *flag = true;
            return match value {
                None => Ok(()),
                Some(_) => Err(format!("`{part}`: `{key}` has no value")),
            };
        }
        match key {
            "rails" => {
                self.rails = value
                    .and_then(|value| value.parse().ok())
                    .filter(|count| (1..=RAILS_MAX).contains(count))
                    .ok_or_else(|| {
                        format!("`{part}` is not `rails=N` with N from 1 to {RAILS_MAX}")
                    })?;
            }
            "rate" => {
                let rates = value.unwrap_or_default().split(':').map(rate_bit_s);
                self.rates_bit_s = rates.collect::<Option<_>>().ok_or_else(|| {
                    format!("`{part}` is not `rate=1gbit:3gbit`, from 1mbit to 400gbit each")
                })?;
            }
            "loss" => {
                self.loss = value
                    .and_then(|value| value.parse().ok())
                    .filter(|share| (0.0..=1.0).contains(share))
                    .ok_or_else(|| format!("`{part}` is not `loss=P` with P from 0 to 1"))?;
            }
            "delay" => {
                self.delay = value.and_then(delay).ok_or_else(|| {
                    format!("`{part}` is not `delay=1ms`, from 1us to 10s (us, ms, s)")
                })?;
            }
            "mtu" => {
                self.mtu = value
                    .and_then(packet_bytes)
                    .ok_or_else(|| format!("`{part}` is not `mtu=N` with N from 1280 to 9000"))?;
            }
            "passes" => {
                self.passes = Some(value.and_then(packet_bytes).ok_or_else(|| {
                    format!("`{part}` is not `passes=N` with N from 1280 to 9000")
                })?);
            }
            unknown => return Err(format!("no key `{unknown}`; {KEYS}")),
        }
        Ok(())
    }
}

/// A number and one of `units`, in the base unit.
fn quantity(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, unit) =
        units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))?;
    number.trim().parse::<f64>().ok().map(|number| number * unit)
}

fn rate_bit_s(text: &str) -> Option<u64> {
    let rate = quantity(text.trim(), &RATE_UNITS)?;
    (1e6..=400e9).contains(&rate).then_some(rate as u64)
}

/// Length of an IP packet.
fn packet_bytes(text: &str) -> Option<u32> {
    text.parse().ok().filter(|bytes| (1280..=9000).contains(bytes))
}

fn delay(text: &str) -> Option<Duration> {
    let seconds = quantity(text, &TIME_UNITS)?;
    (1e-6..=10.0).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(text: &str) -> String {
        text.parse::<LabSpec>().expect_err("a wrong spec").to_string()
    }

    fn spec(text: &str) -> LabSpec {
        text.parse().unwrap()
    }

    #[test]
    fn rails_are_counted() {
        assert_eq!(spec(""), LabSpec::rails(1));
        assert_eq!(spec("rails=1"), LabSpec::default());
        assert_eq!(spec(" rails = 32 ,").rails, 32);
        assert!(!spec("rails=2,decoys").has_switch());
    }

    #[test]
    fn the_last_rate_repeats() {
        let spec = spec("rails=3,rate=1gbit:2.5gbit");
        assert_eq!(
            [0, 1, 2].map(|rail| spec.rate_bit_s(rail).unwrap() / 1_000_000),
            [1000, 2500, 2500]
        );
        assert_eq!(LabSpec::default().rate_bit_s(0), None);
    }

    #[test]
    fn what_the_switch_does_implies_it() {
        let all = ["switch", "rate=500mbit", "loss=1e-3", "delay=200us", "same-subnet", "routed"];
        assert!(all.iter().chain(&["nat", "passes=1500"]).all(|text| spec(text).has_switch()));
        let wires = ["nat", "delay=1ms", "rails=2,nat,delay=1ms"];
        assert!(wires.iter().all(|text| spec(text).has_wire()));
        assert!(!spec("routed,delay=1ms").has_wire() && !spec("switch").has_wire());
        assert_eq!(spec("delay=1.5ms").delay, Duration::from_micros(1500));
        assert_eq!(spec("loss=1e-3").loss, 0.001);
        let jumbo = spec("mtu=9000,passes=1500");
        assert_eq!((jumbo.mtu, jumbo.passes), (9000, Some(1500)));
        assert_eq!((spec("").mtu, spec("").passes), (1500, None));
    }

    #[test]
    fn errors_name_the_part_and_what_there_is() {
        for wrong in ["rails", "rails=", "rails=0", "rails=33", "rails=-1", "rails=two"] {
            let reason = reason(wrong);
            assert!(reason.contains(wrong) && reason.contains("1 to 32"), "{reason}");
        }
        let wrong = ["rate", "rate=", "rate=1", "rate=1gbit:", "rate=-1gbit", "rate=1kbit"];
        let wrong = wrong.into_iter().chain(["rate=NaNgbit", "loss", "loss=2", "loss=-1"]);
        let wrong = wrong.chain(["mtu", "mtu=500", "passes=", "passes=10000"]);
        let wrong = wrong.chain(["loss=NaN", "delay=1", "delay=0s", "delay=1h", "delay=NaNs"]);
        for wrong in wrong.chain(["decoys=2", "switch=yes", "routed="]) {
            let reason = reason(wrong);
            assert!(reason.contains(&format!("`{wrong}`")), "{wrong}: {reason}");
        }
        assert!(reason("rails=1,rails=2").contains("twice"));
        assert!(reason("switch,switch").contains("twice"));
        assert!(reason("rials=2").contains("no key `rials`; there are `rails=N`"));
        for both in ["same-subnet,routed", "nat,routed", "same-subnet,nat"] {
            assert!(reason(both).contains("exclude"), "{both}");
        }
    }
}
