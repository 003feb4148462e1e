//! Stores of which only their times tell.

use ramlace_sim::{StoreBug, run_stores};

// SEMANTICS 93.2
#[test]
fn a_home_that_answers_hears_of_a_store_within_five_seconds() {
    crate::runs(
        |seed| run_stores(seed, StoreBug::None),
        |all, seeds| {
            [all.stored / 20, all.reported / 10, all.rounds / 50]
                .into_iter()
                .map(|many| many > seeds)
                .collect()
        },
    );
}

#[test]
fn each_bug_that_is_planted_in_looks_is_found() {
    crate::finds(&StoreBug::ALL, run_stores);
}
