//! A program with a host key that lies: it reaches only the bytes of files that it has opened.

use ramlace_base::{Epoch, Error, ErrorKind, InodeId, LaneId, Name, Sequence, SessionId, Slot};
use ramlace_wire::chunk::{
    AllocateLane, ChunkRead, CountLane, ExtendChunk, GrantLane, GrantPassthrough, Keep, LaneTarget,
    PunchChunk, ReadChunk, SeekLane, Sought, WriteChunk, WriteOrigin,
};
use ramlace_wire::coordination::{CellChange, ChangeCell, ChangeInlineCell, NoteChange, WatchChange};
use ramlace_wire::inline::{Bytes, InlineMode, ReadInline, WriteInline};
use ramlace_wire::namespace::{Close, Create, InodeInfo, LayoutWish, Open, Opened};
use ramlace_wire::permit::GetPermit;
use ramlace_wire::runs::{LaneRuns, Strided, Tile};
use ramlace_wire::session::{CloseSession, SessionKind};
use ramlace_wire::{Kind, Layout, Permit, Request, Shows, encode_body};

use crate::testing::{Answered, Client, TestServer, run};

const SLOT: Slot = Slot(0);
const PAGE: usize = 4096;
const BYTES: [u8; 4 * PAGE] = [b'.'; 4 * PAGE];

/// Creates an inline file of the owner's with this mode.
async fn create(owner: &mut Client, number: u64, name: &str, mode: u16) -> InodeInfo {
    let layout =
        Layout { stripe_unit: 64 << 10, width: 1, base_slot: SLOT, stride: 1, copies: 1, created: Epoch(1) };
    let create = Create {
        parent: InodeId::ROOT,
        name: Name::new(name).unwrap(),
        mode: mode.into(),
        exclusive: true,
        read: true,
        write: true,
        layout: Some(layout),
        wish: LayoutWish::default(),
        named: Vec::new(),
    };
    let opened: Opened = owner.change(number, 0, &create).await.unwrap();
    assert_eq!(opened.permit, None, "who has the secret needs none");
    opened.info
}

/// Creates a file of the owner's that all users may read and write, and whose bytes are in its lane.
async fn make(owner: &mut Client, number: u64, name: &str) -> LaneTarget {
    let attributes = create(owner, number, name, 0o666).await.attributes;
    let (inode, generation) = (attributes.inode, attributes.generation);
    owner.promote(number, inode).await.unwrap();
    let target = LaneTarget {
        lane: LaneId { inode, lane: 0 },
        slot: SLOT,
        generation,
        created: Epoch(1),
        permit: None,
    };
    owner.write(number + 1, 0, target, 0, &BYTES).await.unwrap();
    target
}

/// Creates an inline file and one whose bytes are in its lane, which all users may read and write.
pub async fn two_files(owner: &mut Client) -> (InodeId, LaneTarget) {
    (create(owner, 1, "small", 0o666).await.attributes.inode, make(owner, 2, "large").await)
}

/// The session of a host; it names no user, and so has the rights of nobody.
async fn host(owner: &Client, address: &str, session: u8) -> Client {
    let mut client = Client::connect(address, SessionId([session; 16]), SessionKind::Host).await;
    client.epoch = owner.epoch;
    client
}

async fn open(client: &mut Client, sequence: u64, target: LaneTarget, read: bool, write: bool) -> Permit {
    let inode = target.lane.inode;
    let opened = client.change(sequence, 0, &Open { inode, read, write, run: false }).await.unwrap();
    opened.permit.expect("a host's open brings one")
}

/// Numbers its mutations; each acknowledges the answers before it.
struct Liar<'a> {
    client: &'a mut Client,
    sequence: u64,
}

