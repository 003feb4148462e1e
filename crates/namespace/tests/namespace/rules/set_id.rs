//! Set-id bits, capabilities, times, and files without a name.

use ramlace_base::{ErrorKind, InodeId, Timestamp};
use ramlace_namespace::Op;
use ramlace_wire::namespace::{self as wire, TimeReason};
use ramlace_wire::xattrs::{GetXattr, RemoveXattr, SetXattr, XattrMode, XattrName};
use ramlace_wire::{Credentials, Owner};

use crate::rules::story::*;

/// A file of Alice with this mode, that every user may write.
fn program(story: &mut Story, text: &str, mode: u16) -> InodeId {
    story.who = ALICE;
    let file = story.create(InodeId::ROOT, text);
    story.ask(close(file)).unwrap();
    mode_to(story, file, mode);
    file
}

fn mode_to(story: &mut Story, inode: InodeId, mode: u16) -> u16 {
    attributes(story.ask(Op::SetAttributes(wire::SetAttributes { mode: Some(mode), ..set(inode) }))).mode
}

fn mode_of(story: &Story, inode: InodeId) -> u16 {
    story.info(inode).unwrap().attributes.mode
}

fn wrote(inode: InodeId) -> Op {
    let modified = Some(Timestamp { nanos: 5 });
    Op::SetAttributes(wire::SetAttributes { modified, times: TimeReason::Wrote, ..set(inode) })
}

// SEMANTICS 57.1
#[test]
fn whatever_changes_the_content_takes_set_id_bits_but_for_the_super_user() {
    let mut story = Story::new();
    for (mode, left) in [(0o6777, 0o777), (0o4777, 0o777), (0o2777, 0o777), (0o6767, 0o2767)] {
        for (number, who) in [&ALICE, &BOB].into_iter().enumerate() {
            for (kind, change) in [("t", truncate as fn(InodeId, u64) -> Op), ("w", |inode, _| wrote(inode))]
            {
                let file = program(&mut story, &format!("{kind}{number}{mode:o}"), mode);
                story.who = who.clone();
                story.ask(change(file, 0)).unwrap();
                assert_eq!(mode_of(&story, file), left, "{kind} of mode {mode:o} by user {}", who.uid);
            }
        }
    }
    let file = program(&mut story, "root", 0o6777);
    story.who = ROOT_USER;
    story.ask(truncate(file, 0)).unwrap();
    story.ask(wrote(file)).unwrap();
    assert_eq!(mode_of(&story, file), 0o6777);
    story.who = BOB;
    story.extend(file, 1, 10).unwrap();
    assert_eq!(mode_of(&story, file), 0o777);
    // A user who is not in the group loses the bit in any case.
    let file = program(&mut story, "group", 0o2767);
    story.who = MALLORY;
    story.ask(truncate(file, 0)).unwrap();
    assert_eq!(mode_of(&story, file), 0o767);
    // For a user who has it open on a host, the host's kernel says when the bits go.
    for (reason, left) in [(TimeReason::Wrote, 0o6777), (TimeReason::WroteAndDropsSetId, 0o777)] {
        let file = program(&mut story, &format!("host-{left:o}"), 0o6777);
        story.who = Credentials::WHOEVER;
        let modified = Some(Timestamp { nanos: 5 });
        story.ask(Op::SetAttributes(wire::SetAttributes { modified, times: reason, ..set(file) })).unwrap();
        assert_eq!(mode_of(&story, file), left);
    }
    // Touching is no writing.
    let file = program(&mut story, "touched", 0o6777);
    story.who = BOB;
    let now = Some(Timestamp { nanos: 5 });
    let touch = wire::SetAttributes { modified: now, times: TimeReason::Now, ..set(file) };
    story.ask(Op::SetAttributes(touch)).unwrap();
    assert_eq!(mode_of(&story, file), 0o6777);
}

// SEMANTICS 57.3
#[test]
fn a_change_of_owner_takes_set_id_bits_from_everything_but_directories() {
    let mut story = Story::new();
    for who in [&ALICE, &ROOT_USER] {
        let file = program(&mut story, &format!("f{}", who.uid), 0o6755);
        story.who = who.clone();
        let given = wire::SetAttributes { gid: Some(ALICE.gid), ..set(file) };
        assert_eq!(attributes(story.ask(Op::SetAttributes(given))).mode, 0o755, "by user {}", who.uid);
    }
    let file = program(&mut story, "locked", 0o6745);
    let given = wire::SetAttributes { uid: Some(ALICE.uid), ..set(file) };
    assert_eq!(attributes(story.ask(Op::SetAttributes(given))).mode, 0o2745);
    let directory = story.mkdir(InodeId::ROOT, "d");
    mode_to(&mut story, directory, 0o6755);
    let given = wire::SetAttributes { uid: Some(ALICE.uid), gid: Some(ALICE.gid), ..set(directory) };
    assert_eq!(attributes(story.ask(Op::SetAttributes(given))).mode, 0o6755);
}

