//! Two endpoints on two hosts.
#![allow(dead_code, reason = "each test uses some of it")]

use std::net::IpAddr;
use std::sync::{OnceLock, mpsc};
use std::thread;

use ringrail::settings::Settings;
use ringrail::{Address, Domain, Endpoint, Error, JobSecret, Owned, Peer};
use ringrail_tests::lab::{Host, Lab};

/// Names and values of settings.
pub(crate) type Set<'a> = [(&'a str, &'a str)];

/// Both hosts are of one job.
fn secret() -> &'static JobSecret {
    static SECRET: OnceLock<JobSecret> = OnceLock::new();
    SECRET.get_or_init(JobSecret::random)
}

/// An endpoint of the calling thread's host that listens at `local`.
pub(crate) fn attached(local: IpAddr, settings: &Set<'_>) -> Result<Endpoint<Owned>, Error> {
    let mut builder = Settings::isolated().set("listen_address", &local.to_string());
    builder = builder.job_secret(Some(secret()));
    for (name, value) in settings {
        builder = builder.set(name, value);
    }
    let domain = Domain::with_settings(builder.build().unwrap())?;
    domain.endpoint()?.attach()
}

/// Runs `left` in host a and `right` in host b, each with the other as its peer.
pub(crate) fn pair<L: Send, R: Send>(
    lab: &Lab,
    settings: &Set<'_>,
    left: impl FnOnce(&Endpoint<Owned>, Peer) -> L + Send,
    right: impl FnOnce(&Endpoint<Owned>, Peer) -> R + Send,
) -> (L, R) {
    pair_of(lab, [settings; 2], left, right)
}

/// As [`pair`], with settings of each.
pub(crate) fn pair_of<L: Send, R: Send>(
    lab: &Lab,
    settings: [&Set<'_>; 2],
    left: impl FnOnce(&Endpoint<Owned>, Peer) -> L + Send,
    right: impl FnOnce(&Endpoint<Owned>, Peer) -> R + Send,
) -> (L, R) {
    let at = [Host::A, Host::B].map(|host| lab.addr(host, 0));
    pair_at(lab, at, settings, left, right)
}

/// As [`pair_of`], at addresses of each.
pub(crate) fn pair_at<L: Send, R: Send>(
    lab: &Lab,
    at: [IpAddr; 2],
    settings: [&Set<'_>; 2],
    left: impl FnOnce(&Endpoint<Owned>, Peer) -> L + Send,
    right: impl FnOnce(&Endpoint<Owned>, Peer) -> R + Send,
) -> (L, R) {
    let (to_left, of_right) = mpsc::channel::<Address>();
    let (to_right, of_left) = mpsc::channel::<Address>();
    let run = |local, settings, to: mpsc::Sender<Address>, of: mpsc::Receiver<Address>| {
        let endpoint = attached(local, settings).unwrap();
        to.send(endpoint.address()).unwrap();
        let peer = endpoint.insert_peer(&of.recv().unwrap()).unwrap();
        (endpoint, peer)
    };
    thread::scope(|scope| {
        let left = scope.spawn(|| {
            let work = move || {
                let (endpoint, peer) = run(at[0], settings[0], to_right, of_right);
                left(&endpoint, peer)
            };
            lab.host(Host::A).enter(work).unwrap()
        });
        let work = move || {
            let (endpoint, peer) = run(at[1], settings[1], to_left, of_left);
            right(&endpoint, peer)
        };
        let right = lab.host(Host::B).enter(work).unwrap();
        (left.join().unwrap(), right)
    })
}
