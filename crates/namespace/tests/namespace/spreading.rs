//! Directories that are spread over slots: rights, inheritance, times, losses and bad messages.

use std::collections::{BTreeMap, VecDeque};

use ramlace_base::{
    Epoch, ErrorKind, InodeId, Name, Redirect, Result, Sequence, SessionId, Slot, Timestamp, limits,
};
use ramlace_namespace::{
    Command, Delivery, DeliveryAnswer, DeliveryId, Effect, Op, Origin, Query, Reply, SlotState,
};
use ramlace_wire::namespace as wire;
use ramlace_wire::peer::{self, IntentStamp, MovedEntry, Part, PartitionAttributes, TakePartition, Token};
use ramlace_wire::xattrs::{RemoveXattr, SetXattr, XattrMode, XattrName};
use ramlace_wire::{AccessList, AccessLists, Credentials, ErrorBody, FileKind, Layout, LayoutHints};

const SLOTS: u32 = 4;
const ALICE: Credentials = Credentials::new(1000, 100);
const BOB: Credentials = Credentials::new(1001, 101);
const MALLORY: Credentials = Credentials::new(6666, 6666);
const ROOT: InodeId = InodeId::ROOT;

/// Four slots whose messages arrive at once.
struct Slots {
    states: Vec<SlotState>,
    now: i64,
    sequence: u64,
    /// Messages that entries were moved with.
    moved: Vec<usize>,
    /// The slot where nothing arrives, and the messages that were meant for it.
    silent: Option<Slot>,
    /// Only the ends of operations are lost there.
    hears_prepares: bool,
    kept: Vec<(Slot, DeliveryId, Delivery)>,
}

impl Slots {
    /// The root directory belongs to Alice, and is spread over the slots when it has this many entries.
    fn new(whole_entries_max: u64) -> Slots {
        let state =
            |slot| SlotState::new(Slot(slot), SLOTS, Epoch(1), 7).with_whole_entries(whole_entries_max);
        let mut states: Vec<SlotState> = (0..SLOTS as u16).map(state).collect();
        states[0].install_root(ALICE.owner(), Timestamp { nanos: 1 });
        Slots {
            states,
            now: 100,
            sequence: 0,
            moved: Vec::new(),
            silent: None,
            hears_prepares: false,
            kept: Vec::new(),
        }
    }

    /// One whose root has been spread: partition `i` is in slot `i mod 4`.
    fn spread() -> Slots {
        let mut slots = Slots::new(3);
        (0..3).for_each(|at| _ = slots.create(&ALICE, &name(at)).unwrap());
        assert_eq!(slots.root().partitions.len(), limits::DIRECTORY_PARTITIONS);
        slots
    }

    fn apply(&mut self, slot: Slot, origin: Origin, op: Op) -> Vec<Effect> {
        self.now += 1;
        self.states[usize::from(slot.0)].apply(&Command { now: Timestamp { nanos: self.now }, origin, op })
    }

    /// A client's change, with all that follows from it; `None` while it waits.
    fn change(&mut self, who: &Credentials, slot: Slot, op: Op) -> Option<Result<Reply>> {
        self.sequence += 1;
        let sequence = Sequence(self.sequence);
        let origin = Origin::Client {
            session: SessionId([1; 16]),
            sequence,
            acknowledged_below: sequence,
            who: who.clone(),
            on_behalf: false,
        };
        let effects = self.apply(slot, origin, op);
        self.follow(slot, effects)
    }

    fn follow(&mut self, slot: Slot, effects: Vec<Effect>) -> Option<Result<Reply>> {
        let (mut reply, mut open) = (None, VecDeque::from([(slot, effects)]));
        while let Some((slot, effects)) = open.pop_front() {
            for effect in effects {
                match effect {
                    Effect::Reply { outcome, .. } => reply = Some(outcome),
                    Effect::Send { delivery, message }
                        if Some(message.slot()) == self.silent
                            && !(self.hears_prepares && matches!(message, Delivery::Prepare(_))) =>
                    {
                        self.kept.push((slot, delivery, message));
                    }
                    Effect::Send { delivery, message } => open.extend(self.deliver(slot, delivery, &message)),
                    Effect::Crowded { directory } => {
                        let partitions = (0..limits::DIRECTORY_PARTITIONS as u16)
                            .map(|at| Slot(at % SLOTS as u16))
                            .collect();
                        let op = Op::Spread { directory, partitions };
                        open.push_back((slot, self.apply(slot, Origin::Server, op)));
                    }
                    Effect::Changed { .. } => {}
                    other => panic!("nobody asked for {other:?}"),
                }
            }
        }
        reply
    }

