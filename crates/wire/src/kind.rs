//! The numbers of the messages. A number is never reused; a family owns 256 of them.

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
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
            pub fn number(self) -> u16 {
                match self { $(Kind::$name => $number,)* }
            }

            /// The kind with this number.
            #[must_use]
            pub fn from_number(number: u16) -> Option<Kind> {
                match number { $($number => Some(Kind::$name),)* _ => None }
            }
        }
    };
}

// Reserved family: 0x06 the shared-memory call ring.
kinds! {
    /// Begin or resume a session on this connection.
    OpenSession = 0x0001,
    /// The session is alive.
    Heartbeat = 0x0002,
    /// The session ends; its open files are closed.
    CloseSession = 0x0003,
    /// What a server holds and does.
    ServerStatus = 0x0004,
    /// Stop this server gracefully.
    StopServer = 0x0005,

    /// The cluster map.
    GetMap = 0x0101,
    /// A server asks the coordinator to be taken into the map.
    JoinPool = 0x0102,
    /// Give a dead server's slots to others; what it held is lost.
    ForgetServer = 0x0103,
    /// For `check`: a server's books.
    CheckStore = 0x0104,
    /// For `check`: some lanes of a server.
    CheckLanes = 0x0105,
    /// For `check`: some slots of a server.
    CheckSlots = 0x0106,
    /// For `check`: some inodes of a server.
    CheckInodes = 0x0107,

    /// Bytes of one lane.
    ReadChunk = 0x0201,
    /// Bytes for one lane.
    WriteChunk = 0x0202,
    /// Free a range of one lane.
    PunchChunk = 0x0203,
    /// A descriptor of the lane's file, for a client on the same machine.
    GrantLane = 0x0204,
    /// Take the memory of a lane's first bytes.
    AllocateLane = 0x0205,
    /// The lane's file, for a kernel that reads and maps it.
    HandLane = 0x0206,
    /// How much memory a lane holds.
    CountLane = 0x0207,
    /// Where the next data, or the next hole, of a lane begins.
    SeekLane = 0x0208,

    /// The entry with a name.
    Lookup = 0x0301,
    /// An inode's attributes.
    GetAttributes = 0x0302,
    /// Change mode, owner or times.
    SetAttributes = 0x0303,
    /// Set a file's size.
    Truncate = 0x0304,
    /// Create a file and open it.
    Create = 0x0305,
    /// Open an inode.
    Open = 0x0306,
    /// Close an inode: the session's reference goes.
    Close = 0x0307,
    /// Create a symbolic link.
    Symlink = 0x0308,
    /// The target of a symbolic link.
    ReadLink = 0x0309,
    /// Create a directory.
    MakeDirectory = 0x030a,
    /// Remove an empty directory.
    RemoveDirectory = 0x030b,
    /// Remove an entry that is no directory.
    Unlink = 0x030c,
    /// Some entries of a directory.
    ReadDirectory = 0x030d,
    /// A file is at least so long.
    Extend = 0x030e,
    /// Reserve the next bytes at the end of a file.
    ReserveAppend = 0x030f,
    /// The reserved bytes are written.
    FinishAppend = 0x0310,
    /// Set the layout that files made in a directory inherit.
    SetLayout = 0x0311,
    /// Give an entry another name.
    Rename = 0x0312,
    /// Make one more entry for a file.
    Link = 0x0313,
    /// Create a named pipe, a socket's address or a device.
    MakeNode = 0x0314,
    /// Set an extended attribute.
    SetXattr = 0x0315,
    /// The value of an extended attribute.
    GetXattr = 0x0316,
    /// The names of an inode's extended attributes.
    ListXattrs = 0x0317,
    /// Remove an extended attribute.
    RemoveXattr = 0x0318,
    /// Create a file without a name, and open it.
    CreateUnnamed = 0x0319,
    /// What a server's partitions of a spread directory add to its attributes.
    GetPartitions = 0x031a,
    /// Bytes of a file that live with its inode.
    ReadInline = 0x031e,
    /// Change them.
    WriteInline = 0x031f,
    /// Give them to the file's lanes.
    Spill = 0x0320,
    /// Several steps of a path, and what it leads to.
    Walk = 0x0321,
    /// Attributes of several inodes of one server.
    GetAttributesMany = 0x0322,
    /// For `check`: some entries of a server.
    CheckEntries = 0x0323,
    /// Open the file that has a name.
    OpenEntry = 0x0324,
    /// A mutation is given up: it is not done any more.
    GiveUp = 0x0325,
    /// A kernel will read and map the file without asking.
    HandOver = 0x0326,
    /// A part of a file has got memory, or lost it.
    NoteMemory = 0x0327,

    // 0x0401 to 0x0404 were the halves of mkdir and rmdir in version 1.
    /// Home to lane: the file was truncated.
    CutLane = 0x0405,
    /// Home to lane: the file is gone.
    DropLane = 0x0406,
    /// Lane to home: does this inode exist, and how short was it since?
    QueryInode = 0x0407,
    /// Home to lane: the last opener has closed; give back unused tail pages.
    TrimLane = 0x0408,
    /// Slot to slot: hold a part of an operation ready.
    Prepare = 0x0409,
    /// Slot to slot: the operation is decided.
    Settle = 0x040a,
    /// Slot to slot: which directories is this one in?
    Ascend = 0x040b,
    /// Home to lane: the bytes that the file had inline.
    FillLane = 0x0410,

    /// Lock bytes of a file, or unlock them.
    SetLock = 0x0701,
    /// Give up a wait for a lock.
    CancelLock = 0x0702,
    /// The lock that is in the way.
    GetLock = 0x0703,
    /// What happens to the session; answered when there is something.
    WaitEvents = 0x0704,
    /// Does a wait for a lock close a circle?
    FindDeadlock = 0x0705,
    /// Server to server: what some owners of locks wait for.
    ListLockWaits = 0x0706,
    /// Server to server: a wait for a lock is over.
    EndLockWait = 0x0707,
    /// Come to a barrier.
    ArriveBarrier = 0x0708,
    /// Wait there no longer.
    LeaveBarrier = 0x0709,
    /// Change a number in a lane.
    ChangeCell = 0x070a,
    /// Change a number in a file whose bytes live with its inode.
    ChangeInlineCell = 0x070b,
    /// Were some bytes changed, and tell when they are.
    WatchChange = 0x070c,
    /// Wait for that no longer.
    EndWatch = 0x070d,
    /// Bytes of a lane were changed by stores into its memory.
    NoteChange = 0x070e,

    /// Where a name leads, with leases.
    LeaseName = 0x0710,
    /// An inode's attributes, with leases.
    LeaseAttributes = 0x0711,
    /// Which leases are recalled; answered when there is one.
    WaitRecalls = 0x0712,
    /// Data recalls are done.
    EndRecalls = 0x0713,
    /// Wait until what was written back is seen everywhere.
    WaitPublished = 0x0714,
}

impl Kind {
    /// Whether it is of the namespace's family, where a host's session says for whom it asks.
    #[must_use]
    pub fn is_of_namespace(self) -> bool {
        self.number() >> 8 == 3 || matches!(self, Kind::LeaseName | Kind::LeaseAttributes)
    }

    /// About one entry of a directory: may go by the path of the directory ([`crate::flags::BY_PATH`]).
    #[must_use]
    pub fn goes_by_path(self) -> bool {
        matches!(
            self,
            Kind::Create
                | Kind::OpenEntry
                | Kind::MakeDirectory
                | Kind::Symlink
                | Kind::MakeNode
                | Kind::Unlink
                | Kind::RemoveDirectory
        )
    }

    /// Asked by a file that the session has open, for whoever has it: his rights were checked when it was opened.
    #[must_use]
    pub fn is_by_open_file(self) -> bool {
        matches!(
            self,
            Kind::Close
                | Kind::Extend
                | Kind::ReserveAppend
                | Kind::FinishAppend
                | Kind::ReadInline
                | Kind::WriteInline
                | Kind::Spill
                | Kind::HandOver
                | Kind::NoteMemory
                | Kind::ChangeInlineCell
        )
    }
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
    }
}
