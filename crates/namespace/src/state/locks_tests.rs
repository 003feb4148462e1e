//! The table of locks against a model that knows single bytes and nothing else.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const BYTES: u64 = 12;

fn owner(number: u64) -> LockOwner {
    // Two sessions, in which the same numbers are other owners.
    LockOwner { session: SessionId([(number % 2) as u8 + 1; 16]), owner: number / 2 }
}

fn lock(number: u64, kind: LockKind, start: u64, end: u64) -> Lock {
    Lock { owner: owner(number), kind, start, end, pid: number as u32 }
}

/// What a client may do.
#[derive(Clone, Copy, Debug)]
enum Act {
    Ask {
        owner: u64,
        exclusive: bool,
        start: u64,
        length: u64,
        waits: bool,
    },
    Unlock {
        owner: u64,
        start: u64,
        length: u64,
    },
    /// Cancels the wait with this place among all that were ever asked for.
    Cancel {
        of: usize,
    },
    /// Asks once more what has become of a wait.
    Again {
        of: usize,
    },
    EndSession {
        of: u64,
    },
}

fn acts() -> impl Strategy<Value = Act> {
    let range = (0..BYTES).prop_flat_map(|start| (Just(start), 1..=BYTES - start));
    prop_oneof![
        6 => (0..6u64, any::<bool>(), range.clone(), any::<bool>()).prop_map(
            |(owner, exclusive, (start, length), waits)| Act::Ask { owner, exclusive, start, length, waits }
        ),
        4 => (0..6u64, range).prop_map(|(owner, (start, length))| Act::Unlock { owner, start, length }),
        1 => (0..40usize).prop_map(|of| Act::Cancel { of }),
        1 => (0..40usize).prop_map(|of| Act::Again { of }),
        1 => (0..2u64).prop_map(|of| Act::EndSession { of }),
    ]
}

/// Byte by byte: which owner holds what.
#[derive(Default)]
struct Model {
    bytes: Vec<BTreeMap<LockOwner, LockKind>>,
    waiting: Vec<(u64, Lock)>,
}

impl Model {
    fn new() -> Model {
        Model { bytes: vec![BTreeMap::new(); BYTES as usize], waiting: Vec::new() }
    }

    fn clash(a: LockKind, b: LockKind) -> bool {
        a == LockKind::Exclusive || b == LockKind::Exclusive
    }

    fn held_by_others(&self, wanted: &Lock) -> bool {
        (wanted.start..wanted.end).any(|at| {
            self.bytes[at as usize]
                .iter()
                .any(|(owner, kind)| *owner != wanted.owner && Model::clash(*kind, wanted.kind))
        })
    }

    fn wants_clash(a: &Lock, b: &Lock) -> bool {
        let both = |at: &u64| (b.start..b.end).contains(at);
        a.owner != b.owner && (a.start..a.end).any(|at| both(&at)) && Model::clash(a.kind, b.kind)
    }

    /// Whether the waiter at this place waits for what `owner` holds, or for another that does.
    fn waits_for(&self, at: usize, owner: LockOwner) -> bool {
        let wanted = &self.waiting[at].1;
        let direct = wanted.owner != owner
            && (wanted.start..wanted.end).any(|byte| {
                let kind = self.bytes[byte as usize].get(&owner);
                kind.is_some_and(|kind| Model::clash(*kind, wanted.kind))
            });
        direct
            || (0..at).any(|earlier| {
                self.waits_for(earlier, owner) && Model::wants_clash(&self.waiting[earlier].1, wanted)
            })
    }

    fn may_have(&self, wanted: &Lock, ahead: usize) -> bool {
        let behind = (0..ahead)
            .any(|at| Model::wants_clash(&self.waiting[at].1, wanted) && !self.waits_for(at, wanted.owner));
        !self.held_by_others(wanted) && !behind
    }

    fn hold(&mut self, lock: &Lock) {
        (lock.start..lock.end).for_each(|at| _ = self.bytes[at as usize].insert(lock.owner, lock.kind));
    }

