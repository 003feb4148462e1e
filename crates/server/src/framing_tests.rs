//! Every byte of a log is whole, torn off or damaged, and the three are told apart.

use ramlace_base::{ByteRange, InodeId, LaneId, Sequence, SessionId, Slot};
use ramlace_lanes::{LaneChange, WriteId};
use ramlace_slot::SlotChange;

use super::*;

fn written(sequence: u64) -> Record {
    let lane = LaneId { inode: InodeId(9), lane: 0 };
    let (range, session) = (ByteRange { start: 0, end: 8 }, SessionId([9; 16]));
    let id = WriteId { session, sequence: Sequence(sequence), outstanding: 0 };
    let change = LaneChange::Written { lane, range, id };
    Record::lane(Slot(7), change)
}

fn put(sequence: u64, into: &mut Vec<u8>) {
    encode(&written(sequence), Position(100 + sequence), into).unwrap();
}

fn sequences(bytes: &[u8]) -> std::result::Result<(Vec<u64>, usize), Unreadable> {
    let mut records = Records::new(bytes)?;
    let mut found = Vec::new();
    while let Some((at, record)) = records.next()? {
        let Record::Slot { change: SlotChange::Lane(LaneChange::Written { id, .. }), .. } = record else {
            panic!("another record was written")
        };
        assert_eq!(at, At { place: Place::Slot(Slot(7)), position: Position(100 + id.sequence.0) });
        found.push(id.sequence.0);
    }
    Ok((found, records.consumed()))
}

#[test]
fn a_log_torn_at_any_byte_keeps_its_whole_records() {
    let mut bytes = LOG_MAGIC.to_vec();
    let mut ends = vec![bytes.len()];
    for sequence in 0..5 {
        put(sequence, &mut bytes);
        ends.push(bytes.len());
    }
    for cut in 0..=bytes.len() {
        let whole = ends.iter().filter(|end| **end <= cut).count().saturating_sub(1);
        let (found, consumed) = sequences(&bytes[..cut]).unwrap();
        assert_eq!(found, (0..whole as u64).collect::<Vec<_>>(), "cut at {cut}");
        assert_eq!(consumed, if cut < LOG_MAGIC.len() { cut } else { ends[whole] });
    }
}

#[test]
fn a_flipped_bit_is_damage_at_its_record_wherever_it_is() {
    let mut bytes = LOG_MAGIC.to_vec();
    let mut starts = vec![0, bytes.len()];
    for sequence in 0..3 {
        put(sequence, &mut bytes);
        starts.push(bytes.len());
    }
    for byte in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[byte] ^= 1 << bit;
            let at = *starts.iter().rfind(|start| **start <= byte).unwrap();
            let refused = sequences(&damaged).expect_err("damage is said, never cut off");
            match refused {
                Unreadable::Damaged(damage) => assert_eq!(damage.offset, at, "bit {bit} of byte {byte}"),
                Unreadable::Format(format) => assert_eq!((byte, format), (7, damaged[7])),
            }
        }
    }
}

#[test]
fn a_flipped_bit_before_a_torn_tail_is_damage_too() {
    let mut bytes = LOG_MAGIC.to_vec();
    put(0, &mut bytes);
    let first = bytes.len();
    put(1, &mut bytes);
    for byte in 0..first {
        let mut damaged = bytes[..bytes.len() - 1].to_vec();
        damaged[byte] ^= 0x10;
        assert!(sequences(&damaged).is_err(), "byte {byte}");
    }
}

#[test]
fn another_format_is_told_from_damage() {
    assert_eq!(Records::new(b"rlog\0\0\0\x07").err(), Some(Unreadable::Format(7)));
    let damage = Damage { offset: 0, what: "it does not begin as a log does" };
    assert_eq!(Records::new(b"slog\0\0\0\x0d").err(), Some(Unreadable::Damaged(damage)));
}
