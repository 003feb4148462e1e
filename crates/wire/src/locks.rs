//! Family 0x07: locks on files, and what a server sends a session when it happens.
//!
//! A lock belongs to an owner: a number that its session has chosen. A caller that has to wait gets that answer
//! at once, and is notified of the grant by [`crate::listen::Listen`].

use ramlace_base::{Generation, InodeId, SessionId, Slot, Timestamp, numbered_variants};
use serde::{Deserialize, Serialize};

use crate::possible::{is_generation, is_size};
use crate::types::numbered;
use crate::{Kind, Request};

numbered! {
    /// The two kinds of locks of a file, which know nothing of each other.
    LockTable {
        /// `fcntl` (POSIX and OFD), and the library's range locks.
        Fcntl = 1,
        /// `flock`: all of the file.
        Flock = 2,
    }
}

numbered! {
    /// What a lock lets others do.
    LockKind {
        /// Others may hold shared locks, too.
        Shared = 1,
        /// No other owner holds any.
        Exclusive = 2,
    }
}

numbered! {
    /// What became of a request for a lock.
    LockOutcome {
        /// It is held; or what was to be unlocked is.
        Granted = 1,
        /// It waits its turn; an event will follow.
        Queued = 2,
        /// Another owner has a conflicting lock, and nothing has changed; or the wait is cancelled.
        Refused = 3,
    }
}

/// The end of a range that goes as far as any file may.
pub const LOCK_END: u64 = 1 << 63;

/// The holder of a lock: a number of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockOwner {
    /// The session.
    pub session: SessionId,
    /// The session's number for the process, the open file, or whatever it is.
    pub owner: u64,
}

/// What distinguishes two states of a file's bytes, at the moment of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockedFile {
    /// The published size.
    pub size: u64,
    /// Its generation.
    pub generation: Generation,
    /// When it was last changed, by the home's clock.
    pub changed: Timestamp,
    /// A kernel may have changed it since, without notice: see [`crate::namespace::BeginPassthrough`].
    pub may_change_unnoticed: bool,
}

impl LockedFile {
    pub(crate) fn is_possible(&self) -> bool {
        is_size(self.size) && is_generation(self.generation)
    }
}

/// Locks bytes of a file, or unlocks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetLock {
    /// The file; the session has it open.
    pub inode: InodeId,
    /// Which of its locks.
    pub table: LockTable,
    /// The owner.
    pub owner: u64,
    /// `None` unlocks.
    pub kind: Option<LockKind>,
    /// The first byte.
    pub start: u64,
    /// Behind the last byte; [`LOCK_END`] for all that follow.
    pub end: u64,
    /// The owner's process, for callers in the same session.
    pub pid: u32,
    /// The session's number for this request, by which it can be taken back; 0 for an unlock, which cannot. The same number
    /// again asks what has become of it.
    pub number: u64,
    /// It waits where another lock conflicts.
    pub waits: bool,
    /// The session knows what became of all requests of this owner for locks of this file with lower numbers, and takes none of
    /// them back.
    pub settled_below: u64,
    /// Its owner waits for nothing else meanwhile: cycles with it are deadlocks.
    pub detects: bool,
}

/// What became of it, and what the file was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockAnswer {
    /// What became of it.
    pub outcome: LockOutcome,
    /// What the file was.
    pub file: LockedFile,
}

impl Request for SetLock {
    const KIND: Kind = Kind::SetLock;
    type Reply = LockAnswer;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &LockAnswer) -> bool {
        reply.file.is_possible()
    }
}

/// Cancels a request for a lock. `Granted` when the lock is held because of it, and stays; `Refused`: no lock is held because
/// of it, for it waits no more, was taken back, or never came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelLock {
    /// The file.
    pub inode: InodeId,
    /// The session's number for the request.
    pub number: u64,
    /// A lock that was granted is taken back: its owner holds again what it held before. Of bytes that the owner has locked or
    /// unlocked since, nothing changes, and where others hold a lock that conflicts with an exclusive one that the
    /// request had made a shared one, that stays.
    pub take_back: bool,
}

