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
        number: 0,
        waits: false,
        settled_below: 0,
        detects: false,
    })
}

fn inodes_of(slot: u16) -> [InodeId; 2] {
    [1, 2].map(|counter| InodeId::new(Slot(slot), counter))
}

/// The sending thread, with a clock of its own.
struct Sender {
    pending: PendingMessages,
    began: Instant,
    millis: u64,
    silent: Vec<u16>,
    deaf: Vec<u16>,
    acknowledged: Vec<Message>,
    asked: usize,
}

impl Sender {
    fn new() -> Sender {
        let (silent, deaf, acknowledged) = Default::default();
        Sender {
            pending: PendingMessages::default(),
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

    fn add(&mut self, message: Message) -> Added {
        let now = self.now();
        self.pending.add(message, now)
    }

    fn wakes_after(&self) -> Option<u64> {
        self.pending.wake_at().map(|at| at.saturating_duration_since(self.began).as_millis() as u64)
    }

    /// One round at this time; returns the messages in the order in which they were acknowledged.
    fn round(&mut self, millis: u64) -> Vec<Message> {
        self.millis = millis;
        let (now, round, silent) = (self.now(), self.pending.begin_round(), self.silent.clone());
        let before = self.acknowledged.len();
        let is_silent = |home: Home| matches!(home, Home::Slot(slot) if silent.contains(&slot.0));
        while let Some(subject) = self.pending.take_up_next(round, now, is_silent) {
            let Home::Slot(slot) = subject.home() else { unreachable!() };
            let deaf = self.deaf.contains(&slot.0);
            while let Some(message) = self.pending.next_of(subject, Some(round)) {
                self.asked += 1;
                if deaf {
                    break;
                }
                self.acknowledged.push(message);
                self.pending.acknowledged(subject);
            }
            self.pending.put_down(subject, deaf, now);
        }
        self.acknowledged[before..].to_vec()
    }
}

#[test]
fn what_is_added_within_a_second_goes_in_one_round_and_homes_take_turns() {
    let mut sender = Sender::new();
    assert_eq!(sender.add(leave(1, 0)), Added::Sooner);
    sender.millis = 900;
    let [first, second] = inodes_of(1);
    for message in [unlock(first, 1), leave(2, 0), unlock(second, 1), unlock(first, 2)] {
        assert_eq!(sender.add(message), Added::Later, "the round is there already");
    }
    assert_eq!(sender.round(999), []);
    assert_eq!((sender.wakes_after(), sender.pending.count()), (Some(1_000), 5));
    let expected = [leave(1, 0), leave(2, 0), unlock(first, 1), unlock(first, 2), unlock(second, 1)];
    assert_eq!(sender.round(1_000), expected);
    assert_eq!((sender.wakes_after(), sender.pending.count()), (None, 0), "nothing is left of it");
    assert!(
        sender.pending.homes.is_empty()
            && sender.pending.strands.is_empty()
            && sender.pending.order.is_empty()
    );
}

#[test]
fn a_home_that_does_not_hear_is_asked_ever_less_and_keeps_no_other_waiting() {
    let mut sender = Sender::new();
    let [first, second] = inodes_of(1);
    for message in [unlock(first, 1), unlock(first, 2), unlock(second, 1), leave(2, 0)] {
        sender.add(message);
    }
    sender.deaf = vec![1];
    assert_eq!(sender.round(1_000), [leave(2, 0)]);
    assert_eq!((sender.asked, sender.pending.count()), (2, 3), "one request tells that it does not answer");
    let mut pauses = Vec::new();
    while pauses.len() < 4 {
        let at = sender.wakes_after().unwrap();
        pauses.push(at - sender.millis);
        assert_eq!(sender.round(at), []);
    }
    assert_eq!(pauses, [1_000, 2_000, 2_500, 2_500]);
    sender.deaf.clear();
    let at = sender.wakes_after().unwrap();
    let of_first = |message: &&Message| message.subject() == Subject::Locks(first);
    let acknowledged = sender.round(at);
    assert_eq!(
        acknowledged.iter().filter(of_first).cloned().collect::<Vec<_>>(),
        [unlock(first, 1), unlock(first, 2)]
    );
    assert_eq!((acknowledged.len(), sender.pending.count()), (3, 0));
    sender.add(unlock(first, 3));
    assert_eq!(sender.wakes_after(), Some(at + 1_000), "what it did not hear once is forgotten");
}

#[test]
fn a_silent_home_costs_no_wake_until_servers_have_shown_signs_of_life() {
    let mut sender = Sender::new();
    sender.add(leave(1, 0));
    sender.silent = vec![1];
    assert_eq!(sender.round(1_000), []);
    assert_eq!((sender.asked, sender.wakes_after()), (0, None));
    sender.add(leave(1, 1));
    assert_eq!(sender.wakes_after(), None);
    sender.millis = 2_500;
    sender.pending.note_signs_of_life(sender.now());
    assert_eq!(sender.round(2_500), [], "not that one");
    sender.silent.clear();
    sender.millis = 5_000;
    sender.pending.note_signs_of_life(sender.now());
    assert_eq!(sender.round(5_000), [leave(1, 0), leave(1, 1)]);
}

#[test]
fn one_thread_tells_a_subject_and_what_comes_meanwhile_is_of_the_next_round() {
    let mut sender = Sender::new();
    let [first, second] = inodes_of(1);
    let (mine, other) = (Subject::Locks(first), Subject::Locks(second));
    assert_eq!(sender.pending.take_up(mine), TakenUp::Nothing);
    sender.add(unlock(first, 1));
    sender.add(unlock(second, 1));
    assert_eq!(sender.pending.take_up(mine), TakenUp::ByCaller);
    assert_eq!(sender.pending.take_up(mine), TakenUp::ByAnother);
    assert_eq!(sender.round(1_000), [unlock(second, 1)], "nobody waits for another subject");
    assert_eq!(sender.pending.take_up(other), TakenUp::Nothing);
    sender.pending.acknowledged(mine);
    sender.add(unlock(first, 2));
    assert_eq!(
        sender.pending.next_of(mine, None),
        Some(unlock(first, 2)),
        "whoever says something new tells it all"
    );
    let now = sender.now();
    sender.pending.put_down(mine, false, now);
    let round = sender.pending.begin_round();
    sender.add(unlock(first, 3));
    let later = now + Duration::from_secs(2);
    assert_eq!(sender.pending.take_up_next(round, later, |_| false), Some(mine));
    assert_eq!(sender.pending.next_of(mine, Some(round)), Some(unlock(first, 2)));
    sender.pending.acknowledged(mine);
    assert_eq!(sender.pending.next_of(mine, Some(round)), None);
    sender.pending.put_down(mine, false, later);
    assert_eq!(sender.pending.take_up_next(round, later, |_| false), None, "it has had its turn");
    assert!(sender.pending.wake_at() > Some(later));
}

#[test]
fn what_is_beyond_the_limit_is_refused_and_changes_nothing() {
    let mut sender = Sender::new();
    for member in 0..LEAVES_MAX as u32 {
        assert_ne!(sender.add(leave(1, member)), Added::TooMuch);
    }
    assert_eq!(sender.add(leave(1, 5_000)), Added::TooMuch);
    assert_eq!(sender.add(leave(2, 0)), Added::Later, "each subject has its own");
    assert_eq!(sender.pending.count(), LEAVES_MAX + 1);
    let acknowledged = sender.round(1_000);
    assert!(!acknowledged.contains(&leave(1, 5_000)));
    assert_eq!((acknowledged.len(), sender.pending.count()), (LEAVES_MAX + 1, 0));
}

#[test]
fn a_sign_that_waits_is_as_good_as_two_and_one_that_is_being_told_is_none() {
    let mut sender = Sender::new();
    let [inode, _] = inodes_of(1);
    sender.add(Message::Close(inode));
    sender.add(Message::Close(inode));
    assert_eq!(sender.pending.count(), 1);
    let subject = Subject::Open(inode);
    assert_eq!(sender.pending.take_up(subject), TakenUp::ByCaller);
    for _ in 0..3 {
        assert_eq!(sender.add(Message::Close(inode)), Added::Later);
        assert_eq!(sender.pending.count(), 2, "what it says may be newer than what is being told");
    }
    sender.pending.acknowledged(subject);
    sender.pending.put_down(subject, false, sender.began);
    assert_eq!(sender.round(1_000), [Message::Close(inode)]);
}
