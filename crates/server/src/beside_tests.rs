//! Writes that go past the pages of their own machine's kernel: what it has of them is recalled, as from others.

use ramlace_wire::chunk::{ChunkRead, ChunkWritten, Keep, ReadChunk, WriteChunk, WriteOrigin};
use ramlace_wire::inline::{
    Bytes, FirstPage, InlineMode, InlineWritten, Promote, Promoted, ReadInline, WriteInline,
};
use ramlace_wire::{Kind, encode_body};

use crate::data_leases_tests::{PAGE, Two, two, waits};
use crate::testing::{Client, Gate, run};

fn to_lane(two: &Two, offset: u64, origin: WriteOrigin) -> WriteChunk {
    WriteChunk { target: two.target, offset, origin }
}

/// Another connection of the session whose kernel has pages.
async fn own_program(two: &Two) -> Client {
    two.holder.another(&two.server.address).await
}

// SEMANTICS 116
#[test]
fn a_write_beside_its_own_kernels_pages_is_answered_when_they_are_dropped_and_stores_in_them_survive() {
    for origin in [WriteOrigin::Program, WriteOrigin::Beside] {
        run(async {
            let mut two = two(false).await;
            let mut page = two.keep(0, PAGE as u32).await;
            let mut program = own_program(&two).await;
            let header = program.header(Kind::WriteChunk, 2, 0);
            program.begin_write(header, &to_lane(&two, 10, origin), b"new").await;
            let beside = origin == WriteOrigin::Beside;
            assert_eq!(waits(&mut two.changer, program.connection.read_request()).await, beside);
            if !beside {
                return;
            }
            page[0] = b'!';
            let header = two.holder.header(Kind::WriteChunk, 3, 0);
            two.holder.begin_write(header, &to_lane(&two, 0, WriteOrigin::Back), &page).await;
            two.holder.answer::<ChunkWritten>().await.unwrap();
            two.end_all().await;
            program.answer::<ChunkWritten>().await.unwrap();
            let read = two.changer.read(two.target, 0, 16).await.unwrap();
            assert_eq!(read, b"!.........new...");
        });
    }
}

// SEMANTICS 116
#[test]
fn pages_that_are_read_while_such_a_write_arrives_are_dropped_before_it_is_answered() {
    const LARGE: usize = 256 << 10;
    run(async {
        let mut two = two(false).await;
        let gate = Gate::before(&two.server.address).await;
        let mut program = two.holder.another(&gate.address).await;
        gate.let_pass(100 << 10);
        let header = program.header(Kind::WriteChunk, 2, 0);
        program.begin_write(header, &to_lane(&two, 0, WriteOrigin::Beside), &[b'n'; LARGE]).await;
        gate.drained().await;
        two.keep(3 * PAGE as u64, PAGE as u32).await;
        assert_eq!(two.recalled().await.data.len(), 1, "its own page");
        gate.let_pass(usize::MAX);
        assert!(waits(&mut two.changer, program.connection.read_request()).await);
        two.end_all().await;
        program.answer::<ChunkWritten>().await.unwrap();
    });
}

// SEMANTICS 116
#[test]
fn so_it_is_with_the_page_of_a_small_file() {
    run(async {
        let mut two = two(true).await;
        let inode = two.inode;
        let write = |mode, bytes: &[u8], origin| WriteInline {
            inode,
            mode,
            offset: 0,
            bytes: Bytes(bytes.to_vec()),
            origin,
        };
        let first = write(InlineMode::At, &[b'.'; 8], WriteOrigin::Program);
        let _: InlineWritten = two.changer.change(3, 0, &first).await.unwrap();
        let keep = ReadInline { inode, offset: 0, length: PAGE as u32, keep: true };
        two.holder.ask(&keep).await.unwrap();
        let mut program = own_program(&two).await;
        let header = program.header(Kind::WriteInline, 2, 0);
        let appended = write(InlineMode::End, b"new", WriteOrigin::Beside);
        program.connection.queue_reply(header, &encode_body(&appended), &[]);
        program.connection.flush().await.unwrap();
        assert!(waits(&mut two.changer, program.connection.read_request()).await);
        let stored = write(InlineMode::Within, b"!.......", WriteOrigin::Back);
        let _: InlineWritten = two.holder.change(3, 0, &stored).await.unwrap();
        two.end_all().await;
        program.answer::<InlineWritten>().await.unwrap();
        let read = two.changer.ask(&ReadInline { keep: false, ..keep }).await.unwrap();
        assert_eq!(read.bytes.unwrap().0, b"!.......new");
    });
}

// SEMANTICS 114.2
#[test]
fn a_file_is_promoted_when_the_page_of_the_session_that_wants_it_is_dropped_unless_that_may_be_locked() {
    for first_page in [FirstPage::Locked, FirstPage::Free] {
        run(async {
            let mut two = two(true).await;
            let inode = two.inode;
            two.holder.ask(&ReadInline { inode, offset: 0, length: PAGE as u32, keep: true }).await.unwrap();
            let mut program = own_program(&two).await;
            let header = program.header(Kind::Promote, 2, 0);
            program.connection.queue_reply(header, &encode_body(&Promote { inode, first_page }), &[]);
            program.connection.flush().await.unwrap();
            let has_waited = waits(&mut two.changer, program.connection.read_request()).await;
            assert_eq!(has_waited, first_page == FirstPage::Free);
            if has_waited {
                two.end_all().await;
                program.answer::<Promoted>().await.unwrap();
            }
        });
    }
}

// SEMANTICS 114.4
#[test]
fn pages_behind_the_end_are_recalled_though_they_were_read_before_their_last_recall_was_over() {
    for keep in [Keep::No, Keep::BehindEnd] {
        run(async {
            let mut two = two(false).await;
            two.keep(0, PAGE as u32).await;
            let mut first = two.changer.another(&two.server.address).await;
            let header = first.header(Kind::WriteChunk, 3, 0);
            first.begin_write(header, &to_lane(&two, 0, WriteOrigin::Program), b"one").await;
            assert!(waits(&mut two.listener, first.connection.read_request()).await);
            let behind = ReadChunk { target: two.target, offset: 0, length: PAGE as u32, keep, take: false };
            let header = two.holder.header(Kind::ReadChunk, 0, 0);
            two.holder.connection.queue_reply(header, &encode_body(&behind), &[]);
            two.holder.connection.flush().await.unwrap();
            let (read, bytes) = two.holder.answer::<ChunkRead>().await.unwrap();
            assert_eq!(read.hole && bytes.is_empty(), keep == Keep::BehindEnd);
            two.end_all().await;
            first.answer::<ChunkWritten>().await.unwrap();
            let header = first.header(Kind::WriteChunk, 4, 0);
            first.begin_write(header, &to_lane(&two, 0, WriteOrigin::Program), b"two").await;
            let has_waited = waits(&mut two.listener, first.connection.read_request()).await;
            assert_eq!(has_waited, keep == Keep::BehindEnd);
        });
    }
}
