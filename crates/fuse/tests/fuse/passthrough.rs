//! What the kernel does with files under passthrough, and what it tells of them.
//!
//! These are the facts by which `docs/records/passthrough.md` decides; a kernel that behaves otherwise shows here.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::other::{self, Other};
use crate::toy::{Dir, alone};
use ramlace_fuse::{
    Attributes, Backing, Ended, Entry, FileSystem, MountOptions, Notifier, OpenFlags, Operation, ROOT_NODE,
    Reply, Request, Session, StatFs, Stopper, Workers,
};
use ramlace_sync::{Condvar, Mutex};
use rustix::mm::{MapFlags, ProtFlags};

const PAGE: usize = 4096;
const BYTES: usize = 3 * PAGE;
const NODE: u64 = 2;

/// How the next open is answered.
#[derive(Clone, Copy, PartialEq)]
enum Answer {
    /// By the kernel's pages.
    Cached,
    /// Reads, writes and mappings by the backing file.
    Passthrough,
    /// Mappings by the backing file, reads and writes by requests.
    Mapped,
}

/// One file, whose bytes lie in a tmpfs file, and a diary of what the kernel asks.
struct PassedFile {
    store: File,
    backing: OnceLock<Backing>,
    answer: Mutex<Answer>,
    /// What `stat` tells.
    size: u64,
    diary: Mutex<Vec<&'static str>>,
    changed: Condvar,
}

impl PassedFile {
    fn note(&self, what: &'static str) {
        self.diary.lock().push(what);
        self.changed.notify_all();
    }

    /// What was asked since the last look.
    fn asked(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.diary.lock())
    }

    fn wait_for(&self, what: &str) {
        let mut diary = self.diary.lock();
        while !diary.contains(&what) {
            diary = self.changed.wait(diary);
        }
    }

    fn attributes(&self, node: u64) -> Attributes {
        let (mode, size) = if node == ROOT_NODE { (0o040_755, 0) } else { (0o100_644, self.size) };
        Attributes { ino: node, size, mode, links: 1, block_size: 4096, ..Default::default() }
    }

    fn open(&self, reply: Reply) -> bool {
        let backing = Some(self.backing.get().unwrap().id());
        let flags = match *self.answer.lock() {
            Answer::Cached => OpenFlags::default(),
            Answer::Passthrough => OpenFlags { passthrough: backing, ..OpenFlags::default() },
            Answer::Mapped => OpenFlags { passthrough: backing, direct_io: true, ..OpenFlags::default() },
        };
        self.note("open");
        reply.opened(1, flags)
    }
}

impl FileSystem for PassedFile {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        match request.operation {
            Operation::Lookup { name: b"file" } => {
                let attributes = self.attributes(NODE);
                reply.entry(&Entry { node: NODE, attributes, ..Entry::default() })
            }
            Operation::Lookup { .. } => reply.error(libc::ENOENT),
            Operation::GetAttributes { .. } => {
                reply.attributes(&self.attributes(request.node), Duration::ZERO)
            }
            Operation::Open { .. } => self.open(reply),
            Operation::Read { offset, length, .. } => {
                self.note("read");
                let mut bytes = vec![0; length as usize];
                let read = self.store.read_at(&mut bytes, offset).unwrap();
                reply.data(&bytes[..read])
            }
            Operation::Write { offset, data, .. } => {
                self.note("write");
                self.store.write_all_at(data, offset).unwrap();
                reply.written(data.len() as u32)
            }
            Operation::Fsync { .. } => {
                self.note("fsync");
                reply.ok()
            }
            Operation::Flush { .. } => {
                self.note("flush");
                reply.ok()
            }
            Operation::Release { .. } => {
                self.note("release");
                reply.ok()
            }
            Operation::StatFs => reply.statfs(&StatFs::default()),
            _ => reply.error(libc::ENOSYS),
        };
    }

    fn forget(&self, node: u64, _lookups: u64) {
        if node == NODE {
            self.note("forget");
        }
    }
}

