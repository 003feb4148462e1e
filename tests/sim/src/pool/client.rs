//! A client: one operation after the other on names and files of its own, and what it has been told of them.

use ramlace_base::{
    Epoch, Error, Generation, InodeId, LaneId, Name, Result as Outcome, Sequence, SessionId, Slot,
};
use ramlace_namespace::{Op, Reply};
use ramlace_wire::Layout;
use ramlace_wire::chunk::{LaneTarget, WriteOrigin};
use ramlace_wire::inline::{Bytes, InlineMode, InlineOutcome, Promote, WriteInline};
use ramlace_wire::namespace::{
    Close, Create, LayoutWish, Link, MakeDirectory, RemoveDirectory, Rename, RenameMode, Truncate, Unlink,
};

use super::mount::Mount;
use super::{Message, SLOTS};
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
    /// Once it is in its lane: where, and the generation.
    pub lane: Option<LaneTarget>,
    base: Slot,
}

#[derive(Clone, Debug)]
enum Doing {
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
    sequence: u64,
    left: u32,
    names: u64,
    asked: Option<(Doing, Message)>,
    pub(super) mount: Mount,
    /// The root, and what it has made.
    pub directories: Vec<(InodeId, Option<Name>)>,
    pub files: Vec<File>,
    /// Entries that are gone.
    pub gone: Vec<Place>,
}

impl Client {
    pub fn new(number: u64) -> Client {
        Client {
            number: number as usize,
            sequence: 0,
            left: OPERATIONS,
            names: 0,
            asked: None,
            mount: Mount::default(),
            directories: vec![(InodeId::ROOT, None)],
            files: Vec::new(),
            gone: Vec::new(),
        }
    }

    pub fn session(&self) -> SessionId {
        SessionId([1 + self.number as u8; 16])
    }

    pub fn sequence(&self) -> Sequence {
        Sequence(self.sequence)
    }

    pub fn is_done(&self) -> bool {
        self.left == 0 && self.asked.is_none()
    }

    /// The message of the operation with this number, if it waits for an answer.
    pub fn under_way(&self, sequence: Sequence) -> Option<Message> {
        let (_, message) = self.asked.as_ref()?;
        (sequence == self.sequence()).then(|| message.clone())
    }

    /// The same under another number: a bug.
    pub fn renumber(&mut self) -> Message {
        self.sequence += 1;
        let number = self.sequence();
        let (_, message) = self.asked.as_mut().expect("an operation is under way");
        match message {
            Message::Ask { sequence, .. } => *sequence = number,
            Message::Write { sequence, .. } => *sequence = number,
            _ => unreachable!("a client asks and writes"),
        }
        message.clone()
    }

