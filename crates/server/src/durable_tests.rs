//! A process may be killed at any byte of its log and at any step of a compaction: after the restart
//! everything committed is there.

use ramlace_base::{ByteRange, Epoch, Generation, InodeId, LaneId, Name, Sequence};
use ramlace_lanes::{CellStore, LaneChange, Loss, Mapping, News, WriteId};
use ramlace_namespace::{Command, DeliveryAnswer, DeliveryId, Op, Origin, Room};
use ramlace_slot::SlotBirth;
use ramlace_wire::coordination::{ArriveBarrier, LeaveBarrier};
use ramlace_wire::locks::{CancelLock, EndLockWait, LOCK_END, LockKind, LockTable, SetLock};
use ramlace_wire::namespace::{
    CancelChange, Close, Create, Extend, MakeDirectory, RemoveDirectory, Truncate, Unlink,
};
use ramlace_wire::peer::{Decide, IntentStamp, Part, Prepare, Token};
use ramlace_wire::{Credentials, Layout};

use super::*;
use crate::sessions::SessionRecord;
use crate::testing::{Dice, TestStore};

const WHO: Credentials = Credentials::new(1000, 1000);
const SLOTS: u32 = 32;

/// Everything that must come back, in an order of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    sessions: BTreeMap<SessionId, SessionRecord>,
    slots: BTreeMap<Slot, SlotValue>,
    position: Position,
    counts: Counts,
    kept: Kept,
    pages: PageHolders,
}

pub fn state(durable: &Durable) -> State {
    State {
        sessions: durable.sessions.records().map(|record| (record.session, record.clone())).collect(),
        slots: durable.slots.clone(),
        position: durable.position,
        counts: durable.counts,
        kept: durable.kept.clone(),
        pages: durable.pages.clone(),
    }
}

pub fn load(store: &mut Store) -> Durable {
    Durable::load(store, crate::clock::instant()).unwrap()
}

/// An event in a server.
pub enum Happening {
    Record(Record),
    SessionEnds(SessionId, Timestamp),
}

impl Happening {
    pub fn commit(self, durable: &mut Durable, store: &mut Store) -> Result<()> {
        let now = crate::clock::instant();
        match self {
            Happening::Record(record) => durable.commit(store, &record, now).map(drop),
            Happening::SessionEnds(session, stamp) => {
                durable.end_session(store, session, stamp, now).map(drop)
            }
        }
    }
}

/// Does something random.
pub fn happen(dice: &mut Dice, durable: &mut Durable, store: &mut Store, number: u64) -> Result<()> {
    random_happening(dice, durable, number).commit(durable, store)
}

pub fn random_happening(dice: &mut Dice, durable: &Durable, number: u64) -> Happening {
    let session = SessionId([1 + dice.roll(4) as u8; 16]);
    let slot = Slot(dice.roll(4) as u16);
    let now = Timestamp { nanos: number as i64 };
    let (is_open, what) = (durable.sessions.contains(session), dice.roll(14));
    if is_open && what == 0 {
        return Happening::SessionEnds(session, now);
    }
    Happening::Record(match what {
        // Nothing is done for a session that is not open.
        _ if !is_open => {
            let label = format!("test {number}");
            Record::SessionOpened(SessionRecord { session, who: WHO, host: None, label })
        }
        1 => Record::GivesLeases(dice.roll(2) == 0),
        12 => Record::SessionKeepsPages { session, strict: dice.roll(2) == 0 },
        13 => {
            let start = 4096 * dice.roll(9);
            let place = (InodeId::new(slot, 1 + dice.roll(9)), (dice.roll(2) == 0).then_some(1));
            let pages = ByteRange { start, end: start + 4096 * (1 + dice.roll(9)) };
            Record::Pages(match dice.roll(3) {
                0 => News::Dropped { place, session, pages },
                _ => News::Outdated { place, session, pages },
            })
        }
        2..=6 => Record::lane(slot, random_change(dice, slot, session, number)),
        _ if durable.names(slot).is_none() => {
            let birth = SlotBirth { slots: SLOTS, began: Epoch(1), hash_seed: 7, owner: WHO.owner(), now };
            Record::Slot { slot, change: SlotChange::Born(birth) }
        }
        7 if dice.roll(3) == 0 => {
            let op = match dice.roll(2) {
                0 => Op::Delegate { session },
                _ => Op::EndDelegation {
                    number: 1 + dice.roll(9),
                    acknowledged_below: Sequence(dice.roll(200)),
                },
            };
            Record::command(slot, Command { now, origin: Origin::Server, op }, Room::ForInodes)
        }
        _ => {
            let origin = Origin::Client {
                session,
                sequence: Sequence(1 + number),
                acknowledged_below: Sequence((1 + number).saturating_sub(dice.roll(20))),
                who: WHO,
                on_behalf: false,
            };
            let command = Command { now, origin, op: random_op(dice, slot) };
            Record::command(slot, command, if dice.roll(4) == 0 { Room::None } else { Room::ForInodes })
        }
    })
}

