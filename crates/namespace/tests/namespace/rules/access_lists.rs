//! Access control lists: which users set them, how they and a mode change each other, and what new inodes
//! below a default list get.

use ramlace_base::{ErrorKind, InodeId, Result};
use ramlace_namespace::Op;
use ramlace_wire::namespace as wire;
use ramlace_wire::xattrs::{GetXattr, ListXattrs, RemoveXattr, SetXattr, XattrMode, XattrName};
use ramlace_wire::{AccessList, Credentials, FileKind};

use crate::rules::story::*;

const ACCESS: &[u8] = XattrName::ACCESS_LIST;
const DEFAULT: &[u8] = XattrName::DEFAULT_LIST;
/// Mallory reads and writes; the group reads.
const MALLORYS: &str = "u::rw-,u:6666:rw-,g::r--,m::rw-,o::---";
/// The default list for new inodes gives Mallory all rights, and the group those to read and search.
const INHERITED: &str = "u::rwx,u:6666:rwx,g::r-x,m::rwx,o::---";

fn list(text: &str) -> AccessList {
    text.parse().unwrap()
}

fn put(inode: InodeId, name: &[u8], text: &str) -> Op {
    put_bytes(inode, name, list(text).to_attribute(), XattrMode::Any)
}

fn put_bytes(inode: InodeId, name: &[u8], value: Vec<u8>, mode: XattrMode) -> Op {
    Op::SetXattr(SetXattr { inode, name: XattrName::new(name).unwrap(), value, mode })
}

fn remove(inode: InodeId, name: &[u8]) -> Op {
    Op::RemoveXattr(RemoveXattr { inode, name: XattrName::new(name).unwrap() })
}

fn shown(story: &Story, who: &Credentials, inode: InodeId, name: &[u8]) -> Result<String> {
    let request = GetXattr { inode, name: XattrName::new(name).unwrap() };
    let value = story.state.query(who, &request)?;
    Ok(AccessList::from_attribute(&value)?.unwrap().to_string())
}

fn names(story: &Story, inode: InodeId) -> Vec<String> {
    story.state.query(&MALLORY, &ListXattrs { inode }).unwrap().iter().map(ToString::to_string).collect()
}

fn chmod(inode: InodeId, mode: u16) -> Op {
    Op::SetAttributes(wire::SetAttributes { mode: Some(mode), ..set(inode) })
}

fn mode(story: &Story, inode: InodeId) -> u16 {
    story.info(inode).unwrap().attributes.mode
}

fn may(story: &mut Story, who: Credentials, inode: InodeId, read: bool, write: bool) -> bool {
    let before = std::mem::replace(&mut story.who, who);
    let opened = story.ask(Op::Open(wire::Open { inode, read, write, run: false }));
    if opened.is_ok() {
        story.ask(close(inode)).unwrap();
    }
    story.who = before;
    opened.is_ok()
}

// SEMANTICS 108.2
#[test]
fn a_list_says_who_may_and_the_mode_shows_its_mask() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    story.ask(close(file)).unwrap();
    let before = story.info(file).unwrap().attributes;
    assert_eq!(shown(&story, &ALICE, file, ACCESS).unwrap_err().kind(), ErrorKind::NoData);
    story.ask(put(file, ACCESS, MALLORYS)).unwrap();
    let after = story.info(file).unwrap().attributes;
    assert_eq!((after.mode, after.xattrs), (0o660, true));
    assert!(after.changed > before.changed && after.modified == before.modified);
    assert_eq!(shown(&story, &BOB, file, ACCESS).unwrap(), list(MALLORYS).to_string());
    assert_eq!(names(&story, file), ["system.posix_acl_access"]);
    for (who, read, write) in [
        (ALICE, true, true),
        (BOB, true, false),
        (MALLORY, true, true),
        (Credentials::new(7, 7), false, false),
        (ROOT_USER, true, true),
    ] {
        assert_eq!(may(&mut story, who.clone(), file, true, false), read, "{who:?}");
        assert_eq!(may(&mut story, who.clone(), file, false, true), write, "{who:?}");
    }
}

// SEMANTICS 109.2
#[test]
fn a_change_of_the_mode_is_one_of_owner_mask_and_others() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    story.ask(put(file, ACCESS, MALLORYS)).unwrap();
    story.ask(chmod(file, 0o4640)).unwrap();
    assert_eq!(
        shown(&story, &ALICE, file, ACCESS).unwrap(),
        list("u::rw-,u:6666:rw-,g::r--,m::r--,o::---").to_string()
    );
    assert_eq!(mode(&story, file), 0o4640);
    assert!(may(&mut story, MALLORY, file, true, false) && !may(&mut story, MALLORY, file, true, true));
    // The mask becomes the group's rights when the list is removed.
    story.ask(chmod(file, 0o664)).unwrap();
    story.ask(remove(file, ACCESS)).unwrap();
    assert_eq!(mode(&story, file), 0o664);
    assert!(!story.info(file).unwrap().attributes.xattrs);
    assert!(may(&mut story, BOB, file, true, true) && !may(&mut story, MALLORY, file, true, true));
    story.ask(remove(file, ACCESS)).unwrap();
}

