//! Bad input, and which callers may do what.

use ramlace_base::{ErrorKind, Generation, InodeId, Redirect, Slot, Timestamp, limits};
use ramlace_namespace::Op;
use ramlace_wire::namespace as wire;
use ramlace_wire::{FileKind, FileRules, Layout, LayoutHints, Mode};

use crate::rules::story::*;

#[test]
fn bad_arguments_are_refused() {
    fn layout(request: &mut wire::Create) -> &mut Layout {
        request.layout.as_mut().unwrap()
    }
    let mut story = Story::new();
    let good = create(InodeId::ROOT, "f", 4);
    let bad = |change: &dyn Fn(&mut wire::Create)| {
        let mut request = good.clone();
        change(&mut request);
        Op::Create(request)
    };
    for (op, kind) in [
        (bad(&|request| layout(request).stripe_unit = 3 << 16), ErrorKind::Invalid),
        (bad(&|request| layout(request).stripe_unit = 1 << 12), ErrorKind::Invalid),
        (bad(&|request| layout(request).width = 0), ErrorKind::Invalid),
        (bad(&|request| layout(request).width = 65), ErrorKind::Invalid),
        (bad(&|request| layout(request).base_slot = Slot(64)), ErrorKind::Invalid),
        (bad(&|request| layout(request).copies = 2), ErrorKind::Unsupported),
        (bad(&|request| layout(request).copies = 0), ErrorKind::Invalid),
        (bad(&|request| request.layout = None), ErrorKind::Invalid),
        (bad(&|request| request.mode = 0o10000.into()), ErrorKind::Invalid),
        (
            bad(&|request| request.named = vec![("b".into(), vec![]), ("a".into(), vec![])]),
            ErrorKind::Invalid,
        ),
        (
            bad(&|request| request.named = vec![("a".into(), vec![]), ("a".into(), vec![])]),
            ErrorKind::Invalid,
        ),
        (bad(&|request| request.named = vec![(String::new(), vec![])]), ErrorKind::Invalid),
        (bad(&|request| request.named = vec![("a".into(), vec![0; 4096])]), ErrorKind::TooLarge),
        (bad(&|request| request.parent = InodeId(1 << 40)), ErrorKind::Stale),
    ] {
        assert_eq!(story.refused(op.clone()), kind, "{op:?}");
    }
    let link =
        |target: Vec<u8>| Op::Symlink(wire::Symlink { parent: InodeId::ROOT, name: name("l"), target });
    assert_eq!(story.refused(link(vec![])), ErrorKind::NotFound);
    assert_eq!(story.refused(link(vec![b'x'; 4096])), ErrorKind::NameTooLong);
    assert_eq!(story.refused(link(b"a\0b".to_vec())), ErrorKind::Invalid);
    let hints = |hints| Op::SetLayout(wire::SetLayout { inode: InodeId::ROOT, hints });
    let usual = LayoutHints::default();
    assert_eq!(story.refused(hints(LayoutHints { stripe_unit: Some(5), ..usual })), ErrorKind::Invalid);
    assert_eq!(story.refused(hints(LayoutHints { width: Some(0), ..usual })), ErrorKind::Invalid);
    assert_eq!(story.refused(hints(LayoutHints { copies: Some(2), ..usual })), ErrorKind::Unsupported);
    assert_eq!(story.state.inode_count(), 1, "nothing was made");
}

