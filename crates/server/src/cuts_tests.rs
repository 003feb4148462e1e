//! A truncation is answered when no kernel has pages of what was cut off, wherever the lanes are.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Generation, InodeId, LaneId, SessionId, Slot, limits};
use ramlace_wire::chunk::{LaneTarget, WriteOrigin};
use ramlace_wire::coordination::WatchChange;
use ramlace_wire::inline::{Bytes, InlineMode, ReadInline, WriteInline};
use ramlace_wire::leases::EndRecalls;
use ramlace_wire::namespace::{Close, Extend, Truncate, Unlink};
use ramlace_wire::peer::{BeginLane, LaneCut, RecallsKnown};
use ramlace_wire::session::SessionKind;
use ramlace_wire::{Attributes, Kind, encode_body};

use crate::data_leases_tests::{PAGE, Two, two, waits};
use crate::delivery_tests::{create, done, extend_and_cut, false_server, name};
use crate::server_tests::{layout, target};
use crate::testing::{Client, LONG, TestServer, run};

/// Begins a truncation, which then waits.
async fn begin(two: &mut Two, sequence: u64, size: u64) {
    let header = two.changer.header(Kind::Truncate, sequence, 0);
    let body = encode_body(&Truncate { inode: two.inode, size, allocated: None });
    two.changer.connection.queue_reply(header, &body, &[]);
    two.changer.connection.flush().await.unwrap();
    assert!(waits(&mut two.listener, two.changer.connection.read_request()).await);
}

/// The file has four pages.
async fn extend(two: &mut Two, sequence: u64) {
    let (inode, generation) = (two.inode, two.target.generation);
    let request = Extend { inode, generation, size: 4 * PAGE as u64, from: 0 };
    two.changer.change(sequence, 0, &request).await.unwrap();
}

// SEMANTICS 114.5
#[test]
fn a_truncation_is_answered_when_others_have_dropped_what_it_cut_off() {
    run(async {
        let mut two = two(false).await;
        extend(&mut two, 3).await;
        two.keep(0, PAGE as u32).await;
        begin(&mut two, 4, 100).await;
        two.end_all().await;
        let (cut, _) = two.changer.answer::<Attributes>().await.unwrap();
        assert_eq!(cut.size, 100);
        // Pages of the remaining bytes do not concern the next truncation.
        two.target.generation = cut.generation;
        two.keep(0, 100).await;
        let grown = Truncate { inode: two.inode, size: 2 * PAGE as u64, allocated: None };
        two.changer.change(5, 0, &grown).await.unwrap();
        two.changer.change(6, 0, &Truncate { size: PAGE as u64, ..grown }).await.unwrap();
    });
}

// SEMANTICS 85.1
#[test]
fn who_watches_a_hole_in_which_a_lane_never_began_hears_that_it_was_cut_off() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let opened = crate::server_tests::create(&mut client, 1, "file", layout(2)).await;
        let (inode, generation) = (opened.info.attributes.inode, opened.info.attributes.generation);
        client.change(2, 0, &Extend { inode, generation, size: 10 << 20, from: 0 }).await.unwrap();
        let first = target(&opened);
        let second = LaneTarget { lane: LaneId { inode, lane: 1 }, slot: Slot(first.slot.0 + 1), ..first };
        let (start, end) = (1 << 20, 2 << 20);
        let watch = WatchChange { inode, lane: Some(second), start, end, since: None, wait: 0 };
        let since = Some(client.ask(&watch).await.unwrap().number);
        let watch = WatchChange { since, ..watch };
        client.change(3, 0, &Truncate { inode, size: 6 << 20, allocated: None }).await.unwrap();
        assert!(!client.ask(&watch).await.unwrap().changed, "it stays");
        client.change(4, 0, &Truncate { inode, size: 1 << 20, allocated: None }).await.unwrap();
        assert!(client.ask(&watch).await.unwrap().changed);
    });
}

