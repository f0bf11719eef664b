//! Connections by request and answer, peers known by a listener address alone, event queues,
//! and receives that end when no peer is left.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::common::{domain, domain_of};
use ringrail::{
    Address, Attached, ConnectionEnd, ConnectionId, ConnectionRefusal, Endpoint, EndpointOptions,
    Envelope, Error, ErrorKind, Event, EventQueue, ListenOptions, PRIVATE_DATA_MAX, Peer,
    PeerFailure, ReceiveOptions, RequestId, Selector, SendOptions, Shared,
};

/// Nothing here takes so long, however busy the machine is.
const LONG: Duration = Duration::from_secs(60);

/// An event queue and what is asked of it.
struct Events<M: Attached>(EventQueue<M>);

impl<M: Attached> Events<M> {
    fn of(endpoint: &Endpoint<M>) -> Self {
        Self(endpoint.event_queue())
    }

    /// The next event that `is_it` makes something of, while `others` make progress; those between
    /// are dropped.
    fn next<T>(&self, others: &dyn Fn(), is_it: impl Fn(Event) -> Option<T>) -> T {
        let until = Instant::now() + LONG;
        while Instant::now() < until {
            if let Some(found) = self.0.read().unwrap().and_then(&is_it) {
                return found;
            }
            others();
        }
        panic!("the event did not come");
    }

    fn request(&self, others: &dyn Fn()) -> (RequestId, Vec<u8>) {
        self.next(others, |event| match event {
            Event::ConnectionRequest { request, data, .. } => Some((request, data.to_vec())),
            _ => None,
        })
    }

    fn opened(&self, others: &dyn Fn()) -> (ConnectionId, Peer, Vec<u8>) {
        self.next(others, |event| match event {
            Event::ConnectionOpened { connection, peer, data } => {
                Some((connection, peer, data.to_vec()))
            }
            _ => None,
        })
    }

    fn refused(&self, others: &dyn Fn()) -> (ConnectionId, ConnectionRefusal, Vec<u8>) {
        self.next(others, |event| match event {
            Event::ConnectionRefused { connection, refusal, data } => {
                Some((connection, refusal, data.to_vec()))
            }
            _ => None,
        })
    }

    fn ended(&self, others: &dyn Fn()) -> (ConnectionId, ConnectionEnd) {
        self.next(others, |event| match event {
            Event::ConnectionEnded { connection, end } => Some((connection, end)),
            _ => None,
        })
    }

    fn withdrawn(&self, others: &dyn Fn()) -> (RequestId, ConnectionEnd) {
        self.next(others, |event| match event {
            Event::RequestWithdrawn { request, end } => Some((request, end)),
            _ => None,
        })
    }
}

fn go_on<M: Attached>(endpoint: &Endpoint<M>) -> impl Fn() {
    move || {
        endpoint.progress().unwrap();
    }
}

/// One message each way.
fn talk<A: Attached, B: Attached>(a: (&Endpoint<A>, Peer), b: (&Endpoint<B>, Peer)) {
    send_and_receive(a.0, a.1, b.0, b.1);
    send_and_receive(b.0, b.1, a.0, a.1);
}

fn send_and_receive<A: Attached, B: Attached>(
    from: &Endpoint<A>,
    to: Peer,
    at: &Endpoint<B>,
    source: Peer,
) {
    let envelope = Envelope::tagged(3);
    let selector = Selector::from_peer(source, envelope);
    let mut receive = at.receive(selector, vec![0; 5]).unwrap();
    let mut send = from.send(to, envelope, b"hello".to_vec(), SendOptions::new()).unwrap();
    let (mut is_sent, until) = (false, Instant::now() + LONG);
    loop {
        is_sent = is_sent || send.test().unwrap().is_some();
        if let Some(completed) = receive.test().unwrap() {
            assert_eq!((completed.status.peer, completed.status.length), (Some(source), 5));
            break;
        }
        assert!(Instant::now() < until, "the message did not come");
    }
}

/// Two engines in their own domains.
fn two_owned() -> [Endpoint<ringrail::Owned>; 2] {
    [(); 2].map(|()| domain(&[]).endpoint().unwrap().attach().unwrap())
}

fn two_shared() -> [Endpoint<Shared>; 2] {
    [(); 2].map(|()| domain(&[("lanes", "auto")]).endpoint().unwrap().share().unwrap())
}