// SEMANTICS 109.2
#[test]
fn a_list_that_a_mode_says_is_kept_as_the_mode() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    story.ask(put(file, ACCESS, MALLORYS)).unwrap();
    story.ask(put(file, ACCESS, "u::rwx,g::--x,o::r--")).unwrap();
    assert_eq!(mode(&story, file), 0o714);
    assert_eq!(shown(&story, &ALICE, file, ACCESS).unwrap_err().kind(), ErrorKind::NoData);
    assert!(names(&story, file).is_empty() && !story.info(file).unwrap().attributes.xattrs);
    // A mask alone is more than a mode says. No entries at all: the list goes.
    story.ask(put(file, ACCESS, "u::rwx,g::rwx,m::r--,o::---")).unwrap();
    assert_eq!((mode(&story, file), names(&story, file).len()), (0o740, 1));
    story.ask(put_bytes(file, ACCESS, Vec::new(), XattrMode::Any)).unwrap();
    assert_eq!((mode(&story, file), names(&story, file).len()), (0o740, 0));
}

// SEMANTICS 109.1
#[test]
fn lists_are_the_owners_to_set_and_everybodys_to_read() {
    let mut story = Story::new();
    let (file, directory) = (story.create(InodeId::ROOT, "f"), story.mkdir(InodeId::ROOT, "d"));
    story.ask(chmod(file, 0o600)).unwrap();
    for who in [BOB, MALLORY] {
        story.who = who;
        assert_eq!(story.refused(put(file, ACCESS, MALLORYS)), ErrorKind::NotPermitted);
        assert_eq!(story.refused(put(directory, DEFAULT, INHERITED)), ErrorKind::NotPermitted);
        assert_eq!(story.refused(remove(file, ACCESS)), ErrorKind::NotPermitted);
    }
    story.who = ROOT_USER;
    story.ask(put(file, ACCESS, MALLORYS)).unwrap();
    assert_eq!(shown(&story, &Credentials::new(7, 7), file, ACCESS).unwrap(), list(MALLORYS).to_string());
    // A user who may write it by the list may not change the list.
    story.who = MALLORY;
    assert_eq!(story.refused(put(file, ACCESS, INHERITED)), ErrorKind::NotPermitted);
    story.who = ALICE;
    let value = list(MALLORYS).to_attribute();
    let create = put_bytes(file, ACCESS, value.clone(), XattrMode::Create);
    assert_eq!(story.refused(create), ErrorKind::Exists);
    assert_eq!(story.refused(put_bytes(directory, ACCESS, value, XattrMode::Replace)), ErrorKind::NoData);
}

// SEMANTICS 109.1
#[test]
fn what_has_no_lists_refuses_them() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    assert_eq!(story.refused(put(file, DEFAULT, INHERITED)), ErrorKind::Denied);
    story.ask(remove(file, DEFAULT)).unwrap();
    let link = Op::Symlink(wire::Symlink { parent: InodeId::ROOT, name: name("l"), target: b"f".to_vec() });
    let link = attributes(story.ask(link)).inode;
    assert_eq!(story.refused(put(link, ACCESS, MALLORYS)), ErrorKind::Unsupported);
    assert_eq!(story.refused(remove(link, ACCESS)), ErrorKind::Unsupported);
    assert_eq!(shown(&story, &ALICE, link, ACCESS).unwrap_err().kind(), ErrorKind::Unsupported);
    let broken = put_bytes(file, ACCESS, b"\x02\0\0\0\x01".to_vec(), XattrMode::Any);
    assert_eq!(story.refused(broken), ErrorKind::Invalid);
    assert_eq!(mode(&story, file), 0o644);
}

// SEMANTICS 109.3
#[test]
fn who_is_not_of_the_group_loses_its_set_id_bit_with_a_list() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    story.who = ROOT_USER;
    story.ask(Op::SetAttributes(wire::SetAttributes { gid: Some(7), ..set(file) })).unwrap();
    story.ask(chmod(file, 0o2755)).unwrap();
    story.ask(put(file, ACCESS, "u::rwx,u:6666:r-x,g::r-x,m::r-x,o::r-x")).unwrap();
    assert_eq!(mode(&story, file), 0o2755);
    story.who = ALICE;
    story.ask(put(file, ACCESS, "u::rwx,u:6666:r-x,g::r-x,m::r-x,o::r-x")).unwrap();
    assert_eq!(mode(&story, file), 0o755);
}

