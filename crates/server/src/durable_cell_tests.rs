//! A cell's change is its record and its store: the process may die in between.

use ramlace_base::{InodeId, LaneId, Sequence};
use ramlace_lanes::{CellStore, LaneChange, WriteId};

use super::tests::{load, opened};
use super::*;
use crate::testing::TestStore;

/// Of the file 7 in that slot.
const LANE: LaneId = LaneId { inode: InodeId(1 << 48 | 7), lane: 0 };
const SLOT: Slot = Slot(1);
const SESSION: SessionId = SessionId([1; 16]);
const SEQUENCE: Sequence = Sequence(5);

/// A store with a lane whose first page has its memory, and the state of a server that begins on it.
fn with_lane() -> (TestStore, Durable) {
    let mut store = TestStore::new();
    let durable = load(&mut store);
    store.create_lane(LANE).unwrap();
    store.prepare_write(LANE, 0, 64).unwrap();
    (store, durable)
}

/// Changes the cell at 16 from a value to 42.
fn change(store: &mut TestStore, durable: &mut Durable, before: u64) {
    let cell = CellStore { lane: LANE, offset: 16, before, after: 42 };
    let id = WriteId { session: SESSION, sequence: SEQUENCE, outstanding: 0 };
    for record in [opened(SESSION), Record::lane(SLOT, LaneChange::CellChanged { cell, id })] {
        durable.commit(store, &record, crate::clock::instant()).unwrap();
    }
}

fn cell(store: &mut Store) -> u64 {
    let mut bytes = [0; 8];
    store.read_staged(LANE, 16, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

// SEMANTICS 82.2
#[test]
fn a_cell_in_a_page_that_was_never_written_is_stored_by_the_next_life() {
    let (mut store, mut durable) = with_lane();
    change(&mut store, &mut durable, 0);
    drop(durable);
    // As it was before the store: the page has its memory, and a store that is opened anew does not know that.
    store.punch(LANE, 0, 4096).unwrap();
    store.prepare_write(LANE, 0, 64).unwrap();
    store.reopen();
    drop(load(&mut store));
    assert_eq!(cell(&mut store), 42);
}

// SEMANTICS 82.2
#[test]
fn a_cell_is_stored_once_whenever_the_process_dies() {
    // The cell's value when the process dies, whether the mark was written, and the value after the restart.
    for (left, marked, found) in [(41, false, 42), (42, false, 42), (7, false, 7), (41, true, 41)] {
        let (mut store, mut durable) = with_lane();
        store.write_staged(LANE, 16, &41u64.to_le_bytes()).unwrap();
        change(&mut store, &mut durable, 41);
        assert_eq!(cell(&mut store), 42, "it is stored with its record");
        if marked {
            let stored = Record::lane(SLOT, LaneChange::CellStored { lane: LANE });
            durable.commit(&mut store, &stored, crate::clock::instant()).unwrap();
        }
        drop(durable);
        store.write_staged(LANE, 16, &u64::to_le_bytes(left)).unwrap();
        for _ in 0..2 {
            let durable = load(&mut store);
            assert_eq!(cell(&mut store), found, "{left} was left, marked: {marked}");
            assert_eq!(
                durable.lanes(SLOT).unwrap().writes().cell_before(SESSION, SEQUENCE),
                Some(41),
                "the answer stays"
            );
        }
        let mut durable = load(&mut store);
        durable.compact(&mut store);
        drop(durable);
        assert_eq!(load(&mut store).lanes(SLOT).unwrap().writes().cell_before(SESSION, SEQUENCE), Some(41));
        assert_eq!(cell(&mut store), found, "a snapshot stores nothing");
    }
}