/// The mount of such a file. Ends with the test.
struct Mount {
    file: Arc<PassedFile>,
    notifier: Notifier,
    stopper: Stopper,
    running: Option<JoinHandle<ramlace_base::Result<Ended>>>,
    dir: Dir,
}

impl Mount {
    /// `None`, with a word, where this process or this kernel cannot do it.
    fn new(answer: Answer, stat_bytes: usize) -> Option<Mount> {
        let dir = Dir::new();
        let options = MountOptions { passthrough: true, ..MountOptions::default() };
        let session = Session::mount(dir.path(), &options).unwrap();
        let Some(files) = session.backing_files() else {
            eprintln!("skipped: this kernel has no passthrough (Linux 6.9)");
            return None;
        };
        let store = tmpfs_file();
        let backing = match files.register(&store) {
            Ok(backing) => backing,
            Err(error) => {
                eprintln!("skipped: {error} (needs root, CAP_SYS_ADMIN)");
                return None;
            }
        };
        let file = Arc::new(PassedFile {
            store,
            backing: OnceLock::from(backing),
            answer: Mutex::new(answer),
            size: stat_bytes as u64,
            diary: Mutex::default(),
            changed: Condvar::new(),
        });
        let (notifier, stopper, served) = (session.notifier(), session.stopper(), Arc::clone(&file));
        let running = Some(std::thread::spawn(move || session.run(served, Workers::default())));
        Some(Mount { file, notifier, stopper, running, dir })
    }

    fn user(&self) -> Other {
        Other::new("passthrough::user", &self.dir.path().join("file"))
    }

    fn answers(&self, answer: Answer) {
        *self.file.answer.lock() = answer;
    }

    fn stored(&self, offset: usize) -> u8 {
        let mut byte = [0];
        self.file.store.read_exact_at(&mut byte, offset as u64).unwrap();
        byte[0]
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.stopper.stop();
        let _ = self.running.take().map(JoinHandle::join);
    }
}

/// Three pages of ones, in a tmpfs.
fn tmpfs_file() -> File {
    let name = rustix::fs::memfd_create("passed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(name);
    file.write_all_at(&[1; BYTES], 0).unwrap();
    file
}

/// Not a test: the other process.
#[test]
fn user() {
    let Some(path) = other::path() else { return };
    let mut using = Using { file: None, map: std::ptr::null_mut() };
    other::serve(|line| {
        let (verb, number) = line.split_once(' ').unwrap_or((line, "0"));
        using.run(&path, verb, number.parse().unwrap())
    });
}

struct Using {
    file: Option<File>,
    map: *mut u8,
}

impl Using {
    /// A byte, a count, 0; below 0 an errno.
    fn run(&mut self, path: &Path, verb: &str, number: u64) -> i64 {
        let done = match verb {
            "open" | "open-rw" => self.open(path, verb == "open-rw"),
            "close" => {
                self.file = None;
                Ok(0)
            }
            "map" | "map-rw" => self.map(verb == "map-rw"),
            "msync" => {
                // SAFETY: the mapping is this program's own.
                unsafe { rustix::mm::msync(self.map.cast(), BYTES, rustix::mm::MsyncFlags::SYNC) }
                    .map(|()| 0)
                    .map_err(Into::into)
            }
            "unmap" => {
                // SAFETY: nobody uses it any more.
                unsafe { rustix::mm::munmap(self.map.cast(), BYTES) }.map(|()| 0).map_err(Into::into)
            }
            // SAFETY: within the mapping.
            "load" => Ok(i64::from(unsafe { self.map.add(number as usize).read_volatile() })),
            "store" => {
                // SAFETY: within the mapping.
                unsafe { self.map.add(number as usize).write_volatile(number as u8) };
                Ok(0)
            }
            "read" => self.read(number),
            "read-count" => {
                let mut bytes = vec![0; 2 * BYTES];
                self.file.as_ref().unwrap().read_at(&mut bytes, 0).map(|read| read as i64)
            }
            "write" => {
                let file = self.file.as_ref().unwrap();
                file.write_at(&[number as u8], number).map(|written| written as i64)
            }
            "splice" => self.splice(number),
            _ => unreachable!("{verb}"),
        };
        done.unwrap_or_else(|error| -i64::from(error.raw_os_error().unwrap()))
    }

    fn open(&mut self, path: &Path, write: bool) -> std::io::Result<i64> {
        self.file = Some(File::options().read(true).write(write).open(path)?);
        Ok(0)
    }

    fn map(&mut self, write: bool) -> std::io::Result<i64> {
        let rights = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let file = self.file.as_ref().unwrap();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), BYTES, rights, MapFlags::SHARED, file, 0) }?;
        self.map = start.cast();
        Ok(0)
    }

    fn read(&self, offset: u64) -> std::io::Result<i64> {
        let mut byte = [0];
        self.file.as_ref().unwrap().read_at(&mut byte, offset)?;
        Ok(i64::from(byte[0]))
    }

    /// One byte, by a pipe.
    fn splice(&self, offset: u64) -> std::io::Result<i64> {
        let (reader, writer) = rustix::pipe::pipe()?;
        let mut at = offset;
        let flags = rustix::pipe::SpliceFlags::empty();
        rustix::pipe::splice(self.file.as_ref().unwrap(), Some(&mut at), &writer, None, 1, flags)?;
        let mut byte = [0];
        rustix::io::read(&reader, &mut byte)?;
        Ok(i64::from(byte[0]))
    }
}

