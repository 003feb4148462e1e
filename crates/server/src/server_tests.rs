//! Whole servers, driven through their sockets: the results of late, repeated and wrong requests.

use ramlace_base::{
    Epoch, ErrorKind, Generation, InodeId, LaneId, Name, Sequence, SessionId, Slot, Timestamp, limits,
};
use ramlace_transport::nonblocking::Connection;
use ramlace_wire::chunk::{
    AllocateLane, ChunkWritten, ExtendChunk, LaneTarget, PunchChunk, WriteChunk, WriteOrigin,
};
use ramlace_wire::coordination::{CellChange, CellChanged, ChangeCell, ChangeInlineCell};
use ramlace_wire::inline::Bytes;
use ramlace_wire::namespace::{Create, Extend, GetAttributesMany, Opened, SizeInfo, Truncate};
use ramlace_wire::peer::{CutLane, Decide, DropLane, FillLane, IntentStamp, Part, Prepare, Token, TrimLane};
use ramlace_wire::runs::{LaneRuns, Strided, Tile};
use ramlace_wire::session::{CloseSession, GetServerStatus, OpenSession, SessionKind};
use ramlace_wire::{Asker, Credentials, Header, Kind, Layout, Owner, Request};

use crate::gate::Call;

use crate::testing::{Client, Dice, Gate, SLOTS, TestServer, run};

const UNIT: u64 = 64 << 10;

pub fn layout(width: u16) -> Layout {
    Layout { stripe_unit: UNIT, width, base_slot: Slot(3), stride: 1, copies: 1, created: Epoch(1) }
}

pub async fn create(client: &mut Client, sequence: u64, name: &str, layout: Layout) -> Opened {
    let opened = create_inline(client, sequence, name, layout).await;
    client.promote(sequence, opened.info.attributes.inode).await.unwrap();
    opened
}

async fn create_inline(client: &mut Client, sequence: u64, name: &str, layout: Layout) -> Opened {
    let name = Name::new(name).unwrap();
    let request = Create {
        parent: InodeId::ROOT,
        name,
        mode: 0o644.into(),
        exclusive: true,
        read: true,
        write: true,
        layout: Some(layout),
        wish: ramlace_wire::namespace::LayoutWish::default(),
        named: Vec::new(),
    };
    client.change(sequence, 0, &request).await.unwrap()
}

/// Lane 0 of a file in its present generation.
pub fn target(opened: &Opened) -> LaneTarget {
    let attributes = &opened.info.attributes;
    let layout = opened.info.layout.unwrap();
    LaneTarget {
        lane: LaneId { inode: attributes.inode, lane: 0 },
        slot: layout.base_slot,
        generation: attributes.generation,
        created: layout.created,
        permit: None,
    }
}

#[test]
fn a_generation_that_is_yet_to_come_is_refused() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let mut target = target(&create(&mut client, 1, "file", layout(1)).await);
        let future = LaneTarget { generation: Generation(9), ..target };
        assert_eq!(client.write(2, 0, future, 0, b"new").await.unwrap_err().kind(), ErrorKind::Invalid);
        client.write(3, 0, target, 0, b"now").await.unwrap();
        assert_eq!(client.write(4, 0, future, 0, b"new").await.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(client.read(future, 0, 3).await.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(client.read(target, 0, 3).await.unwrap(), b"now");
        target.generation = Generation(0);
        assert_eq!(client.read(target, 0, 3).await.unwrap_err().kind(), ErrorKind::Retry);
    });
}

