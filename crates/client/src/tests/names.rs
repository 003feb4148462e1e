//! Trees, and references to open inodes.

use ramlace_base::{ErrorKind, InodeId, Name};
use ramlace_wire::{FileKind, Kind, LayoutHints, Mode};

use super::pages::eventually;
use super::{striped, write_all};
use crate::fake::{FakePool, Fault};
use crate::{OpenOptions, RenameMode, Rights};

#[test]
fn trees_are_made_listed_and_removed() {
    let pool = FakePool::start(3);
    let client = pool.connect();
    client.mkdir_all("/a/b/c/", 0o755).unwrap();
    client.mkdir_all("a/b/c", 0o755).unwrap();
    for index in 0..10 {
        client.open(format!("/a/b/f{index}"), &striped(1)).unwrap();
    }
    client.symlink("../b/f3", "/a/b/link").unwrap();
    assert_eq!(client.read_link("/a/b/link").unwrap(), b"../b/f3");
    let names: Vec<String> =
        client.read_dir("/a/b").unwrap().map(|entry| entry.unwrap().name.to_string()).collect();
    assert_eq!(names.len(), 12);
    assert_eq!(client.stat("/a/b/link").unwrap().attributes.kind, FileKind::File);
    assert_eq!(client.lstat("/a/b/link").unwrap().attributes.kind, FileKind::Symlink);
    assert!(client.exists("/a/b/c").unwrap() && !client.exists("/a/x/y").unwrap());
    for (error, kind) in [
        (client.mkdir("/a", 0o755).unwrap_err(), ErrorKind::Exists),
        (client.mkdir("/", 0o755).unwrap_err(), ErrorKind::Exists),
        (client.mkdir_all("/a/b/f1/x", 0o755).unwrap_err(), ErrorKind::NotDirectory),
        (client.rmdir("/a").unwrap_err(), ErrorKind::NotEmpty),
        (client.rmdir("/").unwrap_err(), ErrorKind::Invalid),
        (client.unlink("/a").unwrap_err(), ErrorKind::IsDirectory),
        (client.unlink("/a/b/f1/").unwrap_err(), ErrorKind::NotDirectory),
        (client.read_link("/a").unwrap_err(), ErrorKind::Invalid),
        (client.read_dir("/a/b/f1").err().unwrap(), ErrorKind::NotDirectory),
        (client.open("/a", &striped(1)).unwrap_err(), ErrorKind::IsDirectory),
        (client.open("/new/", &striped(1)).unwrap_err(), ErrorKind::IsDirectory),
        (client.open("/none", &OpenOptions::reading()).unwrap_err(), ErrorKind::NotFound),
        (client.open("/a", &OpenOptions::default()).unwrap_err(), ErrorKind::Invalid),
    ] {
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains('/') || error.kind() == ErrorKind::Invalid, "{error}");
    }
    client.remove_tree("/a").unwrap();
    assert_eq!(client.read_dir("/").unwrap().count(), 0);
    assert_eq!(client.remove_tree("/a").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn files_are_removed_many_at_once_and_each_once_whatever_is_lost() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let faults =
        [None, Some(Fault::LoseReply), Some(Fault::LoseRequest), Some(Fault::Retry), Some(Fault::Spread)];
    for (turn, fault) in faults.into_iter().enumerate() {
        let directory = format!("/{turn}");
        client.mkdir(&directory, 0o755).unwrap();
        (0..300).for_each(|file| drop(client.open(format!("{directory}/{file}"), &striped(1)).unwrap()));
        client.mkdir(format!("{directory}/inner"), 0o755).unwrap();
        fault.into_iter().for_each(|fault| pool.fault(Kind::ChangeMany, fault));
        let (before, seen) = (pool.done(Kind::Unlink), pool.seen(Kind::ChangeMany));
        client.remove_tree(&directory).unwrap();
        assert_eq!(pool.done(Kind::Unlink) - before, 300, "{turn}");
        let messages = pool.seen(Kind::ChangeMany) - seen;
        // The fake lists three entries a page.
        assert!(messages <= 300 / 3 + 1, "{turn}: {messages}");
        assert!(!client.exists(&directory).unwrap());
    }
}

