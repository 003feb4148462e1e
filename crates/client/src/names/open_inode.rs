//! What this process knows of an inode that it holds open: its size, its times, and its permit.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};

use ramlace_base::{Epoch, Generation, InodeId, Timestamp};
use ramlace_sync::Mutex;
use ramlace_wire::Permit;
use ramlace_wire::namespace::InodeInfo;

use crate::bytes::near_lanes::NearLanes;
use crate::bytes::permits::HeldPermit;

/// A size that is a lower bound as long as the generation holds (`docs/records/generations.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) generation: Generation,
    pub(crate) size: u64,
}

/// An inode that this process holds open.
///
/// Lock order: `telling`, then `size` and all locks of the session: it alone is held while a home is asked. What notifies
/// homes in the background does not wait for it.
pub(crate) struct OpenInode {
    pub(crate) inode: InodeId,
    size: Mutex<Size>,
    /// The file is inline as far as is known; once it is not, it never will be again.
    inline: AtomicBool,
    /// The epoch from which on its lanes have what was written to them; a promotion sets it later.
    since: AtomicU32,
    /// When it was last written without the home's knowledge, in nanoseconds; 0: never.
    pub(crate) written: AtomicI64,
    /// The outbox has a message that notifies the home.
    pub(crate) times_in_outbox: AtomicBool,
    /// Held while the home is notified.
    pub(crate) telling: Mutex<()>,
    /// The permit that proves to its lanes for what a host's session has it open.
    pub(crate) permit: HeldPermit,
    /// Lanes whose descriptors servers of this machine have given out.
    pub(crate) near: NearLanes,
    /// Whether its home may assume that a kernel maps it. This outlasts the session's end: programs may still
    /// map it.
    pub(crate) with_kernel: AtomicBool,
}

impl OpenInode {
    pub(crate) fn new(info: &InodeInfo) -> OpenInode {
        let attributes = &info.attributes;
        let size = Size { generation: attributes.generation, size: attributes.size };
        OpenInode::of_size(attributes.inode, size, info.inline, lanes_since(info))
    }

    pub(crate) fn of_size(inode: InodeId, size: Size, inline: bool, since: Epoch) -> OpenInode {
        OpenInode {
            inode,
            size: Mutex::new(size),
            inline: AtomicBool::new(inline),
            since: AtomicU32::new(since.0),
            written: AtomicI64::new(0),
            times_in_outbox: AtomicBool::new(false),
            telling: Mutex::new(()),
            permit: HeldPermit::default(),
            near: NearLanes::default(),
            with_kernel: AtomicBool::new(false),
        }
    }

    pub(crate) fn size(&self) -> Size {
        *self.size.lock()
    }

    /// Whether it is inline, as far as is known here.
    pub(crate) fn is_inline(&self) -> bool {
        self.inline.load(Ordering::Acquire)
    }

    /// It was promoted to its lanes, for ever.
    pub(crate) fn goes_to_lanes(&self, since: Epoch) {
        self.since.fetch_max(since.0, Ordering::AcqRel);
        self.inline.store(false, Ordering::Release);
    }

    /// The epoch from which on its lanes have what was written to them.
    pub(crate) fn lanes_since(&self) -> Epoch {
        Epoch(self.since.load(Ordering::Acquire))
    }

    /// Learns everything that the home has answered.
    pub(crate) fn learn_info(&self, info: &InodeInfo) {
        if !info.inline {
            self.goes_to_lanes(lanes_since(info));
        }
        self.learn(Size { generation: info.attributes.generation, size: info.attributes.size });
    }

    /// Learns the size that the home has answered. Replies overtake each other: the newest generation wins,
    /// and within one a size only grows.
    pub(crate) fn learn(&self, newer: Size) {
        let mut known = self.size.lock();
        if newer.generation > known.generation {
            *known = newer;
        } else if newer.generation == known.generation {
            known.size = known.size.max(newer.size);
        }
    }

    /// Whether this session may write to it: by its permit, or because it needs none.
    pub(crate) fn may_write(&self) -> bool {
        self.permit.allows_writing()
    }

    /// The permit that is sent with requests to its lanes.
    pub(crate) fn permit(&self) -> Option<Permit> {
        self.permit.get()
    }

    /// The home knows of every write up to now, or need not know.
    pub(crate) fn clean(&self) {
        self.written.store(0, Ordering::Release);
    }

    /// When it was written, unless the home knows; a caller that takes it notifies the home.
    pub(crate) fn take_written(&self) -> Option<Timestamp> {
        match self.written.swap(0, Ordering::AcqRel) {
            0 => None,
            nanos => Some(Timestamp { nanos }),
        }
    }

    /// The home was not reached: puts the time back unless there is a later one.
    pub(crate) fn put_back(&self, written: Timestamp) {
        self.written.fetch_max(written.nanos, Ordering::AcqRel);
    }

    pub(crate) fn written(&self) -> i64 {
        self.written.load(Ordering::Acquire)
    }

    /// The home knows of a write that began after `before` was read.
    pub(crate) fn clean_if(&self, before: i64) {
        let _ = self.written.compare_exchange(before, 0, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// The epoch from which on the lanes of an inode have what was written to them.
pub(crate) fn lanes_since(info: &InodeInfo) -> Epoch {
    info.layout.map_or(Epoch(0), |layout| layout.created)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_within_a_generation_and_follow_a_newer_one() {
        let size = |generation, size| Size { generation: Generation(generation), size };
        let open = OpenInode::of_size(InodeId::ROOT, size(2, 100), false, Epoch(1));
        open.learn(size(2, 50));
        assert_eq!(open.size(), size(2, 100));
        open.learn(size(2, 150));
        open.learn(size(1, 900));
        assert_eq!(open.size(), size(2, 150));
        open.learn(size(3, 10));
        assert_eq!(open.size(), size(3, 10));
    }

    #[test]
    fn a_time_that_could_not_be_told_is_kept_unless_a_later_one_came() {
        let open =
            OpenInode::of_size(InodeId::ROOT, Size { generation: Generation(1), size: 0 }, false, Epoch(1));
        open.written.store(5, Ordering::Release);
        let taken = open.take_written().unwrap();
        assert_eq!(open.take_written(), None);
        open.written.store(9, Ordering::Release);
        open.put_back(taken);
        assert_eq!(open.take_written(), Some(Timestamp { nanos: 9 }));
    }
}