// SEMANTICS 19.1
#[test]
fn what_a_client_has_sent_before_it_died_is_not_begun_any_more() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let target = target(&create(&mut client, 1, "file", layout(1)).await);
        for (number, length) in [(10, 1_000), (20, 40_000)] {
            for dies in [false, true] {
                client.write(number + u64::from(dies), 0, target, 0, &vec![b'o'; length]).await.unwrap();
                let mut other = client.another(&server.address).await;
                let header = other.header(Kind::WriteChunk, number + 5 + u64::from(dies), 9);
                let request = WriteChunk { target, offset: 0, origin: WriteOrigin::Program };
                let (go, waits) = std::sync::mpsc::channel();
                let (begins, is_busy) = tokio::sync::oneshot::channel();
                // The server does something else until the request is in its socket, and its sender has gone.
                let busy = server.within(move |_| {
                    begins.send(()).unwrap();
                    waits.recv().unwrap();
                });
                let send = async {
                    is_busy.await.unwrap();
                    other.begin_write(header, &request, &vec![b'n'; length]).await;
                    let other = (!dies).then_some(other);
                    go.send(()).unwrap();
                    other
                };
                let ((), other) = tokio::join!(busy, send);
                if let Some(mut other) = other {
                    other.answer::<ChunkWritten>().await.unwrap();
                }
                let is = if dies { b'o' } else { b'n' };
                let there = client.read(target, 0, length as u32).await.unwrap();
                assert!(there == vec![is; length], "{length}, {dies}");
            }
        }
    });
}

// SEMANTICS 137.5
#[test]
fn an_extension_goes_with_the_bytes_and_comes_again_with_them() {
    let mut server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let opened = create_inline(&mut client, 1, "file", layout(1)).await;
        let target = target(&opened);
        let inode = target.lane.inode;
        let write = |offset| WriteChunk { target, offset, origin: WriteOrigin::Program };
        let extend = |offset, size, sequence| ExtendChunk {
            write: write(offset),
            size,
            from: offset,
            sequence: Sequence(sequence),
            outstanding: 0,
        };
        let told = |size| Some(SizeInfo { size, generation: Generation::FIRST });
        // The file is promoted to its lanes for this.
        for again in [false, true] {
            let extended = client.extend_chunk(2, &extend(0, 5, 3), b"first").await.unwrap();
            assert_eq!(extended.size, told(5), "again: {again}");
        }
        assert_eq!(client.size_of(inode).await, 5);
        for (number, outstanding) in [(0, 0), (4, 5)] {
            let request = ExtendChunk { outstanding, ..extend(5, 9, number) };
            let refused = client.extend_chunk(9, &request, b"none").await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        }
        // What the home refuses is not reported, and the bytes are there.
        let request = ExtendChunk { write: write(5), size: u64::MAX, ..extend(5, 9, 5) };
        assert_eq!(client.extend_chunk(4, &request, b"here").await.unwrap().size, None);
        assert_eq!(client.size_of(inode).await, 5);
        assert_eq!(client.read(target, 0, 9).await.unwrap(), b"firsthere");
        assert_eq!(client.extend_chunk(6, &extend(9, 13, 7), b"last").await.unwrap().size, told(13));
        // After a restart both are there, and neither is done again.
        server.kill();
        server.revive();
        let mut client = Client::connect(&server.address, SessionId([1; 16]), SessionKind::User).await;
        while client.ask(&GetServerStatus {}).await.is_err() {}
        assert_eq!(client.size_of(inode).await, 13);
        client.write(8, 0, target, 9, b"LAST").await.unwrap();
        assert_eq!(
            client.extend_chunk(6, &extend(9, 13, 7), b"last").await.unwrap_err().kind(),
            ErrorKind::Stale
        );
        assert_eq!(client.read(target, 0, 13).await.unwrap(), b"firsthereLAST");
    });
}

#[test]
fn lanes_that_are_not_the_files_do_not_begin() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let right = target(&create(&mut client, 1, "file", layout(2)).await);
        let lane = |lane| LaneId { lane, ..right.lane };
        for (sequence, wrong) in [
            (2, LaneTarget { lane: lane(2), slot: Slot(5), ..right }),
            (3, LaneTarget { slot: Slot(4), ..right }),
            (4, LaneTarget { lane: lane(1), ..right }),
        ] {
            let refused = client.write(sequence, 0, wrong, 0, b"x").await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        }
        let nowhere = LaneTarget { slot: Slot(SLOTS as u16), ..right };
        assert_eq!(client.write(5, 0, nowhere, 0, b"x").await.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(client.ask(&GetServerStatus {}).await.unwrap().lanes, 0);
    });
}

