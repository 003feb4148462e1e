//! Random bytes from the kernel.

use ramlace_base::{Error, Result};
use rustix::rand::{GetRandomFlags, getrandom};

/// Fills the buffer.
pub(crate) fn fill(mut buffer: &mut [u8]) -> Result<()> {
    while !buffer.is_empty() {
        match getrandom(&mut *buffer, GetRandomFlags::empty()) {
            Ok(filled) => buffer = &mut buffer[filled..],
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::from_io(&errno.into(), "asking the kernel for random bytes")),
        }
    }
    Ok(())
}

/// A random factor for pauses; 1 when the kernel has no random bytes.
pub(crate) fn between_half_and_one() -> f32 {
    let mut byte = [0xff];
    let _ = fill(&mut byte);
    0.5 + f32::from(byte[0]) / 510.0
}

/// A random number, for the names of test directories.
#[cfg(test)]
pub(crate) fn number() -> Result<u64> {
    let mut bytes = [0; 8];
    fill(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
