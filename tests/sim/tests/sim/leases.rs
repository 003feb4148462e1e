//! Leases and sessions.

use ramlace_sim::{LeaseBug, run_leases};

// SEMANTICS 19.2, 77.1, 77.2, 77.3
#[test]
fn nobody_believes_what_an_answer_that_has_left_contradicts() {
    crate::runs(
        |seed| run_leases(seed, LeaseBug::None),
        |all, seeds| {
            let often =
                [all.believed / 100, all.renewed / 5, all.waited / 100, all.ran_out, all.recalled / 50];
            let rare = [all.cut / 5, 3 * all.expired, 3 * all.deaths];
            often.into_iter().chain(rare).map(|many| many > seeds).collect()
        },
    );
}

#[test]
fn each_bug_that_is_planted_in_leases_is_found() {
    crate::finds(&LeaseBug::ALL, run_leases);
}
