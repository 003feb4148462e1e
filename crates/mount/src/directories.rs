//! Listing directories. A position in a directory is the cookie of the entry before it, so a listing
//! continues where it stopped, in whatever process, and splits and removals move nothing.

use ramlace_base::{InodeId, Result, limits};
use ramlace_fuse::DirectoryBuffer;
use ramlace_wire::FileKind;

use crate::mounted::PoolFileSystem;

/// Positions behind `.` and `..`; cookies of entries are larger, because the hash in them is never 0.
const BEHIND_DOT: u64 = 1;
const BEHIND_DOT_DOT: u64 = 2;

/// The least number of bytes that an entry takes in the kernel's buffer: a request estimates by it how many
/// fit.
const ENTRY_BYTES_MIN: usize = 32;

impl PoolFileSystem {
    /// Fills `buffer` with entries behind the position `after`.
    pub(crate) fn read_directory(&self, inode: InodeId, after: u64, size: u32) -> Result<DirectoryBuffer> {
        let mut buffer = DirectoryBuffer::new(size as usize);
        self.leases.listed(inode);
        let above = self.nodes.places.parent(inode).unwrap_or(inode.0);
        if !push_dots(&mut buffer, (inode.0, above), after) {
            return Ok(buffer);
        }
        let mut filled = after < BEHIND_DOT_DOT;
        let mut after = if after <= BEHIND_DOT_DOT { 0 } else { after };
        let fit = (size as usize / ENTRY_BYTES_MIN).clamp(1, limits::READDIR_ENTRIES_MAX as usize) as u32;
        loop {
            let page = match self.raw().read_directory(inode, after, fit) {
                // The entries found so far are returned first: the kernel asks for what follows, and gets the
                // error then.
                Err(_) if filled => return Ok(buffer),
                page => page?,
            };
            for found in &page.entries {
                let (name, kind) = (found.name.as_bytes(), found.kind.type_bits());
                if !buffer.push(name, found.inode.0, kind, found.cookie) {
                    return Ok(buffer);
                }
                after = found.cookie;
                filled = true;
            }
            if page.end || page.entries.is_empty() {
                return Ok(buffer);
            }
        }
    }
}

/// Adds the two names that every directory has, with their numbers; false when they did not fit.
fn push_dots(buffer: &mut DirectoryBuffer, (itself, above): (u64, u64), after: u64) -> bool {
    let dots: [(u64, &[u8], u64); 2] = [(BEHIND_DOT, b".", itself), (BEHIND_DOT_DOT, b"..", above)];
    dots.iter()
        .filter(|(place, ..)| after < *place)
        .all(|(place, name, number)| buffer.push(name, *number, FileKind::Directory.type_bits(), *place))
}
