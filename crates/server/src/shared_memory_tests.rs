//! Lanes into whose memory programs store without asking: kernels keep no pages of them, and nobody's stores are lost.

use ramlace_base::SessionId;
use ramlace_lanes::{LaneChange, Mapping};
use ramlace_wire::Kind;
use ramlace_wire::chunk::{ChunkWritten, Keep, ReadChunk, WriteChunk, WriteOrigin};
use ramlace_wire::coordination::NoteChange;
use ramlace_wire::leases::EndRecalls;

use crate::data_leases_tests::{PAGE, Two, two, waits};
use crate::testing::run;

const NUMBER: u64 = 7;

/// A program of a third session maps the lane.
async fn mapped() -> Two {
    let two = two(false).await;
    let (lane, slot) = (two.target.lane, two.target.slot);
    let mapping = Mapping { session: changer(), number: NUMBER };
    let begun = LaneChange::MappingBegun { lane, mapping };
    two.server.within(move |server| server.commit_lane(slot, begun)).await.unwrap();
    two
}

fn changer() -> SessionId {
    SessionId([2; 16])
}

/// The program stores.
async fn store(two: &Two, at: u64, bytes: &'static [u8]) {
    let lane = two.target.lane;
    two.server.look(move |server| server.store.borrow_mut().write_staged(lane, at, bytes)).await.unwrap();
}

// SEMANTICS 8.7
#[test]
fn what_a_kernel_gets_of_memory_that_is_stored_into_is_recalled_and_stores_of_both_survive() {
    run(async {
        let mut two = mapped().await;
        let mut page = two.keep(0, PAGE as u32).await;
        store(&two, 10, b"program").await;
        let told = two.recalled().await;
        assert_eq!(told.data.len(), 1, "{told:?}");
        assert_eq!((told.data[0].start, told.data[0].end), (0, PAGE as u64));
        page[1000..1006].copy_from_slice(b"kernel");
        two.write_back(2, 0, &page).await;
        let bytes = two.changer.read(two.target, 0, PAGE as u32).await.unwrap();
        assert_eq!((&bytes[9..18], &bytes[999..1007]), (&b".program."[..], &b".kernel."[..]));
    });
}

// SEMANTICS 8.7
#[test]
fn so_is_what_a_kernel_writes_through_its_pages() {
    run(async {
        let mut two = mapped().await;
        let mut page = two.keep(0, PAGE as u32).await;
        two.end_all().await;
        // A call of its own: the kernel has the page since.
        let header = two.holder.header(Kind::WriteChunk, 2, 0);
        let request = WriteChunk { target: two.target, offset: 0, origin: WriteOrigin::Through };
        page.fill(b'w');
        two.holder.begin_write(header, &request, &page).await;
        two.holder.answer::<ChunkWritten>().await.unwrap();
        assert_eq!(two.recalled().await.data.len(), 1);
        store(&two, 10, b"program").await;
        page[1000..1006].copy_from_slice(b"kernel");
        two.write_back(3, 0, &page).await;
        let bytes = two.changer.read(two.target, 0, PAGE as u32).await.unwrap();
        assert_eq!((&bytes[9..18], &bytes[999..1007]), (&b"wprogramw"[..], &b"wkernelw"[..]));
    });
}

// SEMANTICS 8.3
#[test]
fn who_publishes_what_was_stored_waits_until_kernels_have_dropped_it_and_they_keep_pages_when_nobody_maps_it()
{
    run(async {
        let mut two = mapped().await;
        two.keep(0, PAGE as u32).await;
        store(&two, 10, b"program").await;
        let note = NoteChange { target: two.target, start: 0, end: PAGE as u64, over: Some(NUMBER) };
        let header = two.changer.header(Kind::NoteChange, 0, 0);
        two.changer.connection.queue_reply(header, &ramlace_wire::encode_body(&note), &[]);
        two.changer.connection.flush().await.unwrap();
        assert!(waits(&mut two.listener, two.changer.connection.read_request()).await);
        let told = two.recalled().await;
        let done: Vec<u64> = told.data.iter().map(|recall| recall.number).collect();
        two.listener.ask(&EndRecalls { done, ..EndRecalls::default() }).await.unwrap();
        two.changer.answer::<()>().await.unwrap();

        assert_eq!(&two.keep(0, PAGE as u32).await[10..17], b"program");
        let current = ReadChunk { target: two.target, offset: 0, length: 0, keep: Keep::Share, take: false };
        two.holder.ask(&current).await.unwrap();
        assert!(two.holder.ask(&current).await.unwrap().kept, "nothing of it is recalled any more");
    });
}