// SEMANTICS 114.6
#[test]
fn a_truncation_waits_for_no_kernel_that_cannot_drop_before_a_request_of_its_own_is_answered() {
    run(async {
        let mut two = two(false).await;
        extend(&mut two, 3).await;
        two.keep(0, PAGE as u32).await;
        begin(&mut two, 4, 0).await;
        let blocked = two.recalled().await.data.iter().map(|recall| recall.number).collect();
        two.listener.ask(&EndRecalls { blocked, ..EndRecalls::default() }).await.unwrap();
        two.changer.answer::<Attributes>().await.unwrap();
    });
}

// SEMANTICS 114.5
#[test]
fn so_is_that_of_a_small_file() {
    run(async {
        let mut two = two(true).await;
        let inode = two.inode;
        let bytes = Bytes(vec![b'.'; 100]);
        let write =
            WriteInline { inode, mode: InlineMode::At, offset: 0, bytes, origin: WriteOrigin::Program };
        two.changer.change(2, 0, &write).await.unwrap();
        two.holder.ask(&ReadInline { inode, offset: 0, length: 4096, keep: true }).await.unwrap();
        begin(&mut two, 3, 10).await;
        // The request is repeated on another connection.
        let again = two.changer.another(&two.server.address).await;
        let first = std::mem::replace(&mut two.changer, again);
        begin(&mut two, 3, 10).await;
        two.end_all().await;
        for mut client in [first, two.changer] {
            assert_eq!(client.answer::<Attributes>().await.unwrap().0.size, 10);
        }
    });
}

// SEMANTICS 114.5
#[test]
fn a_home_asks_until_the_recalls_of_another_server_are_over_and_cuts_again_in_its_next_life() {
    let server = TestServer::start(2);
    run(async {
        let (received, asked) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
        let says = {
            let (received, asked) = (received.clone(), asked.clone());
            move |kind| {
                let first = !received.borrow().contains(&Kind::QueryRecalls);
                received.borrow_mut().push(kind);
                match kind {
                    Kind::CutLane if first => {
                        Some(Ok(encode_body(&LaneCut { life: 7, recalls: vec![3, 5] })))
                    }
                    Kind::QueryRecalls => {
                        asked.set(asked.get() + 1);
                        Some(match asked.get() {
                            1..3 => Ok(encode_body(&RecallsKnown { over: false })),
                            _ => Err(Error::new(ErrorKind::Stale, "another life")),
                        })
                    }
                    kind => done(kind),
                }
            }
        };
        let peer = false_server(&server, Rc::new(says)).await;
        let mut client = Client::user(&server.address, 1).await;
        let inode = create(&mut client, 1, name("a")).await.unwrap();
        extend_and_cut(&mut client, 2, inode, Generation::FIRST).await.unwrap();
        let about_cuts = |kind: &&Kind| [Kind::CutLane, Kind::QueryRecalls].contains(kind);
        let cuts: Vec<Kind> = received.borrow().iter().filter(about_cuts).copied().collect();
        let (cut, ask) = (Kind::CutLane, Kind::QueryRecalls);
        assert_eq!(cuts, [cut, ask, ask, ask, cut]);
        peer.abort();
    });
}

