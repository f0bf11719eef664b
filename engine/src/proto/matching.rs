//! Message matching: hash bins for exact receives, lists for wildcards.
//!
//! Order is that of MPI: an arriving message takes the oldest posted receive that accepts it, a
//! posted receive takes the oldest unexpected message it accepts. Exact receives, from one source
//! or from any, are found in O(1); a receive that ignores tag bits costs a walk over its kind.
//!
//! A posted receive is in one chain, an unexpected message in three: by source and tag, by tag,
//! and by arrival. A kind of which there is nothing costs nothing, so a load of receives from any
//! source costs what one of directed receives costs.

mod chain;
#[cfg(test)]
mod tests;

use std::hash::BuildHasher;

use chain::{Chain, Links, NONE, Slots};

/// What an arriving message carries for matching.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Envelope {
    /// Index of the remote endpoint.
    pub(crate) source: u32,
    /// Context.
    pub(crate) context: u64,
    /// Tag.
    pub(crate) tag: u64,
}

/// What a receive accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Selector {
    /// From whom; `None`: from anybody.
    pub(crate) source: Option<u32>,
    /// Context.
    pub(crate) context: u64,
    /// Tag.
    pub(crate) tag: u64,
    /// Bits of the tag that are not compared.
    pub(crate) ignore: u64,
}

impl Selector {
    #[inline]
    fn accepts(&self, envelope: &Envelope) -> bool {
        self.context == envelope.context
            && (self.tag ^ envelope.tag) & !self.ignore == 0
            && self.source.is_none_or(|source| source == envelope.source)
    }
}

/// Names a posted receive for cancellation; stale once it has matched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PostedKey {
    slot: u32,
    generation: u32,
}

#[derive(Debug)]
struct Posted {
    selector: Selector,
    receive: u32,
    order: u64,
    links: Links,
}

#[derive(Debug)]
struct Message {
    envelope: Envelope,
    message: u32,
    by_source: Links,
    by_tag: Links,
    by_arrival: Links,
}

/// Chains by hash; the number of bins doubles with the load.
#[derive(Debug)]
struct Bins {
    chains: Vec<Chain>,
    len: usize,
}

const BINS_MIN: usize = 64;

impl Bins {
    fn new() -> Self {
        Self { chains: vec![Chain::default(); BINS_MIN], len: 0 }
    }

    #[inline]
    fn chain(&mut self, hash: u64) -> &mut Chain {
        let mask = self.chains.len() - 1;
        &mut self.chains[hash as usize & mask]
    }

    #[inline]
    fn head(&self, hash: u64) -> u32 {
        self.chains[hash as usize & (self.chains.len() - 1)].head
    }

    fn must_grow(&self) -> bool {
        self.len >= self.chains.len()
    }

    /// Empties all chains and doubles their number; the caller inserts everything anew.
    fn grow(&mut self) {
        let bins = self.chains.len() * 2;
        self.chains.clear();
        self.chains.resize(bins, Chain::default());
        self.len = 0;
    }
}

/// The receives and unexpected messages of one endpoint.
#[derive(Debug)]
pub(crate) struct Matcher {
    hasher: foldhash::fast::FixedState,
    posted: Slots<Posted>,
    directed: Bins,
    any_source: Bins,
    wildcards: Chain,
    wildcards_len: usize,
    next_order: u64,
    messages: Slots<Message>,
    by_source: Bins,
    by_tag: Bins,
    by_arrival: Chain,
}

