//! A client: one operation after the other on names and files of its own, and what it has been told of them. What an operation has come to that was cancelled
//! is not known at once: until then the client leaves alone what it is about.

use std::collections::BTreeMap;

use ramlace_base::{Epoch, Generation, InodeId, LaneId, Name, Sequence, SessionId, Slot};
use ramlace_client::pure::Kept;
use ramlace_namespace::{Op, Reply};
use ramlace_wire::Layout;
use ramlace_wire::chunk::{LaneTarget, WriteOrigin};
use ramlace_wire::inline::{Bytes, FirstPage, InlineMode, InlineOutcome, Promote, WriteInline};
use ramlace_wire::namespace::{
    Close, Create, LayoutWish, Link, MakeDirectory, RemoveDirectory, Rename, RenameMode, Truncate, Unlink,
};

use super::SLOTS;
use super::calls::{Caller, Numbered};
use super::mount::Mount;
use super::network::Message;
use crate::dice::Dice;

/// Operations of one client.
const OPERATIONS: u32 = 35;
/// Bytes of one append.
const APPEND_BYTES_MAX: u64 = 20;

/// Where an entry is.
pub type Place = (InodeId, Name);

/// A file as its client knows it.
pub struct File {
    pub inode: InodeId,
    pub places: Vec<Place>,
    pub is_open: bool,
    pub bytes: Vec<u8>,
    /// What a byte may be beside that: writes of it have failed that may have been done.
    pub doubtful: BTreeMap<usize, Vec<u8>>,
    pub loss: Loss,
    /// Once it is in its lane: where, and the generation.
    pub lane: Option<LaneTarget>,
    base: Slot,
}

/// Whether what a file has in its lane went with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    Not,
    /// It went there, or was written anew, just then.
    Maybe,
    Is,
}

/// A directory as its client knows it.
pub struct Directory {
    pub inode: InodeId,
    /// The root has none.
    pub name: Option<Name>,
    pub is_gone: bool,
}

/// An operation that was cancelled: it was done, or it never will be.
pub struct Doubt {
    pub doing: Doing,
    pub kept: Kept,
    pub session: SessionId,
    /// Its slot knows that.
    pub acknowledged: bool,
}

impl File {
    /// Neither a name nor its client holds it.
    pub fn is_gone(&self) -> bool {
        !self.is_open && self.places.is_empty()
    }

    /// Whether its bytes may be these.
    pub fn may_be(&self, bytes: &[u8]) -> bool {
        let fits = |(offset, (is, known)): (usize, (&u8, &u8))| {
            is == known || self.doubtful.get(&offset).is_some_and(|others| others.contains(is))
        };
        bytes.len() == self.bytes.len() && bytes.iter().zip(&self.bytes).enumerate().all(fits)
    }
}

#[derive(Clone, Debug)]
pub enum Doing {
    Create { place: Place, base: Slot },
    Append { file: usize, bytes: Vec<u8> },
    Rename { file: usize, which: usize, to: Place },
    Link { file: usize, to: Place },
    Unlink { file: usize, which: usize },
    Close { file: usize },
    Truncate { file: usize, size: usize },
    Promote { file: usize },
    Write { file: usize, offset: usize, byte: u8 },
    MakeDirectory { name: Name },
    RemoveDirectory { which: usize },
}

pub struct Client {
    number: usize,
    /// Sessions that it has had before.
    sessions: u8,
    left: u32,
    names: u64,
    /// The operation that is under way.
    pub doing: Option<Doing>,
    pub doubts: Vec<Doubt>,
    pub(super) caller: Caller,
    pub(super) mount: Mount,
    /// The root, and what it has made.
    pub directories: Vec<Directory>,
    pub files: Vec<File>,
    /// Entries that are gone.
    pub gone: Vec<Place>,
}

impl Doing {
    /// The file that it is about.
    pub fn file(&self) -> Option<usize> {
        match self {
            Doing::Create { .. } | Doing::MakeDirectory { .. } | Doing::RemoveDirectory { .. } => None,
            Doing::Append { file, .. }
            | Doing::Rename { file, .. }
            | Doing::Link { file, .. }
            | Doing::Unlink { file, .. }
            | Doing::Close { file }
            | Doing::Truncate { file, .. }
            | Doing::Promote { file }
            | Doing::Write { file, .. } => Some(*file),
        }
    }
}

