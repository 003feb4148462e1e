//! Renames and links in one slot, and each half of those across slots.

use ramlace_base::{Epoch, Error, ErrorKind, InodeId, Sequence, Slot, Timestamp, limits};
use ramlace_namespace::{Delivery, DeliveryAnswer, DeliveryId, Effect, Op, Reply, SlotState};
use ramlace_wire::namespace::{self as wire, RenameMode};
use ramlace_wire::peer::{self, Ascended, IntentStamp, Part, Prepared, PutEntry, Target, Token};
use ramlace_wire::xattrs::{RemoveXattr, SetXattr, XattrMode, XattrName};
use ramlace_wire::{AccessLists, Credentials, ErrorBody, FileKind, LayoutHints};

use crate::rules::story::*;

const ROOT: InodeId = InodeId::ROOT;

fn rename_as(parent: InodeId, old: &str, new_parent: InodeId, new: &str, mode: RenameMode) -> Op {
    let (name, new_name) = (name(old), name(new));
    Op::Rename(Box::new(wire::Rename {
        parent,
        name,
        new_parent,
        new_slot: new_parent.slot(),
        new_name,
        mode,
    }))
}

fn rename(parent: InodeId, old: &str, new_parent: InodeId, new: &str) -> Op {
    rename_as(parent, old, new_parent, new, RenameMode::Replace)
}

fn link(inode: InodeId, parent: InodeId, text: &str) -> Op {
    Op::Link(wire::Link { parent, name: name(text), inode })
}

fn look(story: &Story, parent: InodeId, text: &str) -> Result<InodeId, ErrorKind> {
    let query = wire::Lookup { parent, name: name(text) };
    story.state.query(&ROOT_USER, &query).map(|found| found.inode).map_err(|error| error.kind())
}

fn links(story: &Story, inode: InodeId) -> u32 {
    story.info(inode).unwrap().attributes.links
}

#[test]
fn a_rename_keeps_the_inode_and_touches_what_posix_names() {
    let mut story = Story::new();
    let file = story.create(ROOT, "f");
    let directory = story.mkdir(ROOT, "d");
    let before = story.info(file).unwrap().attributes;
    story.ask(rename(ROOT, "f", directory, "g")).unwrap();
    assert_eq!((look(&story, ROOT, "f"), look(&story, directory, "g")), (Err(ErrorKind::NotFound), Ok(file)));
    let after = story.info(file).unwrap().attributes;
    assert!(after.changed > before.changed && after.modified == before.modified);
    for parent in [ROOT, directory] {
        assert_eq!(story.info(parent).unwrap().attributes.modified, after.changed);
    }
}

#[test]
fn what_is_replaced_goes_with_its_last_close() {
    let mut story = Story::new();
    let old = story.create(ROOT, "old");
    let new = story.create(ROOT, "new");
    story.ask(rename(ROOT, "new", ROOT, "old")).unwrap();
    assert_eq!((look(&story, ROOT, "old"), links(&story, old)), (Ok(new), 0));
    story.ask(close(old)).unwrap();
    assert_eq!(story.info(old).unwrap_err().kind(), ErrorKind::Stale);
}

#[test]
fn a_name_that_is_replaced_keeps_its_cookie() {
    let mut story = Story::with_hash_bits(1);
    for text in ["a", "b", "c"] {
        story.create(ROOT, text);
    }
    let cookies = |story: &Story| -> Vec<(u64, String)> {
        story.page(ROOT, 0, 9).entries.iter().map(|entry| (entry.cookie, entry.name.to_string())).collect()
    };
    let mut before = cookies(&story);
    story.ask(rename(ROOT, "c", ROOT, "a")).unwrap();
    before.retain(|(_, name)| name != "c");
    assert_eq!(cookies(&story), before);
}

