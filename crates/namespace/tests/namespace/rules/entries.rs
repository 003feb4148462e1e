//! Entries, and the lifetime of the inodes behind them.

use ramlace_base::{Epoch, Error, ErrorKind, InodeId, LaneId, Slot, limits};
use ramlace_namespace::{Delivery, DeliveryAnswer, Op};
use ramlace_wire::namespace as wire;
use ramlace_wire::peer::{self};
use ramlace_wire::{ErrorBody, FileKind, encode_body};

use crate::rules::story::*;

// SEMANTICS 137.8
#[test]
fn lanes_that_have_never_begun_get_no_message_when_their_file_goes() {
    let mut story = Story::new();
    for (begun, dropped) in [(vec![], 0), (vec![0], 1), (vec![1, 0], 2), (vec![0, 3, 3], 0)] {
        let file = story.create_wide(InodeId::ROOT, "f", 3);
        assert!(
            begun
                .iter()
                .all(|lane| story.state.is_new_lane(LaneId { inode: file, lane: *lane }) || *lane == 3)
        );
        begun.iter().for_each(|lane| story.begin_lane(file, *lane));
        let dropped = if begun.contains(&3) { 1 } else { dropped };
        story.ask(unlink(InodeId::ROOT, "f")).unwrap();
        story.ask(close(file)).unwrap();
        let drops =
            story.state.open_deliveries().filter(|(_, message)| matches!(message, Delivery::DropLane(_)));
        assert_eq!(drops.count(), dropped, "{begun:?}");
        story.deliver();
    }
}

#[test]
fn an_unlinked_file_lives_until_its_last_close() {
    let mut story = Story::new();
    let file = story.create_wide(InodeId::ROOT, "f", 3);
    story.begin_lane(file, 1);
    story.session = session(2);
    story.ask(Op::Open(wire::Open { inode: file, read: true, write: false, run: false })).unwrap();
    story.ask(Op::Open(wire::Open { inode: file, read: true, write: true, run: false })).unwrap();
    story.ask(unlink(InodeId::ROOT, "f")).unwrap();
    assert_eq!(story.info(file).unwrap().attributes.links, 0);
    story.ask(close(file)).unwrap();
    assert_eq!(story.refused(close(file)), ErrorKind::BadHandle);
    story.extend(file, 1, 100).unwrap();
    assert_eq!(story.send(truncate(file, 0)), None);
    // The session that created it ends: the file goes, callers that wait for its lanes are answered, and only
    // the last message to the lanes that may have begun is pending.
    let effects = story.server(Op::EndSession { session: session(1) });
    assert_eq!(attributes(reply(&effects).unwrap()).size, 0);
    assert_eq!(story.info(file).unwrap_err().kind(), ErrorKind::Stale);
    let pending: Vec<Delivery> = story.state.open_deliveries().map(|(_, message)| message.clone()).collect();
    let farewell = |lane, slot| {
        Delivery::DropLane(peer::DropLane { lane: LaneId { inode: file, lane }, slot: Slot(slot) })
    };
    assert_eq!(pending, [farewell(0, 9), farewell(1, 12)]);
    // A message to a server that is down stays pending.
    let delivery = story.state.open_deliveries().next().unwrap().0;
    story.server(Op::DeliveryUnreachable { delivery });
    let failed = ErrorBody::new(&Error::new(ErrorKind::Fatal, "a full disk"));
    story.server(Op::DeliveryDone { delivery, result: Err(failed) });
    assert_eq!(story.state.open_deliveries().count(), 2);
    story.deliver();
    assert_eq!((story.state.inode_count(), story.state.open_deliveries().count()), (1, 0));
}

#[test]
fn an_entry_is_opened_where_its_file_lives_beside_it() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    let find = |text: &str| Op::OpenEntry(open_entry(InodeId::ROOT, text));
    let found = opened(story.ask(find("f")));
    assert_eq!((found.info.attributes.inode, found.created), (file, false));
    let (parent, name, target) = (InodeId::ROOT, name("link"), b"f".to_vec());
    story.ask(Op::Symlink(wire::Symlink { parent, name, target })).unwrap();
    let elsewhere = InodeId::new(Slot(5), 9);
    story.send(mkdir(InodeId::ROOT, "d", Slot(5)));
    let result = Ok(DeliveryAnswer::Prepared(peer::Prepared::Made(elsewhere)));
    story.server(Op::DeliveryDone { delivery: story.sent.last().unwrap().0, result });
    for (text, kind) in
        [("none", ErrorKind::NotFound), ("link", ErrorKind::Loop), ("d", ErrorKind::IsDirectory)]
    {
        assert_eq!(story.refused(find(text)), kind, "{text}");
    }
    assert_eq!(story.refused(Op::OpenEntry(open_entry(file, "x"))), ErrorKind::NotDirectory);
    let private =
        Op::SetAttributes(wire::SetAttributes { mode: Some(0o600), ..wire::SetAttributes::nothing(file) });
    story.ask(private).unwrap();
    story.who = MALLORY;
    assert_eq!(story.refused(find("f")), ErrorKind::Denied);
}

