//! Holders of pages learn of changes before the change is answered, and what programs stored in the pages
//! survives.

use std::cell::Cell;
use std::rc::Rc;

use ramlace_base::{Epoch, Error, ErrorKind, InodeId, LaneId, Name, ServerId, Slot};
use ramlace_wire::chunk::{
    ChunkRead, ChunkWritten, Keep, LaneTarget, PunchChunk, ReadChunk, WriteChunk, WriteOrigin,
};
use ramlace_wire::cluster::GetMap;
use ramlace_wire::coordination::NoteChange;
use ramlace_wire::inline::{Bytes, FirstPage, InlineMode, InlineWritten, Promote, ReadInline, WriteInline};
use ramlace_wire::leases::{EndRecalls, WaitPublished};
use ramlace_wire::listen::{Listen, News};
use ramlace_wire::namespace::{Create, LayoutWish, Open, Opened};
use ramlace_wire::runs::{LaneRuns, Strided, Tile, WriteRuns};
use ramlace_wire::{Kind, Layout, encode_body};

use crate::delivery_tests::false_server;
use crate::testing::{Client, Gate, TestServer, run};

const SLOT: Slot = Slot(0);
pub(crate) const PAGE: usize = 4096;

pub(crate) struct Two {
    pub(crate) server: TestServer,
    /// Has pages.
    pub(crate) holder: Client,
    /// The long polls of the same session.
    pub(crate) listener: Client,
    pub(crate) changer: Client,
    pub(crate) inode: InodeId,
    pub(crate) target: LaneTarget,
}

fn program(two: &Two) -> WriteChunk {
    WriteChunk { target: two.target, offset: 0, origin: WriteOrigin::Program }
}

async fn another(client: &Client, address: &str) -> Client {
    client.another(address).await
}

/// The lane of a new file, begun, for the creator.
pub(crate) async fn lane_of_a_file(client: &mut Client, parent: InodeId, slot: Slot) -> LaneTarget {
    let opened: Opened = client.change(1, 0, &new_file(parent, slot)).await.unwrap();
    let inode = opened.info.attributes.inode;
    let lane = LaneId { inode, lane: 0 };
    let generation = opened.info.attributes.generation;
    let target = LaneTarget { lane, slot, generation, created: Epoch(1), permit: None };
    client.promote(1, inode).await.unwrap();
    client.write(2, 0, target, 0, &[b'.'; 4 * PAGE]).await.unwrap();
    target
}

pub(crate) fn new_file(parent: InodeId, slot: Slot) -> Create {
    let layout =
        Layout { stripe_unit: 64 << 10, width: 1, base_slot: slot, stride: 1, copies: 1, created: Epoch(1) };
    Create {
        parent,
        name: Name::new("file").unwrap(),
        mode: 0o644.into(),
        exclusive: true,
        read: true,
        write: true,
        layout: Some(layout),
        wish: LayoutWish::default(),
        named: Vec::new(),
    }
}

/// Two sessions that have a file open; its lane has begun unless it is inline.
pub(crate) async fn two(inline: bool) -> Two {
    let server = TestServer::start(1);
    let mut holder = Client::user(&server.address, 1).await;
    let listener = another(&holder, &server.address).await;
    let mut changer = Client::user(&server.address, 2).await;
    let file: Opened = changer.change(1, 0, &new_file(InodeId::ROOT, SLOT)).await.unwrap();
    let inode = file.info.attributes.inode;
    holder.change(1, 0, &Open { inode, read: true, write: true, run: false }).await.unwrap();
    let lane = LaneId { inode, lane: 0 };
    let target = LaneTarget {
        lane,
        slot: SLOT,
        generation: file.info.attributes.generation,
        created: Epoch(1),
        permit: None,
    };
    if !inline {
        changer.promote(1, inode).await.unwrap();
        changer.write(2, 0, target, 0, &[b'.'; 4 * PAGE]).await.unwrap();
    }
    Two { server, holder, listener, changer, inode, target }
}

