//! The bytes of every record are fixed: `record_golden.txt` holds them, and changes only on purpose.
//!
//! `RAMLACE_WRITE_GOLDEN=1 cargo test --release -p ramlace-server golden` writes it anew. Do so for a new
//! record, whose lines are added; when other lines change, so must the version in [`LOG_MAGIC`].
//!
//! Each line has a record's bytes, and what they mean. The samples are drawn: the longest of some hundred values that
//! come out of drawn bytes. So each command and each change of a lane has a line without being listed here, and
//! a field that changes its place changes the words of its line.
//!
//! Commands and changes of lanes are the top of what has numbers. All other variants, and the types in a slot, have lines that
//! [`variants`] finds: it fails where an enum has no table of numbers.

use std::fmt::{Debug, Write};

use ramlace_base::{ByteRange, Epoch, InodeId, Name, Position, Sequence, SessionId, Slot, Timestamp};
use ramlace_lanes::{LaneChange, News};
use ramlace_namespace::{Command, Op, Origin, Room};
use ramlace_slot::{SlotBirth, SlotChange, SlotValue};
use ramlace_wire::namespace::{Create, LayoutWish, MakeDirectory};
use ramlace_wire::{Credentials, Layout};
use serde::de::DeserializeOwned;

use crate::framing::{self, LOG_MAGIC, Records};
use crate::record::{At, KINDS, Place, Record};
use crate::testing::Dice;
use crate::wire_samples::variants;

const WRITE: &str = "RAMLACE_WRITE_GOLDEN";
const GOLDEN: &str = include_str!("record_golden.txt");
const SLOT: Slot = Slot(0x0203);
const POSITION: Position = Position(0x0102_0304_0506_0708);
/// The number of values that are tried for one sample.
const DRAWS: u64 = 3000;

/// A value decoded from these bytes and random ones after them: the longest of many, because it shows most.
fn sample<T: DeserializeOwned + Debug>(begins: &[u8]) -> T {
    let (mut longest, mut best) = (0, None);
    for seed in 0..DRAWS {
        let mut dice = Dice(seed);
        let mut bytes = begins.to_vec();
        // Small numbers: most lengths, options and variants are valid then.
        bytes.extend((0..300).map(|_| [0, 1, 1, 1, 2, 3][dice.roll(6) as usize]));
        if let Ok((value, rest)) = postcard::take_from_bytes::<T>(&bytes)
            && bytes.len() - rest.len() > longest
        {
            longest = bytes.len() - rest.len();
            best = Some(value);
        }
    }
    best.unwrap_or_else(|| panic!("no drawn bytes are one that begins with {begins:?}"))
}