fn random_change(dice: &mut Dice, slot: Slot, session: SessionId, number: u64) -> LaneChange {
    let lane = LaneId { inode: InodeId::new(slot, 1 + dice.roll(9)), lane: dice.roll(3) as u16 };
    let generation = Generation(1 + dice.roll(5));
    let id = WriteId { session, sequence: Sequence(number), outstanding: dice.roll(9) as u32 };
    let start = dice.roll(1 << 30);
    let range = ByteRange { start, end: start + dice.roll(1 << 20) };
    match dice.roll(11) {
        0 | 1 => {
            let loss = (dice.roll(2) == 0).then(|| Loss::new(1 << 16, dice.roll(1 << 30)));
            LaneChange::Begun { lane, generation, loss }
        }
        2 => LaneChange::Cut { lane, generation, length: (dice.roll(2) == 0).then_some(start) },
        3 => LaneChange::Dropped { lane },
        4 => LaneChange::PassthroughBegun { lane, number, stores: false },
        5 => LaneChange::PassthroughsOver { lane, number },
        6 => {
            let cell =
                CellStore { lane, offset: 8 * dice.roll(99), before: dice.roll(9), after: dice.roll(9) };
            LaneChange::CellChanged { cell, id }
        }
        7 => LaneChange::MappingBegun { lane, mapping: Mapping { session, number } },
        8 => LaneChange::MappingOver { lane, mapping: Mapping { session, number: dice.roll(1 + number) } },
        _ => LaneChange::Written { lane, range, id },
    }
}

fn random_op(dice: &mut Dice, slot: Slot) -> Op {
    let name = Name::new(format!("n{}", dice.roll(12)).as_bytes()).unwrap();
    let parent = InodeId::new(slot, 1);
    let inode = InodeId::new(slot, Epoch(1).first_number() + dice.roll(20));
    match dice.roll(8) {
        0..4 => {
            let layout = Layout {
                stripe_unit: 1 << 16,
                width: 2,
                base_slot: slot,
                stride: 1,
                copies: 1,
                created: Epoch(1),
            };
            Op::Create(Create {
                parent,
                name,
                mode: 0o644.into(),
                exclusive: false,
                read: true,
                write: true,
                layout: Some(layout),
                wish: ramlace_wire::namespace::LayoutWish::default(),
                named: Vec::new(),
            })
        }
        4 => Op::Unlink(Unlink { parent, name }),
        5 => Op::Truncate(Truncate { inode, size: dice.roll(1 << 20), allocated: None }),
        6 => Op::Extend(Extend { inode, generation: Generation(1), size: dice.roll(1 << 20), from: 0 }),
        _ => {
            let request = MakeDirectory { parent, name, mode: 0o755.into() };
            Op::MakeDirectory { request, homes: vec![Slot(dice.roll(u64::from(SLOTS)) as u16)] }
        }
    }
}

fn written(session: SessionId, sequence: Sequence) -> LaneChange {
    let lane = LaneId { inode: InodeId::new(Slot(0), 9), lane: 0 };
    let id = WriteId { session, sequence, outstanding: 0 };
    LaneChange::Written { lane, range: ByteRange { start: 0, end: 64 }, id }
}

