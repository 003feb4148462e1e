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
    /// Takes back the request with this place among all that were ever asked for.
    TakeBack {
        of: usize,
    },
    /// A session knows what became of its requests up to this place.
    Settle {
        session: u64,
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
        3 => (0..40usize).prop_map(|of| Act::TakeBack { of }),
        1 => (0..2u64, 0..40usize).prop_map(|(session, of)| Act::Settle { session, of }),
        1 => (0..2u64).prop_map(|of| Act::EndSession { of }),
    ]
}

/// What an owner has done with a byte, one after the other: the request's number, which is 0 where nothing can be taken back, and
/// what it held then.
type Story = Vec<(u64, Option<LockKind>)>;

/// Byte by byte: which owner holds what.
#[derive(Default)]
struct Model {
    bytes: Vec<BTreeMap<LockOwner, LockKind>>,
    stories: Vec<BTreeMap<LockOwner, Story>>,
    waiting: Vec<(u64, Lock)>,
}

impl Model {
    fn new() -> Model {
        let (bytes, stories) = (vec![BTreeMap::new(); BYTES as usize], vec![BTreeMap::new(); BYTES as usize]);
        Model { bytes, stories, waiting: Vec::new() }
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

    fn is_held_from(&self, wanted: &Lock, owner: LockOwner) -> bool {
        let mut bytes = wanted.start..wanted.end;
        let clashes = |kind: &LockKind| Model::clash(*kind, wanted.kind);
        wanted.owner != owner && bytes.any(|byte| self.bytes[byte as usize].get(&owner).is_some_and(clashes))
    }

    /// Whether the waiter at this place waits for an owner: for what it holds, behind a waiter that does, or for what the owner
    /// of such a waiter holds.
    fn waits_for(&self, at: usize, owner: LockOwner) -> bool {
        let mut waits = vec![false; self.waiting.len()];
        loop {
            let is_new = |at: &usize| {
                let wanted = &self.waiting[*at].1;
                let waits_too = |other: usize| {
                    let lock = &self.waiting[other].1;
                    self.is_held_from(wanted, lock.owner) || (other < *at && Model::wants_clash(lock, wanted))
                };
                !waits[*at]
                    && (self.is_held_from(wanted, owner)
                        || (0..waits.len()).any(|other| waits[other] && waits_too(other)))
            };
            let Some(new) = (0..waits.len()).find(is_new) else { return waits[at] };
            waits[new] = true;
        }
    }

    fn may_have(&self, wanted: &Lock, ahead: usize) -> bool {
        let behind = (0..ahead)
            .any(|at| Model::wants_clash(&self.waiting[at].1, wanted) && !self.waits_for(at, wanted.owner));
        !self.held_by_others(wanted) && !behind
    }

    fn set(&mut self, at: u64, owner: LockOwner, kind: Option<LockKind>) {
        match kind {
            Some(kind) => _ = self.bytes[at as usize].insert(owner, kind),
            None => _ = self.bytes[at as usize].remove(&owner),
        }
    }

    fn hold(&mut self, number: u64, lock: &Lock) {
        for at in lock.start..lock.end {
            self.set(at, lock.owner, Some(lock.kind));
            self.stories[at as usize].entry(lock.owner).or_default().push((number, Some(lock.kind)));
        }
    }

    fn unlock(&mut self, owner: LockOwner, start: u64, end: u64) {
        for at in start..end {
            self.set(at, owner, None);
            self.stories[at as usize].entry(owner).or_default().push((0, None));
        }
    }

    /// As if the request had never been granted; but what others hold stays theirs.
    fn take_back(&mut self, number: u64, lock: &Lock) {
        for at in lock.start..lock.end {
            let Some(story) = self.stories[at as usize].get_mut(&lock.owner) else { continue };
            let Some(place) = story.iter().position(|(other, _)| *other == number) else { continue };
            let was_last = place + 1 == story.len();
            let before = place.checked_sub(1).and_then(|before| story[before].1);
            let others = self.bytes[at as usize].keys().any(|owner| *owner != lock.owner);
            if was_last && before == Some(LockKind::Exclusive) && others {
                story[place].0 = 0;
                continue;
            }
            story.remove(place);
            if was_last {
                self.set(at, lock.owner, before);
            }
        }
    }

    /// Owners without a lock have nothing to take back.
    fn forget_idle(&mut self) {
        let holds = |owner: &LockOwner| self.bytes.iter().any(|byte| byte.contains_key(owner));
        let held: Vec<LockOwner> = (0..6).map(owner).filter(holds).collect();
        self.stories.iter_mut().for_each(|stories| stories.retain(|owner, _| held.contains(owner)));
    }

    fn grant(&mut self) -> Vec<u64> {
        let mut granted = Vec::new();
        while let Some(at) =
            (0..self.waiting.len()).find(|at| self.may_have(&self.waiting[*at].1.clone(), *at))
        {
            let (wait, lock) = self.waiting.remove(at);
            self.hold(wait, &lock);
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
    /// By session: numbers from this one on are not settled.
    unsettled: [u64; 2],
}

impl Run {
    fn ask(&mut self, lock: Lock, number: u64, waits: bool) {
        let waiting = self.model.waiting.iter().any(|(other, _)| *other == number);
        let free = self.model.may_have(&lock, self.model.waiting.len());
        let request = Waiter { lock, number, detects: true };
        let asked = self.locks.ask(LockTable::Fcntl, request, waits).unwrap();
        let expected = match () {
            () if waiting => Asked::Queued,
            () if free => {
                self.model.hold(number, &lock);
                Asked::Granted
            }
            () if !waits => Asked::Refused,
            () => {
                self.model.waiting.push((number, lock));
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
                self.ask(lock, self.asked.len() as u64, waits);
            }
            Act::Again { of } => {
                let wait = of as u64 + 1;
                if self.model.waiting.iter().any(|(other, _)| *other == wait) {
                    self.ask(self.asked[of], wait, true);
                }
            }
            Act::Unlock { owner: number, start, length } => {
                self.locks.unlock(LockTable::Fcntl, owner(number), start, start + length).unwrap();
                self.model.unlock(owner(number), start, start + length);
            }
            Act::TakeBack { of } => {
                let (number, Some(lock)) = (of as u64 + 1, self.asked.get(of)) else { return };
                if number >= self.unsettled[(lock.owner.session == owner(1).session) as usize] {
                    self.locks.take_back(lock.owner.session, number);
                    self.model.take_back(number, lock);
                }
            }
            Act::Settle { session, of } => {
                let (below, its) = (of.min(self.asked.len()) as u64 + 1, owner(session).session);
                let waits = |(number, lock): &(u64, Lock)| lock.owner.session == its && *number < below;
                if !self.model.waiting.iter().any(waits) {
                    let unsettled = &mut self.unsettled[session as usize];
                    *unsettled = below.max(*unsettled);
                    let owners = (0..6).map(owner).filter(|owner| owner.session == its);
                    owners.for_each(|owner| self.locks.settle(owner, *unsettled));
                }
            }
            Act::Cancel { of } => {
                let wait = of as u64 + 1;
                let Some(lock) = self.asked.get(of) else { return };
                let at = self.model.waiting.iter().position(|(other, _)| *other == wait);
                assert_eq!(self.locks.end_wait(lock.owner.session, wait), at.is_some());
                at.map(|at| self.model.waiting.remove(at));
            }
            Act::EndSession { of } => {
                let session = owner(of).session;
                self.locks.forget(session);
                self.model.waiting.retain(|(_, lock)| lock.owner.session != session);
                self.model.bytes.iter_mut().for_each(|byte| byte.retain(|owner, _| owner.session != session));
                let stories = &mut self.model.stories;
                stories.iter_mut().for_each(|byte| byte.retain(|owner, _| owner.session != session));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    // SEMANTICS 65.1, 69.4
    /// Owners, ranges, splits, joins, queues and grants are those of single bytes, and so is what is taken back.
    #[test]
    fn locks_are_those_of_single_bytes(acts in prop::collection::vec(acts(), 1..60)) {
        let mut run = Run {
            locks: FileLocks::default(),
            model: Model::new(),
            asked: Vec::new(),
            unsettled: [1; 2],
        };
        for act in acts {
            run.act(act);
            let granted: Vec<u64> = run.locks.grant_free().iter().map(|waiter| waiter.number).collect();
            prop_assert_eq!(granted, run.model.grant());
            run.locks.drop_idle_grants();
            run.model.forget_idle();
            prop_assert_eq!(bytes_of(&run.locks.fcntl), run.model.bytes.clone());
            let waiting: Vec<(u64, Lock)> =
                run.locks.fcntl.waiting.iter().map(|waiter| (waiter.number, waiter.lock)).collect();
            prop_assert_eq!(&waiting, &run.model.waiting);
            // Both searches find the same.
            let table = &run.locks.fcntl;
            for of in (0..6).map(owner) {
                let found: Vec<bool> = (0..waiting.len()).map(|at| table.waits_for(at, of)).collect();
                prop_assert_eq!(found, table.all_that_wait_for(of));
            }
            // A snapshot brings back what is held, and the queue.
            let bytes = postcard::to_stdvec(&run.locks).unwrap();
            prop_assert_eq!(postcard::from_bytes::<FileLocks>(&bytes).unwrap(), run.locks.clone());
        }
    }
}

/// Asks for a lock; a number of 0 does not wait. It is not taken back.
fn ask_for(locks: &mut FileLocks, table: LockTable, lock: Lock, wait: u64) -> Result<Asked> {
    let number = if wait == 0 { u64::MAX } else { wait };
    let asked = locks.ask(table, Waiter { lock, number, detects: true }, wait != 0);
    if wait == 0 {
        (1..=2).for_each(|number| {
            locks.tables_mut().into_iter().for_each(|table| {
                table.grants.retain(|grant| grant.lock.owner.session != SessionId([number; 16]));
            })
        });
    }
    asked
}

// SEMANTICS 66.1
#[test]
fn nobody_overtakes_an_earlier_one_and_a_writer_has_its_turn() {
    let mut locks = FileLocks::default();
    let ask = |locks: &mut FileLocks, number, kind, wait| {
        ask_for(locks, LockTable::Flock, lock(number, kind, 0, LOCK_END), wait).unwrap()
    };
    assert_eq!(ask(&mut locks, 0, LockKind::Shared, 0), Asked::Granted);
    assert_eq!(ask(&mut locks, 1, LockKind::Exclusive, 1), Asked::Queued);
    assert_eq!(ask(&mut locks, 2, LockKind::Shared, 2), Asked::Queued, "a reader behind the writer");
    assert_eq!(ask(&mut locks, 4, LockKind::Shared, 0), Asked::Refused);
    locks.unlock(LockTable::Flock, owner(0), 0, LOCK_END).unwrap();
    let granted: Vec<u64> = locks.grant_free().iter().map(|waiter| waiter.number).collect();
    assert_eq!(granted, [1]);
}

// SEMANTICS 66.2
#[test]
fn a_session_that_is_waited_for_does_not_wait_for_those_that_wait() {
    let mut locks = FileLocks::default();
    let mut ask = |number, kind, start, end, wait| {
        ask_for(&mut locks, LockTable::Fcntl, lock(number, kind, start, end), wait).unwrap()
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
        ask_for(&mut locks, LockTable::Flock, lock(number, kind, 0, LOCK_END), wait).unwrap()
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
        assert_eq!(ask_for(&mut locks, LockTable::Fcntl, lock, 0), Ok(Asked::Granted));
    }
    let one_more = lock(0, LockKind::Shared, 3 * most, 3 * most + 1);
    let before = locks.clone();
    let refused = ask_for(&mut locks, LockTable::Fcntl, one_more, 0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooManyLocks);
    // An exclusive lock within a shared one makes three of it, and so does a hole.
    let within = lock(0, LockKind::Exclusive, 0, 1);
    assert!(ask_for(&mut locks, LockTable::Fcntl, within, 0).is_err());
    assert_eq!(locks, before);
    locks.unlock(LockTable::Fcntl, owner(0), 0, 3 * most).unwrap();
    assert!(locks.is_empty());
}

// SEMANTICS 66.2
#[test]
fn nobody_waits_behind_one_that_waits_for_what_somebody_holds_who_waits_for_it() {
    let mut locks = FileLocks::default();
    let mut ask = |number, start, end, wait| {
        ask_for(&mut locks, LockTable::Fcntl, lock(number, LockKind::Exclusive, start, end), wait).unwrap()
    };
    assert_eq!(ask(0, 0, 1, 0), Asked::Granted);
    assert_eq!(ask(2, 20, 21, 0), Asked::Granted);
    assert_eq!(ask(4, 10, 21, 1), Asked::Queued, "the second has a byte of it");
    assert_eq!(ask(2, 0, 1, 2), Asked::Queued, "the first has it");
    assert_eq!(ask(1, 10, 11, 0), Asked::Refused, "for nobody of these waits for this one");
    assert_eq!(ask(0, 10, 11, 0), Asked::Granted, "the third waits for the second, which waits for this one");
}

// SEMANTICS 69.4
#[test]
fn a_lock_that_is_taken_back_leaves_what_its_owner_held_before() {
    let held = |locks: &FileLocks| {
        let held = locks.fcntl.held.iter();
        held.map(|lock| (lock.owner.owner, lock.kind, lock.start, lock.end)).collect::<Vec<_>>()
    };
    let ask = |locks: &mut FileLocks, of, kind, (start, end), number| {
        let request = Waiter { lock: lock(of, kind, start, end), number, detects: true };
        locks.ask(LockTable::Fcntl, request, true).unwrap()
    };
    use LockKind::{Exclusive, Shared};
    let mut locks = FileLocks::default();
    assert_eq!(ask(&mut locks, 0, Shared, (2, 6), 1), Asked::Granted);
    let before = held(&locks);
    assert_eq!(ask(&mut locks, 0, Exclusive, (0, 4), 2), Asked::Granted);
    locks.take_back(owner(0).session, 2);
    assert_eq!(held(&locks), before);
    // One that had to wait, of another session.
    assert_eq!(ask(&mut locks, 1, Exclusive, (0, 4), 2), Asked::Queued);
    locks.unlock(LockTable::Fcntl, owner(0), 0, LOCK_END).unwrap();
    assert_eq!(locks.grant_free().len(), 1);
    locks.take_back(owner(0).session, 2);
    assert_eq!(held(&locks), [(0, Exclusive, 0, 4)], "a number is its session's");
    locks.take_back(owner(1).session, 2);
    assert_eq!(held(&locks), []);
    // What others have got meanwhile is theirs.
    assert_eq!(ask(&mut locks, 0, Exclusive, (0, 10), 5), Asked::Granted);
    assert_eq!(ask(&mut locks, 0, Shared, (0, 10), 6), Asked::Granted);
    assert_eq!(ask(&mut locks, 1, Shared, (3, 4), 7), Asked::Granted);
    locks.take_back(owner(0).session, 6);
    let parts = [(0, Exclusive, 0, 3), (0, Shared, 3, 4), (0, Exclusive, 4, 10), (0, Shared, 3, 4)];
    assert_eq!(held(&locks), parts);
}
