//! A thread that makes all progress of an engine, as its permanent leader.
//!
//! Others post as usual: at once if it sleeps or is between two turns, otherwise by a request. It
//! sleeps when nothing happens, and is woken like any leader. An application that only computes has
//! its messages matched, acknowledged and pulled meanwhile.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::lead::Leading;
use super::place::EnginePlace;
use crate::progress::shared::Keys;
use crate::topology;

/// Name of the thread.
const NAME: &str = "ringrail-engine";

/// The thread; ends when this is dropped.
pub(super) struct Dedicated {
    place: Arc<EnginePlace>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Dedicated {
    /// Starts it on `cores`, or if there are none on those of the calling thread.
    pub(super) fn start(place: &Arc<EnginePlace>, cores: Vec<usize>) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (of_thread, ends) = (Arc::clone(place), Arc::clone(&is_over));
        let thread = std::thread::Builder::new().name(NAME.into()).spawn(move || {
            if !cores.is_empty() && !topology::run_on(&cores) {
                tracing::warn!(
                    "a dedicated engine runs where the thread that made it does: the kernel \
                     refused cores {cores:?}; name cores of this process's cpuset in the setting \
                     pin_cores"
                );
            }
            if let Err(error) = topology::ask_for_short_slices() {
                tracing::debug!("a dedicated engine waits longer for its core: {error}");
            }
            let is_over = || {
                let has_failed = of_thread.failure().is_some();
                (has_failed || ends.load(Ordering::Acquire)).then_some(())
            };
            let mut leading = Leading::for_ever(&of_thread);
            of_thread.shared().wait(Keys::ALL, None, is_over, &mut leading);
        })?;
        Ok(Self { place: Arc::clone(place), is_over, thread: Some(thread) })
    }
}

impl Drop for Dedicated {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.place.shared().notify(Keys::ALL);
        // A waker called by it may drop the engine: it ends after that.
        let is_other = |it: &mut JoinHandle<()>| it.thread().id() != std::thread::current().id();
        if let Some(thread) = self.thread.take_if(is_other) {
            // A panic was reported already.
            let _ = thread.join();
        }
    }
}