// SEMANTICS 110.1
#[test]
fn what_is_made_below_a_default_list_has_it_and_no_more_than_its_mode() {
    let mut story = Story::new();
    let directory = story.mkdir(InodeId::ROOT, "d");
    story.ask(put(directory, DEFAULT, INHERITED)).unwrap();
    assert_eq!(mode(&story, directory), 0o755, "a default list gives no right to its directory");
    assert_eq!(names(&story, directory), ["system.posix_acl_default"]);
    // The umask of the creator does not count.
    let new = |mode| wire::NewMode { mode, umask: 0o077 };
    let request = wire::Create { mode: new(0o666), ..create(directory, "f", 1) };
    let file = opened(story.ask(Op::Create(request))).info.attributes;
    assert_eq!((file.mode, file.xattrs), (0o660, true));
    let given = list("u::rw-,u:6666:rwx,g::r-x,m::rw-,o::---").to_string();
    assert_eq!(shown(&story, &ALICE, file.inode, ACCESS).unwrap(), given);
    let unnamed = Op::CreateUnnamed(wire::CreateUnnamed {
        parent: directory,
        mode: new(0o600),
        read: true,
        write: true,
        layout: Some(layout(1)),
        wish: wire::LayoutWish::default(),
    });
    assert_eq!(opened(story.ask(unnamed)).info.attributes.mode, 0o600);
    let pipe = wire::MakeNode {
        parent: directory,
        name: name("p"),
        kind: FileKind::Fifo,
        mode: new(0o622),
        device: 0,
    };
    assert_eq!(attributes(story.ask(Op::MakeNode(pipe))).mode, 0o620);
    let request = wire::MakeDirectory { parent: directory, name: name("s"), mode: new(0o777) };
    let below = attributes(story.ask(Op::MakeDirectory { request, homes: vec![InodeId::ROOT.slot()] })).inode;
    assert_eq!(mode(&story, below), 0o770);
    for which in [ACCESS, DEFAULT] {
        assert_eq!(shown(&story, &ALICE, below, which).unwrap(), list(INHERITED).to_string());
    }
    let link = Op::Symlink(wire::Symlink { parent: directory, name: name("l"), target: b"f".to_vec() });
    let link = attributes(story.ask(link));
    assert_eq!((link.mode, link.xattrs), (0o777, false));
    // Mallory may make entries below, where the list says so, and not above.
    story.who = MALLORY;
    story.create(below, "m");
    assert_eq!(story.refused(Op::Create(create(directory, "m", 1))), ErrorKind::Denied);
}

// SEMANTICS 110.1
#[test]
fn without_a_default_list_the_umask_counts() {
    let mut story = Story::new();
    let new = |mode, umask| wire::NewMode { mode, umask };
    let request = wire::Create { mode: new(0o6777, 0o027), ..create(InodeId::ROOT, "f", 1) };
    assert_eq!(opened(story.ask(Op::Create(request))).info.attributes.mode, 0o6750);
    let request = wire::Create { mode: new(0o777, 0o10000), ..create(InodeId::ROOT, "g", 1) };
    assert_eq!(story.refused(Op::Create(request)), ErrorKind::Invalid);
    let request = wire::MakeDirectory { parent: InodeId::ROOT, name: name("d"), mode: new(0o1777, 0o022) };
    let made = attributes(story.ask(Op::MakeDirectory { request, homes: vec![InodeId::ROOT.slot()] }));
    assert_eq!((made.mode, made.xattrs), (0o1755, false));
    // A default list that is a mode alone makes files without a list.
    story.ask(put(made.inode, DEFAULT, "u::rwx,g::---,o::r--")).unwrap();
    let request = wire::Create { mode: new(0o666, 0o022), ..create(made.inode, "f", 1) };
    let file = opened(story.ask(Op::Create(request))).info.attributes;
    assert_eq!((file.mode, file.xattrs), (0o604, false));
}

// SEMANTICS 108.2
#[test]
fn a_directory_is_searched_changed_and_listed_by_its_list() {
    let mut story = Story::new();
    let directory = story.mkdir(InodeId::ROOT, "d");
    story.create(directory, "f");
    let look = |story: &Story, who: &Credentials| {
        story.state.query(who, &wire::Lookup { parent: directory, name: name("f") }).is_ok()
    };
    let list_it = |story: &Story, who: &Credentials| {
        let request = wire::ReadDirectory { inode: directory, after: 0, entries_max: 9 };
        story.state.query(who, &request).is_ok()
    };
    story.ask(put(directory, ACCESS, "u::rwx,u:6666:-wx,g::---,g:100:r--,m::rwx,o::--x")).unwrap();
    let stranger = Credentials::new(7, 7);
    for (who, searches, lists) in
        [(&ALICE, true, true), (&BOB, false, true), (&MALLORY, true, false), (&stranger, true, false)]
    {
        assert_eq!((look(&story, who), list_it(&story, who)), (searches, lists), "{who:?}");
    }
    story.who = MALLORY;
    story.ask(unlink(directory, "f")).unwrap();
    story.who = stranger;
    assert_eq!(story.refused(Op::Create(create(directory, "f", 1))), ErrorKind::Denied);
}
