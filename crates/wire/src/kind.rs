//! The messages: number, name and row of each. A number is never reused; a family owns 256 of them.

use crate::row::{ANYONE, LANE, OPEN_FILE, OWNER, PEER, Row, SESSION, Shows, USER};

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $row:expr;)*) => {
        /// What a message is. Requests and their replies share a kind.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Kind {
            $($(#[$doc])* $name,)*
        }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            /// The number on the wire.
            #[must_use]
            pub const fn number(self) -> u16 {
                match self { $(Kind::$name => $number,)* }
            }

            /// The kind with this number.
            #[must_use]
            pub fn from_number(number: u16) -> Option<Kind> {
                match number { $($number => Some(Kind::$name),)* _ => None }
            }

            /// Its place in [`Kind::ALL`].
            #[must_use]
            pub const fn index(self) -> usize {
                self as usize
            }

            /// What is to be known of it before its body is read.
            #[must_use]
            pub const fn row(self) -> &'static Row {
                const ROWS: &[Row] = &[$($row,)*];
                &ROWS[self.index()]
            }
        }
    };
}

// Reserved family: 0x06 the shared-memory call ring.
messages! {
    /// Begin or resume a session on this connection.
    OpenSession = 0x0001, ANYONE.own_deadline();
    /// The session is alive.
    Heartbeat = 0x0002, SESSION;
    /// The session ends; its open files are closed.
    CloseSession = 0x0003, SESSION;
    /// What a server holds and does.
    ServerStatus = 0x0004, ANYONE;
    /// Stop this server gracefully.
    StopServer = 0x0005, OWNER;
    /// What a server has counted.
    GetMetrics = 0x0006, OWNER;
    /// The session is alive, and waits for what its server sends unasked (a long poll); answered when there is
    /// something.
    Listen = 0x0007, SESSION;

    /// The cluster map.
    GetMap = 0x0101, ANYONE;
    /// A server asks the coordinator to be taken into the map.
    JoinPool = 0x0102, PEER.shows(Shows::Names);
    /// Give a dead server's slots to others; what it held is lost.
    ForgetServer = 0x0103, OWNER;
    /// For `check`: a server's books.
    CheckStore = 0x0104, OWNER;
    /// For `check`: some lanes of a server.
    CheckLanes = 0x0105, OWNER;
    /// For `check`: some slots of a server.
    CheckSlots = 0x0106, OWNER;
    /// For `check`: some inodes of a server.
    CheckInodes = 0x0107, OWNER;
    /// Make or revoke keys of hosts.
    ChangeKeys = 0x0108, OWNER;
    /// The pool's secrets, and which keys of hosts were revoked.
    GetKeyBook = 0x0109, PEER;
    /// Coordinator to server: there is a newer key book.
    AdoptKeyBook = 0x010a, PEER;
    /// The key book, and the keys of a server's sessions.
    ListKeys = 0x010b, OWNER;
    /// Change the pool's secret.
    RotateSecret = 0x010c, OWNER;

    /// Bytes of one lane.
    ReadChunk = 0x0201, LANE.own_deadline().waits_for_holders();
    /// Bytes for one lane.
    WriteChunk = 0x0202, LANE.changes().carries_data().own_deadline().waits_for_holders();
    /// Free a range of one lane.
    PunchChunk = 0x0203, LANE.changes().waits_for_holders();
    /// A descriptor of the lane's file, for a client on the same machine.
    GrantLane = 0x0204, LANE.brings_descriptor().own_deadline().waits_for_holders();
    /// Take the memory of a lane's first bytes.
    AllocateLane = 0x0205, LANE.changes();
    /// The lane's file, for a kernel that reads and maps it.
    GrantPassthrough = 0x0206, LANE.brings_descriptor().own_deadline().waits_for_holders();
    /// How much memory a lane holds.
    CountLane = 0x0207, LANE;
    /// Where the next data, or the next hole, of a lane begins.
    SeekLane = 0x0208, LANE;
    /// Many runs of one lane's bytes.
    ReadRuns = 0x0209, LANE.own_deadline().waits_for_holders();
    /// Bytes for many runs of one lane.
    WriteRuns = 0x020a, LANE.changes().carries_data().own_deadline().waits_for_holders();
    /// Bytes for one lane by which the file grows, where its home is at the lane's server.
    ExtendChunk = 0x020b, OPEN_FILE.changes().carries_data().own_deadline().waits_for_holders();

    /// The entry with a name.
    Lookup = 0x0301, USER;
    /// An inode's attributes.
    GetAttributes = 0x0302, USER;
    /// Change mode, owner or times.
    SetAttributes = 0x0303, USER.or_by_open_file().changes_file().among_many();
    /// Set a file's size.
    Truncate = 0x0304, USER.or_by_open_file().changes_file().waits_for_holders();
    /// Create a file and open it.
    Create = 0x0305, USER.by_path().changes().among_many();
    /// Open an inode.
    Open = 0x0306, USER.changes_file();
    /// Close an inode: the session's reference goes.
    Close = 0x0307, OPEN_FILE.changes_file().among_many();
    /// Create a symbolic link.
    Symlink = 0x0308, USER.by_path().changes();
    /// The target of a symbolic link.
    ReadLink = 0x0309, USER;
    /// Create a directory.
    MakeDirectory = 0x030a, USER.by_path().changes();
    /// Remove an empty directory.
    RemoveDirectory = 0x030b, USER.by_path().changes();
    /// Remove an entry that is no directory.
    Unlink = 0x030c, USER.by_path().changes().among_many();
    /// Some entries of a directory.
    ReadDirectory = 0x030d, USER;
    /// A file is at least so long.
    Extend = 0x030e, OPEN_FILE.changes_file();
    /// Reserve the next bytes at the end of a file.
    ReserveAppend = 0x030f, OPEN_FILE.changes_file();
    /// The reserved bytes are written.
    FinishAppend = 0x0310, OPEN_FILE.changes_file();
    /// Set the layout that files made in a directory inherit.
    SetLayout = 0x0311, USER.changes();
    /// Give an entry another name.
    Rename = 0x0312, USER.changes();
    /// Make one more entry for a file.
    Link = 0x0313, USER.changes();
    /// Create a named pipe, a socket's address or a device.
    MakeNode = 0x0314, USER.by_path().changes();
    /// Set an extended attribute.
    SetXattr = 0x0315, USER.changes();
    /// The value of an extended attribute.
    GetXattr = 0x0316, USER;
    /// The names of an inode's extended attributes.
    ListXattrs = 0x0317, USER;
    /// Remove an extended attribute.
    RemoveXattr = 0x0318, USER.changes();
    /// Create a file without a name, and open it.
    CreateUnnamed = 0x0319, USER.changes();
    /// What a server's partitions of a spread directory add to its attributes.
    GetPartitions = 0x031a, USER.of_many_slots();
    /// Bytes of a file that live with its inode.
    ReadInline = 0x031e, OPEN_FILE;
    /// Change them.
    WriteInline = 0x031f, OPEN_FILE.changes_file().among_many().waits_for_holders();
    /// Give them to the file's lanes.
    Promote = 0x0320, OPEN_FILE.changes_file().among_many().waits_for_holders();
    /// Several steps of a path, and what it leads to.
    Walk = 0x0321, USER.of_many_slots();
    /// Attributes of several inodes of one server.
    GetAttributesMany = 0x0322, USER.of_many_slots();
    /// For `check`: some entries of a server.
    CheckEntries = 0x0323, OWNER;
    /// Open the file that has a name.
    OpenEntry = 0x0324, USER.by_path().changes();
    /// A mutation is cancelled: it is not done any more.
    CancelChange = 0x0325, USER.changes();
    /// A kernel will read and map the file without asking.
    BeginPassthrough = 0x0326, OPEN_FILE.changes_file();
    /// A part of a file has got memory, or lost it.
    NoteMemory = 0x0327, OPEN_FILE.changes_file();
    /// What proves to lanes for what the session has a file open.
    GetPermit = 0x0328, OPEN_FILE;
    /// For `check --repair`: a server compares what it was sent with what the slots and homes that must know it
    /// know.
    Mend = 0x0329, OWNER;
    /// The same for lanes and their files.
    MendLanes = 0x032a, OWNER;
    /// Changes of one slot, in their order; the slot may be delegated to the session.
    ChangeMany = 0x032b, SESSION;

    // 0x0401 to 0x0404 were the halves of mkdir and rmdir in version 1.
    /// Home to lane: the file was truncated.
    CutLane = 0x0405, PEER;
    /// Home to lane: the file is gone.
    DropLane = 0x0406, PEER;
    /// Lane to home: does this inode exist, and how short was it since?
    QueryInode = 0x0407, PEER.by_lane();
    /// Home to lane: the last opener has closed; give back unused tail pages.
    TrimLane = 0x0408, PEER;
    /// Slot to slot: hold a part of an operation ready.
    Prepare = 0x0409, PEER.shows(Shows::Names);
    /// Slot to slot: the operation is decided.
    Decide = 0x040a, PEER.shows(Shows::Names);
    /// Slot to slot: which directories is this one in?
    Ascend = 0x040b, PEER;
    /// Home to lane: the bytes that the file had inline.
    FillLane = 0x0410, PEER;
    /// Slot to slot: which operations do you coordinate?
    QueryOperations = 0x0411, PEER;
    /// Lane to home: may a session write back what it has had of the file since that was small?
    QueryPages = 0x0412, PEER.by_lane();
    /// Lane to home: the first bytes for this lane are here; an empty file goes to its lanes for them.
    BeginLane = 0x0413, PEER.by_lane();
    /// Home to lane: does a truncation still wait for kernels that have pages of what it cut off?
    QueryRecalls = 0x0414, PEER;

    /// Lock bytes of a file, or unlock them.
    SetLock = 0x0701, SESSION.changes_file();
    /// Cancel a wait for a lock.
    CancelLock = 0x0702, SESSION.changes_file();
    /// The lock that conflicts.
    GetLock = 0x0703, SESSION;
    /// Does a wait for a lock close a cycle?
    FindDeadlock = 0x0705, SESSION.shows(Shows::Nothing);
    /// Server to server: what some owners of locks wait for.
    ListLockWaits = 0x0706, PEER.shows(Shows::Names);
    /// Server to server: a wait for a lock has ended.
    EndLockWait = 0x0707, PEER;
    /// Come to a barrier.
    ArriveBarrier = 0x0708, OWNER.changes_file();
    /// Wait there no longer.
    LeaveBarrier = 0x0709, OWNER.changes_file();
    /// Change a number in a lane.
    ChangeCell = 0x070a, LANE.changes().waits_for_holders().or_of_home();
    /// Change a number in a file whose bytes live with its inode.
    ChangeInlineCell = 0x070b, OPEN_FILE.changes_file().waits_for_holders();
    /// Were some bytes changed; else a notification when they are.
    WatchChange = 0x070c, LANE.or_of_home();
    /// Wait for that no longer.
    EndWatch = 0x070d, SESSION;
    /// Bytes of a lane were changed by stores into its memory.
    NoteChange = 0x070e, LANE.waits_for_holders().or_of_home();

    /// Where a name leads, with leases.
    LeaseName = 0x0710, USER;
    /// An inode's attributes, with leases.
    LeaseAttributes = 0x0711, USER;
    /// Data recalls are done.
    EndRecalls = 0x0713, SESSION.shows(Shows::Nothing);
    /// Wait until what was written back is seen everywhere.
    WaitPublished = 0x0714, SESSION.shows(Shows::Nothing).waits_for_holders();
    /// Which sessions' kernels have which bytes, and which sessions wait for which.
    ListHolders = 0x0715, OWNER.shows(Shows::Nothing);
    /// All leases on names and attributes last longer.
    RenewLeases = 0x0716, SESSION.shows(Shows::Nothing);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_are_unique() {
        let mut numbers: Vec<u16> = Kind::ALL.iter().map(|kind| kind.number()).collect();
        for kind in Kind::ALL {
            assert_eq!(Kind::from_number(kind.number()), Some(*kind));
        }
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), Kind::ALL.len());
        assert_eq!(Kind::from_number(0), None);
        assert!(Kind::ALL.iter().enumerate().all(|(index, kind)| kind.index() == index));
    }
}