#[test]
fn names_of_the_wrong_kind_are_refused() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    let directory = story.mkdir(InodeId::ROOT, "d");
    let target = b"f".to_vec();
    let link =
        attributes(story.ask(Op::Symlink(wire::Symlink { parent: InodeId::ROOT, name: name("l"), target })))
            .inode;
    let exclusive = Op::Create(wire::Create { exclusive: true, ..create(InodeId::ROOT, "f", 1) });
    let open = |inode, write| Op::Open(wire::Open { inode, read: true, write, run: false });
    for (op, kind) in [
        (exclusive, ErrorKind::Exists),
        (Op::Create(create(InodeId::ROOT, "d", 1)), ErrorKind::IsDirectory),
        (Op::Create(create(InodeId::ROOT, "l", 1)), ErrorKind::Loop),
        (Op::Create(create(file, "x", 1)), ErrorKind::NotDirectory),
        (mkdir(InodeId::ROOT, "f", Slot(0)), ErrorKind::Exists),
        (rmdir(InodeId::ROOT, "f"), ErrorKind::NotDirectory),
        (rmdir(InodeId::ROOT, "x"), ErrorKind::NotFound),
        (unlink(InodeId::ROOT, "d"), ErrorKind::IsDirectory),
        (unlink(InodeId::ROOT, "x"), ErrorKind::NotFound),
        (open(link, false), ErrorKind::Loop),
        (open(directory, true), ErrorKind::IsDirectory),
        (truncate(directory, 0), ErrorKind::IsDirectory),
        (truncate(link, 0), ErrorKind::Invalid),
        (
            Op::SetLayout(wire::SetLayout {
                inode: file,
                hints: LayoutHints { width: Some(1), ..LayoutHints::default() },
            }),
            ErrorKind::NotDirectory,
        ),
    ] {
        assert_eq!(story.refused(op.clone()), kind, "{op:?}");
    }
    let node = |parent, text: &str, kind, device| {
        Op::MakeNode(wire::MakeNode { parent, name: name(text), kind, mode: 0o644.into(), device })
    };
    let pipe = attributes(story.ask(node(InodeId::ROOT, "p", FileKind::Fifo, 0))).inode;
    for (op, kind) in [
        (node(InodeId::ROOT, "p", FileKind::Socket, 0), ErrorKind::Exists),
        (node(InodeId::ROOT, "n", FileKind::File, 0), ErrorKind::Invalid),
        (node(InodeId::ROOT, "n", FileKind::Directory, 0), ErrorKind::Invalid),
        (node(InodeId::ROOT, "n", FileKind::Fifo, 1), ErrorKind::Invalid),
        (node(pipe, "n", FileKind::Fifo, 0), ErrorKind::NotDirectory),
        (open(pipe, true), ErrorKind::Unsupported),
        (truncate(pipe, 0), ErrorKind::Invalid),
        (Op::Create(create(InodeId::ROOT, "p", 1)), ErrorKind::Unsupported),
        (rmdir(InodeId::ROOT, "p"), ErrorKind::NotDirectory),
    ] {
        assert_eq!(story.refused(op.clone()), kind, "{op:?}");
    }
    let read_link = |inode| story.state.query(&ALICE, &wire::ReadLink { inode });
    assert_eq!(read_link(link), Ok(b"f".to_vec()));
    assert_eq!(read_link(file).unwrap_err().kind(), ErrorKind::Invalid);
}

// SEMANTICS 140.4
#[test]
fn modes_decide_who_may_do_what() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    let open = |write: bool| Op::Open(wire::Open { inode: file, read: !write, write, run: false });
    story.session = session(2);
    story.who = BOB;
    story.ask(open(false)).unwrap();
    for (op, kind) in [
        (open(true), ErrorKind::Denied),
        (truncate(file, 0), ErrorKind::Denied),
        (
            Op::Extend(wire::Extend { inode: file, generation: Generation(1), size: 1, from: 0 }),
            ErrorKind::Denied,
        ),
        (Op::ReserveAppend(wire::ReserveAppend { inode: file, length: 1 }), ErrorKind::Denied),
        (Op::Create(create(InodeId::ROOT, "f", 1)), ErrorKind::Denied),
        (Op::Create(create(InodeId::ROOT, "g", 1)), ErrorKind::Denied),
        (unlink(InodeId::ROOT, "f"), ErrorKind::Denied),
        (mkdir(InodeId::ROOT, "d", Slot(0)), ErrorKind::Denied),
        (Op::SetAttributes(wire::SetAttributes { mode: Some(0o777), ..set(file) }), ErrorKind::NotPermitted),
        (
            Op::SetAttributes(wire::SetAttributes { modified: Some(Timestamp { nanos: 9 }), ..set(file) }),
            ErrorKind::NotPermitted,
        ),
        (
            Op::SetLayout(wire::SetLayout { inode: InodeId::ROOT, hints: LayoutHints::default() }),
            ErrorKind::NotPermitted,
        ),
        (
            Op::SetLayout(wire::SetLayout { inode: file, hints: LayoutHints::of_mode(Some(Mode::Strict)) }),
            ErrorKind::NotPermitted,
        ),
    ] {
        assert_eq!(story.refused(op.clone()), kind, "{op:?}");
    }
    // Without search permission a user learns nothing about the content.
    story.who = ALICE;
    story.ask(Op::SetAttributes(wire::SetAttributes { mode: Some(0o600), ..set(InodeId::ROOT) })).unwrap();
    let look = wire::Lookup { parent: InodeId::ROOT, name: name("f") };
    let list = wire::ReadDirectory { inode: InodeId::ROOT, after: 0, entries_max: 1 };
    for who in [ALICE, BOB, MALLORY] {
        assert_eq!(story.state.query(&who, &look).unwrap_err().kind(), ErrorKind::Denied);
        assert_eq!(story.state.query(&who, &list).is_ok(), who == ALICE);
    }
    assert!(story.state.query(&ROOT_USER, &look).is_ok());
}