impl Two {
    pub(crate) async fn keep(&mut self, offset: u64, length: u32) -> Vec<u8> {
        let request = ReadChunk { target: self.target, offset, length, keep: Keep::Share, take: false };
        let header = self.holder.header(Kind::ReadChunk, 0, 0);
        self.holder.connection.queue_reply(header, &encode_body(&request), &[]);
        self.holder.connection.flush().await.unwrap();
        self.holder.answer::<ChunkRead>().await.unwrap().1
    }

    pub(crate) async fn write_back(&mut self, sequence: u64, offset: u64, bytes: &[u8]) -> ChunkWritten {
        let header = self.holder.header(Kind::WriteChunk, sequence, 0);
        let request = WriteChunk { target: self.target, offset, origin: WriteOrigin::Back };
        self.holder.begin_write(header, &request, bytes).await;
        self.holder.answer::<ChunkWritten>().await.unwrap().0
    }

    pub(crate) async fn recalled(&mut self) -> News {
        self.listener.ask(&Listen { leases: true, acknowledged: 0, received: 0, life: 0 }).await.unwrap()
    }

    pub(crate) async fn end_all(&mut self) {
        let done = self.recalled().await.data.iter().map(|recall| recall.number).collect();
        self.listener.ask(&EndRecalls { done, ..EndRecalls::default() }).await.unwrap();
    }
}

/// Whether an answer has not come after everything else was served.
pub(crate) async fn waits(server: &mut Client, answer: impl Future) -> bool {
    let served = async {
        for _ in 0..3 {
            server.ask(&ramlace_wire::session::Heartbeat {}).await.unwrap();
        }
    };
    tokio::select! {
        biased;
        _ = answer => false,
        () = served => true,
    }
}

// SEMANTICS 116
#[test]
fn pages_that_change_while_they_are_sent_are_as_they_were_and_stores_of_both_survive() {
    run(async {
        let mut two = two(false).await;
        // More than a socket that nobody reads has room for.
        const LARGE: usize = 8 << 20;
        let last = (LARGE - PAGE) as u64;
        two.changer.write(3, 0, two.target, 0, &vec![b'.'; LARGE]).await.unwrap();
        let request =
            ReadChunk { target: two.target, offset: 0, length: LARGE as u32, keep: Keep::Share, take: false };
        // It takes nothing of the answer yet.
        let mut reader = two.holder.another(&two.server.address).await;
        let served = two.server.look(|server| server.status().requests).await;
        reader.connection.queue_reply(reader.header(Kind::ReadChunk, 0, 0), &encode_body(&request), &[]);
        reader.connection.flush().await.unwrap();
        while two.server.look(|server| server.status().requests).await == served {}
        let mut changer = two.changer.another(&two.server.address).await;
        for (sequence, byte) in [(4, b'1'), (5, b'2')] {
            let header = changer.header(Kind::WriteChunk, sequence, 0);
            changer.begin_write(header, &WriteChunk { offset: last, ..program(&two) }, &[byte]).await;
            if byte == b'1' {
                let news = two.recalled().await.data;
                let (_, data) = reader.answer::<ChunkRead>().await.unwrap();
                assert_eq!((data.len(), data[last as usize]), (LARGE, b'.'), "as when it was leased");
                // A program stores beside the other machine's byte.
                let mut page = [b'.'; PAGE];
                page[1] = b's';
                two.write_back(20, last, &page).await;
                let done = news.iter().map(|recall| recall.number).collect();
                two.listener.ask(&EndRecalls { done, ..EndRecalls::default() }).await.unwrap();
            }
            changer.answer::<ChunkWritten>().await.unwrap();
        }
        assert_eq!(two.changer.read(two.target, last, 3).await.unwrap(), b"2s.");
    });
}

