//! Bytes in lanes.

use ramlace_base::{Error, ErrorKind, InodeId, LaneId, ServerId};
use ramlace_wire::chunk::{
    AllocateLane, ChunkExtended, ChunkRead, ChunkWritten, ExtendChunk, Keep, LaneTarget, PunchChunk,
    ReadChunk, WriteChunk,
};
use ramlace_wire::coordination::{CellChange, CellChanged, ChangeCell, NoteChange, WatchAnswer, WatchChange};
use ramlace_wire::namespace::Extend;
use ramlace_wire::runs::{ReadRuns, RunsRead, WriteRuns};
use ramlace_wire::{Header, Kind, decode_body, encode_body};

use super::{Done, State, body, error};

impl State {
    /// Answers requests about lanes; passes all others on.
    pub(super) fn lanes(&mut self, id: ServerId, header: &Header, bytes: &[u8], data: &[u8]) -> Done {
        let kind = header.kind;
        if matches!(
            kind,
            Kind::WriteChunk | Kind::ExtendChunk | Kind::WriteRuns | Kind::PunchChunk | Kind::NoteChange
        ) {
            self.changes += 1;
        }
        match kind {
            // One number for all lanes: it may change for a lane that has not.
            Kind::WatchChange => {
                let WatchChange { since, .. } = decode_body::<WatchChange>(kind, bytes)?;
                let changed = since.is_some_and(|since| since != self.changes);
                body(&WatchAnswer { changed, number: self.changes, inline: false })
            }
            Kind::ChangeCell => {
                let ChangeCell { target, offset, change } = decode_body::<ChangeCell>(kind, bytes)?;
                body(&change_cell(self.lane(id, &target)?, offset, change))
            }
            Kind::ReadChunk => {
                let ReadChunk { target, offset, length, keep, .. } = decode_body::<ReadChunk>(kind, bytes)?;
                let (keep, behind_end) = (keep != Keep::No, keep == Keep::BehindEnd);
                self.data.keeps.push(keep);
                let kept = keep && !self.data.kept.insert(target.lane);
                let lane = self.lane(id, &target)?;
                let start = (offset as usize).min(lane.len());
                let end = (offset as usize + length as usize).min(lane.len());
                let mut found = lane[start..end].to_vec();
                if behind_end || found.iter().all(|byte| *byte == 0) {
                    return body(&ChunkRead { hole: true, kept });
                }
                found.resize(length as usize, 0);
                Ok((encode_body(&ChunkRead { hole: false, kept }), found))
            }
            Kind::ExtendChunk => {
                let ExtendChunk { write, size, from, .. } = decode_body::<ExtendChunk>(kind, bytes)?;
                let LaneTarget { lane: LaneId { inode, .. }, generation, .. } = write.target;
                let as_plain = |kind| Header { kind, ..*header };
                self.lanes(id, &as_plain(Kind::WriteChunk), &encode_body(&write), data)?;
                let extend = encode_body(&Extend { inode, generation, size, from });
                let extended = self.sizes(id, &as_plain(Kind::Extend), &extend, &[]);
                let size = extended.ok().map(|(size, _)| decode_body(Kind::Extend, &size)).transpose()?;
                body(&ChunkExtended { size })
            }
            Kind::WriteChunk => {
                let WriteChunk { target, offset, origin } = decode_body::<WriteChunk>(kind, bytes)?;
                let end = offset as usize + data.len();
                if end > self.lane_bytes_max {
                    return error(ErrorKind::NoSpace, "full");
                }
                self.begin_lane(target.lane.inode)?;
                let lane = self.lane(id, &target)?;
                lane.resize(lane.len().max(end), 0);
                lane[offset as usize..end].copy_from_slice(data);
                body(&ChunkWritten { recall: self.data.write(origin) })
            }
            Kind::ReadRuns => {
                let ReadRuns { target, runs } = decode_body::<ReadRuns>(kind, bytes)?;
                let lane = self.lane(id, &target)?;
                let byte = |at: u64| lane.get(at as usize).copied().unwrap_or(0);
                let found: Vec<u8> = runs.iter().flat_map(|run| run.start..run.end).map(byte).collect();
                match found.iter().all(|byte| *byte == 0) {
                    true => body(&RunsRead { hole: true }),
                    false => Ok((encode_body(&RunsRead { hole: false }), found)),
                }
            }
            Kind::WriteRuns => {
                let WriteRuns { target, runs } = decode_body::<WriteRuns>(kind, bytes)?;
                if runs.reach().hull.end as usize > self.lane_bytes_max {
                    return error(ErrorKind::NoSpace, "full");
                }
                let lane = self.lane(id, &target)?;
                lane.resize(lane.len().max(runs.reach().hull.end as usize), 0);
                let mut bytes = data.iter();
                for at in runs.iter().flat_map(|run| run.start..run.end) {
                    lane[at as usize] = *bytes.next().unwrap();
                }
                body(&())
            }
            Kind::PunchChunk => {
                let PunchChunk { target, offset, length } = decode_body::<PunchChunk>(kind, bytes)?;
                let lane = self.lane(id, &target)?;
                let end = ((offset + length) as usize).min(lane.len());
                lane[(offset as usize).min(end)..end].fill(0);
                body(&())
            }
            Kind::AllocateLane => {
                let request = decode_body::<AllocateLane>(kind, bytes)?;
                if (request.offset + request.length + request.more) as usize > self.lane_bytes_max {
                    return error(ErrorKind::NoSpace, "full");
                }
                self.lane(id, &request.target)?;
                self.allocated.push(request);
                body(&())
            }
            Kind::NoteChange => {
                let NoteChange { target, .. } = decode_body::<NoteChange>(kind, bytes)?;
                self.lane(id, &target)?;
                body(&())
            }
            _ => error(ErrorKind::Unsupported, "not in a fake"),
        }
    }
}

