//! Calls that are repeated.

use ramlace_sim::{CallBug, run_calls};

// SEMANTICS 16.1, 17.1
#[test]
fn a_call_ends_in_time_and_has_one_effect_or_none() {
    crate::runs(
        |seed| run_calls(seed, CallBug::None),
        |all, seeds| {
            let often = [all.answered / 100, all.repeated / 5, all.failed, all.doubted, all.met_silent];
            let rare = [all.deaths, all.silences, all.moves];
            often.into_iter().chain(rare).map(|many| many > seeds).collect()
        },
    );
}

#[test]
fn each_bug_that_is_planted_in_calls_is_found() {
    crate::finds(&CallBug::ALL, run_calls);
}
