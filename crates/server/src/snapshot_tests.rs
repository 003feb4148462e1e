//! A process may be killed between any two steps of a snapshot, whatever was committed meanwhile: after the
//! restart all of that is there, and no more files are read than necessary.

use super::*;
use crate::clock;
use crate::durable::tests::{State, commit_to_full, happen, load, random_happening, state};
use crate::framing::Records;
use crate::record::Place;
use crate::server::Server;
use crate::testing::{Client, Dice, TestServer, TestStore, run};

use ramlace_base::{InodeId, Name, SessionId, Timestamp};
use ramlace_wire::namespace::MakeDirectory;

fn stage(durable: &Durable) -> Option<Stage> {
    durable.snapshot.as_ref().map(|snapshot| snapshot.stage)
}

/// Begins a snapshot as it begins when the logs have become long.
fn begin(durable: &mut Durable, store: &mut Store) {
    durable.compact_at_bytes = 0;
    durable.tend_snapshot(store);
    assert!(durable.snapshot.is_some());
    durable.compact_at_bytes = u64::MAX;
}

#[test]
fn a_snapshot_may_be_killed_at_any_step_with_records_between_them() {
    for seed in 0..12 {
        let mut dice = Dice(100 + seed);
        let mut store = TestStore::new();
        let mut durable = load(&mut store);
        let (mut kills, mut finished, mut steps) = (0, 0, 0);
        for number in 0..1_000 {
            if durable.snapshot.is_none() && dice.roll(8) == 0 {
                begin(&mut durable, &mut store);
            }
            // With each record one step of the snapshot is done.
            let before = stage(&durable);
            happen(&mut dice, &mut durable, &mut store, number).unwrap();
            steps += u64::from(matches!(before, Some(Stage::Slots(_))));
            finished += u64::from(before == Some(Stage::Clean));
            for _ in 0..dice.roll(3) {
                durable.step_snapshot(&mut store).unwrap();
            }
            if dice.roll(10) == 0 {
                durable.compact(&mut store);
                assert!(stage(&durable).is_none());
            }
            if dice.roll(4) == 0 {
                let told = state(&durable);
                kills += u64::from(durable.snapshot.is_some());
                drop(durable);
                durable = load(&mut store);
                assert!(state(&durable) == told, "seed {seed}, after record {number}");
            }
            assert!(store.meta_names().unwrap().len() <= 12, "{:?}", store.meta_names());
        }
        durable.compact(&mut store);
        assert_eq!(store.meta_names().unwrap().len(), 2, "{:?}", store.meta_names());
        assert!(kills > 8 && finished > 5 && steps > 30, "{kills} kills, {finished} finished, {steps} steps");
    }
}

#[test]
fn every_step_of_one_snapshot_may_be_the_last_of_a_life() {
    let mut stages = std::collections::BTreeSet::new();
    for killed_at in 0.. {
        let mut dice = Dice(5);
        let mut store = TestStore::new();
        let mut durable = load(&mut store);
        for number in 0..150 {
            happen(&mut dice, &mut durable, &mut store, number).unwrap();
        }
        begin(&mut durable, &mut store);
        for number in 0..killed_at {
            durable.step_snapshot(&mut store).unwrap();
            random_happening(&mut dice, &durable, 200 + number).commit(&mut durable, &mut store).unwrap();
        }
        stages.insert(format!("{:?}", stage(&durable)).split('(').take(2).collect::<String>());
        let (told, is_over): (State, bool) = (state(&durable), durable.snapshot.is_none());
        drop(durable);
        for _ in 0..2 {
            assert!(state(&load(&mut store)) == told, "killed after {killed_at} steps");
        }
        if is_over {
            break;
        }
    }
    assert!(stages.len() >= 4, "{stages:?}");
}

