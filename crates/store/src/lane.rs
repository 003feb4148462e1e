//! What is known of one lane without asking the kernel.

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, LaneId, Result};

use crate::range_set::RangeSet;
use crate::sys::{self, PAGE_BYTES};

/// A part of a lane: bytes, or a hole that reads as zeros and holds no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Which bytes of the lane.
    pub range: ByteRange,
    /// Whether there is nothing: send zeros from elsewhere, for a load would allocate.
    pub is_hole: bool,
}

/// The record of a lane. Its numbers are the kernel's as of the last change by this process.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Length of the file.
    pub(crate) length: u64,
    /// Memory of the file, as counted in the pool.
    pub(crate) allocated: u64,
    /// Whole pages known to be allocated; `None` until they are needed.
    pub(crate) present: Option<RangeSet>,
    /// Pages that were taken for stores to come, and not written since: zeros that need not be read.
    pub(crate) blank: RangeSet,
    /// Whether a client holds a descriptor, and may have changed the file behind our back.
    pub(crate) granted: bool,
    /// Whether memory may have been taken beyond the end of the file. Such pages hold no data, so that after a
    /// restart nothing but cutting the file shows whether there are any.
    pub(crate) tail: bool,
}

/// Pages of `file` from `at` to `end` that hold data. Pages that are allocated but were never written
/// are not among them: taking them again costs a call and no memory.
pub(crate) fn scan(file: &std::os::fd::OwnedFd, mut at: u64, end: u64) -> Result<RangeSet> {
    let mut present = RangeSet::default();
    while let Some(data) = sys::tell(sys::next_data(file, at, end), "looking for the holes of a lane")? {
        present.insert(data.aligned_outward(PAGE_BYTES));
        at = data.end;
    }
    Ok(present)
}

/// The name of a lane's file.
pub(crate) fn file_name(id: LaneId) -> String {
    id.to_string()
}

/// The lane that a file belongs to.
///
/// Errors: `Corrupt` for a name that no lane has.
pub(crate) fn parse_file_name(name: &str) -> Result<LaneId> {
    let parse = || {
        let (inode, lane) = name.split_once('.')?;
        let id = LaneId { inode: InodeId(u64::from_str_radix(inode, 16).ok()?), lane: lane.parse().ok()? };
        (file_name(id) == name).then_some(id)
    };
    parse().ok_or_else(|| {
        Error::new(
            ErrorKind::Corrupt,
            format!("the store holds '{}', which is no lane", name.escape_default()),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_others_are_refused() {
        let id = LaneId { inode: InodeId(0xbeef_0000_0000_0001), lane: 4095 };
        assert_eq!(file_name(id), "beef000000000001.4095");
        assert_eq!(parse_file_name("beef000000000001.4095").unwrap(), id);
        for name in [
            "",
            "x",
            "beef.1",
            "beef000000000001.",
            "beef000000000001.65536",
            "BEEF000000000001.1",
            "beef000000000001.01",
        ] {
            assert_eq!(parse_file_name(name).unwrap_err().kind(), ErrorKind::Corrupt, "{name}");
        }
    }
}
