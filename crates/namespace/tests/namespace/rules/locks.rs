//! Locks of a slot: their owners, when they go, and which sessions are notified of what.

use ramlace_base::{ErrorKind, InodeId, SessionId, Slot, limits};
use ramlace_namespace::{AskedBy, Effect, Op, Reply};
use ramlace_wire::locks::{
    CancelLock, EndLockWait, GetLock, HeldLock, LOCK_END, LockKind, LockOutcome, LockOwner, LockTable,
    LockedFile, SetLock,
};
use ramlace_wire::namespace::Open;

use crate::rules::story::*;

fn lock(inode: InodeId, owner: u64, wait: u64) -> SetLock {
    let (table, kind) = (LockTable::Fcntl, Some(LockKind::Exclusive));
    let (start, end, number, waits) = (0, LOCK_END, wait, wait != 0);
    SetLock { inode, table, owner, kind, start, end, pid: 7, number, waits, settled_below: 0, detects: true }
}

fn unlock(inode: InodeId, owner: u64) -> SetLock {
    SetLock { kind: None, ..lock(inode, owner, 0) }
}

/// Cancels a request, unless its lock was granted.
fn keeping(inode: InodeId, number: u64) -> CancelLock {
    CancelLock { inode, number, take_back: false }
}

fn outcome(effects: &[Effect]) -> LockOutcome {
    match reply(effects).expect("answered at once").unwrap() {
        Reply::Locked(answer) => answer.outcome,
        other => panic!("{other:?}"),
    }
}

fn granted(effects: &[Effect]) -> Vec<(SessionId, u64)> {
    let granted = effects.iter().filter_map(|effect| match effect {
        Effect::LockGranted { session, wait, .. } => Some((*session, *wait)),
        _ => None,
    });
    granted.collect()
}

/// A request that does not wait gets a number of its own.
fn with_number(op: Op, sequence: u64) -> Op {
    match op {
        Op::SetLock(request) if request.number == 0 && request.kind.is_some() => {
            Op::SetLock(SetLock { number: 1_000_000 + sequence, ..request })
        }
        other => other,
    }
}

impl Story {
    /// The session that speaks from now on.
    fn as_session(&mut self, number: u8) -> &mut Story {
        self.session = session(number);
        self
    }

    fn change(&mut self, op: Op) -> Vec<Effect> {
        self.sequence += 1;
        let op = with_number(op, self.sequence);
        self.numbered(self.sequence, self.sequence, op)
    }

    fn set_lock(&mut self, request: SetLock) -> Vec<Effect> {
        self.change(Op::SetLock(request))
    }

    /// A file that sessions 1, 2 and 3 have open.
    fn shared_file(&mut self) -> InodeId {
        let file = self.create(InodeId::ROOT, "file");
        for number in [2, 3, 1] {
            self.as_session(number)
                .ask(Op::Open(Open { inode: file, read: true, write: true, run: false }))
                .unwrap();
        }
        file
    }
}

#[test]
fn a_lock_is_granted_to_the_one_that_waits_once() {
    let mut story = Story::new();
    let file = story.shared_file();
    assert_eq!(outcome(&story.set_lock(lock(file, 1, 0))), LockOutcome::Granted);
    assert_eq!(outcome(&story.as_session(2).set_lock(lock(file, 1, 0))), LockOutcome::Refused);
    assert_eq!(outcome(&story.set_lock(lock(file, 1, 9))), LockOutcome::Queued);
    assert_eq!(outcome(&story.set_lock(lock(file, 1, 9))), LockOutcome::Queued, "asked once more");
    assert_eq!(story.state.locks_awaited(), 1);
    let unlocked = story.as_session(1).set_lock(unlock(file, 1));
    assert_eq!((outcome(&unlocked), granted(&unlocked)), (LockOutcome::Granted, vec![(session(2), 9)]));
    // The event was lost: the same wait asks again and has its lock; no session is notified of it twice.
    let again = story.as_session(2).set_lock(lock(file, 1, 9));
    assert_eq!((outcome(&again), granted(&again)), (LockOutcome::Granted, vec![]));
    assert_eq!((story.state.locks_held(), story.state.locks_awaited()), (1, 0));
}

#[test]
fn a_repeated_unlock_has_one_effect() {
    let mut story = Story::new();
    let file = story.shared_file();
    story.set_lock(lock(file, 1, 0));
    let first = story.numbered(500, 1, Op::SetLock(unlock(file, 1)));
    story.numbered(501, 1, Op::SetLock(SetLock { number: 3, ..lock(file, 1, 0) }));
    assert_eq!(story.numbered(500, 1, Op::SetLock(unlock(file, 1))), first);
    assert_eq!(story.state.locks_held(), 1, "the later lock stands");
}

