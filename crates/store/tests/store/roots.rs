//! How the memory is made, inherited, refused, and found when it was left behind.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use crate::common::*;
use ramlace_base::{ErrorKind, limits};
use ramlace_store::{Backing, Store, StoreRoot, find_stale, machine_memory, remove_stale};

#[test]
fn a_private_tmpfs_is_seen_by_nobody_and_owned_by_the_caller() {
    if !private_works("visibility") {
        return;
    }
    // Other tests mount other things meanwhile.
    let tmpfs_mounts = || {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.lines().filter(|line| line.contains(" - tmpfs ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let mounts_before = tmpfs_mounts();
    let root = StoreRoot::create(&options(16 * MIB, Backing::PrivateTmpfs)).unwrap();
    assert_eq!(tmpfs_mounts(), mounts_before);
    assert_eq!((root.backing(), root.size_bytes()), (Backing::PrivateTmpfs, 16 * MIB));
    let stat = rustix::fs::fstat(root.descriptor()).unwrap();
    assert_eq!(stat.st_mode & 0o7777, 0o700);
    assert_eq!(stat.st_uid, rustix::process::getuid().as_raw());
    assert_eq!(stat.st_gid, rustix::process::getgid().as_raw());
    assert!(root.notes().len() >= 3, "{:?}", root.notes());
    assert!(root.notes().iter().all(|note| note.ends_with('.')), "{:?}", root.notes());
    let size = rustix::fs::fstatvfs(root.descriptor()).unwrap();
    assert_eq!(size.f_blocks * size.f_frsize, 16 * MIB);
}

#[test]
fn many_threads_make_stores_at_once() {
    if !private_works("threads") {
        return;
    }
    let threads: Vec<_> = (0..8)
        .map(|number| {
            std::thread::spawn(move || {
                let root = StoreRoot::create(&options(16 * MIB, Backing::PrivateTmpfs)).unwrap();
                let mut store = TestStore::new(root);
                write(&mut store, lane(number), 0, &[number as u8; 5000]).unwrap();
                assert_eq!(store.lane_ids().collect::<Vec<_>>(), [lane(number)]);
                assert_counted(&store);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn auto_takes_what_works_and_says_so() {
    let root = StoreRoot::create(&options(16 * MIB, Backing::Auto)).unwrap();
    let expected = if private_works("auto") { Backing::PrivateTmpfs } else { Backing::SharedMemory };
    assert_eq!(root.backing(), expected);
    println!("{:?}", root.notes());
    root.remove().unwrap();
}

#[test]
fn sizes_and_names_that_make_no_sense_are_refused() {
    for backing in [Backing::Auto, Backing::PrivateTmpfs, Backing::SharedMemory] {
        let small = StoreRoot::create(&options(limits::STORE_BYTES_MIN - 1, backing)).unwrap_err();
        assert_eq!(small.kind(), ErrorKind::Invalid);
        assert!(small.message().contains("16 MiB"), "{small}");
        let large = StoreRoot::create(&options(1 << 50, backing)).unwrap_err();
        assert_eq!(large.kind(), ErrorKind::NoSpace);
        assert!(large.message().contains("1 PiB") && large.message().contains("available"), "{large}");
        for name in ["", "a/b", "a b", "..", "ä", &"x".repeat(65)] {
            let mut options = options(16 * MIB, backing);
            options.name = name.to_owned();
            assert_eq!(StoreRoot::create(&options).unwrap_err().kind(), ErrorKind::Invalid, "{name}");
        }
    }
    assert!(machine_memory().unwrap().available_bytes > 16 * MIB);
}

#[test]
fn what_does_not_describe_a_store_is_not_inherited() {
    for args in
        ["", "private", "private:16777216", "private:x:", "shared:16777216:", "private:1:", "a:16777216:b"]
    {
        assert_eq!(StoreRoot::from_inherited(0, args).unwrap_err().kind(), ErrorKind::Invalid, "{args}");
    }
    for number in [-1, 1, 1_000_000] {
        let error = StoreRoot::from_inherited(number, "private:16777216:").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadHandle);
    }
    let file = std::fs::File::open("/proc/self/status").unwrap();
    let number = std::os::fd::IntoRawFd::into_raw_fd(file);
    let error = StoreRoot::from_inherited(number, "private:16777216:").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadHandle);
}

const CHILD: &str = "RAMLACE_STORE_TEST_CHILD";

/// Not a test by itself: what `a_killed_child_leaves_its_bytes` starts as another process.
#[test]
fn child_process() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let (number, args) = task.split_once(' ').unwrap();
    let mut store = Store::open(StoreRoot::from_inherited(number.parse().unwrap(), args).unwrap()).unwrap();
    store.start_reservation().unwrap();
    for number in store.lane_ids().count() as u64.. {
        write(&mut store, lane(number), 0, &pattern(number, 300_000)).unwrap();
        println!("\nwritten {number}");
        std::io::stdout().flush().unwrap();
    }
}

/// Starts the child, waits until it has acknowledged `lanes` lanes more, kills it, and says which.
fn run_child_and_kill(root: &StoreRoot, lanes: usize) -> Vec<u64> {
    root.set_inheritable(true).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "roots::child_process", "--nocapture"])
        .env(CHILD, format!("{} {}", root.descriptor().as_raw_fd(), root.inherited_args()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    root.set_inheritable(false).unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let acknowledged =
        lines.filter_map(|line| line.strip_prefix("written ")?.parse().ok()).take(lanes).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    acknowledged
}

#[test]
fn a_killed_child_leaves_its_bytes() {
    let mut backings = vec![Backing::SharedMemory];
    if private_works("killed child") {
        backings.push(Backing::PrivateTmpfs);
    }
    for backing in backings {
        let root = StoreRoot::create(&options(64 * MIB, backing)).unwrap();
        let mut acknowledged = run_child_and_kill(&root, 10);
        acknowledged.extend(run_child_and_kill(&root, 10));
        assert_eq!(acknowledged.len(), 20);
        let mut store = TestStore::new(root);
        assert_counted(&store);
        // The lane it was writing when it was killed may be there in part; it was not acknowledged.
        for number in acknowledged {
            assert_eq!(read(&mut store, lane(number), 0, 300_000), pattern(number, 300_000));
        }
    }
}

#[test]
fn shared_memory_left_behind_is_found_and_removed() {
    let root = StoreRoot::create(&options(16 * MIB, Backing::SharedMemory)).unwrap();
    let path = root.inherited_args().rsplit(':').next().unwrap().to_owned();
    assert!(path.starts_with("/dev/shm/ramlace-"), "{path}");
    let mut store = Store::open(root).unwrap();
    write(&mut store, lane(1), 0, &[1; 8192]).unwrap();
    let found = |path: &str| find_stale().unwrap().into_iter().find(|stale| stale.path == path);
    assert_eq!(found(&path), None);
    // A server that was killed drops its descriptors without removing anything. Until the child
    // of a fork in another test has ended, a copy of them may still hold the lock.
    drop(store);
    wait_until("the store is seen to be stale", || found(&path).is_some());
    let stale = found(&path).unwrap();
    assert_eq!(stale.allocated_bytes, 8192);
    wait_until("the stale store is removed", || remove_stale(&stale).is_ok());
    assert!(!std::path::Path::new(&path).exists());
    assert_eq!(remove_stale(&stale).unwrap_err().kind(), ErrorKind::Invalid);
}
