//! Tests of the contract of [`crate::driver::traits`], run on every driver and every combination of
//! io_uring features.
//!
//! A case is a function of a [`Variant`]; the macro below runs each with all variants.
//! [`host::Host`] checks what holds for every event in all cases.

mod chunks;
mod connections;
mod datagrams;
mod detached;
mod endings;
mod failing;
mod host;
mod messages;
mod moving;
mod rails;
mod waiting;
mod wraps;

use self::host::{Variant, Wrap};

/// Runs a case, or prints why it cannot run here.
fn run(variant: &Variant, case: fn(&Variant)) {
    match variant.refused() {
        None => case(variant),
        Some(why) => println!("RINGRAIL-SKIP: driver::tests::{}: {why}", variant.module),
    }
}

/// One module per variant, with a test for every case in it. Variants with injected faults run
/// fewer cases: `late` ones none that depend on the poll in which an event is reported, `faulty`
/// ones of these none that require a call to move all it can.
macro_rules! contract {
    (
        exact $exact:tt
        late $late:tt
        faulty $faulty:tt
        cases { $($file:ident::$case:ident,)* }
        all_but_faulty { $($sure_file:ident::$sure:ident,)* }
        all_but_late_and_faulty { $($prompt_file:ident::$prompt:ident,)* }
    ) => {
        contract! {
            variants $exact
            { $($file::$case,)* $($sure_file::$sure,)* $($prompt_file::$prompt,)* }
        }
        contract! { variants $late { $($file::$case,)* $($sure_file::$sure,)* } }
        contract! { variants $faulty { $($file::$case,)* } }
    };
    (
        variants { $($module:ident = $choice:ident, $disabled:expr, $wrap:ident;)* }
        $cases:tt
    ) => {
        $(contract!(@module $module, $choice, $disabled, $wrap, $cases);)*
    };
    (
        @module $module:ident, $choice:ident, $disabled:expr, $wrap:ident,
        { $($file:ident::$case:ident,)* }
    ) => {
        mod $module {
            use crate::driver::{DriverChoice, tests};

            const VARIANT: tests::Variant = tests::Variant {
                module: stringify!($module),
                choice: DriverChoice::$choice,
                disabled: &$disabled,
                wrap: tests::Wrap::$wrap,
            };

            $(#[test]
            fn $case() {
                tests::run(&VARIANT, tests::$file::$case);
            })*
        }
    };
}

contract! {
    exact {
        sockets = Sockets, [], Bare;
        uring = Uring, [], Bare;
        uring_without_single_issuer = Uring, ["single_issuer"], Bare;
        uring_without_defer_taskrun = Uring, ["defer_taskrun"], Bare;
        uring_without_coop_taskrun = Uring, ["defer_taskrun", "coop_taskrun"], Bare;
        uring_without_taskrun_flag = Uring, ["taskrun_flag"], Bare;
        uring_without_no_sqarray = Uring, ["no_sqarray"], Bare;
        uring_without_registered_files = Uring, ["registered_files"], Bare;
        uring_without_registered_buffers = Uring, ["registered_buffers"], Bare;
        uring_without_send_zc = Uring, ["send_zc"], Bare;
        uring_without_multishot_poll = Uring, ["multishot_poll"], Bare;
        uring_of_an_old_kernel = Uring, [
            "single_issuer", "defer_taskrun", "coop_taskrun", "taskrun_flag", "no_sqarray",
            "registered_files", "registered_buffers", "send_zc", "multishot_poll",
        ], Bare;
        traced_sockets = Sockets, [], Trace;
        traced_uring = Uring, [], Trace;
        captured_sockets = Sockets, [], Pcap;
        captured_uring = Uring, [], Pcap;
    }
    late {
        late_sockets = Sockets, [], Late;
        late_uring = Uring, [], Late;
    }
    faulty {
        faulty_sockets = Sockets, [], Mild;
        faulty_uring = Uring, [], Mild;
    }
    cases {
        connections::connects_and_accepts,
        connections::refused_is_reported_and_closed,
        connections::closing_an_attempt_ends_it,
        connections::full_table_refuses_one_more,
        messages::full_socket_takes_no_more,
        messages::watched_for_writing_once,
        chunks::every_size_shape_and_memory,
        chunks::huge_pages_are_not_registered,
        chunks::both_directions_at_once,
        chunks::more_pieces_than_a_call_takes,
        chunks::arriving_a_few_bytes_at_a_time,
        chunks::beyond_the_memory_is_refused,
        chunks::second_chunk_is_refused,
        endings::reset_in_mid_chunk,
        endings::graceful_in_mid_chunk_with_a_peer_that_does_not_read,
        endings::graceful_delivers_what_was_sent,
        endings::peer_resets_in_mid_chunk,
        endings::peer_ends_in_mid_chunk,
        endings::shutdown_releases_all_memory,
        moving::lanes_move_to_the_other_driver,
        moving::busy_driver_is_not_dismantled,
        waiting::park_respects_its_timeout,
        waiting::park_ends_with_an_event,
        waiting::full_completion_queue_loses_nothing,
        datagrams::datagrams_of_every_length_round_trip,
        datagrams::datagrams_move_to_another_driver,
        detached::lanes_are_opened_and_closed_while_detached,
        detached::refused_connections_leave_nothing_while_detached,
        rails::datagrams_follow_a_new_list_of_rails,
        rails::each_rail_connects_from_its_address,
        rails::each_rail_sends_from_its_address,
        rails::connections_to_foreign_addresses_are_closed,
    }
    all_but_faulty {
        messages::bytes_arrive_in_order_until_the_stream_ends,
        messages::watched_for_reading_once,
        messages::watched_after_its_event,
        waiting::armed_driver_signals_its_wake_descriptor,
        messages::end_and_reset_are_readable,
        endings::shutdown_delivers_what_was_sent,
        waiting::idle_poll_makes_no_syscall,
        datagrams::a_socket_of_both_families_reaches_both,
        datagrams::bursts_are_batched,
        datagrams::full_queue_is_flushed_when_room_is_asked_for,
        datagrams::refused_destination_does_not_affect_others,
        datagrams::oversized_datagram_is_dropped,
        detached::bytes_and_datagrams_pass_while_detached,
        datagrams::empty_result_is_not_older_than_the_last_poll,
        datagrams::full_send_buffer_is_waited_for,
    }
    all_but_late_and_faulty {
        connections::stale_keys_do_nothing,
        rails::engines_of_one_host_connect_by_any_rail,
        rails::link_changes_are_reported,
        rails::listeners_of_rails_follow_their_nics,
        datagrams::watched_once_and_woken,
    }
}

contract! {
    variants {
        failing_sockets = Sockets, [], Bare;
        failing_uring = Uring, [], Bare;
    }
    {
        failing::chunks_end_under_injected_faults,
        failing::cut_lanes_look_reset_until_they_are_closed,
        failing::refused_attempts_fail_and_close,
        failing::the_same_seed_fails_in_the_same_way,
        failing::datagram_faults_are_injected,
        failing::injected_full_queue_is_reported_once,
    }
}