/// A value of each variant of an enum that has a table of numbers.
fn samples<T: DeserializeOwned + Debug>(numbers: &[(u32, &'static str)]) -> Vec<(&'static str, T)> {
    let begins = |number: u32, name| {
        let mut begins = vec![u8::try_from(number).unwrap()];
        if matches!(name, "SetXattr" | "RemoveXattr") {
            // An inode, and a valid name of an attribute.
            begins.extend(*b"\x01\x06user.n");
        }
        begins
    };
    numbers.iter().map(|(number, name)| (*name, sample(&begins(*number, *name)))).collect()
}

fn outdated(session: SessionId) -> News {
    let place = (InodeId::new(SLOT, 7), Some(2));
    News::Outdated { place, session, pages: ByteRange { start: 4096, end: u64::MAX } }
}

fn dropped(session: SessionId) -> News {
    let (place, pages) = ((InodeId::new(SLOT, 7), None), ByteRange { start: 0, end: 4096 });
    News::Dropped { place, session, pages }
}

/// Every record that can be in a log, by name.
fn records() -> Vec<(String, Record)> {
    let (slot, session, now) = (SLOT, SessionId([9; 16]), Timestamp { nanos: 1_700_000_000_000_000_001 });
    let mut all = vec![
        ("SessionOpened".into(), Record::SessionOpened(sample(&[]))),
        ("SessionEnded".into(), Record::SessionEnded { session, now }),
        ("GivesLeases".into(), Record::GivesLeases(true)),
        ("SessionKeepsPages".into(), Record::SessionKeepsPages { session, strict: true }),
        ("Pages.Outdated".into(), Record::Pages(outdated(session))),
        ("Pages.Dropped".into(), Record::Pages(dropped(session))),
        ("Pages.Worthless".into(), Record::Pages(News::Worthless { session })),
        ("Pages.Returned".into(), Record::Pages(News::Returned { session })),
        ("Slot.Born".into(), Record::Slot { slot, change: SlotChange::Born(sample(&[])) }),
        (
            "Slot.SessionEnded".into(),
            Record::Slot { slot, change: SlotChange::SessionEnded { session, now } },
        ),
    ];
    let client = Origin::Client {
        session,
        sequence: Sequence(300),
        acknowledged_below: Sequence(200),
        who: Credentials::new(1000, 1001),
        on_behalf: true,
    };
    let origins = [client, Origin::Peer, Origin::Server];
    for (at, (name, op)) in samples::<Op>(Op::NUMBERS).into_iter().enumerate() {
        let origin = origins[at % origins.len()].clone();
        let room = if at % 2 == 0 { Room::ForInodes } else { Room::None };
        let command = Command { now, origin, op };
        all.push((format!("Slot.Command.{name}"), Record::command(slot, command, room)));
    }
    for (name, change) in samples::<LaneChange>(LaneChange::NUMBERS) {
        all.push((format!("Slot.Lane.{name}"), Record::lane(slot, change)));
    }
    let bytes = postcard::to_stdvec(&lived_in()).unwrap();
    all.push(("SlotPiece".into(), Record::SlotPiece { slot: Slot(0), last: true, bytes }));
    all.extend(variants_in_records());
    all
}

/// A record for each type and each variant of an enum that can stand in a slot, and for the variants in commands and in changes of lanes,
/// unless such a variant is the command or the change itself, which has a sample of its own. `Hold.4` is a variant, by its number.
fn variants_in_records() -> Vec<(String, Record)> {
    let slots = variants::<SlotValue>().into_iter().map(|(shown, value)| {
        let bytes = postcard::to_stdvec(&value).unwrap();
        (format!("SlotPiece:{shown}"), Record::SlotPiece { slot: SLOT, last: true, bytes })
    });
    let commands = variants::<(Command, Room)>().into_iter().filter(|(shown, _)| shows_more(shown, "Op."));
    let commands = commands.map(|(shown, (command, room))| {
        (format!("Slot.Command:{shown}"), Record::command(SLOT, command, room))
    });
    let changes = variants::<LaneChange>().into_iter().filter(|(shown, _)| shows_more(shown, "LaneChange."));
    let changes = changes.map(|(shown, change)| (format!("Slot.Lane:{shown}"), Record::lane(SLOT, change)));
    slots.chain(commands).chain(changes).collect()
}

/// Whether these are variants, and others than those of the one enum.
fn shows_more(shown: &str, than: &str) -> bool {
    shown.split('+').any(|name| name.contains('.') && !name.starts_with(than))
}

/// A slot with a file that is open, a directory whose inode is asked of another slot, and some lanes.
fn lived_in() -> SlotValue {
    let (slot, session, now) = (Slot(0), SessionId([9; 16]), Timestamp { nanos: 1_700_000_000_000_000_001 });
    let mut value = SlotValue::new(slot);
    let owner = Credentials::new(1000, 1001).owner();
    let birth = SlotBirth { slots: 32, began: Epoch(1), hash_seed: 7, owner, now };
    value.apply(&SlotChange::Born(birth));
    for (_, change) in samples(LaneChange::NUMBERS) {
        value.apply(&SlotChange::Lane(change));
    }
    let (parent, name) = (InodeId::ROOT, |name: &str| Name::new(name).unwrap());
    let layout =
        Layout { stripe_unit: 1 << 16, width: 2, base_slot: slot, stride: 1, copies: 1, created: Epoch(1) };
    let create = Create {
        parent,
        name: name("file"),
        mode: 0o644.into(),
        exclusive: false,
        read: true,
        write: true,
        layout: Some(layout),
        wish: LayoutWish::default(),
        named: Vec::new(),
    };
    let request = MakeDirectory { parent, name: name("directory"), mode: 0o755.into() };
    for (number, op) in
        [Op::Create(create), Op::MakeDirectory { request, homes: vec![Slot(5)] }].into_iter().enumerate()
    {
        let sequence = Sequence(1 + number as u64);
        let who = Credentials::new(1000, 1001);
        let origin =
            Origin::Client { session, sequence, acknowledged_below: Sequence(1), who, on_behalf: false };
        let command = Box::new(Command { now, origin, op });
        value.apply(&SlotChange::Command { command, room: Room::ForInodes });
    }
    value
}

fn golden() -> String {
    let mut text = String::new();
    for (name, record) in records() {
        let mut bytes = Vec::new();
        framing::encode(&record, POSITION, &mut bytes).unwrap();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let meaning = match &record {
            Record::SlotPiece { bytes, .. } => {
                format!("{:?}", postcard::from_bytes::<SlotValue>(bytes).unwrap())
            }
            record => format!("{record:?}"),
        };
        writeln!(text, "{name} {hex} {meaning}").unwrap();
    }
    text
}

#[test]
fn golden_bytes_of_records_are_the_ones_that_were_written_down() {
    let now = golden();
    if std::env::var_os(WRITE).is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/record_golden.txt");
        std::fs::write(path, now).expect("record_golden.txt can be written");
        return;
    }
    for (is, was) in now.lines().zip(GOLDEN.lines()) {
        assert_eq!(is, was, "these bytes changed: logs that were written can no longer be read");
    }
    assert_eq!(now.lines().count(), GOLDEN.lines().count(), "set {WRITE}=1 to add a new record");
}

#[test]
fn every_record_comes_back_from_its_bytes_and_no_two_kinds_share_a_number() {
    let mut met = std::collections::BTreeSet::new();
    for (name, record) in records() {
        let mut bytes = LOG_MAGIC.to_vec();
        framing::encode(&record, POSITION, &mut bytes).unwrap();
        let mut records = Records::new(&bytes).unwrap();
        let (at, again) = records.next().unwrap().unwrap_or_else(|| panic!("{name} is torn"));
        assert_eq!(at, At { place: record.place(), position: POSITION });
        assert_eq!(format!("{again:?}"), format!("{record:?}"));
        assert!(records.next().unwrap().is_none() && records.consumed() == bytes.len());
        met.insert(record.kind());
        if name.starts_with("SlotPiece") {
            continue;
        }
        // A body that is longer, or shorter, than its record is refused.
        let body = record.encode_body(Vec::new());
        for body in [&body[..body.len() - 1], &[&body[..], &[0]].concat()] {
            assert!(Record::decode(record.kind(), record.place(), body).is_err(), "{name}");
        }
    }
    let numbers: std::collections::BTreeSet<u16> = KINDS.iter().map(|(number, _)| *number).collect();
    assert_eq!((&met, numbers.len()), (&numbers, KINDS.len()));
    assert!(Record::decode(9999, Place::Server, &[]).is_err());
    assert!(Record::decode(66, Place::Server, &[]).is_err(), "a slot's record needs a slot");
    assert_eq!(Place::from_number(1 << 16), None);
    for place in [Place::Server, Place::Slot(Slot(0)), Place::Slot(Slot(u16::MAX))] {
        assert_eq!(Place::from_number(place.number()), Some(place));
    }
}
