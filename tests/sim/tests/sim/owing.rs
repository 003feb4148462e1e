//! What clients owe servers.

use ramlace_sim::{OwingBug, run_owing};

#[test]
fn what_is_owed_is_received_in_its_order_and_in_time() {
    crate::runs(
        |seed| run_owing(seed, OwingBug::None),
        |all, seeds| {
            let many = [all.owed / 50, all.received / 50, all.again, all.failed / 2, all.hurried / 2];
            many.map(|many| many > seeds).into()
        },
    );
}

#[test]
fn each_bug_that_is_planted_in_telling_is_found() {
    crate::finds(&OwingBug::ALL, run_owing);
}