    fn deliver(&mut self, from: Slot, delivery: DeliveryId, message: &Delivery) -> Vec<(Slot, Vec<Effect>)> {
        let op = match message.clone() {
            Delivery::Prepare(message) => Op::Prepare(message),
            Delivery::Decide(message) => Op::Decide(message),
            _ => return Vec::new(),
        };
        if let Delivery::Prepare(message) = message
            && let Part::TakePartition(take) = &message.part
        {
            self.moved.push(take.entries.len());
        }
        let to = message.slot();
        let mut effects = self.apply(to, Origin::Peer, op);
        let Some(Effect::PeerReply(answer)) = effects.pop() else { panic!("no answer") };
        let result = answer.map_err(|error| ErrorBody::new(&error));
        vec![(to, effects), (from, self.apply(from, Origin::Server, Op::DeliveryDone { delivery, result }))]
    }

    /// Everything arrives again.
    fn end_silence(&mut self) -> Option<Result<Reply>> {
        self.silent = None;
        let mut reply = None;
        for (from, delivery, message) in std::mem::take(&mut self.kept) {
            for (slot, effects) in self.deliver(from, delivery, &message) {
                reply = self.follow(slot, effects).or(reply);
            }
        }
        reply
    }

    fn query<Q: Query>(&self, slot: Slot, query: &Q) -> Result<Q::Reply> {
        self.states[usize::from(slot.0)].query(&ALICE, query)
    }

    fn info(&self, slot: Slot, inode: InodeId) -> Result<wire::InodeInfo> {
        self.query(slot, &wire::GetAttributes { inode })
    }

    fn root(&self) -> wire::InodeInfo {
        self.info(Slot(0), ROOT).unwrap()
    }

    /// Where the root's entries of this name are.
    fn slot_of(&self, name: &Name) -> Slot {
        let partitions = self.root().partitions;
        partitions.get(self.states[0].partition_of(name)).copied().unwrap_or(Slot(0))
    }

    /// A name in this slot that was not used yet.
    fn name_in(&self, slot: Slot, used: usize) -> Name {
        (1000 * (used + 1)..).map(name).find(|name| self.slot_of(name) == slot).unwrap()
    }

    fn create(&mut self, who: &Credentials, name: &Name) -> Result<InodeId> {
        let layout = Layout {
            stripe_unit: 1 << 20,
            width: 1,
            base_slot: Slot(0),
            stride: 1,
            copies: 1,
            created: Epoch(1),
        };
        let request = wire::Create {
            parent: ROOT,
            name: name.clone(),
            mode: 0o644.into(),
            exclusive: true,
            read: true,
            write: true,
            layout: Some(layout),
            wish: wire::LayoutWish::default(),
            named: Vec::new(),
        };
        match self.change(who, self.slot_of(name), Op::Create(request)).expect("answered at once")? {
            Reply::Opened(opened) => Ok(opened.info.attributes.inode),
            other => panic!("{other:?}"),
        }
    }

    fn unlink(&mut self, who: &Credentials, name: &Name) -> Result<Reply> {
        let request = wire::Unlink { parent: ROOT, name: name.clone() };
        self.change(who, self.slot_of(name), Op::Unlink(request)).expect("answered")
    }

    fn make_directory(&mut self, name: &Name, home: Slot) -> Result<InodeId> {
        let request = wire::MakeDirectory { parent: ROOT, name: name.clone(), mode: 0o755.into() };
        let op = Op::MakeDirectory { request, homes: vec![home] };
        match self.change(&ALICE, self.slot_of(name), op).expect("answered")? {
            Reply::Attributes(attributes) => Ok(attributes.inode),
            other => panic!("{other:?}"),
        }
    }

    fn set(&mut self, request: wire::SetAttributes) -> Option<Result<Reply>> {
        self.change(&ALICE, Slot(0), Op::SetAttributes(request))
    }
}

fn name(at: usize) -> Name {
    Name::new(format!("name-{at}")).unwrap()
}

fn mode(mode: u16) -> wire::SetAttributes {
    wire::SetAttributes { mode: Some(mode), ..wire::SetAttributes::nothing(ROOT) }
}

fn slots() -> impl Iterator<Item = Slot> {
    (0..SLOTS as u16).map(Slot)
}

