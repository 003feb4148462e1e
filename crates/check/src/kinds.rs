//! What can be wrong with a pool, each kind with its name for programs and what to do about it.

use ramlace_wire::check::TroubleKind;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $advice:literal;)*) => {
        /// What is wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FindingKind {
            $($(#[$doc])* $kind,)*
        }

        impl FindingKind {
            /// Its name for programs.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(FindingKind::$kind => $name,)* }
            }

            /// What to do about it.
            #[must_use]
            pub fn advice(self) -> &'static str {
                match self { $(FindingKind::$kind => $advice,)* }
            }
        }
    };
}

kinds! {
    /// An entry leads to an inode that is not there.
    EntryLeadsNowhere = "entry-leads-nowhere", "what it led to is gone; remove the name with 'ramlace rm'";
    /// An entry is in a directory that is not there.
    EntryOfNoDirectory = "entry-of-no-directory", "nothing can reach it";
    /// An entry lies where a lookup does not find it.
    EntryMisplaced = "entry-misplaced", "copy the directory's other files out and remove it";
    /// A directory has a name twice.
    NameTwice = "name-twice", "copy the directory's other files out and remove it";
    /// An entry and its inode are of different kinds.
    KindsDiffer = "kinds-differ", "rename something else over the name";
    /// Nothing leads to an inode, and nobody has it open.
    InodeLeaked = "inode-leaked", "its memory comes back when the pool is made anew";
    /// Nothing leads to an inode that counts entries.
    InodeWithoutName = "inode-without-name", "its memory comes back when the pool is made anew";
    /// An inode counts other entries than lead to it.
    LinksMiscounted = "links-miscounted", "copy it to a new name and use that";
    /// Two entries lead to one directory.
    DirectoryTwice = "directory-twice", "move what is in it to a new directory";
    /// A directory has another parent than the directory that it is in.
    ParentDiffers = "parent-differs", "move what is in it to a new directory";
    /// A directory is inside itself.
    DirectoryCycle = "directory-cycle", "no path leads to it";
    /// A slot's state lies with a server that does not hold the slot.
    SlotMisplaced = "slot-misplaced", "this is a bug; please report it";
    /// An inode counts other sessions that have it open than there are.
    OpensMiscounted = "opens-miscounted", "this is a bug; please report it";
    /// A session has something open that is gone.
    OpenOfNothing = "open-of-nothing", "this is a bug; please report it";
    /// A slot keeps things for a session that has ended.
    SessionGone = "session-gone", "this is a bug; please report it";
    /// An append was reserved by a session that does not exist.
    ReservationOfNobody = "reservation-of-nobody", "the file's published size stays before it; copy the file";
    /// Something is held for an operation that is not under way.
    HeldByNobody = "held-by-nobody", "'ramlace check --repair' lets go of it, if no slot coordinates it; what stays is a bug: please report it";
    /// An operation waits for nothing.
    OperationStuck = "operation-stuck", "this is a bug; please report it";
    /// An inode has a number that is yet to be given out.
    NumberNotGivenOut = "number-not-given-out", "this is a bug; please report it";
    /// A slot takes operations for finished that the slot that coordinates them has yet to begin.
    NumbersAhead = "numbers-ahead", "changes across these slots fail until 'ramlace check --repair' sets it right";
    /// A lane belongs to no file: its memory is leaked.
    LaneLeaked = "lane-leaked", "'ramlace check --repair' gives its memory back";
    /// A lane lies where no lookup finds it.
    LaneMisplaced = "lane-misplaced", "its memory comes back when the pool is made anew";
    /// A lane is in the store and not in the server's table.
    LaneUnknown = "lane-unknown", "this is a bug; please report it";
    /// A lane is there of which its file does not know that it has begun: it would stay when the file goes.
    LaneUnexpected = "lane-unexpected", "this is a bug; please report it";
    /// A lane and its file are of different generations.
    GenerationsDiffer = "generations-differ", "'ramlace check --repair' brings the two together; look at the file afterwards";
    /// A lane takes more memory than it needs, though no session has its file open.
    LaneUntrimmed = "lane-untrimmed", "opening the file for writing, adding a byte and closing it gives the memory back";
    /// Bytes of a file were lost with a server.
    BytesLost = "bytes-lost", "reading them is an error; write them again, or remove the file";
    /// A mount could not write back what programs have stored into a file.
    StoresLost = "stores-lost", "reading them by that mount is an error; write them again there, or remove the file";
    /// A server's counter of the memory of lanes is not the sum of its lanes.
    CounterDiffers = "counter-differs", "'df' is wrong until the server starts again";
    /// A server's counters are not what the kernel counts.
    KernelDiffers = "kernel-differs", "'df' is wrong until the server starts again";
}

impl From<TroubleKind> for FindingKind {
    fn from(kind: TroubleKind) -> FindingKind {
        match kind {
            TroubleKind::OpensMiscounted => FindingKind::OpensMiscounted,
            TroubleKind::OpenOfNothing => FindingKind::OpenOfNothing,
            TroubleKind::SessionGone => FindingKind::SessionGone,
            TroubleKind::ReservationOfNobody => FindingKind::ReservationOfNobody,
            TroubleKind::HeldByNobody => FindingKind::HeldByNobody,
            TroubleKind::OperationStuck => FindingKind::OperationStuck,
            TroubleKind::NumberNotGivenOut => FindingKind::NumberNotGivenOut,
            TroubleKind::NumbersAhead => FindingKind::NumbersAhead,
            TroubleKind::LaneAstray => FindingKind::GenerationsDiffer,
        }
    }
}