#[test]
fn a_write_is_answered_when_others_have_dropped_their_pages_and_stores_of_both_survive() {
    run(async {
        let mut two = two(false).await;
        let mut page = two.keep(0, PAGE as u32).await;
        let header = two.changer.header(Kind::WriteChunk, 3, 0);
        let request = WriteChunk { target: two.target, offset: 10, origin: WriteOrigin::Program };
        two.changer.begin_write(header, &request, b"changer").await;
        assert!(waits(&mut two.listener, two.changer.connection.read_request()).await);
        let told = two.recalled().await;
        assert_eq!(told.data.len(), 1, "{told:?}");
        assert_eq!((told.data[0].inode, told.data[0].lane), (two.inode, Some(0)));
        assert_eq!((told.data[0].start, told.data[0].end), (0, PAGE as u64));
        assert_ne!(told.life, 0);

        page[1000..1006].copy_from_slice(b"holder");
        let back = two.write_back(2, 0, &page).await;
        assert_eq!(back.recall, 0, "nobody else has pages");
        let done = vec![told.data[0].number];
        two.listener.ask(&EndRecalls { done, ..EndRecalls::default() }).await.unwrap();
        two.changer.answer::<ChunkWritten>().await.unwrap();
        let bytes = two.changer.read(two.target, 0, PAGE as u32).await.unwrap();
        assert_eq!((&bytes[9..18], &bytes[999..1007]), (&b".changer."[..], &b".holder."[..]));
    });
}

// SEMANTICS 98.5
#[test]
fn runs_are_answered_when_others_have_dropped_the_pages_that_they_touch_and_stores_of_both_survive() {
    run(async {
        let mut two = two(false).await;
        let mut page = two.keep(0, 4 * PAGE as u32).await;
        let header = two.changer.header(Kind::WriteRuns, 3, 0);
        // The first and the third page.
        let runs = vec![Strided { offset: 0, length: 4, count: 2, stride: 2 * PAGE as u64 }];
        let runs = LaneRuns::new(vec![Tile { start: 10, runs, count: 1, stride: 0 }]).unwrap();
        two.changer
            .begin_write(header, &WriteRuns { target: two.target, runs: runs.clone() }, b"onetwo!!")
            .await;
        assert!(waits(&mut two.listener, two.changer.connection.read_request()).await);
        let told = two.recalled().await;
        let page_bytes = PAGE as u64;
        let parts: Vec<(u64, u64)> = told.data.iter().map(|recall| (recall.start, recall.end)).collect();
        assert_eq!(parts, [(0, page_bytes), (2 * page_bytes, 3 * page_bytes)]);

        page[1000..1006].copy_from_slice(b"holder");
        page[PAGE + 10..PAGE + 16].copy_from_slice(b"in gap");
        two.write_back(2, 0, &page[..3 * PAGE]).await;
        two.end_all().await;
        two.changer.answer::<()>().await.unwrap();
        let bytes = two.changer.read(two.target, 0, 3 * PAGE as u32).await.unwrap();
        assert_eq!((&bytes[9..15], &bytes[999..1007]), (&b".onet."[..], &b".holder."[..]));
        assert_eq!(&bytes[PAGE + 9..PAGE + 17], b".in gap.");
        assert_eq!(two.changer.read_runs(two.target, runs).await.unwrap(), b"onetwo!!");
    });
}

#[test]
fn a_write_back_waits_for_nobody_and_says_what_publishing_waits_for() {
    run(async {
        let mut two = two(false).await;
        let mut page = two.keep(0, PAGE as u32).await;
        // Another kernel has the page, too.
        let keep = ReadChunk { target: two.target, offset: 0, length: 0, keep: Keep::Share, take: false };
        two.changer.ask(&keep).await.unwrap();
        assert!(two.changer.ask(&keep).await.unwrap().kept);
        page[5] = b'!';
        let back = two.write_back(2, 0, &page).await;
        assert_ne!(back.recall, 0);
        let publish = WaitPublished { recall: back.recall };
        let header = two.holder.header(Kind::WaitPublished, 0, 0);
        two.holder.connection.queue_reply(header, &encode_body(&publish), &[]);
        two.holder.connection.flush().await.unwrap();
        assert!(waits(&mut two.listener, two.holder.connection.read_request()).await);
        two.changer.ask(&EndRecalls { done: vec![back.recall], ..EndRecalls::default() }).await.unwrap();
        two.holder.answer::<()>().await.unwrap();
        // The same bytes again are no change.
        assert_eq!(two.write_back(3, 0, &page).await.recall, 0);
    });
}

