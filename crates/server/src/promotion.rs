//! Promotion: a file's inline bytes move from its home to its lane 0 (`FillLane`), and empty files go to lanes.
//!
//! `FillLane` may come twice, and late. No other message begins a lane of an inline file. So a lane that has the
//! message's generation has received it before. Any other lane asks the file's home whether these bytes are still
//! to be moved: if not, the message is a late one, which was refused when it first came.

use std::rc::Rc;

use ramlace_base::{ByteRange, Generation, LaneId, Result, SessionId, limits};
use ramlace_lanes::LaneTable;
use ramlace_namespace::{Command, Op, Origin};
use ramlace_store::Store;
use ramlace_wire::peer::{BeginLane, FillLane, InodeAnswer, QueryInode};

use crate::clock;
use crate::server::{Outcome, Server};

impl Server {
    /// The home sends a lane's first bytes.
    pub async fn fill_lane(self: &Rc<Self>, request: FillLane) -> Outcome<()> {
        let (lane, slot) = (request.lane, request.slot);
        self.changing_lane(lane, async {
            if !self.lanes(slot, |lanes, _| lanes.wants_promotion(lane, request.generation)) {
                return Ok(());
            }
            let query = QueryInode { inode: lane.inode, since: Generation(0) };
            let answer = self.query_home(query).await?;
            let Some(change) = LaneTable::promote(lane, request.generation, &answer) else { return Ok(()) };
            put_bytes(&mut self.store.borrow_mut(), lane, &request.bytes.0)
                .map_err(|error| error.context(self.me))?;
            self.keep_from_home(lane, &answer)?;
            // From here on the bytes are the lane's: a process that dies before this starts over.
            Ok(self.commit_lane(slot, change)?)
        })
        .await
    }

    /// A lane of one of this server's files is about to begin. For a session's bytes an empty file is promoted, unless
    /// a kernel caches what it knows of the file's bytes: the kernel has to drop that first, and the writing
    /// client asks for it ([`ramlace_wire::inline::Promote`]).
    pub fn begin_lane(self: &Rc<Self>, request: BeginLane) -> Outcome<InodeAnswer> {
        let BeginLane { lane, by } = request;
        let (inode, slot, all) = (lane.inode, lane.inode.slot(), ByteRange { start: 0, end: u64::MAX });
        let kept = || self.data.leases.borrow().others_hold((inode, None), SessionId::NONE, all);
        let changes = self.durable.borrow().names(slot).is_some_and(|names| {
            names.is_new_lane(lane) || (by != SessionId::NONE && names.begins_in_lanes(inode) && !kept())
        });
        if changes {
            let op = Op::BeginLane { lane, by, epoch: self.membership.epoch() };
            self.submit(slot, Command { now: clock::now(), origin: Origin::Server, op })?;
        }
        self.query_inode(QueryInode { inode, since: Generation(0) })
    }

    /// Whether this server has room for more inline bytes.
    pub fn has_inline_room(&self) -> bool {
        let usage = self.store.borrow().usage();
        let most = limits::INLINE_BYTES_PER_SERVER_MAX.min(usage.size_bytes / limits::INLINE_STORE_FRACTION);
        // A full store keeps its last memory for operations that free some.
        let has_free = usage.free_for_lanes_bytes >= limits::INLINE_BYTES_MAX as u64;
        has_free && self.durable.borrow().inline_bytes() < most
    }
}

/// A process that died in the middle may have left a part of the bytes. If they find no room, nothing is
/// left.
fn put_bytes(store: &mut Store, lane: LaneId, bytes: &[u8]) -> Result<()> {
    if store.has_lane(lane) {
        store.remove_lane(lane)?;
    }
    store.create_lane(lane)?;
    let prepared = store.prepare_write(lane, 0, bytes.len() as u64);
    let put = prepared.and_then(|()| store.write_staged(lane, 0, bytes));
    if put.is_err() {
        store.remove_lane(lane)?;
    }
    put
}

#[cfg(test)]
mod tests {
    use ramlace_base::{ErrorKind, InodeId};

    use super::*;
    use crate::testing::TestStore;

    #[test]
    fn bytes_that_find_no_room_leave_no_lane() {
        let mut store = TestStore::new();
        let (lane, full) =
            (LaneId { inode: InodeId::ROOT, lane: 0 }, LaneId { inode: InodeId::ROOT, lane: 1 });
        store.create_lane(full).unwrap();
        let free = store.usage().free_for_lanes_bytes;
        store.prepare_write(full, 0, free).unwrap();
        assert_eq!(put_bytes(&mut store, lane, b"too many").unwrap_err().kind(), ErrorKind::NoSpace);
        assert!(!store.has_lane(lane));
    }

    #[test]
    fn what_a_process_that_died_has_left_of_them_is_not_seen() {
        let mut store = TestStore::new();
        let lane = LaneId { inode: InodeId::ROOT, lane: 0 };
        put_bytes(&mut store, lane, b"all of what was there").unwrap();
        put_bytes(&mut store, lane, b"less").unwrap();
        let mut bytes = [1; 21];
        store.read_staged(lane, 0, &mut bytes).unwrap();
        assert_eq!(bytes, *b"less\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    }
}