// SEMANTICS 57.4
#[test]
fn capabilities_go_with_a_change_of_content_or_owner() {
    let mut story = Story::new();
    let name = || XattrName::new(XattrName::CAPABILITY).unwrap();
    for (text, change) in [
        ("w", wrote as fn(InodeId) -> Op),
        ("t", |inode| truncate(inode, 0)),
        ("o", |inode| Op::SetAttributes(wire::SetAttributes { uid: Some(ALICE.uid), ..set(inode) })),
    ] {
        let file = program(&mut story, text, 0o755);
        story.who = ROOT_USER;
        let request = SetXattr { inode: file, name: name(), value: vec![1], mode: XattrMode::Any };
        story.ask(Op::SetXattr(request)).unwrap();
        story.ask(change(file)).unwrap();
        let asked = story.state.query(&ROOT_USER, &GetXattr { inode: file, name: name() });
        assert_eq!(asked.unwrap_err().kind(), ErrorKind::NoData, "{text}");
    }
}

// SEMANTICS 57.4
#[test]
fn who_may_change_a_file_or_its_owner_may_take_its_capabilities_and_no_more() {
    let capability = || XattrName::new(XattrName::CAPABILITY).unwrap();
    let mut story = Story::new();
    let file = program(&mut story, "f", 0o2750);
    let set_xattr =
        |name, value| Op::SetXattr(SetXattr { inode: file, name, value: vec![value], mode: XattrMode::Any });
    let remove = |name| Op::RemoveXattr(RemoveXattr { inode: file, name });
    let bytes = |story: &Story| {
        let asked = GetXattr { inode: file, name: capability() };
        story.state.query(&ROOT_USER, &asked).is_ok()
    };
    for (who, mode, may) in [
        (ALICE, 0o400, true),
        (BOB, 0o770, true),
        (BOB, 0o757, false),
        (MALLORY, 0o772, true),
        (MALLORY, 0o775, false),
    ] {
        story.who = ROOT_USER;
        mode_to(&mut story, file, mode);
        story.ask(set_xattr(capability(), 1)).unwrap();
        story.who = who;
        assert_eq!(story.refused(set_xattr(capability(), 2)), ErrorKind::NotPermitted);
        assert_eq!(story.ask(remove(capability())).is_ok(), may, "user {} and mode {mode:o}", story.who.uid);
        assert_eq!(bytes(&story), !may);
    }
    // A descriptor that was opened before the mode changed.
    story.ask(Op::Open(wire::Open { inode: file, read: true, write: false, run: false })).unwrap();
    assert_eq!(story.refused(remove(capability())), ErrorKind::NotPermitted);
    story.who = ROOT_USER;
    story.ask(Op::Open(wire::Open { inode: file, read: true, write: true, run: false })).unwrap();
    let other = XattrName::new(b"security.other").unwrap();
    story.ask(set_xattr(other.clone(), 1)).unwrap();
    story.who = MALLORY;
    story.ask(remove(capability())).unwrap();
    assert_eq!(story.refused(remove(other)), ErrorKind::NotPermitted);
}

#[test]
fn nobody_makes_a_program_of_a_group_that_is_not_his() {
    let mut story = Story::new();
    let file = program(&mut story, "f", 0o755);
    story.who = ROOT_USER;
    story.ask(Op::SetAttributes(wire::SetAttributes { gid: Some(7), ..set(file) })).unwrap();
    story
        .ask(Op::SetAttributes(wire::SetAttributes {
            mode: Some(0o2777),
            gid: Some(7),
            ..set(InodeId::ROOT)
        }))
        .unwrap();
    story.who = ALICE;
    assert_eq!(mode_to(&mut story, file, 0o6755), 0o4755);
    let made = |story: &mut Story, text: &str, mode| {
        opened(story.ask(Op::Create(wire::Create {
            mode: wire::NewMode::from(mode),
            ..create(InodeId::ROOT, text, 1)
        })))
        .info
        .attributes
    };
    let stripped = made(&mut story, "a", 0o2755);
    assert_eq!((stripped.mode, stripped.gid), (0o755, 7));
    assert_eq!(made(&mut story, "b", 0o2745).mode, 0o2745, "it is no program of the group");
    story.who = ROOT_USER;
    assert_eq!(made(&mut story, "c", 0o2755).mode, 0o2755);
}

