//! Injected faults, for tests that check that a repeated change has one effect.

use std::sync::atomic::{AtomicU32, Ordering};

static REPLIES_TO_DROP: AtomicU32 = AtomicU32::new(0);

/// Loses the replies to the next `count` changes of this process, after the servers have made
/// them: the connection counts as broken and the change is sent again.
pub fn drop_replies(count: u32) {
    REPLIES_TO_DROP.store(count, Ordering::SeqCst);
}

/// How many replies are still to be lost.
#[must_use]
pub fn replies_to_drop() -> u32 {
    REPLIES_TO_DROP.load(Ordering::SeqCst)
}

/// Whether the reply that has just arrived is to be lost.
pub(crate) fn drops_reply() -> bool {
    // One plain load when no test is under way.
    REPLIES_TO_DROP.load(Ordering::Relaxed) != 0
        && REPLIES_TO_DROP
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            .is_ok()
}
