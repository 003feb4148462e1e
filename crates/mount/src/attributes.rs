//! Attributes and times, converted from the pool's types to the kernel's and back.

use std::time::{SystemTime, UNIX_EPOCH};

use ramlace_base::Timestamp;
use ramlace_fuse::{Attributes as KernelAttributes, Entry, SetTime};
use ramlace_wire::Attributes;

use crate::leases::Believed;

/// What programs should read and write in one call, as `st_blksize` says: a staged, atomic piece.
const BLOCK_BYTES: u32 = ramlace_base::limits::STAGED_BYTES_MAX as u32;

/// Unit of `st_blocks`.
const COUNTED_BYTES: u64 = 512;

/// The attributes in the kernel's form. If the file's memory was not counted, its size is used instead: the
/// kernel may not cache such attributes.
pub(crate) fn kernel_attributes(attributes: &Attributes) -> KernelAttributes {
    let moment = |time: Timestamp| (time.seconds(), time.subsecond_nanos());
    KernelAttributes {
        ino: attributes.inode.0,
        size: attributes.size,
        blocks: attributes.allocated.unwrap_or(attributes.size).div_ceil(COUNTED_BYTES),
        accessed: moment(attributes.accessed),
        modified: moment(attributes.modified),
        changed: moment(attributes.changed),
        mode: attributes.kind.type_bits() | u32::from(attributes.mode),
        links: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.device,
        block_size: BLOCK_BYTES,
    }
}

/// An entry that leads to an inode with these attributes.
pub(crate) fn entry(attributes: &Attributes, believed: Believed) -> Entry {
    Entry {
        node: attributes.inode.0,
        generation: 0,
        attributes: kernel_attributes(attributes),
        entry_valid: believed.name,
        attributes_valid: believed.attributes,
    }
}

/// A time to be set, with this machine's clock for "now".
pub(crate) fn timestamp(time: SetTime) -> Timestamp {
    let nanos = match time {
        SetTime::Now => now_nanos(),
        SetTime::At((seconds, nanos)) => {
            i128::from(seconds).saturating_mul(1_000_000_000).saturating_add(i128::from(nanos))
        }
    };
    Timestamp { nanos: nanos.clamp(i64::MIN.into(), i64::MAX.into()) as i64 }
}

fn now_nanos() -> i128 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_do_not_fit_are_the_farthest_that_do() {
        assert_eq!(timestamp(SetTime::At((-1, 999_999_999))).nanos, -1);
        assert_eq!(timestamp(SetTime::At((i64::MAX, 0))).nanos, i64::MAX);
        assert_eq!(timestamp(SetTime::At((i64::MIN, 0))).nanos, i64::MIN);
        assert!(timestamp(SetTime::Now).nanos > 1_700_000_000_000_000_000);
    }
}