#[test]
fn renames_that_make_no_sense_have_their_errno_and_no_effect() {
    let mut story = Story::new();
    let file = story.create(ROOT, "f");
    let outer = story.mkdir(ROOT, "outer");
    let inner = story.mkdir(outer, "inner");
    story.mkdir(ROOT, "empty");
    let exchange =
        |old_parent, old, new_parent, new| rename_as(old_parent, old, new_parent, new, RenameMode::Exchange);
    let before = story.state.clone();
    for (op, kind) in [
        (rename(ROOT, "none", ROOT, "x"), ErrorKind::NotFound),
        (rename(file, "x", ROOT, "y"), ErrorKind::NotDirectory),
        (rename(ROOT, "f", file, "y"), ErrorKind::NotDirectory),
        (rename(ROOT, "outer", outer, "x"), ErrorKind::Invalid),
        (rename(ROOT, "outer", inner, "x"), ErrorKind::Invalid),
        (exchange(ROOT, "outer", inner, "x"), ErrorKind::Invalid),
        (exchange(outer, "inner", ROOT, "outer"), ErrorKind::Invalid),
        (exchange(ROOT, "f", ROOT, "none"), ErrorKind::NotFound),
        (rename(outer, "inner", ROOT, "outer"), ErrorKind::NotEmpty),
        (rename(ROOT, "empty", ROOT, "outer"), ErrorKind::NotEmpty),
        (rename(ROOT, "f", ROOT, "outer"), ErrorKind::IsDirectory),
        (rename(ROOT, "outer", ROOT, "f"), ErrorKind::NotDirectory),
        (rename_as(ROOT, "f", ROOT, "outer", RenameMode::Keep), ErrorKind::Exists),
        (rename_as(ROOT, "f", ROOT, "f", RenameMode::Keep), ErrorKind::Exists),
        (rename(ROOT, "f", InodeId::new(Slot(64), 1), "x"), ErrorKind::Stale),
        (link(InodeId::new(Slot(64), 1), ROOT, "x"), ErrorKind::Stale),
        (link(outer, ROOT, "x"), ErrorKind::NotPermitted),
        (link(file, ROOT, "outer"), ErrorKind::Exists),
        (link(InodeId::new(Slot(0), 1 << 40), ROOT, "x"), ErrorKind::Stale),
    ] {
        assert_eq!(story.refused(op.clone()), kind, "{op:?}");
    }
    let listed = |state| Story { state, ..Story::new() }.page(ROOT, 0, 9);
    assert_eq!(listed(story.state.clone()), listed(before));
    // Nothing is held any more.
    story.ask(rename(outer, "inner", ROOT, "empty")).unwrap();
    story.ask(rmdir(ROOT, "outer")).unwrap();
}

#[test]
fn renaming_onto_the_same_inode_does_nothing() {
    let mut story = Story::new();
    let file = story.create(ROOT, "f");
    story.ask(link(file, ROOT, "g")).unwrap();
    story.ask(rename(ROOT, "f", ROOT, "f")).unwrap();
    story.ask(rename(ROOT, "f", ROOT, "g")).unwrap();
    assert_eq!((look(&story, ROOT, "f"), look(&story, ROOT, "g")), (Ok(file), Ok(file)));
    assert_eq!(links(&story, file), 2);
}

#[test]
fn an_exchange_of_directories_keeps_every_count() {
    let mut story = Story::new();
    let outer = story.mkdir(ROOT, "outer");
    let inner = story.mkdir(outer, "inner");
    let file = story.create(ROOT, "f");
    story.ask(rename_as(outer, "inner", ROOT, "f", RenameMode::Exchange)).unwrap();
    assert_eq!((look(&story, outer, "inner"), look(&story, ROOT, "f")), (Ok(file), Ok(inner)));
    assert_eq!((links(&story, ROOT), links(&story, outer), links(&story, inner)), (4, 2, 2));
    // It knows its new parent: nothing is made inside itself.
    assert_eq!(story.refused(rename(ROOT, "outer", outer, "x")), ErrorKind::Invalid);
    story.ask(rename(ROOT, "outer", inner, "x")).unwrap();
    assert_eq!(story.refused(rename(ROOT, "f", outer, "x")), ErrorKind::Invalid);
}

