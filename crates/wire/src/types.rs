//! What several message families share: attributes, layouts, the cluster map.

use std::fmt;

use ramlace_base::{Epoch, Generation, InodeId, ServerId, Slot, Timestamp, limits};
use serde::{Deserialize, Serialize};

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "u8", into = "u8")]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl From<$name> for u8 {
            fn from(value: $name) -> u8 {
                match value { $($name::$variant => $number,)* }
            }
        }

        impl TryFrom<u8> for $name {
            type Error = String;

            fn try_from(number: u8) -> std::result::Result<$name, String> {
                match number {
                    $($number => Ok($name::$variant),)*
                    _ => Err(format!(concat!("{} is no ", stringify!($name)), number)),
                }
            }
        }
    };
}
pub(crate) use numbered;

numbered! {
    /// What an inode is.
    FileKind {
        /// A regular file.
        File = 1,
        /// A directory.
        Directory = 2,
        /// A symbolic link.
        Symlink = 3,
        /// A named pipe; its bytes are the kernel's that opens it.
        Fifo = 4,
        /// The address of a Unix socket.
        Socket = 5,
        /// A character device.
        CharDevice = 6,
        /// A block device.
        BlockDevice = 7,
    }
}

numbered! {
    /// When other machines see what programs store into a mapped file.
    Mode {
        /// When it is published: by `msync`, `fsync` or `close`.
        Coherent = 1,
        /// At once: a page that may be stored into is in one kernel at a time.
        Strict = 2,
        /// When it is published; and no answer waits for what a mount still shows: its programs refresh, or
        /// take a lock.
        Relaxed = 3,
    }
}

/// As a mount has it that is asked for nothing else.
impl Default for Mode {
    fn default() -> Mode {
        Mode::Coherent
    }
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 3] = [Mode::Coherent, Mode::Strict, Mode::Relaxed];

    /// As commands, attributes and programs name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Coherent => "coherent",
            Mode::Strict => "strict",
            Mode::Relaxed => "relaxed",
        }
    }

    /// The mode with a name.
    #[must_use]
    pub fn named(name: &[u8]) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.name().as_bytes() == name)
    }

    /// The stricter of two.
    #[must_use]
    pub fn or_stricter(self, other: Mode) -> Mode {
        let strictness = |mode: &Mode| match mode {
            Mode::Relaxed => 0,
            Mode::Coherent => 1,
            Mode::Strict => 2,
        };
        std::cmp::max_by_key(self, other, strictness)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FileKind {
    /// Every kind.
    pub const ALL: [FileKind; 7] = [
        FileKind::File,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::Fifo,
        FileKind::Socket,
        FileKind::CharDevice,
        FileKind::BlockDevice,
    ];

    /// A pipe, a socket or a device: a name alone, which a kernel gives its meaning.
    #[must_use]
    pub fn is_special(self) -> bool {
        self.is_device() || matches!(self, FileKind::Fifo | FileKind::Socket)
    }

    /// A character or block device.
    #[must_use]
    pub fn is_device(self) -> bool {
        matches!(self, FileKind::CharDevice | FileKind::BlockDevice)
    }

    /// The kind as Linux writes it into `st_mode` (`S_IFREG` and so on).
    #[must_use]
    pub fn type_bits(self) -> u32 {
        match self {
            FileKind::File => 0o100_000,
            FileKind::Directory => 0o040_000,
            FileKind::Symlink => 0o120_000,
            FileKind::Fifo => 0o010_000,
            FileKind::Socket => 0o140_000,
            FileKind::CharDevice => 0o020_000,
            FileKind::BlockDevice => 0o060_000,
        }
    }

    /// The kind whose bits these are, whatever the permissions beside them.
    #[must_use]
    pub fn from_type_bits(mode: u32) -> Option<FileKind> {
        FileKind::ALL.into_iter().find(|kind| kind.type_bits() == mode & 0o170_000)
    }

    /// What it is, in a sentence.
    #[must_use]
    pub fn described(self) -> &'static str {
        match self {
            FileKind::File => "a file",
            FileKind::Directory => "a directory",
            FileKind::Symlink => "a symbolic link",
            FileKind::Fifo => "a named pipe",
            FileKind::Socket => "a socket",
            FileKind::CharDevice => "a character device",
            FileKind::BlockDevice => "a block device",
        }
    }
}

