//! What a client was told of files, and what it does to them.

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{Generation, InodeId, Name, Sequence, Slot};
use ramlace_layout::lane_slot;
use ramlace_namespace::{Effect, Op, Reply};
use ramlace_wire::Layout;
use ramlace_wire::namespace::{Create, Extend, LayoutWish, Truncate};

use super::lanes::{Halves, Read, Written};
use super::{CHUNK_BYTES, CHUNKS, Run, reply_in};

/// A file as its client knows it.
pub(super) struct File {
    pub(super) inode: InodeId,
    pub(super) layout: Layout,
    pub(super) generation: Generation,
    pub(super) size: u64,
    /// Chunks below its size; those that are not here are zeros.
    pub(super) chunks: BTreeMap<u64, Known>,
    /// Of these lanes a store is gone: nobody knows any more what of them was never written.
    pub(super) lost_lanes: BTreeSet<u16>,
}

/// A file that is being cut.
#[derive(Clone, Copy)]
pub(super) struct Cutting {
    which: usize,
    size: u64,
    pub(super) sequence: Sequence,
}

/// What a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    Is(Halves),
    Lost,
}

impl File {
    /// Whether a chunk is lost, or was never written in a lane that has lost something.
    fn may_be_lost(&self, chunk: u64) -> bool {
        match self.chunks.get(&chunk) {
            Some(known) => *known == Known::Lost,
            None => self.lost_lanes.contains(&self.lane_of(chunk)),
        }
    }

    pub(super) fn lane_of(&self, chunk: u64) -> u16 {
        (chunk % u64::from(self.layout.width)) as u16
    }

    /// What these slots had is lost.
    pub(super) fn loses(&mut self, slots: &[Slot], all: u32) {
        let (layout, width) = (&self.layout, u64::from(self.layout.width));
        let is_lost = |lane: u16| slots.contains(&lane_slot(layout, lane, all));
        self.lost_lanes.extend((0..layout.width).filter(|lane| is_lost(*lane)));
        for (chunk, known) in &mut self.chunks {
            if is_lost((chunk % width) as u16) {
                *known = Known::Lost;
            }
        }
    }
}

impl Run {
    pub(super) fn writes(&mut self, which: usize) -> Result<(), String> {
        if self.is_being_cut(which) {
            return Ok(());
        }
        let chunk = self.dice.roll(CHUNKS);
        let half = self.dice.roll(5) as usize;
        let value = 1 + self.dice.roll(1 << 30) as u32;
        let file = &self.files[which];
        let known = file.chunks.get(&chunk).copied();
        let (inode, generation, is_below) =
            (file.inode, file.generation, (chunk + 1) * CHUNK_BYTES <= file.size);
        let may_be_lost = file.may_be_lost(chunk);
        let mut halves = match known {
            Some(Known::Is(halves)) => halves,
            _ => [0, 0],
        };
        // Where it grows, whole chunks are written.
        let half = (half < 2 && is_below).then_some(half);
        match self.write(which, chunk, half, value)? {
            Written::Done if half.is_some() && known == Some(Known::Lost) => {
                return Err(format!("half of chunk {chunk} of {inode} is written, and it was lost"));
            }
            Written::Done => {}
            Written::Away => return Ok(()),
            Written::Lost if may_be_lost && half.is_some() => {
                self.tally.lost += 1;
                return Ok(());
            }
            Written::Lost => {
                return Err(format!("chunk {chunk} of {inode} is {known:?}, and cannot be written"));
            }
        }
        self.tally.written += 1;
        self.tally.healed += u64::from(known == Some(Known::Lost));
        match half {
            Some(half) => halves[half] = value,
            None => halves = [value, value],
        }
        self.files[which].chunks.insert(chunk, Known::Is(halves));
        let size = (chunk + 1) * CHUNK_BYTES;
        if size > self.files[which].size {
            self.change(Op::Extend(Extend { inode, generation, size, from: size - CHUNK_BYTES }))?;
            self.files[which].size = size;
        }
        Ok(())
    }

    pub(super) fn reads(&mut self, which: usize) -> Result<(), String> {
        let file = &self.files[which];
        let chunks = file.size / CHUNK_BYTES;
        if chunks == 0 || self.is_being_cut(which) {
            return Ok(());
        }
        let chunk = self.dice.roll(chunks);
        let (inode, known) = (file.inode, file.chunks.get(&chunk).copied());
        let may_be_lost = file.may_be_lost(chunk);
        let read = self.read(which, chunk)?;
        match (read, known) {
            (Read::Away, _) => {}
            (Read::Lost, _) if may_be_lost => self.tally.lost += 1,
            (Read::Is(halves), Some(Known::Is(known))) if halves == known => self.tally.read += 1,
            (Read::Is([0, 0]), None) => self.tally.holes += 1,
            _ => return Err(format!("chunk {chunk} of {inode} is {known:?}, and is read as {read:?}")),
        }
        Ok(())
    }

    pub(super) fn truncates(&mut self, which: usize) -> Result<(), String> {
        if self.cutting.is_some() {
            return Ok(());
        }
        let inode = self.files[which].inode;
        let size = self.dice.roll(CHUNKS) * CHUNK_BYTES;
        let (sequence, effects) = self.asks_for(Op::Truncate(Truncate { inode, size, allocated: None }));
        self.cutting = Some(Cutting { which, size, sequence });
        self.may_be_cut(effects)
    }

    /// All lanes have acknowledged that a file is cut, if that is among what has come of something.
    pub(super) fn may_be_cut(&mut self, effects: Vec<Effect>) -> Result<(), String> {
        let Some(Cutting { which, size, sequence }) = self.cutting else { return Ok(()) };
        let Some(reply) = reply_in(effects, sequence)? else { return Ok(()) };
        let Reply::Attributes(attributes) = reply else { return Err(format!("a file is cut by {reply:?}")) };
        let file = &mut self.files[which];
        (file.generation, file.size) = (attributes.generation, size);
        file.chunks.retain(|chunk, _| (chunk + 1) * CHUNK_BYTES <= size);
        self.cutting = None;
        Ok(())
    }

    fn is_being_cut(&self, which: usize) -> bool {
        self.cutting.is_some_and(|cutting| cutting.which == which)
    }
}

pub(super) fn create(name: Name, layout: Layout) -> Op {
    Op::Create(Create {
        parent: InodeId::ROOT,
        name,
        mode: 0o644.into(),
        exclusive: true,
        read: true,
        write: true,
        layout: Some(layout),
        wish: LayoutWish::default(),
        named: Vec::new(),
    })
}
