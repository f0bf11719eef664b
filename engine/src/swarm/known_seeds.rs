//! Seeds that failed once, by what happens in them. They are no tests of this library, where they
//! would take half a minute: the swarm runs them, which is optimised
//! (`cargo xtask swarm --known-seeds`).

/// Seeds that failed once and hold, each list with its name.
pub const KNOWN_SEEDS: &[(&str, &[u64])] = &[
    // The failures that these seeds reported have a reason; `reasons` has each. In the last one it
    // is a bout of threads that learns it first.
    ("the_network_is_late", &[777011805, 778002574, 779010507, 780005979, 783002445, 700000002616]),
    // Twelve engines that have room for 16 operations each send to all others: an engine that fills
    // its room with sends receives nothing.
    ("little_room_for_operations", &[224970377864]),
    // Two puts to the same bytes, and only for the second one there is room for a flush behind it.
    // The first one goes by the stream and comes last, before the flush is answered: nothing orders
    // the two, and the flush is correct.
    //
    // RR-RMA-5, RR-RMA-6
    ("a_put_has_no_room_for_its_flush", &[30129253899042842]),
    // A send of a thread completes before the call that posts it has returned.
    ("fences_beside_threads", &[30130217750115307]),
    // A message that had arrived waited for one that another thread posted before it, and that was
    // lost with its process.
    ("threads_are_killed_with_messages_under_way", &[30130426207018093]),
    // A process that is paused most of the time sends a segment in pieces, and pauses a peer
    // timeout between two of them.
    ("senders_pause_within_segments", &[30130432683032047]),
    // Links that fail for the whole run silence a session whose only transport is a stream.
    ("streams_are_silenced_by_failing_links", &[30130494574173163]),
    // An acknowledgement was announced by a datagram that was lost, whose frames were sent again by
    // a ring, without a header.
    ("a_ring_takes_frames_of_lost_datagrams", &[30130300000011628]),
];
