//! Sleeping until an endpoint has something: by a descriptor, and in futures.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::domain;
use ringrail::{
    Attached, Completion, Endpoint, Envelope, Owned, ReceiveOptions, Selector, SendOptions, Shared,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const TAG: Envelope = Envelope::tagged(1);
/// Longer than anything takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

/// Sleeps as an event loop does, and counts how often it was woken.
fn sleep_for<M: Attached>(endpoint: &Endpoint<M>, done: &mut Vec<Completion>) -> u32 {
    let begin = Instant::now();
    for wakes in 0.. {
        assert!(begin.elapsed() < LIMIT, "{wakes} wakes");
        if endpoint.completions(done, 16).unwrap() > 0 {
            return wakes;
        }
        if endpoint.arm().unwrap() {
            let fd = endpoint.wait_fd().unwrap();
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::try_from(LIMIT).unwrap())).unwrap();
        }
    }
    unreachable!()
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// A partner that answers each message after a rest.
fn with_slow_partner<M: Attached>(
    lanes: &[(&str, &str)],
    rests: &'static [u64],
    endpoint: impl FnOnce() -> Endpoint<M>,
    talk: impl FnOnce(&Endpoint<M>, ringrail::Peer),
) {
    let partner = domain(lanes).endpoint().unwrap();
    let address = partner.address();
    let (sender, receiver) = std::sync::mpsc::channel();
    let answers = thread::spawn(move || {
        let partner = partner.attach().unwrap();
        let peer = partner.insert_peer(&receiver.recv().unwrap()).unwrap();
        for &rest in rests {
            let mut into = [0; 8];
            let options = ReceiveOptions::new().timeout(LIMIT);
            partner.receive_blocking(Selector::from_peer(peer, TAG), &mut into, options).unwrap();
            thread::sleep(Duration::from_millis(rest));
            let options = SendOptions::at(ringrail::CompletionLevel::Delivery);
            partner.send_blocking(peer, TAG, &into, options).unwrap();
        }
        let options = ReceiveOptions::new().timeout(LIMIT);
        partner.receive_blocking(Selector::from_peer(peer, TAG), &mut [0; 8], options).unwrap();
    });
    let endpoint = endpoint();
    let peer = endpoint.insert_peer(&address).unwrap();
    sender.send(endpoint.address()).unwrap();
    talk(&endpoint, peer);
    let done = SendOptions::at(ringrail::CompletionLevel::Delivery);
    endpoint.send_blocking(peer, TAG, &[0; 8], done).unwrap();
    answers.join().unwrap();
}

const RESTS: &[u64] = &[0, 1, 30, 0, 300, 5, 0, 120];

fn sleeps_by_its_descriptor<M: Attached>(
    lanes: &[(&str, &str)],
    new: fn(&[(&str, &str)]) -> Endpoint<M>,
) {
    with_slow_partner(
        lanes,
        RESTS,
        || new(lanes),
        |endpoint, peer| {
            let mut done = Vec::new();
            let used = cpu_time();
            let mut wakes = 0;
            for round in 0..RESTS.len() as u64 {
                let options = ReceiveOptions::new().user_data(round);
                endpoint.post_receive(Selector::from_peer(peer, TAG), vec![0; 8], options).unwrap();
                let silent = SendOptions::new().silent(true);
                endpoint.post_send(peer, TAG, round.to_le_bytes().to_vec(), silent).unwrap();
                while done.is_empty() {
                    wakes += sleep_for(endpoint, &mut done);
                }
                let completion = done.pop().unwrap();
                assert_eq!(completion.user_data, round);
                assert_eq!(completion.result.unwrap().length, 8);
            }
            // Not a loop that is woken all the time.
            assert!(wakes < 400, "{wakes} wakes");
            assert!(cpu_time() - used < Duration::from_millis(300), "{:?}", cpu_time() - used);
        },
    );
}

fn owned(lanes: &[(&str, &str)]) -> Endpoint<Owned> {
    domain(lanes).endpoint().unwrap().attach().unwrap()
}

fn shared(lanes: &[(&str, &str)]) -> Endpoint<Shared> {
    domain(lanes).endpoint().unwrap().share().unwrap()
}

#[test]
fn owned_endpoints_sleep_by_their_descriptor() {
    sleeps_by_its_descriptor(&[], owned);
}

#[test]
fn owned_endpoints_on_sockets_sleep_by_their_descriptor() {
    sleeps_by_its_descriptor(&[("lanes", "sockets")], owned);
}

#[test]
fn owned_endpoints_without_datagrams_sleep_by_their_descriptor() {
    sleeps_by_its_descriptor(&[("control_lane", "tcp")], owned);
}

#[test]
fn shared_endpoints_sleep_by_their_descriptor() {
    sleeps_by_its_descriptor(&[], shared);
    sleeps_by_its_descriptor(&[("control_lane", "tcp")], shared);
}