// SEMANTICS 15.2
#[test]
fn a_spread_directory_s_mode_counts_in_every_slot_when_it_is_answered() {
    let mut pool = Slots::spread();
    for (round, slot) in slots().enumerate() {
        let name = pool.name_in(slot, round);
        assert_eq!(pool.create(&BOB, &name).unwrap_err().kind(), ErrorKind::Denied, "in {slot}");
    }
    pool.set(mode(0o777)).unwrap().unwrap();
    for (round, slot) in slots().enumerate() {
        let name = pool.name_in(slot, round);
        assert_eq!(pool.create(&BOB, &name).unwrap().slot(), slot, "a file lives beside its entry");
    }
    // A slot that has not confirmed the change delays its answer.
    (pool.silent, pool.hears_prepares) = (Some(Slot(2)), true);
    assert_eq!(pool.set(mode(0o700)), None);
    let other = pool.name_in(Slot(2), 8);
    pool.create(&BOB, &other).expect("nobody was told that it is forbidden");
    assert!(pool.end_silence().unwrap().is_ok());
    for (round, slot) in slots().enumerate() {
        let name = pool.name_in(slot, round + 9);
        assert_eq!(pool.create(&BOB, &name).unwrap_err().kind(), ErrorKind::Denied, "in {slot}");
        assert_eq!(pool.info(slot, ROOT).unwrap().attributes.mode, 0o700);
    }
}

// SEMANTICS 108.3
#[test]
fn a_spread_directory_s_lists_count_in_every_slot_when_they_are_answered() {
    let mut pool = Slots::spread();
    let list: AccessList = "u::rwx,u:1001:rwx,g::r-x,m::rwx,o::---".parse().unwrap();
    let put = |name: &[u8]| {
        let (name, value) = (XattrName::new(name).unwrap(), list.to_attribute());
        Op::SetXattr(SetXattr { inode: ROOT, name, value, mode: XattrMode::Any })
    };
    // A slot that has not confirmed the change delays its answer.
    (pool.silent, pool.hears_prepares) = (Some(Slot(2)), true);
    assert!(pool.change(&ALICE, Slot(0), put(XattrName::ACCESS_LIST)).is_none());
    assert!(pool.end_silence().unwrap().is_ok());
    pool.change(&ALICE, Slot(0), put(XattrName::DEFAULT_LIST)).unwrap().unwrap();
    assert_eq!(pool.root().attributes.mode, 0o770);
    for (round, slot) in slots().enumerate() {
        let (file, directory) = (pool.name_in(slot, 3 * round), pool.name_in(slot, 3 * round + 1));
        let file = pool.create(&BOB, &file).unwrap();
        let made = pool.info(slot, file).unwrap().attributes;
        assert_eq!((made.mode, made.xattrs), (0o640, true), "in {slot}");
        let directory = pool.make_directory(&directory, Slot(3)).unwrap();
        assert_eq!(pool.info(Slot(3), directory).unwrap().attributes.mode, 0o750, "from {slot}");
        let other = pool.name_in(slot, 3 * round + 2);
        assert_eq!(pool.create(&MALLORY, &other).unwrap_err().kind(), ErrorKind::Denied, "in {slot}");
    }
    let remove = RemoveXattr { inode: ROOT, name: XattrName::new(XattrName::ACCESS_LIST).unwrap() };
    pool.change(&ALICE, Slot(0), Op::RemoveXattr(remove)).unwrap().unwrap();
    for (round, slot) in slots().enumerate() {
        let name = pool.name_in(slot, 20 + round);
        assert_eq!(pool.create(&BOB, &name).unwrap_err().kind(), ErrorKind::Denied, "in {slot}");
    }
}

#[test]
fn a_change_that_a_slot_cannot_be_told_of_does_not_happen() {
    let mut pool = Slots::spread();
    pool.silent = Some(Slot(2));
    assert_eq!(pool.set(mode(0o700)), None);
    let (from, delivery, _) = pool.kept.pop().expect("it was asked");
    let effects = pool.apply(from, Origin::Server, Op::DeliveryUnreachable { delivery });
    let reply = pool.follow(from, effects).expect("it is answered");
    assert_eq!(reply.unwrap_err().kind(), ErrorKind::HostDown);
    pool.end_silence();
    assert!(slots().all(|slot| pool.info(slot, ROOT).unwrap().attributes.mode == 0o755));
    pool.set(mode(0o700)).unwrap().unwrap();
}

