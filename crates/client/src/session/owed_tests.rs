//! Pending messages to homes that acknowledge, refuse or do not answer.

use super::*;

/// A member's departure from a barrier in a slot.
fn leave(slot: u16, member: u32) -> Message {
    Message::LeaveBarrier(Slot(slot), LeaveBarrier { name: b"b".to_vec(), member, wait: 1 })
}

fn unlock(inode: InodeId, owner: u64) -> Message {
    let table = ramlace_wire::locks::LockTable::Fcntl;
    Message::Unlock(SetLock {
        inode,
        table,
        owner,
        kind: None,
        start: 0,
        end: u64::MAX,
        pid: 0,
        wait: 0,
        detects: false,
    })
}

fn inodes_of(slot: u16) -> [InodeId; 2] {
    [1, 2].map(|counter| InodeId::new(Slot(slot), counter))
}

/// The sending thread, with a clock of its own.
struct Teller {
    owed: Owed,
    began: Instant,
    millis: u64,
    silent: Vec<u16>,
    deaf: Vec<u16>,
    acknowledged: Vec<Message>,
    asked: usize,
}

impl Teller {
    fn new() -> Teller {
        let (silent, deaf, acknowledged) = Default::default();
        Teller {
            owed: Owed::default(),
            began: Instant::now(),
            millis: 0,
            silent,
            deaf,
            acknowledged,
            asked: 0,
        }
    }

    fn now(&self) -> Instant {
        self.began + Duration::from_millis(self.millis)
    }

    fn owe(&mut self, message: Message) -> Owes {
        let now = self.now();
        self.owed.owe(message, now)
    }

    fn wakes_after(&self) -> Option<u64> {
        self.owed.wake_at().map(|at| at.saturating_duration_since(self.began).as_millis() as u64)
    }

    /// One round at this time; returns the messages in the order in which they were acknowledged.
    fn round(&mut self, millis: u64) -> Vec<Message> {
        self.millis = millis;
        let (now, round, silent) = (self.now(), self.owed.begin_round(), self.silent.clone());
        let before = self.acknowledged.len();
        let is_silent = |home: Home| matches!(home, Home::Slot(slot) if silent.contains(&slot.0));
        while let Some(subject) = self.owed.take_up_next(round, now, is_silent) {
            let Home::Slot(slot) = subject.home() else { unreachable!() };
            let deaf = self.deaf.contains(&slot.0);
            while let Some(message) = self.owed.next_of(subject, Some(round)) {
                self.asked += 1;
                if deaf {
                    break;
                }
                self.acknowledged.push(message);
                self.owed.acknowledged(subject);
            }
            self.owed.put_down(subject, deaf, now);
        }
        self.acknowledged[before..].to_vec()
    }
}

#[test]
fn what_is_owed_within_a_second_goes_in_one_round_and_homes_take_turns() {
    let mut teller = Teller::new();
    assert_eq!(teller.owe(leave(1, 0)), Owes::Sooner);
    teller.millis = 900;
    let [first, second] = inodes_of(1);
    for message in [unlock(first, 1), leave(2, 0), unlock(second, 1), unlock(first, 2)] {
        assert_eq!(teller.owe(message), Owes::Later, "the round is there already");
    }
    assert_eq!(teller.round(999), []);
    assert_eq!((teller.wakes_after(), teller.owed.count()), (Some(1_000), 5));
    let expected = [leave(1, 0), leave(2, 0), unlock(first, 1), unlock(first, 2), unlock(second, 1)];
    assert_eq!(teller.round(1_000), expected);
    assert_eq!((teller.wakes_after(), teller.owed.count()), (None, 0), "nothing is left of it");
    assert!(teller.owed.homes.is_empty() && teller.owed.strands.is_empty() && teller.owed.order.is_empty());
}

#[test]
fn a_home_that_does_not_hear_is_asked_ever_less_and_keeps_no_other_waiting() {
    let mut teller = Teller::new();
    let [first, second] = inodes_of(1);
    for message in [unlock(first, 1), unlock(first, 2), unlock(second, 1), leave(2, 0)] {
        teller.owe(message);
    }
    teller.deaf = vec![1];
    assert_eq!(teller.round(1_000), [leave(2, 0)]);
    assert_eq!((teller.asked, teller.owed.count()), (2, 3), "one request tells that it does not answer");
    let mut pauses = Vec::new();
    while pauses.len() < 4 {
        let at = teller.wakes_after().unwrap();
        pauses.push(at - teller.millis);
        assert_eq!(teller.round(at), []);
    }
    assert_eq!(pauses, [1_000, 2_000, 2_500, 2_500]);
    teller.deaf.clear();
    let at = teller.wakes_after().unwrap();
    let of_first = |message: &&Message| message.subject() == Subject::Locks(first);
    let acknowledged = teller.round(at);
    assert_eq!(
        acknowledged.iter().filter(of_first).cloned().collect::<Vec<_>>(),
        [unlock(first, 1), unlock(first, 2)]
    );
    assert_eq!((acknowledged.len(), teller.owed.count()), (3, 0));
    teller.owe(unlock(first, 3));
    assert_eq!(teller.wakes_after(), Some(at + 1_000), "what it did not hear once is forgotten");
}

