//! What several threads do at once. Each scene is one run; its caller has shuttle choose the order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ramlace_base::{
    Epoch, Error, ErrorKind, Generation, InodeId, Sequence, ServerId, Slot, Timestamp, limits,
};
use ramlace_wire::leases::{EndRecalls, LeasesRenewed};
use ramlace_wire::locks::{LockKind, LockTable, LockedFile, SetLock};
use ramlace_wire::namespace::{EntryLeased, InodeInfo, Opened};
use ramlace_wire::{Attributes, FileAttributes, FileKind, LayoutHints};
use shuttle::thread;

use crate::Mutex;
use crate::bytes::givers::Givers;
use crate::coordination::waits::{Asked, Waits};
use crate::names::gates::{Inodes, OpenAnswer};
use crate::names::renewals::Renewals;
use crate::session::outbox::{Outbox, SentBy};
use crate::session::pending::{Message, Subject};
use crate::session::places::{Places, Purpose};
use crate::session::sequences::{Kept, NumberFor, Sequences};

const SLOT: Slot = Slot(1);

/// Nobody waits so long, where a wait has an end.
fn late() -> Instant {
    Instant::now() + Duration::from_secs(3_600)
}

fn all(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("a thread of a scene ends");
    }
}

/// Threads that must not say anything new send what is pending for a slot, while more is added: one at a time, in its order, each message once; and
/// a thread that comes while another sends waits for that one.
pub fn senders_of_one_slot() {
    let outbox = Arc::new(Outbox::default());
    let delivered = Arc::new(Mutex::new(Vec::new()));
    let sending = Arc::new(AtomicBool::new(false));
    let add = |outbox: &Outbox, number| {
        outbox.add(Message::CancelChange(Kept { slot: SLOT, sequence: Sequence(number) }), Instant::now());
    };
    add(&outbox, 1);
    add(&outbox, 2);
    let tell = |outbox: &Outbox, delivered: &Mutex<Vec<u64>>, sending: &AtomicBool| {
        let subject = Subject::CancelledChanges(SLOT);
        while let Some(by) = outbox.sent_by(subject) {
            match by {
                SentBy::Me(told) => {
                    assert!(!sending.swap(true, Ordering::SeqCst), "two tell one subject");
                    while let Some(Message::CancelChange(kept)) = told.message(None) {
                        delivered.lock().push(kept.sequence.0);
                        told.acknowledged();
                    }
                    sending.store(false, Ordering::SeqCst);
                    told.end(&Ok(()), true);
                }
                SentBy::Another(sending) => _ = sending.wait(subject.home(), late()),
            }
        }
    };
    let mut threads: Vec<_> = (0..2)
        .map(|_| {
            let (outbox, delivered, sending) = (outbox.clone(), delivered.clone(), sending.clone());
            thread::spawn(move || tell(&outbox, &delivered, &sending))
        })
        .collect();
    let (own, owner_delivered, owner_sending) = (outbox.clone(), delivered.clone(), sending);
    threads.push(thread::spawn(move || {
        add(&own, 3);
        tell(&own, &owner_delivered, &owner_sending);
        assert!(owner_delivered.lock().contains(&3), "who has told everything has told that");
    }));
    all(threads);
    assert_eq!(*delivered.lock(), [1, 2, 3]);
    assert_eq!(outbox.count(), 0);
}

/// A slot's window of numbers is full: threads that wait for one get it when the oldest is answered, and nobody sleeps on.
pub fn a_full_window() {
    let sequences = Arc::new(Sequences::default());
    let window = limits::PROGRAM_MUTATIONS_PER_SLOT_MAX as u64;
    let mut kept: Vec<Kept> = (0..window)
        .map(|_| sequences.try_take(SLOT, NumberFor::Program).expect("there is room").keep())
        .collect();
    assert!(sequences.try_take(SLOT, NumberFor::Program).is_none());
    let mut threads: Vec<_> = (0..2)
        .map(|_| {
            let sequences = sequences.clone();
            thread::spawn(move || {
                drop(sequences.take(SLOT, NumberFor::Program, late()).expect("the oldest is answered"))
            })
        })
        .collect();
    let answered = kept.split_off(2);
    threads.push(thread::spawn({
        let sequences = sequences.clone();
        move || kept.into_iter().for_each(|kept| sequences.release(kept))
    }));
    all(threads);
    answered.into_iter().for_each(|kept| sequences.release(kept));
}

