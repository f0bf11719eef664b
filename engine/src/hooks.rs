//! What simulations reach into: time, rare branches and planted bugs. Builds without the feature
//! `sim` have none of it: `rare!` and `planted!` are `false` there.
//!
//! All state belongs to the thread, as a simulated world does.

/// What a site of rare branches draws by `$draw`, in simulations; `$otherwise` elsewhere.
///
/// Each use is a site with a name of its own, and the name decides what the site draws (`sites`).
macro_rules! site {
    ($name:literal, $draw:expr, $otherwise:expr) => {{
        #[cfg(any(test, feature = "sim"))]
        let drawn = {
            use crate::hooks::simulated::Site;
            std::thread_local! {
                static SITE: Site = const { Site::new($name) };
            }
            SITE.with($draw)
        };
        #[cfg(not(any(test, feature = "sim")))]
        let drawn = $otherwise;
        drawn
    }};
}

/// Whether a branch that is seldom taken is to be taken now: once in so many times where the
/// simulation wants rare branches, never elsewhere. The branch must be correct at any time.
macro_rules! rare {
    ($name:literal, $one_in:expr) => {
        site!($name, |site: &Site| site.is_rare($one_in), false)
    };
}

/// What a rare branch takes, of so many values from 0 on: any of them.
macro_rules! rare_value {
    ($name:literal, $count:expr) => {
        site!($name, |site: &Site| site.value($count), 0_u64)
    };
}

/// Whether a short cut may be taken that leads where the longer way does: always, but in
/// simulations and tests, which try both ways.
macro_rules! shortcut {
    ($name:literal) => {
        site!($name, Site::may_cut_short, true)
    };
}

/// Whether this planted bug is switched on, to see that simulations find it.
macro_rules! planted {
    ($bug:ident) => {{
        #[cfg(any(test, feature = "sim"))]
        let is_on = crate::hooks::simulated::has(crate::hooks::simulated::Bug::$bug);
        #[cfg(not(any(test, feature = "sim")))]
        let is_on = false;
        is_on
    }};
}

/// Returns an option that the engine's own state keeps `Some`: this holds, unless the engine has a
/// bug. Never for what a peer or the user names.
macro_rules! debug_assert_some {
    ($option:expr, $holds:literal) => {{
        let option = $option;
        debug_assert!(option.is_some(), $holds);
        option
    }};
}

#[cfg(any(test, feature = "sim"))]
mod sites;
#[cfg(any(test, feature = "sim"))]
pub(crate) mod threads;

#[cfg(any(test, feature = "sim"))]
pub(crate) mod simulated {
    use std::cell::Cell;

    pub(crate) use crate::hooks::sites::{Site, by_long_ways, rare_taken, set_rare};