    fn grant(&mut self) -> Vec<u64> {
        let mut granted = Vec::new();
        while let Some(at) =
            (0..self.waiting.len()).find(|at| self.may_have(&self.waiting[*at].1.clone(), *at))
        {
            let (wait, lock) = self.waiting.remove(at);
            self.hold(&lock);
            granted.push(wait);
        }
        granted
    }
}

/// What the table holds, byte by byte; it is as short as it can be.
fn bytes_of(table: &Table) -> Vec<BTreeMap<LockOwner, LockKind>> {
    let mut bytes = vec![BTreeMap::new(); BYTES as usize];
    for lock in &table.held {
        for at in lock.start..lock.end {
            let before = bytes[at as usize].insert(lock.owner, lock.kind);
            assert_eq!(before, None, "two locks of one owner overlap: {:?}", table.held);
        }
    }
    for pair in table.held.windows(2) {
        let joined =
            pair[0].owner == pair[1].owner && pair[0].kind == pair[1].kind && pair[0].end == pair[1].start;
        assert!(!joined, "two locks should be one: {pair:?}");
    }
    bytes
}

struct Run {
    locks: FileLocks,
    model: Model,
    asked: Vec<Lock>,
}

impl Run {
    fn ask(&mut self, lock: Lock, wait: u64) {
        let waiting = self.model.waiting.iter().any(|(other, _)| *other == wait && wait != 0);
        let free = self.model.may_have(&lock, self.model.waiting.len());
        let asked = self.locks.ask(LockTable::Fcntl, lock, wait, true).unwrap();
        let expected = match () {
            () if waiting => Asked::Queued,
            () if free => {
                self.model.hold(&lock);
                Asked::Granted
            }
            () if wait == 0 => Asked::Refused,
            () => {
                self.model.waiting.push((wait, lock));
                Asked::Queued
            }
        };
        assert_eq!(asked, expected, "{lock:?}");
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Ask { owner, exclusive, start, length, waits } => {
                let kind = if exclusive { LockKind::Exclusive } else { LockKind::Shared };
                let lock = lock(owner, kind, start, start + length);
                self.asked.push(lock);
                self.ask(lock, if waits { self.asked.len() as u64 } else { 0 });
            }
            Act::Again { of } => {
                let wait = of as u64 + 1;
                if self.model.waiting.iter().any(|(other, _)| *other == wait) {
                    self.ask(self.asked[of], wait);
                }
            }
            Act::Unlock { owner: number, start, length } => {
                self.locks.unlock(LockTable::Fcntl, owner(number), start, start + length).unwrap();
                for at in start..start + length {
                    self.model.bytes[at as usize].remove(&owner(number));
                }
            }
            Act::Cancel { of } => {
                let wait = of as u64 + 1;
                let Some(lock) = self.asked.get(of) else { return };
                let at = self.model.waiting.iter().position(|(other, _)| *other == wait);
                assert_eq!(self.locks.cancel(lock.owner.session, wait), at.is_some());
                at.map(|at| self.model.waiting.remove(at));
            }
            Act::EndSession { of } => {
                let session = owner(of).session;
                self.locks.forget(session);
                self.model.waiting.retain(|(_, lock)| lock.owner.session != session);
                for byte in &mut self.model.bytes {
                    byte.retain(|owner, _| owner.session != session);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    // SEMANTICS 65.1
    /// Owners, ranges, splits, joins, queues and grants are those of single bytes.
    #[test]
    fn locks_are_those_of_single_bytes(acts in prop::collection::vec(acts(), 1..60)) {
        let mut run = Run { locks: FileLocks::default(), model: Model::new(), asked: Vec::new() };
        for act in acts {
            run.act(act);
            let granted: Vec<u64> = run.locks.grant_free().iter().map(|waiter| waiter.wait).collect();
            prop_assert_eq!(granted, run.model.grant());
            prop_assert_eq!(bytes_of(&run.locks.fcntl), run.model.bytes.clone());
            let waiting: Vec<(u64, Lock)> =
                run.locks.fcntl.waiting.iter().map(|waiter| (waiter.wait, waiter.lock)).collect();
            prop_assert_eq!(&waiting, &run.model.waiting);
            // A snapshot brings back what is held, and the queue.
            let bytes = postcard::to_stdvec(&run.locks).unwrap();
            prop_assert_eq!(postcard::from_bytes::<FileLocks>(&bytes).unwrap(), run.locks.clone());
        }
    }
}

// SEMANTICS 66.1
#[test]
fn nobody_overtakes_an_earlier_one_and_a_writer_has_its_turn() {
    let mut locks = FileLocks::default();
    let ask = |locks: &mut FileLocks, number, kind, wait| {
        locks.ask(LockTable::Flock, lock(number, kind, 0, LOCK_END), wait, false).unwrap()
    };
    assert_eq!(ask(&mut locks, 0, LockKind::Shared, 0), Asked::Granted);
    assert_eq!(ask(&mut locks, 1, LockKind::Exclusive, 1), Asked::Queued);
    assert_eq!(ask(&mut locks, 2, LockKind::Shared, 2), Asked::Queued, "a reader behind the writer");
    assert_eq!(ask(&mut locks, 4, LockKind::Shared, 0), Asked::Refused);
    locks.unlock(LockTable::Flock, owner(0), 0, LOCK_END).unwrap();
    let granted: Vec<u64> = locks.grant_free().iter().map(|waiter| waiter.wait).collect();
    assert_eq!(granted, [1]);
}

// SEMANTICS 66.2
#[test]
fn a_session_that_is_waited_for_does_not_wait_for_those_that_wait() {
    let mut locks = FileLocks::default();
    let mut ask = |number, kind, start, end, wait| {
        locks.ask(LockTable::Fcntl, lock(number, kind, start, end), wait, true).unwrap()
    };
    assert_eq!(ask(0, LockKind::Exclusive, 0, 10, 0), Asked::Granted);
    assert_eq!(ask(1, LockKind::Exclusive, 0, 20, 1), Asked::Queued);
    assert_eq!(ask(2, LockKind::Exclusive, 15, 20, 2), Asked::Queued);
    assert_eq!(ask(4, LockKind::Exclusive, 16, 17, 0), Asked::Refused);
    assert_eq!(ask(0, LockKind::Exclusive, 16, 17, 0), Asked::Granted, "all of them wait for the first");
}

#[test]
fn two_shared_flocks_that_want_more_do_not_wait_for_each_other() {
    let mut locks = FileLocks::default();
    let mut ask = |number, kind, wait| {
        locks.ask(LockTable::Flock, lock(number, kind, 0, LOCK_END), wait, false).unwrap()
    };
    assert_eq!(ask(0, LockKind::Shared, 0), Asked::Granted);
    assert_eq!(ask(2, LockKind::Shared, 0), Asked::Granted);
    assert_eq!(ask(0, LockKind::Exclusive, 0), Asked::Refused);
    assert_eq!(ask(0, LockKind::Exclusive, 1), Asked::Queued);
    assert_eq!(ask(2, LockKind::Exclusive, 2), Asked::Granted, "the first has let go of its own");
}

// SEMANTICS 74
#[test]
fn a_file_has_room_for_so_many_locks() {
    let mut locks = FileLocks::default();
    let most = limits::LOCKS_PER_INODE_MAX as u64;
    for number in 0..most {
        let lock = lock(0, LockKind::Shared, 3 * number, 3 * number + 2);
        assert_eq!(locks.ask(LockTable::Fcntl, lock, 0, false), Ok(Asked::Granted));
    }
    let one_more = lock(0, LockKind::Shared, 3 * most, 3 * most + 1);
    let before = locks.clone();
    let refused = locks.ask(LockTable::Fcntl, one_more, 0, false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooManyLocks);
    // An exclusive lock within a shared one makes three of it, and so does a hole.
    let within = lock(0, LockKind::Exclusive, 0, 1);
    assert!(locks.ask(LockTable::Fcntl, within, 0, false).is_err());
    assert_eq!(locks, before);
    locks.unlock(LockTable::Fcntl, owner(0), 0, 3 * most).unwrap();
    assert!(locks.is_empty());
}