/// The numbers of a device, and the 32-bit form in which they travel: that of Linux, with the low
/// eight minor bits, twelve major bits, and the other minor bits above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNumbers {
    /// Which driver; 12 bits.
    pub major: u32,
    /// Which of its devices; 20 bits.
    pub minor: u32,
}

impl DeviceNumbers {
    /// Reads the 32-bit form.
    #[must_use]
    pub fn of(device: u32) -> DeviceNumbers {
        DeviceNumbers { major: device >> 8 & 0xfff, minor: device & 0xff | device >> 12 & 0xfff00 }
    }

    /// The 32-bit form. Bits that do not fit are lost.
    #[must_use]
    pub fn encoded(self) -> u32 {
        self.minor & 0xff | (self.major & 0xfff) << 8 | (self.minor & 0xfff00) << 12
    }
}

macro_rules! bytes_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub [u8; 16]);

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

bytes_id!(
    /// Names a pool: 128 random bits from its creation.
    PoolId
);
bytes_id!(
    /// Names a machine as long as it is up: the kernel's boot id.
    HostId
);

/// An inode's attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// The inode.
    pub inode: InodeId,
    /// File, directory, symbolic link, or one of the special kinds.
    pub kind: FileKind,
    /// Permission bits, 0o7777 at most.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Entries that point to it (directories: 2 and one more for each subdirectory).
    pub links: u32,
    /// Bytes of a file or of a link's target; entries of a directory.
    pub size: u64,
    /// A device's numbers (see [`DeviceNumbers`]); 0 for others.
    pub device: u32,
    /// Raised by every truncation.
    pub generation: Generation,
    /// Last read.
    pub accessed: Timestamp,
    /// Last change of content.
    pub modified: Timestamp,
    /// Last change of attributes.
    pub changed: Timestamp,
    /// Creation.
    pub created: Timestamp,
    /// It has extended attributes; most have none.
    pub xattrs: bool,
    /// Bytes of memory that a file holds. None: it may have holes, or memory behind its end, and its lanes know.
    pub allocated: Option<u64>,
}

impl Attributes {
    /// Adds what another slot says of the same directory.
    pub fn add_partition(&mut self, part: &Attributes) {
        self.size = self.size.saturating_add(part.size);
        self.links = self.links.saturating_add(part.links);
        self.accessed = self.accessed.max(part.accessed);
        self.modified = self.modified.max(part.modified);
        self.changed = self.changed.max(part.changed);
    }
}

/// Where a file's bytes lie: chunk `i` is on lane `i mod width`; lane `k` is in slot
/// `(base_slot + k × stride) mod slots`. Fixed when the file is created, but for the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// Bytes of a chunk: a power of two, at least 64 KiB.
    pub stripe_unit: u64,
    /// Number of lanes.
    pub width: u16,
    /// Slot of lane 0.
    pub base_slot: Slot,
    /// Slots from one lane to the next; below the pool's number of slots.
    pub stride: u16,
    /// Copies of each chunk.
    pub copies: u8,
    /// The map's epoch when the file was created, or left its inode for its lanes: distinguishes a hole from a
    /// loss.
    pub created: Epoch,
}

/// What a file's creator may ask for, and what a directory hands down; `None` is "as usual".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutHints {
    /// Bytes of a chunk.
    pub stripe_unit: Option<u64>,
    /// Number of lanes.
    pub width: Option<u16>,
    /// Copies of each chunk.
    pub copies: Option<u8>,
    /// What a file keeps; all else is in its [`Layout`].
    pub rules: FileRules,
}

/// What a file has of its own beside its layout. One byte on the wire, or nothing where it has nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Option<u8>", into = "Option<u8>")]
pub struct FileRules {
    /// The file's own mode, whatever the mounts have that open it.
    pub mode: Option<Mode>,
    /// What makes the file longer takes the memory of all that is new.
    pub reserve: bool,
}

/// Of the byte that rules are: memory is reserved. The rest is the mode's number, 0 for none.
const RESERVE_BIT: u8 = 0x80;

impl From<FileRules> for Option<u8> {
    fn from(rules: FileRules) -> Option<u8> {
        let reserve = if rules.reserve { RESERVE_BIT } else { 0 };
        Some(rules.mode.map_or(0, u8::from) | reserve).filter(|byte| *byte != 0)
    }
}

