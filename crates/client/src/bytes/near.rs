//! Large reads from servers on this machine: straight from the lanes' files, with one copy instead of a
//! socket's two.
//!
//! A server gives out a read-only descriptor of a lane's file (`GrantLane`) once it has brought the lane to
//! the file's generation. After the bytes were copied, each server that they came from is asked whether the
//! generation still holds and the slot is still its own: then no truncation, loss or move of the slot came
//! between, and the bytes are what the server itself would have sent. Another map may have brought another server
//! to answer that, which knows nothing of these files: then the bytes are not used. Small reads do not go this
//! way: theirs are atomic (`docs/records/atomicity.md`).
//!
//! Measured with 8 MB reads of a file on one server: 27 GiB/s from the file, 4.4 through the socket.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ramlace_base::{ByteRange, ErrorKind, Result};
use ramlace_transport::blocking::Received;
use ramlace_wire::chunk::{ChunkRead, GrantLane, Keep, LaneGranted, LaneTarget, ReadChunk};
use ramlace_wire::{ClusterMap, Request};

use crate::bytes::file::File;
use crate::bytes::memory::Memory;
use crate::bytes::memory::Parts;
use crate::bytes::near_lanes::NearLanes;
use crate::bytes::pages::{Noted, Pages};
use crate::bytes::pieces;
use crate::bytes::transfer::{BATCH_BYTES_MAX, Direction, Outcome, Transfer};
use crate::client::Client;
use crate::names::inodes::Handle;
use crate::session::calls::Call;
use crate::session::lines::{Unanswered, descriptor_of, of_pages};
use crate::session::patience::SIGN_OF_LIFE_MILLIS_MAX;

/// Reads below this go through the socket: asking the servers afterwards would cost more than the copy saves.
const NEAR_BYTES_MIN: usize = 256 << 10;
impl File {
    /// Reads what a transfer's memory stands for from files of this machine's servers; `None` when that is
    /// not possible, and the bytes have to be read through the socket.
    pub(crate) fn read_near(&self, handle: &Handle, transfer: &Transfer<'_>) -> Option<Outcome> {
        let near = &handle.open.near;
        if transfer.memory.bytes() < NEAR_BYTES_MIN || !handle.session.local() || near.is_paused() {
            return None;
        }
        match read(near, transfer) {
            Ok(Confirmed::Yes) => Some(Outcome::Done),
            // There was no lease: the bytes may have changed without a recall. There is a lease from now on.
            Ok(Confirmed::NotKept | Confirmed::ByAnother) => None,
            Err(error) if error.kind() == ErrorKind::Retry => Some(Outcome::Outdated(error)),
            // Whatever the error is: the read through the socket reports it better, or can go on.
            Err(_) => {
                near.pause();
                None
            }
        }
    }
}

impl File {
    /// Whether nothing of the file has changed that this machine's kernel caches: it has leases on all lanes,
    /// and nothing of them was recalled since the last call. From this call on it has leases on all of them.
    /// Moves no bytes.
    ///
    /// `false` also where that is not known: for inline files, and files that some kernel changes without
    /// asking.
    ///
    /// Errors: `Unsupported` where a strict mount may have newer bytes.
    pub fn pages_are_current(&self) -> Result<bool> {
        let handle = self.handle()?;
        let info = self.refresh(handle).map_err(|error| self.tell(error))?;
        if info.may_change_unnoticed || handle.open.is_inline() {
            return Ok(false);
        }
        let mut current = true;
        for lane in 0..self.layout().width {
            current &= self.keeps_lane(lane)?;
        }
        Ok(current)
    }

    /// Whether this session has a lease on all of a lane, of which nothing was recalled. From this call on it
    /// has one.
    pub(crate) fn keeps_lane(&self, lane: u16) -> Result<bool> {
        let handle = self.handle()?;
        let noted = Noted::default();
        let pages = Pages::Keep(Keep::Share, &noted);
        let transfer = self.transfer_of(pages, handle, handle.open.size(), Direction::Read, Memory::none());
        let confirmed = of_pages(|| confirm(&transfer, &transfer.target(lane)?));
        let current = confirmed.map_err(|error| self.tell(error))? == Confirmed::Yes;
        Ok(current && !noted.repeated.get())
    }
}

/// Reads all of a transfer from lanes' files.
fn read(near: &NearLanes, transfer: &Transfer<'_>) -> Result<Confirmed> {
    let map = transfer.session.map()?;
    let mut used: Vec<LaneTarget> = Vec::new();
    for range in transfer.memory.ranges() {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + BATCH_BYTES_MAX);
            read_range(near, transfer, &map, ByteRange { start, end }, &mut used)?;
            start = end;
        }
    }
    let mut confirmed = Confirmed::Yes;
    for target in &used {
        if confirm(transfer, target)? == Confirmed::NotKept {
            confirmed = Confirmed::NotKept;
        }
    }
    // Maps only become newer: under the same one the server that was asked for a file has confirmed its bytes.
    // The files stay filed under a map that no later read has.
    Ok(if transfer.session.map()?.epoch == map.epoch { confirmed } else { Confirmed::ByAnother })
}

