//! Files' sizes, and inline bytes.

use std::collections::BTreeMap;

use ramlace_base::{Epoch, ErrorKind, InodeId, LaneId, ServerId};
use ramlace_wire::coordination::{CellChanged, ChangeInlineCell, InlineCellChanged};
use ramlace_wire::inline::{
    Bytes, InlineMode, InlineOutcome, InlineRead, InlineWritten, Promote, Promoted, ReadInline, WriteInline,
};
use ramlace_wire::namespace::{AppendReserved, Extend, FinishAppend, ReserveAppend, SizeInfo, Truncate};
use ramlace_wire::{Attributes, Header, Kind, decode_body};

use super::lanes::change_cell;
use super::{Done, Inode, State, body, error};

impl State {
    /// Answers requests about sizes and inline bytes; passes all others on.
    pub(super) fn sizes(&mut self, id: ServerId, header: &Header, bytes: &[u8], data: &[u8]) -> Done {
        let kind = header.kind;
        match kind {
            Kind::Truncate => {
                let Truncate { inode, size, .. } = decode_body::<Truncate>(kind, bytes)?;
                self.inode(id, inode)?;
                body(&self.truncate(inode, size))
            }
            Kind::ReadInline => {
                let ReadInline { inode, offset, length, keep } = decode_body::<ReadInline>(kind, bytes)?;
                self.data.keeps.push(keep);
                let inode = self.inode(id, inode)?;
                let start = inode.bytes.len().min(offset as usize);
                let end = inode.bytes.len().min(start + length as usize);
                let bytes = inode.info.inline.then(|| Bytes(inode.bytes[start..end].to_vec()));
                body(&InlineRead { size: size_of(inode), bytes, since: Epoch(1) })
            }
            Kind::WriteInline => {
                let WriteInline { inode, mode, offset, bytes: Bytes(bytes), origin } =
                    decode_body::<WriteInline>(kind, bytes)?;
                let recall = self.data.write(origin);
                let inode = self.inode(id, inode)?;
                let size = inode.info.attributes.size;
                let start = if mode == InlineMode::End { size } else { offset };
                let mut end = start + bytes.len() as u64;
                if mode == InlineMode::Within {
                    end = end.min(size.max(start));
                }
                let outcome = match end {
                    _ if !inode.info.inline => InlineOutcome::InLanes,
                    end if end > 4096 => InlineOutcome::Full,
                    _ => InlineOutcome::Written,
                };
                if outcome == InlineOutcome::Written && end > start {
                    let (start, end) = (start as usize, end as usize);
                    inode.bytes.resize(inode.bytes.len().max(end), 0);
                    inode.bytes[start..end].copy_from_slice(&bytes[..end - start]);
                    inode.info.attributes.size = size.max(end as u64);
                    inode.info.attributes.modified.nanos += 1;
                }
                let size = size_of(inode);
                body(&InlineWritten { outcome, offset: start, size, since: Epoch(1), recall })
            }
            Kind::ChangeInlineCell => {
                let ChangeInlineCell { inode, offset, change } =
                    decode_body::<ChangeInlineCell>(kind, bytes)?;
                let inode = self.inode(id, inode)?;
                let (outcome, cell) = if inode.info.inline {
                    (InlineOutcome::Written, change_cell(&mut inode.bytes, offset, change))
                } else {
                    (InlineOutcome::InLanes, CellChanged { before: 0, changed: false })
                };
                body(&InlineCellChanged { outcome, cell, size: size_of(inode) })
            }
            Kind::Promote => {
                let Promote { inode, first_page: _ } = decode_body::<Promote>(kind, bytes)?;
                let lane_bytes_max = self.lane_bytes_max;
                let found = self.inode(id, inode)?;
                if found.info.inline && found.bytes.len() > lane_bytes_max {
                    return error(ErrorKind::NoSpace, "full");
                }
                found.info.inline = false;
                let (bytes, size) = (std::mem::take(&mut found.bytes), size_of(found));
                if !bytes.is_empty() {
                    self.lanes.insert(LaneId { inode, lane: 0 }, bytes);
                }
                body(&Promoted { size, since: Epoch(1) })
            }
            Kind::Extend => {
                let Extend { inode, generation, size, .. } = decode_body::<Extend>(kind, bytes)?;
                let attributes = &mut self.inode(id, inode)?.info.attributes;
                if generation < attributes.generation {
                    return error(ErrorKind::Retry, "truncated");
                }
                attributes.size = attributes.size.max(size);
                body(&SizeInfo { size: attributes.size, generation: attributes.generation })
            }
            Kind::NoteMemory => body(&()),
            Kind::ReserveAppend => {
                let ReserveAppend { inode, length } = decode_body::<ReserveAppend>(kind, bytes)?;
                let inode = self.inode(id, inode)?;
                let offset = inode.info.attributes.size.max(inode.reserved_to);
                inode.reserved_to = offset + length;
                inode.reservations.insert((header.session, header.sequence), offset);
                let Attributes { inode, generation, .. } = inode.info.attributes;
                body(&AppendReserved { inode, number: header.sequence, offset, generation })
            }
            Kind::FinishAppend => {
                let FinishAppend { inode, number, failed } = decode_body::<FinishAppend>(kind, bytes)?;
                let inode = self.inode(id, inode)?;
                if inode.reservations.remove(&(header.session, number)).is_none() && !failed {
                    return error(ErrorKind::Retry, "truncated after its bytes were reserved");
                }
                let published = inode.reservations.values().min().copied().unwrap_or(inode.reserved_to);
                let attributes = &mut inode.info.attributes;
                attributes.size = attributes.size.max(published);
                body(&SizeInfo { size: attributes.size, generation: attributes.generation })
            }
            _ => self.lanes(id, header, bytes, data),
        }
    }
}

impl State {
    /// Sets the size of a file that is there.
    fn truncate(&mut self, inode: InodeId, size: u64) -> Attributes {
        let found = self.inodes.get_mut(&inode).expect("it was looked up before");
        (found.reserved_to, found.reservations) = (0, BTreeMap::new());
        found.bytes.truncate(size as usize);
        let info = &mut found.info;
        info.attributes.size = size;
        info.attributes.generation = info.attributes.generation.next();
        let (attributes, layout) = (info.attributes.clone(), info.layout.unwrap());
        for (lane, bytes) in self.lanes.iter_mut().filter(|(lane, _)| lane.inode == inode) {
            bytes.truncate(ramlace_layout::lane_length(&layout, lane.lane, size) as usize);
        }
        attributes
    }

    pub(super) fn truncate_all(&mut self) {
        self.truncate_each(|_| 0);
    }

    /// Takes the last byte of each file away.
    pub(super) fn cut_all(&mut self) {
        self.truncate_each(|size| size.saturating_sub(1));
    }

    fn truncate_each(&mut self, to: impl Fn(u64) -> u64) {
        let files = self.inodes.iter().filter(|(_, found)| found.info.layout.is_some());
        let files = files.map(|(inode, found)| (*inode, to(found.info.attributes.size)));
        for (inode, size) in files.collect::<Vec<_>>() {
            self.truncate(inode, size);
        }
    }
}

fn size_of(inode: &Inode) -> SizeInfo {
    let attributes = &inode.info.attributes;
    SizeInfo { size: attributes.size, generation: attributes.generation }
}
