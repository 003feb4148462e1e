//! What is pending for servers.

use ramlace_sim::{OutboxBug, run_outbox};

#[test]
fn what_is_pending_is_received_in_its_order_and_in_time() {
    crate::runs(
        |seed| run_outbox(seed, OutboxBug::None),
        |all, seeds| {
            let many = [all.pending / 50, all.received / 50, all.again, all.failed / 2, all.hurried / 2];
            many.map(|many| many > seeds).into()
        },
    );
}

#[test]
fn each_bug_that_is_planted_in_telling_is_found() {
    crate::finds(&OutboxBug::ALL, run_outbox);
}