// SEMANTICS 115
#[test]
fn who_publishes_waits_for_holders_that_are_blocked_and_not_for_relaxed_ones() {
    run(async {
        let mut two = two(false).await;
        let mut page = two.keep(0, PAGE as u32).await;
        let keep = ReadChunk { target: two.target, offset: 0, length: 0, keep: Keep::Share, take: false };
        for (sequence, is_relaxed) in [(2, false), (3, true)] {
            two.changer.ask(&keep).await.unwrap();
            page[5] += 1;
            let recall = two.write_back(sequence, 0, &page).await.recall;
            let (blocked, relaxed) = if is_relaxed { (vec![], vec![recall]) } else { (vec![recall], vec![]) };
            two.changer.ask(&EndRecalls { blocked, relaxed, ..EndRecalls::default() }).await.unwrap();
            let header = two.holder.header(Kind::WaitPublished, 0, 0);
            two.holder.connection.queue_reply(header, &encode_body(&WaitPublished { recall }), &[]);
            two.holder.connection.flush().await.unwrap();
            if !is_relaxed {
                assert!(waits(&mut two.listener, two.holder.connection.read_request()).await);
                two.changer.ask(&EndRecalls::of_done(&[recall])).await.unwrap();
            }
            two.holder.answer::<()>().await.unwrap();
        }
    });
}

// SEMANTICS 114.1
#[test]
fn large_writes_and_punches_recall_as_well_and_cells_and_truncations() {
    run(async {
        let mut two = two(false).await;
        two.keep(0, PAGE as u32).await;
        let large = vec![b'l'; 100_000];
        let header = two.changer.header(Kind::WriteChunk, 3, 0);
        let request = WriteChunk { target: two.target, offset: 0, origin: WriteOrigin::Program };
        two.changer.begin_write(header, &request, &large).await;
        assert!(waits(&mut two.listener, two.changer.connection.read_request()).await);
        two.end_all().await;
        two.changer.answer::<ChunkWritten>().await.unwrap();

        two.keep(0, PAGE as u32).await;
        let punch = PunchChunk { target: two.target, offset: 100, length: 100 };
        let header = two.changer.header(Kind::PunchChunk, 4, 0);
        two.changer.connection.queue_reply(header, &encode_body(&punch), &[]);
        two.changer.connection.flush().await.unwrap();
        assert!(waits(&mut two.listener, two.changer.connection.read_request()).await);
        two.end_all().await;
        two.changer.answer::<()>().await.unwrap();
    });
}

// SEMANTICS 117.4
#[test]
fn a_large_write_that_others_meet_half_way_is_what_its_kernels_pages_are_based_on() {
    run(async { meet_half_way(true).await });
}

// SEMANTICS 117.4
#[test]
fn so_it_is_where_its_kernel_had_no_lease_on_them() {
    run(async { meet_half_way(false).await });
}