/// A tree is removed by one client, and `meanwhile` is done when it has listed the tree's top.
fn remove_while(pool: &FakePool, tree: &str, meanwhile: impl FnOnce()) {
    let client = pool.connect();
    pool.fault(Kind::ReadDirectory, Fault::Held);
    std::thread::scope(|scope| {
        let listed = pool.done(Kind::ReadDirectory);
        let removing = scope.spawn(|| client.remove_tree(tree));
        eventually("it was listed", || pool.done(Kind::ReadDirectory) > listed);
        meanwhile();
        pool.state().releases_held = true;
        removing.join().unwrap().unwrap();
    });
    assert!(!client.exists(tree).unwrap());
}

#[test]
fn what_is_moved_out_of_a_tree_while_it_is_removed_is_kept() {
    let pool = FakePool::start(2);
    let other = pool.connect();
    other.mkdir_all("/scratch/run/inner", 0o755).unwrap();
    other.mkdir("/keep", 0o755).unwrap();
    for file in ["/scratch/run/a", "/scratch/run/inner/b"] {
        drop(other.open(file, &striped(1)).unwrap());
    }
    remove_while(&pool, "/scratch", || {
        other.rename("/scratch/run", "/keep/run", RenameMode::Replace).unwrap();
    });
    assert!(other.exists("/keep/run/a").unwrap() && other.exists("/keep/run/inner/b").unwrap());
}

#[test]
fn what_takes_the_place_of_a_directory_while_its_tree_is_removed_is_removed() {
    let pool = FakePool::start(2);
    let other = pool.connect();
    for kind in [FileKind::Directory, FileKind::File] {
        pool.state().releases_held = false;
        other.mkdir_all("/s/out", 0o755).unwrap();
        remove_while(&pool, "/s", || {
            other.rename("/s/out", "/s/old", RenameMode::Replace).unwrap();
            if kind == FileKind::Directory {
                other.mkdir("/s/out", 0o755).unwrap();
            }
            let file = if kind == FileKind::Directory { "/s/out/x" } else { "/s/out" };
            drop(other.open(file, &striped(1)).unwrap());
        });
    }
}

#[test]
fn names_of_several_directories_are_removed_by_one_call_and_each_has_its_outcome() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    client.mkdir_all("/a/inner", 0o755).unwrap();
    client.mkdir("/b", 0o755).unwrap();
    let files: Vec<String> = (0..200).map(|file| format!("/{}/{file}", ["a", "b"][file % 2])).collect();
    files.iter().for_each(|file| drop(client.open(file, &striped(1)).unwrap()));
    for (to, link) in [("a", "/link"), ("inner", "/a/link"), ("0", "/a/to file")] {
        client.symlink(to, link).unwrap();
    }
    drop(client.open("/top", &striped(1)).unwrap());
    let seen = pool.seen(Kind::ChangeMany);
    assert!(client.unlink_many(&files).iter().all(Result::is_ok));
    assert_eq!(pool.seen(Kind::ChangeMany) - seen, 2);
    let odd = [
        ("/a/none", Err(ErrorKind::NotFound)),
        ("top", Ok(())),
        ("/link/to file", Ok(())),
        ("/a/inner", Err(ErrorKind::IsDirectory)),
        ("/a/link/", Err(ErrorKind::NotDirectory)),
        ("/none/x", Err(ErrorKind::NotFound)),
        ("/a/link/..", Err(ErrorKind::Invalid)),
        ("/a/./link", Ok(())),
        ("//top", Err(ErrorKind::NotFound)),
        ("", Err(ErrorKind::NotFound)),
    ];
    let outcomes = client.unlink_many(&odd.map(|(path, _)| path));
    for ((path, expected), outcome) in odd.into_iter().zip(outcomes) {
        assert_eq!(outcome.as_ref().map_err(|error| error.kind()).copied(), expected, "{path}: {outcome:?}");
    }
    let names = |path: &str| -> Vec<String> {
        client.read_dir(path).unwrap().map(|entry| entry.unwrap().name.to_string()).collect()
    };
    assert_eq!((names("/a"), names("/b")), (vec!["inner".to_owned()], vec![]));
    drop(client.open("/b/x", &striped(1)).unwrap());
    let twice = client.unlink_many(&["/b/x", "/b/y", "/b/x"]);
    let kinds: Vec<Option<ErrorKind>> =
        twice.iter().map(|outcome| outcome.as_ref().err().map(|error| error.kind())).collect();
    assert_eq!(kinds, [None, Some(ErrorKind::NotFound), Some(ErrorKind::NotFound)]);
    assert!(twice[1].as_ref().unwrap_err().message().contains("/b/y"));
    assert!(client.unlink_many::<&str>(&[]).is_empty());
}

