//! Changes that come again, or whose answers nobody acknowledges: at servers that have no room for more.

use std::rc::Rc;

use ramlace_base::{ErrorKind, InodeId, Name, Sequence, SessionId, limits};
use ramlace_wire::FileAttributes;
use ramlace_wire::chunk::{LaneTarget, WriteOrigin};
use ramlace_wire::inline::{Bytes, FirstPage, InlineMode, InlineOutcome, Promote, WriteInline};
use ramlace_wire::namespace::{
    BeginPassthrough, CancelChange, Create, Extend, FinishAppend, LayoutWish, ReserveAppend,
};

use crate::server::Server;
use crate::server_tests::{create, layout, target};
use crate::testing::{Client, TestServer, run};

const SESSION: u8 = 1;

fn small(name: &str) -> Create {
    Create {
        parent: InodeId::ROOT,
        name: Name::new(name).unwrap(),
        mode: 0o644.into(),
        exclusive: true,
        read: true,
        write: true,
        layout: Some(layout(1)),
        wish: LayoutWish::default(),
        named: FileAttributes::new(),
    }
}

/// Takes all memory that ordinary records may have, and what the last page of the log has left.
fn fill(server: &Rc<Server>) {
    let mut store = server.store.borrow_mut();
    let mut filler = store.meta_append_file("filler").unwrap();
    for bytes in [1 << 20, 4096] {
        while filler.append(&vec![1; bytes]).is_ok() {}
    }
}

// SEMANTICS 13
#[test]
fn a_change_that_comes_again_is_answered_also_where_its_log_has_no_room_left() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, SESSION).await;
        let inode = create(&mut client, 1, "file", layout(1)).await.info.attributes.inode;
        let append = ReserveAppend { inode, length: 10 };
        let reserved = client.change(2, 1, &append).await.unwrap();
        server.within(fill).await;
        // The last page of the log has room for some more.
        let mut sequence = 2;
        let refused = loop {
            sequence += 1;
            match client.change(sequence, sequence as u32 - 1, &append).await {
                Ok(_) => assert!(sequence < 200, "the server finds room for ever"),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        assert_eq!(client.change(2, 1, &append).await.unwrap(), reserved);
        let again = client.change(1, 0, &small("file")).await.unwrap();
        assert_eq!(again.info.attributes.inode, inode);
        assert!(client.change(sequence, sequence as u32 - 1, &append).await.is_err(), "it was not done");
    });
}

// SEMANTICS 92.5
#[test]
fn a_lane_takes_no_late_bytes_of_an_append_that_was_given_back() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, SESSION).await;
        let opened = create(&mut client, 1, "file", layout(1)).await;
        let (inode, before) = (opened.info.attributes.inode, target(&opened));
        client.write(2, 1, before, 0, b"there").await.unwrap();
        let extend = Extend { inode, generation: before.generation, size: 5, from: 0 };
        client.change(3, 2, &extend).await.unwrap();
        client.change(4, 3, &BeginPassthrough { inode, write: true, over: false }).await.unwrap();
        let append = ReserveAppend { inode, length: 4 };
        let given_up = client.change(5, 4, &append).await.unwrap();
        client.change(6, 5, &FinishAppend { inode, number: given_up.number, failed: true }).await.unwrap();
        let reserved = client.change(7, 6, &append).await.unwrap();
        assert_eq!(reserved.offset, given_up.offset);
        let now = LaneTarget { generation: reserved.generation, ..before };
        client.write(8, 7, now, 5, b"mine").await.unwrap();
        let late = client.write(9, 8, before, 5, b"late").await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Retry, "{late}");
        client.change(10, 9, &FinishAppend { inode, number: reserved.number, failed: false }).await.unwrap();
        assert_eq!(client.read(now, 0, 9).await.unwrap(), b"theremine");
    });
}

// SEMANTICS 113.2
#[test]
fn to_acknowledge_two_small_answers_is_enough_where_there_is_nothing_to_cancel() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, SESSION).await;
        let opened = create(&mut client, 1, "file", layout(1)).await.info.attributes;
        let extend = Extend { inode: opened.inode, generation: opened.generation, size: 10, from: 0 };
        client.change(2, 0, &extend).await.unwrap();
        client.change(3, 1, &extend).await.unwrap();
        let too_much = |server: &Rc<Server>| {
            let most = limits::KEPT_REPLIES_PER_SESSION_BYTES_MAX as i64;
            server.durable.borrow_mut().kept.change(SessionId([SESSION; 16]), most);
        };
        server.within(too_much).await;
        assert_eq!(client.change(4, 2, &extend).await.unwrap_err().kind(), ErrorKind::TooMany);
        // What was never done is refused from now on, and that takes more than is acknowledged.
        let refused = client.change(6, 2, &CancelChange { sequence: Sequence(5) }).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooMany, "{refused}");
        client.change(7, 0, &CancelChange { sequence: Sequence(3) }).await.unwrap();
        assert_eq!(client.change(8, 0, &extend).await.map(drop).unwrap_err().kind(), ErrorKind::TooMany);
    });
}

#[test]
fn bytes_written_into_small_files_are_counted_once_and_when_they_are_there() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, SESSION).await;
        let inode = client.change(1, 0, &small("file")).await.unwrap().info.attributes.inode;
        let write = |offset, bytes: usize| WriteInline {
            inode,
            mode: InlineMode::At,
            offset,
            bytes: Bytes(vec![1; bytes]),
            origin: WriteOrigin::Program,
        };
        for _ in 0..3 {
            client.change(2, 0, &write(0, 100)).await.unwrap();
        }
        let full = client.change(3, 0, &write(limits::INLINE_BYTES_MAX as u64, 7)).await.unwrap();
        assert_ne!(full.outcome, InlineOutcome::Written);
        let written = || server.look(|server| server.status().written_bytes);
        assert_eq!(written().await, 100);
        client.change(4, 0, &Promote { inode, first_page: FirstPage::Locked }).await.unwrap();
        assert_eq!(written().await, 100, "they were moved");
    });
}