/// `has_lease`: the writing kernel has read the page before.
async fn meet_half_way(has_lease: bool) {
    const LARGE: usize = 256 << 10;
    let mut two = two(false).await;
    let at = (LARGE - PAGE) as u64;
    if has_lease {
        two.keep(at, PAGE as u32).await;
    }
    let gate = Gate::before(&two.server.address).await;
    let mut slow = two.holder.another(&gate.address).await;
    let header = slow.header(Kind::WriteChunk, 10, 0);
    gate.let_pass(100 << 10);
    let request = WriteChunk { target: two.target, offset: 0, origin: WriteOrigin::Through };
    slow.begin_write(header, &request, &[1; LARGE]).await;
    gate.drained().await;
    // Another program reads where the write's bytes have yet to arrive.
    let mut first = another(&two.changer, &two.server.address).await;
    first
        .begin_write(first.header(Kind::WriteChunk, 3, 0), &WriteChunk { offset: at, ..program(&two) }, b"w")
        .await;
    assert!(waits(&mut two.listener, first.connection.read_request()).await);
    gate.let_pass(usize::MAX);
    if let Err(error) = slow.answer::<ChunkWritten>().await {
        assert_eq!(error.kind(), ErrorKind::Retry, "it comes again, all at once: {error}");
        slow.begin_write(header, &request, &[1; LARGE]).await;
        slow.answer::<ChunkWritten>().await.unwrap();
    }
    // And another one behind it.
    let mut second = another(&two.changer, &two.server.address).await;
    let request = WriteChunk { offset: at + 100, ..program(&two) };
    second.begin_write(second.header(Kind::WriteChunk, 4, 0), &request, b"after").await;
    assert!(waits(&mut two.listener, second.connection.read_request()).await);
    // The kernel has what its call wrote, and what a program has stored beside it.
    let mut page = vec![1; PAGE];
    page[500] = 5;
    two.write_back(11, at, &page).await;
    two.end_all().await;
    let bytes = two.changer.read(two.target, at, PAGE as u32).await.unwrap();
    assert_eq!((&bytes[99..106], bytes[500]), (&b"\x01after\x01"[..], 5));
}

#[test]
fn a_write_that_comes_again_waits_like_the_first() {
    run(async {
        let mut two = two(false).await;
        two.keep(0, PAGE as u32).await;
        let header = two.changer.header(Kind::WriteChunk, 3, 0);
        let request = WriteChunk { target: two.target, offset: 10, origin: WriteOrigin::Program };
        two.changer.begin_write(header, &request, b"changer").await;
        assert!(waits(&mut two.listener, two.changer.connection.read_request()).await);
        // The first connection was lost: the retry finds the write done.
        let mut again = another(&two.changer, &two.server.address).await;
        again.begin_write(header, &request, b"changer").await;
        assert!(waits(&mut two.listener, again.connection.read_request()).await);
        two.end_all().await;
        again.answer::<ChunkWritten>().await.unwrap();
    });
}

#[test]
fn bytes_that_no_file_has_are_refused_and_end_nothing() {
    run(async {
        let mut two = two(true).await;
        let (inode, mut sequence) = (two.inode, 10);
        for origin in [WriteOrigin::Program, WriteOrigin::Through, WriteOrigin::Back] {
            for offset in [u64::MAX, u64::MAX - 3, 1 << 62] {
                let write = WriteInline {
                    inode,
                    mode: InlineMode::At,
                    offset,
                    bytes: Bytes(b"far".to_vec()),
                    origin,
                };
                assert!(two.changer.change(sequence, 0, &write).await.is_err());
                sequence += 1;
            }
        }
        let keep = ReadChunk { target: two.target, offset: 0, length: 0, keep: Keep::Share, take: false };
        let _ = two.holder.ask(&keep).await;
        let note = NoteChange { target: two.target, start: u64::MAX - 5, end: u64::MAX, over: None };
        assert!(two.changer.ask(&note).await.is_err());
        two.changer.ask(&ramlace_wire::session::Heartbeat {}).await.unwrap();
    });
}