#[test]
fn huge_numbers_are_refused() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let target = target(&create(&mut client, 1, "file", layout(1)).await);
        client.write(2, 0, target, 0, b"here").await.unwrap();
        let mut sequence = 3;
        for (offset, length) in [(u64::MAX, 1), (u64::MAX, u64::MAX), (1 << 62, 1), (0, u64::MAX)] {
            let punch = PunchChunk { target, offset, length };
            assert_eq!(client.change(sequence, 0, &punch).await.unwrap_err().kind(), ErrorKind::TooBig);
            sequence += 1;
        }
        for (offset, length, kind) in [
            (0, u64::MAX, ErrorKind::TooBig),
            (u64::MAX, 1, ErrorKind::TooBig),
            (1 << 62, 1 << 62, ErrorKind::TooBig),
            (0, 1 << 62, ErrorKind::NoSpace),
            (1 << 61, 1 << 61, ErrorKind::NoSpace),
        ] {
            let allocate = AllocateLane { target, offset, length, more: 0, keep_size: false };
            assert_eq!(client.change(sequence, 0, &allocate).await.unwrap_err().kind(), kind);
            sequence += 1;
        }
        let write = client.write(sequence, 0, target, u64::MAX, b"x").await;
        assert_eq!(write.unwrap_err().kind(), ErrorKind::TooBig);
        client
            .change(sequence + 1, 0, &PunchChunk { target, offset: 1 << 40, length: 1 << 61 })
            .await
            .unwrap();
        assert_eq!(client.read(target, (1 << 62) - 4, 4).await.unwrap(), [0; 4]);
        assert_eq!(client.read(target, 0, 4).await.unwrap(), b"here");
    });
}

#[test]
fn attributes_of_too_many_at_once_are_refused() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let many = |count| GetAttributesMany { inodes: vec![InodeId::ROOT; count] };
        let most = limits::READDIR_ENTRIES_MAX as usize;
        assert_eq!(client.ask(&many(most)).await.unwrap().attributes.len(), most);
        assert_eq!(client.ask(&many(most + 1)).await.unwrap_err().kind(), ErrorKind::Invalid);
    });
}

#[test]
fn a_late_attempt_does_not_overwrite_newer_bytes() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let target = target(&create(&mut client, 1, "file", layout(1)).await);
        let length = 256 << 10;
        for retried in [false, true] {
            let gate = Gate::before(&server.address).await;
            let mut slow = Client::user(&gate.address, 1).await;
            let sequence = if retried { 20 } else { 10 };
            let header = slow.header(Kind::WriteChunk, sequence, 0);
            gate.let_pass(100 << 10);
            slow.begin_write(
                header,
                &WriteChunk { target, offset: 0, origin: WriteOrigin::Program },
                &vec![1; length],
            )
            .await;
            gate.drained().await;
            if retried {
                client.write(sequence, 0, target, 0, &vec![1; length]).await.unwrap();
            }
            // The number before it waits no more: it was answered, or abandoned.
            client.write(sequence + 1, 0, target, 0, &vec![2; length]).await.unwrap();
            gate.let_pass(usize::MAX);
            let late = slow.answer::<()>().await.unwrap_err();
            assert_eq!(late.kind(), ErrorKind::HostDown, "{late}");
            assert!(client.read(target, 0, length as u32).await.unwrap() == vec![2; length]);
            // And one that comes as late as this.
            for length in [length, 100] {
                let late = client.write(sequence, 0, target, 0, &vec![3; length]).await.unwrap_err();
                assert_eq!(late.kind(), ErrorKind::Stale, "{late}");
            }
            assert!(client.read(target, 0, length as u32).await.unwrap() == vec![2; length]);
        }
    });
}

