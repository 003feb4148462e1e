//! A slot, a client, and short notations for their messages.

use std::collections::BTreeMap;

use ramlace_base::{
    Epoch, ErrorKind, Generation, InodeId, LaneId, Name, Result, Sequence, SessionId, Slot, Timestamp,
};
use ramlace_namespace::{
    Command, Delivery, DeliveryAnswer, DeliveryId, Effect, Op, Origin, Reply, SlotState,
};
use ramlace_wire::inline::{FirstPage, Promote};
use ramlace_wire::namespace as wire;
use ramlace_wire::peer;
use ramlace_wire::{Attributes, Credentials, ErrorBody, Layout};

pub const SLOTS: u32 = 64;
pub const ALICE: Credentials = Credentials::new(1000, 100);
pub const BOB: Credentials = Credentials::new(1001, 100);
pub const MALLORY: Credentials = Credentials::new(6666, 6666);
pub const ROOT_USER: Credentials = Credentials::new(0, 0);

/// A slot, and a client that numbers its mutations.
pub struct Story {
    pub state: SlotState,
    pub now: i64,
    pub sequence: u64,
    pub session: SessionId,
    pub who: Credentials,
    pub sent: Vec<(DeliveryId, Delivery)>,
    /// The last reservation at each place of a file.
    pub reserved: BTreeMap<(InodeId, u64), Sequence>,
}

impl Story {
    pub fn new() -> Story {
        Story::with_hash_bits(60)
    }

    pub fn with_hash_bits(bits: u32) -> Story {
        let mut state = SlotState::new(Slot(0), SLOTS, Epoch(1), 7).with_hash_bits(bits);
        state.install_root(ALICE.owner(), Timestamp { nanos: 1 });
        Story {
            state,
            now: 100,
            sequence: 0,
            session: session(1),
            who: ALICE,
            sent: Vec::new(),
            reserved: BTreeMap::new(),
        }
    }

    pub fn command(&mut self, origin: Origin, op: Op) -> Vec<Effect> {
        self.now += 1;
        let effects = self.state.apply(&Command { now: Timestamp { nanos: self.now }, origin, op });
        self.sent.extend(effects.iter().filter_map(|effect| match effect {
            Effect::Send { delivery, message } => Some((*delivery, message.clone())),
            _ => None,
        }));
        effects
    }

    pub fn numbered(&mut self, sequence: u64, acknowledged_below: u64, op: Op) -> Vec<Effect> {
        let origin = Origin::Client {
            session: self.session,
            sequence: Sequence(sequence),
            acknowledged_below: Sequence(acknowledged_below),
            who: self.who.clone(),
            on_behalf: false,
        };
        self.command(origin, op)
    }

    /// Sends a mutation; `None` while it waits.
    pub fn send(&mut self, op: Op) -> Option<Result<Reply>> {
        self.sequence += 1;
        let effects = self.numbered(self.sequence, self.sequence, op);
        reply(&effects)
    }

    pub fn ask(&mut self, op: Op) -> Result<Reply> {
        self.send(op).expect("answered at once")
    }

    pub fn refused(&mut self, op: Op) -> ErrorKind {
        self.ask(op).unwrap_err().kind()
    }

    pub fn server(&mut self, op: Op) -> Vec<Effect> {
        self.command(Origin::Server, op)
    }

    pub fn done(&mut self, delivery: DeliveryId) -> Option<Result<Reply>> {
        let effects = self.server(Op::DeliveryDone { delivery, result: Ok(DeliveryAnswer::Done) });
        reply(&effects)
    }