#[test]
fn a_part_of_a_directory_is_lost_when_its_slot_knows_nothing_again_and_again() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    client.mkdir("/a", 0o755).unwrap();
    let name = Name::new("a").unwrap();
    let look = |times| {
        (0..times).for_each(|_| pool.fault(Kind::Lookup, Fault::Spread));
        client.raw().lookup(InodeId::ROOT, &name).map(|found| found.kind).map_err(|error| error.kind())
    };
    // The first answer says how the directory is divided. It may be made whole and spread again between two
    // more.
    assert_eq!(look(3), Ok(FileKind::Directory));
    assert_eq!(look(4), Err(ErrorKind::Lost));
}

#[test]
fn one_reference_for_all_files_of_an_inode() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    let first = client.open("/one", &striped(1)).unwrap();
    let second = client.open("/one", &striped(1)).unwrap();
    drop(first);
    assert_eq!(pool.done(Kind::Close), 0);
    write_all(&second, b"still open", 0);
    second.close().unwrap();
    assert_eq!(pool.done(Kind::Close), 1);
    assert!(pool.state().open.is_empty());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| drop(client.open("/one", &striped(1)).unwrap())));
        }
    });
    assert!(pool.state().open.is_empty());
    let last = client.open("/one", &striped(1)).unwrap();
    drop(client);
    drop(last);
    assert!(pool.state().open.is_empty());
    assert!(pool.done(Kind::CloseSession) >= 1);
}

// SEMANTICS 138.3
#[test]
fn what_a_home_says_lacks_times_that_it_has_yet_to_hear() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    let raw = client.raw();
    let (reader, file) =
        (client.open("/one", &striped(1)).unwrap(), client.open("/one", &striped(1)).unwrap());
    let inode = file.inode();
    write_all(&file, &[1; 8192], 0);
    client.session().unwrap().push_times(inode).unwrap();
    let told = raw.times_reported();
    assert!(!raw.has_unreported_times(inode, told), "it was told before it was asked");
    write_all(&file, &[2; 10], 0);
    drop(file);
    assert!(raw.has_unreported_times(inode, told), "the inode is open here still, so nothing was told");
    client.session().unwrap().push_times(inode).unwrap();
    assert!(raw.has_unreported_times(inode, told), "what was said before lacks it still");
    assert!(!raw.has_unreported_times(inode, raw.times_reported()));
    drop(reader);
}

// SEMANTICS 140.4
#[test]
fn a_client_that_opens_by_name_hears_of_the_mode_that_counts() {
    let pool = FakePool::start(1);
    let client = pool.connect();
    let inode = client.open("/one", &striped(1)).unwrap().inode();
    let (name, rights) = (Name::new("one").unwrap(), Rights { read: true, write: true });
    pool.fault(Kind::OpenEntry, Fault::Held);
    std::thread::scope(|scope| {
        let asked = pool.done(Kind::OpenEntry);
        let opening = scope.spawn(|| client.raw().open_entry(InodeId::ROOT, &name, rights).unwrap());
        eventually("it was opened", || pool.done(Kind::OpenEntry) > asked);
        // Until the answer is here no client has it open, and its mode changes.
        drop(client.raw().open(inode, rights).unwrap());
        let hints = LayoutHints::of_mode(Some(Mode::Strict));
        pool.state().inodes.get_mut(&inode).unwrap().info.hints = hints;
        let third = client.raw().open(inode, rights).unwrap();
        pool.state().releases_held = true;
        assert_eq!(opening.join().unwrap().1.info.hints, hints);
        drop(third);
    });
    assert!(pool.state().open.is_empty());
}
