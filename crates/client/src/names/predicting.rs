//! Predicts a slot's answers to some changes of files, if the slot is delegated to this session. It reads no
//! clock. What is not certain is not predicted: such a change is sent, and its answer waited for.

use std::collections::{HashMap, HashSet};

use ramlace_base::{Epoch, Generation, InodeId, Name, Timestamp, limits};
use ramlace_wire::delegation::Delegated;
use ramlace_wire::inline::{InlineMode, InlineOutcome, InlineWritten, Promoted, WriteInline};
use ramlace_wire::namespace::{Close, Create, EntryLeased, InodeInfo, Opened, SetAttributes, SizeInfo};
use ramlace_wire::{Attributes, Credentials, FileKind, Layout, LayoutHints};

/// The mode bits by which programs run as their owner or group, and directories pass their group on to new
/// files.
const SPECIAL_BITS: u16 = 0o7000;
const SET_ID_BITS: u16 = 0o6000;
/// The owner may write to a directory and search it.
const OWNER_WRITES: u16 = 0o300;
/// The number of files of which something is known, in one slot.
const FILES_MAX: usize = 4_096;

/// What is known of a slot that is delegated to this session.
pub(crate) struct KnownSlot {
    who: Credentials,
    next: InodeId,
    /// The directory's names are leased.
    names_leased: bool,
    directories: HashMap<InodeId, InodeInfo>,
    /// Names that were created here.
    made: HashSet<(InodeId, Name)>,
    files: HashMap<InodeId, KnownFile>,
}

struct KnownFile {
    attributes: Attributes,
    /// The file is inline, and its lanes will be of this epoch.
    inline: Option<Epoch>,
}

impl KnownSlot {
    /// From the server's answer.
    pub(crate) fn new(delegated: &Delegated, names_leased: bool) -> KnownSlot {
        let directory = delegated.directory.clone();
        KnownSlot {
            who: delegated.who.clone(),
            next: delegated.next,
            names_leased,
            directories: HashMap::from([(directory.attributes.inode, directory)]),
            made: HashSet::new(),
            files: HashMap::new(),
        }
    }

    /// Forgets its files, which may have changed.
    pub(crate) fn forget_files(&mut self) {
        self.files.clear();
    }

    /// Attributes of an inline file that was created here; those of other files depend on their lanes.
    pub(crate) fn attributes(&self, inode: InodeId) -> Option<&Attributes> {
        self.files.get(&inode).filter(|file| file.inline.is_some()).map(|file| &file.attributes)
    }

    /// How many entries a directory has.
    pub(crate) fn entries(&self, directory: InodeId) -> Option<u64> {
        self.directories.get(&directory).map(|directory| directory.attributes.size)
    }

    /// Creates a file in a directory; the caller knows that the name is free.
    pub(crate) fn create(&mut self, request: &Create, layout: Layout, at: Timestamp) -> Option<Opened> {
        let who = self.who.clone();
        let directory = self.directories.get(&request.parent)?;
        let is_plain = request.layout.is_none()
            && request.named.is_empty()
            && request.wish.hints == LayoutHints::default()
            && (request.mode.mode | request.mode.umask) & SPECIAL_BITS == 0;
        let name = (request.parent, request.name.clone());
        let may = is_plain
            && may_make_files(directory, &who)
            && !self.made.contains(&name)
            && self.files.len() < FILES_MAX
            && self.next.counter() < InodeId::COUNTER_MAX;
        if !may {
            return None;
        }
        let inode = self.next;
        self.next = InodeId::new(inode.slot(), inode.counter() + 1);
        self.made.insert(name);
        let directory = self.directories.get_mut(&request.parent)?;
        let attributes = &mut directory.attributes;
        attributes.size += 1;
        attributes.changed = at.behind(attributes.changed);
        attributes.modified = attributes.changed;
        let parent = attributes.clone();
        let info = new_file(inode, &who, request.mode.mode & !request.mode.umask, layout, at);
        self.files
            .insert(inode, KnownFile { attributes: info.attributes.clone(), inline: Some(layout.created) });
        let leased = EntryLeased { names: self.names_leased, attributes: true };
        Some(Opened { info, created: true, permit: None, leased, parent: Some(parent) })
    }