fn connect_and_end<M: Attached>([asks, listens]: [Endpoint<M>; 2]) {
    let (asking, listening) = (Events::of(&asks), Events::of(&listens));
    let listener = listens.listen(ListenOptions::default()).unwrap();
    assert!(matches!(listens.listen(ListenOptions::default()), Err(Error::Misuse(_))));
    let (left, right) = (go_on(&asks), go_on(&listens));
    // Into the listener's own endpoint, and into another one of its engine.
    let other = listens.open_endpoint(EndpointOptions::default()).unwrap();
    for target in [&listens, &other] {
        let longest = vec![7; PRIVATE_DATA_MAX];
        let asked = asks.request(&listener.address(), &longest, LONG).unwrap();
        let (request, data) = listening.request(&left);
        assert_eq!(data, longest);
        let accepted = target.accept(&listener, request, b"accepted").unwrap();
        assert!(target.accept(&listener, request, b"again").is_err());
        let (opened, to_target, data) = asking.opened(&right);
        assert_eq!((opened, &data[..]), (asked, &b"accepted"[..]));
        assert_eq!(asks.peer_address(to_target), Some(target.address()));
        let (opened, to_asking, data) = listening.opened(&left);
        assert_eq!((opened, data), (accepted, vec![]));
        assert_eq!(target.peer_address(to_asking), Some(asks.address()));
        talk((&asks, to_target), (target, to_asking));
        // Either side ends it.
        if std::ptr::eq(target, &listens) {
            asks.shut_down(asked).unwrap();
            assert_eq!(listening.ended(&left), (accepted, ConnectionEnd::ShutDown));
        } else {
            target.shut_down(accepted).unwrap();
            assert_eq!(asking.ended(&right), (asked, ConnectionEnd::ShutDown));
        }
        assert!(asks.shut_down(asked).is_err() && target.shut_down(accepted).is_err());
    }
    let too_long = vec![0; PRIVATE_DATA_MAX + 1];
    assert!(matches!(asks.request(&listener.address(), &too_long, LONG), Err(Error::Misuse(_))));
}

/// RR-REQ-1
#[test]
fn a_request_is_accepted_and_both_sides_talk_until_one_shuts_down() {
    connect_and_end(two_owned());
}

/// RR-REQ-1
#[test]
fn shared_endpoints_connect_by_request_as_well() {
    connect_and_end(two_shared());
}

#[test]
fn a_request_is_accepted_into_an_endpoint_of_another_engine() {
    let [asks, listens] = two_owned();
    let works = domain(&[]).endpoint().unwrap().attach().unwrap();
    let (asking, listening, working) =
        (Events::of(&asks), Events::of(&listens), Events::of(&works));
    let listener = listens.listen(ListenOptions::default()).unwrap();
    let asked = asks.request(&listener.address(), b"", LONG).unwrap();
    let (request, _) = listening.request(&go_on(&asks));
    let accepted = works.accept(&listener, request, b"over there").unwrap();
    let both = || {
        go_on(&listens)();
        go_on(&works)();
    };
    let (opened, to_worker, _) = asking.opened(&both);
    assert_eq!(opened, asked);
    assert_eq!(asks.peer_address(to_worker), Some(works.address()));
    let (opened, to_asking, _) = working.opened(&go_on(&asks));
    assert_eq!(opened, accepted);
    talk((&asks, to_worker), (&works, to_asking));
    works.shut_down(accepted).unwrap();
    assert_eq!(asking.ended(&go_on(&works)), (asked, ConnectionEnd::ShutDown));
}

/// RR-REQ-1
#[test]
fn requests_are_rejected_with_a_reason_and_data() {
    let [asks, listens] = two_owned();
    let (asking, listening) = (Events::of(&asks), Events::of(&listens));
    // Without a listener.
    let first = asks.request(&listens.address(), b"", LONG).unwrap();
    let right = go_on(&listens);
    assert_eq!(asking.refused(&right), (first, ConnectionRefusal::NotListening, vec![]));
    let listener = listens.listen(ListenOptions::default()).unwrap();
    let second = asks.request(&listener.address(), b"please", LONG).unwrap();
    let (request, data) = listening.request(&go_on(&asks));
    assert_eq!(data, b"please");
    listener.reject(request, b"no").unwrap();
    assert!(listener.reject(request, b"no").is_err());
    assert_eq!(asking.refused(&right), (second, ConnectionRefusal::Rejected, b"no".to_vec()));
    // A listener that goes refuses what waits.
    let third = asks.request(&listener.address(), b"", LONG).unwrap();
    listening.request(&go_on(&asks));
    drop(listener);
    assert_eq!(asking.refused(&right), (third, ConnectionRefusal::NotListening, vec![]));
}