/// More threads than places, as `Server::line` has them: each gets one in its turn, though one of them gives up waiting.
pub fn more_threads_than_places() {
    const PURPOSE: Purpose = Purpose::WritesBack;
    let places = Arc::new(Mutex::new(Places::default()));
    let mut taken = 0;
    while places.lock().take(PURPOSE) {
        taken += 1;
    }
    let served = Arc::new(AtomicUsize::new(0));
    let mut threads = Vec::new();
    for _ in 0..2 {
        let (places, served) = (places.clone(), served.clone());
        threads.push(thread::spawn(move || {
            let mut of_server = places.lock();
            if !of_server.take(PURPOSE) {
                let waiter = of_server.wait(PURPOSE);
                while !of_server.take_in_turn(PURPOSE, &waiter) {
                    of_server = waiter.turn.wait(of_server);
                }
            }
            drop(of_server);
            served.fetch_add(1, Ordering::SeqCst);
            places.lock().give_back(PURPOSE);
        }));
    }
    let impatient = places.clone();
    threads.push(thread::spawn(move || {
        let mut of_server = impatient.lock();
        if of_server.take(PURPOSE) {
            return of_server.give_back(PURPOSE);
        }
        let waiter = of_server.wait(PURPOSE);
        drop(of_server);
        let mut of_server = impatient.lock();
        if of_server.take_in_turn(PURPOSE, &waiter) {
            of_server.give_back(PURPOSE);
        } else {
            of_server.leave(PURPOSE, &waiter);
        }
    }));
    let owner = places.clone();
    threads.push(thread::spawn(move || owner.lock().give_back(PURPOSE)));
    all(threads);
    assert_eq!(served.load(Ordering::SeqCst), 2);
    assert_eq!(places.lock().used(), taken - 1);
}

