//! Passthrough: files whose memory this machine's kernel reads and maps without asking
//! (`docs/records/passthrough.md`).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ramlace_base::{
    ByteRange, Error, ErrorKind, Generation, InodeId, LaneId, Redirect, Result, ServerId, Timestamp,
};
use ramlace_wire::chunk::{GrantPassthrough, LaneTarget};
use ramlace_wire::namespace::{BeginPassthrough, GetAttributes, Open, PassthroughBegun, Truncate};
use ramlace_wire::{Attributes, ClusterMap, Layout, Permit};

use crate::backoff::Backoff;
use crate::bytes::file::File;
use crate::bytes::near::{ask_for_file, grant_lane, soon};
use crate::bytes::transfer::{Direction, Memory};
use crate::client::Client;
use crate::names::inodes::Handle;
use crate::names::open_inode::{Size, lanes_since};

/// The memory of a file that has one lane.
#[derive(Debug)]
pub struct LaneHere {
    /// All bytes of the file, for reading.
    pub file: OwnedFd,
    /// The server that holds them.
    pub server: ServerId,
}

impl File {
    /// The memory of a file of one lane, from its server, which answers soon or not at all.
    ///
    /// Errors: `Unsupported` for a file that has several lanes, that is inline, or whose server is not on
    /// this machine; `Denied` when its server belongs to another user; `Lost` when its bytes were lost.
    pub fn lane_here(&self) -> Result<LaneHere> {
        self.find_lane().map_err(|error| self.tell(error))
    }

    /// Notifies the pool that this machine's kernel will read and map the file without asking, and with `write`
    /// store into it. This ends when the last open file of the inode in this process is closed; until then
    /// the file has no holes.
    ///
    /// Errors: as for [`File::lane_here`]; `Unsupported` for a file with holes. After an error the pool does
    /// not expect any kernel to have the file.
    pub fn begin_passthrough(&self, write: bool) -> Result<LaneHere> {
        self.try_passthrough(write).map_err(|error| self.tell(error))
    }

    /// The kernel that has the file will also store into it.
    pub fn pass_through_for_writing(&self) -> Result<()> {
        self.try_for_writing().map_err(|error| self.tell(error))
    }

    /// The kernel did not take the file. A home that cannot be reached assumes until the close that the
    /// kernel has it.
    pub fn take_back(&self) {
        let _ = self.tell_home_of_kernel(false, true);
    }

    /// Reports that the kernel's mappings may have been stored into, and if that is known at which time by this machine's
    /// clock: to the home, unless it knows of a later change, to the sessions that wait for a change of the bytes, and to
    /// those whose kernels have pages of them.
    pub fn publish_stores(&self, at: Option<Timestamp>) -> Result<()> {
        let handle = self.handle()?;
        if let Some(at) = at
            && at > self.refresh(self.handle()?)?.attributes.changed
        {
            handle.open.put_back(at);
            self.sync()?;
        }
        self.note_stores(handle, ByteRange { start: 0, end: u64::MAX }).map_err(|error| self.tell(error))
    }

    /// Whether its home answered when it was last asked.
    #[must_use]
    pub fn home_answers(&self) -> bool {
        self.handle().is_ok_and(|handle| handle.session.answers(self.inode().slot()))
    }

    /// Whether both were opened in the same session: what one session knows of a file does not hold in
    /// another.
    #[must_use]
    pub fn is_of_session_of(&self, other: &File) -> bool {
        match (self.handle(), other.handle()) {
            (Ok(mine), Ok(others)) => Arc::ptr_eq(&mine.session, &others.session),
            _ => false,
        }
    }

