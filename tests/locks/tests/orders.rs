//! Each scene in many orders of its threads. Shuttle prints the order in which it fails, and `shuttle::replay` runs that one again.

use ramlace_locks::scenes;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// Orders that are drawn of each scene, by each of the two ways.
const ORDERS: usize = 300;
/// The same orders each time: a round that is red stays red.
const SEED: u64 = 12;

/// At random, and with few changes between threads, which finds what takes one at the wrong moment.
fn in_many_orders(scene: fn()) {
    let is_long = std::env::var_os("RAMLACE_TEST_LONG").is_some_and(|long| !long.is_empty());
    let orders = if is_long { 20 * ORDERS } else { ORDERS };
    Runner::new(RandomScheduler::new_from_seed(SEED, orders), Config::default()).run(scene);
    Runner::new(PctScheduler::new_from_seed(SEED, 3, orders), Config::default()).run(scene);
}

// SEMANTICS 138.4
#[test]
fn what_is_pending_for_a_slot_is_sent_once_and_in_its_order_by_whoever_comes() {
    in_many_orders(scenes::senders_of_one_slot);
}

#[test]
fn who_waits_for_a_number_gets_one_when_there_is_room() {
    in_many_orders(scenes::a_full_window);
}

#[test]
fn who_waits_for_a_connection_gets_one_in_its_turn() {
    in_many_orders(scenes::more_threads_than_places);
}

// SEMANTICS 138.2
#[test]
fn leases_are_renewed_for_no_recall_that_was_not_received_whoever_asks() {
    in_many_orders(scenes::renewals_while_recalls_arrive);
}

#[test]
fn an_inode_is_open_once_at_its_home_whoever_opens_and_closes_it() {
    in_many_orders(scenes::opening_and_closing_one_inode);
}

#[test]
fn a_wait_for_a_lock_has_one_end_whatever_comes_at_once() {
    in_many_orders(scenes::a_wait_that_is_granted_and_cancelled);
}

#[test]
fn what_is_opened_by_its_name_is_open_at_its_home_whoever_closes_it_meanwhile() {
    in_many_orders(scenes::opening_by_name_what_another_closes);
}

// SEMANTICS 138.7
#[test]
fn what_is_opened_again_is_open_at_its_home_whoever_closes_what_was_deferred() {
    in_many_orders(scenes::reopening_what_another_closes);
}

#[test]
fn each_ended_recall_is_sent_or_left_to_the_outbox_whoever_sends() {
    in_many_orders(scenes::ended_recalls_of_one_server);
}