/// What another thread takes off the wire for the one that sleeps rings.
#[test]
fn progress_of_another_thread_wakes_who_sleeps() {
    let endpoint = shared(&[]);
    let own = endpoint.insert_peer(&endpoint.address()).unwrap();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut done = Vec::new();
            for round in 0..200 {
                let options = ReceiveOptions::new().user_data(round);
                endpoint.post_receive(Selector::from_peer(own, TAG), vec![0; 8], options).unwrap();
                while !done.iter().any(|it: &Completion| it.user_data == round) {
                    sleep_for(&endpoint, &mut done);
                }
                done.clear();
            }
        });
        while !sleeper.is_finished() {
            let silent = SendOptions::new().silent(true);
            // As many as there are receives, and then some.
            let _ = endpoint.post_send(own, TAG, vec![1; 8], silent);
            thread::sleep(Duration::from_micros(300));
        }
        sleeper.join().unwrap();
    });
}

/// A message of each size by futures: from one task, with a rest in which nothing is done.
async fn exchange<M: Attached>(
    endpoint: &Endpoint<M>,
    peer: ringrail::Peer,
    tag: u64,
    size: usize,
) {
    let envelope = Envelope::tagged(tag);
    let receive = endpoint.receive(Selector::from_peer(peer, envelope), vec![0; size]).unwrap();
    let send = endpoint.send(peer, envelope, vec![tag as u8; size], SendOptions::new()).unwrap();
    let completed = receive.await.unwrap();
    assert!(completed.buffer.as_slice().unwrap().iter().all(|&byte| byte == tag as u8));
    assert_eq!(completed.status.length, size);
    send.await.unwrap();
}

#[test]
fn tasks_of_one_thread_sleep_while_nothing_happens() {
    with_slow_partner(
        &[],
        RESTS,
        || owned(&[("spin", "20us")]),
        |endpoint, peer| {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let used = cpu_time();
                for _ in RESTS {
                    let receive =
                        endpoint.receive(Selector::from_peer(peer, TAG), vec![0; 8]).unwrap();
                    let send = endpoint.send(peer, TAG, vec![7; 8], SendOptions::new()).unwrap();
                    send.await.unwrap();
                    let received = tokio::time::timeout(LIMIT, receive).await.expect("it is woken");
                    assert_eq!(received.unwrap().status.length, 8);
                }
                assert!(cpu_time() - used < Duration::from_millis(200), "{:?}", cpu_time() - used);
            });
        },
    );
}

#[test]
fn tasks_of_several_threads_share_an_endpoint() {
    let (left, right) = (shared(&[("spin", "20us")]), shared(&[("spin", "20us")]));
    let to_right = left.insert_peer(&right.address()).unwrap();
    let to_left = right.insert_peer(&left.address()).unwrap();
    let ends = std::sync::Arc::new([(left, to_right), (right, to_left)]);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for tag in 0..12 {
            for side in 0..2 {
                let ends = ends.clone();
                tasks.push(tokio::spawn(async move {
                    for round in 0..10 {
                        let size = [8, 3000, 60_000, 300_000][(tag as usize + round) % 4];
                        exchange(&ends[side].0, ends[side].1, tag, size).await;
                        tokio::time::sleep(Duration::from_millis(tag % 3)).await;
                    }
                }));
            }
        }
        for task in tasks {
            tokio::time::timeout(LIMIT, task).await.expect("it is woken").unwrap();
        }
    });
}

/// The descriptor works in an event loop of another library.
#[test]
fn an_event_loop_takes_the_descriptor() {
    let endpoint = shared(&[]);
    let own = endpoint.insert_peer(&endpoint.address()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let fd = endpoint.wait_fd().unwrap().as_fd().try_clone_to_owned().unwrap();
        // SAFETY: it owns the descriptor.
        let readable = unsafe { tokio::io::unix::AsyncFd::register(fd) }.unwrap();
        endpoint.post_receive(Selector::from_any(TAG), vec![0; 8], ReceiveOptions::new()).unwrap();
        let sender = thread::scope(|scope| {
            let sender = scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                let silent = SendOptions::new().silent(true);
                endpoint.post_send(own, TAG, vec![1; 8], silent).map(|_| ())
            });
            sender.join().unwrap()
        });
        sender.unwrap();
        let mut done = Vec::new();
        while endpoint.completions(&mut done, 1).unwrap() == 0 {
            if endpoint.arm().unwrap() {
                let mut ready =
                    tokio::time::timeout(LIMIT, readable.readable()).await.unwrap().unwrap();
                ready.clear_ready();
            }
        }
    });
}

/// Tasks of one thread: what one of them takes off the wire for another wakes that.
#[test]
fn tasks_of_an_owned_endpoint_wake_each_other() {
    with_slow_partner(
        &[],
        &[],
        || owned(&[("spin", "0us")]),
        |endpoint, _| {
            let own = endpoint.insert_peer(&endpoint.address()).unwrap();
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let one = async {
                    for tag in 0..100 {
                        exchange(endpoint, own, tag, 8).await;
                    }
                };
                let other = async {
                    for tag in 100..200 {
                        exchange(endpoint, own, tag, 100_000).await;
                        tokio::time::sleep(Duration::from_micros(200)).await;
                    }
                };
                let both = async { tokio::join!(one, other) };
                tokio::time::timeout(LIMIT, both).await.expect("both are woken");
            });
            // The partner waits for the last message only.
        },
    );
}
