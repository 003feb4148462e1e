//! Many changes in one message, and slots that are delegated: no other session gets an answer from one before
//! its holder has given it back.

use std::time::Duration;

use ramlace_base::{ErrorKind, InodeId, Name, Sequence, Timestamp, limits};
use ramlace_wire::chunk::WriteOrigin;
use ramlace_wire::delegation::{Change, ChangeMany, Delegated, ManyChanged};
use ramlace_wire::inline::{Bytes, InlineMode, ReadInline, WriteInline};
use ramlace_wire::listen::Listen;
use ramlace_wire::namespace::{
    Close, Create, GetAttributes, LayoutWish, Lookup, NewMode, Opened, SetAttributes, Unlink,
};
use ramlace_wire::session::SessionKind;
use ramlace_wire::{FileAttributes, Kind, Request, decode_body, encode_body};

use crate::testing::{Answered, Client, TestServer, run};

const HOLDER: u8 = 1;
const OTHER: u8 = 2;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn create(text: &str) -> Create {
    Create {
        parent: InodeId::ROOT,
        name: name(text),
        mode: NewMode { mode: 0o640, umask: 0 },
        exclusive: true,
        read: true,
        write: true,
        layout: None,
        wish: LayoutWish::default(),
        named: FileAttributes::new(),
    }
}

fn change<R: Request>(sequence: u64, request: &R, makes: Option<InodeId>) -> Change {
    let at = Timestamp { nanos: 1 };
    let body = Bytes(encode_body(request));
    // The changes of a message are answered together.
    let outstanding = (sequence % 100) as u32;
    Change { kind: R::KIND.number(), sequence: Sequence(sequence), outstanding, at, makes, body }
}

fn many(delegation: u64, changes: Vec<Change>) -> ChangeMany {
    ChangeMany { delegation, changes, wanted_for: None, gives_back: false, acknowledged_below: Sequence(0) }
}

fn write(inode: InodeId, text: &str) -> WriteInline {
    let bytes = Bytes(text.as_bytes().to_vec());
    WriteInline { inode, mode: InlineMode::At, offset: 0, bytes, origin: WriteOrigin::Program }
}

async fn ask(client: &mut Client, request: &ChangeMany) -> Answered<ManyChanged> {
    client.ask(request).await
}

/// The holder, which listens to recalls, and to which the root's slot is delegated; and the file that it
/// created with that.
async fn holder(server: &TestServer) -> (Client, InodeId, Delegated) {
    let mut client = Client::user(&server.address, HOLDER).await;
    let mut listener = client.another(&server.address).await;
    tokio::task::spawn_local(async move {
        loop {
            if listener.ask(&Listen { leases: true, acknowledged: 0, received: 0, life: 0 }).await.is_err() {
                return;
            }
        }
    });
    let (file, delegated) = delegation(&mut client, 1).await;
    (client, file, delegated)
}

/// Creates files by changes from this number on, until the root's slot is delegated; returns the last file.
async fn delegation(client: &mut Client, mut sequence: u64) -> (InodeId, Delegated) {
    loop {
        let wanted_for = Some(InodeId::ROOT);
        let changes = vec![change(sequence, &create(&format!("first{sequence}")), None)];
        let told = ask(client, &ChangeMany { wanted_for, ..many(0, changes) }).await.unwrap();
        let opened: Opened = decode_body(Kind::Create, &told.changed[0].body.0).unwrap();
        if let Some(delegated) = told.delegated {
            return (opened.info.attributes.inode, *delegated);
        }
        sequence += 1;
        tokio::task::yield_now().await;
    }
}

fn errors(told: &ManyChanged) -> Vec<Option<ErrorKind>> {
    told.changed.iter().map(|changed| changed.error.clone().map(|error| error.into_error().kind())).collect()
}

// SEMANTICS 142.1
#[test]
fn changes_of_one_message_are_done_in_their_order_and_each_once() {
    let server = TestServer::start(1);
    run(async {
        let (mut client, _, delegated) = holder(&server).await;
        let made = delegated.next;
        let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::nothing(made) };
        let changes = vec![
            change(100, &create("a"), Some(made)),
            change(101, &write(made, "text"), None),
            change(102, &mode, None),
            change(103, &Close { inode: made, modified: None, leases: false }, None),
        ];
        let promised_at = delegated.now;
        let changes = changes.into_iter().map(|change| Change { at: promised_at, ..change }).collect();
        let request = many(delegated.number, changes);
        let told = ask(&mut client, &request).await.unwrap();
        assert_eq!(errors(&told), [None; 4]);
        let again = ask(&mut client, &request).await.unwrap();
        assert_eq!(errors(&again), [None; 4]);
        // The reply includes what is leased by then.
        assert_eq!(again.changed[1..], told.changed[1..], "a message that comes again is answered again");
        let read = ReadInline { inode: made, offset: 0, length: 10, keep: false };
        assert_eq!(client.ask(&read).await.unwrap().bytes, Some(Bytes(b"text".to_vec())));
        let attributes = client.ask(&GetAttributes { inode: made }).await.unwrap().attributes;
        assert_eq!((attributes.mode, attributes.modified), (0o600, promised_at), "when it was promised");
    });
}

