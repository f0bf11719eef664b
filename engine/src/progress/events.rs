//! Event queues: events of an engine other than completions.
//!
//! Each endpoint reports to one queue, the engine's first unless another one was bound. Events of
//! the engine (peers, paths, refused connections) go to every queue that an endpoint reports to;
//! events of a connection go to the queue of its endpoint.

use std::collections::{HashMap, VecDeque};

use crate::types::Event;

/// Entries of the engine's first queue.
const FIRST_MAX: usize = 4096;
/// The engine's first queue.
pub(crate) const FIRST: u32 = 0;

#[derive(Debug, Default)]
struct QueuedEvents {
    entries: VecDeque<Event>,
    entries_max: usize,
    /// Events dropped for lack of space.
    lost: u64,
    /// Objects that name it.
    users: u32,
    /// Endpoints that report to it.
    reporters: u32,
}

impl QueuedEvents {
    /// Adds an event of the engine. If the queue is full the oldest are dropped; those that report
    /// peers last, since flapping paths would displace them.
    fn push_engine_event(&mut self, event: &Event) {
        while self.entries.len() >= self.entries_max {
            let minor = |it: &Event| !it.is_of_session() && !it.is_of_connection();
            let least = self.entries.iter().position(minor);
            let of_engine = || self.entries.iter().position(|it| !it.is_of_connection());
            self.lost += 1;
            match least.or_else(of_engine) {
                Some(at) => self.entries.remove(at),
                None => return,
            };
        }
        self.entries.push_back(event.clone());
    }
}

/// All queues of an engine.
#[derive(Debug)]
pub(crate) struct EventQueues {
    queues: Vec<QueuedEvents>,
    /// Endpoints that report to another queue than the first.
    elsewhere: HashMap<u16, u32>,
}

impl EventQueues {
    pub(crate) fn new() -> Self {
        // The engine itself reports to it, and keeps it open.
        let first = QueuedEvents {
            entries_max: FIRST_MAX,
            users: 1,
            reporters: 1,
            ..QueuedEvents::default()
        };
        Self { queues: vec![first], elsewhere: HashMap::new() }
    }

    /// Opens a queue with one user and space for `entries_max` entries.
    pub(crate) fn open(&mut self, entries_max: usize) -> u32 {
        let is_free = |queue: &QueuedEvents| queue.users == 0 && queue.reporters == 0;
        let index = self.queues.iter().position(is_free).unwrap_or_else(|| {
            self.queues.push(QueuedEvents::default());
            self.queues.len() - 1
        });
        self.queues[index] = QueuedEvents { users: 1, entries_max, ..QueuedEvents::default() };
        index as u32
    }

    /// Adds a user to a queue.
    pub(crate) fn share(&mut self, queue: u32) {
        self.queues[queue as usize].users += 1;
    }

    /// Removes a user of a queue. Entries without a reader are dropped.
    pub(crate) fn close(&mut self, queue: u32) {
        let queue = &mut self.queues[queue as usize];
        queue.users -= 1;
        if queue.users == 0 && queue.reporters == 0 {
            queue.entries = VecDeque::new();
        }
    }

    /// Lets an endpoint report to a queue.
    pub(crate) fn bind(&mut self, endpoint: u16, queue: u32) {
        self.unbind(endpoint);
        if queue != FIRST {
            self.queues[queue as usize].reporters += 1;
            self.elsewhere.insert(endpoint, queue);
        }
    }

    /// Removes a closed endpoint.
    pub(crate) fn unbind(&mut self, endpoint: u16) {
        if let Some(queue) = self.elsewhere.remove(&endpoint) {
            let queue = &mut self.queues[queue as usize];
            queue.reporters -= 1;
            if queue.users == 0 && queue.reporters == 0 {
                queue.entries = VecDeque::new();
            }
        }
    }

    /// Returns the queue that an endpoint reports to.
    pub(crate) fn of_endpoint(&self, endpoint: u16) -> u32 {
        self.elsewhere.get(&endpoint).copied().unwrap_or(FIRST)
    }

    /// Reports an event of the engine.
    pub(crate) fn push(&mut self, event: &Event) {
        for queue in self.queues.iter_mut().filter(|queue| queue.reporters > 0) {
            queue.push_engine_event(event);
        }
    }

