//! Directories that are spread over slots: filled, listed, changed and emptied by several clients while
//! servers are killed; a server that is forgotten; a million entries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ramlace_base::{ErrorKind, InodeId, Name, Result, ServerId, limits};
use ramlace_client::{ConnectOptions, Pool, RenameMode};
use ramlace_system_tests::TestPool;
use ramlace_wire::namespace::{Create, DirectoryEntry, InodeInfo};
use ramlace_wire::{FileAttributes, FileKind, LayoutHints};

const SERVERS: u16 = 3;
const CLIENTS: usize = 3;
/// Entries that nobody touches.
const STAYING: usize = 1_000;
/// Entries that each client makes. Together they are more than a directory has that is whole.
const EACH: usize = 5_000;

/// Kills in each storm. Many more in a row, and supervisors would take their time to start servers again.
const KILLS: usize = 6;

/// A client with a deadline that no restart of a server outlasts.
fn patient(pool: &TestPool) -> Pool {
    Pool::connect(&ConnectOptions { deadline_millis: 60_000, ..pool.options(true) }).unwrap()
}

fn name(text: String) -> Name {
    Name::new(text).unwrap()
}

fn create(client: &Pool, parent: InodeId, name: &Name) -> Result<()> {
    let hints =
        LayoutHints { stripe_unit: Some(1 << 20), width: Some(1), copies: Some(1), ..LayoutHints::default() };
    let request = Create {
        parent,
        name: name.clone(),
        mode: 0o644.into(),
        exclusive: true,
        read: false,
        write: true,
        layout: None,
        wish: client.raw().layout_wish(hints)?,
        named: FileAttributes::new(),
    };
    client.raw().create(&request)?.0.close()
}

fn info(client: &Pool, directory: InodeId) -> InodeInfo {
    client.raw().info(directory).unwrap()
}

/// All names of a directory, and how often each was shown.
fn list(client: &Pool, path: &str) -> Result<BTreeMap<Name, usize>> {
    let mut found = BTreeMap::new();
    for entry in client.read_dir(path)? {
        *found.entry(entry?.name).or_insert(0) += 1;
    }
    Ok(found)
}

/// Kills one server after the other while the work goes on; their supervisors start them again.
fn while_servers_are_killed(pool: &TestPool, work: impl FnOnce()) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let client = patient(pool);
            for kill in (0..SERVERS).cycle().take(KILLS) {
                std::thread::sleep(Duration::from_millis(500));
                if done.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(status) = client.server_status(ServerId(kill)) {
                    let pid = rustix::process::Pid::from_raw(status.pid as i32).unwrap();
                    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
                }
            }
        });
        work();
        done.store(true, Ordering::SeqCst);
        killer.join().unwrap();
    });
}

/// One client's work: makes entries, gives every third another name, removes every seventh, links every
/// eleventh; what it leaves.
fn fill(client: &Pool, directory: InodeId, number: usize) -> BTreeSet<Name> {
    let raw = client.raw();
    let mut left = BTreeSet::new();
    for at in 0..EACH {
        let made = name(format!("client-{number}-file-{at}"));
        create(client, directory, &made).unwrap_or_else(|error| panic!("{made}: {error}"));
        let other = name(format!("other-{number}-{at}"));
        if at % 3 == 0 {
            raw.rename(directory, &made, directory, &other, RenameMode::Keep)
                .unwrap_or_else(|error| panic!("{made} to {other}: {error}"));
            left.insert(other);
        } else if at % 7 == 0 {
            raw.unlink(directory, &made).unwrap_or_else(|error| panic!("{made}: {error}"));
            assert_eq!(raw.lookup(directory, &made).unwrap_err().kind(), ErrorKind::NotFound);
        } else {
            if at % 11 == 0 {
                let found = raw.lookup(directory, &made).unwrap();
                raw.link(found.inode, directory, &other).unwrap_or_else(|error| panic!("{other}: {error}"));
                left.insert(other);
            }
            left.insert(made);
        }
    }
    left
}

