//! A pool of slots without servers: deliveries are delivered in any order, twice, late or never; servers are
//! unreachable; slots restart from snapshot and log; clients repeat their requests. After every step the tree
//! is the model's, and at the end nothing is left over.

mod checks;
mod cost;
mod host;
mod lanes;
mod listing;
mod pool;
mod removals;
mod wish;

use pool::{Action, Pool};
use proptest::prelude::*;

/// Steps of one run.
const STEPS_MAX: usize = 160;

fn action() -> impl Strategy<Value = Action> {
    let wish = (any::<u8>(), any::<u8>(), any::<u8>(), any::<u8>(), any::<u8>(), any::<u8>());
    prop_oneof![
        8 => wish.prop_map(|(client, what, node, name, extra, other)| {
            Action::Wish { client, what, node, name, extra, other }
        }),
        8 => (any::<u8>(), any::<bool>()).prop_map(|(which, again)| Action::Deliver { which, again }),
        2 => any::<u8>().prop_map(|which| Action::Lose { which }),
        2 => any::<u8>().prop_map(|slot| Action::SendOpen { slot }),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(slot, which)| Action::Unreachable { slot, which }),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(client, which)| Action::Retry { client, which }),
        1 => any::<u8>().prop_map(|client| Action::Acknowledge { client }),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(slot, snapshot)| Action::Crash { slot, snapshot }),
        1 => any::<u8>().prop_map(|client| Action::EndSession { client }),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(which, entries_max)| Action::List { which, entries_max }),
        1 => (any::<u8>(), any::<u8>(), any::<bool>())
            .prop_map(|(client, which, deliver_first)| Action::Clear { client, which, deliver_first }),
        1 => Just(Action::Quiesce),
    ]
}

fn run(slots: u16, hash_bits: u32, actions: &[Action]) {
    run_spreading(slots, hash_bits, u64::MAX, actions);
}

/// The same with directories that are spread when they have this many entries.
fn run_spreading(slots: u16, hash_bits: u32, whole_entries_max: u64, actions: &[Action]) {
    let mut pool = Pool::new(slots, hash_bits, whole_entries_max);
    for action in actions {
        pool.act(action);
    }
    pool.quiesce();
    pool.end();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_slot_behaves_as_the_model(actions in prop::collection::vec(action(), 1..STEPS_MAX)) {
        run(1, 60, &actions);
    }

    #[test]
    fn two_slots_behave_as_the_model(actions in prop::collection::vec(action(), 1..STEPS_MAX)) {
        run(2, 60, &actions);
    }

    // SEMANTICS 10.1
    #[test]
    fn three_slots_with_colliding_names_behave_as_the_model(actions in prop::collection::vec(action(), 1..STEPS_MAX)) {
        run(3, 1, &actions);
    }

    // SEMANTICS 10.1, 75
    #[test]
    fn many_slots_behave_as_the_model(actions in prop::collection::vec(action(), 1..STEPS_MAX)) {
        run(16, 2, &actions);
    }

    #[test]
    fn directories_that_spread_over_two_slots_behave_as_the_model(actions in prop::collection::vec(action(), 1..STEPS_MAX)) {
        run_spreading(2, 60, 2, &actions);
    }

    #[test]
    fn directories_that_spread_with_colliding_names_behave_as_the_model(actions in prop::collection::vec(action(), 1..STEPS_MAX)) {
        run_spreading(3, 2, 3, &actions);
    }

    // SEMANTICS 14.1, 14.2
    #[test]
    fn directories_that_spread_over_many_slots_behave_as_the_model(actions in prop::collection::vec(action(), 1..STEPS_MAX)) {
        run_spreading(16, 60, 2, &actions);
    }
}
