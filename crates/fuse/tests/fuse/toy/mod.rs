//! A file system in memory for the tests, and mounts that never outlive them.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ramlace_fuse::{
    Attributes, DirectoryBuffer, Ended, Entry, FileSystem, MountOptions, Notifier, OpenFlags, Operation,
    ROOT_NODE, Reply, Request, Session, SetAttributes, StatFs, Stopper, Workers, mounts, unmount,
};
use ramlace_sync::{Condvar, Mutex, MutexGuard};

/// Reads of this file wait, without a thread, until they are let go or interrupted.
pub const PARKED: &str = "parked";
/// Reads of this file hold a worker until the gate opens.
pub const SLOW: &str = "slow";
/// Reads of this file are forgotten by the handler.
pub const LOST: &str = "lost";
/// Reads of this file make the handler panic.
pub const PANIC: &str = "panic";

const LONG: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug)]
pub enum Thing {
    File(Vec<u8>),
    Link(Vec<u8>),
    Directory,
}

#[derive(Debug, Default)]
pub struct State {
    pub names: BTreeMap<Vec<u8>, u64>,
    pub things: HashMap<u64, Thing>,
    pub parked: HashMap<u64, Reply>,
    pub interrupted: Vec<u64>,
    pub forgotten: Vec<(u64, u64)>,
    /// What was asked of locks: (flock, waits).
    pub locks: Vec<(bool, bool)>,
    pub cached_writes: usize,
    pub direct_writes: usize,
    pub gate_open: bool,
    pub destroyed: bool,
    next: u64,
}

/// One flat directory.
#[derive(Debug, Default)]
pub struct Toy {
    pub state: Mutex<State>,
    pub changed: Condvar,
    pub active: AtomicUsize,
    pub active_most: AtomicUsize,
    /// The kernel believes nothing for any time.
    pub forgetful: bool,
}

impl Toy {
    pub fn with_files(names: &[&str]) -> Toy {
        let toy = Toy::default();
        names.iter().for_each(|name| _ = toy.add(name.as_bytes(), Thing::File(b"some bytes".to_vec())));
        toy
    }