#[test]
fn what_a_directory_hands_down_it_hands_down_in_every_slot() {
    let mut pool = Slots::spread();
    pool.set(wire::SetAttributes { gid: Some(100), ..mode(0o3777) }).unwrap().unwrap();
    let hints = LayoutHints { width: Some(2), ..LayoutHints::default() };
    pool.change(&ALICE, Slot(0), Op::SetLayout(wire::SetLayout { inode: ROOT, hints })).unwrap().unwrap();
    for (round, slot) in slots().enumerate() {
        let file = pool.name_in(slot, 2 * round);
        let inode = pool.create(&BOB, &file).unwrap();
        assert_eq!(pool.info(slot, inode).unwrap().attributes.gid, 100, "the group of the directory");
        assert_eq!(pool.unlink(&MALLORY, &file).unwrap_err().kind(), ErrorKind::NotPermitted, "it is sticky");
        let directory = pool.name_in(slot, 2 * round + 1);
        let made = pool.make_directory(&directory, Slot(1)).unwrap();
        assert_eq!(pool.info(Slot(1), made).unwrap().hints, hints);
        assert_eq!(pool.info(slot, ROOT).unwrap().hints, hints);
    }
}

#[test]
fn times_that_are_set_are_set_in_every_slot_and_others_stay() {
    let mut pool = Slots::spread();
    let before: Vec<Timestamp> =
        slots().map(|slot| pool.info(slot, ROOT).unwrap().attributes.modified).collect();
    assert!(before.iter().all(|modified| *modified == before[0]), "being spread is no change");
    let file = pool.name_in(Slot(3), 0);
    pool.create(&ALICE, &file).unwrap();
    let later = pool.info(Slot(3), ROOT).unwrap().attributes.modified;
    assert!(later > before[3]);
    pool.set(mode(0o750)).unwrap().unwrap();
    assert_eq!(
        pool.info(Slot(3), ROOT).unwrap().attributes.modified,
        later,
        "a mode is no change of entries"
    );
    let modified = Some(Timestamp { nanos: 5 });
    pool.set(wire::SetAttributes { mode: None, modified, ..mode(0) }).unwrap().unwrap();
    assert!(slots().all(|slot| pool.info(slot, ROOT).unwrap().attributes.modified.nanos == 5));
}

#[test]
fn a_large_directory_is_moved_in_pieces_and_keeps_its_cookies() {
    const ENTRIES: usize = 20_000;
    let mut pool = Slots::new(ENTRIES as u64);
    let list = |pool: &Slots| -> BTreeMap<Name, u64> {
        let (mut found, mut after) = (BTreeMap::new(), 0);
        loop {
            let partitions = pool.root().partitions;
            let partition = pool.states[0].partition_behind(after).unwrap();
            let slot = partitions.get(partition).copied().unwrap_or(Slot(0));
            let query = wire::ReadDirectory { inode: ROOT, after, entries_max: 1000 };
            let page = pool.query(slot, &query).unwrap();
            found.extend(page.entries.into_iter().map(|entry| (entry.name, entry.cookie)));
            after = page.next;
            if page.end {
                return found;
            }
        }
    };
    (0..ENTRIES - 1).for_each(|at| _ = pool.create(&ALICE, &name(at)).unwrap());
    let mut before = list(&pool);
    pool.create(&ALICE, &name(ENTRIES - 1)).unwrap();
    assert!(!pool.root().partitions.is_empty());
    let after = list(&pool);
    assert_eq!(after.len(), ENTRIES);
    before.extend([(name(ENTRIES - 1), after[&name(ENTRIES - 1)])]);
    assert!(before == after, "cookies changed");
    assert!(pool.moved.iter().all(|entries| *entries <= limits::DIRECTORY_MOVED_ENTRIES_MAX));
    // Each of the twelve partitions elsewhere has some 1,250 entries.
    assert_eq!(pool.moved.len(), 24);
}