    /// What it does next; `None`: it has done everything.
    pub fn next(&mut self, dice: &mut Dice) -> Option<Message> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let doing = std::iter::repeat_with(|| self.choose(dice)).flatten().next()?;
        self.sequence += 1;
        let message = self.message(&doing);
        self.mount.changing = self.changes(&doing);
        self.asked = Some((doing, message.clone()));
        Some(message)
    }

    fn choose(&mut self, dice: &mut Dice) -> Option<Doing> {
        // Mostly the newest, so that things happen to one file soon after one another.
        let newest = self.files.len().saturating_sub(1);
        let file = if dice.percent(60) { newest } else { dice.roll(newest as u64 + 1) as usize };
        let of_file = self.files.get(file);
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
                (offset < of_file.bytes.len().max(1)).then_some(())?;
                Doing::Write { file, offset, byte: 1 + dice.roll(255) as u8 }
            }
            18 => Doing::MakeDirectory { name: self.new_name() },
            _ => {
                let which = 1 + dice.roll(self.directories.len() as u64) as usize;
                let inode = self.directories.get(which)?.0;
                let is_empty =
                    self.files.iter().all(|file| file.places.iter().all(|(parent, _)| *parent != inode));
                is_empty.then_some(Doing::RemoveDirectory { which })?
            }
        })
    }

    fn new_name(&mut self) -> Name {
        self.names += 1;
        Name::new(format!("c{}n{}", self.number, self.names).as_bytes()).expect("a name")
    }

    fn new_place(&mut self, dice: &mut Dice) -> Place {
        let which = dice.roll(self.directories.len() as u64) as usize;
        (self.directories[which].0, self.new_name())
    }

    fn message(&self, doing: &Doing) -> Message {
        let (client, sequence) = (self.number, self.sequence());
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
            Doing::Promote { file } => {
                Op::Promote { request: Promote { inode: inode(file) }, epoch: Epoch(1) }
            }
            Doing::MakeDirectory { name } => {
                let request = MakeDirectory { parent: InodeId::ROOT, name: name.clone(), mode: 0o755.into() };
                let home = Slot((self.names % u64::from(SLOTS)) as u16);
                Op::MakeDirectory { request, homes: vec![home] }
            }
            Doing::RemoveDirectory { which } => {
                let name = self.directories[*which].1.clone().expect("the root stays");
                Op::RemoveDirectory(RemoveDirectory { parent: InodeId::ROOT, name })
            }
            Doing::Write { file, offset, byte } => {
                let target = self.files[*file].lane.expect("it is in its lane");
                let (offset, byte) = (*offset, *byte);
                return Message::Write { client, target, sequence, offset, byte, life: 0 };
            }
        };
        Message::Ask { client, slot: self.slot_of(doing), sequence, op: Box::new(op) }
    }

    /// The inodes whose attributes it changes, as far as they are there already.
    fn changes(&self, doing: &Doing) -> Vec<InodeId> {
        let inode = |file: &usize| self.files[*file].inode;
        match doing {
            Doing::Create { place, .. } => vec![place.0],
            Doing::Rename { file, which, to } => {
                vec![self.files[*file].places[*which].0, to.0, inode(file)]
            }
            Doing::Link { file, to } => vec![to.0, inode(file)],
            Doing::Unlink { file, which } => vec![self.files[*file].places[*which].0, inode(file)],
            Doing::MakeDirectory { .. } => vec![InodeId::ROOT],
            Doing::RemoveDirectory { which } => vec![InodeId::ROOT, self.directories[*which].0],
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
        let Some((doing, _)) = &self.asked else { return Vec::new() };
        let mut changes = self.changes(doing);
        if matches!(doing, Doing::Rename { .. }) {
            changes.truncate(2);
        }
        changes
    }

    /// The slot that is asked.
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

    /// The answer to what is under way.
    pub fn take(&mut self, outcome: Outcome<Reply>) -> Result<(), String> {
        let Some((doing, _)) = self.asked.take() else { return Ok(()) };
        let told = |error: Error| format!("client {}: {doing:?} is answered with {error}", self.number);
        let reply = outcome.map_err(told)?;
        let unfit = format!("client {}: {doing:?} is answered with {reply:?}", self.number);
        match (doing, reply) {
            (Doing::Create { place, base }, Reply::Opened(opened)) => {
                let inode = opened.info.attributes.inode;
                let (places, bytes) = (vec![place], Vec::new());
                self.files.push(File { inode, places, is_open: true, bytes, lane: None, base });
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
                if let Some(lane) = &mut file.lane {
                    lane.generation = attributes.generation;
                }
            }
            (Doing::Promote { file }, Reply::Promoted(promoted)) => {
                let file = &mut self.files[file];
                let (lane, slot) = (LaneId { inode: file.inode, lane: 0 }, file.base);
                let generation: Generation = promoted.size.generation;
                file.lane = Some(LaneTarget { lane, slot, generation, created: Epoch(1), permit: None });
            }
            (Doing::Write { file, offset, byte }, Reply::Done) => {
                let bytes = &mut self.files[file].bytes;
                bytes.resize(bytes.len().max(offset + 1), 0);
                bytes[offset] = byte;
            }
            (Doing::MakeDirectory { name }, Reply::Attributes(attributes)) => {
                self.directories.push((attributes.inode, Some(name)));
            }
            (Doing::RemoveDirectory { which }, Reply::Done) => {
                let (_, name) = self.directories.swap_remove(which);
                self.gone.push((InodeId::ROOT, name.expect("the root stays")));
            }
            _ => return Err(unfit),
        }
        // What is gone is not used again.
        self.files.retain(|file| file.is_open || !file.places.is_empty());
        Ok(())
    }
}
