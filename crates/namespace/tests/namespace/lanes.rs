//! The home of a file and the file's lanes, some of which miss truncations: in all cases reads return what
//! the model has. The lanes here keep the rules that `docs/records/generations.md` sets for those of a
//! server.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ramlace_base::{
    ByteRange, Epoch, ErrorKind, Generation, InodeId, Name, Sequence, SessionId, Slot, Timestamp,
};
use ramlace_layout::{lane_length, pieces};
use ramlace_model::{Model, Node};
use ramlace_namespace::{
    Command, Delivery, DeliveryAnswer, DeliveryId, Effect, Op, Origin, Reply, SlotState,
};
use ramlace_wire::inline::{FirstPage, Promote};
use ramlace_wire::namespace as wire;
use ramlace_wire::peer::{CutLane, InodeAnswer, QueryInode};
use ramlace_wire::{Credentials, Layout};

const UNIT: u64 = 1 << 16;
const WIDTH: u16 = 3;
/// Bytes are written near the borders of this many chunks.
const CHUNKS: u64 = 7;
/// So near.
const NEAR_BYTES: u64 = 100;
const WHO: Credentials = Credentials::new(0, 0);

/// One dense file in a store.
#[derive(Default)]
struct Lane {
    /// `Generation(0)` until it begins.
    generation: Generation,
    /// Bytes that are not zero.
    bytes: BTreeMap<u64, u8>,
    down: bool,
}

struct World {
    home: SlotState,
    sequence: u64,
    file: InodeId,
    layout: Layout,
    lanes: Vec<Lane>,
    model: Model,
    node: Node,
    /// The generation that the writer assumes.
    generation: Generation,
}

#[derive(Clone, Debug)]
enum Action {
    Write { chunk: u64, near: u64, length: u64, byte: u8 },
    Append { length: u64, byte: u8 },
    Truncate { chunk: u64, near: u64 },
    Toggle { lane: u16 },
    Deliver,
    Read { chunk: u64 },
}

impl Lane {
    fn cut(&mut self, length: u64, generation: Generation) {
        self.bytes.split_off(&length);
        self.generation = generation;
    }
}

impl World {
    fn new() -> World {
        let layout = Layout {
            stripe_unit: UNIT,
            width: WIDTH,
            base_slot: Slot(0),
            stride: 1,
            copies: 1,
            created: Epoch(1),
        };
        let name = Name::new("f").unwrap();
        let mut home = SlotState::new(Slot(0), 16, Epoch(1), 1);
        home.install_root(WHO.owner(), Timestamp { nanos: 0 });
        let mut model = Model::new();
        let (node, _) = model.create(Model::ROOT, &name, 0o644, true).unwrap();
        let mut world = World {
            home,
            sequence: 0,
            file: InodeId::ROOT,
            layout,
            lanes: (0..WIDTH).map(|_| Lane::default()).collect(),
            model,
            node,
            generation: Generation::FIRST,
        };
        let parent = InodeId::ROOT;
        let create = wire::Create {
            parent,
            name,
            mode: 0o644.into(),
            exclusive: true,
            read: true,
            write: true,
            layout: Some(layout),
            wish: wire::LayoutWish::default(),
            named: Vec::new(),
        };
        match world.client(Op::Create(create)) {
            (Some(Ok(Reply::Opened(opened))), _) => world.file = opened.info.attributes.inode,
            other => panic!("{other:?}"),
        }
        let promoted = world
            .client(Op::Promote {
                request: Promote { inode: world.file, first_page: FirstPage::Locked },
                epoch: Epoch(1),
            })
            .0;
        assert!(
            matches!(promoted, Some(Ok(Reply::Promoted(_)))),
            "an empty file has nothing to carry: {promoted:?}"
        );
        world
    }

    fn client(&mut self, op: Op) -> (Option<ramlace_base::Result<Reply>>, Vec<DeliveryId>) {
        self.sequence += 1;
        let origin = Origin::Client {
            session: SessionId([1; 16]),
            sequence: Sequence(self.sequence),
            acknowledged_below: Sequence(self.sequence),
            who: WHO,
            on_behalf: false,
        };
        self.step(origin, op)
    }

