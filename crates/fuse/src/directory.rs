//! Entries of a directory, in the kernel's form.

use zerocopy::IntoBytes;

use crate::{Entry, abi, encode};

/// Entries of a directory for one READDIR or READDIRPLUS reply.
#[derive(Debug)]
pub struct DirectoryBuffer {
    data: Vec<u8>,
    bytes_max: usize,
}

/// Memory taken at once; a larger directory grows it.
const FIRST_BYTES_MAX: usize = 64 << 10;
/// Records begin at multiples of this.
const RECORD_ALIGN_BYTES: usize = 8;

impl DirectoryBuffer {
    /// Room for this many bytes: the `size` of the request.
    #[must_use]
    pub fn new(bytes_max: usize) -> DirectoryBuffer {
        DirectoryBuffer { data: Vec::with_capacity(bytes_max.min(FIRST_BYTES_MAX)), bytes_max }
    }

    /// Adds an entry; false when it does not fit. `kind` is the mode's `S_IFMT` part (or the whole mode);
    /// `next_offset` is what the kernel sends to go on after it.
    pub fn push(&mut self, name: &[u8], ino: u64, kind: u32, next_offset: u64) -> bool {
        self.append(&[], name, ino, kind, next_offset)
    }

    /// Adds an entry with attributes; `None` leaves them to a later lookup (as `.` and `..` must).
    ///
    /// An entry given counts as a lookup of its node. A reply has entries of `push` or of `push_plus`, never both.
    pub fn push_plus(
        &mut self,
        name: &[u8],
        ino: u64,
        kind: u32,
        next_offset: u64,
        entry: Option<&Entry>,
    ) -> bool {
        let attributes = entry.map(encode::entry_out).unwrap_or_default();
        self.append(attributes.as_bytes(), name, ino, kind, next_offset)
    }

    fn append(&mut self, front: &[u8], name: &[u8], ino: u64, kind: u32, next_offset: u64) -> bool {
        let record = front.len() + size_of::<abi::Dirent>() + name.len();
        let padded = record.next_multiple_of(RECORD_ALIGN_BYTES);
        let Ok(namelen) = u32::try_from(name.len()) else { return false };
        if self.data.len() + padded > self.bytes_max {
            return false;
        }
        // The kernel wants the four kind bits of the mode (DT_*).
        let entry = abi::Dirent { ino, off: next_offset, namelen, kind: kind >> 12 & 0xf };
        self.data.extend_from_slice(front);
        self.data.extend_from_slice(entry.as_bytes());
        self.data.extend_from_slice(name);
        self.data.resize(self.data.len() + padded - record, 0);
        true
    }

    /// No entry is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The records.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.data
    }
}