#[test]
fn links_are_counted_and_limited() {
    let mut story = Story::new();
    let file = story.create(ROOT, "f");
    assert_eq!(attributes(story.ask(link(file, ROOT, "g"))).links, 2);
    story.ask(unlink(ROOT, "f")).unwrap();
    assert_eq!((links(&story, file), look(&story, ROOT, "g")), (1, Ok(file)));
    story.ask(unlink(ROOT, "g")).unwrap();
    assert_eq!(story.refused(link(file, ROOT, "h")), ErrorKind::NotFound, "nobody finds it again");
    let file = story.create(ROOT, "many");
    for number in 1..limits::LINKS_PER_FILE_MAX {
        story.ask(link(file, ROOT, &number.to_string())).unwrap();
    }
    assert_eq!(story.refused(link(file, ROOT, "one more")), ErrorKind::TooManyLinks);
    assert_eq!(look(&story, ROOT, "one more"), Err(ErrorKind::NotFound));
}

#[test]
fn a_sticky_directory_protects_what_others_put_there() {
    let mut story = Story::new();
    story.who = ROOT_USER;
    let everybody = |inode, mode| Op::SetAttributes(wire::SetAttributes { mode: Some(mode), ..set(inode) });
    let sticky = story.mkdir(ROOT, "tmp");
    let open = story.mkdir(ROOT, "open");
    story.ask(everybody(sticky, 0o1777)).unwrap();
    story.ask(everybody(open, 0o777)).unwrap();
    story.who = ALICE;
    for text in ["f", "g"] {
        story.create(sticky, text);
    }
    let inner = story.mkdir(sticky, "d");
    story.create(inner, "f");
    story.who = BOB;
    story.create(open, "mine");
    for op in [
        unlink(sticky, "f"),
        rmdir(sticky, "d"),
        rename(sticky, "f", open, "f"),
        rename(open, "mine", sticky, "f"),
        rename_as(open, "mine", sticky, "f", RenameMode::Exchange),
    ] {
        assert_eq!(story.refused(op.clone()), ErrorKind::NotPermitted, "{op:?}");
    }
    story.ask(rename(open, "mine", sticky, "bobs")).unwrap();
    story.ask(unlink(sticky, "bobs")).unwrap();
    story.who = ALICE;
    story.ask(unlink(sticky, "f")).unwrap();
    assert_eq!(story.refused(rmdir(sticky, "d")), ErrorKind::NotEmpty);
    story.ask(unlink(inner, "f")).unwrap();
    story.ask(rmdir(sticky, "d")).unwrap();
    story.who = ROOT_USER;
    story.ask(unlink(sticky, "g")).unwrap();
}

#[test]
fn a_directory_is_moved_by_who_may_write_it() {
    let mut story = Story::new();
    story.who = ROOT_USER;
    let open = story.mkdir(ROOT, "open");
    let other = story.mkdir(ROOT, "other");
    for inode in [open, other] {
        story.ask(Op::SetAttributes(wire::SetAttributes { mode: Some(0o777), ..set(inode) })).unwrap();
    }
    story.mkdir(open, "d");
    story.who = BOB;
    assert_eq!(story.refused(rename(open, "d", other, "d")), ErrorKind::Denied);
    story.ask(rename(open, "d", open, "e")).unwrap();
    assert_eq!(story.refused(rename(open, "e", ROOT, "e")), ErrorKind::Denied);
}

// ---- across slots ----

fn message(number: u64, part: Part, who: Credentials) -> Op {
    Op::Prepare(Box::new(peer::Prepare {
        token: token(),
        stamp: stamp(number),
        slot: Slot(0),
        number: 1,
        who,
        now: Timestamp { nanos: 50 },
        part,
    }))
}

fn token() -> Token {
    Token { session: session(9), sequence: Sequence(1) }
}

fn stamp(number: u64) -> IntentStamp {
    IntentStamp { coordinator: Slot(7), number, open_from: 1 }
}

fn decide(number: u64, commit: bool) -> Op {
    let now = Timestamp { nanos: 60 };
    Op::Decide(peer::Decide { token: token(), stamp: stamp(number), slot: Slot(0), commit, now })
}