/// One request renews all leases of a server, while its recalls arrive: nobody waits for another's lock, and a renewal counts for no
/// recall that has not arrived.
pub fn renewals_while_recalls_arrive() {
    let renewals = Arc::new(Renewals::default());
    let (server, epoch, life) = (ServerId(0), Epoch(1), 5);
    renewals.note_done(server, (life, epoch), None);
    let newest = Arc::new(AtomicUsize::new(0));
    let (asked, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut threads: Vec<_> = [true, true, false]
        .into_iter()
        .map(|waits| {
            let (renewals, newest, asked) = (renewals.clone(), newest.clone(), asked.clone());
            let done = done.clone();
            thread::spawn(move || {
                let mut told = 0;
                let renewed = renewals.renew((server, epoch), waits, |_| {
                    asked.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    told = newest.load(Ordering::SeqCst);
                    thread::yield_now();
                    Ok(LeasesRenewed { renewed: true, life, taken: 0, newest: told as u64 })
                });
                assert!(renewed.is_none() || told <= done.load(Ordering::SeqCst), "that recall is not done");
            })
        })
        .collect();
    threads.push(thread::spawn(move || {
        newest.store(1, Ordering::SeqCst);
        thread::yield_now();
        done.store(1, Ordering::SeqCst);
        renewals.note_done(server, (life, epoch), Some(1));
    }));
    all(threads);
    assert!(
        asked.load(Ordering::SeqCst) <= 2,
        "who does not wait asks nothing beside another, and one answer is for all"
    );
}

/// Threads open and close one inode: it is open once at its home, whatever comes between a gate that leaves its table and a thread that has just
/// found it.
pub fn opening_and_closing_one_inode() {
    let inodes = Arc::new(Inodes::default());
    let inode = InodeId::new(SLOT, 7);
    let at_home = Arc::new(AtomicUsize::new(0));
    let threads = (0..3)
        .map(|_| {
            let (inodes, at_home) = (inodes.clone(), at_home.clone());
            thread::spawn(move || {
                let opened = inodes.with_gate(inode, |state| {
                    if state.files == 0 {
                        assert_eq!(at_home.fetch_add(1, Ordering::SeqCst), 0, "its home has it open already");
                    }
                    thread::yield_now();
                    state.files += 1;
                    Ok(())
                });
                opened.expect("there is room");
                let closed = inodes.with_gate(inode, |state| {
                    state.files -= 1;
                    thread::yield_now();
                    if state.files == 0 {
                        assert_eq!(at_home.fetch_sub(1, Ordering::SeqCst), 1, "its home has it open");
                    }
                    Ok(())
                });
                closed.expect("it is open");
            })
        })
        .collect();
    all(threads);
    assert_eq!(at_home.load(Ordering::SeqCst), 0);
    assert!(inodes.find(inode).is_none(), "nobody has it open");
}

/// Threads open and close a file that is only read, while another thread makes closes that were deferred: whoever has it open has it open at its
/// home, and in the end nobody has.
pub fn reopening_what_another_closes() {
    let (inodes, opened) = (Arc::new(Inodes::default()), Arc::new(opened(InodeId::new(SLOT, 7))));
    let at_home = Arc::new(AtomicBool::new(false));
    let inode = opened.info.attributes.inode;
    let close = move |inodes: &Inodes, at_home: &AtomicBool| {
        inodes.hasten_closes();
        let due = inodes.take_due_closes(late(), 9);
        inodes.close_deferred(&due, |which| {
            assert_eq!(which, [inode]);
            thread::yield_now();
            assert!(at_home.swap(false, Ordering::SeqCst), "it was closed already");
            BTreeSet::new()
        });
    };
    let mut threads: Vec<_> = (0..2)
        .map(|_| {
            let (inodes, at_home, opened) = (inodes.clone(), at_home.clone(), opened.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    let asked = Instant::now();
                    if inodes.reopen(inode, &opened.info.attributes, asked).is_none() {
                        let entered = inodes.with_gate(inode, |state| {
                            at_home.store(true, Ordering::SeqCst);
                            thread::yield_now();
                            inodes.cancel_deferred_close(inode);
                            state.enter(&opened);
                            Ok(())
                        });
                        entered.expect("there is room");
                    }
                    assert!(at_home.load(Ordering::SeqCst), "its home does not have it open");
                    thread::yield_now();
                    // A lease that is as old as any open.
                    let answer = OpenAnswer { opened: (*opened).clone(), asked: late() };
                    if !inodes.defer_close(inode, answer, Instant::now()) {
                        let closed = inodes.with_gate(inode, |state| {
                            state.files -= 1;
                            if state.files == 0 {
                                inodes.note_close(inode);
                                at_home.store(false, Ordering::SeqCst);
                            }
                            Ok(())
                        });
                        closed.expect("it is open");
                    }
                }
            })
        })
        .collect();
    let (closer, seen) = (inodes.clone(), at_home.clone());
    threads.push(thread::spawn(move || {
        close(&closer, &seen);
        close(&closer, &seen);
    }));
    all(threads);
    close(&inodes, &at_home);
    assert!(!at_home.load(Ordering::SeqCst) && inodes.find(inode).is_none(), "nobody has it open");
}

/// What a home answers to an open.
fn opened(inode: InodeId) -> Opened {
    let now = Timestamp { nanos: 1 };
    let attributes = Attributes {
        inode,
        kind: FileKind::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        links: 1,
        size: 0,
        device: 0,
        generation: Generation::FIRST,
        accessed: now,
        modified: now,
        changed: now,
        created: now,
        xattrs: false,
        allocated: None,
    };
    let info = InodeInfo {
        attributes,
        layout: None,
        hints: LayoutHints::default(),
        named: FileAttributes::new(),
        partitions: Vec::new(),
        inline: true,
        may_change_unnoticed: false,
    };
    Opened { info, created: false, permit: None, leased: EntryLeased::default(), parent: None }
}

