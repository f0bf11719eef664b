//! The bins against a model that walks two lists.

use proptest::prelude::*;

use super::{Envelope, Matcher, PostedKey, Selector};

#[derive(Default)]
struct Model {
    posted: Vec<(Selector, u32)>,
    unexpected: Vec<(Envelope, u32)>,
}

fn accepts(selector: &Selector, envelope: &Envelope) -> bool {
    selector.context == envelope.context
        && selector.tag & !selector.ignore == envelope.tag & !selector.ignore
        && (selector.source.is_none() || selector.source == Some(envelope.source))
}

impl Model {
    fn arrive(&mut self, envelope: Envelope, message: u32) -> Option<u32> {
        match self.posted.iter().position(|(selector, _)| accepts(selector, &envelope)) {
            Some(index) => Some(self.posted.remove(index).1),
            None => {
                self.unexpected.push((envelope, message));
                None
            }
        }
    }

    fn post(&mut self, selector: Selector, receive: u32) -> Option<u32> {
        match self.unexpected.iter().position(|(envelope, _)| accepts(&selector, envelope)) {
            Some(index) => Some(self.unexpected.remove(index).1),
            None => {
                self.posted.push((selector, receive));
                None
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Arrive(Envelope),
    Post(Selector),
    Peek(Selector),
    Cancel(usize),
    DrainUnexpected(u32),
    DrainPosted,
}

fn step() -> impl Strategy<Value = Step> {
    let envelope = (0u32..3, 0u64..2, 0u64..4).prop_map(|(source, context, tag)| Envelope {
        source,
        context,
        tag,
    });
    let ignore = prop_oneof![4 => Just(0), 1 => Just(1), 1 => Just(u64::MAX)];
    let selector = (proptest::option::of(0u32..3), 0u64..2, 0u64..4, ignore)
        .prop_map(|(source, context, tag, ignore)| Selector { source, context, tag, ignore });
    prop_oneof![
        40 => envelope.prop_map(Step::Arrive),
        40 => selector.clone().prop_map(Step::Post),
        8 => selector.prop_map(Step::Peek),
        8 => any::<usize>().prop_map(Step::Cancel),
        2 => (0u32..3).prop_map(Step::DrainUnexpected),
        1 => Just(Step::DrainPosted),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn bins_and_lists_agree(seed in any::<u64>(), steps in proptest::collection::vec(step(), 1..300)) {
        let mut matcher = Matcher::new(seed);
        let mut model = Model::default();
        let mut keys: Vec<(PostedKey, u32)> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            let number = number as u32;
            match step {
                Step::Arrive(envelope) => {
                    let taken = matcher.take_posted(&envelope);
                    if taken.is_none() {
                        matcher.insert_unexpected(&envelope, number);
                    }
                    prop_assert_eq!(taken, model.arrive(envelope, number));
                }
                Step::Post(selector) => {
                    let taken = matcher.take_unexpected(&selector);
                    if taken.is_none() {
                        keys.push((matcher.insert_posted(&selector, number), number));
                    }
                    prop_assert_eq!(taken, model.post(selector, number));
                }
                Step::Peek(selector) => {
                    let expected = model
                        .unexpected
                        .iter()
                        .find(|(envelope, _)| accepts(&selector, envelope))
                        .map(|&(_, message)| message);
                    prop_assert_eq!(matcher.peek_unexpected(&selector), expected);
                }
                Step::Cancel(which) => {
                    if let Some(&(key, receive)) = keys.get(which % keys.len().max(1)) {
                        let index = model.posted.iter().position(|&(_, r)| r == receive);
                        let expected = index.map(|index| model.posted.remove(index).1);
                        prop_assert_eq!(matcher.cancel_posted(key), expected);
                        prop_assert_eq!(matcher.cancel_posted(key), None);
                    }
                }
                Step::DrainUnexpected(source) => {
                    let mut drained = Vec::new();
                    matcher.drain_unexpected_from(source, |message| drained.push(message));
                    let is_hit = |entry: &(Envelope, u32)| entry.0.source == source;
                    let expected: Vec<u32> =
                        model.unexpected.iter().filter(|e| is_hit(e)).map(|e| e.1).collect();
                    model.unexpected.retain(|entry| !is_hit(entry));
                    prop_assert_eq!(drained, expected);
                }
                Step::DrainPosted => {
                    let mut drained = Vec::new();
                    matcher.drain_all_posted(|receive| drained.push(receive));
                    let expected: Vec<u32> = model.posted.drain(..).map(|e| e.1).collect();
                    prop_assert_eq!(drained, expected);
                }
            }
            prop_assert_eq!(matcher.posted_len(), model.posted.len());
            prop_assert_eq!(matcher.unexpected_len(), model.unexpected.len());
        }
    }
}

#[test]
fn ten_thousand_in_reverse_order_match_across_growth() {
    let mut matcher = Matcher::new(7);
    for tag in 0..10_000u64 {
        let source = (tag % 2 == 0).then_some(1);
        let selector = Selector { source, context: 0, tag, ignore: 0 };
        matcher.insert_posted(&selector, tag as u32);
    }
    for tag in (0..10_000u64).rev() {
        let envelope = Envelope { source: 1, context: 0, tag };
        assert_eq!(matcher.take_posted(&envelope), Some(tag as u32));
        matcher.insert_unexpected(&envelope, tag as u32);
    }
    for tag in 0..10_000u64 {
        let selector = Selector { source: None, context: 0, tag, ignore: 0 };
        assert_eq!(matcher.take_unexpected(&selector), Some(tag as u32));
    }
    assert_eq!((matcher.posted_len(), matcher.unexpected_len()), (0, 0));
}
