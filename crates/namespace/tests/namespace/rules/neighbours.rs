//! The entries beside one that was asked for.

use std::collections::BTreeSet;

use ramlace_base::{ErrorKind, InodeId, Slot};
use ramlace_namespace::Op;
use ramlace_wire::namespace as wire;

use crate::rules::story::{ALICE, MALLORY, Story, mkdir, name, set};

const ROOT: InodeId = InodeId::ROOT;

/// The names beside this one, and whether they are all others.
fn beside(story: &Story, text: &str, most: usize) -> (Vec<String>, bool) {
    let (entries, is_all) = story.state.neighbours(&ALICE, ROOT, &name(text), most).unwrap();
    let attributes = |entry: &wire::DirectoryEntry| entry.attributes.as_ref().map(|known| known.inode);
    assert!(entries.iter().all(|entry| attributes(entry) == Some(entry.inode)), "{entries:?}");
    (entries.iter().map(|entry| String::from_utf8(entry.name.as_bytes().to_vec()).unwrap()).collect(), is_all)
}

// SEMANTICS 138.6
#[test]
fn they_come_in_the_order_of_the_directory_and_begin_again_behind_the_last() {
    // With few bits of hash, names share cookies' beginnings.
    for bits in [4, 60] {
        let mut story = Story::with_hash_bits(bits);
        (0..20).for_each(|number| _ = story.create(ROOT, &format!("f{number}")));
        let order: Vec<String> = story
            .page(ROOT, 0, 100)
            .entries
            .iter()
            .map(|entry| String::from_utf8(entry.name.as_bytes().to_vec()).unwrap())
            .collect();
        for (at, text) in order.iter().enumerate() {
            let behind: Vec<String> = order.iter().cycle().skip(at + 1).take(19).cloned().collect();
            assert_eq!(beside(&story, text, 7), (behind[..7].to_vec(), false));
            assert_eq!(beside(&story, text, 18), (behind[..18].to_vec(), false));
            assert_eq!(beside(&story, text, 19), (behind.clone(), true));
            assert_eq!(beside(&story, text, 128), (behind, true));
        }
        let (all, is_all) = beside(&story, "none", 20);
        assert!(is_all && all.iter().collect::<BTreeSet<_>>() == order.iter().collect());
        assert!(!beside(&story, "none", 19).1);
    }
    assert_eq!(beside(&Story::new(), "none", 16), (vec![], true));
}

// SEMANTICS 138.6
#[test]
fn a_name_that_is_just_being_made_is_not_all_that_is_there() {
    let mut story = Story::new();
    story.create(ROOT, "f");
    assert_eq!(beside(&story, "f", 16), (vec![], true));
    // Its inode is being made in another slot.
    assert!(story.send(mkdir(ROOT, "d", Slot(5))).is_none());
    assert_eq!(beside(&story, "f", 16), (vec![], false));
}

// SEMANTICS 138.6
#[test]
fn whoever_may_not_list_a_directory_gets_none() {
    let mut story = Story::new();
    story.create(ROOT, "f");
    let forbid = wire::SetAttributes { mode: Some(0o711), ..set(ROOT) };
    story.ask(Op::SetAttributes(forbid)).unwrap();
    assert_eq!(beside(&story, "none", 16).0, ["f"]);
    let refused = story.state.neighbours(&MALLORY, ROOT, &name("none"), 16).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
}