impl Liar<'_> {
    async fn try_one<R: Request>(&mut self, request: &R) -> (Kind, Answered<()>) {
        self.sequence += 1;
        let sequence = if R::KIND.row().changes { self.sequence } else { 0 };
        (R::KIND, self.client.change(sequence, 0, request).await.map(drop))
    }

    /// Tries every request about a lane.
    async fn try_all(&mut self, target: LaneTarget) -> Vec<(Kind, Answered<()>)> {
        let (offset, length, inode) = (0, PAGE as u64, target.lane.inode);
        let mut came = Vec::new();
        let read = ReadChunk { target, offset, length: PAGE as u32, keep: Keep::No, take: false };
        self.client.connection.queue_reply(
            self.client.header(Kind::ReadChunk, 0, 0),
            &encode_body(&read),
            &[],
        );
        self.client.connection.flush().await.unwrap();
        came.push((Kind::ReadChunk, self.client.answer::<ChunkRead>().await.map(drop)));
        self.sequence += 1;
        came.push((Kind::WriteChunk, self.client.write(self.sequence, 0, target, offset, b"a lie").await));
        came.push(self.try_one(&PunchChunk { target, offset, length }).await);
        came.push(self.try_one(&GrantLane { target, mapping: Some(1) }).await);
        came.push(self.try_one(&AllocateLane { target, offset, length, more: 0, keep_size: false }).await);
        let stores = true;
        let passthrough = GrantPassthrough { target, passthrough: 1, length: 4 * length, stores };
        came.push(self.try_one(&passthrough).await);
        came.push(self.try_one(&CountLane { target }).await);
        came.push(self.try_one(&SeekLane { target, offset, sought: Sought::Data }).await);
        let runs = vec![Tile::once(vec![Strided { offset: 0, length: 8, count: 2, stride: 16 }])];
        let runs = LaneRuns::new(runs).unwrap();
        came.push((Kind::ReadRuns, self.client.read_runs(target, runs.clone()).await.map(drop)));
        self.sequence += 1;
        let written = self.client.write_runs(self.sequence, target, runs, b"sixteen lies now").await;
        came.push((Kind::WriteRuns, written));
        self.sequence += 2;
        let extend = ExtendChunk {
            write: WriteChunk { target, offset, origin: WriteOrigin::Program },
            size: length,
            from: offset,
            sequence: Sequence(self.sequence - 1),
            outstanding: 0,
        };
        let extended = self.client.extend_chunk(self.sequence, &extend, b"a lie").await;
        came.push((Kind::ExtendChunk, extended.map(drop)));
        came.push(self.try_one(&ChangeCell { target, offset, change: CellChange::Add(1) }).await);
        let watch = WatchChange { inode, lane: Some(target), start: 0, end: 8, since: None, wait: 0 };
        came.push(self.try_one(&watch).await);
        came.push(self.try_one(&NoteChange { target, start: 0, end: length, over: None }).await);
        came
    }
}

/// Whether the error is the one for a missing permit.
fn says_not_opened(error: &Error, inode: InodeId) -> bool {
    error.kind() == ErrorKind::Denied
        && error.message().contains("has not opened")
        && error.message().contains(&inode.to_string())
}

fn refused(came: &[(Kind, Answered<()>)], inode: InodeId) -> Vec<Kind> {
    let denied = |told: &Answered<()>| told.as_ref().is_err_and(|error| says_not_opened(error, inode));
    came.iter().filter(|(_, told)| denied(told)).map(|(kind, _)| *kind).collect()
}

/// The memory of a file is an attribute: the path to the file gives the right to it.
fn all_but_counting() -> Vec<Kind> {
    // A message that also changes the home reveals more than bytes.
    let is_of_lane = |kind: &&Kind| kind.row().shows == Shows::Bytes || **kind == Kind::ExtendChunk;
    let lanes = Kind::ALL.iter().filter(is_of_lane);
    lanes.copied().filter(|kind| *kind != Kind::CountLane).collect()
}