pub fn opened(session: SessionId) -> Record {
    Record::SessionOpened(SessionRecord { session, who: WHO, host: None, label: String::new() })
}

/// Replaces the log by `bytes`, as if the process had been killed there.
fn tear(store: &mut Store, log: &str, bytes: &[u8]) {
    let mut file = store.meta_append_file(log).unwrap();
    file.cut(0).unwrap();
    file.append_urgent(bytes).unwrap();
}

#[test]
fn a_log_torn_at_any_byte_gives_the_state_of_its_last_whole_record() {
    for seed in 0..4 {
        let mut dice = Dice(seed);
        let mut store = TestStore::new();
        let mut durable = load(&mut store);
        let now = crate::clock::instant();
        let mut lives = vec![(0, state(&durable))];
        for number in 0..120 {
            happen(&mut dice, &mut durable, &mut store, number).unwrap();
            if number == 40 && seed % 2 == 1 {
                durable.compact(&mut store);
                lives = vec![(0, state(&durable))];
            }
            lives.push((durable.log.length() as usize, state(&durable)));
        }
        let (log, bytes) = (durable.log.name().to_owned(), durable.log.read_all().unwrap());
        drop(durable);
        let last = lives[lives.len() - 4].0;
        let cuts =
            (0..12).chain(last..=bytes.len()).chain((0..60).map(|_| dice.roll(bytes.len() as u64) as usize));
        for cut in cuts.collect::<Vec<_>>() {
            tear(&mut store, &log, &bytes[..cut]);
            let expected = &lives.iter().rev().find(|(end, _)| *end <= cut).unwrap().1;
            let mut again = load(&mut store);
            // The end of a session is several records: once the first is whole, the rest follows.
            let ends = expected.sessions.keys().find(|session| !again.sessions.contains(**session));
            match ends {
                Some(session) => assert!(again.slots.values().all(|value| !value.knows(*session))),
                None => assert!(state(&again) == *expected, "seed {seed}, cut at {cut} of {}", bytes.len()),
            }
            // What is committed then survives the next restart.
            let session = opened(SessionId([9; 16]));
            let change = Record::lane(Slot(9), written(SessionId([9; 16]), Sequence(1)));
            for record in [session, change] {
                again.commit(&mut store, &record, now).unwrap();
            }
            let told = state(&again);
            drop(again);
            assert!(state(&load(&mut store)) == told, "seed {seed}, cut at {cut}, one record later");
        }
    }
}

#[test]
fn a_store_that_is_full_to_any_page_loses_nothing() {
    for pages in 0..24 {
        let mut dice = Dice(pages);
        let mut store = TestStore::new();
        let mut durable = load(&mut store);
        // A log that is worth a compaction.
        let mut number = 0;
        while durable.log.length() < LOG_BYTES_WORTH + 4096 {
            happen(&mut dice, &mut durable, &mut store, number).unwrap();
            number += 1;
        }
        let free = store.usage().free_bytes;
        let mut filler = store.meta_append_file("filler").unwrap();
        filler.append_urgent(&vec![1; (free - 4096 * pages) as usize]).unwrap();
        let mut full = 0;
        for _ in 0..3000 {
            let happening = random_happening(&mut dice, &durable, number);
            number += 1;
            let told = state(&durable);
            match happening.commit(&mut durable, &mut store) {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace);
                    assert!(state(&durable) == told, "a refused record changed something");
                    full += 1;
                }
            }
            if full > 40 {
                break;
            }
        }
        let told = state(&durable);
        drop(durable);
        assert!(state(&load(&mut store)) == told, "with {pages} pages left");
        assert_eq!(store.usage().used_bytes + store.usage().reserved_bytes, store.kernel_usage().unwrap());
    }
}

