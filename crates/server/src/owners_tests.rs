//! Claims on bytes that strict mounts use: a client that has none of them is not waited for.

use ramlace_base::{InodeId, Slot};
use ramlace_wire::Kind;
use ramlace_wire::chunk::{
    ChunkRead, ChunkWritten, Keep, LaneTarget, PunchChunk, ReadChunk, WriteChunk, WriteOrigin,
};
use ramlace_wire::encode_body;
use ramlace_wire::leases::EndRecalls;
use ramlace_wire::listen::Listen;
use ramlace_wire::namespace::Open;
use ramlace_wire::session::CloseSession;

use crate::data_leases_tests::lane_of_a_file;
use crate::testing::{Client, Gate, TestServer, run};

const PAGE: u32 = 4096;
const LARGE: usize = 256 << 10;

async fn read(client: &mut Client, target: LaneTarget, page: u32, keep: Keep) -> Vec<u8> {
    let request = ReadChunk { target, offset: u64::from(page * PAGE), length: PAGE, keep, take: false };
    let header = client.header(Kind::ReadChunk, 0, 0);
    client.connection.queue_reply(header, &encode_body(&request), &[]);
    client.connection.flush().await.unwrap();
    client.answer::<ChunkRead>().await.unwrap().1
}

/// Acknowledges all recalls of a session, until `answer` is there.
async fn acknowledging<T>(owner: &Client, address: &str, answer: impl Future<Output = T>) -> T {
    let mut listener = owner.another(address).await;
    let acknowledging = async {
        loop {
            let told =
                listener.ask(&Listen { leases: true, acknowledged: 0, received: 0, life: 0 }).await.unwrap();
            let done = told.data.iter().map(|recall| recall.number).collect();
            listener.ask(&EndRecalls { done, ..EndRecalls::default() }).await.unwrap();
        }
    };
    tokio::select! {
        answer = answer => answer,
        () = acknowledging => unreachable!("it goes on for ever"),
    }
}

// SEMANTICS 128.5
#[test]
fn a_write_whose_sender_stops_in_the_middle_holds_no_page() {
    run(async {
        for strict_before in [true, false] {
            let server = TestServer::start(1);
            let mut owner = Client::user(&server.address, 1).await;
            let mut writer = Client::user(&server.address, 2).await;
            let target = lane_of_a_file(&mut writer, InodeId::ROOT, Slot(0)).await;
            if strict_before {
                read(&mut owner, target, 0, Keep::Own).await;
            }
            let gate = Gate::before(&server.address).await;
            let mut slow = writer.another(&gate.address).await;
            let header = slow.header(Kind::WriteChunk, 10, 0);
            gate.let_pass(100 << 10);
            let request = WriteChunk { target, offset: 0, origin: WriteOrigin::Program };
            slow.begin_write(header, &request, &[1; LARGE]).await;
            gate.drained().await;
            assert_eq!(read(&mut owner, target, 1, Keep::Own).await.len(), PAGE as usize);
            gate.let_pass(usize::MAX);
            let written = acknowledging(&owner, &server.address, slow.answer::<ChunkWritten>()).await;
            // A write that had begun to arrive in its place is repeated.
            assert_eq!(written.is_ok(), strict_before);
            writer.begin_write(header, &request, &[1; LARGE]).await;
            acknowledging(&owner, &server.address, writer.answer::<ChunkWritten>()).await.unwrap();
            for page in [0, 1, LARGE as u32 / PAGE - 1] {
                assert!(read(&mut owner, target, page, Keep::Own).await == [1; PAGE as usize]);
            }
        }
    });
}

// SEMANTICS 128.4
#[test]
fn nobody_sees_a_page_of_before_a_new_life_until_strict_mounts_have_dropped_it() {
    let mut server = TestServer::start(1);
    let target = run(async {
        let mut owner = Client::user(&server.address, 1).await;
        let target = lane_of_a_file(&mut owner, InodeId::ROOT, Slot(0)).await;
        read(&mut owner, target, 0, Keep::Own).await;
        target
    });
    for (turn, keep) in [Keep::No, Keep::Share, Keep::Strict, Keep::Own].into_iter().enumerate() {
        server.kill();
        server.revive();
        run(async {
            let mut owner = Client::user(&server.address, 1).await;
            // A different session each time: one that has had pages is waited for too.
            let mut reader = Client::user(&server.address, 2 + turn as u8).await;
            let request = ReadChunk { target, offset: 0, length: PAGE, keep, take: false };
            reader.begin_write(reader.header(Kind::ReadChunk, 0, 0), &request, &[]).await;
            claims(&server, 1).await;
            let stored = [turn as u8 + 1; PAGE as usize];
            let back = WriteChunk { target, offset: 0, origin: WriteOrigin::Back };
            let header = owner.header(Kind::WriteChunk, 10 + turn as u64, 0);
            owner.begin_write(header, &back, &stored).await;
            owner.answer::<ChunkWritten>().await.unwrap();
            let (_, bytes) =
                acknowledging(&owner, &server.address, reader.answer::<ChunkRead>()).await.unwrap();
            assert!(bytes == stored, "{keep:?}");
            reader.ask(&CloseSession {}).await.unwrap();
        });
    }
}