    /// Bugs that can be switched on for one thread.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum Bug {
        /// A send spends no envelope credit.
        SkipCredit,
        /// Credit of a message that waited for its receive is not given back.
        LoseCreditReturn,
        /// DONE goes out and the receive completes when all is granted and one range has come.
        EarlyDone,
        /// Ranges of a lost lane are not granted again.
        DropRegrant,
        /// The range in the kernel is granted again before its request is reaped.
        ForgetReap,
        /// A message that waited for its receive goes back behind the others first.
        MatchYoungest,
        /// A receive from one source is posted as one from any source.
        IgnoreSource,
        /// A sender of a rendezvous message ends at DONE while the kernel still reads its memory.
        IgnoreRelease,
        /// MATCHED is not sent for a message that waited for its receive.
        LoseMatched,
        /// A completion of a receive is reported twice.
        DuplicateCompletion,
        /// A blocked control lane is not watched for room.
        ForgetWritable,
        /// The beginning of a segment is dropped when its rest has not come.
        DropPartial,
        /// A chunk's source is one byte early when it does not start at 0.
        ShiftChunk,
        /// Receives from a peer that failed stay posted.
        KeepReceivesOfDead,
        /// Updates of credit are not sent unless something else is.
        LoseCreditUpdates,
        /// Half of an announcement of envelope credit is lost at the sender.
        LoseCredit,
        /// Messages of an earlier session give their credit to the one that is there now.
        ForgetEpoch,
        /// A second connection of a peer takes the place of the one in use.
        SkipDeduplication,
        /// A message that may go at once overtakes those that wait.
        OvertakeWaiting,
        /// A send whose hint passes others that wait passes those of its own stream, too.
        OvertakeStream,
        /// A receive whose peer failed ends while the kernel still writes its memory.
        EndBeforeReap,
        /// Windows count only once their session is there.
        ForgetOffers,
        /// A packet now and then goes under the number of the one before it.
        RepeatNumber,
        /// A packet now and then is acknowledged, and what it carries dropped.
        AckUnhandled,
        /// A frame that comes again is taken again.
        RepeatFrames,
        /// Segments that are lost are not sent again.
        ForgetLost,
        /// Unsolicited pieces that were dropped are awaited.
        AwaitDroppedPieces,
        /// A flush is answered before the frames before it have come.
        FlushEarly,
        /// A flush goes out while the peer still pulls puts before it.
        OvertakePulls,
        /// The range of a key is not checked.
        SkipRange,
        /// A put is placed one byte late.
        ShiftPut,
        /// Memory of a revoked key counts as free while it is pulled into.
        ForgetLent,
        /// A probe of a silent path takes a segment that is to go by TCP.
        StealByProbe,
        /// A datagram is accepted with any tag.
        BelieveAnyTag,
        /// Segments go to whatever address a packet came from last.
        MoveUnasked,
        /// Limits that a lost datagram or one of a silent path announced are not repeated.
        LoseLimits,
        /// A message is matched before the one that it follows has come.
        MatchOutOfTurn,
        /// Messages do not name the message that they follow.
        ForgetStream,
        /// Packets that a silent path was given stay with it.
        ForgetResend,
        /// Data that comes by a stream or a ring is not acknowledged when nothing else is sent.
        ForgetStreamAck,
        /// Data written into a ring that ended is not sent again.
        ForgetRing,
        /// What a ring that ended has kept is taken for what its reader had.
        DropKept,
        /// What could not be read from a sender's memory, or does not count, is taken.
        TakeUnread,
        /// A receive takes pieces of a ring that has ended, and is granted anew by lanes.
        TakeLatePiece,
        /// A receive waits for pieces of a ring that has ended.
        ForgetPieces,
        /// A fast path does not learn that its session is being left.
        MissLeaving,
        /// A fast path does not learn that its session has sends that wait.
        MissWaiting,
        /// A fast path does not learn that its session has control frames to send.
        MissControl,
        /// A fast path does not learn that its session has segments that wait.
        MissQueued,
        /// A fast path does not learn that its session has bulk data in datagrams.
        MissBulk,
        /// A fast path does not learn that its session has a segment due.
        MissUpdate,
        /// A fast path does not learn that its session has frames before a missing one.
        MissEarly,
        /// A fast path does not learn that its session has a goodbye of its peer.
        MissGoodbye,
        /// A fast path does not learn that its path answers no longer.
        MissUnproven,
        /// A fast path does not learn that another path carries the segments.
        MissHeld,
        /// A fast path does not learn that the peer may have a new address.
        MissCandidate,
        /// A fast path does not learn that a session has several paths.
        MissSeveral,
        /// Bulk data that came in a datagram is placed one byte too early.
        ShiftData,
        /// The oldest segment counts as acknowledged although it is not.
        ReleaseUnacked,
        /// One more frame than has come is acknowledged, when some came early.
        AckTooMuch,
        /// Grants are served in the order in which they arrive.
        GrantsAsTheyCome,
        /// The checksum of a segment's frames is not looked at.
        SkipSegmentSum,
        /// The checksum of a chunk is not looked at.
        SkipChunkSum,
        /// Segments that a failed session held are not given back.
        LeakSegments,
        /// A message into a multi-receive goes over the one before it.
        OverlapSlices,
        /// A multi-receive is released while messages of it are still coming.
        ReleaseEarly,
        /// Messages that wait for the one before them keep waiting when that is matched.
        KeepHeld,
        /// A post that finds the queue of requests full is dropped.
        DropAtFullQueue,
        /// The holder of a shared engine applies two requests in the wrong order.
        SwapRequests,
        /// A post that gets the lock passes what is queued. So that this shows soon, the thread
        /// that releases the lock leaves everything queued, which it may.
        PassQueue,
        /// The release of a shared engine's lock wakes no thread that sleeps for it.
        LoseRelease,
        /// A leader that stops wakes no thread to lead.
        LoseLeadership,
        /// A leader that sleeps does not learn of a request.
        LoseRing,
        /// A request that a limit refuses ends without an error.
        LoseRefusal,
        /// The events of a turn wake no thread that waits.
        LoseWakeups,
        /// A fenced send waits for nothing.
        IgnoreFence,
    }

    /// All of them.
    pub(crate) const BUGS: [Bug; 76] = [
        Bug::SkipCredit,
        Bug::LoseCreditReturn,
        Bug::EarlyDone,
        Bug::DropRegrant,
        Bug::ForgetReap,
        Bug::MatchYoungest,
        Bug::IgnoreSource,
        Bug::IgnoreRelease,
        Bug::LoseMatched,
        Bug::DuplicateCompletion,
        Bug::ForgetWritable,
        Bug::DropPartial,
        Bug::ShiftChunk,
        Bug::KeepReceivesOfDead,
        Bug::LoseCreditUpdates,
        Bug::LoseCredit,
        Bug::ForgetEpoch,
        Bug::SkipDeduplication,
        Bug::OvertakeWaiting,
        Bug::OvertakeStream,
        Bug::EndBeforeReap,
        Bug::ForgetOffers,
        Bug::RepeatNumber,
        Bug::AckUnhandled,
        Bug::RepeatFrames,
        Bug::ForgetLost,
        Bug::StealByProbe,
        Bug::BelieveAnyTag,
        Bug::MoveUnasked,
        Bug::MatchOutOfTurn,
        Bug::ForgetStream,
        Bug::ForgetResend,
        Bug::ForgetStreamAck,
        Bug::ForgetRing,
        Bug::DropKept,
        Bug::TakeUnread,
        Bug::TakeLatePiece,
        Bug::ForgetPieces,
        Bug::MissLeaving,
        Bug::MissWaiting,
        Bug::MissControl,
        Bug::MissQueued,
        Bug::MissBulk,
        Bug::MissUpdate,
        Bug::MissEarly,
        Bug::MissGoodbye,
        Bug::MissUnproven,
        Bug::MissHeld,
        Bug::MissCandidate,
        Bug::MissSeveral,
        Bug::ShiftData,
        Bug::ReleaseUnacked,
        Bug::AckTooMuch,
        Bug::GrantsAsTheyCome,
        Bug::SkipSegmentSum,
        Bug::SkipChunkSum,
        Bug::LeakSegments,
        Bug::KeepHeld,
        Bug::OverlapSlices,
        Bug::ReleaseEarly,
        Bug::LoseLimits,
        Bug::DropAtFullQueue,
        Bug::SwapRequests,
        Bug::PassQueue,
        Bug::LoseRelease,
        Bug::LoseLeadership,
        Bug::LoseRing,
        Bug::LoseRefusal,
        Bug::LoseWakeups,
        Bug::IgnoreFence,
        Bug::FlushEarly,
        Bug::OvertakePulls,
        Bug::SkipRange,
        Bug::ShiftPut,
        Bug::ForgetLent,
        Bug::AwaitDroppedPieces,
    ];

    thread_local! {
        static NOW_NS: Cell<u64> = const { Cell::new(0) };
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// The virtual time of this thread's world, in nanoseconds.
    pub(crate) fn now_ns() -> u64 {
        NOW_NS.get()
    }

    /// Sets the virtual time.
    pub(crate) fn set_now_ns(now_ns: u64) {
        NOW_NS.set(now_ns);
    }

    /// Switches a bug on, or all off.
    pub(crate) fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    #[inline]
    pub(crate) fn has(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}