#[test]
fn reads_and_mappings_go_to_the_backing_file_without_a_request() {
    let Some(_alone) = alone() else { return };
    let Some(mount) = Mount::new(Answer::Passthrough, BYTES) else { return };
    let mut user = mount.user();
    assert_eq!((user.ask("open"), user.ask("map")), (0, 0));
    assert_eq!((user.ask("read 5000"), user.ask("load 5000"), user.ask("splice 5000")), (1, 1, 1));
    mount.file.store.write_all_at(&[9], 5000).unwrap();
    assert_eq!((user.ask("read 5000"), user.ask("load 5000"), user.ask("splice 5000")), (9, 9, 9));
    assert_eq!(mount.file.asked(), ["open"]);
}

#[test]
fn with_direct_io_reads_and_writes_are_requests_and_mappings_are_not() {
    let Some(_alone) = alone() else { return };
    let Some(mount) = Mount::new(Answer::Mapped, BYTES) else { return };
    let mut user = mount.user();
    assert_eq!((user.ask("open-rw"), user.ask("map-rw")), (0, 0));
    assert_eq!(mount.file.asked(), ["open"]);
    assert_eq!((user.ask("write 77"), user.ask("load 77"), user.ask("read 77")), (1, 77, 77));
    assert_eq!(mount.file.asked(), ["write", "read"]);
    assert_eq!((user.ask("store 200"), mount.stored(200)), (0, 200));
    assert_eq!(mount.file.asked(), [""; 0]);
}

#[test]
fn no_request_tells_of_stores_into_a_mapping_of_its_msync_or_of_its_end() {
    let Some(_alone) = alone() else { return };
    let Some(mount) = Mount::new(Answer::Mapped, BYTES) else { return };
    let mut user = mount.user();
    assert_eq!((user.ask("open-rw"), user.ask("map-rw"), user.ask("close")), (0, 0, 0));
    mount.file.wait_for("release");
    assert_eq!(mount.file.asked(), ["open", "flush", "release"], "the descriptor is gone, the mapping lives");
    assert_eq!((user.ask("store 100"), mount.stored(100)), (0, 100));
    assert_eq!((user.ask("msync"), user.ask("unmap")), (0, 0));
    drop(user);
    // Whatever the kernel had to tell comes before what it tells of the next program.
    let mut next = mount.user();
    assert_eq!(next.ask("open"), 0);
    assert_eq!(mount.file.asked(), ["open"]);
}

