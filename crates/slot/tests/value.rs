//! The value and the changes after its position are all that a slot is.

use ramlace_base::{
    ByteRange, Epoch, Generation, InodeId, LaneId, Name, Position, Sequence, SessionId, Slot, Timestamp,
};
use ramlace_lanes::{CellStore, LaneChange, Loss, Mapping, StoreStep, WriteId};
use ramlace_namespace::{Command, Effect, Op, Origin, Room};
use ramlace_slot::{Counts, SlotBirth, SlotChange, SlotValue};
use ramlace_wire::namespace::{Create, LayoutWish, MakeDirectory, Unlink};
use ramlace_wire::{Credentials, Layout};

const SLOT: Slot = Slot(0);
const WHO: Credentials = Credentials::new(1000, 1000);

/// Numbers that are the same for the same seed (SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}

fn session(number: u64) -> SessionId {
    SessionId([1 + number as u8; 16])
}

fn birth() -> SlotChange {
    let now = Timestamp { nanos: 1 };
    SlotChange::Born(SlotBirth { slots: 8, began: Epoch(1), hash_seed: 7, owner: WHO.owner(), now })
}

fn command(dice: &mut Dice, number: u64) -> SlotChange {
    let name = Name::new(format!("n{}", dice.roll(9)).as_bytes()).unwrap();
    let parent = InodeId::ROOT;
    let layout =
        Layout { stripe_unit: 1 << 16, width: 2, base_slot: SLOT, stride: 1, copies: 1, created: Epoch(1) };
    let op = match dice.roll(4) {
        0 | 1 => Op::Create(Create {
            parent,
            name,
            mode: 0o644.into(),
            exclusive: false,
            read: true,
            write: true,
            layout: Some(layout),
            wish: LayoutWish::default(),
            named: Vec::new(),
        }),
        2 => Op::Unlink(Unlink { parent, name }),
        _ => {
            let homes = vec![Slot(dice.roll(2) as u16)];
            Op::MakeDirectory { request: MakeDirectory { parent, name, mode: 0o755.into() }, homes }
        }
    };
    let (sequence, acknowledged_below) = (Sequence(number), Sequence(number.saturating_sub(dice.roll(9))));
    let origin = Origin::Client {
        session: session(dice.roll(3)),
        sequence,
        acknowledged_below,
        who: WHO,
        on_behalf: false,
    };
    let room = if dice.roll(5) == 0 { Room::None } else { Room::ForInodes };
    SlotChange::Command {
        command: Box::new(Command { now: Timestamp { nanos: number as i64 }, origin, op }),
        room,
    }
}

fn lane_change(dice: &mut Dice, number: u64) -> LaneChange {
    let lane = LaneId { inode: InodeId::new(SLOT, 2 + dice.roll(5)), lane: dice.roll(2) as u16 };
    let id = WriteId {
        session: session(dice.roll(3)),
        sequence: Sequence(number),
        outstanding: dice.roll(9) as u32,
    };
    match dice.roll(8) {
        0 => LaneChange::Begun {
            lane,
            generation: Generation(1),
            loss: Some(Loss::new(1 << 16, dice.roll(1 << 20))),
        },
        1 => LaneChange::Cut { lane, generation: Generation(2), length: Some(dice.roll(1 << 20)) },
        2 => LaneChange::Dropped { lane },
        3 => LaneChange::PassthroughBegun { lane, number, stores: false },
        4 => {
            let cell = CellStore { lane, offset: 8, before: dice.roll(9), after: dice.roll(9) };
            LaneChange::CellChanged { cell, id }
        }
        5 => LaneChange::MappingBegun { lane, mapping: Mapping { session: id.session, number } },
        6 => LaneChange::MappingOver {
            lane,
            mapping: Mapping { session: id.session, number: dice.roll(1 + number) },
        },
        _ => LaneChange::Written { lane, range: ByteRange { start: 0, end: 1 << 16 }, id },
    }
}

fn change(dice: &mut Dice, number: u64) -> SlotChange {
    match dice.roll(12) {
        0..5 => command(dice, number),
        5..11 => SlotChange::Lane(lane_change(dice, number)),
        _ => SlotChange::SessionEnded {
            session: session(dice.roll(3)),
            now: Timestamp { nanos: number as i64 },
        },
    }
}

fn history(seed: u64, length: u64) -> Vec<SlotChange> {
    let mut dice = Dice(seed);
    std::iter::once(birth()).chain((1..length).map(|number| change(&mut dice, number))).collect()
}