/// RR-REQ-2
#[test]
fn ten_thousand_unanswered_requests_are_bounded_and_refused() {
    const MANY: usize = 10_000;
    const BACKLOG: usize = 16;
    let [asks, listens] = two_owned();
    let (asking, listening) = (Events::of(&asks), Events::of(&listens));
    let options = ListenOptions { backlog: BACKLOG, ..ListenOptions::default() };
    let listener = listens.listen(options).unwrap();
    let (mut asked, mut refused, mut seen) = (0, 0, Vec::new());
    let until = Instant::now() + 3 * LONG;
    while refused < MANY - BACKLOG || seen.len() < BACKLOG {
        assert!(Instant::now() < until, "{asked} asked, {refused} refused, {} seen", seen.len());
        if asked < MANY && asked - refused < 512 {
            asks.request(&listener.address(), &[1; 100], 10 * LONG).unwrap();
            asked += 1;
        }
        while let Some(event) = asking.0.read().unwrap() {
            if let Event::ConnectionRefused { refusal, .. } = event {
                assert_eq!(refusal, ConnectionRefusal::Busy);
                refused += 1;
            }
        }
        while let Some(event) = listening.0.read().unwrap() {
            if let Event::ConnectionRequest { request, .. } = event {
                seen.push(request);
            }
        }
    }
    assert_eq!((asked, refused, seen.len()), (MANY, MANY - BACKLOG, BACKLOG));
    // One that is answered makes room for one.
    listener.reject(seen[0], b"").unwrap();
    assert_eq!(asking.refused(&go_on(&listens)).1, ConnectionRefusal::Rejected);
    asks.request(&listener.address(), b"next", LONG).unwrap();
    assert_eq!(listening.request(&go_on(&asks)).1, b"next");
}

/// RR-REQ-2
#[test]
fn a_request_that_finds_the_event_queue_full_is_refused_and_not_lost() {
    let [asks, listens] = two_owned();
    let queue = listens.open_event_queue(1);
    let quiet = listens
        .open_endpoint(EndpointOptions { event_queue: Some(&queue), ..Default::default() })
        .unwrap();
    let listener = quiet.listen(ListenOptions::default()).unwrap();
    let asking = Events::of(&asks);
    // The first event is the session.
    let asked = asks.request(&listener.address(), b"", LONG).unwrap();
    assert_eq!(asking.refused(&go_on(&listens)), (asked, ConnectionRefusal::Busy, vec![]));
    let events = Events(queue);
    assert!(matches!(events.0.read().unwrap(), Some(Event::Connected { .. })));
    asks.request(&listener.address(), b"now", LONG).unwrap();
    assert_eq!(events.request(&go_on(&asks)).1, b"now");
}

/// RR-REQ-3
#[test]
fn a_request_ends_in_time_on_both_sides_and_is_accepted_no_more() {
    let [asks, listens] = two_owned();
    let (asking, listening) = (Events::of(&asks), Events::of(&listens));
    let listener = listens.listen(ListenOptions::default()).unwrap();
    let asked = asks.request(&listener.address(), b"", Duration::from_millis(200)).unwrap();
    let (request, _) = listening.request(&go_on(&asks));
    assert_eq!(asking.ended(&go_on(&listens)), (asked, ConnectionEnd::TimedOut));
    assert_eq!(listening.withdrawn(&go_on(&asks)), (request, ConnectionEnd::TimedOut));
    assert!(listens.accept(&listener, request, b"").is_err());
    // The listener's user has its own time.
    drop(listener);
    let answer_timeout = Duration::from_millis(100);
    let listener = listens.listen(ListenOptions { answer_timeout, ..Default::default() }).unwrap();
    let asked = asks.request(&listener.address(), b"", LONG).unwrap();
    let (request, _) = listening.request(&go_on(&asks));
    assert_eq!(listening.withdrawn(&go_on(&asks)), (request, ConnectionEnd::TimedOut));
    assert_eq!(asking.refused(&go_on(&listens)), (asked, ConnectionRefusal::TimedOut, vec![]));
}

