//! Files that are handed to this machine's kernel, which reads and maps them without asking (decision 15).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ramlace_base::{Error, ErrorKind, Generation, InodeId, LaneId, Result, ServerId};
use ramlace_wire::chunk::{AllocateLane, HandLane, LaneTarget};
use ramlace_wire::namespace::{GetAttributes, HandOver, HandedOver, Truncate};
use ramlace_wire::{Attributes, Layout};

use crate::backoff::Backoff;
use crate::file::File;
use crate::inodes::{Size, lanes_since};
use crate::near::{ask_for_file, confirm};
use crate::session::Session;
use crate::transfer::{Direction, Memory};

/// A file as a kernel may have it.
#[derive(Debug)]
pub struct HandedFile {
    /// All bytes of the file, for reading.
    pub lane: OwnedFd,
    /// The server that has them.
    pub server: ServerId,
}

impl File {
    /// Tells the pool that this machine's kernel will read and map the file, and with `write` store into it, without
    /// asking. It is over when the last open file of the inode in this process is closed; until then the file has no holes.
    ///
    /// Errors: `Unsupported` for a file that has several lanes, or holes, that lives with its inode, or whose server is not
    /// on this machine; `Denied` when its server is another user's.
    pub fn hand_over(&self, write: bool) -> Result<HandedFile> {
        self.try_hand_over(write).map_err(|error| self.tell(error))
    }

    /// The kernel that has the file will store into it, too.
    pub fn hand_over_for_writing(&self) -> Result<()> {
        self.tell_home_of_kernel(true).map(drop).map_err(|error| self.tell(error))
    }

    /// The server that has the bytes of a file of one lane at this moment: it is asked.
    ///
    /// Errors: `Lost` when they were lost; those of a server that does not answer soon.
    pub fn only_server(&self) -> Result<Option<ServerId>> {
        let handle = self.handle()?;
        self.with_size(handle, |size| {
            let transfer = self.transfer(handle, size, Direction::Read, &Memory::NONE);
            confirm(&handle.session, &transfer.target(0)?)
        })?;
        let map = handle.session.map()?;
        Ok(map.primary(ramlace_layout::lane_slot(self.layout(), 0, map.slots())))
    }

    /// Whether both were opened in the same session: what was said of the one is not known in another.
    #[must_use]
    pub fn is_of_session_of(&self, other: &File) -> bool {
        match (self.handle(), other.handle()) {
            (Ok(mine), Ok(others)) => Arc::ptr_eq(&mine.session, &others.session),
            _ => false,
        }
    }

    fn tell_home_of_kernel(&self, write: bool) -> Result<HandedOver> {
        let (inode, session) = (self.inode(), &self.handle()?.session);
        session.change(inode.slot(), &HandOver { inode, write }, session.deadline())
    }

    fn try_hand_over(&self, write: bool) -> Result<HandedFile> {
        let handle = self.handle()?;
        let session = &handle.session;
        if self.layout().width != 1 || handle.open.is_inline() || !session.local() {
            let text = "a kernel gets files of one lane, whose server is on this machine";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let told = self.tell_home_of_kernel(write)?;
        let map = session.map()?;
        let size = Size { generation: told.size.generation, size: told.size.size };
        let transfer = self.transfer(handle, size, Direction::Read, &Memory::NONE);
        let target = transfer.target_in(&map, 0);
        let request = HandLane { target, handover: told.number, length: size.size };
        let (lane, _) = ask_for_file(session, target, &request, session.deadline())?;
        let server = map.primary(target.slot).ok_or_else(|| {
            Error::new(ErrorKind::HostDown, format!("{} has no server at this moment", target.slot))
        })?;
        Ok(HandedFile { lane, server })
    }
}

impl Session {
    /// Sets a file's size. One that a kernel maps gets its memory first.
    pub(crate) fn truncate(self: &Arc<Session>, inode: InodeId, size: u64) -> Result<Attributes> {
        let mut backoff: Option<Backoff> = None;
        let mut allocated = None;
        loop {
            let request = Truncate { inode, size, allocated };
            match self.change(inode.slot(), &request, self.deadline()) {
                Err(error) if error.kind() == ErrorKind::Handed => {
                    // After the first time because its generation was another by then.
                    match &mut backoff {
                        Some(backoff) => backoff.pause_after(error)?,
                        None => backoff = Some(Backoff::new(self.deadline())),
                    }
                    allocated = self.take_memory(inode, size)?;
                }
                other => return other,
            }
        }
    }

    /// Takes the memory of a file of one lane up to a size; in which generation. None: it was truncated meanwhile.
    fn take_memory(self: &Arc<Session>, inode: InodeId, size: u64) -> Result<Option<Generation>> {
        let info = self.ask(inode.slot(), &GetAttributes { inode }, self.deadline())?;
        let Some(layout @ Layout { width: 1, .. }) = info.layout else {
            return Err(Error::new(ErrorKind::Corrupt, format!("inode {inode} is not a file of one lane")));
        };
        let generation = info.attributes.generation;
        let target = LaneTarget {
            lane: LaneId { inode, lane: 0 },
            slot: ramlace_layout::lane_slot(&layout, 0, self.map()?.slots()),
            generation,
            created: lanes_since(&info),
        };
        let request = AllocateLane { target, offset: 0, length: size, keep_size: false };
        match self.change_lane(target.slot, &request, self.deadline()) {
            Ok(()) => Ok(Some(generation)),
            Err(error) if error.kind() == ErrorKind::Retry => Ok(None),
            Err(error) => Err(error),
        }
    }
}
