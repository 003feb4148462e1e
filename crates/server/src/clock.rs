//! The only file of this crate that reads the clock and draws random numbers.
#![allow(clippy::disallowed_methods, reason = "this is the door")]

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ramlace_base::{Error, Result, Timestamp};

/// The wall clock, for times of files.
pub fn now() -> Timestamp {
    let nanos = match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos() as i64,
        Err(before) => -(before.duration().as_nanos() as i64),
    };
    Timestamp { nanos }
}

/// The monotonic clock, for deadlines and expiry.
pub fn instant() -> Instant {
    Instant::now()
}

/// Fills `bytes` with random bytes from the kernel.
pub fn entropy(bytes: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| Error::from_io(&errno.into(), "asking the kernel for random bytes"))?;
    }
    Ok(())
}
