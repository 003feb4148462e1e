//! What no state of a pool makes true, so that a message that says it is wrong: checked where a message is
//! received, before it is used. A reply that a client or a server gets is compared with the request that it
//! answers; a message between servers is checked by itself. This file has what all families share;
//! `is_possible` of a message's own type stands beside the type.

use ramlace_base::{Generation, InodeId, LaneId, limits};

use crate::{Attributes, Layout};

/// Numbers that are counted up from small ones: nothing ever comes so far, and what is added to one overflows nothing.
const COUNTED_MAX: u64 = 1 << 62;
/// Permission bits.
pub(crate) const MODE_MAX: u16 = 0o7777;

/// Whether a file can have so many bytes, or one at this place.
pub(crate) fn is_size(bytes: u64) -> bool {
    bytes <= limits::FILE_BYTES_MAX
}

/// Whether something can have been counted so far.
pub(crate) fn is_counted(number: u64) -> bool {
    number < COUNTED_MAX
}

/// Whether a file can have come to this generation.
pub(crate) fn is_generation(generation: Generation) -> bool {
    generation >= Generation::FIRST && is_counted(generation.0)
}

/// Whether a file can have this lane.
pub(crate) fn is_lane(lane: LaneId) -> bool {
    lane.lane < limits::WIDTH_LANES_MAX
}

impl Layout {
    /// Whether a file of some pool can have it: nothing that is worked out from it overflows or divides by zero.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        let units = limits::STRIPE_UNIT_BYTES_MIN..=limits::STRIPE_UNIT_BYTES_MAX;
        self.stripe_unit.is_power_of_two()
            && units.contains(&self.stripe_unit)
            && (1..=limits::WIDTH_LANES_MAX).contains(&self.width)
            && (1..=limits::COPIES_MAX).contains(&self.copies)
            && (self.width == 1 || self.stride > 0)
    }
}

impl Attributes {
    pub(crate) fn is_possible(&self) -> bool {
        self.mode <= MODE_MAX
            && is_size(self.size)
            && self.allocated.is_none_or(is_size)
            && is_generation(self.generation)
    }

    pub(crate) fn is_of(&self, inode: InodeId) -> bool {
        self.inode == inode && self.is_possible()
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::{Name, Timestamp};

    use super::*;
    use crate::leases::DataRecall;
    use crate::listen::{Listen, News};
    use crate::locks::{
        ConflictingLock, Event, GetLock, HeldLock, LOCK_END, LockKind, LockTable, LockedFile,
    };
    use crate::namespace::{Unlink, Unlinked};
    use crate::{FileKind, Request};

    // SEMANTICS 112
    #[test]
    fn what_is_told_of_a_directory_with_an_answer_can_be_this_one() {
        let now = Timestamp { nanos: 1 };
        let root = Attributes {
            inode: InodeId::ROOT,
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            links: 2,
            size: 1,
            device: 0,
            generation: Generation::FIRST,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            xattrs: false,
            allocated: None,
        };
        let unlink = Unlink { parent: InodeId::ROOT, name: Name::new("gone").unwrap() };
        let fits = |parent: Option<Attributes>| unlink.fits(&Unlinked { parent, inode: None });
        assert!(fits(None) && fits(Some(root.clone())));
        assert!(!fits(Some(Attributes { inode: InodeId(7), ..root })));
        assert!(!fits(Some(Attributes { kind: FileKind::File, ..root })));
        assert!(!fits(Some(Attributes { size: u64::MAX, ..root })));
        assert!(!fits(Some(Attributes { mode: u16::MAX, ..root })));
        assert!(!fits(Some(Attributes { allocated: Some(u64::MAX), ..root })));
    }

    // SEMANTICS 112
    #[test]
    fn what_is_told_unasked_can_be() {
        let listen = Listen { leases: true, acknowledged: 0, received: 0, life: 0 };
        let recalled = |lane, start, end| {
            let data = vec![DataRecall { number: 1, inode: InodeId(7), lane, start, end }];
            listen.fits(&News { data, life: 1, ..News::default() })
        };
        assert!(recalled(Some(0), 0, u64::MAX) && recalled(None, 5, 5) && recalled(Some(3), 5, 6));
        assert!(!recalled(Some(0), 6, 5), "it ends before it begins");
        assert!(!recalled(Some(0), u64::MAX - 5, u64::MAX), "no file reaches there");
        assert!(!recalled(Some(u16::MAX), 0, 5), "no file has so many lanes");
        let granted = |size| {
            let file = LockedFile {
                size,
                generation: Generation::FIRST,
                changed: Timestamp { nanos: 1 },
                may_change_unnoticed: false,
            };
            let events = vec![Event::LockGranted { inode: InodeId(7), wait: 1, file }];
            listen.fits(&News { events, life: 1, ..News::default() })
        };
        assert!(granted(5) && !granted(u64::MAX));
    }

    // SEMANTICS 112
    #[test]
    fn a_conflicting_lock_has_a_byte() {
        let inode = InodeId(7);
        let (table, kind) = (LockTable::Fcntl, LockKind::Exclusive);
        let asked = GetLock { inode, table, owner: 1, kind, start: 0, end: LOCK_END };
        let told = |start, end| {
            let lock = Some(HeldLock { kind, start, end, pid: 0 });
            asked.fits(&ConflictingLock { lock })
        };
        assert!(told(0, 1) && told(5, LOCK_END) && asked.fits(&ConflictingLock { lock: None }));
        assert!(!told(0, 0) && !told(7, 5) && !told(0, LOCK_END + 1));
    }
}
