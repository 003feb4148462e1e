//! Identifiers: small copies with one meaning each, so that a slot is never confused with a server.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! plain_id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

plain_id!(
    /// One process that lends memory; numbered from 0 within its pool.
    ServerId(u16), "server "
);
plain_id!(
    /// A virtual partition of the pool; chunks and namespace entries both live in slots.
    Slot(u16), "slot "
);
plain_id!(
    /// The version of the cluster map. Epoch 0 means "no map yet".
    Epoch(u32), "epoch "
);
plain_id!(
    /// Raised by every truncation of a file. A file begins at generation 1.
    Generation(u64), "generation "
);
plain_id!(
    /// The number a session gives to a mutation; 0 marks a request that changes nothing.
    Sequence(u64), "sequence "
);
plain_id!(
    /// How many records of the log a slot, or a server itself, has taken; the next record has the next number.
    Position(u64), "position "
);

/// A slot that starts empty counts inodes and operations from its first epoch times this, and gives out no more
/// than this many: no slot repeats the numbers of a predecessor that was lost.
pub const NUMBERS_PER_EPOCH: u64 = 1 << 34;
const _: () = assert!((Epoch::LAST_BIRTH.0 as u64 + 1) * NUMBERS_PER_EPOCH == InodeId::COUNTER_MAX + 1);

impl Epoch {
    /// No slot begins empty in a later epoch: there are no numbers left for it.
    pub const LAST_BIRTH: Epoch = Epoch((1 << 14) - 1);

    /// The epoch that follows this one.
    #[must_use]
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }

    /// The first number of inodes and operations of a slot that began empty in this epoch. Behind
    /// [`Epoch::LAST_BIRTH`] it is none that can be given out.
    #[must_use]
    pub fn first_number(self) -> u64 {
        u64::from(self.0.min(Epoch::LAST_BIRTH.0 + 1)) * NUMBERS_PER_EPOCH
    }
}

impl Position {
    /// The position after one more record.
    #[must_use]
    pub fn next(self) -> Position {
        Position(self.0 + 1)
    }
}

impl Generation {
    /// The generation every file begins with.
    pub const FIRST: Generation = Generation(1);

    /// The generation that follows this one.
    #[must_use]
    pub fn next(self) -> Generation {
        Generation(self.0 + 1)
    }
}

/// Names an inode for ever: a 16-bit slot and a 48-bit counter, never reused, never moving.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InodeId(pub u64);

impl InodeId {
    /// Bits of the counter within a slot.
    pub const COUNTER_BITS: u32 = 48;
    /// The largest counter.
    pub const COUNTER_MAX: u64 = (1 << Self::COUNTER_BITS) - 1;
    /// The root directory: the first inode of slot 0.
    pub const ROOT: InodeId = InodeId(1);

    /// Joins a slot and a counter. Panics when the counter needs more than 48 bits.
    #[must_use]
    pub fn new(slot: Slot, counter: u64) -> InodeId {
        assert!(counter <= Self::COUNTER_MAX, "inode counter {counter} needs more than 48 bits");
        InodeId((u64::from(slot.0) << Self::COUNTER_BITS) | counter)
    }

    /// The slot in which the inode lives.
    #[must_use]
    pub fn slot(self) -> Slot {
        Slot((self.0 >> Self::COUNTER_BITS) as u16)
    }

    /// The counter within the slot.
    #[must_use]
    pub fn counter(self) -> u64 {
        self.0 & Self::COUNTER_MAX
    }
}

impl fmt::Display for InodeId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

impl fmt::Debug for InodeId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "InodeId({self})")
    }
}

/// Names one lane of one file: the chunks of `inode` that lie on lane `lane`, one dense file in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LaneId {
    /// The file.
    pub inode: InodeId,
    /// Which of its lanes, 0 to width - 1.
    pub lane: u16,
}

impl fmt::Display for LaneId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.inode, self.lane)
    }
}