impl Client {
    pub fn new(number: u64, servers: usize) -> Client {
        Client {
            number: number as usize,
            sessions: 0,
            left: OPERATIONS,
            names: 0,
            doing: None,
            doubts: Vec::new(),
            caller: Caller::new(servers),
            mount: Mount::default(),
            directories: vec![Directory { inode: InodeId::ROOT, name: None, is_gone: false }],
            files: Vec::new(),
            gone: Vec::new(),
        }
    }

    pub fn session(&self) -> SessionId {
        let mut bytes = [1 + self.number as u8; 16];
        bytes[0] = self.sessions;
        SessionId(bytes)
    }

    /// Another session, in which nothing is open.
    pub fn begins_session(&mut self, keeps_open: bool) {
        self.sessions += 1;
        self.files.iter_mut().for_each(|file| file.is_open &= keeps_open);
    }

    pub fn is_done(&self) -> bool {
        self.left == 0 && self.doing.is_none()
    }

    /// Chooses what it does next; false: it has done everything.
    pub fn chooses(&mut self, dice: &mut Dice) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        let doing = std::iter::repeat_with(|| self.choose(dice)).flatten().next();
        self.mount.changing = doing.as_ref().map(|doing| self.changes(doing)).unwrap_or_default();
        self.doing = doing;
        true
    }

    /// What it learns something of by the answer to a request with this number.
    pub(super) fn learns_of(&self, sequence: Sequence) -> Vec<InodeId> {
        if self.caller.number_of_program() == Some(sequence) {
            return self.mount.changing.clone();
        }
        let cancelled = self.caller.cancelled_by(sequence);
        let doubt =
            self.doubts.iter().find(|doubt| Some(doubt.kept) == cancelled && doubt.session == self.session());
        doubt.map(|doubt| self.changes(&doubt.doing)).unwrap_or_default()
    }

    /// Whether an operation of its own may have changed an inode without its mount knowing that.
    pub(super) fn may_have_changed(&self, inode: InodeId) -> bool {
        let open = self.doubts.iter().filter(|doubt| !doubt.acknowledged);
        self.mount.changing.contains(&inode)
            || open.flat_map(|doubt| self.changes(&doubt.doing)).any(|changed| changed == inode)
    }

    /// Whether what is under way is about bytes that may be lost.
    pub fn may_have_lost(&self) -> bool {
        let file = self.doing.as_ref().and_then(Doing::file);
        file.is_some_and(|file| self.files[file].loss != Loss::Not)
    }

    /// Nothing in doubt is about this file.
    fn is_sure_of(&self, file: usize) -> bool {
        self.doubts.iter().all(|doubt| doubt.doing.file() != Some(file))
    }

    /// Nothing in doubt is to remove this directory.
    fn is_sure_to_stay(&self, directory: usize) -> bool {
        let removes =
            |doing: &Doing| matches!(doing, Doing::RemoveDirectory { which } if *which == directory);
        !self.directories[directory].is_gone && !self.doubts.iter().any(|doubt| removes(&doubt.doing))
    }

    fn is_surely_empty(&self, inode: InodeId) -> bool {
        let leads_there = |doing: &Doing| match doing {
            Doing::Create { place, .. } => place.0 == inode,
            Doing::Rename { to, .. } | Doing::Link { to, .. } => to.0 == inode,
            _ => false,
        };
        let mut places = self.files.iter().flat_map(|file| &file.places);
        !places.any(|(parent, _)| *parent == inode)
            && !self.doubts.iter().any(|doubt| leads_there(&doubt.doing))
    }

    fn choose(&mut self, dice: &mut Dice) -> Option<Doing> {
        // Mostly the newest, so that things happen to one file soon after one another.
        let newest = self.files.len().saturating_sub(1);
        let file = if dice.percent(60) { newest } else { dice.roll(newest as u64 + 1) as usize };
        let of_file = self.files.get(file).filter(|_| self.is_sure_of(file));
        let linked = |file: &&File| !file.places.is_empty();
        let lives = |file: &&File| file.is_open || !file.places.is_empty();
        let inline = |file: &&File| file.is_open && file.lane.is_none();
        Some(match dice.roll(26) {
            0..4 => Doing::Create { place: self.new_place(dice), base: Slot(dice.roll(SLOTS.into()) as u16) },
            4..7 => {
                of_file.filter(inline)?;
                let bytes = (0..=dice.roll(APPEND_BYTES_MAX)).map(|_| 1 + dice.roll(255) as u8).collect();
                Doing::Append { file, bytes }
            }
            7..10 => {
                let which = dice.roll(of_file.filter(linked)?.places.len() as u64) as usize;
                Doing::Rename { file, which, to: self.new_place(dice) }
            }
            10 => {
                of_file.filter(linked)?;
                Doing::Link { file, to: self.new_place(dice) }
            }
            11 | 12 => {
                let which = dice.roll(of_file.filter(linked)?.places.len() as u64) as usize;
                Doing::Unlink { file, which }
            }
            13 => {
                of_file.filter(|file| file.is_open)?;
                Doing::Close { file }
            }
            14 => {
                let length = of_file.filter(|file| file.is_open)?.bytes.len() as u64;
                Doing::Truncate { file, size: dice.roll(length + 1) as usize }
            }
            15 | 20 => {
                of_file.filter(inline)?;
                Doing::Promote { file }
            }
            16 | 17 | 21.. => {
                let of_file = of_file.filter(lives).filter(|file| file.is_open && file.lane.is_some())?;
                // Mostly where it has written before.
                let offset = dice.roll(3.min(of_file.bytes.len() as u64 + 1)) as usize;
                // The first byte of a file that went to its lanes empty begins one.
                // Its home is not notified of that: where stores are lost it would count as empty.
                let least = usize::from(!self.is_lent(of_file.base));
                (offset < of_file.bytes.len().max(least)).then_some(())?;
                Doing::Write { file, offset, byte: 1 + dice.roll(255) as u8 }
            }
            18 => Doing::MakeDirectory { name: self.new_name() },
            _ => {
                let which = 1 + dice.roll(self.directories.len() as u64) as usize;
                let inode = self.directories.get(which)?.inode;
                let may_go = self.is_sure_to_stay(which) && self.is_surely_empty(inode);
                may_go.then_some(Doing::RemoveDirectory { which })?
            }
        })
    }

    /// The slot is one of the last server, which has no names.
    fn is_lent(&self, slot: Slot) -> bool {
        let servers = self.caller.servers.len();
        usize::from(slot.0) % servers == servers - 1
    }

    fn new_name(&mut self) -> Name {
        self.names += 1;
        Name::new(format!("c{}n{}", self.number, self.names).as_bytes()).expect("a name")
    }

    fn new_place(&mut self, dice: &mut Dice) -> Place {
        let which = dice.roll(self.directories.len() as u64) as usize;
        let which = if self.is_sure_to_stay(which) { which } else { 0 };
        (self.directories[which].inode, self.new_name())
    }

    /// The message that asks for what is under way.
    pub(super) fn message(&self, numbered: Numbered) -> Option<Message> {
        let doing = self.doing.as_ref()?;
        let client = self.number;
        let inode = |file: &usize| self.files[*file].inode;
        let op = match doing {
            Doing::Create { place: (parent, name), base } => Op::Create(Create {
                parent: *parent,
                name: name.clone(),
                mode: 0o644.into(),
                exclusive: true,
                read: true,
                write: true,
                layout: Some(Layout {
                    stripe_unit: 1 << 16,
                    width: 1,
                    base_slot: *base,
                    stride: 1,
                    copies: 1,
                    created: Epoch(1),
                }),
                wish: LayoutWish::default(),
                named: Vec::new(),
            }),
            Doing::Append { file, bytes } => {
                let (mode, bytes, origin) = (InlineMode::End, Bytes(bytes.clone()), WriteOrigin::Program);
                let request = WriteInline { inode: inode(file), mode, offset: 0, bytes, origin };
                Op::WriteInline { request, room: true }
            }
            Doing::Rename { file, which, to: (new_parent, new_name) } => {
                let (parent, name) = self.files[*file].places[*which].clone();
                let (new_parent, new_slot) = (*new_parent, new_parent.slot());
                let (new_name, mode) = (new_name.clone(), RenameMode::Keep);
                Op::Rename(Box::new(Rename { parent, name, new_parent, new_slot, new_name, mode }))
            }
            Doing::Link { file, to: (parent, name) } => {
                Op::Link(Link { parent: *parent, name: name.clone(), inode: inode(file) })
            }
            Doing::Unlink { file, which } => {
                let (parent, name) = self.files[*file].places[*which].clone();
                Op::Unlink(Unlink { parent, name })
            }
            Doing::Close { file } => Op::Close(Close { inode: inode(file), modified: None, leases: false }),
            Doing::Truncate { file, size } => {
                Op::Truncate(Truncate { inode: inode(file), size: *size as u64, allocated: None })
            }
            Doing::Promote { file } => Op::Promote {
                request: Promote { inode: inode(file), first_page: FirstPage::Locked },
                epoch: Epoch(1),
            },
            Doing::MakeDirectory { name } => {
                let request = MakeDirectory { parent: InodeId::ROOT, name: name.clone(), mode: 0o755.into() };
                let home = Slot((self.names % u64::from(SLOTS)) as u16);
                let home = if self.is_lent(home) { Slot(0) } else { home };
                Op::MakeDirectory { request, homes: vec![home] }
            }
            Doing::RemoveDirectory { which } => {
                let name = self.directories[*which].name.clone().expect("the root stays");
                Op::RemoveDirectory(RemoveDirectory { parent: InodeId::ROOT, name })
            }
            Doing::Write { file, offset, byte } => {
                let target = self.files[*file].lane.expect("it is in its lane");
                let (offset, byte) = (*offset, *byte);
                return Some(Message::Write { client, target, numbered, offset, byte });
            }
        };
        Some(Message::Ask { client, slot: self.slot_of(doing), numbered, op: Box::new(op) })
    }

    /// The inodes whose attributes it changes, as far as they are there already.
    pub(super) fn changes(&self, doing: &Doing) -> Vec<InodeId> {
        let inode = |file: &usize| self.files[*file].inode;
        match doing {
            Doing::Create { place, .. } => vec![place.0],
            Doing::Rename { file, which, to } => {
                vec![self.files[*file].places[*which].0, to.0, inode(file)]
            }
            Doing::Link { file, to } => vec![to.0, inode(file)],
            Doing::Unlink { file, which } => vec![self.files[*file].places[*which].0, inode(file)],
            Doing::MakeDirectory { .. } => vec![InodeId::ROOT],
            Doing::RemoveDirectory { which } => vec![InodeId::ROOT, self.directories[*which].inode],
            Doing::Append { file, .. }
            | Doing::Close { file }
            | Doing::Truncate { file, .. }
            | Doing::Promote { file }
            | Doing::Write { file, .. } => vec![inode(file)],
        }
    }

    /// Of what the operation under way changes, that of which its mount knows by itself when it is answered: a kernel
    /// does not change its copy of what is renamed.
    pub(super) fn knows_itself(&self) -> Vec<InodeId> {
        let Some(doing) = &self.doing else { return Vec::new() };
        let mut changes = self.changes(doing);
        if matches!(doing, Doing::Rename { .. }) {
            changes.truncate(2);
        }
        changes
    }

    /// The slot that is asked for what is under way.
    pub(super) fn slot_asked(&self) -> Option<Slot> {
        let doing = self.doing.as_ref()?;
        Some(match doing {
            Doing::Write { file, .. } => self.files[*file].lane.map_or(Slot(0), |target| target.slot),
            _ => self.slot_of(doing),
        })
    }

    /// The slot of names that it is about.
    fn slot_of(&self, doing: &Doing) -> Slot {
        let inode = match doing {
            Doing::Create { place: (parent, _), .. } | Doing::Link { to: (parent, _), .. } => *parent,
            Doing::Rename { file, which, .. } | Doing::Unlink { file, which } => {
                self.files[*file].places[*which].0
            }
            Doing::MakeDirectory { .. } | Doing::RemoveDirectory { .. } => InodeId::ROOT,
            Doing::Append { file, .. }
            | Doing::Close { file }
            | Doing::Truncate { file, .. }
            | Doing::Promote { file }
            | Doing::Write { file, .. } => self.files[*file].inode,
        };
        inode.slot()
    }

    /// What is under way has failed: a byte may be written.
    pub fn doubts_byte(&mut self, file: usize, offset: usize, byte: u8) {
        self.files[file].doubtful.entry(offset).or_default().push(byte);
    }

    /// An operation is done.
    pub fn take(&mut self, doing: Doing, reply: Reply) -> Result<(), String> {
        let unfit = format!("client {}: {doing:?} is answered with {reply:?}", self.number);
        match (doing, reply) {
            (Doing::Create { place, base }, Reply::Opened(opened)) => {
                let inode = opened.info.attributes.inode;
                let (places, bytes) = (vec![place], Vec::new());
                let doubtful = BTreeMap::new();
                self.files.push(File {
                    inode,
                    places,
                    is_open: true,
                    bytes,
                    doubtful,
                    loss: Loss::Not,
                    lane: None,
                    base,
                });
            }
            (Doing::Append { file, bytes }, Reply::WroteInline(written)) => {
                let known = &mut self.files[file].bytes;
                if (written.outcome, written.offset) != (InlineOutcome::Written, known.len() as u64) {
                    return Err(unfit);
                }
                known.extend(bytes);
            }
            (Doing::Rename { file, which, to }, Reply::Done) => {
                let from = std::mem::replace(&mut self.files[file].places[which], to);
                self.gone.push(from);
            }
            (Doing::Link { file, to }, Reply::Attributes(_)) => self.files[file].places.push(to),
            (Doing::Unlink { file, which }, Reply::Done) => {
                let place = self.files[file].places.swap_remove(which);
                self.gone.push(place);
            }
            (Doing::Close { file }, Reply::Done) => self.files[file].is_open = false,
            (Doing::Truncate { file, size }, Reply::Attributes(attributes)) => {
                let file = &mut self.files[file];
                file.bytes.truncate(size);
                if size == 0 {
                    file.loss = Loss::Not;
                }
                file.doubtful.retain(|offset, _| *offset < size);
                if let Some(lane) = &mut file.lane {
                    lane.generation = attributes.generation;
                }
            }
            (Doing::Promote { file }, Reply::Promoted(promoted)) => {
                let file = &mut self.files[file];
                let (lane, slot) = (LaneId { inode: file.inode, lane: 0 }, file.base);
                let generation: Generation = promoted.size.generation;
                file.lane =
                    Some(LaneTarget { lane, slot, generation, created: promoted.since, permit: None });
            }
            (Doing::Write { file, offset, byte }, Reply::Done) => {
                let is_whole = self.files[file].bytes.len() <= 1;
                if is_whole && self.files[file].loss == Loss::Is {
                    self.files[file].loss = Loss::Maybe;
                }
                self.files[file].doubtful.remove(&offset);
                let bytes = &mut self.files[file].bytes;
                bytes.resize(bytes.len().max(offset + 1), 0);
                bytes[offset] = byte;
            }
            (Doing::MakeDirectory { name }, Reply::Attributes(attributes)) => {
                self.directories.push(Directory {
                    inode: attributes.inode,
                    name: Some(name),
                    is_gone: false,
                });
            }
            (Doing::RemoveDirectory { which }, Reply::Done) => {
                let directory = &mut self.directories[which];
                directory.is_gone = true;
                self.gone.push((InodeId::ROOT, directory.name.take().expect("the root stays")));
            }
            _ => return Err(unfit),
        }
        Ok(())
    }
}
