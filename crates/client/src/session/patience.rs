//! Deadlines: how long a session waits for what.

use std::time::Duration;

use ramlace_base::limits;

/// The longest wait for a sign of life, and for one server if several could answer the same query.
pub(crate) const SIGN_OF_LIFE_MILLIS_MAX: u64 = 500;

/// How long a change of bytes waits for other holders, and a read for the owner of pages; and how long a
/// thread waits for a connection that such calls use.
pub(crate) const HOLDERS_WAIT_MAX: Duration =
    Duration::from_millis(limits::DATA_RECALL_WRITING_MILLIS + 5_000);