#[test]
fn a_slot_that_begins_anew_does_not_repeat_numbers() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    assert_eq!(file, InodeId::new(Slot(0), Epoch(1).first_number()));
}

#[test]
fn colliding_names_keep_their_cookies() {
    let mut story = Story::with_hash_bits(1);
    for text in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        story.create(InodeId::ROOT, text);
    }
    let cookie = |story: &Story, text: &str| {
        let page = story.page(InodeId::ROOT, 0, 100);
        page.entries.iter().find(|entry| entry.name == name(text)).map(|entry| entry.cookie)
    };
    assert_eq!((cookie(&story, "a"), cookie(&story, "h")), (Some(8), Some(15)));
    assert_eq!(story.refused(Op::Create(create(InodeId::ROOT, "i", 1))), ErrorKind::NoSpace);
    assert_eq!(story.refused(mkdir(InodeId::ROOT, "i", Slot(0))), ErrorKind::NoSpace);
    story.ask(unlink(InodeId::ROOT, "c")).unwrap();
    assert_eq!(cookie(&story, "h"), Some(15));
    story.create(InodeId::ROOT, "i");
    assert_eq!((cookie(&story, "i"), cookie(&story, "h")), (Some(10), Some(15)));
}

#[test]
fn a_listing_under_change_shows_what_stays_once() {
    let mut story = Story::new();
    for number in 0..100 {
        story.create(InodeId::ROOT, &format!("stays-{number}"));
        story.create(InodeId::ROOT, &format!("goes-{number}"));
    }
    let (mut after, mut seen, mut step) = (0, Vec::new(), 0);
    loop {
        let page = story.page(InodeId::ROOT, after, 7);
        assert!(page.entries.len() <= 7);
        after = page.entries.last().map_or(after, |entry| entry.cookie);
        seen.extend(page.entries.into_iter().map(|entry| entry.name.to_string()));
        if page.end {
            break;
        }
        story.ask(unlink(InodeId::ROOT, &format!("goes-{step}"))).unwrap();
        story.create(InodeId::ROOT, &format!("comes-{step}"));
        step += 1;
    }
    let before = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), before, "no entry is shown twice");
    assert_eq!(seen.iter().filter(|name| name.starts_with("stays")).count(), 100);
}

#[test]
fn the_largest_page_fits_a_message() {
    let mut story = Story::new();
    story.now = i64::MAX / 2;
    for number in 0..=limits::READDIR_ENTRIES_MAX {
        story.create(InodeId::ROOT, &format!("{number:0>255}"));
    }
    let page = story.page(InodeId::ROOT, 0, u32::MAX);
    assert_eq!((page.entries.len() as u32, page.end), (limits::READDIR_ENTRIES_MAX, false));
    assert!(encode_body(&page).len() < limits::BODY_BYTES_MAX as usize / 2);
    let none = wire::ReadDirectory { inode: InodeId::ROOT, after: 0, entries_max: 0 };
    assert_eq!(story.state.query(&ALICE, &none).unwrap_err().kind(), ErrorKind::Invalid);
    let last = story.page(InodeId::ROOT, u64::MAX, 1);
    assert_eq!((last.entries.len(), last.end), (0, true));
}

#[test]
fn a_lookup_tells_attributes_of_what_lives_here() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    let look = |story: &Story, text: &str| {
        let query = wire::Lookup { parent: InodeId::ROOT, name: name(text) };
        story.state.query(&ALICE, &query)
    };
    let found = look(&story, "f").unwrap();
    assert_eq!((found.inode, found.kind, found.attributes.unwrap().inode), (file, FileKind::File, file));
    // A directory elsewhere: only its number is known here.
    let elsewhere = InodeId::new(Slot(5), 77);
    story.send(mkdir(InodeId::ROOT, "d", Slot(5)));
    assert_eq!(look(&story, "d").unwrap_err().kind(), ErrorKind::NotFound);
    let (delivery, _) = story.sent[0].clone();
    let result = Ok(DeliveryAnswer::Prepared(peer::Prepared::Made(elsewhere)));
    story.server(Op::DeliveryDone { delivery, result });
    let found = look(&story, "d").unwrap();
    assert_eq!((found.inode, found.kind, found.attributes), (elsewhere, FileKind::Directory, None));
    assert_eq!(story.info(InodeId::ROOT).unwrap().attributes.links, 3);
}