impl State {
    /// An empty file is promoted to its lanes when its first bytes are written there; one that has bytes has
    /// to be promoted before.
    fn begin_lane(&mut self, inode: InodeId) -> Result<(), Error> {
        let Some(found) = self.inodes.get_mut(&inode) else {
            return error(ErrorKind::Stale, "no such inode");
        };
        if found.info.inline && !found.bytes.is_empty() {
            return error(ErrorKind::Invalid, "promote it first");
        }
        found.info.inline = false;
        Ok(())
    }
}

impl State {
    /// Whether a file has been truncated since the sender of a request learned its generation.
    pub(super) fn was_truncated_since(&self, target: &LaneTarget) -> bool {
        let found = self.inodes.get(&target.lane.inode);
        found.is_some_and(|found| target.generation < found.info.attributes.generation)
    }
}

/// The lane that a request is about, if it is about one.
pub(super) fn target_of(kind: Kind, body: &[u8]) -> Option<LaneTarget> {
    let target = match kind {
        Kind::ReadChunk => decode_body::<ReadChunk>(kind, body).map(|request| request.target),
        Kind::WriteChunk => decode_body::<WriteChunk>(kind, body).map(|request| request.target),
        Kind::ExtendChunk => decode_body::<ExtendChunk>(kind, body).map(|request| request.write.target),
        Kind::ReadRuns => decode_body::<ReadRuns>(kind, body).map(|request| request.target),
        Kind::WriteRuns => decode_body::<WriteRuns>(kind, body).map(|request| request.target),
        Kind::PunchChunk => decode_body::<PunchChunk>(kind, body).map(|request| request.target),
        Kind::ChangeCell => decode_body::<ChangeCell>(kind, body).map(|request| request.target),
        Kind::NoteChange => decode_body::<NoteChange>(kind, body).map(|request| request.target),
        _ => return None,
    };
    target.ok()
}

pub(super) fn change_cell(bytes: &mut Vec<u8>, offset: u64, change: CellChange) -> CellChanged {
    let (start, end) = (offset as usize, offset as usize + 8);
    bytes.resize(bytes.len().max(end), 0);
    let before = u64::from_le_bytes(bytes[start..end].try_into().unwrap());
    let after = change.after(before);
    bytes[start..end].copy_from_slice(&after.unwrap_or(before).to_le_bytes());
    CellChanged { before, changed: after.is_some() }
}