    fn step(&mut self, origin: Origin, op: Op) -> (Option<ramlace_base::Result<Reply>>, Vec<DeliveryId>) {
        let (mut reply, mut sent) = (None, Vec::new());
        for effect in self.home.apply(&Command { now: Timestamp { nanos: 1 }, origin, op }) {
            match effect {
                Effect::Reply { outcome, .. } => reply = Some(outcome),
                Effect::Send { delivery, .. } => sent.push(delivery),
                Effect::Changed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        (reply, sent)
    }

    fn ask_home(&self, since: Generation) -> InodeAnswer {
        self.home.query(&WHO, &QueryInode { inode: self.file, since }).unwrap()
    }

    /// The lane meets a newer generation, or begins: it asks the home, and cuts first.
    fn learn(&mut self, lane: u16) {
        let answer = self.ask_home(self.lanes[usize::from(lane)].generation);
        let length = answer.smallest_size.map_or(u64::MAX, |size| lane_length(&answer.layout, lane, size));
        self.lanes[usize::from(lane)].cut(length, answer.generation);
    }

    fn receive_cut(&mut self, message: &CutLane) {
        let lane = &mut self.lanes[usize::from(message.lane.lane)];
        if lane.generation == Generation(0) || message.generation <= lane.generation {
            return;
        }
        if message.generation == lane.generation.next() {
            return lane.cut(message.length, message.generation);
        }
        self.learn(message.lane.lane); // It has missed some.
    }

    /// Takes every open delivery to its lane; returns whether a caller was answered.
    fn deliver(&mut self) -> bool {
        let open: Vec<(DeliveryId, Delivery)> =
            self.home.open_deliveries().map(|(delivery, message)| (delivery, message.clone())).collect();
        let mut answered = false;
        for (delivery, message) in open {
            let Delivery::CutLane(message) = message else { panic!("{message:?}") };
            let op = if self.lanes[usize::from(message.lane.lane)].down {
                Op::DeliveryUnreachable { delivery }
            } else {
                self.receive_cut(&message);
                Op::DeliveryDone { delivery, result: Ok(DeliveryAnswer::Done) }
            };
            answered |= self.step(Origin::Server, op).0.is_some();
        }
        answered
    }

    fn reachable(&self, range: ByteRange) -> bool {
        pieces(&self.layout, range).all(|piece| !self.lanes[usize::from(piece.lane)].down)
    }

    /// Writes to the lanes; `false` when one of them knows a newer generation.
    fn write_lanes(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let range = ByteRange::at(offset, bytes.len() as u64).unwrap();
        for piece in pieces(&self.layout, range) {
            if self.generation > self.lanes[usize::from(piece.lane)].generation {
                self.learn(piece.lane);
            }
            let lane = &mut self.lanes[usize::from(piece.lane)];
            if self.generation < lane.generation {
                return false;
            }
            for at in 0..piece.length {
                let byte = bytes[(piece.file_offset + at - offset) as usize];
                lane.bytes.insert(piece.lane_offset + at, byte);
            }
        }
        true
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        if !self.reachable(ByteRange::at(offset, bytes.len() as u64).unwrap()) {
            return;
        }
        loop {
            if self.write_lanes(offset, bytes) {
                let (inode, generation) = (self.file, self.generation);
                let extend =
                    wire::Extend { inode, generation, size: offset + bytes.len() as u64, from: offset };
                match self.client(Op::Extend(extend)).0.unwrap() {
                    Ok(_) => break,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Retry),
                }
            }
            self.generation = self.ask_home(Generation(0)).generation;
        }
        self.model.write(self.node, offset, bytes).unwrap();
    }

    fn append(&mut self, bytes: &[u8]) {
        let end = self.ask_home(Generation(0)).size;
        if !self.reachable(ByteRange::at(end, bytes.len() as u64).unwrap()) {
            return;
        }
        let reserve = wire::ReserveAppend { inode: self.file, length: bytes.len() as u64 };
        let Ok(Reply::Reserved(reserved)) = self.client(Op::ReserveAppend(reserve)).0.unwrap() else {
            panic!()
        };
        assert_eq!(reserved.offset, end);
        self.generation = reserved.generation;
        assert!(self.write_lanes(reserved.offset, bytes));
        let wire::AppendReserved { inode, number, .. } = reserved;
        let finish = wire::FinishAppend { inode, number, failed: false };
        assert!(self.client(Op::FinishAppend(finish)).0.unwrap().is_ok());
        self.model.append(self.node, bytes).unwrap();
    }

    fn truncate(&mut self, size: u64) {
        let (reply, sent) =
            self.client(Op::Truncate(wire::Truncate { inode: self.file, size, allocated: None }));
        match reply {
            Some(reply) => assert!(reply.is_ok() && sent.is_empty()),
            None => assert!(self.deliver(), "every lane has acknowledged or is down, yet there is no answer"),
        }
        self.model.truncate(self.node, size).unwrap();
    }

    fn check(&mut self, chunk: u64) {
        let size = self.model.stat(self.node).unwrap().size;
        let InodeAnswer { generation, size: published, .. } = self.ask_home(Generation(0));
        assert_eq!(published, size);
        let start = (chunk * UNIT).saturating_sub(2 * NEAR_BYTES).min(size);
        let range = ByteRange { start, end: (chunk * UNIT + 2 * NEAR_BYTES).min(size).max(start) };
        if !self.reachable(range) {
            return;
        }
        let mut found = Vec::new();
        for piece in pieces(&self.layout, range) {
            let lane = usize::from(piece.lane);
            if self.lanes[lane].generation > Generation(0) && self.lanes[lane].generation < generation {
                self.learn(piece.lane);
            }
            let bytes = &self.lanes[lane].bytes;
            let at = piece.lane_offset..piece.lane_offset + piece.length;
            found.extend(at.map(|at| bytes.get(&at).copied().unwrap_or(0)));
        }
        let expected = self.model.read(self.node, range.start, range.length() as usize).unwrap();
        assert_eq!(found, expected, "bytes from {}", range.start);
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Write { chunk, near, length, byte } => {
                self.write(place(chunk, near), &vec![byte; length as usize]);
            }
            Action::Append { length, byte } => self.append(&vec![byte; length as usize]),
            Action::Truncate { chunk, near } => self.truncate(place(chunk, near)),
            Action::Toggle { lane } => {
                let lane = &mut self.lanes[usize::from(lane)];
                lane.down = !lane.down;
            }
            Action::Deliver => _ = self.deliver(),
            Action::Read { chunk } => self.check(chunk),
        }
    }
}