// SEMANTICS 14.1
#[test]
fn a_directory_that_spreads_is_filled_listed_and_emptied_while_servers_are_killed() {
    let pool = TestPool::start(SERVERS, "768MiB");
    let client = patient(&pool);
    let directory = client.mkdir("/d", 0o755).unwrap().inode;
    let staying: BTreeSet<Name> = (0..STAYING).map(|at| name(format!("staying-{at}"))).collect();
    staying.iter().for_each(|name| create(&client, directory, name).unwrap());
    assert!(info(&client, directory).partitions.is_empty(), "it is small yet");

    let done = AtomicBool::new(false);
    let mut expected = staying.clone();
    while_servers_are_killed(&pool, || {
        std::thread::scope(|scope| {
            let lister = scope.spawn(|| {
                let client = patient(&pool);
                let mut listings = 0;
                while !done.load(Ordering::SeqCst) || listings == 0 {
                    let found = list(&client, "/d").unwrap();
                    for name in &staying {
                        assert_eq!(found.get(name), Some(&1), "{name} in listing {listings}");
                    }
                    listings += 1;
                }
                listings
            });
            let workers: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let pool = &pool;
                    scope.spawn(move || fill(&patient(pool), directory, number))
                })
                .collect();
            workers.into_iter().for_each(|worker| expected.extend(worker.join().unwrap()));
            done.store(true, Ordering::SeqCst);
            assert!(lister.join().unwrap() > 0);
        });
    });

    pool.assert_in_order();
    let whole = info(&client, directory);
    assert_eq!(whole.partitions.len(), limits::DIRECTORY_PARTITIONS, "it has spread");
    assert_eq!(whole.attributes.size, expected.len() as u64);
    assert_eq!(whole.attributes.links, 2);
    // A session that has never learned that it is spread.
    let found = list(&patient(&pool), "/d").unwrap();
    assert!(found.values().all(|count| *count == 1));
    assert!(found.into_keys().collect::<BTreeSet<Name>>() == expected, "what is left is what was left");

    client
        .set_attributes("/d", &ramlace_client::AttributeChanges { mode: Some(0o711), ..Default::default() })
        .unwrap();
    assert_eq!(info(&client, directory).attributes.mode, 0o711);
    assert_eq!(client.rmdir("/d").unwrap_err().kind(), ErrorKind::NotEmpty);
    client.rename("/d", "/e", RenameMode::Keep).unwrap();
    while_servers_are_killed(&pool, || patient(&pool).remove_tree("/e").unwrap());
    assert_eq!(client.raw().info(directory).unwrap_err().kind(), ErrorKind::Stale);
    assert!(list(&client, "/").unwrap().is_empty());
    pool.assert_in_order();
}

// SEMANTICS 15.1
#[test]
fn entries_that_were_lost_with_a_server_are_an_error_and_never_absent() {
    let pool = TestPool::start(SERVERS, "768MiB");
    let client = pool.connect(true);
    let home = |client: &Pool, inode: InodeId| client.map().unwrap().primary(inode.slot()).unwrap();
    // A directory whose home stays.
    let (path, directory) = (0..20)
        .map(|at| (format!("/d{at}"), client.mkdir(format!("/d{at}"), 0o755).unwrap().inode))
        .find(|(_, inode)| home(&client, *inode) != ServerId(2))
        .unwrap();
    let names: Vec<Name> =
        (0..limits::DIRECTORY_WHOLE_ENTRIES_MAX + 200).map(|at| name(format!("file-{at}"))).collect();
    names.iter().for_each(|name| create(&client, directory, name).unwrap());
    assert!(!info(&client, directory).partitions.is_empty());

    let status = client.server_status(ServerId(2)).unwrap();
    for pid in [status.supervisor_pid, status.pid] {
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    let forgotten = pool.run(&["forget", "2"]);
    assert!(forgotten.status.success(), "{}", String::from_utf8_lossy(&forgotten.stderr));
    for client in [&client, &patient(&pool)] {
        let (mut there, mut lost) = (0, 0);
        for name in &names {
            match client.raw().lookup(directory, name) {
                Ok(_) => there += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Lost, "{name}: {error}");
                    lost += 1;
                }
            }
            // A lost one takes three requests with pauses.
            if lost >= 50 && there >= 50 {
                break;
            }
        }
        assert!(there >= 50 && lost >= 50, "{there} there, {lost} lost");
        assert_eq!(list(client, &path).unwrap_err().kind(), ErrorKind::Lost);
        let listed = client.read_dir(&path).unwrap();
        let mut results: Vec<Result<DirectoryEntry>> = listed.collect();
        // What is left comes first, and is all of it.
        let end = results.pop().unwrap();
        assert_eq!(end.unwrap_err().kind(), ErrorKind::Lost);
        let left: Vec<Name> = results.into_iter().map(|entry| entry.unwrap().name).collect();
        assert!(left.len() > names.len() / 4 && left.len() < names.len(), "{} are left", left.len());
        assert!(left.iter().step_by(100).all(|name| client.raw().lookup(directory, name).is_ok()));
        assert_eq!(client.stat(&path).unwrap().attributes.kind, FileKind::Directory);
    }
    client.remove_tree(&path).unwrap();
    assert!(!client.exists(&path).unwrap());
}