#[test]
fn who_asked_is_gone_when_the_request_is_accepted() {
    let [asks, listens] = two_owned();
    let listening = Events::of(&listens);
    let listener = listens.listen(ListenOptions::default()).unwrap();
    asks.request(&listener.address(), b"", LONG).unwrap();
    let (request, _) = listening.request(&go_on(&asks));
    drop(asks);
    let (gone, end) = listening.withdrawn(&|| {});
    assert_eq!(gone, request);
    let is_gone = matches!(end, ConnectionEnd::Peer(PeerFailure::Left) | ConnectionEnd::TimedOut);
    assert!(is_gone, "{end:?}");
    assert!(listens.accept(&listener, request, b"").is_err());
}

#[test]
fn a_listener_that_is_nowhere_ends_the_request() {
    let asks = domain(&[("connect_retries", "0"), ("connect_timeout", "500ms")]);
    let asks = asks.endpoint().unwrap().attach().unwrap();
    let gone = domain(&[]).endpoint().unwrap().address();
    let asked = asks.request(&gone, b"", LONG).unwrap();
    let (ended, end) = Events::of(&asks).ended(&|| {});
    assert_eq!(ended, asked);
    let is_named = matches!(end, ConnectionEnd::Peer(PeerFailure::Unreachable { .. }));
    assert!(is_named, "{end:?}");
}

// ---- Places ----

fn place_of(address: &Address) -> Address {
    Address::from_listener(address.locator()).unwrap()
}

/// RR-CONN-7
#[test]
fn a_listener_address_is_a_peer_like_any_other() {
    let [asks, listens] = two_owned();
    let place = place_of(&listens.address());
    let peer = asks.insert_peer(&place).unwrap();
    assert_eq!(asks.peer_address(peer), Some(place));
    assert_eq!(asks.insert_peer(&place).unwrap(), peer);
    let back = listens.insert_peer(&asks.address()).unwrap();
    talk((&asks, peer), (&listens, back));
    assert_eq!(asks.peer_address(peer), Some(listens.address()));
    assert_eq!(
        asks.insert_peer(&listens.address()).unwrap(),
        peer,
        "it is the same by its own address"
    );
    assert_eq!(asks.insert_peer(&place).unwrap(), peer);
    // No connection was refused.
    let events = Events::of(&listens).0;
    while let Some(event) = events.read().unwrap() {
        assert!(matches!(event, Event::Connected { .. }), "{event:?}");
    }
}

/// RR-CONN-7
#[test]
fn a_request_goes_to_a_place() {
    let [asks, listens] = two_owned();
    let listener = listens.listen(ListenOptions::default()).unwrap();
    let asked = asks.request(&place_of(&listener.address()), b"hello", LONG).unwrap();
    let (request, data) = Events::of(&listens).request(&go_on(&asks));
    assert_eq!(data, b"hello");
    listens.accept(&listener, request, b"").unwrap();
    let (opened, peer, _) = Events::of(&asks).opened(&go_on(&listens));
    assert_eq!((opened, asks.peer_address(peer)), (asked, Some(listens.address())));
}

/// RR-CONN-7
#[test]
fn a_place_whose_engine_has_connected_already_leads_to_that_session() {
    let [asks, listens] = two_owned();
    // The other side's own session; nothing has come by it, so that its endpoint is not known.
    let back = listens.insert_peer(&asks.address()).unwrap();
    let deadline = Instant::now() + LONG;
    while listens.connect(back, Some(Duration::from_millis(5))).is_err() {
        asks.progress().unwrap();
        assert!(Instant::now() < deadline);
    }
    Events::of(&asks)
        .next(&go_on(&listens), |event| matches!(event, Event::Connected { .. }).then_some(()));
    let peer = asks.insert_peer(&place_of(&listens.address())).unwrap();
    talk((&asks, peer), (&listens, back));
    assert_eq!(asks.peer_address(peer), Some(listens.address()));
}

