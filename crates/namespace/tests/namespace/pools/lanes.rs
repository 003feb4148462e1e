//! Files that go from their inode to their lanes.

use ramlace_base::{Epoch, Error, ErrorKind, InodeId, LaneId, Result, SessionId};
use ramlace_model::Node;
use ramlace_namespace::{Op, Reply};
use ramlace_wire::inline::{BytesPlace, ReadInline};
use ramlace_wire::peer::{FillLane, InodeAnswer, QueryInode};

use crate::pools::pool::Pool;

impl Pool {
    pub fn is_inline(&self, node: Node) -> bool {
        self.info(self.inode_of[&node]).is_ok_and(|info| info.inline)
    }

    pub fn is_leaving(&self, node: Node) -> bool {
        self.ask_home(self.inode_of[&node]).is_ok_and(|answer| answer.place == BytesPlace::Leaving)
    }

    fn ask_home(&self, inode: InodeId) -> Result<InodeAnswer> {
        let since = Default::default();
        self.query(inode, &QueryInode { inode, since })
    }

    /// The server of lane 0; sometimes it has no room.
    pub fn fill(&mut self, message: &FillLane) -> Result<()> {
        let inode = message.lane.inode;
        if self.filled.get(&message.lane).is_some_and(|known| *known >= message.generation) {
            return Ok(());
        }
        let answer = self.ask_home(inode)?;
        if answer.place != BytesPlace::Leaving || answer.generation != message.generation {
            return Ok(());
        }
        if self.now % 5 == 0 {
            return Err(Error::new(ErrorKind::NoSpace, "no room"));
        }
        self.check_bytes(self.node_of[&inode], &message.bytes.0);
        self.filled.insert(message.lane, message.generation);
        self.cut.insert(message.lane, message.generation);
        Ok(())
    }

    /// The bytes, and zeros up to the end, are those of the model.
    fn check_bytes(&self, node: Node, bytes: &[u8]) {
        let Ok(stat) = self.model.stat(node) else { return };
        let mut bytes = bytes.to_vec();
        assert!(bytes.len() as u64 <= stat.size, "more bytes than the file has");
        bytes.resize(stat.size as usize, 0);
        assert_eq!(self.model.read(node, 0, stat.size as usize).unwrap(), bytes, "bytes of {node:?}");
    }

    pub fn check_inline(&self, node: Node, inode: InodeId) {
        let request = ReadInline { inode, offset: 0, length: u32::MAX, keep: false };
        let read = self.query(inode, &request).unwrap();
        read.bytes.iter().for_each(|bytes| self.check_bytes(node, &bytes.0));
    }

    pub fn check_promote(&mut self, node: Node, outcome: &Result<Reply>) {
        let kind = self.model.stat(node).map(|stat| stat.kind);
        match outcome {
            Ok(Reply::Promoted(promoted)) => {
                assert!(!self.is_inline(node), "it is answered, and {node:?} is inline");
                match self.model.stat(node) {
                    Ok(stat) => assert_eq!(promoted.size.size, stat.size),
                    Err(error) => assert!(self.does_not_know_its_end(node), "{error}"),
                }
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) if error.kind() == ErrorKind::NoSpace => assert!(self.is_inline(node)),
            Err(_) if self.does_not_know_its_end(node) => {}
            // The step that ends the file may notify the waiters first.
            Err(error) if error.kind() == ErrorKind::Stale => _ = self.gone.insert(node),
            Err(error) => {
                let expected = self.model.clone().extend(node, 0).map_err(|error| error.kind());
                assert_eq!(expected, Err(error.kind()), "{kind:?}: {error}");
            }
        }
    }

    /// Files that are gone, as was reported in this step, are gone.
    pub fn check_gone(&mut self) {
        for node in std::mem::take(&mut self.gone) {
            assert!(self.model.stat(node).is_err(), "{node:?} is said to be gone");
        }
    }

    /// Notes the files that are in their lanes since this step. Now and then a lane begins.
    pub fn note_lanes(&mut self) {
        for file in self.files.clone() {
            let Ok(info) = self.info(file) else { continue };
            if info.inline {
                continue;
            }
            self.in_lanes.entry(file).or_insert(info.attributes.generation);
            let width = i64::from(info.layout.expect("it has bytes").width);
            if self.now % 3 == 0 {
                let lane = LaneId { inode: file, lane: (self.now / 3 % width) as u16 };
                self.begin_lane(lane);
            }
        }
    }

    pub fn begin_lane(&mut self, lane: LaneId) {
        let op = Op::BeginLane { lane, by: SessionId::NONE, epoch: Epoch(1) };
        self.server_command(lane.inode.slot(), op);
        self.begun.insert(lane);
    }
}
