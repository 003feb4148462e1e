//! Stores that go.

use ramlace_sim::{LossBug, run_losing};

// SEMANTICS 18.1, 18.2
#[test]
fn what_went_with_a_store_is_an_error_until_it_is_written_again() {
    crate::runs(
        |seed| run_losing(seed, LossBug::None),
        |all, seeds| {
            let often = [all.written / 5, all.read / 5, all.holes, all.lost, all.healed, all.deaths];
            let rare = [all.stores_lost, 10 * all.forgotten];
            often.into_iter().chain(rare).map(|many| many > seeds).collect()
        },
    );
}

#[test]
fn each_bug_that_is_planted_in_losing_is_found() {
    crate::finds(&LossBug::ALL, run_losing);
}
