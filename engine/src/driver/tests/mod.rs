//! The contract of [`crate::driver::lanes`], tried on every driver and on every way that
//! io_uring can be had.
//!
//! A case is a function of a [`Variant`]; the macro below runs each with all variants. What
//! holds for every event, whatever the case, is checked by [`host::Host`].

mod absence;
mod chunks;
mod connections;
mod datagrams;
mod endings;
mod failing;
mod host;
mod messages;
mod moving;
mod rails;
mod waiting;
mod wraps;

use self::host::{Variant, Wrap};

/// Runs a case, or says why it cannot run here.
fn run(variant: &Variant, case: fn(&Variant)) {
    match variant.refused() {
        None => case(variant),
        Some(why) => println!("RINGRAIL-SKIP: driver::tests::{}: {why}", variant.module),
    }
}

/// One module per variant, with a test for every case in it. Drivers that come to the same end in
/// other ways run fewer cases: `late` ones none whose outcome depends on the poll in which an event
/// comes, `faulty` ones of these none that take it for granted that a call moves what it could.
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
        chunks::arriving_in_crumbs,
        chunks::beyond_the_memory_is_refused,
        chunks::second_chunk_is_refused,
        endings::reset_in_mid_chunk,
        endings::graceful_in_mid_chunk_before_a_deaf_peer,
        endings::graceful_delivers_what_was_sent,
        endings::peer_resets_in_mid_chunk,
        endings::peer_ends_in_mid_chunk,
        endings::shutdown_lets_go_of_everything,
        moving::lanes_move_to_the_other_driver,
        moving::busy_driver_is_not_dismantled,
        waiting::park_honours_its_time,
        waiting::park_ends_with_an_event,
        waiting::full_rings_lose_nothing,
        datagrams::every_length_goes_there_and_back,
        datagrams::datagrams_move_to_another_driver,
        absence::lanes_are_set_up_and_closed_in_absence,
        absence::strangers_leave_nothing_behind_in_absence,
        rails::datagrams_follow_a_new_list,
        rails::each_rail_connects_from_its_address,
        rails::each_rail_sends_from_its_address,
        rails::foreign_addresses_are_not_let_in,
    }
    all_but_faulty {
        messages::bytes_arrive_in_order_until_the_stream_ends,
        messages::watched_for_reading_once,
        waiting::an_armed_driver_is_slept_for,
        messages::end_and_reset_are_readable,
        endings::shutdown_delivers_what_was_sent,
        waiting::nothing_costs_nothing,
        datagrams::a_socket_of_both_families_reaches_both,
        datagrams::many_go_in_few_calls,
        datagrams::a_full_queue_makes_room_by_itself,
        datagrams::what_one_destination_refuses_disturbs_no_other,
        datagrams::what_is_too_long_is_dropped,
        absence::bytes_and_datagrams_pass_in_absence,
        datagrams::none_is_never_older_than_a_poll,
        datagrams::a_kernel_without_room_is_waited_for,
    }
    all_but_late_and_faulty {
        connections::stale_keys_do_nothing,
        rails::engines_of_one_host_meet_by_any_rail,
        rails::links_that_come_and_go_are_told_of,
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
        failing::chunks_end_whatever_befalls_their_lanes,
        failing::cut_lanes_look_reset_until_they_are_closed,
        failing::refused_attempts_fail_and_are_over,
        failing::the_same_seed_fails_in_the_same_way,
        failing::datagrams_fare_as_in_a_bad_network,
        failing::refused_room_is_told_of_once,
    }
}
