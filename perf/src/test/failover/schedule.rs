//! What happens to which rail, and when.

use serde::{Deserialize, Serialize};

use super::control::{Control, Order, Stage};
use crate::cli::Fault;

const MS: u64 = 1_000_000;

/// Before the first fault: connections are made and come to their rates.
const WARM_UP_NS: u64 = 2000 * MS;
/// From the end of a fault to the next one.
const HEALED_NS: u64 = 2000 * MS;
/// Half of a period of flapping, at 10 Hz.
const FLAP_NS: u64 = 50 * MS;

/// One fault, as it was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Cut {
    /// The rails that it hit.
    pub(super) rails: Vec<u8>,
    pub(super) cut_ns: u64,
    pub(super) healed_ns: u64,
    /// When nothing had happened for long again.
    pub(super) end_ns: u64,
}

impl Fault {
    /// How long it lasts.
    pub(super) fn length_ns(self) -> u64 {
        if self == Self::AllRails { 200 * MS } else { 1000 * MS }
    }
}

/// Goes through all faults.
pub(super) struct Schedule {
    fault: Fault,
    rails: u8,
    count: u64,
    /// Of the current fault: what is still to be asked for, latest first, and when after its begin.
    steps: Vec<(u64, Order)>,
    /// When the current fault begins or has begun.
    begin_ns: u64,
    /// Orders without an answer.
    unanswered: usize,
    /// Times of the answers of this fault.
    answers: Vec<u64>,
    pub(super) cuts: Vec<Cut>,
}

impl Schedule {
    pub(super) fn new(fault: Fault, rails: u8, count: u64, now_ns: u64) -> Self {
        let mut schedule = Self {
            fault,
            rails,
            count,
            steps: Vec::new(),
            begin_ns: now_ns + WARM_UP_NS,
            unanswered: 0,
            answers: Vec::new(),
            cuts: Vec::new(),
        };
        schedule.steps = schedule.steps_of(0);
        schedule
    }

    /// The rails that a fault hits: one, by turns, or all.
    fn rails_of(&self, index: u64) -> Vec<u8> {
        match self.fault {
            Fault::AllRails => (0..self.rails).collect(),
            _ => vec![(index % u64::from(self.rails)) as u8],
        }
    }

    /// What is asked for in a fault, latest first.
    fn steps_of(&self, index: u64) -> Vec<(u64, Order)> {
        let fault = self.fault;
        // With faults of one way the sides take turns, for each rail.
        let is_back = fault == Fault::OneWay && index / u64::from(self.rails) % 2 == 1;
        let cut = if is_back { Stage::CutBack } else { Stage::Cut };
        let length = fault.length_ns();
        let mut stages = vec![(0, cut)];
        if fault == Fault::Flap {
            let turns = (1..length / FLAP_NS)
                .map(|turn| (turn * FLAP_NS, if turn % 2 == 1 { Stage::Heal } else { Stage::Cut }));
            stages.extend(turns);
        }
        stages.push((length, Stage::Heal));
        let rails = self.rails_of(index);
        let orders = stages.iter().rev().flat_map(|&(after, stage)| {
            rails.iter().map(move |&rail| (after, Order { rail, fault, stage }))
        });
        orders.collect()
    }

    /// Asks for what is due. `true`: all is over.
    pub(super) fn advance(&mut self, now_ns: u64, control: &mut Control) -> Result<bool, String> {
        while let Some(&(after, order)) = self.steps.last()
            && now_ns >= self.begin_ns + after
        {
            control.ask(order)?;
            self.unanswered += 1;
            self.steps.pop();
        }
        while self.unanswered > 0
            && let Some(at_ns) = control.answer()?
        {
            self.unanswered -= 1;
            self.answers.push(at_ns);
        }
        if !self.steps.is_empty() || self.unanswered > 0 {
            return Ok(false);
        }
        let index = self.cuts.len() as u64;
        if index == self.count {
            return Ok(now_ns >= self.begin_ns);
        }
        // The first order began it, the last one ended it.
        let (Some(&cut_ns), Some(&healed_ns)) = (self.answers.first(), self.answers.last()) else {
            return Ok(false);
        };
        let end_ns = healed_ns + HEALED_NS;
        self.cuts.push(Cut { rails: self.rails_of(index), cut_ns, healed_ns, end_ns });
        self.answers.clear();
        self.begin_ns = end_ns;
        if index + 1 < self.count {
            self.steps = self.steps_of(index + 1);
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(fault: Fault, index: u64) -> Vec<(u64, u8, Stage)> {
        let mut steps = Schedule::new(fault, 2, 4, 0).steps_of(index);
        steps.reverse();
        steps.into_iter().map(|(after, order)| (after / MS, order.rail, order.stage)).collect()
    }

    #[test]
    fn rails_take_turns() {
        let of = |index| stages(Fault::Blackhole, index);
        assert_eq!(of(0), [(0, 0, Stage::Cut), (1000, 0, Stage::Heal)]);
        assert_eq!(of(1), [(0, 1, Stage::Cut), (1000, 1, Stage::Heal)]);
        assert_eq!(of(2), of(0));
        assert_eq!(stages(Fault::OneWay, 1)[0].2, Stage::Cut);
        assert_eq!(stages(Fault::OneWay, 2)[0], (0, 0, Stage::CutBack));
    }

    #[test]
    fn flapping_ends_whole() {
        let steps = stages(Fault::Flap, 0);
        assert_eq!(steps.len(), 21);
        assert_eq!(steps[..3], [(0, 0, Stage::Cut), (50, 0, Stage::Heal), (100, 0, Stage::Cut)]);
        assert_eq!(steps[20], (1000, 0, Stage::Heal));
    }

    #[test]
    fn all_rails_go_together() {
        let mut steps = stages(Fault::AllRails, 1);
        steps.sort_by_key(|&(after, rail, _)| (after, rail));
        let heal = Stage::Heal;
        let cut = Stage::Cut;
        assert_eq!(steps, [(0, 0, cut), (0, 1, cut), (200, 0, heal), (200, 1, heal)]);
    }
}