    /// The state; a test that failed while it looked is no reason for the mount to hang.
    pub fn look(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub fn add(&self, name: &[u8], thing: Thing) -> u64 {
        let mut state = self.look();
        state.next = state.next.max(ROOT_NODE) + 1;
        let node = state.next;
        state.names.insert(name.to_vec(), node);
        state.things.insert(node, thing);
        node
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let state = self.look();
        match &state.things[&state.names[name.as_bytes()]] {
            Thing::File(bytes) | Thing::Link(bytes) => bytes.clone(),
            Thing::Directory => panic!("a directory has no bytes"),
        }
    }

    pub fn replace(&self, name: &str, bytes: &[u8]) -> u64 {
        let mut state = self.look();
        let node = state.names[name.as_bytes()];
        state.things.insert(node, Thing::File(bytes.to_vec()));
        node
    }

    /// Waits until the state is so.
    pub fn wait_for(&self, so: impl Fn(&State) -> bool) {
        let mut state = self.look();
        while !so(&state) {
            state = self.changed.wait(state);
        }
    }

    pub fn open_gate(&self) {
        self.look().gate_open = true;
        self.changed.notify_all();
    }

    /// Lets every parked request go, with these bytes.
    pub fn let_go(&self, bytes: &[u8]) {
        let parked = std::mem::take(&mut self.look().parked);
        parked.into_values().for_each(|reply| _ = reply.data(bytes));
    }

    fn valid(&self) -> Duration {
        if self.forgetful { Duration::ZERO } else { LONG }
    }

    fn attributes(node: u64, thing: &Thing) -> Attributes {
        let (mode, size) = match thing {
            Thing::File(bytes) => (0o100_644, bytes.len()),
            Thing::Link(target) => (0o120_777, target.len()),
            Thing::Directory => (0o040_755, 0),
        };
        Attributes { ino: node, size: size as u64, mode, links: 1, block_size: 4096, ..Default::default() }
    }

    fn entry(&self, node: u64, thing: &Thing) -> Entry {
        let (attributes, valid) = (Toy::attributes(node, thing), self.valid());
        Entry { node, generation: 0, attributes, entry_valid: valid, attributes_valid: valid }
    }

    fn lookup(&self, name: &[u8], reply: Reply) -> bool {
        let state = self.look();
        match state.names.get(name) {
            Some(node) => reply.entry(&self.entry(*node, &state.things[node])),
            None => reply.error(libc::ENOENT),
        }
    }

    fn make(&self, name: &[u8], thing: &Thing, open: bool, reply: Reply) -> bool {
        let node = self.add(name, thing.clone());
        let entry = self.entry(node, thing);
        if open { reply.created(&entry, node, OPEN) } else { reply.entry(&entry) }
    }

    fn get_attributes(&self, node: u64, reply: Reply) -> bool {
        let state = self.look();
        let thing = if node == ROOT_NODE { Some(&Thing::Directory) } else { state.things.get(&node) };
        match thing {
            Some(thing) => reply.attributes(&Toy::attributes(node, thing), self.valid()),
            None => reply.error(libc::ESTALE),
        }
    }

    fn set_attributes(&self, node: u64, set: SetAttributes, reply: Reply) -> bool {
        let mut state = self.look();
        if let (Some(size), Some(Thing::File(bytes))) = (set.size, state.things.get_mut(&node)) {
            bytes.resize(usize::try_from(size).unwrap(), 0);
        }
        drop(state);
        self.get_attributes(node, reply)
    }

    fn read(&self, node: u64, offset: u64, mut buffer: &mut [u8], reply: Reply) -> bool {
        let state = self.look();
        let named = |name: &str| state.names.get(name.as_bytes()) == Some(&node);
        let (parked, slow, lost, panic) = (named(PARKED), named(SLOW), named(LOST), named(PANIC));
        let content = match state.things.get(&node) {
            Some(Thing::File(bytes)) => bytes.clone(),
            _ => return reply.error(libc::ESTALE),
        };
        drop(state);
        if parked {
            return self.park(reply);
        }
        if slow {
            self.wait_at_gate();
        }
        assert!(!panic, "as the test wants");
        if lost {
            return false;
        }
        let start = content.len().min(usize::try_from(offset).unwrap());
        let rest = &content[start..];
        let length = rest.len().min(buffer.len());
        buffer = &mut buffer[..length];
        buffer.copy_from_slice(&rest[..length]);
        reply.data(buffer)
    }

    /// Direct reads are answered to the program itself, several at once; cached ones to the page cache, and a
    /// program that waits for a page is killed without an interrupt.
    fn open_flags(&self, node: u64) -> OpenFlags {
        let names = [PARKED, SLOW].map(|name| self.look().names.get(name.as_bytes()).copied());
        OpenFlags { direct_io: names.contains(&Some(node)), ..OPEN }
    }

    fn park(&self, reply: Reply) -> bool {
        let mut state = self.look();
        if reply.interrupted() {
            return reply.error(libc::EINTR);
        }
        state.parked.insert(reply.unique(), reply);
        self.changed.notify_all();
        true
    }

    fn wait_at_gate(&self) {
        let active = self.active.fetch_add(1, Ordering::SeqCst) + 1;
        self.active_most.fetch_max(active, Ordering::SeqCst);
        self.changed.notify_all();
        self.wait_for(|state| state.gate_open);
        self.active.fetch_sub(1, Ordering::SeqCst);
    }

    fn write(&self, node: u64, offset: u64, data: &[u8], cached: bool, reply: Reply) -> bool {
        let mut state = self.look();
        if cached {
            state.cached_writes += 1;
        } else {
            state.direct_writes += 1;
        }
        let Some(Thing::File(bytes)) = state.things.get_mut(&node) else { return reply.error(libc::ESTALE) };
        let start = usize::try_from(offset).unwrap();
        bytes.resize(bytes.len().max(start + data.len()), 0);
        bytes[start..start + data.len()].copy_from_slice(data);
        reply.written(u32::try_from(data.len()).unwrap())
    }

    fn list(&self, offset: u64, size: u32, plus: bool, reply: Reply) -> bool {
        let state = self.look();
        let mut entries = DirectoryBuffer::new(size as usize);
        let names = state.names.iter().zip(1u64..).skip(usize::try_from(offset).unwrap());
        for ((name, node), next) in names {
            let entry = self.entry(*node, &state.things[node]);
            let mode = entry.attributes.mode;
            let fits = if plus {
                entries.push_plus(name, *node, mode, next, Some(&entry))
            } else {
                entries.push(name, *node, mode, next)
            };
            if !fits {
                break;
            }
        }
        reply.directory(&entries)
    }

    fn remove(&self, name: &[u8], reply: Reply) -> bool {
        match self.look().names.remove(name) {
            Some(_) => reply.ok(),
            None => reply.error(libc::ENOENT),
        }
    }

    fn rename(&self, name: &[u8], new_name: &[u8], reply: Reply) -> bool {
        let mut state = self.look();
        let Some(node) = state.names.remove(name) else { return reply.error(libc::ENOENT) };
        state.names.insert(new_name.to_vec(), node);
        reply.ok()
    }

    fn read_link(&self, node: u64, reply: Reply) -> bool {
        match self.look().things.get(&node) {
            Some(Thing::Link(target)) => reply.data(target),
            _ => reply.error(libc::EINVAL),
        }
    }

    fn lock(&self, is_flock: bool, wait: bool, reply: Reply) -> bool {
        self.look().locks.push((is_flock, wait));
        reply.error(libc::ENOSYS)
    }
}

const OPEN: OpenFlags = OpenFlags {
    direct_io: false,
    keep_cache: true,
    nonseekable: false,
    parallel_direct_writes: false,
    cache_dir: false,
    no_flush: false,
    stream: false,
    passthrough: None,
};

impl FileSystem for Toy {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let Request { node, operation, scratch, .. } = request;
        match operation {
            Operation::Lookup { name } => self.lookup(name, reply),
            Operation::GetAttributes { .. } => self.get_attributes(node, reply),
            Operation::SetAttributes(set) => self.set_attributes(node, set, reply),
            Operation::ReadLink => self.read_link(node, reply),
            Operation::Symlink { name, target } => {
                self.make(name, &Thing::Link(target.to_vec()), false, reply)
            }
            Operation::MakeDirectory { name, .. } => self.make(name, &Thing::Directory, false, reply),
            Operation::Create { name, .. } => self.make(name, &Thing::File(Vec::new()), true, reply),
            Operation::Unlink { name } | Operation::RemoveDirectory { name } => self.remove(name, reply),
            Operation::Rename { name, new_name, .. } => self.rename(name, new_name, reply),
            Operation::Open { .. } => reply.opened(node, self.open_flags(node)),
            Operation::OpenDirectory { .. } => reply.opened(node, OpenFlags::default()),
            Operation::Read { offset, length, .. } => {
                self.read(node, offset, scratch.bytes(length as usize), reply)
            }
            Operation::Write { offset, data, cached, .. } => self.write(node, offset, data, cached, reply),
            Operation::ReadDirectory { offset, size, .. } => self.list(offset, size, false, reply),
            Operation::ReadDirectoryPlus { offset, size, .. } => self.list(offset, size, true, reply),
            Operation::SetLock { is_flock, wait, .. } => self.lock(is_flock, wait, reply),
            Operation::StatFs => reply.statfs(&StatFs { blocks: 77, block_size: 4096, ..Default::default() }),
            Operation::Release { .. } | Operation::ReleaseDirectory { .. } | Operation::Flush { .. } => {
                reply.ok()
            }
            Operation::Fsync { .. } => reply.ok(),
            _ => reply.error(libc::ENOSYS),
        };
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.look().forgotten.push((node, lookups));
        self.changed.notify_all();
    }

