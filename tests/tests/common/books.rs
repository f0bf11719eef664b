//! Where the AF_XDP frames of an endpoint are.
#![allow(dead_code, reason = "each test uses some of it")]

use std::time::{Duration, Instant};

use ringrail::{DatagramState, Endpoint, FrameFigures, FrameState, Owned};

/// How long frames may take to come back.
const LIMIT: Duration = Duration::from_secs(120);

/// How frames fare.
pub(crate) fn frames_of(endpoint: &Endpoint<Owned>) -> FrameState {
    match endpoint.datagrams() {
        DatagramState::Taken { frames, .. } => frames,
        state => panic!("{state:?}"),
    }
}

/// Figures of frames that are up, each of which is in one place.
pub(crate) fn figures_of(endpoint: &Endpoint<Owned>) -> FrameFigures {
    let figures = match frames_of(endpoint) {
        FrameState::Up { figures, .. } => figures,
        state => panic!("{state:?}"),
    };
    let all = figures.frames_free
        + figures.frames_in_hand
        + figures.frames_filled
        + figures.frames_sending;
    assert_eq!((all, figures.strays), (figures.frames, 0), "{figures:?}");
    figures
}

/// Nothing is outstanding: the kernel has no frame that is to be sent.
pub(crate) fn assert_quiet(endpoint: &Endpoint<Owned>) {
    let deadline = Instant::now() + LIMIT;
    loop {
        endpoint.progress().unwrap();
        let figures = figures_of(endpoint);
        if figures.frames_sending == 0 && figures.frames_in_hand <= 1 {
            return;
        }
        assert!(Instant::now() < deadline, "{figures:?}");
    }
}