#[test]
fn what_a_session_left_under_way_ends_with_it() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let opened = create(&mut client, 1, "file", layout(1)).await;
        let target = target(&opened);
        let gate = Gate::before(&server.address).await;
        let mut slow = Client::user(&gate.address, 1).await;
        let length = 256 << 10;
        let header = slow.header(Kind::WriteChunk, 2, 0);
        gate.let_pass(100 << 10);
        slow.begin_write(
            header,
            &WriteChunk { target, offset: 0, origin: WriteOrigin::Program },
            &vec![1; length],
        )
        .await;
        gate.drained().await;
        client.ask(&CloseSession {}).await.unwrap();
        gate.let_pass(usize::MAX);
        assert_eq!(slow.answer::<()>().await.unwrap_err().kind(), ErrorKind::Stale);
        // The connection on which the session was ended is closed with it.
        assert_eq!(client.ask(&GetServerStatus {}).await.unwrap_err().kind(), ErrorKind::HostDown);
    });
}

// SEMANTICS 82.2
#[test]
fn a_repeated_change_of_a_cell_counts_once() {
    let mut server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let target = target(&create(&mut client, 1, "lanes", layout(1)).await);
        let inode = target.lane.inode;
        client
            .change(2, 0, &Extend { inode, generation: target.generation, size: 64, from: 0 })
            .await
            .unwrap();
        let inline = create_inline(&mut client, 3, "inline", layout(1)).await.info.attributes.inode;
        client.change(4, 0, &Truncate { inode: inline, size: 64, allocated: None }).await.unwrap();
        let in_lane = |number| ChangeCell { target, offset: 8, change: CellChange::Add(number) };
        let at_home = |number| ChangeInlineCell { inode: inline, offset: 8, change: CellChange::Add(number) };
        // Numbers up to the one before are acknowledged, and no more.
        for (sequence, before) in [(5, 0), (10, 107)] {
            for life in 0..3 {
                let told = client.change(sequence, 0, &in_lane(7)).await.unwrap();
                assert_eq!(told, CellChanged { before, changed: true }, "attempt {life}");
                let told = client.change(sequence + 1, 1, &at_home(7)).await.unwrap();
                assert_eq!(told.cell, CellChanged { before, changed: true }, "attempt {life}");
                if life == 0 {
                    // Another client's change, which the first answer does not include.
                    let mut other = Client::user(&server.address, 2).await;
                    other.change(sequence, 0, &in_lane(100)).await.unwrap();
                    other.change(sequence + 1, 1, &at_home(100)).await.unwrap();
                } else {
                    server.kill();
                    server.revive();
                    client = Client::user(&server.address, 1).await;
                }
            }
        }
        let told = client.change(20, 0, &in_lane(0)).await.unwrap();
        let told_at_home = client.change(21, 0, &at_home(0)).await.unwrap().cell;
        assert_eq!((told.before, told_at_home.before), (214, 214));
    });
}

/// One file of one lane and its expected content.
struct Storm {
    server: TestServer,
    dice: Dice,
    client: Option<Client>,
    late: Vec<(Gate, Client)>,
    sequence: u64,
    target: LaneTarget,
    model: Vec<u8>,
}

impl Storm {
    async fn client(&mut self) -> &mut Client {
        if self.client.is_none() {
            self.client = Some(Client::user(&self.server.address, 1).await);
        }
        self.client.as_mut().unwrap()
    }