    fn interrupt(&self, unique: u64) {
        let mut state = self.look();
        state.interrupted.push(unique);
        if let Some(reply) = state.parked.remove(&unique) {
            reply.error(libc::EINTR);
        }
        self.changed.notify_all();
    }

    fn destroy(&self) {
        self.look().destroyed = true;
    }
}

/// A directory of the test's own, removed at its end with any mount on it.
pub struct Dir(PathBuf);

impl Dir {
    pub fn new() -> Dir {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        let path = std::env::temp_dir().join(format!("ramlace-fuse-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Dir(path.canonicalize().unwrap())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        while mounts().is_ok_and(|mounts| mounts.iter().any(|mount| mount.dir == self.0)) {
            if unmount(&self.0, true).is_err() {
                break;
            }
        }
        // A directory that cannot be removed is seen by a user who looks; the test has failed then already.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A mount of a toy, answered by threads of this process.
pub struct Mount {
    pub toy: Arc<Toy>,
    pub notifier: Notifier,
    pub stopper: Stopper,
    running: Option<JoinHandle<ramlace_base::Result<Ended>>>,
    dir: Dir,
}

impl Mount {
    pub fn new(toy: Toy) -> Mount {
        Mount::with(toy, &MountOptions::default(), Workers::default())
    }

    pub fn with(toy: Toy, options: &MountOptions, workers: Workers) -> Mount {
        let (dir, toy) = (Dir::new(), Arc::new(toy));
        let session = Session::mount(dir.path(), options).unwrap();
        let (notifier, stopper) = (session.notifier(), session.stopper());
        let file_system = Arc::clone(&toy);
        let running = Some(std::thread::spawn(move || session.run(file_system, workers)));
        Mount { toy, notifier, stopper, running, dir }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    /// Waits for the end of the loop.
    pub fn ended(&mut self) -> Ended {
        self.running.take().unwrap().join().unwrap().unwrap()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            self.toy.open_gate();
            self.toy.let_go(b"");
            self.stopper.stop();
            let _ = running.join();
        }
    }
}

/// The right to mount, of one test at a time; says why when this machine does not let us.
///
/// A program that a test starts has, until its exec, every descriptor of this process. Were another test's mount
/// among them, its end could not end the connection, and the exec would wait for ever to flush that test's files.
pub fn alone() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    let root = rustix::process::geteuid().is_root();
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: this machine has no /dev/fuse");
    } else if !root && !has_fusermount() {
        eprintln!("skipped: mounting as an ordinary user needs fusermount3 (Debian's package fuse3)");
    } else {
        return Some(ALONE.lock());
    }
    None
}

pub fn has_fusermount() -> bool {
    std::process::Command::new("fusermount3")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}
