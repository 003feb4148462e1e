//! A whole pool.

use ramlace_sim::{Bug, run};

// SEMANTICS 19.2, 77.1, 77.2, 77.3
#[test]
fn a_pool_ends_with_what_everybody_was_told_and_nobody_believes_otherwise() {
    crate::runs(
        |seed| run(seed, Bug::None),
        |all, seeds| {
            let goes_wrong = [all.lost / 5, all.repeated / 5, all.deaths, all.replayed / 5, all.cut];
            let leases = [all.believed / 50, all.renewed / 5, all.waited / 50, all.recalled / 10];
            let calls = [all.answered / 35, all.asked_again / 20, all.doubted, all.stops];
            let sessions = [2 * all.expired, 8 * all.begun_anew];
            let losses = [2 * all.stores_lost, 30 * all.lost_bytes];
            let many = calls.into_iter().chain(goes_wrong).chain(leases).chain(sessions).chain(losses);
            many.map(|many| many > seeds).collect()
        },
    );
}

#[test]
fn each_bug_that_is_planted_in_a_pool_is_found() {
    crate::finds(&Bug::ALL, run);
}
