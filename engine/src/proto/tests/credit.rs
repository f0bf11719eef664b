//! Credit that sends wait for.

use super::*;

/// A peer of many begins with little, and gives more later.
///
/// RR-CREDIT-1
#[test]
fn a_message_goes_at_once_where_the_window_has_grown_enough_for_it() {
    let mut bench = Bench::new(Config::for_tests());
    bench.core.sessions.at_mut(bench.slot as usize).unwrap().segments_mut().forget_window();
    let request = bench.request(100, CompletionLevel::Inject, Hint::None);
    assert!(!bench.core.needs_operation(&request), "credit has grown to 3000 bytes");
    bench.send(950, CompletionLevel::Inject);
    bench.send(1000, CompletionLevel::Inject);
    bench.transmit();
    let long = bench.request(1000, CompletionLevel::Inject, Hint::None);
    assert!(!bench.core.needs_operation(&long), "1050 bytes are left");
    bench.announce(5, 3000);
    bench.send(1000, CompletionLevel::Inject);
    bench.transmit();
    assert!(bench.core.needs_operation(&request), "50 bytes are left, and no more may come");
}

/// RR-CREDIT-5
#[test]
fn what_an_attempt_to_connect_gives_back_extends_windows_that_met_the_bound() {
    let config = Config { envelope_credits: 16, unexpected_messages: 400, ..Config::for_tests() };
    let mut bench = Bench::new(config);
    let engines = 100..124;
    for engine in engines.clone() {
        bench.core.shared_mut().offer_to(engine, engine);
    }
    let window = |bench: &Bench| {
        bench.core.sessions.at(bench.slot as usize).unwrap().segments().receive_credits().both()[0]
            .window()
    };
    for _ in 0..16 {
        bench.deliver(&eager(0, 0, 0)).unwrap();
    }
    assert_eq!(window(&bench), 16, "all that is left was offered to others");
    bench.core.end_offer_to(engines.start);
    assert_eq!(window(&bench), 24, "half of what is free");
}

/// A message of a closed session that is received at last gives little back: where it visited all
/// sessions, an engine of many took long for each.
///
/// RR-CREDIT-5
#[test]
fn what_is_given_back_visits_only_sessions_with_low_windows() {
    let config = Config { envelope_credits: 16, unexpected_messages: 400, ..Config::for_tests() };
    let mut bench = Bench::new(config);
    for engine in 100..124 {
        bench.core.shared_mut().offer_to(engine, engine);
    }
    assert_eq!(bench.core.shared().offers().low(), [] as [u32; 0]);
    for _ in 0..16 {
        bench.deliver(&eager(0, 0, 0)).unwrap();
    }
    assert_eq!(bench.core.shared().offers().low(), [bench.slot]);
    // Nothing is free: the session is not even looked at, and waits for more.
    bench.core.extend_others();
    assert_eq!(bench.core.shared().offers().low(), [bench.slot]);
    bench.core.end_offer_to(100);
    assert_eq!(bench.core.shared().offers().low(), [] as [u32; 0], "8 of 24 are left");
}

/// RR-CREDIT-5
#[test]
fn window_shrinks_as_the_messages_that_it_grew_for_are_received() {
    let config = Config { envelope_credits: 16, unexpected_messages: 4000, ..Config::for_tests() };
    let mut bench = Bench::new(config);
    let window = |bench: &Bench| {
        bench.core.sessions.at(bench.slot as usize).unwrap().segments().receive_credits().both()[0]
            .window()
    };
    let mut held = 0;
    while window(&bench) < 200 {
        bench.deliver(&eager(0, 0, 0)).unwrap();
        bench.transmit();
        held += 1;
    }
    for _ in 0..held {
        bench.receive(0);
    }
    // The peer may still use what was announced.
    for _ in 0..200 {
        bench.deliver(&eager(0, 0, 0)).unwrap();
        bench.receive(0);
        bench.transmit();
    }
    assert_eq!((window(&bench), bench.core.shared().reserved().0), (16, 16));
}

impl Core {
    /// Ends the offer of a connection that has failed.
    fn end_offer_to(&mut self, engine: u64) {
        if self.shared.offers.end(engine) {
            self.extend_others();
        }
    }
}
