//! The messages that renames and links cost, besides the client's request.

use ramlace_base::{LaneId, Name, Slot};
use ramlace_model::{Model, Node};
use ramlace_wire::namespace::RenameMode;

use crate::pools::pool::Pool;
use crate::pools::wish::Wish;

const ROOT: Node = Model::ROOT;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A pool of four slots with the directories `a` in slot 1 and `b` in slot 2, and two files in each.
fn pool() -> (Pool, Node, Node) {
    let mut pool = Pool::new(4, 60, u64::MAX);
    for (text, slot) in [("a", 1), ("b", 2)] {
        does(&mut pool, &Wish::MakeDirectory { parent: ROOT, name: name(text), home: Slot(slot) });
    }
    let (a, b) = (node(&pool, ROOT, "a"), node(&pool, ROOT, "b"));
    for (parent, text) in [(a, "c"), (a, "d"), (b, "c"), (b, "d")] {
        does(&mut pool, &Wish::Create { parent, name: name(text), exclusive: true, base: 0 });
        let node = node(&pool, parent, text);
        does(&mut pool, &Wish::Promote { node });
        does(&mut pool, &Wish::Close { node });
    }
    (pool, a, b)
}

fn node(pool: &Pool, parent: Node, text: &str) -> Node {
    pool.model.lookup(parent, &name(text)).unwrap()
}

/// Does it, delivers everything, and counts the messages between slots (not those to lanes).
fn does(pool: &mut Pool, wish: &Wish) -> usize {
    pool.messages = 0;
    pool.send_wish(0, wish);
    pool.quiesce();
    pool.messages
}

fn begin_first_lane(pool: &mut Pool, parent: Node, text: &str) {
    let inode = pool.inode_of[&node(pool, parent, text)];
    pool.begin_lane(LaneId { inode, lane: 0 });
}

fn rename(parent: Node, old: &str, new_parent: Node, new: &str) -> Wish {
    let (name, new_name) = (name(old), name(new));
    Wish::Rename { parent, name, new_parent, new_name, mode: RenameMode::Replace }
}

#[test]
fn a_rename_in_one_slot_is_one_request() {
    let (mut pool, a, _) = pool();
    let moved = node(&pool, a, "c");
    assert_eq!(does(&mut pool, &rename(a, "c", a, "e")), 0);
    assert_eq!(node(&pool, a, "e"), moved);
    assert_eq!(does(&mut pool, &Wish::Link { node: moved, parent: a, name: name("f") }), 0);
    let exchange = Wish::Rename {
        parent: a,
        name: name("d"),
        new_parent: a,
        new_name: name("e"),
        mode: RenameMode::Exchange,
    };
    assert_eq!(does(&mut pool, &exchange), 0);
}

/// A request to the new entry's slot and word of the decision: three messages with the first request.
#[test]
fn a_rename_of_a_file_to_another_slot_is_three_messages() {
    let (mut pool, a, b) = pool();
    assert_eq!(does(&mut pool, &rename(a, "c", b, "e")), 2);
    // The replaced inode usually lives beside its entry; one of its two lanes may have begun, and is dropped.
    let lanes = 1;
    begin_first_lane(&mut pool, b, "c");
    assert_eq!(does(&mut pool, &rename(a, "d", b, "c")), 2 + lanes);
    // Back again: the inode has stayed where it was made.
    assert_eq!(does(&mut pool, &rename(b, "e", a, "c")), 2);
}

#[test]
fn links_and_their_removal_ask_the_inode_s_home() {
    let (mut pool, a, b) = pool();
    let file = node(&pool, a, "c");
    assert_eq!(does(&mut pool, &Wish::Link { node: file, parent: b, name: name("e") }), 2);
    assert_eq!(does(&mut pool, &Wish::Unlink { parent: b, name: name("e") }), 2);
    begin_first_lane(&mut pool, a, "c");
    assert_eq!(does(&mut pool, &Wish::Unlink { parent: a, name: name("c") }), 1, "one lane of two has begun");
    assert_eq!(does(&mut pool, &Wish::Unlink { parent: a, name: name("d") }), 0, "none has");
}

/// A directory that changes its parent: the order of moves, the walk, the entry, and the directory.
#[test]
fn a_directory_that_changes_its_parent_is_moved_in_order() {
    let (mut pool, a, b) = pool();
    does(&mut pool, &Wish::MakeDirectory { parent: a, name: name("inner"), home: Slot(3) });
    let walk = 1;
    assert_eq!(does(&mut pool, &rename(a, "inner", b, "inner")), walk + 3 * 2);
    assert_eq!(does(&mut pool, &rename(b, "inner", b, "other")), 2, "the same parent: its home is told");
}