/// Creates per second in a directory, by so many clients at once.
fn rate(pool: &TestPool, directory: InodeId, clients: usize, each: usize, label: &str) -> f64 {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for number in 0..clients {
            scope.spawn(move || {
                let client = patient(pool);
                for at in 0..each {
                    create(&client, directory, &name(format!("{label}-{number}-{at:07}"))).unwrap();
                }
            });
        }
    });
    (clients * each) as f64 / begun.elapsed().as_secs_f64()
}

fn resident_bytes(client: &Pool) -> u64 {
    (0..SERVERS)
        .map(|server| {
            let pid = client.server_status(ServerId(server)).unwrap().pid;
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
        })
        .sum()
}

#[test]
#[ignore = "a million entries: some minutes"]
fn a_million_entries_are_listed_in_seconds() {
    const ENTRIES: usize = 1_000_000;
    let pool = TestPool::start(SERVERS, "3GiB");
    let client = patient(&pool);
    let directory = client.mkdir("/d", 0o755).unwrap().inode;
    let before = resident_bytes(&client);
    let one = rate(&pool, directory, 1, 3_500, "whole-1");
    let three = rate(&pool, directory, 3, 1_500, "whole-3");
    assert!(info(&client, directory).partitions.is_empty());
    let mut made = 3_500 + 3 * 1_500;
    println!("creates a second while it is whole: {one:.0} by one client, {three:.0} by three");
    rate(&pool, directory, 1, 1_000, "across");
    made += 1_000;
    assert!(!info(&client, directory).partitions.is_empty(), "it has spread");
    let one = rate(&pool, directory, 1, 10_000, "spread-1");
    made += 10_000;
    let each = (ENTRIES - made) / 3;
    let three = rate(&pool, directory, 3, each, "spread-3");
    made += 3 * each;
    println!("creates a second when it is spread: {one:.0} by one client, {three:.0} by three");
    let used = resident_bytes(&client) - before;
    println!("{} bytes of server memory for each file", used / made as u64);
    for _ in 0..3 {
        let begun = Instant::now();
        let count = client.read_dir("/d").unwrap().filter(Result::is_ok).count();
        println!("{count} entries listed in {:.2} s", begun.elapsed().as_secs_f64());
        assert_eq!(count, made);
    }
    let found = list(&client, "/d").unwrap();
    assert_eq!(found.len(), made);
    assert!(found.values().all(|count| *count == 1));
    assert_eq!(info(&client, directory).attributes.size, made as u64);
    let mount = std::env::temp_dir().join(format!("ramlace-million-{}", std::process::id()));
    std::fs::create_dir(&mount).unwrap();
    let mounted = pool.run(&["mount", mount.to_str().unwrap()]);
    if mounted.status.success() {
        for _ in 0..2 {
            let begun = Instant::now();
            let count = std::fs::read_dir(mount.join("d")).unwrap().count();
            println!("{count} entries listed through the mount in {:.2} s", begun.elapsed().as_secs_f64());
            assert_eq!(count, made);
        }
        let unmounted = pool.run(&["unmount", mount.to_str().unwrap()]);
        assert!(unmounted.status.success(), "{}", String::from_utf8_lossy(&unmounted.stderr));
    } else {
        println!("no mount here: {}", String::from_utf8_lossy(&mounted.stderr));
    }
    std::fs::remove_dir(&mount).unwrap();
}