    /// Reports an event of an endpoint's connection: never dropped, and so bounded by the number of
    /// connections. Check [`Self::has_room`] before accepting a request.
    pub(crate) fn push_to_endpoint(&mut self, endpoint: u16, event: Event) {
        let queue = self.of_endpoint(endpoint);
        self.queues[queue as usize].entries.push_back(event);
    }

    /// Returns whether the queue of an endpoint has space for a request that can be rejected
    /// instead.
    pub(crate) fn has_room(&self, endpoint: u16) -> bool {
        let queue = &self.queues[self.of_endpoint(endpoint) as usize];
        queue.entries.len() < queue.entries_max
    }

    /// Takes the oldest entry of a queue.
    pub(crate) fn pop(&mut self, queue: u32) -> Option<Event> {
        self.queues.get_mut(queue as usize)?.entries.pop_front()
    }

    /// Returns whether a queue is empty.
    pub(crate) fn is_empty(&self, queue: u32) -> bool {
        self.queues.get(queue as usize).is_none_or(|queue| queue.entries.is_empty())
    }

    /// Returns how many events of the engine a queue has dropped.
    pub(crate) fn lost(&self, queue: u32) -> u64 {
        self.queues.get(queue as usize).map_or(0, |queue| queue.lost)
    }

    /// Returns the entries of the engine's first queue.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn first(&mut self) -> &mut VecDeque<Event> {
        &mut self.queues[FIRST as usize].entries
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::proto::table::Id;
    use crate::types::{Address, ConnectionEnd, PathCause, PathState, RequestId};

    fn address() -> Address {
        Address::new(1, SocketAddr::from(([10, 0, 0, 1], 1)), 0)
    }

    fn flap(rail: usize) -> Event {
        let (state, cause) = (PathState::Down, PathCause::NoLink);
        let address = address();
        Event::PathChanged { address, rail, remote: address.locator().ip(), state, cause }
    }

    fn is_peer_event(event: &Event) -> bool {
        matches!(event, Event::Connected { .. })
    }

    fn withdrawn() -> Event {
        let request = RequestId(Id::from_u64(7));
        Event::RequestWithdrawn { request, end: ConnectionEnd::TimedOut }
    }

    #[test]
    fn path_flaps_do_not_displace_peer_events() {
        let mut events = EventQueues::new();
        events.push(&Event::Connected { address: address() });
        (0..2 * FIRST_MAX).for_each(|rail| events.push(&flap(rail)));
        assert_eq!(events.first().len(), FIRST_MAX);
        assert!(is_peer_event(&events.first()[0]));
        let oldest = &events.first()[1];
        let kept_from = FIRST_MAX + 1;
        assert!(matches!(oldest, Event::PathChanged { rail, .. } if *rail == kept_from));
        (0..FIRST_MAX + 1).for_each(|_| events.push(&Event::Connected { address: address() }));
        assert!(events.first().len() == FIRST_MAX && events.first().iter().all(is_peer_event));
        assert_eq!(events.lost(FIRST), (2 * FIRST_MAX + 2) as u64);
    }

    #[test]
    fn connection_events_are_never_dropped_and_other_drops_are_counted() {
        let mut events = EventQueues::new();
        let queue = events.open(3);
        events.bind(5, queue);
        assert!(events.has_room(5));
        (0..4).for_each(|_| events.push_to_endpoint(5, withdrawn()));
        assert!(!events.has_room(5) && events.has_room(4));
        events.push(&Event::Connected { address: address() });
        assert_eq!((events.lost(queue), events.lost(FIRST)), (1, 0));
        for _ in 0..4 {
            assert!(matches!(events.pop(queue), Some(Event::RequestWithdrawn { .. })));
        }
        assert!(events.is_empty(queue) && events.pop(queue).is_none());
        assert!(events.pop(FIRST).is_some_and(|event| is_peer_event(&event)));
    }

    #[test]
    fn each_bound_queue_gets_events_until_its_last_user_leaves() {
        let mut events = EventQueues::new();
        let (bound, unbound) = (events.open(9), events.open(9));
        events.bind(1, bound);
        events.push(&Event::Connected { address: address() });
        assert!(!events.is_empty(bound) && events.is_empty(unbound) && !events.is_empty(FIRST));
        events.share(bound);
        events.close(bound);
        events.unbind(1);
        assert!(!events.is_empty(bound), "it has a user");
        assert_eq!(events.of_endpoint(1), FIRST);
        events.close(bound);
        assert_eq!(events.open(1), bound);
        assert!(events.is_empty(bound));
    }
}