    /// Writes to an inline file.
    pub(crate) fn write(&mut self, request: &WriteInline, at: Timestamp) -> Option<InlineWritten> {
        let KnownFile { attributes, inline } = self.files.get_mut(&request.inode)?;
        let since = (*inline)?;
        let offset = match request.mode {
            InlineMode::At => request.offset,
            InlineMode::End => attributes.size,
            InlineMode::Within => return None,
        };
        let length = request.bytes.0.len() as u64;
        let end = offset.checked_add(length).filter(|end| *end <= limits::INLINE_BYTES_MAX as u64)?;
        let allocated = attributes.allocated?;
        if length == 0 || attributes.mode & SET_ID_BITS != 0 || attributes.xattrs {
            return None;
        }
        attributes.size = attributes.size.max(end);
        attributes.allocated = Some(allocated.max(end));
        attributes.modified = at;
        attributes.changed = at;
        let size = SizeInfo { size: attributes.size, generation: attributes.generation };
        Some(InlineWritten { outcome: InlineOutcome::Written, offset, size, since, recall: 0 })
    }

    /// Sets mode and times, on behalf of the file's owner.
    pub(crate) fn set_attributes(&mut self, request: &SetAttributes, at: Timestamp) -> Option<Attributes> {
        let attributes = &mut self.files.get_mut(&request.inode)?.attributes;
        let stays = |wanted: Option<u32>, is: u32| wanted.is_none_or(|wanted| wanted == is);
        let is_plain = (attributes.mode | request.mode.unwrap_or(0)) & SPECIAL_BITS == 0
            && !attributes.xattrs
            && stays(request.uid, attributes.uid)
            && stays(request.gid, attributes.gid);
        let changes_anything = request.mode.is_some()
            || request.uid.is_some()
            || request.gid.is_some()
            || request.accessed.is_some()
            || request.modified.is_some();
        if !is_plain || !changes_anything {
            return None;
        }
        attributes.mode = request.mode.unwrap_or(attributes.mode);
        attributes.accessed = request.accessed.unwrap_or(attributes.accessed);
        attributes.modified = request.modified.unwrap_or(attributes.modified);
        attributes.changed = at;
        Some(attributes.clone())
    }

    /// Promotes a file without bytes to its lanes.
    pub(crate) fn promote(&mut self, inode: InodeId) -> Option<Promoted> {
        let KnownFile { attributes, inline } = self.files.get_mut(&inode)?;
        if attributes.size > 0 || attributes.allocated != Some(0) {
            return None;
        }
        let since = inline.take()?;
        Some(Promoted { size: SizeInfo { size: 0, generation: attributes.generation }, since })
    }

    /// The home has just answered this of a file.
    pub(crate) fn learn_file(&mut self, attributes: &Attributes) {
        let is_ours = self.who.uid == 0 || self.who.uid == attributes.uid;
        if attributes.kind == FileKind::File && is_ours && self.files.len() < FILES_MAX {
            self.files.insert(attributes.inode, KnownFile { attributes: attributes.clone(), inline: None });
        }
    }

    /// Closes the session's last open file of the inode.
    pub(crate) fn close(&mut self, request: &Close, at: Timestamp) -> Option<()> {
        let attributes = &mut self.files.get_mut(&request.inode)?.attributes;
        if let Some(modified) = request.modified {
            attributes.modified = attributes.modified.after_write(modified, at);
            attributes.changed = at;
        }
        Some(())
    }
}

/// Whether a user may create files in a directory, judged by its mode alone: its access lists are not known,
/// and neither is what its files inherit.
fn may_make_files(directory: &InodeInfo, who: &Credentials) -> bool {
    let attributes = &directory.attributes;
    let owner_may = attributes.uid == who.uid && attributes.mode & OWNER_WRITES == OWNER_WRITES;
    (owner_may || who.uid == 0)
        && attributes.mode & SET_ID_BITS == 0
        && !attributes.xattrs
        && directory.hints == LayoutHints::default()
        && directory.partitions.is_empty()
        && attributes.size < limits::DELEGATED_ENTRIES_MAX
}

fn new_file(inode: InodeId, who: &Credentials, mode: u16, layout: Layout, at: Timestamp) -> InodeInfo {
    let attributes = Attributes {
        inode,
        kind: FileKind::File,
        mode,
        uid: who.uid,
        gid: who.gid,
        links: 1,
        size: 0,
        device: 0,
        generation: Generation::FIRST,
        accessed: at,
        modified: at,
        changed: at,
        created: at,
        xattrs: false,
        allocated: Some(0),
    };
    InodeInfo {
        attributes,
        layout: Some(layout),
        hints: LayoutHints::default(),
        named: Vec::new(),
        partitions: Vec::new(),
        inline: true,
        may_change_unnoticed: false,
    }
}

#[cfg(test)]
#[path = "predicting_tests.rs"]
mod tests;