#[test]
fn bytes_that_live_with_an_inode_follow_the_same_rule() {
    run(async {
        let mut two = two(true).await;
        let inode = two.inode;
        let write = |offset, bytes: &[u8], origin| WriteInline {
            inode,
            mode: InlineMode::At,
            offset,
            bytes: Bytes(bytes.to_vec()),
            origin,
        };
        let first: InlineWritten =
            two.changer.change(2, 0, &write(0, &[b'.'; 100], WriteOrigin::Program)).await.unwrap();
        assert_eq!(first.size.size, 100);
        let keep = ReadInline { inode, offset: 0, length: 4096, keep: true };
        let mut page = two.holder.ask(&keep).await.unwrap().bytes.unwrap().0;
        let header = two.changer.header(Kind::WriteInline, 3, 0);
        let body = encode_body(&write(10, b"changer", WriteOrigin::Program));
        two.changer.connection.queue_reply(header, &body, &[]);
        two.changer.connection.flush().await.unwrap();
        assert!(waits(&mut two.listener, two.changer.connection.read_request()).await);
        page[50..56].copy_from_slice(b"holder");
        let back = WriteInline { mode: InlineMode::Within, ..write(0, &page, WriteOrigin::Back) };
        two.holder.change(2, 0, &back).await.unwrap();
        let told = two.recalled().await;
        assert_eq!((told.data[0].inode, told.data[0].lane), (inode, None));
        two.end_all().await;
        two.changer.answer::<InlineWritten>().await.unwrap();
        let bytes = two.changer.ask(&ReadInline { keep: false, ..keep }).await.unwrap().bytes.unwrap().0;
        assert_eq!((&bytes[9..18], &bytes[49..57]), (&b".changer."[..], &b".holder."[..]));
    });
}

// SEMANTICS 119.1
#[test]
fn a_small_files_change_that_comes_again_waits_like_the_first_also_in_the_next_life() {
    run(async {
        let mut two = two(true).await;
        let inode = two.inode;
        let at = |offset, length: usize| WriteInline {
            inode,
            mode: InlineMode::At,
            offset,
            bytes: Bytes(vec![b'w'; length]),
            origin: WriteOrigin::Program,
        };
        two.changer.change(2, 0, &at(0, 100)).await.unwrap();
        two.holder.ask(&ReadInline { inode, offset: 0, length: 4096, keep: true }).await.unwrap();
        let body = encode_body(&at(10, 7));
        let header = two.changer.header(Kind::WriteInline, 3, 0);
        let mut again = another(&two.changer, &two.server.address).await;
        for client in [&mut two.changer, &mut again] {
            client.connection.queue_reply(header, &body, &[]);
            client.connection.flush().await.unwrap();
            assert!(waits(&mut two.listener, client.connection.read_request()).await);
        }
        two.server.kill();
        two.server.revive();
        let mut changer = Client::user(&two.server.address, 2).await;
        let mut listener = Client::user(&two.server.address, 1).await;
        changer.connection.queue_reply(header, &body, &[]);
        changer.connection.flush().await.unwrap();
        assert!(waits(&mut listener, changer.connection.read_request()).await);
        let session = listener.session;
        let told = two.server.look(move |server| server.data.unacknowledged(session, 0)).await;
        assert_eq!(told.len(), 1, "who had pages before has yet to drop them");
        let done = vec![told[0].number];
        listener.ask(&EndRecalls { done, ..EndRecalls::default() }).await.unwrap();
        changer.answer::<InlineWritten>().await.unwrap();
    });
}

// SEMANTICS 119.3
#[test]
fn what_others_changed_before_a_server_died_is_not_taken_back_by_a_session_that_had_yet_to_drop_it() {
    run(async {
        let mut two = two(false).await;
        let mut page = two.keep(0, PAGE as u32).await;
        two.keep(PAGE as u64, PAGE as u32).await;
        let header = two.changer.header(Kind::WriteChunk, 3, 0);
        let request = WriteChunk { offset: 10, ..program(&two) };
        two.changer.begin_write(header, &request, b"changer").await;
        assert!(waits(&mut two.listener, two.changer.connection.read_request()).await);
        two.server.kill();
        two.server.revive();
        let mut holder = Client::user(&two.server.address, 1).await;
        let mut back = async |sequence, offset, bytes: &[u8]| {
            let header = holder.header(Kind::WriteChunk, sequence, 0);
            let request = WriteChunk { target: two.target, offset, origin: WriteOrigin::Back };
            holder.begin_write(header, &request, bytes).await;
            holder.answer::<ChunkWritten>().await.map(drop)
        };
        page[1000] = b'!';
        assert_eq!(back(2, 0, &page).await.unwrap_err().kind(), ErrorKind::Stale);
        back(3, PAGE as u64, &page).await.unwrap();
        // The holder has dropped everything.
        let mut listener = Client::user(&two.server.address, 1).await;
        let life = listener
            .ask(&Listen { leases: true, acknowledged: 0, received: 0, life: u64::MAX })
            .await
            .unwrap()
            .life;
        for life in [life + 1, life] {
            assert!(back(4, 0, &page).await.is_err(), "not of another life");
            listener.ask(&EndRecalls { life, ..EndRecalls::default() }).await.unwrap();
        }
        let bytes = listener.read(two.target, 0, 2 * PAGE as u32).await.unwrap();
        assert_eq!((&bytes[9..18], bytes[1000]), (&b".changer."[..], b'.'));
        assert_eq!(bytes[PAGE + 1000], b'!');
        let session = listener.session;
        let left = two.server.look(move |server| server.durable.borrow().pages.has_outdated(session)).await;
        assert!(!left);
    });
}

