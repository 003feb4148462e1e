//! Tries whether a tmpfs really hands out huge pages.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use ramlace_base::{Result, limits};
use rustix::fs::{AtFlags, OFlags};

use crate::sys;
use crate::window::Mapping;

const PROBE: &str = "probe";

/// Maps one huge page of a file, has it filled in, and checks how the kernel reports it.
pub(crate) fn gets_huge_pages(directory: &OwnedFd) -> Result<bool> {
    let file = sys::tell(sys::open_file(directory, PROBE, OFlags::CREATE), "making the probe file")?;
    let length = limits::HUGE_PAGE_BYTES;
    sys::tell(rustix::fs::ftruncate(&file, length), "growing the probe file")?;
    let mapping = Mapping::new(file.as_fd(), 0, length)?;
    let filled = mapping.populate(0, length).is_ok();
    let huge =
        filled && fs::read_to_string("/proc/self/smaps").is_ok_and(|maps| is_huge(&maps, mapping.address()));
    drop(mapping);
    // A process forked by another thread may hold a copy of the descriptor for a moment: emptying
    // the file frees its memory now, which closing it here might not.
    sys::tell(rustix::fs::ftruncate(&file, 0), "emptying the probe file")?;
    sys::tell(rustix::fs::unlinkat(directory, PROBE, AtFlags::empty()), "removing the probe file")?;
    Ok(huge)
}

/// Whether the mapping at `address` has a huge page of shared memory, in the text of `/proc/self/smaps`.
fn is_huge(maps: &str, address: usize) -> bool {
    let start = format!("{address:x}-");
    maps.lines()
        .skip_while(|line| !line.starts_with(&start))
        .find_map(|line| line.strip_prefix("ShmemPmdMapped:"))
        .is_some_and(|value| !value.trim().starts_with("0 "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_are_read_at_the_right_mapping() {
        let maps = "7f00-8000 rw-s 0 0:1 5 /a\nShmemPmdMapped:   2048 kB\n9000-a000 rw-s 0 0:1 6 /b\n\
                    ShmemPmdMapped:      0 kB\n";
        assert!(is_huge(maps, 0x7f00));
        assert!(!is_huge(maps, 0x9000));
        assert!(!is_huge(maps, 0x1234));
    }
}
