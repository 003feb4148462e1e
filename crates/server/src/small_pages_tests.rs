//! Pages of inline files: write-backs that are refused, come late, or meet a file that has grown; and those
//! of sessions that have ended.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ramlace_base::{ByteRange, Error, ErrorKind, Generation, InodeId, LaneId, ServerId, SessionId, Slot};
use ramlace_wire::chunk::{ChunkRead, ChunkWritten, Keep, LaneTarget, ReadChunk, WriteChunk, WriteOrigin};
use ramlace_wire::cluster::GetMap;
use ramlace_wire::inline::{
    Bytes, BytesPlace, FirstPage, InlineMode, InlineOutcome, InlineWritten, Promote, Promoted, ReadInline,
    WriteInline,
};
use ramlace_wire::leases::EndRecalls;
use ramlace_wire::listen::Listen;
use ramlace_wire::namespace::{Open, Opened, Truncate};
use ramlace_wire::peer::InodeAnswer;
use ramlace_wire::session::CloseSession;
use ramlace_wire::{Kind, Layout, encode_body};

use crate::data_leases_tests::{lane_of_a_file, new_file, waits};
use crate::delivery_tests::false_server;
use crate::server::data_desk::place_of;
use crate::testing::{Answered, Client, Gate, TestServer, run};

const SLOT: Slot = Slot(0);
const PAGE: usize = 4096;

/// An inline file that two sessions have open; the holder's kernel has its page.
struct Small {
    holder: Client,
    changer: Client,
    inode: InodeId,
    target: LaneTarget,
    page: Vec<u8>,
}

async fn small(server: &TestServer, slot: Slot) -> Small {
    let mut changer = Client::user(&server.address, 2).await;
    let mut file = new_file(InodeId::ROOT, slot);
    let created = changer.ask(&GetMap {}).await.unwrap().epoch;
    file.layout.as_mut().unwrap().created = created;
    let opened: Opened = changer.change(1, 0, &file).await.unwrap();
    let (inode, generation) = (opened.info.attributes.inode, opened.info.attributes.generation);
    let mut holder = Client::user(&server.address, 1).await;
    holder.change(1, 0, &Open { inode, read: true, write: true, run: false }).await.unwrap();
    let _: InlineWritten =
        changer.change(2, 1, &write(inode, 0, &[b'.'; 100], WriteOrigin::Program)).await.unwrap();
    let mut page = holder.ask(&keep(inode)).await.unwrap().bytes.unwrap().0;
    page.resize(PAGE, 0);
    let lane = LaneId { inode, lane: 0 };
    let target = LaneTarget { lane, slot, generation: generation.next(), created, permit: None };
    Small { holder, changer, inode, target, page }
}

fn keep(inode: InodeId) -> ReadInline {
    ReadInline { inode, offset: 0, length: PAGE as u32, keep: true }
}

fn promote(inode: InodeId, first_page: FirstPage) -> Promote {
    Promote { inode, first_page }
}

fn write(inode: InodeId, offset: u64, bytes: &[u8], origin: WriteOrigin) -> WriteInline {
    let mode = if origin == WriteOrigin::Back { InlineMode::Within } else { InlineMode::At };
    WriteInline { inode, mode, offset, bytes: Bytes(bytes.to_vec()), origin }
}

impl Small {
    /// Another session changes the file's first byte, and need not wait for the holder.
    async fn change_first(&mut self, server: &TestServer) {
        self.begin_to_change_first().await;
        self.drop_nothing(server).await;
        self.changer.answer::<InlineWritten>().await.unwrap();
    }

    /// The same; its answer waits for the holder.
    async fn begin_to_change_first(&mut self) {
        let header = self.changer.header(Kind::WriteInline, 3, 2);
        let request = write(self.inode, 0, b"C", WriteOrigin::Program);
        self.changer.begin_write(header, &request, &[]).await;
    }

    /// The holder reports that it cannot drop yet what is recalled from it.
    async fn drop_nothing(&self, server: &TestServer) {
        let mut listener = self.holder.another(&server.address).await;
        let told =
            listener.ask(&Listen { leases: true, acknowledged: 0, received: 0, life: 0 }).await.unwrap();
        let blocked = told.data.iter().map(|recall| recall.number).collect();
        listener.ask(&EndRecalls { blocked, ..EndRecalls::default() }).await.unwrap();
    }

    async fn back(&mut self, sequence: u64) -> Answered<InlineWritten> {
        let request = write(self.inode, 0, &self.page, WriteOrigin::Back);
        self.holder.change(sequence, 0, &request).await
    }

    async fn back_to_lane(&mut self, sequence: u64) -> Answered<()> {
        let header = self.holder.header(Kind::WriteChunk, sequence, sequence as u32 - 1);
        let request = WriteChunk { target: self.target, offset: 0, origin: WriteOrigin::Back };
        self.holder.begin_write(header, &request, &self.page).await;
        self.holder.answer::<ChunkWritten>().await.map(drop)
    }