/// RR-CONN-7
#[test]
fn a_place_whose_endpoint_is_a_peer_already_has_the_handle_of_that() {
    let [asks, listens] = two_owned();
    let known = asks.insert_peer(&listens.address()).unwrap();
    assert_eq!(asks.insert_peer(&place_of(&listens.address())).unwrap(), known);
    let back = listens.insert_peer(&asks.address()).unwrap();
    talk((&asks, known), (&listens, back));
}

/// RR-CONN-7
#[test]
fn both_sides_know_each_other_by_their_places() {
    let [asks, listens] = two_owned();
    let peer = asks.insert_peer(&place_of(&listens.address())).unwrap();
    let back = listens.insert_peer(&place_of(&asks.address())).unwrap();
    talk((&asks, peer), (&listens, back));
    assert_eq!(asks.peer_address(peer), Some(listens.address()));
    assert_eq!(listens.peer_address(back), Some(asks.address()));
}

/// RR-CONN-7, RR-AUTH-10
#[test]
fn a_place_of_another_job_is_not_believed() {
    let asks = domain(&[("connect_retries", "0")]).endpoint().unwrap().attach().unwrap();
    let other = domain_of(Some(b"a secret that is not of this job"), &[]);
    let other = other.endpoint().unwrap().attach().unwrap();
    let peer = asks.insert_peer(&place_of(&other.address())).unwrap();
    let until = Instant::now() + LONG;
    let error = loop {
        match asks.connect(peer, Some(Duration::from_millis(5))) {
            Ok(()) => panic!("connected without the secret"),
            Err(Error::TimedOut(_)) => assert!(Instant::now() < until),
            Err(error) => break error,
        }
        other.progress().unwrap();
    };
    assert_eq!(error.kind(), ErrorKind::WrongSecret, "{error}");
}

/// RR-CONN-7
#[test]
fn a_place_means_the_engine_that_listens_there_after_a_restart() {
    let asks = domain(&[]).endpoint().unwrap().attach().unwrap();
    let first = domain(&[]).endpoint().unwrap();
    let port = NonZeroU16::new(first.address().locator().port()).unwrap();
    let place = place_of(&first.address());
    let peer = asks.insert_peer(&place).unwrap();
    let first = first.attach().unwrap();
    let back = first.insert_peer(&asks.address()).unwrap();
    talk((&asks, peer), (&first, back));
    let old = first.address();
    drop(first);
    let events = Events::of(&asks);
    events.next(&|| {}, |event| matches!(event, Event::Disconnected { .. }).then_some(()));
    // The port is free again when the last connection of the old engine is.
    let until = Instant::now() + LONG;
    let second = loop {
        match domain(&[]).endpoint_at(port) {
            Ok(endpoint) => break endpoint.attach().unwrap(),
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
    };
    assert_eq!(second.address().locator(), old.locator());
    while asks.connect(peer, Some(Duration::from_millis(5))).is_err() {
        second.progress().unwrap();
        assert!(Instant::now() < until);
    }
    let back = second.insert_peer(&asks.address()).unwrap();
    talk((&asks, peer), (&second, back));
    assert_eq!(asks.peer_address(peer), Some(second.address()));
}

#[test]
fn a_place_that_is_taken_is_named() {
    let first = domain(&[]).endpoint().unwrap();
    let port = NonZeroU16::new(first.address().locator().port()).unwrap();
    let error = domain(&[]).endpoint_at(port).unwrap_err();
    let is_named = error.to_string().contains(&format!("{port}-{port} at 127.0.0.1 is taken"));
    assert!(error.kind() == ErrorKind::System && is_named, "{error}");
    let unspecified = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7000));
    assert!(Address::from_listener(unspecified).is_err());
}

// ---- Event queues ----

#[test]
fn an_event_queue_waits_sleeps_and_wakes_tasks() {
    let [left, right] = two_shared();
    let queue = left.event_queue();
    assert!(queue.wait(Some(Duration::from_millis(1))).unwrap().is_none());
    assert!(queue.arm().unwrap());
    let mut next = pin!(queue.next());
    let mut context = Context::from_waker(Waker::noop());
    assert!(next.as_mut().poll(&mut context).is_pending());
    let peer = right.insert_peer(&left.address()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| right.connect(peer, Some(LONG)).unwrap());
        let until = Instant::now() + LONG;
        loop {
            if let Poll::Ready(event) = next.as_mut().poll(&mut context) {
                assert!(matches!(event.unwrap(), Event::Connected { .. }));
                break;
            }
            assert!(Instant::now() < until);
        }
    });
    drop(right);
    let gone = queue.wait(Some(LONG)).unwrap();
    assert!(matches!(gone, Some(Event::Disconnected { .. })), "{gone:?}");
    assert_eq!(queue.lost(), 0);
    let clone = queue.clone();
    drop(queue);
    assert!(clone.read().unwrap().is_none() && left.next_event().is_none());
}