    fn find_lane(&self) -> Result<LaneHere> {
        let handle = self.handle()?;
        let session = &handle.session;
        if self.layout().width != 1 || handle.open.is_inline() || !session.local() {
            let text = "a kernel gets files of one lane, whose server is on this machine";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        self.with_size(handle, |size| {
            let map = session.map()?;
            let transfer = self.transfer(handle, size, Direction::Read, Memory::none());
            let target = transfer.target_in(&map, 0);
            let (file, _) = grant_lane(session, target, None, soon(session))?;
            Ok(LaneHere { file, server: server_of(&map, target)? })
        })
    }

    fn tell_home_of_kernel(&self, write: bool, over: bool) -> Result<PassthroughBegun> {
        let handle = self.handle()?;
        let (inode, session) = (self.inode(), &handle.session);
        if !over {
            handle.open.with_kernel.store(true, Ordering::Release);
        }
        let reply =
            session.change(inode.slot(), &BeginPassthrough { inode, write, over }, session.deadline())?;
        if over {
            handle.open.with_kernel.store(false, Ordering::Release);
        }
        Ok(reply)
    }

    /// Where it fails, the home and the lane believe that the kernel stores.
    fn try_for_writing(&self) -> Result<()> {
        let mut backoff = Backoff::new(self.handle()?.session.deadline());
        loop {
            let begun = self.tell_home_of_kernel(true, false)?;
            match self.lane_of_kernel(&begun, true) {
                // The file was truncated meanwhile.
                Err(error) if error.kind() == ErrorKind::Retry => backoff.pause_after(error)?,
                other => return other.map(drop),
            }
        }
    }

    fn try_passthrough(&self, write: bool) -> Result<LaneHere> {
        let begun = self.tell_home_of_kernel(write, false)?;
        self.lane_of_kernel(&begun, write).inspect_err(|_| self.take_back())
    }

    /// The memory of a file of which the home knows that the kernel has it.
    fn lane_of_kernel(&self, begun: &PassthroughBegun, stores: bool) -> Result<LaneHere> {
        let handle = self.handle()?;
        let session = &handle.session;
        let map = session.map()?;
        let size = Size { generation: begun.size.generation, size: begun.size.size };
        let transfer = self.transfer(handle, size, Direction::Read, Memory::none());
        let target = transfer.target_in(&map, 0);
        let request = GrantPassthrough { target, passthrough: begun.number, length: size.size, stores };
        let (file, _) = ask_for_file(session, target, &request, session.deadline())?;
        Ok(LaneHere { file, server: server_of(&map, target)? })
    }
}

fn server_of(map: &ClusterMap, target: LaneTarget) -> Result<ServerId> {
    let none = || Error::new(ErrorKind::HostDown, format!("{} has no server at this moment", target.slot));
    map.primary(target.slot).ok_or_else(none)
}

impl Client {
    /// Sets a file's size. A file that a kernel maps gets its memory first.
    pub(crate) fn truncate(self: &Arc<Client>, inode: InodeId, size: u64) -> Result<Attributes> {
        let mut backoff: Option<Backoff> = None;
        let mut allocated = None;
        loop {
            let request = Truncate { inode, size, allocated };
            match self.change(inode.slot(), &request, self.deadline()) {
                Err(error) if error.kind() == ErrorKind::Redirect(Redirect::Passthrough) => {
                    // Only from the second time on: then because the generation has changed meanwhile.
                    match &mut backoff {
                        Some(backoff) => backoff.pause_after(error)?,
                        None => backoff = Some(Backoff::new(self.deadline())),
                    }
                    allocated = self.take_memory(inode, size)?;
                }
                // A change that was under way beyond the file's end had to come first.
                Ok(attributes) if attributes.size < size => allocated = None,
                other => return other,
            }
        }
    }

    /// Allocates the memory of a file of one lane up to a size; returns the generation for which it did.
    /// `None`: the file was truncated meanwhile.
    fn take_memory(self: &Arc<Client>, inode: InodeId, size: u64) -> Result<Option<Generation>> {
        let info = self.ask(inode.slot(), &GetAttributes { inode }, self.deadline())?;
        let Some(layout @ Layout { width: 1, .. }) = info.layout else {
            return Err(Error::new(ErrorKind::Corrupt, format!("inode {inode} is not a file of one lane")));
        };
        let generation = info.attributes.generation;
        let (permit, _held) = self.hold_to_write(inode)?;
        let target = LaneTarget {
            lane: LaneId { inode, lane: 0 },
            slot: ramlace_layout::lane_slot(&layout, 0, self.map()?.slots()),
            generation,
            created: lanes_since(&info),
            permit,
        };
        match self.take_memory_of_lane(target, ByteRange { start: 0, end: size }, false) {
            Ok(()) => Ok(Some(generation)),
            Err(error) if error.kind() == ErrorKind::Retry => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The permit that proves to lanes that this session may write a file. A truncation by path opens the
    /// file for as long as it takes.
    fn hold_to_write(self: &Arc<Client>, inode: InodeId) -> Result<(Option<Permit>, Option<Handle>)> {
        let held = self.permit_to_write(inode);
        if held.is_some() || !self.settings.for_users {
            return Ok((held, None));
        }
        let (handle, _) = self.open_inode(&Open { inode, read: false, write: true, run: false })?;
        Ok((handle.open.permit(), Some(handle)))
    }
}