impl Matcher {
    /// `seed` keeps peers from choosing tags that collide.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            hasher: foldhash::fast::FixedState::with_seed(seed),
            posted: Slots::default(),
            directed: Bins::new(),
            any_source: Bins::new(),
            wildcards: Chain::default(),
            wildcards_len: 0,
            next_order: 0,
            messages: Slots::default(),
            by_source: Bins::new(),
            by_tag: Bins::new(),
            by_arrival: Chain::default(),
        }
    }

    #[inline]
    fn hash(&self, context: u64, tag: u64) -> u64 {
        self.hasher.hash_one((context, tag))
    }

    #[inline]
    fn hash_directed(&self, context: u64, tag: u64, source: u32) -> u64 {
        self.hasher.hash_one((context, tag, source))
    }

    /// How many receives are posted.
    pub(crate) fn posted_len(&self) -> usize {
        self.posted.len()
    }

    /// How many messages wait for their receive.
    #[inline]
    pub(crate) fn unexpected_len(&self) -> usize {
        self.messages.len()
    }

    // ---- Arrival ----

    /// Removes and returns the oldest posted receive that accepts a message.
    #[inline]
    pub(crate) fn take_posted(&mut self, envelope: &Envelope) -> Option<u32> {
        let mut best = NONE;
        let mut best_order = u64::MAX;
        if self.directed.len > 0 {
            let hash = self.hash_directed(envelope.context, envelope.tag, envelope.source);
            self.consider(self.directed.head(hash), envelope, &mut best, &mut best_order);
        }
        if self.any_source.len > 0 {
            let hash = self.hash(envelope.context, envelope.tag);
            self.consider(self.any_source.head(hash), envelope, &mut best, &mut best_order);
        }
        if self.wildcards_len > 0 {
            self.consider(self.wildcards.head, envelope, &mut best, &mut best_order);
        }
        if best == NONE { None } else { Some(self.remove_posted(best)) }
    }

    #[inline]
    fn consider(&self, mut slot: u32, envelope: &Envelope, best: &mut u32, order: &mut u64) {
        while slot != NONE {
            let posted = self.posted.at(slot);
            if posted.selector.accepts(envelope) {
                if posted.order < *order {
                    (*best, *order) = (slot, posted.order);
                }
                return;
            }
            slot = posted.links.next;
        }
    }

    /// Keeps a message that no posted receive accepts.
    pub(crate) fn insert_unexpected(&mut self, envelope: &Envelope, message: u32) {
        let slot = self.messages.insert(Message {
            envelope: *envelope,
            message,
            by_source: Links::default(),
            by_tag: Links::default(),
            by_arrival: Links::default(),
        });
        self.by_arrival.push(&mut self.messages, slot, |m| &mut m.by_arrival);
        if self.by_source.must_grow() {
            self.rebuild_messages();
        } else {
            self.link_message(slot);
        }
    }

    fn link_message(&mut self, slot: u32) {
        let Envelope { source, context, tag } = self.messages.at(slot).envelope;
        let hash = self.hash_directed(context, tag, source);
        self.by_source.chain(hash).push(&mut self.messages, slot, |m| &mut m.by_source);
        self.by_source.len += 1;
        let hash = self.hasher.hash_one((context, tag));
        self.by_tag.chain(hash).push(&mut self.messages, slot, |m| &mut m.by_tag);
        self.by_tag.len += 1;
    }

    fn rebuild_messages(&mut self) {
        self.by_source.grow();
        self.by_tag.grow();
        let mut slot = self.by_arrival.head;
        while slot != NONE {
            self.link_message(slot);
            slot = self.messages.at(slot).by_arrival.next;
        }
    }

    // ---- Posting ----

    fn find_unexpected(&self, selector: &Selector) -> Option<u32> {
        let Selector { source, context, tag, ignore } = *selector;
        let (mut slot, links): (u32, fn(&Message) -> &Links) = match (ignore, source) {
            (0, Some(source)) => {
                (self.by_source.head(self.hash_directed(context, tag, source)), |m| &m.by_source)
            }
            (0, None) => (self.by_tag.head(self.hash(context, tag)), |m| &m.by_tag),
            _ => (self.by_arrival.head, |m| &m.by_arrival),
        };
        while slot != NONE {
            let message = self.messages.at(slot);
            if selector.accepts(&message.envelope) {
                return Some(slot);
            }
            slot = links(message).next;
        }
        None
    }

    /// Removes and returns the oldest unexpected message that a receive accepts.
    pub(crate) fn take_unexpected(&mut self, selector: &Selector) -> Option<u32> {
        let slot = self.find_unexpected(selector)?;
        Some(self.remove_message(slot))
    }

    /// The message that [`Self::take_unexpected`] would return.
    pub(crate) fn peek_unexpected(&self, selector: &Selector) -> Option<u32> {
        self.find_unexpected(selector).map(|slot| self.messages.at(slot).message)
    }

    fn remove_message(&mut self, slot: u32) -> u32 {
        let Envelope { source, context, tag } = self.messages.at(slot).envelope;
        let by_source = self.hash_directed(context, tag, source);
        let by_tag = self.hash(context, tag);
        let messages = &mut self.messages;
        self.by_source.chain(by_source).unlink(messages, slot, |m| &mut m.by_source);
        self.by_tag.chain(by_tag).unlink(messages, slot, |m| &mut m.by_tag);
        self.by_arrival.unlink(messages, slot, |m| &mut m.by_arrival);
        self.by_source.len -= 1;
        self.by_tag.len -= 1;
        self.messages.remove(slot).message
    }

    /// Posts a receive for which there is no unexpected message.
    #[inline]
    pub(crate) fn insert_posted(&mut self, selector: &Selector, receive: u32) -> PostedKey {
        let order = self.next_order;
        self.next_order += 1;
        let links = Links::default();
        let slot = self.posted.insert(Posted { selector: *selector, receive, order, links });
        if selector.ignore != 0 {
            self.wildcards.push(&mut self.posted, slot, |p| &mut p.links);
            self.wildcards_len += 1;
        } else {
            self.link_posted(slot);
        }
        PostedKey { slot, generation: self.posted.generation(slot) }
    }

    #[inline]
    fn link_posted(&mut self, slot: u32) {
        let Selector { source, context, tag, .. } = self.posted.at(slot).selector;
        let (bins, hash) = match source {
            Some(source) => (&mut self.directed, self.hasher.hash_one((context, tag, source))),
            None => (&mut self.any_source, self.hasher.hash_one((context, tag))),
        };
        if bins.must_grow() {
            self.rebuild_posted(source.is_some(), slot);
            return;
        }
        bins.chain(hash).push(&mut self.posted, slot, |p| &mut p.links);
        bins.len += 1;
    }

    fn rebuild_posted(&mut self, is_directed: bool, added: u32) {
        let bins = if is_directed { &self.directed } else { &self.any_source };
        let mut slots = Vec::with_capacity(bins.len + 1);
        for chain in &bins.chains {
            let mut slot = chain.head;
            while slot != NONE {
                slots.push(slot);
                slot = self.posted.at(slot).links.next;
            }
        }
        slots.push(added);
        // Order within a bin is the order of posting.
        slots.sort_unstable_by_key(|&slot| self.posted.at(slot).order);
        let bins = if is_directed { &mut self.directed } else { &mut self.any_source };
        bins.grow();
        for slot in slots {
            self.posted.at_mut(slot).links = Links::default();
            self.link_posted(slot);
        }
    }

    #[inline]
    fn remove_posted(&mut self, slot: u32) -> u32 {
        let Selector { source, context, tag, ignore } = self.posted.at(slot).selector;
        let posted = &mut self.posted;
        if ignore != 0 {
            self.wildcards.unlink(posted, slot, |p| &mut p.links);
            self.wildcards_len -= 1;
        } else {
            let (bins, hash) = match source {
                Some(source) => (&mut self.directed, self.hasher.hash_one((context, tag, source))),
                None => (&mut self.any_source, self.hasher.hash_one((context, tag))),
            };
            bins.chain(hash).unlink(posted, slot, |p| &mut p.links);
            bins.len -= 1;
        }
        self.posted.remove(slot).receive
    }

    /// Takes a receive back; `None` when it has matched already.
    pub(crate) fn cancel_posted(&mut self, key: PostedKey) -> Option<u32> {
        if !self.posted.is_live(key.slot, key.generation) {
            return None;
        }
        Some(self.remove_posted(key.slot))
    }

    // ---- Ends ----

    /// Removes the unexpected messages of one source, oldest first.
    pub(crate) fn drain_unexpected_from(&mut self, source: u32, f: impl FnMut(u32)) {
        self.drain_unexpected(|envelope| envelope.source == source, f);
    }

    /// Removes all unexpected messages, oldest first.
    pub(crate) fn drain_all_unexpected(&mut self, f: impl FnMut(u32)) {
        self.drain_unexpected(|_| true, f);
    }

    fn drain_unexpected(&mut self, is_hit: impl Fn(&Envelope) -> bool, mut f: impl FnMut(u32)) {
        let mut slot = self.by_arrival.head;
        while slot != NONE {
            let message = self.messages.at(slot);
            let (next, is_hit) = (message.by_arrival.next, is_hit(&message.envelope));
            if is_hit {
                f(self.remove_message(slot));
            }
            slot = next;
        }
    }

    /// Removes all posted receives, oldest first.
    pub(crate) fn drain_all_posted(&mut self, mut f: impl FnMut(u32)) {
        let mut slots: Vec<u32> = self.posted.slots().collect();
        slots.sort_unstable_by_key(|&slot| self.posted.at(slot).order);
        for slot in slots {
            f(self.remove_posted(slot));
        }
    }
}