#[test]
fn news_of_pages_leave_room_for_what_frees_memory_however_many_they_are() {
    let mut store = TestStore::new();
    let mut durable = load(&mut store);
    let session = SessionId([1; 16]);
    let now = Timestamp { nanos: 1 };
    // Useless, but kept by a snapshot.
    let holder = |number: u64| {
        let mut id = [2; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        Record::SessionKeepsPages { session: SessionId(id), strict: false }
    };
    for number in 0..40_000 {
        durable.commit(&mut store, &holder(number), crate::clock::instant()).unwrap();
    }
    durable.compact(&mut store);
    // Half of the headroom is left, and that is less than the log of half of these records takes.
    let mut filler = store.meta_append_file("filler").unwrap();
    while filler.append(&[1; 4096]).is_ok() {}
    let (place, pages) = ((InodeId::new(Slot(0), 9), None), ByteRange { start: 0, end: 4096 });
    for news in [News::Outdated { place, session, pages }, News::Dropped { place, session, pages }]
        .iter()
        .cycle()
        .take(2 * store.usage().free_bytes as usize / 40)
    {
        // Records of drops may wait: a restarted server trusts fewer pages than it could.
        match durable.commit(&mut store, &Record::Pages(*news), crate::clock::instant()) {
            Err(error) if matches!(news, News::Dropped { .. }) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
            }
            done => drop(done.unwrap()),
        }
    }
    durable.end_session(&mut store, session, now, crate::clock::instant()).unwrap();
    assert!(store.usage().free_bytes > 0);
}

/// Commits a record that finds no room in the last page of the log, and checks that it is taken back.
pub fn commit_to_full(durable: &mut Durable, store: &mut Store, record: &Record) -> Result<()> {
    const PAGE: u64 = 4096;
    let length = durable.log.length();
    let rest = length.next_multiple_of(PAGE) - length;
    durable.log.append_urgent(&vec![0; rest as usize]).unwrap();
    let committed = durable.commit(store, record, crate::clock::instant());
    durable.log.cut(length).unwrap();
    committed.map(drop)
}