// SEMANTICS 55.3
#[test]
fn devices_are_the_super_users_to_make() {
    let mut story = Story::new();
    let device = |text: &str, kind| {
        let parent = InodeId::ROOT;
        Op::MakeNode(wire::MakeNode { parent, name: name(text), kind, mode: 0o600.into(), device: 0x0801 })
    };
    assert_eq!(story.refused(device("c", FileKind::CharDevice)), ErrorKind::NotPermitted);
    assert_eq!(story.refused(device("b", FileKind::BlockDevice)), ErrorKind::NotPermitted);
    assert_eq!(story.state.inode_count(), 1, "nothing was made");
    story.who = ROOT_USER;
    let made = attributes(story.ask(device("b", FileKind::BlockDevice)));
    assert_eq!((made.kind, made.device, made.mode, made.links), (FileKind::BlockDevice, 0x0801, 0o600, 1));
    assert_eq!(story.info(made.inode).unwrap().attributes, made);
}

#[test]
fn a_file_open_for_writing_stays_writable() {
    let mut story = Story::new();
    let request = wire::Create { mode: 0o444.into(), ..create(InodeId::ROOT, "f", 1) };
    let file = opened(story.ask(Op::Create(request))).info.attributes.inode;
    story.ask(promote(file)).unwrap();
    assert_eq!(size_of_reply(story.extend(file, 1, 10)), 10);
    story.ask(close(file)).unwrap();
    assert_eq!(story.extend(file, 1, 20).unwrap_err().kind(), ErrorKind::Denied);
}

#[test]
fn a_create_opens_a_new_file_as_wished_and_an_old_one_as_its_mode_allows() {
    let mut story = Story::new();
    let wished = |read, write| {
        Op::Create(wire::Create { mode: 0o444.into(), read, write, ..create(InodeId::ROOT, "f", 1) })
    };
    let file = opened(story.ask(wished(false, true))).info.attributes.inode;
    story.ask(promote(file)).unwrap();
    assert_eq!(size_of_reply(story.extend(file, 1, 10)), 10);
    assert_eq!(story.refused(wished(true, true)), ErrorKind::Denied);
    let again = opened(story.ask(wished(true, false)));
    assert_eq!((again.created, again.info.attributes.inode), (false, file));
    story.ask(close(file)).unwrap();
    opened(story.ask(wished(true, false)));
    assert_eq!(story.extend(file, 1, 20).unwrap_err().kind(), ErrorKind::Denied, "opened for reading only");
    let looked = Op::Create(wire::Create { write: false, ..create(InodeId::ROOT, "g", 1) });
    let fresh = opened(story.ask(looked)).info.attributes.inode;
    story.ask(Op::SetAttributes(wire::SetAttributes { mode: Some(0o444), ..set(fresh) })).unwrap();
    assert_eq!(story.extend(fresh, 1, 1).unwrap_err().kind(), ErrorKind::Denied);
}

#[test]
fn owners_and_modes_change_as_posix_has_it() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    let change = |request| Op::SetAttributes(request);
    assert_eq!(
        story.refused(change(wire::SetAttributes { uid: Some(0), ..set(file) })),
        ErrorKind::NotPermitted
    );
    assert_eq!(
        story.refused(change(wire::SetAttributes { gid: Some(5), ..set(file) })),
        ErrorKind::NotPermitted
    );
    assert_eq!(
        story.refused(change(wire::SetAttributes { mode: Some(0o10000), ..set(file) })),
        ErrorKind::Invalid
    );
    story.ask(change(wire::SetAttributes { uid: Some(1000), gid: Some(100), ..set(file) })).unwrap();
    story.ask(change(wire::SetAttributes { mode: Some(0o6755), ..set(file) })).unwrap();
    let owned = attributes(story.ask(change(wire::SetAttributes { gid: Some(100), ..set(file) })));
    assert_eq!(owned.mode, 0o755, "a change of owner takes the set-id bits");
    story.who = ROOT_USER;
    let given =
        attributes(story.ask(change(wire::SetAttributes { uid: Some(7), gid: Some(8), ..set(file) })));
    assert_eq!((given.uid, given.gid), (7, 8));
    let before = story.info(file).unwrap().attributes;
    assert_eq!(attributes(story.ask(change(set(file)))), before, "nothing asked, nothing changed");
    let past = Timestamp { nanos: -5 };
    let times = wire::SetAttributes { accessed: Some(past), modified: Some(past), ..set(file) };
    let touched = attributes(story.ask(change(times)));
    assert_eq!((touched.accessed, touched.modified), (past, past));
    assert!(touched.changed > before.changed);
}