/// Copies a range, and notes the lanes that it came from.
fn read_range(
    near: &NearLanes,
    transfer: &Transfer<'_>,
    map: &ClusterMap,
    range: ByteRange,
    used: &mut Vec<LaneTarget>,
) -> Result<()> {
    let (mut batch, mut parts) = (Vec::new(), Parts::default());
    pieces::plan(transfer.layout, range, &mut batch);
    for piece in &batch {
        let target = transfer.target_in(map, piece.lane);
        let grant =
            || grant_lane(transfer.session, target, None, soon(transfer.session)).map(|granted| granted.0);
        let lane = near.lane(target.lane.lane, map.epoch, target.generation, grant)?;
        if !used.contains(&target) {
            used.push(target);
        }
        let ranges = |each: &mut dyn FnMut(ByteRange)| piece.each_range(transfer.layout, each);
        transfer.memory.with_targets_of(&mut parts, ranges, |targets| {
            fill_from(&lane.file, piece.lane_offset, targets)
        })?;
    }
    Ok(())
}

/// A descriptor of a lane's file and the file's length, from a server of this machine; for reading, or for stores by a
/// mapping with this number.
pub(crate) fn grant_lane(
    session: &Arc<Client>,
    target: LaneTarget,
    mapping: Option<u64>,
    deadline: Instant,
) -> Result<(OwnedFd, u64)> {
    ask_for_file(session, target, &GrantLane { target, mapping }, deadline)
}

/// Asks a server of this machine for a lane's file.
pub(crate) fn ask_for_file<R: Request<Reply = LaneGranted>>(
    session: &Arc<Client>,
    target: LaneTarget,
    request: &R,
    deadline: Instant,
) -> Result<(OwnedFd, u64)> {
    let call = Call { local_only: true, ..Call::about_lane(target.slot, deadline) };
    session.call(request, &call, |_, received| {
        descriptor_of(received).map(|(reply, file)| (file, reply.length)).map_err(Unanswered::lost)
    })
}

/// A short deadline: a server that does not answer at once may be down, and the read through the socket needs
/// the time to find out.
pub(crate) fn soon(session: &Client) -> Instant {
    session.deadline().min(Instant::now() + Duration::from_millis(SIGN_OF_LIFE_MILLIS_MAX))
}

/// What a server confirms of bytes that were read from its lane's file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Confirmed {
    /// They are the lane's, and if a kernel caches them, they are leased.
    Yes,
    /// They are the lane's, but had no lease when they were read. There is one now.
    NotKept,
    /// There is a newer map: the server that has answered may not be the one whose file was read.
    ByAnother,
}

/// Asks the server, by a read of no bytes, whether the lane still has the generation, and whether it is
/// leased.
fn confirm(transfer: &Transfer<'_>, target: &LaneTarget) -> Result<Confirmed> {
    let keep = transfer.pages.keep();
    transfer.session.listen_for_pages(target.slot, transfer.pages)?;
    let request = ReadChunk { target: *target, offset: 0, length: 0, take: false, keep };
    let call = Call::about_lane(target.slot, soon(transfer.session));
    transfer.session.call(
        &request,
        &Call { repeated: transfer.pages.repeated(), ..call },
        |_, received: Received<ChunkRead>| {
            Ok(if received.reply.kept || keep == Keep::No { Confirmed::Yes } else { Confirmed::NotKept })
        },
    )
}

/// Fills the targets, one after the other, from a lane's file; what lies beyond its end was never written.
fn fill_from(file: &OwnedFd, mut offset: u64, targets: &mut [IoSliceMut<'_>]) -> Result<()> {
    let mut rest = targets;
    while !rest.is_empty() {
        let read = rustix::io::preadv(file, rest, offset)
            .map_err(|errno| ramlace_base::Error::from_io(&errno.into(), "reading a lane's file"))?;
        if read == 0 {
            rest.iter_mut().for_each(|target| target.fill(0));
            return Ok(());
        }
        offset += read as u64;
        IoSliceMut::advance_slices(&mut rest, read);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ramlace_base::{Epoch, ServerId};
    use ramlace_wire::LayoutHints;
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::fake::FakePool;
    use crate::{ConnectOptions, OpenOptions, Pool};

    #[test]
    fn what_was_read_from_memory_is_not_used_when_another_server_has_confirmed_it() {
        let pool = FakePool::start(2);
        let client = Pool::connect(&ConnectOptions { local: true, ..pool.options() }).unwrap();
        let hints = LayoutHints { width: Some(1), copies: Some(1), ..LayoutHints::default() };
        let file = client.open("/file", &OpenOptions { hints, ..OpenOptions::creating() }).unwrap();
        assert_eq!(file.write_at(&[7; NEAR_BYTES_MIN], 0).unwrap(), NEAR_BYTES_MIN);
        let handle = file.handle().unwrap();
        let (map, generation) = (handle.session.map().unwrap(), handle.open.size().generation);
        let memory = memfd_create("lane", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(rustix::io::pwrite(&memory, &[1; NEAR_BYTES_MIN], 0).unwrap(), NEAR_BYTES_MIN);
        handle.open.near.lane(0, map.epoch, generation, || Ok(memory)).map(drop).unwrap();
        let read = || {
            let mut buffer = vec![0; NEAR_BYTES_MIN];
            assert_eq!(file.read_at(&mut buffer, 0).unwrap(), NEAR_BYTES_MIN);
            buffer[100]
        };
        assert_eq!(read(), 1, "it is what the server has given out");
        let slot = ramlace_layout::lane_slot(file.layout(), 0, map.slots());
        let (before, mut state) = (map.primary(slot).unwrap(), pool.state());
        state.map.epoch = Epoch(map.epoch.0 + 1);
        state.map.chains[usize::from(slot.0)].servers = vec![ServerId(1 - before.0)];
        drop(state);
        assert_eq!(
            read(),
            7,
            "it may have become another since, and the new server knows nothing of that file"
        );
    }
}