impl TryFrom<Option<u8>> for FileRules {
    type Error = String;

    fn try_from(byte: Option<u8>) -> std::result::Result<FileRules, String> {
        let Some(byte) = byte else { return Ok(FileRules::default()) };
        let mode = match byte & !RESERVE_BIT {
            0 if byte == 0 => return Err("0 are no rules of a file".to_owned()),
            0 => None,
            number => Some(Mode::try_from(number)?),
        };
        Ok(FileRules { mode, reserve: byte & RESERVE_BIT != 0 })
    }
}

impl LayoutHints {
    /// What a file keeps.
    #[must_use]
    pub fn of_file(rules: FileRules) -> LayoutHints {
        LayoutHints { rules, ..LayoutHints::default() }
    }

    /// A file's own mode, and nothing else.
    #[must_use]
    pub fn of_mode(mode: Option<Mode>) -> LayoutHints {
        LayoutHints::of_file(FileRules { mode, ..FileRules::default() })
    }

    /// Whether these can be a file's.
    #[must_use]
    pub fn is_of_file(&self) -> bool {
        *self == LayoutHints::of_file(self.rules)
    }

    /// These hints, with `inherited` where they are silent.
    #[must_use]
    pub fn or(self, inherited: LayoutHints) -> LayoutHints {
        LayoutHints {
            stripe_unit: self.stripe_unit.or(inherited.stripe_unit),
            width: self.width.or(inherited.width),
            copies: self.copies.or(inherited.copies),
            rules: FileRules {
                mode: self.rules.mode.or(inherited.rules.mode),
                reserve: self.rules.reserve || inherited.rules.reserve,
            },
        }
    }
}

/// Named bytes given to a file when it is created (an array's shape, type and order), sorted
/// by name; at most [`ramlace_base::limits::ATTRIBUTES_BYTES_MAX`] together.
pub type FileAttributes = Vec<(String, Vec<u8>)>;

/// A server as the map knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerEntry {
    /// Its number in the pool.
    pub server: ServerId,
    /// The machine it runs on.
    pub host: HostId,
    /// `address:port` for TCP.
    pub tcp: String,
    /// Path of its Unix socket, for clients on the same machine.
    pub unix: String,
    /// Bytes of memory it lends.
    pub store_bytes: u64,
    /// Forgotten by command: it holds nothing any more and its number is not used again.
    pub forgotten: bool,
}

/// The servers of a slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Chain {
    /// The first is the primary (home), the others replicas.
    pub servers: Vec<ServerId>,
    /// The slot's content is complete for everything created since this epoch.
    pub complete_since: Epoch,
}

/// Which servers hold which slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    /// The pool.
    pub pool: PoolId,
    /// Raised by every change.
    pub epoch: Epoch,
    /// Keys the order of directory entries.
    pub hash_seed: u64,
    /// The server with the embedded coordinator.
    pub coordinator: ServerId,
    /// All servers, forgotten ones included; index = number.
    pub servers: Vec<ServerEntry>,
    /// One chain for each slot; on the wire each different chain stands once.
    #[serde(with = "crate::chains")]
    pub chains: Vec<Chain>,
}

impl ClusterMap {
    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.chains.len() as u32
    }

    /// The slots in which a new pool's servers follow each other machine by machine: the last eighth, and whole turns of
    /// `servers` (more than 0). In all others they follow by their numbers, which belong to the machines in turns.
    #[must_use]
    pub fn slots_by_machines(slots: u32, servers: u32) -> std::ops::Range<u32> {
        slots - slots / limits::SLOTS_BY_MACHINES_DIVISOR / servers * servers..slots
    }

    /// The chain of a slot; `None` when the pool has fewer slots.
    #[must_use]
    pub fn chain(&self, slot: Slot) -> Option<&Chain> {
        self.chains.get(usize::from(slot.0))
    }

    /// The primary of a slot.
    #[must_use]
    pub fn primary(&self, slot: Slot) -> Option<ServerId> {
        self.chain(slot)?.servers.first().copied()
    }

    /// The server with this number.
    #[must_use]
    pub fn server(&self, server: ServerId) -> Option<&ServerEntry> {
        self.servers.get(usize::from(server.0))
    }
}