#[test]
fn a_set_group_id_directory_hands_its_group_down() {
    let mut story = Story::new();
    story.who = ROOT_USER;
    let request = wire::SetAttributes { mode: Some(0o2777), gid: Some(55), ..set(InodeId::ROOT) };
    story.ask(Op::SetAttributes(request)).unwrap();
    story.who = BOB;
    let file = story.create(InodeId::ROOT, "f");
    let directory = story.mkdir(InodeId::ROOT, "d");
    assert_eq!(story.info(file).unwrap().attributes.gid, 55);
    let made = story.info(directory).unwrap().attributes;
    assert_eq!((made.gid, made.mode), (55, 0o2755));
}

#[test]
fn directories_pass_their_hints_on() {
    let mut story = Story::new();
    let rules = FileRules { mode: Some(Mode::Strict), reserve: true };
    let hints = LayoutHints { stripe_unit: Some(1 << 20), width: Some(2), copies: None, rules };
    story.ask(Op::SetLayout(wire::SetLayout { inode: InodeId::ROOT, hints })).unwrap();
    let directory = story.mkdir(InodeId::ROOT, "d");
    assert_eq!(story.info(directory).unwrap().hints, hints);
}

// SEMANTICS 140.2
#[test]
fn a_file_has_the_mode_of_its_directory_or_of_who_makes_it() {
    let mut story = Story::new();
    let set = |inode, mode| Op::SetLayout(wire::SetLayout { inode, hints: LayoutHints::of_mode(mode) });
    let before = story.create(InodeId::ROOT, "before");
    story.ask(set(InodeId::ROOT, Some(Mode::Strict))).unwrap();
    let directory = story.mkdir(InodeId::ROOT, "d");
    let after = story.create(directory, "after");
    let mut request = create(directory, "own", 1);
    request.wish.hints.rules.mode = Some(Mode::Relaxed);
    let own = opened(story.ask(Op::Create(request))).info.attributes.inode;
    let unnamed = story.ask(Op::CreateUnnamed(wire::CreateUnnamed {
        parent: directory,
        mode: 0o600.into(),
        read: true,
        write: true,
        layout: Some(layout(1)),
        wish: wire::LayoutWish::default(),
    }));
    let unnamed = opened(unnamed).info.attributes.inode;
    for (file, mode) in [
        (before, None),
        (after, Some(Mode::Strict)),
        (own, Some(Mode::Relaxed)),
        (unnamed, Some(Mode::Strict)),
    ] {
        assert_eq!(story.info(file).unwrap().hints, LayoutHints::of_mode(mode));
    }
    story.ask(set(directory, None)).unwrap();
    let later = story.create(directory, "later");
    assert_eq!(story.info(later).unwrap().hints.rules.mode, None);
    assert_eq!(story.info(after).unwrap().hints.rules.mode, Some(Mode::Strict), "it keeps its own");
}