#[test]
fn closing_and_the_end_of_a_session_give_everything_back() {
    let mut story = Story::new();
    let file = story.shared_file();
    story.set_lock(lock(file, 1, 0));
    story.as_session(2).set_lock(lock(file, 1, 5));
    story.as_session(3).set_lock(lock(file, 1, 6));
    let closed = story.as_session(1).change(close(file));
    assert_eq!(granted(&closed), [(session(2), 5)]);
    // A waiter goes with its session too.
    story.server(Op::EndSession { session: session(3) });
    assert_eq!(story.state.locks_awaited(), 0);
    story.as_session(1).ask(Op::Open(Open { inode: file, read: true, write: true, run: false })).unwrap();
    story.set_lock(lock(file, 1, 8));
    let ended = story.server(Op::EndSession { session: session(2) });
    assert_eq!(granted(&ended), [(session(1), 8)]);
}

#[test]
fn a_wait_that_is_cancelled_is_over_or_a_lock() {
    let mut story = Story::new();
    let file = story.shared_file();
    story.set_lock(lock(file, 1, 0));
    story.as_session(2).set_lock(lock(file, 1, 5));
    story.as_session(3).set_lock(SetLock { kind: Some(LockKind::Shared), ..lock(file, 1, 6) });
    let cancel = Op::CancelLock(keeping(file, 5));
    assert_eq!(outcome(&story.as_session(3).change(cancel.clone())), LockOutcome::Refused, "not its wait");
    assert_eq!(outcome(&story.as_session(2).change(cancel)), LockOutcome::Refused);
    let unlocked = story.as_session(1).set_lock(unlock(file, 1));
    assert_eq!(granted(&unlocked), [(session(3), 6)]);
    let late = story.as_session(3).change(Op::CancelLock(keeping(file, 6)));
    assert_eq!(outcome(&late), LockOutcome::Granted);
}

#[test]
fn a_wait_that_closes_a_cycle_is_ended_once() {
    let mut story = Story::new();
    let file = story.shared_file();
    story.set_lock(lock(file, 1, 0));
    story.as_session(2).set_lock(lock(file, 1, 5));
    let owner = |number| LockOwner { session: session(number), owner: 1 };
    let waits = story.state.lock_waits(&[owner(1), owner(2)]);
    assert_eq!(waits.len(), 1);
    assert_eq!((waits[0].owner, waits[0].wait, &waits[0].blockers[..]), (owner(2), 5, &[owner(1)][..]));
    let end = Op::EndLockWait(EndLockWait { inode: file, session: session(2), wait: 5 });
    assert_eq!(story.server(end.clone()), [Effect::LockWaitEnded { ended: true }]);
    assert_eq!(story.server(end), [Effect::LockWaitEnded { ended: false }]);
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let mut story = Story::new();
    let file = story.shared_file();
    let good = SetLock { number: 7, ..lock(file, 1, 0) };
    assert_eq!(story.refused(Op::SetLock(lock(file, 1, 0))), ErrorKind::Invalid, "without a number");
    for (start, end) in [(5, 5), (6, 5), (0, LOCK_END + 1), (u64::MAX, 0)] {
        assert_eq!(story.refused(Op::SetLock(SetLock { start, end, ..good })), ErrorKind::Invalid);
    }
    let part = SetLock { table: LockTable::Flock, start: 1, ..good };
    assert_eq!(story.refused(Op::SetLock(part)), ErrorKind::Invalid);
    let other = story.create(InodeId::ROOT, "other");
    story.ask(close(other)).unwrap();
    assert_eq!(story.refused(Op::SetLock(lock(other, 1, 0))), ErrorKind::BadHandle);
    let gone = InodeId::new(Slot(0), 1 << 40);
    assert_eq!(story.refused(Op::SetLock(lock(gone, 1, 0))), ErrorKind::Stale);
    story.ask(close(file)).unwrap();
    story.ask(Op::Open(Open { inode: file, read: true, write: false, run: false })).unwrap();
    assert_eq!(story.refused(Op::SetLock(good)), ErrorKind::BadHandle, "not open for writing");
    let flock = SetLock { table: LockTable::Flock, ..good };
    assert_eq!(outcome(&story.set_lock(flock)), LockOutcome::Granted);
    assert_eq!(story.state.locks_held(), 1);
}