#[test]
fn a_value_and_the_changes_after_its_position_give_the_same_value_and_the_same_effects() {
    for seed in 0..40 {
        let history = history(seed, 120);
        let mut value = SlotValue::new(SLOT);
        let mut snapshots = vec![postcard::to_stdvec(&value).unwrap()];
        let mut followed = Vec::new();
        for change in &history {
            followed.push(format!("{:?}", value.apply(change)));
            snapshots.push(postcard::to_stdvec(&value).unwrap());
        }
        assert_eq!(value.position(), Position(history.len() as u64));
        for start in [0, 1, 17, 60, history.len()] {
            let mut again: SlotValue = postcard::from_bytes(&snapshots[start]).unwrap();
            assert_eq!(again.position(), Position(start as u64));
            for (at, change) in history.iter().enumerate().skip(start) {
                assert_eq!(format!("{:?}", again.apply(change)), followed[at], "seed {seed}, change {at}");
            }
            assert!(again == value, "seed {seed}, from {start}");
        }
    }
}

#[test]
fn what_each_change_adds_to_the_counts_comes_to_what_is_there() {
    for seed in 0..40 {
        let mut value = SlotValue::new(SLOT);
        let (mut counts, mut kept) = (Counts::default(), [0_i64; 3]);
        let mut ended = 0;
        for change in &history(seed, 200) {
            let effects = value.apply(change);
            counts = counts.after(effects.counts);
            for (of, bytes) in effects.kept {
                kept[usize::from(of.0[0]) - 1] += bytes;
            }
            assert_eq!(counts, value.counts());
            if let SlotChange::SessionEnded { session, .. } = change {
                assert!(!value.knows(*session));
                assert_eq!(kept[usize::from(session.0[0]) - 1], 0, "its replies are given back");
                ended += 1;
            }
        }
        let told = |number: u64| value.names().unwrap().reported_reply_bytes(session(number)) as i64;
        assert_eq!(kept, [told(0), told(1), told(2)]);
        let known: Vec<SessionId> = value.sessions().collect();
        assert!((0..3).all(|number| value.knows(session(number)) == known.contains(&session(number))));
        assert!(ended > 3);
    }
}

#[test]
fn the_end_of_a_session_is_one_change_of_names_and_lanes() {
    let lane = LaneId { inode: InodeId::new(SLOT, 2), lane: 0 };
    let (one, two) = (session(0), session(1));
    let mut value = SlotValue::new(SLOT);
    for session in [one, two] {
        let range = ByteRange { start: 0, end: 8 };
        let id = WriteId { session, sequence: Sequence(1), outstanding: 0 };
        value.apply(&SlotChange::Lane(LaneChange::Written { lane, range, id }));
    }
    let effects = value.apply(&SlotChange::SessionEnded { session: one, now: Timestamp { nanos: 3 } });
    assert!(
        effects.names.is_empty() && effects.kept.is_empty(),
        "a slot without names has only its writes to forget"
    );
    assert_eq!((value.knows(one), value.knows(two)), (false, true));
}

#[test]
fn a_change_says_what_it_does_to_the_store_before_its_record_or_after_it() {
    let lane = LaneId { inode: InodeId::new(SLOT, 2), lane: 0 };
    let cell = CellStore { lane, offset: 8, before: 1, after: 2 };
    let changed = LaneChange::CellChanged { cell, id: WriteId::default() };
    let cut = LaneChange::Cut { lane, generation: Generation(2), length: Some(7) };
    for (change, before, after) in [
        (changed, None, Some(StoreStep::Cell(cell))),
        (cut, Some(StoreStep::Cut { lane, length: 7 }), None),
        (LaneChange::Dropped { lane }, Some(StoreStep::Remove { lane }), None),
        (LaneChange::PassthroughBegun { lane, number: 1, stores: true }, None, None),
    ] {
        let change = SlotChange::Lane(change);
        assert_eq!(change.frees(), before);
        assert_eq!(SlotValue::new(SLOT).apply(&change).store, after);
    }
}

#[test]
fn what_cannot_be_the_next_change_is_refused() {
    let mut value = SlotValue::new(SLOT);
    let create = command(&mut Dice(1), 1);
    assert!(value.refuses(&create).is_some());
    assert_eq!(value.refuses(&birth()), None);
    let effects = value.apply(&birth());
    assert_eq!((effects.counts.inodes, value.counts().inodes), (1, 1), "the root");
    assert_eq!(value.refuses(&create), None);
    assert!(value.refuses(&birth()).is_some());
    let replied = |effect: &Effect| matches!(effect, Effect::Reply { .. });
    assert!(value.apply(&create).names.iter().any(replied));
}
