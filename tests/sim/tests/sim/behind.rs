//! Slots that are delegated.

use ramlace_sim::{BehindBug, run_behind};

// SEMANTICS 142.3
#[test]
fn a_silent_mount_delays_others_once_and_loses_what_it_had_not_sent() {
    crate::runs(
        |seed| run_behind(seed, BehindBug::None),
        |all, seeds| {
            let often = [all.promised / 100, all.delegated / 5, all.waited / 5, all.lost, all.refused];
            let rare = [all.stopped, 2 * all.ran_out];
            often.into_iter().chain(rare).map(|many| many > seeds).collect()
        },
    );
}

#[test]
fn each_bug_that_is_planted_in_delegations_is_found() {
    crate::finds(&BehindBug::ALL, run_behind);
}