/// A wait for a lock is asked about, granted by an event and given up at once: it has one end.
pub fn a_wait_that_is_granted_and_cancelled() {
    let waits = Arc::new(Waits::default());
    let ends = Arc::new(AtomicUsize::new(0));
    let request = SetLock {
        inode: InodeId::new(SLOT, 7),
        table: LockTable::Fcntl,
        owner: waits.new_owner(),
        kind: Some(LockKind::Exclusive),
        start: 0,
        end: 1,
        pid: 1,
        number: 0,
        waits: true,
        settled_below: 0,
        detects: false,
    };
    let file = LockedFile {
        size: 0,
        generation: Generation::FIRST,
        changed: Timestamp { nanos: 1 },
        may_change_unnoticed: false,
    };
    let told = ends.clone();
    let on_end = Box::new(move |_: ramlace_base::Result<LockedFile>| _ = told.fetch_add(1, Ordering::SeqCst));
    let request = waits.begin(request, on_end, true).expect("there is room");
    let wait = request.number;
    let mut threads = Vec::new();
    let (asker, asker_ends) = (waits.clone(), ends.clone());
    threads.push(thread::spawn(move || {
        loop {
            thread::yield_now();
            match asker.asked(wait, None) {
                Asked::Ended(_) => _ = asker_ends.fetch_add(1, Ordering::SeqCst),
                Asked::Again => continue,
                Asked::Waits => {}
            }
            return;
        }
    }));
    let event = waits.clone();
    threads.push(thread::spawn(move || event.granted(wait, file)));
    let lost = waits.clone();
    threads.push(thread::spawn(move || {
        for wait in lost.to_ask(|_| true) {
            if let Some(request) = lost.begin_asking(wait) {
                lost.not_answered(request.number);
            }
        }
    }));
    let (giver, cancelled) = (waits.clone(), ends.clone());
    threads.push(thread::spawn(move || {
        if giver.cancel(wait).is_some() {
            cancelled.fetch_add(1, Ordering::SeqCst);
        }
    }));
    all(threads);
    assert_eq!(ends.load(Ordering::SeqCst), 1, "a wait has one end");
    assert!(waits.slots().is_empty());
}

/// One thread creates a file by its name, others open it by that name, and all close it: whoever has it open has it open at its home, although an
/// open is answered there before it is known here which inode it has opened.
pub fn opening_by_name_what_another_closes() {
    let (inodes, inode) = (Arc::new(Inodes::default()), InodeId::new(SLOT, 7));
    let (is_there, at_home) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let threads = (0..3).map(|_| {
        let (inodes, is_there, at_home) = (inodes.clone(), is_there.clone(), at_home.clone());
        thread::spawn(move || {
            let by_name = inodes.open_by_name();
            let created = !is_there.swap(true, Ordering::SeqCst);
            at_home.store(true, Ordering::SeqCst);
            thread::yield_now();
            let entered = inodes.with_gate(inode, |state| {
                if by_name.may_be_closed(inode, created) {
                    at_home.store(true, Ordering::SeqCst);
                }
                state.files += 1;
                Ok(())
            });
            entered.expect("there is room");
            drop(by_name);
            thread::yield_now();
            let closed = inodes.with_gate(inode, |state| {
                assert!(at_home.load(Ordering::SeqCst), "its home does not have it open");
                state.files -= 1;
                if state.files == 0 {
                    inodes.note_close(inode);
                    inodes.close_begins();
                    thread::yield_now();
                    at_home.store(false, Ordering::SeqCst);
                    inodes.close_is_over();
                }
                Ok(())
            });
            closed.expect("it is open");
        })
    });
    all(threads.collect());
}

/// Threads that drop pages report to one server that they are done, and a message fails once: each number arrives, or is left to the outbox by a
/// thread that knows of the failure.
pub fn ended_recalls_of_one_server() {
    let (givers, arrived) = (Arc::new(Givers::default()), Arc::new(Mutex::new(Vec::new())));
    let (sending, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let left_to_outbox = Arc::new(AtomicBool::new(false));
    let ended = givers.ended(ServerId(0));
    let threads = (1..=3).map(|number| {
        let (ended, arrived) = (ended.clone(), arrived.clone());
        let (sending, failed, left) = (sending.clone(), failed.clone(), left_to_outbox.clone());
        thread::spawn(move || {
            ended.add(EndRecalls::of_done(&[number]));
            let sent = ended.send_all(|_, batch| {
                assert!(!sending.swap(true, Ordering::SeqCst), "two send at once");
                let fails = batch.done.contains(&2) && !failed.swap(true, Ordering::SeqCst);
                if !fails {
                    arrived.lock().extend(batch.done.clone());
                }
                sending.store(false, Ordering::SeqCst);
                match fails {
                    true => Err(Error::new(ErrorKind::HostDown, "not now")),
                    false => Ok(()),
                }
            });
            if sent.is_err() {
                left.store(true, Ordering::SeqCst);
            }
        })
    });
    all(threads.collect());
    let mut there = std::mem::take(&mut *arrived.lock());
    if !ended.is_empty() {
        assert!(left_to_outbox.load(Ordering::SeqCst), "nobody sends what is left");
        there.extend(ended.take().done);
    }
    there.sort_unstable();
    assert_eq!(there, [1, 2, 3]);
}