#[test]
fn a_partition_that_was_lost_holds_up_neither_a_change_nor_the_end_of_its_directory() {
    let mut pool = Slots::new(3);
    let directory = pool.make_directory(&name(0), Slot(1)).unwrap();
    let layout = Layout {
        stripe_unit: 1 << 20,
        width: 1,
        base_slot: Slot(0),
        stride: 1,
        copies: 1,
        created: Epoch(1),
    };
    for at in 0..3 {
        let request = wire::Create {
            parent: directory,
            name: name(at),
            mode: 0o644.into(),
            exclusive: true,
            read: true,
            write: true,
            layout: Some(layout),
            wish: wire::LayoutWish::default(),
            named: Vec::new(),
        };
        pool.change(&ALICE, Slot(1), Op::Create(request)).unwrap().unwrap();
    }
    let partitions = pool.info(Slot(1), directory).unwrap().partitions;
    // Slot 2 was lost with its server and has begun anew.
    pool.states[2] = SlotState::new(Slot(2), SLOTS, Epoch(9), 7);
    assert_eq!(pool.info(Slot(2), directory).unwrap_err().kind(), ErrorKind::Redirect(Redirect::Spread));
    let change = wire::SetAttributes { inode: directory, ..mode(0o700) };
    pool.change(&ALICE, Slot(1), Op::SetAttributes(change)).unwrap().unwrap();
    let remove = |pool: &mut Slots| {
        let request = wire::RemoveDirectory { parent: ROOT, name: name(0) };
        let mut outcome = pool.change(&ALICE, Slot(0), Op::RemoveDirectory(request.clone())).unwrap();
        if matches!(&outcome, Err(error) if error.kind() == ErrorKind::Retry) {
            // The same number is used again.
            pool.sequence -= 1;
            outcome = pool.change(&ALICE, Slot(0), Op::RemoveDirectory(request)).unwrap();
        }
        outcome.map_err(|error| error.kind())
    };
    let there: Vec<Name> = (0..3).map(name).collect();
    let slot_of = |name: &Name| partitions[ramlace_layout::partition_of_name(7, name)];
    if there.iter().any(|name| slot_of(name) != Slot(2)) {
        assert_eq!(remove(&mut pool), Err(ErrorKind::NotEmpty));
    }
    for name in there.iter().filter(|name| slot_of(name) != Slot(2)) {
        let request = wire::Unlink { parent: directory, name: name.clone() };
        pool.change(&ALICE, slot_of(name), Op::Unlink(request)).unwrap().unwrap();
    }
    assert_eq!(remove(&mut pool), Ok(Reply::Done));
    assert_eq!(pool.states.iter().flat_map(SlotState::partition_records).collect::<Vec<_>>(), []);
}

#[test]
fn messages_that_make_no_sense_are_refused_and_leave_nothing() {
    let mut state = SlotState::new(Slot(1), SLOTS, Epoch(1), 7);
    let attributes = PartitionAttributes {
        mode: 0o755,
        owner: ALICE.owner(),
        hints: LayoutHints::default(),
        lists: AccessLists::NONE,
        accessed: None,
        modified: None,
    };
    let partitions = vec![Slot(1); limits::DIRECTORY_PARTITIONS];
    let entry = |cookie| MovedEntry { cookie, name: name(1), inode: InodeId(77), kind: FileKind::File };
    let good = TakePartition { inode: ROOT, first: true, attributes, partitions, entries: vec![entry(8)] };
    let mine = InodeId::new(Slot(1), 99);
    let bad = [
        TakePartition { partitions: vec![Slot(1); 3], ..good.clone() },
        TakePartition { partitions: vec![Slot(99); limits::DIRECTORY_PARTITIONS], ..good.clone() },
        TakePartition { entries: vec![entry(8), entry(8)], ..good.clone() },
        TakePartition { first: false, ..good.clone() },
        TakePartition { inode: mine, ..good.clone() },
    ];
    let mut number = 0;
    let mut prepare = |state: &mut SlotState, part: Part| {
        number += 1;
        let message = peer::Prepare {
            token: Token { session: SessionId::NONE, sequence: Sequence(number) },
            stamp: IntentStamp { coordinator: Slot(0), number, open_from: 1 },
            slot: Slot(1),
            number: 1,
            who: ALICE,
            now: Timestamp { nanos: 5 },
            part,
        };
        let op = Op::Prepare(Box::new(message));
        let effects = state.apply(&Command { now: Timestamp { nanos: 5 }, origin: Origin::Peer, op });
        match &effects[..] {
            [Effect::PeerReply(answer)] => answer.clone().map_err(|error| error.kind()),
            other => panic!("{other:?}"),
        }
    };
    for take in bad {
        let shown = format!("{take:?}");
        assert_eq!(prepare(&mut state, Part::TakePartition(take)), Err(ErrorKind::Invalid), "{shown}");
        assert_eq!(state.partition_records().count(), 0, "{shown}");
    }
    let unknown = Part::SealPartition { inode: ROOT };
    assert_eq!(prepare(&mut state, unknown), Err(ErrorKind::Redirect(Redirect::Spread)));
    let held = prepare(&mut state, Part::TakePartition(good.clone()));
    assert_eq!(held, Ok(DeliveryAnswer::Prepared(peer::Prepared::Ready)));
    // Not shown before it is decided, and not taken twice.
    let query = wire::Lookup { parent: ROOT, name: name(1) };
    assert_eq!(state.query(&ALICE, &query).unwrap_err().kind(), ErrorKind::Retry);
    assert_eq!(prepare(&mut state, Part::TakePartition(good)), Err(ErrorKind::Busy));
}
