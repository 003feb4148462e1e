//! Bytes of lanes: what clients write there, and how a lane comes to know its file's generation.

use ramlace_base::{
    ByteRange, Error, ErrorKind, Generation, LaneId, Result as Outcome, ServerId, SessionId, Slot,
};
use ramlace_lanes::{LaneChange, LaneTable, WriteId};
use ramlace_layout::lane_slot;
use ramlace_namespace::{Command, Op, Origin, Reply, Room};
use ramlace_slot::SlotChange;
use ramlace_wire::chunk::LaneTarget;
use ramlace_wire::peer::{InodeAnswer, QueryInode, Token};

use super::calls::Numbered;
use super::network::{Message, Stands};
use super::{Bug, SLOTS, World, away};

impl World {
    pub(super) fn ask_home(&self, request: QueryInode) -> Outcome<InodeAnswer> {
        let slot = request.inode.slot();
        match self.stands(self.home(slot)) {
            Stands::Answers => self.query(slot, &request),
            _ => Err(away()),
        }
    }

    /// As `Server::begin_lane`; the clients promote by themselves.
    fn begin_at_home(&mut self, lane: LaneId) -> Outcome<InodeAnswer> {
        let (slot, request) = (lane.inode.slot(), QueryInode { inode: lane.inode, since: Generation(0) });
        let answer = self.ask_home(request)?;
        let names = self.servers[self.home(slot)].value(slot).and_then(|value| value.names());
        if names.is_some_and(|names| names.is_new_lane(lane)) && self.bug != Bug::BeginsLanesUnnoted {
            let op = Op::BeginLane { lane, by: SessionId::NONE, epoch: self.map.epoch };
            let command = Box::new(Command { now: self.stamp(), origin: Origin::Server, op });
            let change = SlotChange::Command { command, room: Room::ForInodes };
            self.commit(slot, &change).map_err(|text| Error::new(ErrorKind::Fatal, text))?;
        }
        Ok(answer)
    }

    pub(super) fn lanes<T>(&mut self, slot: Slot, ask: impl FnOnce(&LaneTable) -> T) -> T {
        let home = self.home(slot);
        ask(self.servers[home].value_mut(slot).lanes())
    }

    pub(super) fn change_lane(&mut self, slot: Slot, change: LaneChange) {
        // Nobody is answered by a change of lanes.
        let _ = self.commit(slot, &SlotChange::Lane(change));
    }

    /// A write into a lane: done once, and never when its client has gone on.
    pub(super) fn written(&mut self, message: &Message) -> Result<(), String> {
        let Message::Write { client, target, numbered, offset, byte } = *message else { return Ok(()) };
        let Numbered { token, below, life } = numbered;
        let Token { session, sequence } = token;
        let home = self.home(target.slot);
        // Bytes come by a connection, which dies with the process.
        let is_there = self.servers[home].is_up() && self.servers[home].life == life;
        if !is_there || !self.is_open(home, client, session)? {
            return Ok(());
        }
        let id = WriteId { session, sequence, outstanding: (sequence.0 - below.0) as u32 };
        let server = &mut self.servers[home];
        let below = server.acknowledged.note(session, target.slot, below);
        let done = server.value_mut(target.slot).is_done(session, sequence, below);
        match done {
            Ok(true) => {}
            Ok(false) => {
                if let Err(error) = self.write(&target, id, offset, byte) {
                    let outcome = Box::new(Err(error));
                    self.send(Message::Answered { client, token, outcome, of_lane: true });
                    return Ok(());
                }
            }
            Err(_) if self.bug == Bug::TakesLateWrites => {
                let bytes = self.servers[home].store.entry(target.lane).or_default();
                put(bytes, offset, byte);
                return Ok(());
            }
            Err(_) => return Ok(()),
        }
        let outcome = Box::new(Ok(Reply::Done));
        self.answer(target.slot, Message::Answered { client, token, outcome, of_lane: true }, Vec::new())
    }

    /// The lane knows its file's generation afterwards, and what of it is lost.
    pub(super) fn brings_up(&mut self, target: &LaneTarget, answer: &InodeAnswer) -> Outcome<()> {
        let absent = self.absent(target.slot, answer.layout.created);
        let mut change =
            self.lanes(target.slot, |lanes| lanes.bring_up(target, answer, SLOTS.into(), absent))?;
        if let LaneChange::Begun { loss, .. } = &mut change
            && self.bug == Bug::BeginsWithoutItsLoss
        {
            *loss = None;
        }
        self.change_lane(target.slot, change);
        Ok(())
    }

    fn write(&mut self, target: &LaneTarget, id: WriteId, offset: usize, byte: u8) -> Outcome<()> {
        let missed = self.lanes(target.slot, |lanes| lanes.missed_since(target.lane, target.generation));
        if let Some(since) = missed {
            let answer = if since == Generation(0) {
                self.begin_at_home(target.lane)?
            } else {
                self.ask_home(QueryInode { inode: target.lane.inode, since })?
            };
            assert_eq!(lane_slot(&answer.layout, target.lane.lane, SLOTS.into()), target.slot);
            self.brings_up(target, &answer)?;
        }
        self.lanes(target.slot, |lanes| lanes.standing(target.lane, target.generation))?;
        let home = self.home(target.slot);
        let range = ByteRange { start: offset as u64, end: offset as u64 + 1 };
        if self.bug != Bug::WritesPartOfWhatIsLost {
            let me = ServerId(home as u16);
            self.lanes(target.slot, |lanes| lanes.check_write(target.lane, range, me))?;
        }
        put(self.servers[home].store.entry(target.lane).or_default(), offset, byte);
        let change = self.lanes(target.slot, |lanes| lanes.finish(target, range, id))?;
        self.change_lane(target.slot, change);
        Ok(())
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, byte: u8) {
    if bytes.len() <= offset {
        bytes.resize(offset + 1, 0);
    }
    bytes[offset] = byte;
}