#[test]
fn no_step_writes_more_than_its_part_and_no_record_more_than_a_piece() {
    let mut dice = Dice(3);
    let mut store = TestStore::new();
    let mut durable = load(&mut store);
    for number in 0..600 {
        happen(&mut dice, &mut durable, &mut store, number).unwrap();
    }
    let largest =
        durable.slots.values().map(|value| postcard::to_stdvec(value).unwrap().len()).max().unwrap();
    assert!(largest > 3 * PIECE_BYTES_MAX, "slots of {largest} bytes take pieces");
    begin(&mut durable, &mut store);
    let mut steps = 0;
    while matches!(stage(&durable), Some(Stage::Slots(_))) {
        let before = durable.snapshot.as_ref().unwrap().file.length();
        durable.step_snapshot(&mut store).unwrap();
        let written = durable.snapshot.as_ref().unwrap().file.length() - before;
        // Each piece has a header.
        assert!(written as usize <= STEP_BYTES + largest + largest / 10, "{written}");
        steps += 1;
    }
    assert!(steps > 1);
    durable.compact(&mut store);
    let bytes = store.meta_append_file(&format!("snapshot-{}", durable.base)).unwrap().read_all().unwrap();
    let (mut records, mut pieces) = (Records::new(&bytes).unwrap(), 0);
    while let Some((at, record)) = records.next().unwrap() {
        if let Record::SlotPiece { bytes, .. } = record {
            assert!(!bytes.is_empty() && bytes.len() <= PIECE_BYTES_MAX && at.place != Place::Server);
            pieces += 1;
        }
    }
    assert!(pieces > durable.slots.len() * 2);
}

#[test]
fn a_log_that_is_missing_between_others_is_refused() {
    let mut dice = Dice(9);
    let mut store = TestStore::new();
    let mut durable = load(&mut store);
    for number in 0..90 {
        happen(&mut dice, &mut durable, &mut store, number).unwrap();
        if number % 30 == 29 {
            durable.next_log(&mut store).unwrap();
        }
    }
    let told = state(&durable);
    drop(durable);
    assert!(state(&load(&mut store)) == told);
    let bytes = store.meta_append_file("log-1").unwrap().read_all().unwrap();
    let refused =
        |store: &mut Store| Durable::load(store, clock::instant()).err().expect("damage").to_string();
    let mut log = store.meta_append_file("log-1").unwrap();
    log.cut(bytes.len() as u64 - 1).unwrap();
    let text = refused(&mut store);
    assert!(text.contains("'log-1' is damaged") && text.contains("another log follows it"), "{text}");
    store.meta_remove("log-1").unwrap();
    let text = refused(&mut store);
    assert!(text.contains("'log-2' is damaged at byte 0: a log before it is missing"), "{text}");
}

#[test]
fn a_snapshot_for_which_a_full_store_has_no_room_is_abandoned_and_its_memory_is_there_for_records() {
    let mut dice = Dice(21);
    let mut store = TestStore::new();
    let mut durable = load(&mut store);
    for number in 0..400 {
        happen(&mut dice, &mut durable, &mut store, number).unwrap();
    }
    durable.compact(&mut store);
    begin(&mut durable, &mut store);
    while stage(&durable) != Some(Stage::Server) {
        durable.step_snapshot(&mut store).unwrap();
    }
    let free = store.usage().free_bytes;
    store.meta_append_file("filler").unwrap().append_urgent(&vec![1; free as usize]).unwrap();
    assert!(store.usage().free_bytes < durable.snapshot_bytes / 2);
    let (session, now) = (SessionId([77; 16]), Timestamp { nanos: 1 });
    commit_to_full(&mut durable, &mut store, &Record::SessionEnded { session, now }).unwrap();
    assert!(durable.snapshot.is_none());
    assert!(!store.meta_names().unwrap().contains(&SNAPSHOT_NEXT.to_owned()));
}

#[test]
fn a_snapshot_ends_also_where_no_records_come_any_more() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let looked =
            |server: &Server| (server.durable.borrow().snapshot.is_some(), server.durable.borrow().base);
        assert_eq!(server.look(looked).await, (false, 0));
        server.look(|server| server.durable.borrow_mut().compact_at_bytes = 0).await;
        let parent = InodeId::ROOT;
        let request = MakeDirectory { parent, name: Name::new("last").unwrap(), mode: 0o755.into() };
        client.change(1, 0, &request).await.unwrap();
        while server.look(looked).await != (false, 1) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    });
}