    async fn keep_of_lane(&mut self, offset: u64) {
        let request =
            ReadChunk { target: self.target, offset, length: PAGE as u32, keep: Keep::Share, take: false };
        let header = self.holder.header(Kind::ReadChunk, 0, 0);
        self.holder.begin_write(header, &request, &[]).await;
        self.holder.answer::<ChunkRead>().await.unwrap();
    }

    async fn bytes(&mut self) -> Vec<u8> {
        let read = ReadInline { keep: false, ..keep(self.inode) };
        self.changer.ask(&read).await.unwrap().bytes.unwrap().0
    }
}

/// Waits until the time of every holder is over.
async fn pass(server: &TestServer) {
    let passed = server.look(|server| {
        let passed = server.data.leases.borrow_mut().pass(u64::MAX / 2);
        server.data.changed.notify_waiters();
        passed
    });
    assert!(passed.await, "somebody was waited for");
}

// SEMANTICS 117.1
#[test]
fn what_a_refused_write_back_brought_is_written_when_it_comes_again() {
    let server = TestServer::start(2);
    run(async {
        let refuses = Rc::new(Cell::new(false));
        let says = {
            let refuses = refuses.clone();
            move |kind| match kind {
                Kind::FillLane if refuses.get() => Some(Err(Error::new(ErrorKind::NoSpace, "full"))),
                Kind::FillLane => Some(Err(Error::new(ErrorKind::Retry, "not yet"))),
                _ => Some(Ok(encode_body(&()))),
            }
        };
        let peer = false_server(&server, Rc::new(says)).await;
        let map = Client::user(&server.address, 3).await.ask(&GetMap {}).await.unwrap();
        let elsewhere = (0..).map(Slot).find(|slot| map.primary(*slot) == Some(ServerId(1))).unwrap();
        let mut small = small(&server, elsewhere).await;
        small.page[3] = b'!';
        small.change_first(&server).await;
        let mut promoter = small.changer.another(&server.address).await;
        let inode = small.inode;
        let promoting = tokio::task::spawn_local(async move {
            promoter.change(4, 3, &promote(inode, FirstPage::Locked)).await
        });
        // While a file is being promoted it accepts no writes; those that come before are done.
        let mut sequence = 2;
        while let Ok(done) = small.back(sequence).await {
            assert!(sequence < 10_000 && done.outcome == InlineOutcome::Written, "{sequence}: {done:?}");
            small.drop_nothing(&server).await;
            sequence += 1;
            small.page[4 + sequence as usize % 90] = b'!';
        }
        // Nor is it truncated: what is stored beyond that end is still valid.
        let cut = Truncate { inode, size: 0, allocated: None };
        assert_eq!(small.changer.change(5, 4, &cut).await.unwrap_err().kind(), ErrorKind::Retry);
        refuses.set(true);
        assert_eq!(promoting.await.unwrap().unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(small.back(sequence + 1).await.unwrap().outcome, InlineOutcome::Written);
        small.page[0] = b'C';
        assert_eq!(small.bytes().await, small.page[..100]);
        peer.abort();
    });
}

// SEMANTICS 118.1
#[test]
fn a_session_that_ends_while_its_bytes_arrive_has_no_lease_by_them() {
    const LARGE: usize = 256 << 10;
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let target = lane_of_a_file(&mut client, InodeId::ROOT, SLOT).await;
        let gate = Gate::before(&server.address).await;
        let mut slow = client.another(&gate.address).await;
        gate.let_pass(100 << 10);
        let header = slow.header(Kind::WriteChunk, 10, 0);
        let request = WriteChunk { target, offset: 0, origin: WriteOrigin::Through };
        slow.begin_write(header, &request, &[1; LARGE]).await;
        gate.drained().await;
        let (place, session) = (place_of(target.lane), client.session);
        let has_lease = || server.look(move |server| server.data.leases.borrow().has_lease(place, session));
        while !has_lease().await {
            tokio::task::yield_now().await;
        }
        client.ask(&CloseSession {}).await.unwrap();
        gate.let_pass(usize::MAX);
        assert!(slow.answer::<ChunkWritten>().await.is_err());
        assert!(!has_lease().await);
    });
}