#[test]
fn a_conflicting_lock_is_told_with_a_process_of_the_same_session_alone() {
    let mut story = Story::new();
    let file = story.shared_file();
    story.set_lock(SetLock { start: 10, end: 20, ..lock(file, 1, 0) });
    let ask = |story: &Story, number, owner, start| {
        let (table, kind) = (LockTable::Fcntl, LockKind::Shared);
        let request = GetLock { inode: file, table, owner, kind, start, end: start + 1 };
        let by = AskedBy { who: &ROOT_USER, session: session(number) };
        story.state.query(by, &request).unwrap().lock
    };
    let found = |pid| Some(HeldLock { kind: LockKind::Exclusive, start: 10, end: 20, pid });
    assert_eq!(ask(&story, 1, 2, 15), found(7));
    assert_eq!(ask(&story, 2, 1, 15), found(0));
    assert_eq!(ask(&story, 1, 1, 15), None);
    assert_eq!(ask(&story, 2, 1, 20), None);
    let (table, kind) = (LockTable::Fcntl, LockKind::Shared);
    let request = GetLock { inode: file, table, owner: 1, kind, start: 0, end: LOCK_END };
    let stranger = AskedBy { who: &ROOT_USER, session: session(9) };
    let refused = story.state.query(stranger, &request).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BadHandle, "who does not have it open sees no lock");
}

#[test]
fn a_grant_tells_what_the_file_is() {
    let mut story = Story::new();
    let file = story.shared_file();
    story.set_lock(lock(file, 1, 0));
    story.as_session(2).set_lock(lock(file, 1, 5));
    story.as_session(1).extend(file, 1, 4711).unwrap();
    let effects = story.set_lock(unlock(file, 1));
    let attributes = story.info(file).unwrap().attributes;
    let (size, generation, changed) = (4711, attributes.generation, attributes.changed);
    let told = LockedFile { size, generation, changed, may_change_unnoticed: false };
    assert!(effects.contains(&Effect::LockGranted { session: session(2), inode: file, wait: 5, file: told }));
}

#[test]
fn a_session_waits_for_so_many_locks_of_a_slot() {
    let mut story = Story::new();
    let most = limits::LOCK_WAITS_PER_SESSION_MAX;
    let each = limits::LOCK_WAITERS_PER_INODE_MAX as u64;
    let mut files = Vec::new();
    for number in 0..=most / each {
        let file = story.as_session(1).create(InodeId::ROOT, &format!("file-{number}"));
        story.set_lock(lock(file, 1, 0));
        story.as_session(2).ask(Op::Open(Open { inode: file, read: true, write: true, run: false })).unwrap();
        files.push(file);
    }
    for number in 0..most {
        let file = files[(number / each) as usize];
        assert_eq!(outcome(&story.set_lock(lock(file, number, number + 1))), LockOutcome::Queued);
    }
    let last = *files.last().unwrap();
    assert_eq!(story.refused(Op::SetLock(lock(last, 1, most + 1))), ErrorKind::TooManyLocks);
    assert_eq!(story.refused(Op::SetLock(lock(files[0], 1, most + 1))), ErrorKind::TooManyLocks);
    assert_eq!(outcome(&story.set_lock(lock(files[0], 0, 1))), LockOutcome::Queued, "it is one of them");
    assert_eq!(outcome(&story.set_lock(unlock(files[0], 0))), LockOutcome::Granted);
}

/// What a session holds of a file, seen by a third one.
fn kind_held(story: &Story, file: InodeId) -> Option<LockKind> {
    let (table, kind) = (LockTable::Fcntl, LockKind::Exclusive);
    let request = GetLock { inode: file, table, owner: 9, kind, start: 0, end: LOCK_END };
    let by = AskedBy { who: &ROOT_USER, session: session(3) };
    story.state.query(by, &request).unwrap().lock.map(|held| held.kind)
}

