//! Small files whose bytes live with their inode, in the namespace's family.
//!
//! A file begins inline and goes to its lanes once, for ever: a client that knows it to be in its lanes is
//! right for ever, and one that takes it for inline is corrected by the file's home.

use std::fmt;

use ramlace_base::{Epoch, InodeId, Slot, limits};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::chunk::WriteOrigin;
use crate::namespace::SizeInfo;
use crate::possible::is_size;
use crate::types::numbered;
use crate::{Kind, Request};

/// Bytes in a body; written and read in one piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        deserializer.deserialize_byte_buf(BytesVisitor)
    }
}

struct BytesVisitor;

impl<'de> Visitor<'de> for BytesVisitor {
    type Value = Bytes;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("bytes")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
        Ok(Bytes(bytes.to_vec()))
    }

    fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
        Ok(Bytes(bytes))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Bytes, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = sequence.next_element()? {
            bytes.push(byte);
        }
        Ok(Bytes(bytes))
    }
}

numbered! {
    /// Where a file's bytes are.
    BytesPlace {
        /// In its lanes, for ever.
        Lanes = 1,
        /// With its inode.
        Inode = 2,
        /// In flight from the inode to lane 0.
        Leaving = 3,
    }
}

/// Bytes of an inline file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadInline {
    /// The file.
    pub inode: InodeId,
    /// The first byte.
    pub offset: u64,
    /// At most so many.
    pub length: u32,
    /// A kernel will keep pages of them: the session gets a lease on the file's bytes.
    pub keep: bool,
}

/// Bytes of an inline file, and its size at the same moment. Up to the size, what lies behind the
/// bytes is zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InlineRead {
    /// Size and generation.
    pub size: SizeInfo,
    /// `None`: the file is in its lanes.
    pub bytes: Option<Bytes>,
    /// The epoch since which its lanes have what they were given, once it is there.
    pub since: Epoch,
}

impl Request for ReadInline {
    const KIND: Kind = Kind::ReadInline;
    type Reply = InlineRead;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &InlineRead) -> bool {
        let bytes = reply.bytes.as_ref().map_or(0, |bytes| bytes.0.len());
        reply.size.is_possible() && bytes <= self.length as usize
    }
}

numbered! {
    /// Where the bytes of a [`WriteInline`] go.
    InlineMode {
        /// To the offset.
        At = 1,
        /// To the offset, as far as the file reaches; it does not grow.
        Within = 2,
        /// To the end of the file, wherever that is.
        End = 3,
    }
}

/// Changes bytes of an inline file, its size and its times, in one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteInline {
    /// The file.
    pub inode: InodeId,
    /// Where the bytes go.
    pub mode: InlineMode,
    /// The first byte; 0 at the end.
    pub offset: u64,
    /// At least one, and no more than an inline file may have.
    pub bytes: Bytes,
    /// Where they come from.
    pub origin: WriteOrigin,
}

numbered! {
    /// What became of a [`WriteInline`].
    InlineOutcome {
        /// The bytes are in their place.
        Written = 1,
        /// Nothing: the file is in its lanes.
        InLanes = 2,
        /// Nothing: they do not fit there; promote the file and write to its lanes.
        Full = 3,
    }
}

/// What became of a [`WriteInline`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InlineWritten {
    /// What became of it.
    pub outcome: InlineOutcome,
    /// Where the first byte went.
    pub offset: u64,
    /// Size and generation afterwards.
    pub size: SizeInfo,
    /// As [`InlineRead::since`].
    pub since: Epoch,
    /// As [`crate::chunk::ChunkWritten::recall`].
    pub recall: u64,
}

impl Request for WriteInline {
    const KIND: Kind = Kind::WriteInline;
    type Reply = InlineWritten;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &InlineWritten) -> bool {
        let end = reply.offset.checked_add(self.bytes.0.len() as u64);
        reply.size.is_possible() && (reply.outcome != InlineOutcome::Written || end.is_some_and(is_size))
    }
}

numbered! {
    /// What the client's kernel may have of the first page of a file that is promoted. Others have dropped theirs before the
    /// bytes go.
    FirstPage {
        /// Perhaps a page that is locked for the very request that needs the promotion: it is recalled, and waited for only if
        /// others have changed it since. The client listens to lane 0's server, where others recall it from then on.
        Locked = 1,
        /// None: it is just reading it. Others that promote the file do not wait for its drop, which would wait for that read.
        Read = 2,
        /// Perhaps one that is locked for nothing: it is dropped before the bytes go, as those of others.
        Free = 3,
    }
}

/// The file's bytes go to its lanes; answered when they are there. Nothing for one that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promote {
    /// The file.
    pub inode: InodeId,
    /// What the client's kernel may have of its first page.
    pub first_page: FirstPage,
}

/// The file is in its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promoted {
    /// Size and generation.
    pub size: SizeInfo,
    /// As [`InlineRead::since`].
    pub since: Epoch,
}

impl Request for Promote {
    const KIND: Kind = Kind::Promote;
    type Reply = Promoted;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &Promoted) -> bool {
        reply.size.is_possible()
    }
}

/// What a file may have inline, so that it fits any message with what goes along.
const _: () = assert!(limits::INLINE_BYTES_MAX * 4 < limits::BODY_BYTES_MAX as usize);