fn elsewhere() -> InodeId {
    InodeId::new(Slot(7), 77)
}

fn put(text: &str, kind: FileKind, mode: RenameMode) -> Part {
    let from = InodeId::new(Slot(7), 1);
    Part::PutEntry(PutEntry {
        parent: ROOT,
        name: name(text),
        inode: elsewhere(),
        kind,
        from,
        owner: None,
        mode,
    })
}

#[test]
fn a_new_entry_is_held_until_it_is_decided() {
    let mut story = Story::new();
    let old = story.create(ROOT, "f");
    story.ask(close(old)).unwrap();
    let part = put("f", FileKind::File, RenameMode::Replace);
    let target = Target { inode: old, kind: FileKind::File, owner: None };
    for _ in 0..2 {
        let answer = story.peer(message(3, part.clone(), ALICE));
        assert_eq!(answer, Ok(DeliveryAnswer::Prepared(Prepared::Found(Some(target)))));
    }
    // It is as it was, and no other operation changes it: one that meets it fails with Retry.
    assert_eq!(look(&story, ROOT, "f"), Ok(old));
    for op in [unlink(ROOT, "f"), rename(ROOT, "f", ROOT, "g"), link(old, ROOT, "g")] {
        assert_eq!(story.refused(op.clone()), ErrorKind::Retry, "{op:?}");
    }
    // It may be gone the next moment.
    let xattr = XattrName::new("user.x").unwrap();
    for op in [
        Op::Open(wire::Open { inode: old, read: true, write: false, run: false }),
        Op::SetAttributes(wire::SetAttributes { mode: Some(0o600), ..set(old) }),
        truncate(old, 1),
        Op::SetXattr(SetXattr { inode: old, name: xattr.clone(), value: vec![1], mode: XattrMode::Any }),
        Op::RemoveXattr(RemoveXattr { inode: old, name: xattr }),
    ] {
        assert_eq!(story.refused(op.clone()), ErrorKind::Retry, "{op:?}");
    }
    assert_eq!(story.peer(message(4, part.clone(), ALICE)).unwrap_err().kind(), ErrorKind::Busy);
    story.peer(decide(3, false)).unwrap();
    assert_eq!((look(&story, ROOT, "f"), links(&story, old)), (Ok(old), 1));
    story.peer(message(5, part, ALICE)).unwrap();
    story.peer(decide(5, true)).unwrap();
    story.peer(decide(5, true)).unwrap();
    assert_eq!(look(&story, ROOT, "f"), Ok(elsewhere()));
    assert_eq!(story.info(old).unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(story.size(ROOT), 1);
}

#[test]
fn an_entry_of_a_file_elsewhere_is_opened_there() {
    let mut story = Story::new();
    story.peer(message(3, put("f", FileKind::File, RenameMode::Keep), ALICE)).unwrap();
    story.peer(decide(3, true)).unwrap();
    assert_eq!(story.refused(Op::Create(create(ROOT, "f", 1))), ErrorKind::Exists);
}

#[test]
fn a_new_name_keeps_its_place_among_colliding_ones() {
    let mut story = Story::with_hash_bits(1);
    for text in ["a", "b", "c", "d", "e", "f", "g"] {
        story.create(ROOT, text);
    }
    story.peer(message(3, put("h", FileKind::File, RenameMode::Replace), ALICE)).unwrap();
    assert_eq!(story.refused(Op::Create(create(ROOT, "i", 1))), ErrorKind::NoSpace);
    story.peer(decide(3, true)).unwrap();
    assert_eq!(look(&story, ROOT, "h"), Ok(elsewhere()));
}

// SEMANTICS 10.2
#[test]
fn the_old_name_is_not_shown_between_decision_and_end() {
    let mut story = Story::new();
    let file = story.create(ROOT, "f");
    let there = InodeId::new(Slot(5), 9);
    assert_eq!(story.send(rename(ROOT, "f", there, "g")), None);
    assert_eq!(look(&story, ROOT, "f"), Ok(file), "it may come to nothing");
    let (request, _) = story.sent[0].clone();
    let found = Ok(DeliveryAnswer::Prepared(Prepared::Found(None)));
    let effects = story.server(Op::DeliveryDone { delivery: request, result: found });
    assert_eq!(reply(&effects), None, "the other slot does its part first");
    assert_eq!(look(&story, ROOT, "f"), Err(ErrorKind::Retry));
    let (decide, Delivery::Decide(message)) = story.sent[1].clone() else { panic!("{:?}", story.sent) };
    assert!(message.commit);
    // A server that is down now only delays it.
    assert_eq!(reply(&story.server(Op::DeliveryUnreachable { delivery: decide })), None);
    assert_eq!(story.done(decide), Some(Ok(Reply::Done)));
    assert_eq!(look(&story, ROOT, "f"), Err(ErrorKind::NotFound));
    assert_eq!(story.state.open_deliveries().count(), 0);
}

// SEMANTICS 10.2
#[test]
fn a_listing_has_no_old_name_beside_the_new_one() {
    for (mode, shown) in [(RenameMode::Replace, &[][..]), (RenameMode::Exchange, &["f"])] {
        let mut story = Story::new();
        story.create(ROOT, "f");
        let listed = |story: &Story| -> Vec<String> {
            let entries = story.page(ROOT, 0, 10).entries;
            entries.iter().map(|entry| entry.name.to_string()).collect()
        };
        let (there, away) = (Slot(5), Slot(6));
        assert_eq!(story.send(rename_as(ROOT, "f", InodeId::new(there, 9), "g", mode)), None);
        // The order, where there is one, lies here.
        let target = Target { inode: InodeId::new(away, 9), kind: FileKind::File, owner: None };
        for answer in [Prepared::Found(Some(target)), Prepared::Ready] {
            let delivery = story.sent.last().unwrap().0;
            let result = Ok(DeliveryAnswer::Prepared(answer));
            assert_eq!(reply(&story.server(Op::DeliveryDone { delivery, result })), None);
        }
        let decided: Vec<(DeliveryId, Slot)> =
            story.state.open_deliveries().map(|(delivery, message)| (delivery, message.slot())).collect();
        let [(put, slot), (lower, other)] = decided[..] else { panic!("{decided:?}") };
        assert_eq!((slot, other), (there, away));
        assert_eq!(listed(&story), ["f"], "the new name may not be shown yet");
        let effects = story.server(Op::DeliveryDone { delivery: put, result: Ok(DeliveryAnswer::Done) });
        assert_eq!(listed(&story), shown, "{mode:?}, while the target's server is away");
        let is_told = |effect: &Effect| matches!(effect, Effect::Changed { inode: ROOT, names: true, .. });
        assert_eq!(effects.iter().any(is_told), shown.is_empty(), "who has listed it lists it again");
        assert_eq!(look(&story, ROOT, "f"), Err(ErrorKind::Retry));
        assert_eq!(story.done(lower), Some(Ok(Reply::Done)));
        assert_eq!(listed(&story), shown);
    }
}

// SEMANTICS 58.6
#[test]
fn what_was_decided_elsewhere_makes_nothing_older() {
    let mut story = Story::new();
    let (file, linked, gone) =
        (story.create(ROOT, "f"), story.create(ROOT, "linked"), story.create(ROOT, "gone"));
    let touched = |story: &Story| {
        let times = |inode| story.info(inode).unwrap().attributes;
        let (above, file) = (times(ROOT), times(file));
        [above.modified, above.changed, file.changed, times(linked).changed, times(gone).changed]
    };
    let next = |time: Timestamp| Timestamp { nanos: time.nanos + 1 };
    let before = touched(&story);
    let part = Part::MoveInode { inode: file, parent: None, owner: None };
    story.peer(message(3, put("g", FileKind::File, RenameMode::Keep), ALICE)).unwrap();
    story.peer(message(4, part, ALICE)).unwrap();
    story.peer(message(5, Part::RaiseLinks { inode: linked }, ALICE)).unwrap();
    story.peer(message(6, Part::LowerLinks { inode: gone, owner: None }, ALICE)).unwrap();
    for number in 3..=6 {
        story.peer(decide(number, true)).unwrap();
    }
    assert_eq!(look(&story, ROOT, "g"), Ok(elsewhere()));
    assert_eq!(touched(&story), before.map(next), "the decision is of an earlier moment, and is seen");
    // A user has set a time that is yet to come: a change makes it the present one.
    let future = Timestamp { nanos: 1_000_000 };
    story.ask(Op::SetAttributes(wire::SetAttributes { modified: Some(future), ..set(ROOT) })).unwrap();
    let set_at = story.info(ROOT).unwrap().attributes.changed;
    story.peer(message(7, put("h", FileKind::File, RenameMode::Keep), ALICE)).unwrap();
    story.peer(decide(7, true)).unwrap();
    let above = story.info(ROOT).unwrap().attributes;
    assert_eq!([above.modified, above.changed], [set_at, set_at].map(next));
}

#[test]
fn a_refused_rename_leaves_everything_as_it_was() {
    let mut story = Story::new();
    let file = story.create(ROOT, "f");
    let there = InodeId::new(Slot(5), 9);
    for (kind, told) in [
        (ErrorKind::NotEmpty, ErrorKind::NotEmpty),
        (ErrorKind::Denied, ErrorKind::Denied),
        (ErrorKind::HostDown, ErrorKind::HostDown),
        // Another operation conflicts: the client repeats its request.
        (ErrorKind::Busy, ErrorKind::Retry),
    ] {
        assert_eq!(story.send(rename(ROOT, "f", there, "g")), None);
        let request = story.sent.last().unwrap().0;
        let result = Err(ErrorBody::new(&Error::new(kind, "no")));
        let effects = story.server(Op::DeliveryDone { delivery: request, result });
        assert_eq!(reply(&effects).unwrap().unwrap_err().kind(), told);
        let (decide, Delivery::Decide(message)) = story.sent.last().unwrap().clone() else { panic!() };
        assert!(!message.commit);
        story.done(decide);
        assert_eq!(look(&story, ROOT, "f"), Ok(file));
    }
}

#[test]
fn a_link_elsewhere_that_is_lost_with_its_server_can_be_removed() {
    let mut story = Story::new();
    story.peer(message(3, put("f", FileKind::File, RenameMode::Keep), ALICE)).unwrap();
    story.peer(decide(3, true)).unwrap();
    assert_eq!(story.send(unlink(ROOT, "f")), None);
    let lost = ErrorBody::new(&Error::new(ErrorKind::Stale, "its server was forgotten"));
    let effects = story.server(Op::DeliveryDone { delivery: story.sent[0].0, result: Err(lost) });
    assert_eq!(reply(&effects), Some(Ok(Reply::Done)));
    assert_eq!(story.size(ROOT), 0);
}

#[test]
fn directories_move_one_after_the_other() {
    let mut story = Story::new();
    story.peer(message(3, Part::OrderMoves, ALICE)).unwrap();
    assert_eq!(story.peer(message(4, Part::OrderMoves, ALICE)).unwrap_err().kind(), ErrorKind::Busy);
    let inner = story.mkdir(ROOT, "inner");
    story.mkdir(ROOT, "d");
    assert_eq!(story.refused(rename(ROOT, "d", inner, "d")), ErrorKind::Retry);
    story.ask(rename(ROOT, "d", ROOT, "e")).unwrap();
    story.peer(decide(3, true)).unwrap();
    story.ask(rename(ROOT, "e", inner, "d")).unwrap();
}

#[test]
fn the_order_of_moves_is_let_go_when_all_else_is_done() {
    let here = Slot(3);
    let mut story = Story { state: SlotState::new(here, SLOTS, Epoch(1), 7), ..Story::new() };
    let hints = LayoutHints::default();
    let make = Part::MakeDirectory {
        parent: ROOT,
        mode: 0o755,
        owner: ALICE.owner(),
        hints,
        lists: AccessLists::NONE,
    };
    let Op::Prepare(make) = message(1, make, ALICE) else { unreachable!() };
    let made = story.peer(Op::Prepare(Box::new(peer::Prepare { slot: here, ..*make })));
    let Ok(DeliveryAnswer::Prepared(Prepared::Made(from))) = made else { panic!("{made:?}") };
    let Op::Decide(decide) = decide(1, true) else { unreachable!() };
    story.peer(Op::Decide(peer::Decide { slot: here, ..decide })).unwrap();
    story.ask(mkdir(from, "d", here)).unwrap();
    let there = InodeId::new(Slot(5), 9);
    assert_eq!(story.send(rename(from, "d", there, "d")), None);
    // The order, the walk from the new parent, the new entry.
    for answer in [
        DeliveryAnswer::Prepared(Prepared::Ready),
        DeliveryAnswer::Ascended(Ascended { inode: ROOT }),
        DeliveryAnswer::Prepared(Prepared::Found(None)),
    ] {
        let delivery = story.sent.last().unwrap().0;
        assert_eq!(reply(&story.server(Op::DeliveryDone { delivery, result: Ok(answer) })), None);
    }
    let pending = |story: &Story| -> Vec<(DeliveryId, Slot)> {
        story.state.open_deliveries().map(|(delivery, message)| (delivery, message.slot())).collect()
    };
    let [(entry, Slot(5))] = pending(&story)[..] else { panic!("{:?}", pending(&story)) };
    assert_eq!(story.done(entry), None);
    let [(order, Slot(0))] = pending(&story)[..] else { panic!("{:?}", pending(&story)) };
    assert_eq!(story.done(order), Some(Ok(Reply::Done)));
}

#[test]
fn what_a_lost_coordinator_held_is_let_go() {
    let mut story = Story::new();
    let file = story.create(ROOT, "f");
    story.ask(close(file)).unwrap();
    story.peer(message(3, Part::OrderMoves, ALICE)).unwrap();
    story.peer(message(4, Part::LowerLinks { inode: file, owner: None }, ALICE)).unwrap();
    story.peer(message(5, put("g", FileKind::Directory, RenameMode::Replace), ALICE)).unwrap();
    let lost = |story: &Story, epoch| story.state.lost_coordinators(|_| Epoch(epoch));
    assert_eq!(lost(&story, 0), []);
    let found = lost(&story, 2);
    assert_eq!(found, [(Slot(7), Epoch(2))]);
    story.server(Op::CoordinatorLost { coordinator: Slot(7), began: Epoch(2) });
    assert_eq!(lost(&story, 2), []);
    assert_eq!((links(&story, file), look(&story, ROOT, "g")), (1, Err(ErrorKind::NotFound)));
    story.mkdir(ROOT, "g");
    // A message from before it started over changes nothing.
    story.peer(decide(5, true)).unwrap();
    assert!(story.peer(message(4, Part::OrderMoves, ALICE)).is_err());
    assert_eq!(story.size(ROOT), 2);
}

#[test]
fn a_file_without_a_name_that_is_linked_elsewhere_lives_if_that_is_decided() {
    let mut story = Story::new();
    let unnamed = wire::CreateUnnamed {
        parent: ROOT,
        mode: 0o600.into(),
        read: true,
        write: true,
        layout: Some(layout(1)),
        wish: wire::LayoutWish::default(),
    };
    for (number, commit) in [(3, false), (4, true)] {
        let file = opened(story.ask(Op::CreateUnnamed(unnamed.clone()))).info.attributes.inode;
        story.peer(message(number, Part::RaiseLinks { inode: file }, ALICE)).unwrap();
        story.ask(close(file)).unwrap();
        assert_eq!(links(&story, file), 1);
        story.peer(decide(number, commit)).unwrap();
        match commit {
            true => assert_eq!(links(&story, file), 1),
            false => assert_eq!(story.info(file).unwrap_err().kind(), ErrorKind::Stale),
        }
    }
}