    pub fn peer(&mut self, op: Op) -> Result<DeliveryAnswer> {
        // A file that no session holds any more sends a last message to its lanes first.
        match &self.command(Origin::Peer, op)[..] {
            [.., Effect::PeerReply(answer)] => answer.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Takes every delivery of this slot to itself or to lanes that agree, until none is pending.
    pub fn deliver(&mut self) -> Vec<Result<Reply>> {
        let mut replies = Vec::new();
        loop {
            let next =
                self.state.open_deliveries().next().map(|(delivery, message)| (delivery, message.clone()));
            let Some((delivery, message)) = next else { return replies };
            let result = match message {
                Delivery::Prepare(message) => self.peer(Op::Prepare(message)),
                Delivery::Decide(message) => self.peer(Op::Decide(message)),
                Delivery::Ascend(_) => panic!("one slot walks without a message"),
                Delivery::CutLane(_)
                | Delivery::DropLane(_)
                | Delivery::TrimLane(_)
                | Delivery::FillLane(_) => Ok(DeliveryAnswer::Done),
            };
            let result = result.map_err(|error| ErrorBody::new(&error));
            replies.extend(reply(&self.server(Op::DeliveryDone { delivery, result })));
        }
    }

    pub fn create(&mut self, parent: InodeId, text: &str) -> InodeId {
        self.create_wide(parent, text, 1)
    }

    /// A file that is in its lanes.
    pub fn create_wide(&mut self, parent: InodeId, text: &str, width: u16) -> InodeId {
        let inode = self.create_inline(parent, text, width);
        self.ask(promote(inode)).unwrap();
        inode
    }

    /// Nobody sees it.
    pub fn begin_lane(&mut self, inode: InodeId, lane: u16) {
        let (lane, by, epoch) = (LaneId { inode, lane }, SessionId::NONE, Epoch(1));
        assert_eq!(self.server(Op::BeginLane { lane, by, epoch }), []);
    }

    pub fn create_inline(&mut self, parent: InodeId, text: &str, width: u16) -> InodeId {
        opened(self.ask(Op::Create(create(parent, text, width)))).info.attributes.inode
    }

    pub fn mkdir(&mut self, parent: InodeId, text: &str) -> InodeId {
        attributes(self.ask(mkdir(parent, text, Slot(0)))).inode
    }

    pub fn info(&self, inode: InodeId) -> Result<wire::InodeInfo> {
        self.state.query(&ROOT_USER, &wire::GetAttributes { inode })
    }

    pub fn size(&self, inode: InodeId) -> u64 {
        self.info(inode).unwrap().attributes.size
    }

    pub fn smallest_size(&self, inode: InodeId, since: u64) -> Option<u64> {
        self.asked_by_a_lane(inode, since).smallest_size
    }

    pub fn asked_by_a_lane(&self, inode: InodeId, since: u64) -> peer::InodeAnswer {
        let query = peer::QueryInode { inode, since: Generation(since) };
        self.state.query(&ROOT_USER, &query).unwrap()
    }

    pub fn page(&self, inode: InodeId, after: u64, entries_max: u32) -> wire::DirectoryPage {
        let query = wire::ReadDirectory { inode, after, entries_max };
        self.state.query(&ROOT_USER, &query).unwrap()
    }

    pub fn reserve(&mut self, inode: InodeId, length: u64) -> u64 {
        match self.ask(Op::ReserveAppend(wire::ReserveAppend { inode, length })).unwrap() {
            Reply::Reserved(reserved) => {
                self.reserved.insert((inode, reserved.offset), reserved.number);
                reserved.offset
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn finish(&mut self, inode: InodeId, offset: u64) -> Result<Reply> {
        self.end_append(inode, offset, false)
    }

    pub fn generation(&self, inode: InodeId) -> Generation {
        self.info(inode).unwrap().attributes.generation
    }

    /// The reserved bytes are not written.
    pub fn fail(&mut self, inode: InodeId, offset: u64) -> Result<Reply> {
        self.end_append(inode, offset, true)
    }

    fn end_append(&mut self, inode: InodeId, offset: u64, failed: bool) -> Result<Reply> {
        let number = self.reserved.get(&(inode, offset)).copied().unwrap_or_default();
        self.ask(Op::FinishAppend(wire::FinishAppend { inode, number, failed }))
    }

    pub fn extend(&mut self, inode: InodeId, generation: u64, size: u64) -> Result<Reply> {
        self.ask(Op::Extend(wire::Extend { inode, generation: Generation(generation), size, from: 0 }))
    }

    /// The deliveries of the last truncation, one for each lane.
    pub fn cuts(&self) -> Vec<(DeliveryId, peer::CutLane)> {
        self.state
            .open_deliveries()
            .filter_map(|(delivery, message)| match message {
                Delivery::CutLane(message) => Some((delivery, *message)),
                _ => None,
            })
            .collect()
    }
}

pub fn session(number: u8) -> SessionId {
    SessionId([number; 16])
}

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn layout(width: u16) -> Layout {
    Layout { stripe_unit: 1 << 16, width, base_slot: Slot(9), stride: 3, copies: 1, created: Epoch(1) }
}

pub fn open_entry(parent: InodeId, text: &str) -> wire::OpenEntry {
    wire::OpenEntry { parent, name: name(text), read: true, write: false }
}

pub fn create(parent: InodeId, text: &str, width: u16) -> wire::Create {
    let layout = layout(width);
    wire::Create {
        parent,
        name: name(text),
        mode: 0o644.into(),
        exclusive: false,
        read: true,
        write: true,
        layout: Some(layout),
        wish: wire::LayoutWish::default(),
        named: Vec::new(),
    }
}

pub fn mkdir(parent: InodeId, text: &str, home: Slot) -> Op {
    Op::MakeDirectory {
        request: wire::MakeDirectory { parent, name: name(text), mode: 0o755.into() },
        homes: vec![home],
    }
}

pub fn rmdir(parent: InodeId, text: &str) -> Op {
    Op::RemoveDirectory(wire::RemoveDirectory { parent, name: name(text) })
}

pub fn unlink(parent: InodeId, text: &str) -> Op {
    Op::Unlink(wire::Unlink { parent, name: name(text) })
}

pub fn truncate(inode: InodeId, size: u64) -> Op {
    Op::Truncate(wire::Truncate { inode, size, allocated: None })
}

pub fn promote(inode: InodeId) -> Op {
    Op::Promote { request: Promote { inode, first_page: FirstPage::Locked }, epoch: Epoch(1) }
}

pub fn close(inode: InodeId) -> Op {
    Op::Close(wire::Close { inode, modified: None, leases: false })
}

pub fn set(inode: InodeId) -> wire::SetAttributes {
    wire::SetAttributes {
        inode,
        mode: None,
        uid: None,
        gid: None,
        accessed: None,
        modified: None,
        times: wire::TimeReason::Chosen,
    }
}

pub fn reply(effects: &[Effect]) -> Option<Result<Reply>> {
    effects.iter().find_map(|effect| match effect {
        Effect::Reply { outcome, .. } => Some(outcome.clone()),
        _ => None,
    })
}

pub fn opened(reply: Result<Reply>) -> wire::Opened {
    match reply.unwrap() {
        Reply::Opened(opened) => *opened,
        other => panic!("{other:?}"),
    }
}

pub fn attributes(reply: Result<Reply>) -> Attributes {
    match reply.unwrap() {
        Reply::Attributes(attributes) => *attributes,
        other => panic!("{other:?}"),
    }
}

pub fn size_of_reply(reply: Result<Reply>) -> u64 {
    match reply.unwrap() {
        Reply::Size(info) => info.size,
        Reply::Promoted(promoted) => promoted.size.size,
        other => panic!("{other:?}"),
    }
}