// SEMANTICS 119.5
#[test]
fn a_session_that_is_late_with_a_page_of_a_small_file_is_so_when_the_file_has_grown() {
    let server = TestServer::start(1);
    run(async {
        let mut small = small(&server, SLOT).await;
        small.page[50] = b'!';
        small.begin_to_change_first().await;
        let mut listener = small.holder.another(&server.address).await;
        assert!(waits(&mut listener, small.changer.connection.read_request()).await);
        pass(&server).await;
        small.changer.answer::<InlineWritten>().await.unwrap();
        let promoted: Promoted =
            small.changer.change(4, 3, &promote(small.inode, FirstPage::Locked)).await.unwrap();
        small.target.generation = promoted.size.generation;
        // What it reads elsewhere in the lane does not make that page valid.
        small.keep_of_lane(2 * PAGE as u64).await;
        assert_eq!(small.back_to_lane(2).await.unwrap_err().kind(), ErrorKind::Stale);
        let told =
            listener.ask(&Listen { leases: true, acknowledged: 0, received: 0, life: 0 }).await.unwrap();
        let done = told.data.iter().map(|recall| recall.number).collect();
        listener.ask(&EndRecalls { done, ..EndRecalls::default() }).await.unwrap();
        // It has dropped the page, and reads it anew.
        small.keep_of_lane(0).await;
        small.page[0] = b'C';
        small.back_to_lane(3).await.unwrap();
        let page = small.changer.read(small.target, 0, 100).await.unwrap();
        assert_eq!(page, small.page[..100]);
    });
}

// SEMANTICS 119.5
#[test]
fn what_was_stored_beside_a_change_is_refused_and_not_merged_wrongly_when_the_file_has_grown_meanwhile() {
    let server = TestServer::start(1);
    run(async {
        let mut small = small(&server, SLOT).await;
        small.page[50] = b'!';
        small.change_first(&server).await;
        let promoted: Promoted =
            small.holder.change(2, 1, &promote(small.inode, FirstPage::Locked)).await.unwrap();
        small.target.generation = promoted.size.generation;
        assert_eq!(small.back_to_lane(3).await.unwrap_err().kind(), ErrorKind::Stale);
        assert_eq!(small.changer.read(small.target, 0, 2).await.unwrap(), b"C.");
    });
}

// SEMANTICS 116
#[test]
fn who_reads_behind_the_bytes_of_a_small_file_has_not_read_its_page_anew() {
    let server = TestServer::start(1);
    run(async {
        let mut small = small(&server, SLOT).await;
        small.change_first(&server).await;
        let behind = ReadInline { offset: PAGE as u64, length: 0, ..keep(small.inode) };
        small.holder.ask(&behind).await.unwrap();
        small.page[50] = b'!';
        assert_eq!(small.back(2).await.unwrap().outcome, InlineOutcome::Written);
        small.page[0] = b'C';
        assert_eq!(small.bytes().await, small.page[..100]);
    });
}

// SEMANTICS 114.2
#[test]
fn a_promotion_waits_for_its_own_page_if_others_have_changed_it() {
    let server = TestServer::start(1);
    run(async {
        let mut small = small(&server, SLOT).await;
        small.begin_to_change_first().await;
        let mut listener = small.holder.another(&server.address).await;
        assert!(waits(&mut listener, small.changer.connection.read_request()).await);
        let mut promoter = small.holder.another(&server.address).await;
        let header = promoter.header(Kind::Promote, 2, 1);
        promoter.begin_write(header, &promote(small.inode, FirstPage::Locked), &[]).await;
        assert!(waits(&mut listener, promoter.connection.read_request()).await);
        // Its kernel writes the page back before it drops it, and what both have changed is merged.
        small.page[50] = b'!';
        let back = write(small.inode, 0, &small.page, WriteOrigin::Back);
        assert_eq!(small.holder.change(3, 1, &back).await.unwrap().outcome, InlineOutcome::Written);
        let ask = Listen { leases: true, acknowledged: 0, received: 0, life: 0 };
        let done = listener.ask(&ask).await.unwrap().data.iter().map(|recall| recall.number).collect();
        listener.ask(&EndRecalls { done, ..EndRecalls::default() }).await.unwrap();
        let (promoted, _) = promoter.answer::<Promoted>().await.unwrap();
        small.changer.answer::<InlineWritten>().await.unwrap();
        small.target.generation = promoted.size.generation;
        let merged = small.changer.read(small.target, 0, 51).await.unwrap();
        assert_eq!((merged[0], merged[50]), (b'C', b'!'));
    });
}

// SEMANTICS 114.2
#[test]
fn who_promotes_a_file_waits_for_all_who_have_its_page_and_not_for_whose_kernel_reads_it() {
    for first_page in [FirstPage::Locked, FirstPage::Read] {
        let server = TestServer::start(1);
        run(async {
            let mut small = small(&server, SLOT).await;
            small.changer.ask(&keep(small.inode)).await.unwrap();
            let mut listener = small.holder.another(&server.address).await;
            let header = small.holder.header(Kind::Promote, 2, 1);
            small.holder.begin_write(header, &promote(small.inode, first_page), &[]).await;
            assert!(waits(&mut listener, small.holder.connection.read_request()).await);
            let header = small.changer.header(Kind::Promote, 3, 2);
            small.changer.begin_write(header, &promote(small.inode, FirstPage::Locked), &[]).await;
            let has_waited = waits(&mut listener, small.changer.connection.read_request()).await;
            assert_eq!(has_waited, first_page != FirstPage::Read);
        });
    }
}