#[test]
fn a_silent_home_costs_no_wake_until_servers_have_shown_signs_of_life() {
    let mut teller = Teller::new();
    teller.owe(leave(1, 0));
    teller.silent = vec![1];
    assert_eq!(teller.round(1_000), []);
    assert_eq!((teller.asked, teller.wakes_after()), (0, None));
    teller.owe(leave(1, 1));
    assert_eq!(teller.wakes_after(), None);
    teller.millis = 2_500;
    teller.owed.note_signs_of_life(teller.now());
    assert_eq!(teller.round(2_500), [], "not that one");
    teller.silent.clear();
    teller.millis = 5_000;
    teller.owed.note_signs_of_life(teller.now());
    assert_eq!(teller.round(5_000), [leave(1, 0), leave(1, 1)]);
}

#[test]
fn one_thread_tells_a_subject_and_what_comes_meanwhile_is_of_the_next_round() {
    let mut teller = Teller::new();
    let [first, second] = inodes_of(1);
    let (mine, other) = (Subject::Locks(first), Subject::Locks(second));
    assert_eq!(teller.owed.take_up(mine), TakenUp::Nothing);
    teller.owe(unlock(first, 1));
    teller.owe(unlock(second, 1));
    assert_eq!(teller.owed.take_up(mine), TakenUp::ByCaller);
    assert_eq!(teller.owed.take_up(mine), TakenUp::ByAnother);
    assert_eq!(teller.round(1_000), [unlock(second, 1)], "nobody waits for another subject");
    assert_eq!(teller.owed.take_up(other), TakenUp::Nothing);
    teller.owed.acknowledged(mine);
    teller.owe(unlock(first, 2));
    assert_eq!(
        teller.owed.next_of(mine, None),
        Some(unlock(first, 2)),
        "whoever says something new tells it all"
    );
    let now = teller.now();
    teller.owed.put_down(mine, false, now);
    let round = teller.owed.begin_round();
    teller.owe(unlock(first, 3));
    let later = now + Duration::from_secs(2);
    assert_eq!(teller.owed.take_up_next(round, later, |_| false), Some(mine));
    assert_eq!(teller.owed.next_of(mine, Some(round)), Some(unlock(first, 2)));
    teller.owed.acknowledged(mine);
    assert_eq!(teller.owed.next_of(mine, Some(round)), None);
    teller.owed.put_down(mine, false, later);
    assert_eq!(teller.owed.take_up_next(round, later, |_| false), None, "it has had its turn");
    assert!(teller.owed.wake_at() > Some(later));
}

#[test]
fn what_is_beyond_the_limit_is_refused_and_changes_nothing() {
    let mut teller = Teller::new();
    for member in 0..LEAVES_MAX as u32 {
        assert_ne!(teller.owe(leave(1, member)), Owes::TooMuch);
    }
    assert_eq!(teller.owe(leave(1, 5_000)), Owes::TooMuch);
    assert_eq!(teller.owe(leave(2, 0)), Owes::Later, "each subject has its own");
    assert_eq!(teller.owed.count(), LEAVES_MAX + 1);
    let acknowledged = teller.round(1_000);
    assert!(!acknowledged.contains(&leave(1, 5_000)));
    assert_eq!((acknowledged.len(), teller.owed.count()), (LEAVES_MAX + 1, 0));
}

#[test]
fn a_sign_that_waits_is_as_good_as_two_and_one_that_is_being_told_is_none() {
    let mut teller = Teller::new();
    let [inode, _] = inodes_of(1);
    teller.owe(Message::Close(inode));
    teller.owe(Message::Close(inode));
    assert_eq!(teller.owed.count(), 1);
    let subject = Subject::Open(inode);
    assert_eq!(teller.owed.take_up(subject), TakenUp::ByCaller);
    for _ in 0..3 {
        assert_eq!(teller.owe(Message::Close(inode)), Owes::Later);
        assert_eq!(teller.owed.count(), 2, "what it says may be newer than what is being told");
    }
    teller.owed.acknowledged(subject);
    teller.owed.put_down(subject, false, teller.began);
    assert_eq!(teller.round(1_000), [Message::Close(inode)]);
}