// SEMANTICS 130.1
#[test]
fn a_host_that_lies_reaches_no_byte_of_a_file_that_it_has_not_opened() {
    let server = TestServer::start(1);
    run(async {
        let mut owner = Client::user(&server.address, 1).await;
        let (mine, other) = (make(&mut owner, 1, "mine").await, make(&mut owner, 3, "other").await);
        let mut client = host(&owner, &server.address, 2).await;
        let mut neighbour = host(&owner, &server.address, 3).await;
        let permit = open(&mut client, 1, mine, true, true).await;
        let its = open(&mut neighbour, 1, other, true, true).await;
        let mut liar = Liar { client: &mut client, sequence: 1 };
        // No permit, one for another file, one of another session, both halves swapped, and one bit wrong.
        let swapped = Permit { read: permit.write, write: permit.read };
        for (target, shown) in
            [(other, None), (other, Some(permit)), (other, Some(its)), (mine, Some(swapped))]
        {
            let came = liar.try_all(LaneTarget { permit: shown, ..target }).await;
            assert_eq!(refused(&came, target.lane.inode), all_but_counting(), "{came:?}");
        }
        for bit in 0..64 {
            let mut flipped = permit;
            flipped.read[bit / 8] ^= 1 << (bit % 8);
            let target = LaneTarget { permit: Some(flipped), ..mine };
            let error = liar.client.read(target, 0, 8).await.unwrap_err();
            assert!(says_not_opened(&error, mine.lane.inode), "{error}");
        }
        for target in [mine, other] {
            assert_eq!(owner.read(target, 0, BYTES.len() as u32).await.unwrap(), BYTES);
        }
        // With the right one everything is allowed, except for memory, which is sent only over Unix sockets.
        let came = liar.try_all(LaneTarget { permit: Some(permit), ..mine }).await;
        let fails: Vec<Kind> = came.iter().filter(|(_, told)| told.is_err()).map(|(kind, _)| *kind).collect();
        assert_eq!(refused(&came, mine.lane.inode), [], "{came:?}");
        assert_eq!(fails, [Kind::GrantLane, Kind::GrantPassthrough], "{came:?}");
    });
}

// SEMANTICS 130.1
#[test]
fn who_opened_for_reading_writes_nothing_and_who_opened_for_writing_reads_nothing() {
    const READS: [Kind; 3] = [Kind::ReadChunk, Kind::ReadRuns, Kind::WatchChange];
    const WRITES: [Kind; 6] = [
        Kind::WriteChunk,
        Kind::WriteRuns,
        Kind::ExtendChunk,
        Kind::PunchChunk,
        Kind::AllocateLane,
        Kind::NoteChange,
    ];
    const BOTH: [Kind; 3] = [Kind::GrantLane, Kind::GrantPassthrough, Kind::ChangeCell];
    let server = TestServer::start(1);
    run(async {
        let mut owner = Client::user(&server.address, 1).await;
        let file = make(&mut owner, 1, "file").await;
        let inode = file.lane.inode;
        let mut client = host(&owner, &server.address, 2).await;
        let permit = open(&mut client, 1, file, true, false).await;
        let reading = LaneTarget { permit: Some(permit), ..file };
        let came = Liar { client: &mut client, sequence: 1 }.try_all(reading).await;
        let (denied, is_in) = (refused(&came, inode), |kinds: &[Kind], kind: &Kind| kinds.contains(kind));
        assert!(denied.iter().all(|kind| is_in(&WRITES, kind) || is_in(&BOTH, kind)), "{denied:?}");
        assert_eq!(denied.len(), WRITES.len() + BOTH.len(), "{denied:?}");
        // A reader may not take memory for pages into which programs store.
        let taking = ReadChunk { target: reading, offset: 0, length: 8, keep: Keep::No, take: true };
        let owning = ReadChunk { keep: Keep::Own, take: false, ..taking };
        for request in [taking, owning] {
            let error = client.change(0, 0, &request).await.unwrap_err();
            assert!(says_not_opened(&error, inode), "{error}");
        }
        assert_eq!(owner.read(file, 0, BYTES.len() as u32).await.unwrap(), BYTES);

        let mut writer = host(&owner, &server.address, 3).await;
        let permit = open(&mut writer, 1, file, false, true).await;
        let writing = LaneTarget { permit: Some(permit), ..file };
        let came = Liar { client: &mut writer, sequence: 1 }.try_all(writing).await;
        let denied = refused(&came, inode);
        assert!(denied.iter().all(|kind| is_in(&READS, kind) || is_in(&BOTH, kind)));
        assert_eq!(denied.len(), READS.len() + BOTH.len(), "{denied:?}");
        // Nor may a writer's kernel read, and a reader's may.
        for (client, target, may) in [(&mut writer, writing, false), (&mut client, reading, true)] {
            let passthrough = GrantPassthrough { target, passthrough: 1, length: 0, stores: false };
            let (_, told) = Liar { client, sequence: 100 }.try_one(&passthrough).await;
            assert_eq!(!says_not_opened(&told.unwrap_err(), inode), may);
        }
        // A session that has opened the file twice, for one right each, has both.
        let permit = open(&mut writer, 100, file, true, false).await;
        writer.read(LaneTarget { permit: Some(permit), ..file }, 0, 8).await.unwrap();
        writer.write(101, 0, LaneTarget { permit: Some(permit), ..file }, 0, b"both").await.unwrap();
    });
}

