//! Large transfers.

use ramlace_sim::{TransferBug, run_transfers};

// SEMANTICS 17.2
#[test]
fn a_transfer_takes_its_time_and_fails_once_it_has_stood_still() {
    crate::runs(
        |seed| run_transfers(seed, TransferBug::None),
        |all, seeds| {
            [3 * all.done, 3 * all.long, 3 * all.failed, all.again]
                .into_iter()
                .map(|many| many > seeds)
                .collect()
        },
    );
}

#[test]
fn each_bug_that_is_planted_in_transfers_is_found() {
    crate::finds(&TransferBug::ALL, run_transfers);
}
