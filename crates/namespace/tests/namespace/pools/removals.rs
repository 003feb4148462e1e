//! Several clients that want the same spread directory removed.

use ramlace_base::{ErrorKind, Name, Sequence, Slot, limits};
use ramlace_model::{Model, Node};
use ramlace_wire::namespace::RenameMode;

use crate::pools::pool::{CLIENTS, Flight, NAMES, Pool};
use crate::pools::wish::Wish;

const ROOT: Node = Model::ROOT;
/// Times that a caller gets Retry: while a check begins, or is already running; the next one has ended.
const COMES_AGAIN_MAX: usize = 2;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn remove() -> Wish {
    Wish::RemoveDirectory { parent: ROOT, name: name("a") }
}

/// A directory `a` of which a part that is not at home has an entry, and an empty directory `b`.
fn pool() -> (Pool, Node, Name) {
    let mut pool = Pool::new(4, 60, 4);
    // Of the names, one at least is elsewhere.
    pool.now = 1;
    does(&mut pool, &Wish::MakeDirectory { parent: ROOT, name: name("a"), home: Slot(2) });
    does(&mut pool, &Wish::MakeDirectory { parent: ROOT, name: name("b"), home: Slot(1) });
    let directory = pool.model.lookup(ROOT, &name("a")).unwrap();
    let names = NAMES.map(name);
    for name in names.iter().cloned() {
        does(&mut pool, &Wish::Symlink { parent: directory, name });
    }
    let partitions = pool.info(pool.inode_of[&directory]).unwrap().partitions;
    assert_eq!(partitions.len(), limits::DIRECTORY_PARTITIONS, "it is spread");
    let is_elsewhere = |name: &&Name| partitions[pool.hosts[0].state.partition_of(name)] != Slot(2);
    let left = names.iter().find(is_elsewhere).expect("a part is elsewhere").clone();
    for name in names.into_iter().filter(|name| *name != left) {
        does(&mut pool, &Wish::Unlink { parent: directory, name });
    }
    (pool, directory, left)
}

fn does(pool: &mut Pool, wish: &Wish) {
    pool.send_wish(0, wish);
    pool.quiesce();
}

fn refusal_flies(pool: &Pool) -> bool {
    let not_empty = ErrorKind::NotEmpty.number();
    let refuses =
        |flight: &Flight| matches!(flight, Flight::Report { result: Err(why), .. } if why.kind == not_empty);
    pool.flying.iter().any(refuses)
}

fn kind(pool: &Pool, client: usize, sequence: Sequence) -> Option<ErrorKind> {
    let outcome = pool.clients[client].sent[&sequence].outcome.as_ref();
    outcome.map(|outcome| outcome.as_ref().expect_err("it is not empty").kind())
}

#[test]
fn all_that_want_a_spread_directory_removed_are_told_that_it_is_not_empty() {
    let (mut pool, _, _) = pool();
    let rename = Wish::Rename {
        parent: ROOT,
        name: name("b"),
        new_parent: ROOT,
        new_name: name("a"),
        mode: RenameMode::Replace,
    };
    let wishes = [remove(), remove(), rename];
    let callers: Vec<(usize, Sequence)> = (0..usize::from(CLIENTS))
        .map(|client| {
            pool.send_wish(client, &wishes[client]);
            pool.deliver_all();
            (client, Sequence(pool.clients[client].sequence))
        })
        .collect();
    for _ in 0..COMES_AGAIN_MAX {
        for client in 0..usize::from(CLIENTS) {
            pool.attempt_again(client);
            pool.deliver_all();
        }
    }
    for (client, sequence) in callers {
        assert_eq!(kind(&pool, client, sequence), Some(ErrorKind::NotEmpty), "client {client}");
    }
    pool.quiesce();
    pool.end();
}

/// The second caller asks when the last entry is gone; the check under way has seen the entry.
#[test]
fn a_caller_that_asks_while_others_are_looked_for_does_not_get_what_was_before() {
    let (mut pool, directory, left) = pool();
    // The third client learns where the entry is: it exists.
    pool.send_wish(2, &Wish::Symlink { parent: directory, name: left.clone() });
    pool.quiesce();
    pool.send_wish(0, &remove());
    // All parts are asked, until one refuses; that answer is under way.
    while !pool.flying.is_empty() && !refusal_flies(&pool) {
        let next = pool.flying.pop().unwrap();
        pool.land(next);
    }
    assert!(refusal_flies(&pool), "a part refuses");
    let word = std::mem::take(&mut pool.flying);
    pool.send_wish(2, &Wish::Unlink { parent: directory, name: left });
    while let Some(next) = pool.flying.pop() {
        pool.land(next);
    }
    assert!(pool.model.read_directory(directory).unwrap().is_empty(), "the last entry is gone");
    pool.send_wish(1, &remove());
    while let Some(next) = pool.flying.pop() {
        pool.land(next);
    }
    pool.flying = word;
    pool.deliver_all();
    pool.attempt_again(1);
    pool.deliver_all();
    pool.attempt_again(1);
    pool.deliver_all();
    let sequence = Sequence(pool.clients[1].sequence);
    assert!(
        matches!(pool.clients[1].sent[&sequence].outcome, Some(Ok(_))),
        "it was empty when the client asked"
    );
    pool.quiesce();
    pool.end();
}
