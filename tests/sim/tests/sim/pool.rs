//! A whole pool.

use ramlace_sim::{Bug, run};

#[test]
fn every_seed_ends_with_what_everybody_was_told() {
    crate::runs(
        |seed| run(seed, Bug::None),
        |all, seeds| {
            let many = [all.answered / 60, all.lost / 5, all.repeated / 5, all.deaths, all.replayed / 5];
            many.map(|many| many > seeds).into()
        },
    );
}

#[test]
fn each_bug_that_is_planted_in_a_pool_is_found() {
    crate::finds(&Bug::ALL, run);
}