    fn take(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    async fn write(&mut self) {
        let offset = self.dice.roll(600 << 10);
        let most = [200, 64 << 10, 300 << 10][self.dice.roll(3) as usize];
        let length = 1 + self.dice.roll(most) as usize;
        let data: Vec<u8> = (0..length).map(|_| 1 + self.dice.roll(255) as u8).collect();
        let (sequence, target) = (self.take(), self.target);
        if self.dice.roll(3) == 0 {
            self.begin_and_leave(sequence, offset, &data).await;
        }
        // Sometimes twice: the second is answered and not done again.
        for _ in 0..1 + self.dice.roll(2) {
            self.client().await.write(sequence, 0, target, offset, &data).await.unwrap();
        }
        let end = offset as usize + length;
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[offset as usize..end].copy_from_slice(&data);
        let extend =
            Extend { inode: target.lane.inode, generation: target.generation, size: end as u64, from: 0 };
        let sequence = self.take();
        self.client().await.change(sequence, 0, &extend).await.unwrap();
    }

    /// Writes many runs in one request; what lies between them must stay.
    async fn write_runs(&mut self) {
        let (length, count) = (1 + self.dice.roll(6000), 1 + self.dice.roll(40));
        let (offset, stride) = (self.dice.roll(300 << 10), length + self.dice.roll(9000));
        let runs = vec![
            Strided { offset: 0, length, count, stride },
            Strided { offset: count * stride, length: 1, count: 1, stride: 0 },
        ];
        let runs = LaneRuns::new(vec![Tile { start: offset, runs, count: 1, stride: 0 }]).unwrap();
        let data: Vec<u8> = (0..length * count + 1).map(|_| 1 + self.dice.roll(255) as u8).collect();
        let (sequence, target) = (self.take(), self.target);
        for _ in 0..1 + self.dice.roll(2) {
            self.client().await.write_runs(sequence, target, runs.clone(), &data).await.unwrap();
        }
        let (end, mut at) = (runs.reach().hull.end as usize, 0);
        self.model.resize(self.model.len().max(end), 0);
        for run in runs.iter() {
            let length = run.length() as usize;
            self.model[run.start as usize..run.end as usize].copy_from_slice(&data[at..at + length]);
            at += length;
        }
        let size = end as u64;
        let extend = Extend { inode: target.lane.inode, generation: target.generation, size, from: 0 };
        let sequence = self.take();
        self.client().await.change(sequence, 0, &extend).await.unwrap();
        let read = self.client().await.read_runs(target, runs).await.unwrap();
        assert!(read == data);
    }

    /// A first attempt that gets stuck in transit, or whose connection ends.
    async fn begin_and_leave(&mut self, sequence: u64, offset: u64, data: &[u8]) {
        let gate = Gate::before(&self.server.address).await;
        let mut slow = Client::user(&gate.address, 1).await;
        gate.let_pass(64 + self.dice.roll(data.len() as u64) as usize);
        let header = slow.header(Kind::WriteChunk, sequence, 0);
        slow.begin_write(
            header,
            &WriteChunk { target: self.target, offset, origin: WriteOrigin::Program },
            data,
        )
        .await;
        gate.drained().await;
        if self.dice.roll(2) == 0 {
            self.late.push((gate, slow));
        }
    }

    async fn truncate(&mut self) {
        let size = self.dice.roll(900 << 10);
        let (sequence, inode) = (self.take(), self.target.lane.inode);
        let attributes = self
            .client()
            .await
            .change(sequence, 0, &Truncate { inode, size, allocated: None })
            .await
            .unwrap();
        self.target.generation = attributes.generation;
        self.model.resize(size as usize, 0);
    }

    async fn punch(&mut self) {
        let (offset, length) = (self.dice.roll(600 << 10), self.dice.roll(200 << 10));
        let (sequence, target) = (self.take(), self.target);
        for _ in 0..1 + self.dice.roll(2) {
            let punch = PunchChunk { target, offset, length };
            self.client().await.change(sequence, 0, &punch).await.unwrap();
        }
        let end = self.model.len().min((offset + length) as usize);
        if (offset as usize) < end {
            self.model[offset as usize..end].fill(0);
        }
    }

    async fn check(&mut self) {
        let (target, length) = (self.target, self.model.len());
        let bytes = self.client().await.read(target, 0, length as u32).await.unwrap();
        let differs = bytes.iter().zip(&self.model).position(|(is, should)| is != should);
        assert_eq!((differs, bytes.len()), (None, length), "after {} changes", self.sequence);
    }

    async fn step(&mut self) {
        match self.dice.roll(12) {
            0..3 => self.write().await,
            3..5 => self.write_runs().await,
            5 => self.truncate().await,
            6 => self.punch().await,
            7 => {
                self.client = None;
                self.server.kill();
                self.server.revive();
            }
            8 => self.late.iter().for_each(|(gate, _)| gate.let_pass(usize::MAX)),
            9 => self.late.clear(),
            _ => self.check().await,
        }
    }
}

#[test]
fn a_storm_of_writes_cuts_punches_kills_and_late_attempts_keeps_to_the_model() {
    for seed in 0..6 {
        let server = TestServer::start(1);
        run(async {
            let mut client = Client::user(&server.address, 1).await;
            let target = target(&create(&mut client, 1, "file", layout(1)).await);
            let mut storm = Storm {
                server,
                dice: Dice(seed),
                client: Some(client),
                late: Vec::new(),
                sequence: 1,
                target,
                model: Vec::new(),
            };
            for _ in 0..150 {
                storm.step().await;
            }
            storm.check().await;
        });
    }
}

#[test]
fn a_large_allocation_takes_turns_and_takes_nothing_when_it_does_not_fit() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let target = target(&create(&mut client, 1, "file", layout(1)).await);
        let before = client.ask(&GetServerStatus {}).await.unwrap().used_bytes;
        let refused = client
            .change(2, 0, &AllocateLane { target, offset: 0, length: 100 << 20, more: 0, keep_size: false })
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        assert!(client.ask(&GetServerStatus {}).await.unwrap().used_bytes < before + (64 << 10));
        // The same if it is the first part of that.
        let first = AllocateLane { target, offset: 0, length: 1 << 20, more: 99 << 20, keep_size: false };
        let refused = client.change(3, 0, &first).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        assert!(client.ask(&GetServerStatus {}).await.unwrap().used_bytes < before + (64 << 10));
        client.change(4, 0, &AllocateLane { more: 9 << 20, ..first }).await.unwrap();
        client.change(5, 0, &PunchChunk { target, offset: 0, length: 1 << 20 }).await.unwrap();
        // Far behind, but not farther than that.
        client
            .change(
                6,
                0,
                &AllocateLane { target, offset: 1 << 40, length: 3 << 20, more: 0, keep_size: false },
            )
            .await
            .unwrap();
        let used = client.ask(&GetServerStatus {}).await.unwrap().used_bytes - before;
        assert!((3 << 20..=8 << 20).contains(&used), "{used} bytes taken for 3 MiB");
        client.change(7, 0, &PunchChunk { target, offset: 1 << 40, length: 3 << 20 }).await.unwrap();
        client
            .change(8, 0, &AllocateLane { target, offset: 0, length: 80 << 20, more: 0, keep_size: false })
            .await
            .unwrap();
        assert!(client.ask(&GetServerStatus {}).await.unwrap().used_bytes >= 80 << 20);
        client.write(9, 0, target, 79 << 20, &vec![1; 1 << 20]).await.unwrap();
        assert_eq!(client.read(target, (79 << 20) - 1, 2).await.unwrap(), [0, 1]);
    });
}