// SEMANTICS 145.2, 145.3
#[test]
fn a_file_reserves_where_its_directory_hands_that_down_or_its_maker_asks_for_it() {
    let mut story = Story::new();
    let set = |inode, reserve| {
        let rules = FileRules { mode: None, reserve };
        Op::SetLayout(wire::SetLayout { inode, hints: LayoutHints::of_file(rules) })
    };
    let reserves = |story: &Story, inode| story.info(inode).unwrap().hints.rules.reserve;
    let before = story.create(InodeId::ROOT, "before");
    story.ask(set(InodeId::ROOT, true)).unwrap();
    let directory = story.mkdir(InodeId::ROOT, "d");
    let after = story.create(directory, "after");
    story.ask(set(directory, false)).unwrap();
    let later = story.create(directory, "later");
    let mut request = create(directory, "own", 1);
    request.wish.hints.rules.reserve = true;
    let own = opened(story.ask(Op::Create(request))).info.attributes.inode;
    let found = [before, directory, after, later, own].map(|inode| reserves(&story, inode));
    assert_eq!(found, [false, false, true, false, true]);
    // The opens were answered with this rule: it stays until they are closed.
    assert_eq!(story.refused(set(after, false)), ErrorKind::Busy);
    story.ask(set(after, true)).unwrap();
    story.ask(Op::Close(wire::Close { inode: after, modified: None, leases: false })).unwrap();
    story.ask(set(after, false)).unwrap();
    assert!(!reserves(&story, after));
}

// SEMANTICS 145.1
#[test]
fn a_file_that_reserves_is_made_longer_by_a_session_that_has_taken_its_memory() {
    let mut story = Story::new();
    let mut request = create(InodeId::ROOT, "f", 1);
    request.wish.hints.rules.reserve = true;
    let file = opened(story.ask(Op::Create(request))).info.attributes.inode;
    let to = |size, allocated| Op::Truncate(wire::Truncate { inode: file, size, allocated });
    let refused = ErrorKind::Redirect(Redirect::Reserved);
    // A file this small is inline, and has its inode's memory.
    story.ask(to(limits::INLINE_BYTES_MAX as u64, None)).unwrap();
    for size in [limits::INLINE_BYTES_MAX as u64 + 1, 1 << 30] {
        assert_eq!(story.refused(to(size, None)), refused);
    }
    assert_eq!(story.info(file).unwrap().attributes.size, limits::INLINE_BYTES_MAX as u64);
    story.ask(to(7, None)).unwrap();
    story.ask(to(100, None)).unwrap();
}

// SEMANTICS 140.4
#[test]
fn a_file_s_mode_changes_while_nobody_has_it_open() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    let set = |mode| Op::SetLayout(wire::SetLayout { inode: file, hints: LayoutHints::of_mode(mode) });
    assert_eq!(story.refused(set(Some(Mode::Strict))), ErrorKind::Busy);
    story.ask(set(None)).unwrap();
    story.ask(Op::Close(wire::Close { inode: file, modified: None, leases: false })).unwrap();
    let before = story.info(file).unwrap().attributes.changed;
    for mode in [Some(Mode::Strict), Some(Mode::Coherent), Some(Mode::Relaxed), None] {
        story.ask(set(mode)).unwrap();
        let info = story.info(file).unwrap();
        assert_eq!(info.hints, LayoutHints::of_mode(mode));
        assert!(info.attributes.changed > before);
    }
    story.ask(set(Some(Mode::Relaxed))).unwrap();
    let open = Op::Open(wire::Open { inode: file, read: true, write: false, run: false });
    let now = opened(story.ask(open)).info;
    assert_eq!(now.hints.rules.mode, Some(Mode::Relaxed), "whoever opens it hears of it");
    assert_eq!(story.refused(set(None)), ErrorKind::Busy);
    story.ask(set(Some(Mode::Relaxed))).unwrap();
    assert_eq!(story.info(file).unwrap().hints.rules.mode, Some(Mode::Relaxed));
}

#[test]
fn times_move_with_what_happens() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    let made = story.info(file).unwrap().attributes;
    assert_eq!(story.info(InodeId::ROOT).unwrap().attributes.modified, made.created);
    story.extend(file, 1, 10).unwrap();
    let extended = story.info(file).unwrap().attributes;
    assert!(extended.modified > made.modified && extended.changed > made.changed);
    let wrote = Timestamp { nanos: 1 << 40 };
    story.ask(Op::Close(wire::Close { inode: file, modified: Some(wrote), leases: false })).unwrap();
    let closed = story.info(file).unwrap().attributes;
    assert!(closed.modified > extended.modified && closed.modified == closed.changed, "not beyond now");
    story.ask(unlink(InodeId::ROOT, "f")).unwrap();
    assert!(story.info(InodeId::ROOT).unwrap().attributes.modified > made.created);
}

#[test]
fn a_request_for_another_slot_s_inode_is_sent_to_its_home() {
    let mut story = Story::new();
    assert_eq!(story.refused(truncate(InodeId::new(Slot(1), 1), 0)), ErrorKind::Redirect(Redirect::Spread));
}