impl Request for CancelLock {
    const KIND: Kind = Kind::CancelLock;
    type Reply = LockAnswer;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &LockAnswer) -> bool {
        reply.file.is_possible()
    }
}

/// Which lock conflicts with one like this?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetLock {
    /// The file.
    pub inode: InodeId,
    /// Which of its locks.
    pub table: LockTable,
    /// The owner that asks.
    pub owner: u64,
    /// What it would lock.
    pub kind: LockKind,
    /// The first byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
}

/// A lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLock {
    /// Its kind.
    pub kind: LockKind,
    /// The first byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
    /// The holder's process when it is of the asking session, else 0.
    pub pid: u32,
}

/// The first conflicting lock, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictingLock {
    /// The lock.
    pub lock: Option<HeldLock>,
}

impl Request for GetLock {
    const KIND: Kind = Kind::GetLock;
    type Reply = ConflictingLock;

    fn slot(&self, _named: Slot) -> Slot {
        self.inode.slot()
    }

    fn fits(&self, reply: &ConflictingLock) -> bool {
        reply.lock.is_none_or(|lock| lock.start < lock.end && lock.end <= LOCK_END)
    }
}

/// Something that a session waits for has happened. Sent once: a session that loses a connection asks again for
/// everything that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A lock was granted.
    LockGranted {
        /// The file.
        inode: InodeId,
        /// The session's number for the wait.
        wait: u64,
        /// What the file was then.
        file: LockedFile,
    },
    /// All members of a barrier have come.
    BarrierPassed {
        /// The session's number for the wait.
        wait: u64,
        /// Which round it was.
        round: u64,
    },
    /// Bytes for whose change it waits were changed.
    Changed {
        /// The session's number for the wait.
        wait: u64,
        /// The lane; `None`: with the inode.
        lane: Option<u16>,
        /// Stands for the state afterwards.
        number: u64,
    },
}

numbered_variants! { Event:
    0 LockGranted { inode, wait, file };
    1 BarrierPassed { wait, round };
    2 Changed { wait, lane, number };
}

impl Event {
    pub(crate) fn is_possible(&self) -> bool {
        match self {
            Event::LockGranted { file, .. } => file.is_possible(),
            Event::BarrierPassed { .. } | Event::Changed { .. } => true,
        }
    }
}

/// Does a wait of this session close a cycle of owners that wait for each other? Then the wait is cancelled.
/// Asked of slot 0, which searches for one cycle after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindDeadlock {
    /// The file.
    pub inode: InodeId,
    /// The session's number for the wait.
    pub wait: u64,
    /// The owner that waits.
    pub owner: u64,
}

/// Whether there is a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlockFound {
    /// There is one, and the wait is cancelled.
    pub found: bool,
    /// It waits still. If neither is so, it was granted, or an answer to this was lost.
    pub waits: bool,
}

impl Request for FindDeadlock {
    const KIND: Kind = Kind::FindDeadlock;
    type Reply = DeadlockFound;
}

/// Server to server: what do these owners wait for at your slots?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListLockWaits {
    /// The owners.
    pub owners: Vec<LockOwner>,
}

/// One wait of an owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockWait {
    /// The file.
    pub inode: InodeId,
    /// The owner that waits.
    pub owner: LockOwner,
    /// The session's number for the wait.
    pub wait: u64,
    /// The owners that it waits for.
    pub blockers: Vec<LockOwner>,
}

/// The waits of some owners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockWaits {
    /// In no order.
    pub waits: Vec<LockWait>,
}

impl Request for ListLockWaits {
    const KIND: Kind = Kind::ListLockWaits;
    type Reply = LockWaits;
}

/// Server to server: this wait closes a cycle; it is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndLockWait {
    /// The file.
    pub inode: InodeId,
    /// The session of the wait.
    pub session: SessionId,
    /// The session's number for the wait.
    pub wait: u64,
}

/// Whether it was waiting still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockWaitEnded {
    /// It was, and does not any more.
    pub ended: bool,
}

impl Request for EndLockWait {
    const KIND: Kind = Kind::EndLockWait;
    type Reply = LockWaitEnded;
}
