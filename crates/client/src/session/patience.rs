//! How long a session waits for whom.

use std::time::Duration;

use ramlace_base::limits;

/// Longest wait for a sign of life, and for one server when several could answer the same question.
pub(crate) const SIGN_OF_LIFE_MILLIS_MAX: u64 = 500;

/// How long a change of bytes waits for others, and a read for who has pages of them alone; and how long a thread waits for a
/// connection that such calls use.
pub(crate) const HOLDERS_WAIT_MAX: Duration =
    Duration::from_millis(limits::DATA_RECALL_WRITING_MILLIS + 5_000);