#[test]
fn what_frees_memory_or_ends_something_finds_room_in_a_full_store() {
    let mut store = TestStore::new();
    let mut durable = load(&mut store);
    let (slot, session, now) = (Slot(0), SessionId([1; 16]), Timestamp { nanos: 1 });
    let birth = SlotBirth { slots: SLOTS, began: Epoch(1), hash_seed: 7, owner: WHO.owner(), now };
    let inode = InodeId::new(slot, 9);
    let (known, unknown) = (LaneId { inode, lane: 0 }, LaneId { inode, lane: 1 });
    let lane = |change| Record::lane(slot, change);
    let begun = |lane| LaneChange::Begun { lane, generation: Generation(1), loss: None };
    let cut = LaneChange::Cut { lane: known, generation: Generation(2), length: None };
    let born = Record::Slot { slot, change: SlotChange::Born(birth) };
    for record in [born, lane(begun(known))] {
        durable.commit(&mut store, &record, crate::clock::instant()).unwrap();
    }
    let free = store.usage().free_bytes;
    store.meta_append_file("filler").unwrap().append_urgent(&vec![1; free as usize - (64 << 10)]).unwrap();

    let command = |origin, op| Record::command(slot, Command { now, origin, op }, Room::ForInodes);
    let mut last = 0;
    let mut client = |op| {
        last += 1;
        let (sequence, acknowledged_below) = (Sequence(last), Sequence(last));
        let origin = Origin::Client { session, sequence, acknowledged_below, who: WHO, on_behalf: false };
        command(origin, op)
    };
    let (parent, name) = (InodeId::ROOT, Name::new("name").unwrap());
    let lock = |kind| {
        let (table, owner, start, end) = (LockTable::Flock, 1, 0, LOCK_END);
        let (pid, number, waits, settled_below, detects) = (1, 1, false, 0, false);
        Op::SetLock(SetLock {
            inode,
            table,
            owner,
            kind,
            start,
            end,
            pid,
            number,
            waits,
            settled_below,
            detects,
        })
    };
    let token = Token { session, sequence: Sequence(1) };
    let stamp = IntentStamp { coordinator: Slot(5), number: 1, open_from: 1 };
    let page = ByteRange { start: 0, end: 4096 };
    let outdated = News::Outdated { place: (inode, None), session, pages: page };
    let prepare = Prepare { token, stamp, slot, number: 1, who: WHO, now, part: Part::OrderMoves };
    let delivery = DeliveryId(77);
    for (what, record) in [
        ("a lane that is cut", lane(cut)),
        ("the end of passthroughs", lane(LaneChange::PassthroughsOver { lane: known, number: 1 })),
        ("a lane that is dropped", lane(LaneChange::Dropped { lane: known })),
        ("an unlock", client(lock(None))),
        ("a lock's wait", client(Op::CancelLock(CancelLock { inode, number: 1, take_back: true }))),
        ("a cycle", command(Origin::Server, Op::EndLockWait(EndLockWait { inode, session, wait: 1 }))),
        ("leaving", client(Op::LeaveBarrier(LeaveBarrier { name: b"b".to_vec(), member: 0, wait: 1 }))),
        ("unlink", client(Op::Unlink(Unlink { parent, name: name.clone() }))),
        ("rmdir", client(Op::RemoveDirectory(RemoveDirectory { parent, name: name.clone() }))),
        ("close", client(Op::Close(Close { inode, modified: None, leases: false }))),
        ("a cancelled change", client(Op::CancelChange(CancelChange { sequence: Sequence(1) }))),
        ("truncate", client(Op::Truncate(Truncate { inode, size: 0, allocated: None }))),
        ("a part", command(Origin::Peer, Op::Prepare(Box::new(prepare)))),
        ("its end", command(Origin::Peer, Op::Decide(Decide { token, stamp, slot, commit: true, now }))),
        (
            "a lost slot",
            command(Origin::Server, Op::CoordinatorLost { coordinator: Slot(5), began: Epoch(2) }),
        ),
        (
            "a delivery",
            command(Origin::Server, Op::DeliveryDone { delivery, result: Ok(DeliveryAnswer::Done) }),
        ),
        ("a silent server", command(Origin::Server, Op::DeliveryUnreachable { delivery })),
        ("a session in a slot", command(Origin::Server, Op::EndSession { session })),
        ("pages that change", Record::Pages(outdated)),
        ("a session that is worth nothing", Record::Pages(News::Worthless { session })),
        ("a session", Record::SessionEnded { session, now }),
        ("what it left", Record::Slot { slot, change: SlotChange::SessionEnded { session, now } }),
    ] {
        commit_to_full(&mut durable, &mut store, &record).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    for record in [
        lane(begun(unknown)),
        client(lock(Some(LockKind::Shared))),
        client(Op::MakeDirectory {
            request: MakeDirectory { parent, name, mode: 0o755.into() },
            homes: vec![slot],
        }),
        lane(written(session, Sequence(1))),
        Record::Pages(News::Dropped { place: (inode, None), session, pages: page }),
        Record::Pages(News::Returned { session }),
    ] {
        let refused = commit_to_full(&mut durable, &mut store, &record).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
    }
}

#[test]
fn what_several_sessions_have_left_in_one_slot_goes_with_the_next_start_and_the_one_behind_it_knows() {
    let mut store = TestStore::new();
    let mut durable = load(&mut store);
    let (slot, now) = (Slot(0), Timestamp { nanos: 1 });
    let (lane, range) = (LaneId { inode: InodeId::new(slot, 9), lane: 0 }, ByteRange { start: 0, end: 1 });
    let sessions = [1, 2, 3].map(|byte| SessionId([byte; 16]));
    let mut records =
        vec![Record::lane(slot, LaneChange::Begun { lane, generation: Generation(1), loss: None })];
    for session in sessions {
        let label = String::new();
        records.push(Record::SessionOpened(SessionRecord { session, who: WHO, host: None, label }));
        let id = WriteId { session, sequence: Sequence(1), outstanding: 0 };
        records.push(Record::lane(slot, LaneChange::Written { lane, range, id }));
    }
    // A process that dies here has not written the records of the slots.
    records.extend(sessions.map(|session| Record::SessionEnded { session, now }));
    for record in &records {
        durable.commit(&mut store, record, crate::clock::instant()).unwrap();
    }
    drop(durable);
    for _ in 0..3 {
        let durable = load(&mut store);
        assert!(sessions.iter().all(|session| !durable.slots[&slot].knows(*session)));
    }
}

#[test]
fn a_damaged_snapshot_is_refused() {
    let mut dice = Dice(5);
    let mut store = TestStore::new();
    let mut durable = load(&mut store);
    for number in 0..50 {
        happen(&mut dice, &mut durable, &mut store, number).unwrap();
    }
    durable.compact(&mut store);
    drop(durable);
    let bytes = store.meta_append_file("snapshot-1").unwrap().read_all().unwrap();
    tear(&mut store, "snapshot-1", &bytes[..bytes.len() - 1]);
    let refused = Durable::load(&mut store, crate::clock::instant()).err().expect("a damaged snapshot");
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
}

// SEMANTICS 16.2
#[test]
fn a_flipped_bit_anywhere_in_the_log_is_refused_and_cuts_nothing_off() {
    let mut dice = Dice(7);
    let mut store = TestStore::new();
    let mut durable = load(&mut store);
    for number in 0..200 {
        happen(&mut dice, &mut durable, &mut store, number).unwrap();
    }
    let told = state(&durable);
    let bytes = durable.log.read_all().unwrap();
    drop(durable);
    for _ in 0..200 {
        let bit = dice.roll(8 * bytes.len() as u64) as usize;
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        tear(&mut store, "log-0", &damaged);
        let refused = Durable::load(&mut store, crate::clock::instant()).err();
        let refused = refused.unwrap_or_else(|| panic!("bit {bit} of {} bytes", bytes.len()));
        let kind = if bit / 8 == 7 { ErrorKind::Unsupported } else { ErrorKind::Corrupt };
        assert_eq!(refused.kind(), kind);
        let told = if bit / 8 == 7 { "'log-0' has log format " } else { "'log-0' is damaged at byte " };
        assert!(refused.to_string().contains(told), "{refused}");
        assert!(
            store.meta_append_file("log-0").unwrap().read_all().unwrap() == damaged,
            "nothing is cut off"
        );
    }
    tear(&mut store, "log-0", &bytes);
    assert!(state(&load(&mut store)) == told);
}

/// The pieces of a log: each record's bytes and place.
fn pieces(bytes: &[u8]) -> Vec<(Place, &[u8])> {
    let mut records = Records::new(bytes).unwrap();
    let mut pieces = Vec::new();
    loop {
        let start = records.consumed();
        let Some((at, _)) = records.next().unwrap() else { return pieces };
        pieces.push((at.place, &bytes[start..records.consumed()]));
    }
}

// SEMANTICS 16.2
#[test]
fn a_record_that_is_missing_or_comes_twice_is_refused_where_it_is_noticed() {
    let mut dice = Dice(13);
    let mut store = TestStore::new();
    let mut durable = load(&mut store);
    for number in 0..120 {
        happen(&mut dice, &mut durable, &mut store, number).unwrap();
        if number == 20 {
            durable.compact(&mut store);
        }
    }
    let (log, bytes) = (durable.log.name().to_owned(), durable.log.read_all().unwrap());
    drop(durable);
    let pieces = pieces(&bytes);
    let joined = |pieces: &[(Place, &[u8])]| {
        pieces.iter().fold(LOG_MAGIC.to_vec(), |all, (_, piece)| [&all[..], piece].concat())
    };
    assert_eq!(joined(&pieces), bytes);
    let mut refuses = |pieces: &[(Place, &[u8])], noticed: usize, what: &str| {
        let bytes = joined(pieces);
        tear(&mut store, &log, &bytes);
        let refused = Durable::load(&mut store, crate::clock::instant()).err().expect(what);
        let offset = joined(&pieces[..noticed]).len();
        assert!(
            refused.to_string().contains(&format!("'{log}' is damaged at byte {offset}: {what}")),
            "{refused}"
        );
        assert!(store.meta_append_file(&log).unwrap().read_all().unwrap() == bytes, "nothing is cut off");
    };
    for at in 0..pieces.len() {
        let next = (at + 1..pieces.len()).find(|next| pieces[*next].0 == pieces[at].0);
        if let Some(next) = next {
            let mut without = pieces.clone();
            without.remove(at);
            refuses(&without, next - 1, "a record before this one is missing");
            let mut turned = pieces.clone();
            turned.swap(at, next);
            refuses(&turned, at, "a record before this one is missing");
        }
        let mut twice = pieces.clone();
        twice.insert(at, pieces[at]);
        refuses(&twice, at + 1, "a record comes twice");
    }
}

#[test]
fn each_slot_counts_its_records_and_so_does_the_server_across_lives_and_snapshots() {
    let mut dice = Dice(17);
    let mut store = TestStore::new();
    let mut durable = load(&mut store);
    let positions = |durable: &Durable| {
        let of_slots = durable.slots.keys().map(|slot| Place::Slot(*slot));
        let places = of_slots.chain([Place::Server]);
        places.map(|place| (place, durable.position(place))).collect::<BTreeMap<_, _>>()
    };
    let mut ended = 0;
    for number in 0..400 {
        let mut expected = positions(&durable);
        let happening = random_happening(&mut dice, &durable, number);
        let places = match &happening {
            Happening::Record(record) => vec![record.place()],
            Happening::SessionEnds(session, _) => {
                let knowing = durable.slots.values().filter(|value| value.knows(*session));
                let knowing = knowing.map(|value| Place::Slot(value.slot()));
                ended += 1;
                knowing.chain([Place::Server]).collect()
            }
        };
        for place in places {
            let position = expected.entry(place).or_default();
            *position = position.next();
        }
        happening.commit(&mut durable, &mut store).unwrap();
        match dice.roll(20) {
            0 => durable.compact(&mut store),
            1 => durable = load(&mut store),
            _ => {}
        }
        assert_eq!(positions(&durable), expected);
    }
    assert!(ended > 3 && durable.slots.len() == 4);
}

#[test]
fn members_of_barriers_are_counted_over_slots_sessions_and_lives() {
    let (one, two, now) = (SessionId([1; 16]), SessionId([2; 16]), crate::clock::instant());
    let mut store = TestStore::new();
    let mut durable = load(&mut store);
    [one, two].into_iter().for_each(|session| {
        durable.commit(&mut store, &opened(session), now).unwrap();
    });
    let name_in = |slot: Slot| {
        let names = (0..).map(|number| format!("barrier {number}").into_bytes());
        names.into_iter().find(|name| ramlace_layout::barrier_slot(name, SLOTS) == slot).unwrap()
    };
    for slot in [Slot(0), Slot(1)] {
        let owner = WHO.owner();
        let birth =
            SlotBirth { slots: SLOTS, began: Epoch(1), hash_seed: 7, owner, now: Timestamp { nanos: 1 } };
        let born = Record::Slot { slot, change: SlotChange::Born(birth) };
        durable.commit(&mut store, &born, now).unwrap();
    }
    let counted = |durable: &Durable, expected: u64| {
        let sum: u64 = durable.all_names().map(SlotState::barrier_members).sum();
        assert_eq!((durable.barrier_members(), sum), (expected, expected));
    };
    let mut number = 0;
    let mut change = |durable: &mut Durable, store: &mut Store, session: SessionId, slot: Slot, op: Op| {
        number += 1;
        let origin = Origin::Client {
            session,
            sequence: Sequence(number),
            acknowledged_below: Sequence(number),
            who: WHO,
            on_behalf: false,
        };
        let command = Command { now: Timestamp { nanos: 1 }, origin, op };
        durable.commit(store, &Record::command(slot, command, Room::ForInodes), now).unwrap();
    };
    let arrive = |slot: Slot, member: u32| Op::ArriveBarrier {
        request: ArriveBarrier {
            name: name_in(slot),
            parties: 3,
            member,
            wait: 1 + u64::from(member),
            host: "host".into(),
            pid: 1,
        },
        room: true,
    };
    for (session, slot, member) in
        [(one, Slot(0), 0), (two, Slot(0), 1), (one, Slot(1), 0), (one, Slot(1), 1)]
    {
        change(&mut durable, &mut store, session, slot, arrive(slot, member));
    }
    counted(&durable, 4);
    // A session that comes again is counted once; one that leaves is remembered.
    change(&mut durable, &mut store, one, Slot(0), arrive(Slot(0), 0));
    let leave = LeaveBarrier { name: name_in(Slot(0)), member: 0, wait: 1 };
    change(&mut durable, &mut store, one, Slot(0), Op::LeaveBarrier(leave));
    counted(&durable, 4);
    drop(durable);
    // From the log, and from a snapshot.
    let mut durable = load(&mut store);
    counted(&durable, 4);
    durable.compact(&mut store);
    drop(durable);
    let mut durable = load(&mut store);
    counted(&durable, 4);
    // The barrier in slot 1 goes with the last session of its members, the one in slot 0 stays.
    durable.end_session(&mut store, one, Timestamp { nanos: 2 }, now).unwrap();
    counted(&durable, 2);
    drop(durable);
    let mut durable = load(&mut store);
    counted(&durable, 2);
    durable.end_session(&mut store, two, Timestamp { nanos: 3 }, now).unwrap();
    counted(&durable, 0);
    drop(durable);
    counted(&load(&mut store), 0);
}

#[test]
fn the_end_of_a_session_that_was_cut_short_is_finished_by_the_next_life() {
    let (session, stamp, now) = (SessionId([1; 16]), Timestamp { nanos: 5 }, crate::clock::instant());
    let mut store = TestStore::new();
    let mut durable = load(&mut store);
    durable.commit(&mut store, &opened(session), now).unwrap();
    for slot in 0..4 {
        let record = Record::lane(Slot(slot), written(session, Sequence(1)));
        durable.commit(&mut store, &record, now).unwrap();
    }
    let before = durable.log.length() as usize;
    durable.end_session(&mut store, session, stamp, now).unwrap();
    let bytes = durable.log.read_all().unwrap();
    drop(durable);
    for cut in before..=bytes.len() {
        tear(&mut store, "log-0", &bytes[..cut]);
        let durable = load(&mut store);
        let (known, is_open) = (
            durable.slots.values().filter(|value| value.knows(session)).count(),
            durable.sessions.contains(session),
        );
        assert!(
            (known, is_open) == (4, true) || (known, is_open) == (0, false),
            "{known} slots know it, open: {is_open}"
        );
        // And that is in the log.
        let told = state(&durable);
        drop(durable);
        assert!(state(&load(&mut store)) == told);
    }
}

#[test]
fn a_log_of_another_format_is_refused_with_what_to_do() {
    let mut store = TestStore::new();
    let mut durable = load(&mut store);
    durable.commit(&mut store, &opened(SessionId([1; 16])), crate::clock::instant()).unwrap();
    let mut bytes = durable.log.read_all().unwrap();
    drop(durable);
    bytes[LOG_MAGIC.len() - 1] = 7;
    tear(&mut store, "log-0", &bytes);
    let refused = Durable::load(&mut store, crate::clock::instant()).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    let text = refused.to_string();
    let ours = LOG_MAGIC[LOG_MAGIC.len() - 1];
    let formats = format!("'log-0' has log format 7, and this version of ramlace reads format {ours} alone");
    assert!(text.contains(&formats), "{text}");
    assert!(
        text.contains("start it with the version that wrote the file, or end the pool with 'ramlace down'"),
        "{text}"
    );
}

#[test]
fn a_record_that_cannot_be_applied_is_not_kept() {
    let mut store = TestStore::new();
    let mut durable = load(&mut store);
    let now = crate::clock::instant();
    let before = state(&durable);
    let command = Command {
        now: Timestamp { nanos: 1 },
        origin: Origin::Server,
        op: Op::EndSession { session: SessionId([1; 16]) },
    };
    // The slot was never created: a bug.
    let bug = Record::command(Slot(3), command, Room::ForInodes);
    let ended = catch_unwind(AssertUnwindSafe(|| durable.commit(&mut store, &bug, now).map(drop)));
    assert!(ended.is_err());
    drop(durable);
    assert!(state(&load(&mut store)) == before);
}