#[test]
fn a_large_allocation_behind_what_a_lane_has_takes_nothing_when_it_does_not_fit() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let target = target(&create(&mut client, 1, "file", layout(1)).await);
        let there = AllocateLane { target, offset: 0, length: 40 << 20, more: 0, keep_size: false };
        client.change(2, 0, &there).await.unwrap();
        let before = client.ask(&GetServerStatus {}).await.unwrap().used_bytes;
        // As much as the lane has, and more than is free.
        let first =
            AllocateLane { target, offset: 40 << 20, length: 1 << 20, more: 69 << 20, keep_size: false };
        let refused = client.change(3, 0, &first).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        assert!(client.ask(&GetServerStatus {}).await.unwrap().used_bytes <= before);
        // Half of it is there already.
        client.change(4, 0, &AllocateLane { offset: 20 << 20, more: 49 << 20, ..first }).await.unwrap();
        client.change(5, 0, &AllocateLane { more: 9 << 20, ..first }).await.unwrap();
    });
}

/// A server with the pool's peer key that sends impossible messages: it is not trusted, and nothing changes.
#[test]
fn a_peer_that_says_the_impossible_loses_its_connection_and_changes_nothing() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let lane = target(&create(&mut client, 1, "file", layout(1)).await);
        client.write(2, 0, lane, 0, b"mine").await.unwrap();
        let facts = |server: &crate::server::Server| {
            let durable = server.durable.borrow();
            let slots: Vec<_> = durable.all_names().map(|slot| slot.slot_facts(|_| true)).collect();
            (slots, server.status().lanes)
        };
        let before = server.look(facts).await;

        let token = Token { session: SessionId([9; 16]), sequence: Sequence(1) };
        let far = u64::MAX;
        let of = |coordinator, number, open_from| IntentStamp {
            coordinator: Slot(coordinator),
            number,
            open_from,
        };
        let stamps = [of(5, far, 1), of(5, far, far), of(5, 1, 2), of(0, 1, 1), of(u16::MAX, 1, 1)];
        let made = |mode| Part::MakeDirectory {
            parent: InodeId::ROOT,
            mode,
            owner: Owner { uid: 0, gid: 0 },
            hints: Default::default(),
            lists: ramlace_wire::AccessLists::NONE,
        };
        for stamp in stamps {
            let decide = Decide { token, stamp, slot: Slot(0), commit: true, now: Timestamp { nanos: 1 } };
            refuses(&server, &decide).await;
            refuses(&server, &prepare(token, stamp, made(0o755))).await;
        }
        refuses(&server, &prepare(token, of(5, 1, 1), made(0o17777))).await;
        let cut = |generation, length| CutLane {
            by: SessionId::NONE,
            lane: lane.lane,
            slot: lane.slot,
            generation: Generation(generation),
            length,
        };
        for wrong in [cut(0, 0), cut(far, 0), cut(lane.generation.0 + 1, far)] {
            refuses(&server, &wrong).await;
        }
        let no_such = LaneId { lane: u16::MAX, ..lane.lane };
        refuses(&server, &TrimLane { lane: lane.lane, slot: lane.slot, passthroughs_over: far }).await;
        refuses(&server, &DropLane { lane: no_such, slot: lane.slot }).await;
        let bytes = Bytes(vec![1; 5000]);
        let fill = FillLane { lane: lane.lane, slot: lane.slot, generation: Generation(2), bytes };
        refuses(&server, &fill).await;

        assert_eq!(server.look(facts).await, before);
        assert_eq!(client.read(lane, 0, 4).await.unwrap(), b"mine");
    });
}