#[test]
fn the_backing_files_time_tells_of_the_first_store_into_a_page_alone() {
    let Some(_alone) = alone() else { return };
    let Some(mount) = Mount::new(Answer::Mapped, BYTES) else { return };
    let mut user = mount.user();
    assert_eq!((user.ask("open-rw"), user.ask("map-rw")), (0, 0));
    let after_store = |user: &mut Other, store: &str| {
        // So that the clock of files has moved on when it is looked at.
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!((user.ask(store), user.ask("msync")), (0, 0));
        let metadata = mount.file.store.metadata().unwrap();
        (metadata.mtime(), metadata.mtime_nsec())
    };
    let (first, again) = (after_store(&mut user, "store 100"), after_store(&mut user, "store 101"));
    assert_eq!(first, again, "msync does not make the kernel look again");
    assert_ne!(after_store(&mut user, "store 5000"), again);
}

#[test]
fn a_splice_from_a_mapped_descriptor_shows_the_past() {
    let Some(_alone) = alone() else { return };
    let Some(mount) = Mount::new(Answer::Mapped, BYTES) else { return };
    let mut user = mount.user();
    assert_eq!((user.ask("open-rw"), user.ask("map-rw")), (0, 0));
    assert_eq!(user.ask("splice 60"), 1);
    assert_eq!(user.ask("store 60"), 0);
    assert_eq!(user.ask("read 60"), 60);
    assert_eq!(user.ask("splice 60"), 1, "a page that the kernel has kept, although the file is not cached");
}

#[test]
fn every_open_of_a_file_goes_the_way_of_the_first() {
    let Some(_alone) = alone() else { return };
    let Some(mount) = Mount::new(Answer::Passthrough, BYTES) else { return };
    let (mut first, mut second) = (mount.user(), mount.user());
    assert_eq!(first.ask("open"), 0);
    mount.answers(Answer::Cached);
    assert_eq!(second.ask("open"), -i64::from(libc::EIO));
    assert_eq!(first.ask("close"), 0);
    mount.file.wait_for("release");
    assert_eq!(second.ask("open"), 0);
    mount.answers(Answer::Passthrough);
    assert_eq!(first.ask("open"), -i64::from(libc::EIO));
}

#[test]
fn a_mapping_does_not_hold_the_way_of_a_file() {
    let Some(_alone) = alone() else { return };
    let Some(mount) = Mount::new(Answer::Mapped, BYTES) else { return };
    let (mut first, mut second) = (mount.user(), mount.user());
    assert_eq!((first.ask("open-rw"), first.ask("map-rw"), first.ask("close")), (0, 0, 0));
    mount.file.wait_for("release");
    mount.answers(Answer::Cached);
    assert_eq!((second.ask("open"), second.ask("read 50")), (0, 1));
    assert_eq!((first.ask("store 50"), mount.stored(50)), (0, 50));
    assert_eq!(second.ask("read 50"), 1, "the kernel has a page of its own beside the mapping");
}

#[test]
fn a_node_is_forgotten_on_demand_when_nobody_has_it_open_or_mapped() {
    let Some(_alone) = alone() else { return };
    let Some(mount) = Mount::new(Answer::Mapped, BYTES) else { return };
    if mount.notifier.prune(NODE).is_err() {
        return eprintln!("skipped: this kernel does not prune (Linux 6.18)");
    }
    let mut user = mount.user();
    assert_eq!((user.ask("open-rw"), user.ask("map-rw"), user.ask("close")), (0, 0, 0));
    mount.file.wait_for("release");
    mount.notifier.prune(NODE).unwrap();
    let mut other = mount.user();
    assert_eq!((other.ask("open"), other.ask("close")), (0, 0));
    assert!(!mount.file.asked().contains(&"forget"));
    assert_eq!(user.ask("unmap"), 0);
    while !mount.file.diary.lock().contains(&"forget") {
        mount.notifier.prune(NODE).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_file_ends_where_its_backing_file_ends_whatever_its_attributes_say() {
    let Some(_alone) = alone() else { return };
    let Some(mount) = Mount::new(Answer::Passthrough, BYTES + 100) else { return };
    let mut user = mount.user();
    assert_eq!((user.ask("open"), user.ask("read-count")), (0, BYTES as i64));
    mount.file.store.set_len(BYTES as u64 + 200).unwrap();
    assert_eq!(user.ask("read-count"), BYTES as i64 + 200);
}