/// Names a session: 128 bits chosen at random by the client.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub [u8; 16]);

impl SessionId {
    /// No session: what a connection says before it has opened one.
    pub const NONE: SessionId = SessionId([0; 16]);

    /// The first bytes of the session: enough to tell the sessions of a pool apart, too few to act as one.
    #[must_use]
    pub fn short(self) -> u32 {
        u32::from_be_bytes([self.0[0], self.0[1], self.0[2], self.0[3]])
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SessionId({self})")
    }
}

/// A moment: nanoseconds since 1970-01-01 UTC, good until the year 2262.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp {
    /// Nanoseconds since the Unix epoch; negative before it.
    pub nanos: i64,
}

impl Timestamp {
    /// Whole seconds, rounded down.
    #[must_use]
    pub fn seconds(self) -> i64 {
        self.nanos.div_euclid(1_000_000_000)
    }

    /// A file's time of modification after a write at `wrote` of which is learned `now`: it becomes later, unless it lies in
    /// the future, as a user may have set it, and is never in the future itself.
    #[must_use]
    pub fn after_write(self, wrote: Timestamp, now: Timestamp) -> Timestamp {
        let wrote = wrote.min(now);
        if self > now { wrote } else { self.max(wrote) }
    }

    /// The time of a change at `when` of something that was last changed at `before`. Another server's clock, or a decision
    /// elsewhere, may make `when` the earlier one: then it is a moment behind that, so that it is seen and nothing is older.
    #[must_use]
    pub fn behind(self, before: Timestamp) -> Timestamp {
        if self < before { Timestamp { nanos: before.nanos.saturating_add(1) } } else { self }
    }

    /// The nanoseconds within the second, 0 to 999,999,999.
    #[must_use]
    pub fn subsecond_nanos(self) -> u32 {
        self.nanos.rem_euclid(1_000_000_000) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inode_joins_and_splits() {
        let inode = InodeId::new(Slot(0xbeef), 0x1234_5678_9abc);
        assert_eq!(inode.slot(), Slot(0xbeef));
        assert_eq!(inode.counter(), 0x1234_5678_9abc);
        assert_eq!(inode.to_string(), "beef123456789abc");
        assert_eq!(InodeId::ROOT, InodeId::new(Slot(0), 1));
    }

    #[test]
    fn epochs_have_numbers_of_their_own_as_long_as_there_are_any() {
        let last = Epoch::LAST_BIRTH;
        assert_eq!(Epoch(2).first_number(), Epoch(1).first_number() + NUMBERS_PER_EPOCH);
        assert_eq!(last.first_number() + NUMBERS_PER_EPOCH, InodeId::COUNTER_MAX + 1);
        assert_eq!(last.next().first_number(), InodeId::COUNTER_MAX + 1);
        assert_eq!(Epoch(u32::MAX).first_number(), InodeId::COUNTER_MAX + 1, "it does not wrap round");
    }

    #[test]
    #[should_panic(expected = "48 bits")]
    fn inode_counter_has_an_end() {
        let _ = InodeId::new(Slot(0), 1 << 48);
    }

    // SEMANTICS 58.4
    #[test]
    fn a_write_makes_a_file_newer_and_not_newer_than_now() {
        let [old, wrote, now, future] = [1, 5, 9, 20].map(|nanos| Timestamp { nanos });
        assert_eq!(old.after_write(wrote, now), wrote);
        assert_eq!(wrote.after_write(old, now), wrote, "somebody else has written since");
        assert_eq!(future.after_write(wrote, now), wrote, "it was set by hand");
        assert_eq!(old.after_write(future, now), now, "the writer's clock is ahead");
    }

    #[test]
    fn timestamps_before_1970_split_downwards() {
        let moment = Timestamp { nanos: -1 };
        assert_eq!((moment.seconds(), moment.subsecond_nanos()), (-1, 999_999_999));
    }
}