// SEMANTICS 69.4
#[test]
fn who_cancels_a_request_holds_what_it_held_before_whatever_became_of_it() {
    let shared = Some(LockKind::Shared);
    let mut story = Story::new();
    let file = story.shared_file();
    let back = |number| Op::CancelLock(CancelLock { take_back: true, ..keeping(file, number) });
    story.set_lock(SetLock { kind: shared, ..lock(file, 1, 0) });
    // It never came, or was cancelled before.
    for take_back in [false, true] {
        let cancel = Op::CancelLock(CancelLock { take_back, ..keeping(file, 5) });
        assert_eq!(outcome(&story.change(cancel)), LockOutcome::Refused);
        assert_eq!(kind_held(&story, file), shared);
    }
    // It was granted at once, and the answer was lost; it is asked about again.
    for _ in 0..2 {
        assert_eq!(outcome(&story.set_lock(lock(file, 1, 5))), LockOutcome::Granted);
    }
    assert_eq!(outcome(&story.change(Op::CancelLock(keeping(file, 5)))), LockOutcome::Granted);
    assert_eq!(kind_held(&story, file), Some(LockKind::Exclusive));
    assert_eq!(outcome(&story.change(back(5))), LockOutcome::Refused);
    assert_eq!(kind_held(&story, file), shared);
    assert_eq!(outcome(&story.change(back(5))), LockOutcome::Refused, "the same again");
    assert_eq!(kind_held(&story, file), shared);
    // It waited, and was granted by another's unlock.
    story.as_session(2).set_lock(SetLock { kind: shared, ..lock(file, 1, 0) });
    assert_eq!(outcome(&story.as_session(1).set_lock(lock(file, 1, 6))), LockOutcome::Queued);
    assert_eq!(granted(&story.as_session(2).set_lock(unlock(file, 1))), [(session(1), 6)]);
    // Who waits for what is taken back gets it.
    assert_eq!(outcome(&story.set_lock(SetLock { kind: shared, ..lock(file, 1, 7) })), LockOutcome::Queued);
    assert_eq!(granted(&story.as_session(1).change(back(6))), [(session(2), 7)]);
    assert_eq!(kind_held(&story, file), shared);
    // A search for deadlocks has ended it: there is no lock, whatever the session believes.
    assert_eq!(outcome(&story.set_lock(lock(file, 1, 8))), LockOutcome::Queued);
    story.server(Op::EndLockWait(EndLockWait { inode: file, session: session(1), wait: 8 }));
    assert_eq!(outcome(&story.change(Op::CancelLock(keeping(file, 8)))), LockOutcome::Refused);
    assert_eq!(kind_held(&story, file), shared);
}

// SEMANTICS 69.4
#[test]
fn what_a_session_knows_it_cannot_take_back() {
    let mut story = Story::new();
    let file = story.shared_file();
    let shared = SetLock { start: 0, end: 1, kind: Some(LockKind::Shared), ..lock(file, 2, 0) };
    assert_eq!(outcome(&story.set_lock(lock(file, 1, 5))), LockOutcome::Granted);
    let back = Op::CancelLock(CancelLock { take_back: true, ..keeping(file, 5) });
    // What another owner knows says nothing of this one.
    story.set_lock(SetLock { settled_below: 9, ..unlock(file, 2) });
    story.set_lock(SetLock { settled_below: 6, start: 7, end: 8, ..unlock(file, 1) });
    assert_eq!(outcome(&story.change(back)), LockOutcome::Refused);
    assert_eq!(kind_held(&story, file), Some(LockKind::Exclusive));
    story.set_lock(unlock(file, 1));
    // One that settles nothing has so many; others are not in its way.
    let mut number = 10;
    let mut ask = |story: &mut Story, of, settled_below| {
        number += 1;
        story.as_session(of).change(Op::SetLock(SetLock { number, settled_below, ..shared }))
    };
    for _ in 0..limits::LOCKS_PER_INODE_MAX / 2 + 2 {
        assert_eq!(outcome(&ask(&mut story, 1, 0)), LockOutcome::Granted);
    }
    let refused = reply(&ask(&mut story, 1, 0)).unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooManyLocks);
    assert_eq!(outcome(&ask(&mut story, 2, 0)), LockOutcome::Granted);
    assert_eq!(outcome(&ask(&mut story, 1, u64::MAX)), LockOutcome::Granted);
}

// SEMANTICS 69.4
#[test]
fn one_that_waits_for_long_does_not_keep_others_from_locking_again_and_again() {
    let mut story = Story::new();
    let file = story.shared_file();
    let part = |owner, start, number| SetLock { start, end: start + 1, ..lock(file, owner, number) };
    // The number of the owner that waits is never settled, nor is that of what the other one keeps.
    story.set_lock(part(1, 0, 1));
    assert_eq!(outcome(&story.set_lock(part(2, 0, 2))), LockOutcome::Queued);
    story.set_lock(part(3, 5, 3));
    for round in 0..2 * limits::LOCKS_PER_INODE_MAX as u64 {
        let number = 10 + round;
        let again = SetLock { waits: false, settled_below: 3, ..part(3, 6, number) };
        assert_eq!(outcome(&story.set_lock(again)), LockOutcome::Granted, "round {round}");
        story.set_lock(SetLock { start: 6, end: 7, ..unlock(file, 3) });
    }
}