fn prepare(token: Token, stamp: IntentStamp, part: Part) -> Prepare {
    let (who, now) = (Credentials::new(0, 0), Timestamp { nanos: 1 });
    Prepare { token, stamp, slot: Slot(0), number: 1, who, now, part }
}

/// The connection on which this is sent is closed without an answer.
async fn refuses<R: Request + std::fmt::Debug>(server: &TestServer, request: &R) {
    let mut peer = Client::connect(&server.address, SessionId([9; 16]), SessionKind::Peer).await;
    peer.epoch = Epoch(1);
    let error = peer.ask(request).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HostDown, "{request:?}: {error}");
}

/// Each inode of a list is in a slot, and each made this server fetch the map: once, one request caused a
/// thousand fetches.
#[test]
fn a_request_with_a_future_epoch_asks_for_the_map_once() {
    let call = Call::new(&Header::request(Kind::GetAttributesMany));
    assert_eq!((0..1000).filter(|_| call.may_ask_for_map()).count(), 1);
}

/// Once, one host's session grew a server's memory, and its end freed nothing.
#[test]
fn what_is_kept_for_a_session_that_acknowledges_nothing_goes_with_it_also_after_a_restart() {
    let mut server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let kept = |server: &crate::server::Server| server.durable.borrow().kept.total();
        for number in 0..100 {
            let request =
                Create { named: vec![("a".into(), vec![1; 4000])], ..named(&format!("file{number}")) };
            client.change(number + 1, number as u32, &request).await.unwrap();
        }
        let most = server.look(kept).await;
        assert!((400_000..600_000).contains(&most), "{most}");
        // What is acknowledged is freed at once.
        client.change(101, 50, &named("one more")).await.unwrap();
        let fewer = server.look(kept).await;
        assert!((200_000..300_000).contains(&fewer), "{fewer}");
        server.kill();
        server.revive();
        let mut client = Client::connect(&server.address, SessionId([1; 16]), SessionKind::User).await;
        while client.ask(&GetServerStatus {}).await.is_err() {}
        assert_eq!(server.look(kept).await, fewer);
        client.ask(&CloseSession {}).await.unwrap();
        assert_eq!(server.look(kept).await, 0);
    });
}