/// Waits until this many requests wait for pages of a lane.
async fn claims(server: &TestServer, count: usize) {
    while server
        .look(|server| server.data.held(None).iter().map(|held| held.waits.len()).sum::<usize>())
        .await
        != count
    {
        tokio::task::yield_now().await;
    }
}

// SEMANTICS 128.9
#[test]
fn a_punch_that_comes_again_while_both_wait_is_done_once() {
    run(async {
        let server = TestServer::start(1);
        let mut owner = Client::user(&server.address, 1).await;
        let mut puncher = Client::user(&server.address, 2).await;
        let mut writer = Client::user(&server.address, 3).await;
        let target = lane_of_a_file(&mut puncher, InodeId::ROOT, Slot(0)).await;
        writer
            .change(1, 0, &Open { inode: target.lane.inode, read: true, write: true, run: false })
            .await
            .unwrap();
        read(&mut owner, target, 0, Keep::Own).await;
        let punch = PunchChunk { target, offset: 0, length: u64::from(PAGE) };
        let header = puncher.header(Kind::PunchChunk, 10, 0);
        puncher.begin_write(header, &punch, &[]).await;
        claims(&server, 1).await;
        let write = WriteChunk { target, offset: 0, origin: WriteOrigin::Program };
        writer.begin_write(writer.header(Kind::WriteChunk, 2, 0), &write, b"newer").await;
        claims(&server, 2).await;
        // Its client assumes that the first connection was lost.
        let mut again = puncher.another(&server.address).await;
        again.begin_write(header, &punch, &[]).await;
        claims(&server, 3).await;
        acknowledging(&owner, &server.address, async {
            puncher.answer::<()>().await.unwrap();
            writer.answer::<ChunkWritten>().await.unwrap();
            again.answer::<()>().await.unwrap();
        })
        .await;
        assert_eq!(&read(&mut writer, target, 0, Keep::No).await[..6], b"newer\0");
    });
}

// SEMANTICS 128.11
#[test]
fn a_write_whose_sender_stopped_before_strict_mounts_came_holds_no_other_writer_up() {
    run(async {
        let server = TestServer::start(1);
        let mut owner = Client::user(&server.address, 1).await;
        let mut writer = Client::user(&server.address, 2).await;
        let target = lane_of_a_file(&mut writer, InodeId::ROOT, Slot(0)).await;
        let gate = Gate::before(&server.address).await;
        let mut slow = writer.another(&gate.address).await;
        let header = slow.header(Kind::WriteChunk, 10, 0);
        gate.let_pass(100 << 10);
        let request = WriteChunk { target, offset: 0, origin: WriteOrigin::Program };
        slow.begin_write(header, &request, &[1; LARGE]).await;
        gate.drained().await;
        // In another part of the file.
        read(&mut owner, target, LARGE as u32 / PAGE + 1, Keep::Own).await;
        let mut other = Client::user(&server.address, 3).await;
        other
            .change(1, 0, &Open { inode: target.lane.inode, read: true, write: true, run: false })
            .await
            .unwrap();
        other.write(2, 0, target, 0, b"other").await.unwrap();
        gate.let_pass(usize::MAX);
        assert!(slow.answer::<ChunkWritten>().await.is_err(), "it comes again");
        assert_eq!(&other.read(target, 0, 5).await.unwrap(), b"other");
    });
}

// SEMANTICS 128.13
#[test]
fn large_writes_that_wait_count_as_long_as_they_wait() {
    run(async {
        let server = TestServer::start(1);
        let mut owner = Client::user(&server.address, 1).await;
        let mut writer = Client::user(&server.address, 2).await;
        let target = lane_of_a_file(&mut writer, InodeId::ROOT, Slot(0)).await;
        read(&mut owner, target, 0, Keep::Own).await;
        let request = WriteChunk { target, offset: 0, origin: WriteOrigin::Program };
        writer.begin_write(writer.header(Kind::WriteChunk, 10, 0), &request, &[1; LARGE]).await;
        claims(&server, 1).await;
        assert_eq!(server.look(|server| server.data.staging.bytes()).await, LARGE);
        acknowledging(&owner, &server.address, writer.answer::<ChunkWritten>()).await.unwrap();
        assert_eq!(server.look(|server| server.data.staging.bytes()).await, 0);
    });
}

// SEMANTICS 128.11
#[test]
fn a_session_that_ends_while_it_waits_for_a_page_leaves_its_file_to_others() {
    run(async {
        let server = TestServer::start(1);
        let mut owner = Client::user(&server.address, 1).await;
        let mut waiter = Client::user(&server.address, 2).await;
        let target = lane_of_a_file(&mut owner, InodeId::ROOT, Slot(0)).await;
        read(&mut owner, target, 0, Keep::Own).await;
        let request = ReadChunk { target, offset: 0, length: PAGE, keep: Keep::Own, take: false };
        let mut waiting = waiter.another(&server.address).await;
        waiting.begin_write(waiting.header(Kind::ReadChunk, 0, 0), &request, &[]).await;
        claims(&server, 1).await;
        for client in [&mut waiter, &mut owner] {
            client.ask(&CloseSession {}).await.unwrap();
        }
        assert!(waiting.answer::<ChunkRead>().await.is_err());
        assert!(server.look(|server| server.data.is_idle()).await);
    });
}