// SEMANTICS 130.1
#[test]
fn bytes_that_live_with_their_inode_are_as_closed_as_those_in_lanes() {
    let server = TestServer::start(1);
    run(async {
        let mut owner = Client::user(&server.address, 1).await;
        let closed = create(&mut owner, 1, "closed", 0o600).await.attributes.inode;
        let inode = create(&mut owner, 2, "letters", 0o602).await.attributes.inode;
        let write = |inode| WriteInline {
            inode,
            mode: InlineMode::At,
            offset: 0,
            bytes: Bytes(b"a letter".to_vec()),
            origin: WriteOrigin::Program,
        };
        let read = |inode, length| ReadInline { inode, offset: 0, length, keep: false };
        let count = |inode| ChangeInlineCell { inode, offset: 0, change: CellChange::Add(0) };
        owner.change(3, 0, &write(inode)).await.unwrap();
        let mut client = host(&owner, &server.address, 2).await;
        let mut liar = Liar { client: &mut client, sequence: 1 };
        for length in [0, 8] {
            let (_, told) = liar.try_one(&read(closed, length)).await;
            assert_eq!(told.unwrap_err().kind(), ErrorKind::Denied);
        }
        for (_, told) in [liar.try_one(&write(closed)).await, liar.try_one(&count(closed)).await] {
            assert_eq!(told.unwrap_err().kind(), ErrorKind::Denied);
        }
        // A session that may only write learns the number of bytes, but none of the bytes: also not by a
        // change that changes nothing.
        liar.try_one(&Open { inode, read: false, write: true, run: false }).await.1.unwrap();
        liar.try_one(&write(inode)).await.1.unwrap();
        for (_, told) in [liar.try_one(&read(inode, 8)).await, liar.try_one(&count(inode)).await] {
            assert_eq!(told.unwrap_err().kind(), ErrorKind::Denied);
        }
        let told = client.ask(&read(inode, 0)).await.unwrap();
        assert_eq!((told.size.size, told.bytes), (8, Some(Bytes(Vec::new()))));
    });
}

// SEMANTICS 130.1
#[test]
fn a_permit_outlives_its_server_and_not_its_session() {
    let mut server = TestServer::start(1);
    let (file, permit) = run(async {
        let mut owner = Client::user(&server.address, 1).await;
        let file = make(&mut owner, 1, "file").await;
        let mut client = host(&owner, &server.address, 2).await;
        (file, open(&mut client, 1, file, true, true).await)
    });
    server.kill();
    server.revive();
    run(async {
        let owner = Client::user(&server.address, 4).await;
        let allowed = LaneTarget { permit: Some(permit), ..file };
        let mut client = host(&owner, &server.address, 2).await;
        assert_eq!(client.read(allowed, 0, 8).await.unwrap(), BYTES[..8]);
        // The same answer is sent again, and its permit is for what is open by now.
        let inode = file.lane.inode;
        let again = client.change(1, 0, &Open { inode, read: true, write: true, run: false }).await.unwrap();
        assert_eq!(again.permit, Some(permit));
        assert_eq!(client.ask(&GetPermit { inode }).await.unwrap(), Some(permit));
        client.change(2, 0, &Close { inode, modified: None, leases: false }).await.unwrap();
        assert_eq!(client.ask(&GetPermit { inode }).await.unwrap(), Some(Permit::default()));
        client.ask(&CloseSession {}).await.unwrap();
        let mut other = host(&owner, &server.address, 5).await;
        assert!(says_not_opened(&other.read(allowed, 0, 8).await.unwrap_err(), inode));
    });
}