// SEMANTICS 114.2
#[test]
fn whoever_changes_the_first_page_of_a_file_that_has_grown_waits_for_the_kernel_that_has_it_from_before() {
    for first_page in [FirstPage::Locked, FirstPage::Read] {
        let server = TestServer::start(1);
        run(async {
            let mut small = small(&server, SLOT).await;
            let mut listener = small.holder.another(&server.address).await;
            let ask = Listen { leases: true, acknowledged: 0, received: 0, life: 0 };
            listener.ask(&Listen { life: u64::MAX, ..ask }).await.unwrap();
            let _: Promoted = small.holder.change(2, 1, &promote(small.inode, first_page)).await.unwrap();
            let write = WriteChunk { target: small.target, offset: 0, origin: WriteOrigin::Program };
            // Its own writes wait for nobody.
            let header = small.holder.header(Kind::WriteChunk, 3, 2);
            small.holder.begin_write(header, &write, b"h").await;
            small.holder.answer::<ChunkWritten>().await.unwrap();
            let header = small.changer.header(Kind::WriteChunk, 3, 2);
            small.changer.begin_write(header, &WriteChunk { offset: 1, ..write }, b"c").await;
            assert!(waits(&mut listener, small.changer.connection.read_request()).await);
            let of_lane = listener.ask(&ask).await.unwrap().data;
            let of_lane = of_lane.iter().filter(|recall| recall.lane == Some(0)).map(|recall| recall.number);
            listener.ask(&EndRecalls { done: of_lane.collect(), ..EndRecalls::default() }).await.unwrap();
            small.changer.answer::<ChunkWritten>().await.unwrap();
        });
    }
}

// SEMANTICS 119.5
#[test]
fn lane_0_asks_the_files_home_about_the_first_page_once() {
    let server = TestServer::start(2);
    run(async {
        let asked = Rc::new(Cell::new(0));
        let answer = Rc::new(RefCell::new(Vec::new()));
        let refuses = Rc::new(Cell::new(true));
        let says = {
            let (asked, answer, refuses) = (asked.clone(), answer.clone(), refuses.clone());
            move |kind| match kind {
                Kind::QueryPages => {
                    asked.set(asked.get() + 1);
                    Some(match refuses.get() {
                        true => Err(Error::new(ErrorKind::Stale, "others have changed them")),
                        false => Ok(encode_body(&())),
                    })
                }
                _ => Some(Ok(answer.borrow().clone())),
            }
        };
        let peer = false_server(&server, Rc::new(says)).await;
        let mut client = Client::user(&server.address, 1).await;
        let map = client.ask(&GetMap {}).await.unwrap();
        let slot_of =
            |server| (0..).map(Slot).find(|slot| map.primary(*slot) == Some(ServerId(server))).unwrap();
        let (lane, slot) = (LaneId { inode: InodeId::new(slot_of(1), 9), lane: 0 }, slot_of(0));
        let (generation, created) = (Generation(2), map.epoch);
        let layout =
            Layout { stripe_unit: 1 << 16, width: 1, base_slot: slot, stride: 1, copies: 1, created };
        *answer.borrow_mut() = encode_body(&InodeAnswer {
            generation,
            size: 5,
            smallest_size: None,
            layout,
            place: BytesPlace::Lanes,
            kept_by: Vec::new(),
        });
        let target = LaneTarget { lane, slot, generation, created, permit: None };
        let mut back = async |sequence: u64, offset: u64| {
            let header = client.header(Kind::WriteChunk, sequence, sequence as u32 - 1);
            let request = WriteChunk { target, offset, origin: WriteOrigin::Back };
            client.begin_write(header, &request, &[1; PAGE]).await;
            client.answer::<ChunkWritten>().await.map(drop)
        };
        back(1, PAGE as u64).await.unwrap();
        assert_eq!(asked.get(), 0, "a small file has one page");
        assert_eq!(back(2, 0).await.unwrap_err().kind(), ErrorKind::Stale);
        refuses.set(false);
        for sequence in 3..6 {
            back(sequence, 0).await.unwrap();
        }
        assert_eq!(asked.get(), 2);
        let (place, session) = (place_of(lane), SessionId([1; 16]));
        let first = ByteRange { start: 0, end: 1 };
        server
            .look(move |server| {
                let mut leases = server.data.leases.borrow_mut();
                leases.end_session(session);
                assert!(leases.may_be_small(place, session, first));
                leases.keep(place, session, first, 0);
                assert!(!leases.may_be_small(place, session, first), "it has the page from here");
            })
            .await;
        peer.abort();
    });
}
