//! Credit that sends wait for.

use super::*;

/// A peer of many begins with little, and gives more later.
///
/// RR-CREDIT-1
#[test]
fn a_message_goes_at_once_where_the_window_has_grown_enough_for_it() {
    let mut bench = Bench::new(Config::for_tests());
    bench.core.sessions.at_mut(bench.slot as usize).unwrap().eager_window = 0;
    let request = bench.request(100, CompletionLevel::Inject, Hint::None);
    assert!(!bench.core.needs_operation(&request), "credit has grown to 3000 bytes");
    bench.send(950, CompletionLevel::Inject);
    bench.send(1000, CompletionLevel::Inject);
    bench.hear();
    let long = bench.request(1000, CompletionLevel::Inject, Hint::None);
    assert!(!bench.core.needs_operation(&long), "1050 bytes are left");
    let more = bench.segment(0, &[], (5, 3000));
    bench.handle(&more).unwrap();
    bench.send(1000, CompletionLevel::Inject);
    bench.hear();
    assert!(bench.core.needs_operation(&request), "50 bytes are left, and no more may come");
}