// SEMANTICS 58.1
#[test]
fn times_are_chosen_by_the_owner_and_the_present_is_for_writers_too() {
    let mut story = Story::new();
    let file = program(&mut story, "f", 0o666);
    let times = |times, nanos| {
        let at = Some(Timestamp { nanos });
        Op::SetAttributes(wire::SetAttributes { accessed: at, modified: at, times, ..set(file) })
    };
    let far = [i64::MIN, -1, 0, i64::MAX];
    for nanos in far {
        let told = attributes(story.ask(times(TimeReason::Chosen, nanos)));
        assert_eq!((told.accessed.nanos, told.modified.nanos), (nanos, nanos));
    }
    story.ask(times(TimeReason::Chosen, 0)).unwrap();
    story.who = MALLORY;
    assert_eq!(story.refused(times(TimeReason::Chosen, 1)), ErrorKind::NotPermitted);
    story.ask(times(TimeReason::Now, i64::MAX)).unwrap();
    let told = story.info(file).unwrap().attributes;
    assert_eq!(told.modified, told.changed, "not beyond now");
    story.who = ALICE;
    mode_to(&mut story, file, 0o644);
    story.who = MALLORY;
    assert_eq!(story.refused(times(TimeReason::Now, 2)), ErrorKind::Denied);
}

// SEMANTICS 58.4
#[test]
fn a_report_of_a_write_makes_no_file_older() {
    let mut story = Story::new();
    let file = program(&mut story, "f", 0o666);
    let at = |times, nanos| {
        let modified = Some(Timestamp { nanos });
        Op::SetAttributes(wire::SetAttributes { modified, times, ..set(file) })
    };
    // The owner's reports, and those of others.
    for who in [ALICE, MALLORY] {
        story.who = ALICE;
        story.ask(at(TimeReason::Chosen, 7)).unwrap();
        story.who = who.clone();
        for (nanos, told) in [(9, 9), (8, 9)] {
            assert_eq!(attributes(story.ask(at(TimeReason::Wrote, nanos))).modified.nanos, told);
        }
        story.who = ALICE;
        story.ask(at(TimeReason::Chosen, i64::MAX)).unwrap();
        story.who = who.clone();
        let told = attributes(story.ask(at(TimeReason::Wrote, 9)));
        assert_eq!(told.modified.nanos, 9, "a time in the future was not that of a write");
        let told = attributes(story.ask(at(TimeReason::Wrote, i64::MAX)));
        assert_eq!(told.modified, told.changed);
    }
}

// SEMANTICS 59
#[test]
fn a_file_without_a_name_lives_while_it_is_open_and_may_get_one() {
    let mut story = Story::new();
    let unnamed = |mode| {
        Op::CreateUnnamed(wire::CreateUnnamed {
            parent: InodeId::ROOT,
            mode: wire::NewMode::from(mode),
            read: true,
            write: true,
            layout: Some(layout(1)),
            wish: wire::LayoutWish::default(),
        })
    };
    let made = opened(story.ask(unnamed(0o600))).info.attributes;
    assert_eq!((made.links, made.mode, Owner { uid: made.uid, gid: made.gid }), (0, 0o600, ALICE.owner()));
    story.ask(promote(made.inode)).unwrap();
    assert_eq!(size_of_reply(story.extend(made.inode, 1, 10)), 10);
    story.ask(close(made.inode)).unwrap();
    assert_eq!(story.info(made.inode).unwrap_err().kind(), ErrorKind::Stale);

    let made = opened(story.ask(unnamed(0o600))).info.attributes.inode;
    let link = |text: &str| Op::Link(wire::Link { parent: InodeId::ROOT, name: name(text), inode: made });
    assert_eq!(attributes(story.ask(link("a"))).links, 1);
    story.ask(close(made)).unwrap();
    assert_eq!(story.info(made).unwrap().attributes.links, 1);
    // Once it had a name, losing it is for good.
    story.ask(Op::Open(wire::Open { inode: made, read: true, write: false, run: false })).unwrap();
    story.ask(unlink(InodeId::ROOT, "a")).unwrap();
    assert_eq!(story.refused(link("b")), ErrorKind::NotFound);
    story.who = Credentials::new(7, 7);
    assert_eq!(story.refused(unnamed(0o600)), ErrorKind::Denied);
}