// SEMANTICS 138.5
#[test]
fn a_session_that_reads_bytes_on_their_way_to_lanes_keeps_none_or_drops_them_when_the_file_is_there() {
    let server = TestServer::start(2);
    run(async {
        let held = Rc::new(Cell::new(Some(ErrorKind::Retry)));
        let says = {
            let held = held.clone();
            move |kind| match (kind, held.get()) {
                (Kind::FillLane, Some(why)) => Some(Err(Error::new(why, "not yet"))),
                _ => Some(Ok(encode_body(&()))),
            }
        };
        let peer = false_server(&server, Rc::new(says)).await;
        let mut changer = Client::user(&server.address, 1).await;
        let mut holder = Client::user(&server.address, 2).await;
        let mut listener = holder.another(&server.address).await;
        let map = changer.ask(&GetMap {}).await.unwrap();
        let elsewhere = (0..).map(Slot).find(|slot| map.primary(*slot) == Some(ServerId(1))).unwrap();
        let mut file = new_file(InodeId::ROOT, elsewhere);
        file.layout.as_mut().unwrap().created = map.epoch;
        let opened: Opened = changer.change(1, 0, &file).await.unwrap();
        let inode = opened.info.attributes.inode;
        let write = WriteInline {
            inode,
            mode: InlineMode::At,
            offset: 0,
            bytes: Bytes(b"bytes".to_vec()),
            origin: WriteOrigin::Program,
        };
        let _: InlineWritten = changer.change(2, 1, &write).await.unwrap();
        holder.change(1, 0, &Open { inode, read: true, write: true, run: false }).await.unwrap();
        let mut looker = changer.another(&server.address).await;
        let promoting = tokio::task::spawn_local(async move {
            changer.change(3, 2, &Promote { inode, first_page: FirstPage::Locked }).await
        });
        // The bytes are in flight when they cannot be changed.
        let mut sequence = 2;
        while holder.change(sequence, sequence as u32 - 1, &write).await.is_ok() {
            sequence += 1;
        }
        let read = ReadInline { inode, offset: 0, length: 5, keep: true };
        let look = ReadInline { keep: false, ..read };
        assert_eq!(holder.ask(&look).await.unwrap().bytes, Some(Bytes(b"bytes".to_vec())));
        assert_eq!(
            holder.ask(&read).await.unwrap_err().kind(),
            ErrorKind::Retry,
            "they are not here for long"
        );
        // For as long as their server does not answer, it is not known how long this takes.
        held.set(Some(ErrorKind::HostDown));
        assert_eq!(promoting.await.unwrap().unwrap_err().kind(), ErrorKind::HostDown);
        assert_eq!(holder.ask(&read).await.unwrap().bytes, Some(Bytes(b"bytes".to_vec())));
        held.set(None);
        while looker.ask(&look).await.unwrap().bytes.is_some() {
            tokio::task::yield_now().await;
        }
        let recalls =
            listener.ask(&Listen { leases: true, acknowledged: 0, received: 0, life: 0 }).await.unwrap();
        assert_eq!(
            recalls.data.iter().map(|recall| (recall.inode, recall.lane)).collect::<Vec<_>>(),
            [(inode, None)]
        );
        peer.abort();
    });
}
