//! What `check` can find, told to people.

use std::collections::BTreeSet;

use ramlace_base::{InodeId, LaneId, ServerId};
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
    /// An entry lies where a look-up does not find it.
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
    /// An append was reserved by nobody.
    ReservationOfNobody = "reservation-of-nobody", "the file's published size stays before it; copy the file";
    /// Something is held for an operation that is not under way.
    HeldByNobody = "held-by-nobody", "'ramlace check --repair' lets go of it, if no slot coordinates it; what stays is a bug: please report it";
    /// An operation waits for nothing.
    OperationStuck = "operation-stuck", "this is a bug; please report it";
    /// An inode has a number that is yet to be given out.
    NumberNotGivenOut = "number-not-given-out", "this is a bug; please report it";
    /// A slot takes operations for settled that the slot that coordinates them has yet to begin.
    NumbersAhead = "numbers-ahead", "changes across these slots fail until 'ramlace check --repair' sets it right";
    /// A lane is nobody's: its memory is leaked.
    LaneLeaked = "lane-leaked", "'ramlace check --repair' gives its memory back";
    /// A lane lies where nobody looks for it.
    LaneMisplaced = "lane-misplaced", "its memory comes back when the pool is made anew";
    /// A lane is in the store and not in the server's table.
    LaneUnknown = "lane-unknown", "this is a bug; please report it";
    /// A lane and its file are of different generations.
    GenerationsDiffer = "generations-differ", "'ramlace check --repair' brings the two together; look at the file afterwards";
    /// A lane takes more memory than it needs, though nobody has its file open.
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

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is.
    pub kind: FindingKind,
    /// The server that holds it.
    pub server: ServerId,
    /// The inode that it is about.
    pub inode: Option<InodeId>,
    /// The lane that it is about.
    pub lane: Option<LaneId>,
    /// What else tells it from others: a lane, a name, an operation.
    pub place: String,
    /// A path that leads to it, as far as one is known.
    pub path: Option<Vec<u8>>,
    /// It is, or may be, what is left of a server that was forgotten: nothing else went wrong.
    pub lost_with_server: bool,
    /// A sentence.
    pub text: String,
}

impl Finding {
    /// Whether both tell of the same thing.
    #[must_use]
    pub fn is_same(&self, other: &Finding) -> bool {
        let key = |finding: &Finding| (finding.kind, finding.server, finding.inode);
        key(self) == key(other) && self.place == other.place
    }
}

/// What a look has come to.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// How much was looked at.
    pub counts: CheckCounts,
    /// What is wrong, at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// What is wrong beyond that.
    pub further_findings: u64,
}

/// Findings of one look that are told one by one.
pub const FINDINGS_MAX: usize = 10_000;

/// How much was looked at, and what is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// Servers.
    pub servers: u64,
    /// Slots in which something has happened.
    pub slots: u64,
    /// Inodes.
    pub inodes: u64,
    /// Entries.
    pub entries: u64,
    /// Lanes.
    pub lanes: u64,
    /// Memory of lanes.
    pub lane_bytes: u64,
    /// Inodes that live only because somebody has them open.
    pub open_without_name: u64,
    /// Operations across slots that are under way.
    pub operations: u64,
    /// Messages that slots owe each other.
    pub deliveries: u64,
    /// Lanes with bytes beyond their file's end: of writes that were never completed. They go with the
    /// file, or with its next truncation.
    pub lanes_beyond_end: u64,
    /// Those bytes.
    pub bytes_beyond_end: u64,
}

impl Checked {
    /// Inodes that something is wrong with.
    #[must_use]
    pub fn suspects(&self) -> BTreeSet<InodeId> {
        self.findings.iter().filter_map(|finding| finding.inode).collect()
    }

    /// Lanes of a server that do not fit to their files, and that it can mend, in order.
    #[must_use]
    pub fn lanes_to_mend(&self, server: ServerId) -> Vec<LaneId> {
        let is_mendable = |kind| matches!(kind, FindingKind::LaneLeaked | FindingKind::GenerationsDiffer);
        let found =
            self.findings.iter().filter(|finding| finding.server == server && is_mendable(finding.kind));
        let lanes: BTreeSet<LaneId> = found.filter_map(|finding| finding.lane).collect();
        lanes.into_iter().collect()
    }

    /// Keeps what another look has found too.
    pub fn keep_found_by(&mut self, other: &Checked) {
        let mut known: Vec<(FindingKind, ServerId, Option<InodeId>, &str)> = other
            .findings
            .iter()
            .map(|finding| (finding.kind, finding.server, finding.inode, &*finding.place))
            .collect();
        known.sort_unstable();
        self.findings.retain(|finding| {
            known.binary_search(&(finding.kind, finding.server, finding.inode, &finding.place)).is_ok()
        });
        self.further_findings = self.further_findings.min(other.further_findings);
    }
}