// SEMANTICS 114.5
#[test]
fn others_go_on_behind_a_cut_that_waits() {
    let server = TestServer::start(2);
    run(async {
        let (cuts, over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let says = {
            let (cuts, over) = (cuts.clone(), over.clone());
            move |kind| match kind {
                Kind::CutLane => {
                    cuts.set(cuts.get() + 1);
                    let recalls = if cuts.get() == 1 { vec![3] } else { Vec::new() };
                    Some(Ok(encode_body(&LaneCut { life: 7, recalls })))
                }
                Kind::QueryRecalls => Some(Ok(encode_body(&RecallsKnown { over: over.get() }))),
                kind => done(kind),
            }
        };
        let peer = false_server(&server, Rc::new(says)).await;
        let mut client = Client::user(&server.address, 1).await;
        let mut other = Client::user(&server.address, 2).await;
        let first = create(&mut client, 1, name("a")).await.unwrap();
        let second = create(&mut other, 1, name("b")).await.unwrap();
        let cut = tokio::task::spawn_local(async move {
            extend_and_cut(&mut client, 2, first, Generation::FIRST).await.unwrap();
        });
        while cuts.get() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        extend_and_cut(&mut other, 2, second, Generation::FIRST).await.unwrap();
        assert!(!cut.is_finished());
        over.set(true);
        cut.await.unwrap();
        peer.abort();
    });
}

// SEMANTICS 114.5
#[test]
fn a_cut_of_more_recalls_than_a_message_names_waits_for_all_of_them_one_message_after_the_other() {
    const MOST: usize = limits::DATA_RECALLS_PER_MESSAGE_MAX;
    let server = TestServer::start(2);
    run(async {
        let received = Rc::new(RefCell::new(Vec::new()));
        let says = {
            let received = received.clone();
            move |kind| {
                received.borrow_mut().push(kind);
                let cuts = received.borrow().iter().filter(|kind| **kind == Kind::CutLane).count();
                match kind {
                    Kind::CutLane => {
                        let recalls = if cuts == 1 { vec![3; MOST] } else { vec![4; 3 - cuts.min(3)] };
                        Some(Ok(encode_body(&LaneCut { life: 7, recalls })))
                    }
                    Kind::QueryRecalls => Some(Ok(encode_body(&RecallsKnown { over: true }))),
                    kind => done(kind),
                }
            }
        };
        let peer = false_server(&server, Rc::new(says)).await;
        let mut client = Client::user(&server.address, 1).await;
        let named = server.look(|server| server.lane_cut((0..3000).collect()).recalls).await;
        assert_eq!(named, Vec::from_iter(0..MOST as u64));
        let inode = create(&mut client, 1, name("a")).await.unwrap();
        extend_and_cut(&mut client, 2, inode, Generation::FIRST).await.unwrap();
        let about_cuts = |kind: &&Kind| [Kind::CutLane, Kind::QueryRecalls].contains(kind);
        let cuts: Vec<Kind> = received.borrow().iter().filter(about_cuts).copied().collect();
        let (cut, ask) = (Kind::CutLane, Kind::QueryRecalls);
        assert_eq!(cuts, [cut, ask, cut, ask]);
        peer.abort();
    });
}

// SEMANTICS 114.5
#[test]
fn others_go_on_behind_a_delivery_that_is_to_be_retried_for_ever() {
    let server = TestServer::start(2);
    run(async {
        let (cuts, drops, over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let says = {
            let (cuts, drops, over) = (cuts.clone(), drops.clone(), over.clone());
            move |kind| match kind {
                Kind::DropLane => {
                    drops.set(drops.get() + 1);
                    done(kind)
                }
                Kind::CutLane if !over.get() => {
                    cuts.set(cuts.get() + 1);
                    Some(Err(Error::new(ErrorKind::Retry, "not now")))
                }
                kind => done(kind),
            }
        };
        let peer = false_server(&server, Rc::new(says)).await;
        let mut home = Client::connect(&server.address, SessionId([98; 16]), SessionKind::Peer).await;
        let mut client = Client::user(&server.address, 1).await;
        let mut other = Client::user(&server.address, 2).await;
        let first = create(&mut client, 1, name("a")).await.unwrap();
        let second = create(&mut other, 1, name("b")).await.unwrap();
        let lane = LaneId { inode: second, lane: 1 };
        home.ask(&BeginLane { lane, by: SessionId::NONE }).await.unwrap();
        let cut = tokio::task::spawn_local(async move {
            extend_and_cut(&mut client, 2, first, Generation::FIRST).await.unwrap();
        });
        while cuts.get() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The lane of a file that is removed is dropped.
        other.change(2, 0, &Unlink { parent: InodeId::ROOT, name: name("b") }).await.unwrap();
        other.change(3, 0, &Close { inode: second, modified: None, leases: false }).await.unwrap();
        let end = Instant::now() + LONG;
        while drops.get() == 0 {
            assert!(Instant::now() < end, "the other delivery waits behind the one that is retried");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!cut.is_finished());
        over.set(true);
        cut.await.unwrap();
        peer.abort();
    });
}