fn named(name: &str) -> Create {
    Create {
        parent: InodeId::ROOT,
        name: Name::new(name).unwrap(),
        mode: 0o644.into(),
        exclusive: true,
        read: true,
        write: true,
        layout: Some(layout(1)),
        wish: ramlace_wire::namespace::LayoutWish::default(),
        named: Vec::new(),
    }
}

// SEMANTICS 113.3
#[test]
fn a_session_has_so_many_connections_and_they_end_with_it() {
    let server = TestServer::start(1);
    run(async {
        let mut clients = Vec::new();
        for _ in 0..limits::CONNECTIONS_PER_SESSION_MAX {
            clients.push(Client::user(&server.address, 1).await);
        }
        let key = crate::testing::secret().owner_key();
        let place = ramlace_transport::Address::Tcp(server.address.clone());
        let mut more = Connection::connect(&place, &key, None).await.unwrap();
        let hello = OpenSession { kind: SessionKind::User, resume: true, label: "test".into() };
        let header = Header { session: SessionId([1; 16]), ..Header::request(Kind::OpenSession) };
        let patience = std::time::Duration::from_secs(10);
        let refused = more.call(header, &hello, patience).await.unwrap_err().error;
        assert_eq!(refused.kind(), ErrorKind::TooMany, "{refused}");
        // A connection that is closed makes room; another session has its own limit.
        drop(clients.pop());
        while more.call(header, &hello, patience).await.is_err() {}
        let mut other = Client::user(&server.address, 2).await;

        clients[0].ask(&CloseSession {}).await.unwrap();
        for client in &mut clients {
            while client
                .ask(&GetServerStatus {})
                .await
                .map_or_else(|error| error.kind() != ErrorKind::HostDown, |_| true)
            {}
        }
        other.ask(&GetServerStatus {}).await.unwrap();
        while server.look(|server| server.status().connections).await > 1 {}
    });
}

#[test]
fn no_message_of_clients_is_unknown_to_a_server() {
    let server = TestServer::start(1);
    run(async {
        // Most messages refuse an empty body; these two would end the session, or the server.
        let ends = [Kind::CloseSession, Kind::StopServer];
        let asked = Kind::ALL.iter().filter(|kind| kind.row().asker != Asker::Peer && !ends.contains(kind));
        for kind in asked {
            let mut client = Client::user(&server.address, 1).await;
            client.connection.queue_reply(client.header(*kind, 1, 0), &[], &[]);
            client.connection.flush().await.unwrap();
            let told = client.answer::<()>().await.err().map(|error| error.to_string());
            let is_unknown = told.as_ref().is_some_and(|text| text.contains("nothing that a slot is asked"));
            assert!(!is_unknown, "{kind:?}: {told:?}");
        }
    });
}
