//! Listing directories. A place in a directory is the cookie of the entry before it, so a listing
//! goes on where it stopped, in whatever process, and splits and removals move nothing.

use ramlace_base::{InodeId, Result, limits};
use ramlace_fuse::DirectoryBuffer;
use ramlace_wire::FileKind;
use ramlace_wire::namespace::DirectoryEntry;

use crate::attributes::entry;
use crate::filesystem::PoolFileSystem;
use crate::leases::Believed;

/// Places behind `.` and `..`; cookies of entries are larger, for the hash in them is never 0.
const BEHIND_DOT: u64 = 1;
const BEHIND_DOT_DOT: u64 = 2;

/// Bytes that an entry takes in the kernel's buffer at the least, without and with attributes: by these a
/// request guesses how many fit.
const ENTRY_BYTES_MIN: usize = 32;
const ENTRY_PLUS_BYTES_MIN: usize = 160;

impl PoolFileSystem {
    /// Fills `buffer` with entries behind the place `after`.
    pub(crate) fn read_directory(
        &self,
        inode: InodeId,
        after: u64,
        size: u32,
        plus: bool,
    ) -> Result<DirectoryBuffer> {
        let mut buffer = DirectoryBuffer::new(size as usize);
        if !push_dots(&mut buffer, inode, after, plus) {
            return Ok(buffer);
        }
        let mut filled = after < BEHIND_DOT_DOT;
        let mut after = if after <= BEHIND_DOT_DOT { 0 } else { after };
        let each = if plus { ENTRY_PLUS_BYTES_MIN } else { ENTRY_BYTES_MIN };
        let fit = (size as usize / each).clamp(1, limits::READDIR_ENTRIES_MAX as usize) as u32;
        loop {
            let page = match self.raw().read_directory(inode, after, fit) {
                // What was found before comes first: the kernel asks for what follows, and hears why not.
                Err(_) if filled => return Ok(buffer),
                page => page?,
            };
            for found in &page.entries {
                if !push(&mut buffer, found, plus) {
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

/// Both names that every directory has; false when they did not fit.
fn push_dots(buffer: &mut DirectoryBuffer, inode: InodeId, after: u64, plus: bool) -> bool {
    let dots: [(u64, &[u8]); 2] = [(BEHIND_DOT, b"."), (BEHIND_DOT_DOT, b"..")];
    dots.iter()
        .filter(|(place, _)| after < *place)
        .all(|(place, name)| add(buffer, name, inode, FileKind::Directory, *place, None, plus))
}

fn push(buffer: &mut DirectoryBuffer, found: &DirectoryEntry, plus: bool) -> bool {
    let known = found.attributes.as_ref().map(|attributes| entry(attributes, Believed::NOT));
    add(buffer, found.name.as_bytes(), found.inode, found.kind, found.cookie, known.as_ref(), plus)
}

fn add(
    buffer: &mut DirectoryBuffer,
    name: &[u8],
    inode: InodeId,
    kind: FileKind,
    place: u64,
    known: Option<&ramlace_fuse::Entry>,
    plus: bool,
) -> bool {
    if plus {
        buffer.push_plus(name, inode.0, kind.type_bits(), place, known)
    } else {
        buffer.push(name, inode.0, kind.type_bits(), place)
    }
}
