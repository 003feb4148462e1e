//! Extended attributes: which users have them, and how many there may be.

use ramlace_base::{ErrorKind, InodeId, Result, limits};
use ramlace_namespace::Op;
use ramlace_wire::namespace as wire;
use ramlace_wire::xattrs::{GetXattr, ListXattrs, RemoveXattr, SetXattr, XattrMode, XattrName};
use ramlace_wire::{Credentials, FileKind};

use crate::rules::story::*;

fn named(text: &str) -> XattrName {
    XattrName::new(text).unwrap()
}

fn put(inode: InodeId, text: &str, value: &[u8], mode: XattrMode) -> Op {
    Op::SetXattr(SetXattr { inode, name: named(text), value: value.to_vec(), mode })
}

fn set_one(inode: InodeId, text: &str, value: &[u8]) -> Op {
    put(inode, text, value, XattrMode::Any)
}

fn remove(inode: InodeId, text: &str) -> Op {
    Op::RemoveXattr(RemoveXattr { inode, name: named(text) })
}

fn value(story: &Story, who: &Credentials, inode: InodeId, text: &str) -> Result<Vec<u8>> {
    story.state.query(who, &GetXattr { inode, name: named(text) })
}

fn names(story: &Story, who: &Credentials, inode: InodeId) -> Vec<String> {
    story.state.query(who, &ListXattrs { inode }).unwrap().iter().map(ToString::to_string).collect()
}

#[test]
fn values_are_set_replaced_and_removed() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    let before = story.info(file).unwrap().attributes;
    assert!(!before.xattrs);
    assert_eq!(story.refused(put(file, "user.a", b"1", XattrMode::Replace)), ErrorKind::NoData);
    story.ask(put(file, "user.a", b"1", XattrMode::Create)).unwrap();
    assert_eq!(story.refused(put(file, "user.a", b"2", XattrMode::Create)), ErrorKind::Exists);
    assert_eq!(value(&story, &ALICE, file, "user.a").unwrap(), b"1");
    let set = story.info(file).unwrap().attributes;
    assert!(set.xattrs && set.changed > before.changed && set.modified == before.modified);
    story.ask(put(file, "user.a", b"", XattrMode::Replace)).unwrap();
    story.ask(set_one(file, "user.b", b"\0\xff")).unwrap();
    assert_eq!(value(&story, &ALICE, file, "user.a").unwrap(), b"");
    assert_eq!(names(&story, &ALICE, file), ["user.a", "user.b"]);
    let changed = story.info(file).unwrap().attributes.changed;
    story.ask(remove(file, "user.a")).unwrap();
    assert!(story.info(file).unwrap().attributes.changed > changed);
    assert_eq!(story.refused(remove(file, "user.a")), ErrorKind::NoData);
    assert_eq!(value(&story, &ALICE, file, "user.a").unwrap_err().kind(), ErrorKind::NoData);
    story.ask(remove(file, "user.b")).unwrap();
    assert!(!story.info(file).unwrap().attributes.xattrs);
}

// SEMANTICS 56.1
#[test]
fn each_class_has_its_rules() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    story.ask(Op::SetAttributes(wire::SetAttributes { mode: Some(0o640), ..set(file) })).unwrap();
    story.ask(set_one(file, "user.a", b"1")).unwrap();
    for text in ["trusted.a", "security.a"] {
        assert_eq!(story.refused(set_one(file, text, b"1")), ErrorKind::NotPermitted);
        assert_eq!(story.refused(remove(file, text)), ErrorKind::NotPermitted);
    }
    story.who = ROOT_USER;
    story.ask(set_one(file, "trusted.a", b"t")).unwrap();
    story.ask(set_one(file, "security.a", b"s")).unwrap();
    assert_eq!(value(&story, &ROOT_USER, file, "trusted.a").unwrap(), b"t");
    assert_eq!(names(&story, &ROOT_USER, file), ["security.a", "trusted.a", "user.a"]);
    for who in [ALICE, BOB, MALLORY] {
        assert_eq!(value(&story, &who, file, "security.a").unwrap(), b"s");
        assert_eq!(value(&story, &who, file, "trusted.a").unwrap_err().kind(), ErrorKind::NoData);
        assert_eq!(names(&story, &who, file), ["security.a", "user.a"]);
    }
    // The group may read, and others nothing.
    assert_eq!(value(&story, &BOB, file, "user.a").unwrap(), b"1");
    assert_eq!(value(&story, &MALLORY, file, "user.a").unwrap_err().kind(), ErrorKind::Denied);
    story.who = BOB;
    assert_eq!(story.refused(set_one(file, "user.a", b"2")), ErrorKind::Denied);
}

#[test]
fn only_files_and_directories_have_user_attributes() {
    let mut story = Story::new();
    story.who = ROOT_USER;
    let parent = InodeId::ROOT;
    let link = Op::Symlink(wire::Symlink { parent, name: name("l"), target: b"f".to_vec() });
    let link = attributes(story.ask(link)).inode;
    let pipe = Op::MakeNode(wire::MakeNode {
        parent,
        name: name("p"),
        kind: FileKind::Fifo,
        mode: 0o666.into(),
        device: 0,
    });
    let pipe = attributes(story.ask(pipe)).inode;
    for inode in [link, pipe] {
        assert_eq!(story.refused(set_one(inode, "user.a", b"1")), ErrorKind::NotPermitted);
        assert_eq!(value(&story, &ROOT_USER, inode, "user.a").unwrap_err().kind(), ErrorKind::NoData);
        story.ask(set_one(inode, "trusted.a", b"1")).unwrap();
    }
    let sticky = wire::SetAttributes { mode: Some(0o1777), ..set(InodeId::ROOT) };
    story.ask(Op::SetAttributes(sticky)).unwrap();
    story.who = MALLORY;
    assert_eq!(story.refused(set_one(InodeId::ROOT, "user.a", b"1")), ErrorKind::NotPermitted);
    story.who = ROOT_USER;
    story.ask(Op::SetAttributes(wire::SetAttributes { mode: Some(0o777), ..set(InodeId::ROOT) })).unwrap();
    story.who = MALLORY;
    story.ask(set_one(InodeId::ROOT, "user.a", b"1")).unwrap();
}

// SEMANTICS 56.2
#[test]
fn what_an_inode_holds_is_limited_and_a_refusal_changes_nothing() {
    let mut story = Story::new();
    let file = story.create(InodeId::ROOT, "f");
    let large = vec![7; limits::XATTR_VALUE_BYTES_MAX];
    let larger = vec![7; limits::XATTR_VALUE_BYTES_MAX + 1];
    assert_eq!(story.refused(set_one(file, "user.a", &larger)), ErrorKind::ValueTooBig);
    story.ask(set_one(file, "user.a", &large)).unwrap();
    // Its names count as well, so that two of the largest do not fit, and replacing one does.
    assert_eq!(story.refused(set_one(file, "user.b", &large)), ErrorKind::NoSpace);
    story.ask(set_one(file, "user.a", &large)).unwrap();
    assert_eq!(names(&story, &ALICE, file), ["user.a"]);
    story.ask(remove(file, "user.a")).unwrap();
    let long = |number: usize| format!("user.{number:0250}");
    let names_max = limits::XATTR_LIST_BYTES_MAX / (limits::XATTR_NAME_BYTES_MAX + 1);
    for number in 0..names_max {
        story.ask(set_one(file, &long(number), b"")).unwrap();
    }
    assert_eq!(story.refused(set_one(file, &long(names_max), b"")), ErrorKind::NoSpace);
    assert_eq!(names(&story, &ALICE, file).len(), names_max);
}