#[test]
fn a_queue_of_another_engine_is_refused() {
    let [left, right] = two_owned();
    let queue = left.open_event_queue(4);
    let options = EndpointOptions { event_queue: Some(&queue), ..Default::default() };
    assert!(matches!(right.open_endpoint(options), Err(Error::Misuse(_))));
}

// ---- Receives without a peer left ----

fn lose_all<M: Attached>([stays, goes]: [Endpoint<M>; 2]) {
    let any = Selector::from_any(Envelope::tagged(9));
    stays.fail_without_peers(true);
    // No peer is known: it waits.
    let mut early = stays.receive(any, vec![0; 8]).unwrap();
    assert!(early.test().unwrap().is_none());
    let peer = stays.insert_peer(&goes.address()).unwrap();
    let back = goes.insert_peer(&stays.address()).unwrap();
    talk((&stays, peer), (&goes, back));
    let queue = stays.receive_queue();
    stays.post_receive_many(any, vec![0; 64], 8, ReceiveOptions::new()).unwrap();
    drop(goes);
    let until = Instant::now() + LONG;
    let failed = loop {
        match early.test() {
            Ok(None) => assert!(Instant::now() < until),
            Ok(Some(_)) => panic!("no peer sent"),
            Err(failed) => break failed,
        }
    };
    assert_eq!((failed.error.kind(), failed.buffer.len()), (ErrorKind::NoPeerLeft, 8));
    let mut ended = Vec::new();
    queue.wait(&mut ended, 1, Some(LONG)).unwrap();
    assert!(matches!(ended[0].result, Err(Error::NoPeerLeft)) && ended[0].buffer.is_some());
    // While there is no peer, at once.
    let mut buffer = [0; 4];
    let options = ReceiveOptions::new().timeout(LONG);
    let error = stays.receive_blocking(any, &mut buffer, options).unwrap_err();
    assert!(matches!(error, Error::NoPeerLeft), "{error}");
    // There is another peer.
    let other = domain(&[]).endpoint().unwrap().attach().unwrap();
    let peer = stays.insert_peer(&other.address()).unwrap();
    let back = other.insert_peer(&stays.address()).unwrap();
    talk((&stays, peer), (&other, back));
    let mut receive = stays.receive(any, vec![0; 8]).unwrap();
    assert!(receive.test().unwrap().is_none());
    // Removed, not lost; those who have left are known still.
    stays.remove_peer(peer).unwrap();
    assert_eq!(receive.test().unwrap_err().error.kind(), ErrorKind::NoPeerLeft);
    stays.fail_without_peers(false);
    let mut receive = stays.receive(any, vec![0; 8]).unwrap();
    assert!(receive.test().unwrap().is_none());
}

#[test]
fn a_receive_from_any_source_ends_when_no_peer_is_left() {
    lose_all(two_owned());
}

#[test]
fn a_receive_from_any_source_at_a_shared_endpoint_ends_when_no_peer_is_left() {
    lose_all(two_shared());
}

#[test]
fn an_endpoint_that_did_not_ask_for_it_waits_on() {
    let [stays, goes] = two_owned();
    let asks = EndpointOptions { fail_without_peers: true, ..Default::default() };
    let other = stays.open_endpoint(asks).unwrap();
    let peer = stays.insert_peer(&goes.address()).unwrap();
    let back = goes.insert_peer(&stays.address()).unwrap();
    talk((&stays, peer), (&goes, back));
    let any = Selector::from_any(Envelope::UNTAGGED);
    let mut waits = stays.receive(any, vec![0; 8]).unwrap();
    let mut ends = other.receive(any, vec![0; 8]).unwrap();
    assert!(waits.test().unwrap().is_none() && ends.test().unwrap().is_none());
    drop(goes);
    let until = Instant::now() + LONG;
    while ends.test().is_ok() {
        assert!(Instant::now() < until);
    }
    assert!(waits.test().unwrap().is_none());
}
