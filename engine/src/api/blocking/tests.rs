//! What a driver that fails does to calls and operations.

use super::*;
use crate::settings::Settings;
use crate::{Domain, ErrorKind, Hint, OperationKind};

fn domain(lanes: &str) -> Domain {
    let settings = Settings::isolated().set("listen_address", "127.0.0.1").set("lanes", lanes);
    Domain::with_settings(settings.insecure(true).build().unwrap()).unwrap()
}

fn names_the_cause(error: &Error) -> bool {
    matches!(error, Error::System { .. })
}

/// The driver of one side fails after so many turns of an exchange: all of its operations end with
/// the cause, and its calls return.
fn fail_after<M: Attached>(turns: usize, end: &Endpoint<M>, other: &Endpoint<M>) {
    let (to, from) =
        (end.insert_peer(&other.address()).unwrap(), other.insert_peer(&end.address()).unwrap());
    let tag = Envelope::tagged;
    let options = SendOptions::new().hint(Hint::Bulk);
    let long = vec![5u8; 300_000];
    let _theirs = other.send(from, tag(1), long.clone(), options).unwrap();
    let mut sent = end.send(to, tag(2), long, options).unwrap();
    let mut got = end.receive(Selector::from_any(tag(1)), vec![0; 300_000]).unwrap();
    let never = ReceiveOptions::new().user_data(7);
    end.post_receive(Selector::from_any(tag(9)), vec![0; 8], never).unwrap();
    for _ in 0..turns {
        end.progress().unwrap();
        other.progress().unwrap();
    }
    end.open().engine.with(|engine| engine.stop_driver());
    let mut into = [0; 8];
    let refused =
        end.receive_blocking(Selector::from_any(tag(8)), &mut into, ReceiveOptions::new());
    assert!(names_the_cause(&refused.unwrap_err()), "a blocking call returns with the cause");
    let refused =
        end.send_blocking(to, tag(3), &into, SendOptions::at(crate::CompletionLevel::Match));
    assert!(refused.is_err(), "no session goes on");
    for operation in [&mut sent, &mut got] {
        let engine = &end.open().engine;
        let _ = engine.with(Engine::progress);
        if let Err(failed) = operation.test() {
            assert!(names_the_cause(&failed.error), "{}", failed.error);
        }
    }
    let mut ended = Vec::new();
    assert_eq!(end.completions(&mut ended, 9).unwrap_err().kind(), ErrorKind::System);
    let queues = end.open();
    queues.engine.read_queue(&queues.queues.receive, &mut ended, 9);
    let [ended] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!((ended.user_data, ended.kind), (7, OperationKind::Receive));
    assert!(names_the_cause(ended.result.as_ref().unwrap_err()));
}

#[test]
fn a_driver_that_fails_ends_everything_and_aborts_nothing() {
    for turns in (0..40).step_by(3) {
        for lanes in ["sockets", "auto"] {
            let domain = domain(lanes);
            let owned = || domain.endpoint().unwrap().attach().unwrap();
            fail_after(turns, &owned(), &owned());
        }
        let domain = domain("sockets");
        let shared = || domain.endpoint().unwrap().share().unwrap();
        fail_after(turns, &shared(), &shared());
    }
}