fn place(chunk: u64, near: u64) -> u64 {
    (chunk * UNIT + near).saturating_sub(NEAR_BYTES)
}

fn action() -> impl Strategy<Value = Action> {
    let (chunk, near) = (0..CHUNKS, 0..2 * NEAR_BYTES);
    let length = 1..NEAR_BYTES;
    prop_oneof![
        5 => (chunk.clone(), near.clone(), length.clone(), 1u8..)
            .prop_map(|(chunk, near, length, byte)| Action::Write { chunk, near, length, byte }),
        1 => (length, 1u8..).prop_map(|(length, byte)| Action::Append { length, byte }),
        3 => (chunk.clone(), near).prop_map(|(chunk, near)| Action::Truncate { chunk, near }),
        2 => (0..WIDTH).prop_map(|lane| Action::Toggle { lane }),
        1 => Just(Action::Deliver),
        3 => chunk.prop_map(|chunk| Action::Read { chunk }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // SEMANTICS 9.1
    #[test]
    fn what_is_read_is_what_was_written(actions in prop::collection::vec(action(), 1..60)) {
        let mut world = World::new();
        for action in &actions {
            world.act(action);
        }
        world.lanes.iter_mut().for_each(|lane| lane.down = false);
        world.deliver();
        prop_assert_eq!(world.home.open_deliveries().count(), 0);
        prop_assert_eq!(world.ask_home(Generation(0)).smallest_size, None, "all have acknowledged");
        (0..CHUNKS).for_each(|chunk| world.check(chunk));
    }
}