// SEMANTICS 142.2
#[test]
fn nobody_is_answered_out_of_a_slot_before_its_holder_has_given_it_back() {
    let server = TestServer::start(1);
    run(async {
        let (mut client, _, delegated) = holder(&server).await;
        let mut other = Client::user(&server.address, OTHER).await;
        let looks = tokio::task::spawn_local(async move {
            other.ask(&Lookup { parent: InodeId::ROOT, name: name("late") }).await
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!looks.is_finished(), "what it has promised may be what is looked for");
        let changes = vec![change(100, &create("late"), Some(delegated.next))];
        let told =
            ask(&mut client, &ChangeMany { gives_back: true, ..many(delegated.number, changes) }).await;
        assert_eq!(errors(&told.unwrap()), [None]);
        assert_eq!(looks.await.unwrap().unwrap().inode, delegated.next);
        // It is not delegated now, because another session wanted it just before.
        let changes = vec![change(101, &create("more"), None)];
        let wanted = ChangeMany { wanted_for: Some(InodeId::ROOT), ..many(0, changes) };
        assert_eq!(ask(&mut client, &wanted).await.unwrap().delegated, None);
        let refused = ask(&mut client, &many(delegated.number, vec![change(102, &create("z"), None)])).await;
        assert_eq!(errors(&refused.unwrap()), [Some(ErrorKind::Stale)]);
    });
}

// SEMANTICS 142.3
#[test]
fn what_a_silent_holder_promised_is_refused_and_others_go_on() {
    let server = TestServer::start(1);
    run(async {
        let (mut client, _, delegated) = holder(&server).await;
        let mut other = Client::user(&server.address, OTHER).await;
        let none = other.ask(&Lookup { parent: InodeId::ROOT, name: name("late") }).await;
        assert_eq!(none.unwrap_err().kind(), ErrorKind::NotFound);
        let late = many(delegated.number, vec![change(100, &create("late"), Some(delegated.next))]);
        assert_eq!(errors(&ask(&mut client, &late).await.unwrap()), [Some(ErrorKind::Stale)]);
        let none = other.ask(&Lookup { parent: InodeId::ROOT, name: name("late") }).await;
        assert_eq!(none.unwrap_err().kind(), ErrorKind::NotFound);
    });
}

// SEMANTICS 142.3
#[test]
fn a_late_copy_of_what_was_acknowledged_ends_no_delegation() {
    let server = TestServer::start(1);
    run(async {
        let (mut client, _, delegated) = holder(&server).await;
        let made = delegated.next;
        let first = many(delegated.number, vec![change(100, &create("a"), Some(made))]);
        assert_eq!(errors(&ask(&mut client, &first).await.unwrap()), [None]);
        // This one says that the answer to the first has come.
        let seen = Change { outstanding: 0, ..change(101, &write(made, "text"), None) };
        assert_eq!(errors(&ask(&mut client, &many(delegated.number, vec![seen])).await.unwrap()), [None]);
        assert_eq!(errors(&ask(&mut client, &first).await.unwrap()), [Some(ErrorKind::Stale)]);
        let next = InodeId::new(made.slot(), made.counter() + 1);
        let more = many(delegated.number, vec![change(102, &create("b"), Some(next))]);
        assert_eq!(errors(&ask(&mut client, &more).await.unwrap()), [None], "it is delegated still");
    });
}

// SEMANTICS 142.3
#[test]
fn a_close_of_what_is_not_open_ends_no_delegation() {
    let server = TestServer::start(1);
    run(async {
        let (mut client, file, delegated) = holder(&server).await;
        let close = |sequence| change(sequence, &Close { inode: file, modified: None, leases: false }, None);
        let next = InodeId::new(delegated.next.slot(), delegated.next.counter() + 1);
        let changes = vec![
            change(100, &create("a"), Some(delegated.next)),
            close(101),
            close(102),
            change(103, &create("b"), Some(next)),
        ];
        let told = ask(&mut client, &many(delegated.number, changes)).await.unwrap();
        assert_eq!(errors(&told), [None, None, Some(ErrorKind::BadHandle), None]);
        let found = client.ask(&Lookup { parent: InodeId::ROOT, name: name("b") }).await;
        assert_eq!(found.unwrap().inode, next);
    });
}

// SEMANTICS 142.4
#[test]
fn a_slot_is_delegated_still_when_its_servers_process_has_died() {
    let mut server = TestServer::start(1);
    let (delegated, made) = run(async {
        let (mut client, _, delegated) = holder(&server).await;
        let changes = vec![change(100, &create("kept"), Some(delegated.next))];
        ask(&mut client, &many(delegated.number, changes)).await.unwrap();
        (delegated.clone(), delegated.next)
    });
    server.kill();
    server.revive();
    run(async {
        let mut client = Client::user(&server.address, HOLDER).await;
        let mut other = Client::user(&server.address, OTHER).await;
        let looks = tokio::task::spawn_local(async move {
            other.ask(&Lookup { parent: InodeId::ROOT, name: name("late") }).await
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let next = InodeId::new(made.slot(), made.counter() + 1);
        let changes =
            vec![change(100, &create("kept"), Some(made)), change(101, &create("late"), Some(next))];
        let told =
            ask(&mut client, &ChangeMany { gives_back: true, ..many(delegated.number, changes) }).await;
        assert_eq!(errors(&told.unwrap()), [None, None], "the first was done by the life before");
        assert_eq!(looks.await.unwrap().unwrap().inode, next);
    });
}

// SEMANTICS 142.5
#[test]
fn what_cannot_be_promised_is_refused() {
    let server = TestServer::start(1);
    run(async {
        let (mut client, file, delegated) = holder(&server).await;
        let number = delegated.number;
        let other_inode = InodeId::new(delegated.next.slot(), delegated.next.counter() + 7);
        let wrong_slot = InodeId::new(ramlace_base::Slot(9), 5);
        let unlink = Unlink { parent: InodeId::ROOT, name: name("first1") };
        let refused = [
            (change(200, &create("a"), Some(other_inode)), ErrorKind::Stale),
            (change(201, &unlink, None), ErrorKind::Invalid),
            (
                change(202, &Close { inode: wrong_slot, modified: None, leases: false }, None),
                ErrorKind::Invalid,
            ),
            (change(0, &write(file, "x"), None), ErrorKind::Invalid),
            (Change { kind: 0xffff, ..change(203, &write(file, "x"), None) }, ErrorKind::Invalid),
            (
                Change { kind: Kind::ChangeMany.number(), ..change(204, &write(file, "x"), None) },
                ErrorKind::Invalid,
            ),
            (Change { outstanding: 300, ..change(205, &write(file, "x"), None) }, ErrorKind::Protocol),
            (
                Change { body: Bytes(vec![255; 9]), ..change(206, &write(file, "x"), None) },
                ErrorKind::Protocol,
            ),
        ];
        let mut number = number;
        for (at, (refused, kind)) in refused.into_iter().enumerate() {
            let shown = format!("{refused:?}");
            let behind = change(1_000 + at as u64, &write(file, "never"), None);
            let told = ask(&mut client, &many(number, vec![refused, behind])).await.unwrap();
            assert_eq!(errors(&told), [Some(kind), Some(ErrorKind::Stale)], "{shown}");
            // Whatever else was promised may depend on it.
            number = delegation(&mut client, 2_000 + 100 * at as u64).await.1.number;
        }
        let read = ReadInline { inode: file, offset: 0, length: 10, keep: false };
        assert_eq!(client.ask(&read).await.unwrap().bytes, Some(Bytes::default()));
        let too_many = vec![change(5_000, &write(file, "x"), None); limits::CHANGES_PER_MESSAGE_MAX + 1];
        assert_eq!(ask(&mut client, &many(number, too_many)).await.unwrap_err().kind(), ErrorKind::Invalid);
        // A change must not claim a time in the future.
        let late = Change { at: Timestamp { nanos: i64::MAX }, ..change(5_001, &write(file, "x"), None) };
        ask(&mut client, &many(number, vec![late])).await.unwrap();
        let attributes = client.ask(&GetAttributes { inode: file }).await.unwrap().attributes;
        assert!(attributes.modified.nanos < i64::MAX / 2);
        let mut host =
            Client::connect(&server.address, ramlace_base::SessionId([9; 16]), SessionKind::Host).await;
        let denied = ask(&mut host, &many(0, vec![change(1, &create("h"), None)])).await;
        assert_eq!(denied.unwrap_err().kind(), ErrorKind::Denied);
    });
}
