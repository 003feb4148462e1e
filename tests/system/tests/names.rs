//! Renames and links by several clients in one tree while servers are killed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ramlace_base::{ErrorKind, InodeId, Name, Result, ServerId};
use ramlace_client::{ConnectOptions, OpenOptions, Pool, RenameMode};
use ramlace_model::{Model, Node};
use ramlace_system_tests::TestPool;
use ramlace_wire::FileKind;

const SERVERS: u16 = 3;
const CLIENTS: u64 = 4;
/// Operations of one client.
const STEPS: usize = 1000;
/// Directories that all clients share; they lie in different slots.
const SHARED: usize = 5;
/// Kills in each storm. Many more in a row, and supervisors would take their time to start servers again.
const KILLS: u16 = 6;

/// A small generator (SplitMix64), so that every client's run is told by its seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

/// A client with a deadline that no restart of a server outlasts.
fn patient(pool: &TestPool, local: bool) -> Pool {
    Pool::connect(&ConnectOptions { deadline_millis: 60_000, ..pool.options(local) }).unwrap()
}

/// Kills one server after the other while the work goes on; their supervisors start them again.
fn while_servers_are_killed(pool: &TestPool, work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let client = patient(pool, false);
            for kill in 0..KILLS {
                std::thread::sleep(Duration::from_millis(200));
                let status = eventually(|| client.server_status(ServerId(kill % SERVERS)).ok());
                let pid = rustix::process::Pid::from_raw(status.pid as i32).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            }
        });
        work();
        killer.join().unwrap();
    });
}

/// Asks until there is an answer.
fn eventually<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "there is no answer in a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Where the clients meet: `/s0` to `/s4`.
fn shared(index: usize) -> String {
    format!("/s{index}")
}

/// One client of the first storm: its own names in shared directories, and a model of them.
struct Owner {
    client: Pool,
    model: Model,
    draw: Draw,
    own: u64,
    inodes: BTreeMap<Node, InodeId>,
    /// Operations that were no errors.
    done: usize,
}

impl Owner {
    fn new(client: Pool, own: u64) -> Owner {
        let mut model = Model::new();
        for index in 0..SHARED {
            model.mkdir(Model::ROOT, &Name::new(&shared(index)[1..]).unwrap(), 0o755).unwrap();
        }
        Owner { client, model, draw: Draw(own), own, inodes: BTreeMap::new(), done: 0 }
    }

    /// A place for a name of this client: in a directory that is there, shared or its own.
    fn place(&mut self) -> String {
        let own: Vec<String> = self.names(Some(FileKind::Directory));
        let at = self.draw.below(SHARED + own.len());
        let directory = own.get(at.wrapping_sub(SHARED)).cloned().unwrap_or_else(|| shared(at));
        format!("{directory}/c{}-{}", self.own, self.draw.below(4))
    }

    /// Mostly a name that is there.
    fn old_name(&mut self) -> String {
        let names = self.names(None);
        if names.is_empty() || self.draw.below(8) == 0 {
            return self.place();
        }
        names[self.draw.below(names.len())].clone()
    }

    fn names(&self, kind: Option<FileKind>) -> Vec<String> {
        let tree = self.tree().into_iter().filter(|(_, seen)| kind.is_none_or(|kind| kind == seen.kind));
        tree.map(|(path, _)| String::from_utf8(path).unwrap()).collect()
    }

    fn step(&mut self) {
        let kind = self.draw.below(14);
        let old = if kind < 4 { self.place() } else { self.old_name() };
        let new = self.place();
        let mode = [RenameMode::Replace, RenameMode::Replace, RenameMode::Keep, RenameMode::Exchange];
        let mode = mode[self.draw.below(4)];
        let real = match kind {
            0 | 1 => self.client.open(&old, &exclusive()).map(|file| Some(file.inode())),
            2 | 3 => self.client.mkdir(&old, 0o755).map(|made| Some(made.inode)),
            4 => self.client.rmdir(&old).map(|()| None),
            5 => self.client.unlink(&old).map(|()| None),
            6 | 7 => self.client.link(&old, &new).map(|made| Some(made.inode)),
            _ => self.client.rename(&old, &new, mode).map(|()| None),
        };
        let expected = self.on_model(kind, &old, &new, mode);
        self.done += usize::from(real.is_ok());
        let told = |error: &ramlace_base::Error| error.kind();
        assert_eq!(
            real.as_ref().map(|_| ()).map_err(told),
            expected.as_ref().map(|_| ()).map_err(told),
            "client {}: {kind} {old} {new} {mode:?}: {real:?}",
            self.own
        );
        if let (Ok(Some(inode)), Ok(Some(node))) = (real, expected) {
            assert_eq!(*self.inodes.entry(node).or_insert(inode), inode);
        }
    }

    fn on_model(&mut self, kind: usize, old: &str, new: &str, mode: RenameMode) -> Result<Option<Node>> {
        let model = &mut self.model;
        let (parent, name) = model.resolve_parent(old)?.unwrap();
        Ok(match kind {
            0 | 1 => {
                let (node, _) = model.create(parent, &name, 0o644, true)?;
                model.close(node)?;
                Some(node)
            }
            2 | 3 => Some(model.mkdir(parent, &name, 0o755)?),
            4 => model.rmdir(parent, &name).map(|()| None)?,
            5 => model.unlink(parent, &name).map(|()| None)?,
            6 | 7 => {
                let node = model.lookup(parent, &name)?;
                let (parent, name) = model.resolve_parent(new)?.unwrap();
                model.link(node, parent, &name)?;
                Some(node)
            }
            _ => {
                model.lookup(parent, &name)?;
                let (new_parent, new_name) = model.resolve_parent(new)?.unwrap();
                model.rename(parent, &name, new_parent, &new_name, mode).map(|()| None)?
            }
        })
    }

    /// What the model says of the names that are this client's.
    fn tree(&self) -> BTreeMap<Vec<u8>, Seen> {
        let mut tree = BTreeMap::new();
        let mut rest = vec![(Vec::new(), Model::ROOT)];
        while let Some((path, directory)) = rest.pop() {
            for (name, node, kind) in self.model.read_directory(directory).unwrap() {
                let path = [&path[..], b"/", name.as_bytes()].concat();
                if kind == FileKind::Directory {
                    rest.push((path.clone(), node));
                }
                if let Some(inode) = self.inodes.get(&node) {
                    let stat = self.model.stat(node).unwrap();
                    tree.insert(path, Seen { inode: *inode, kind, links: stat.links });
                }
            }
        }
        tree
    }
}

fn exclusive() -> OpenOptions {
    OpenOptions { exclusive: true, ..OpenOptions::creating() }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    inode: InodeId,
    kind: FileKind,
    links: u32,
}

/// Everything below the shared directories.
fn whole_tree(client: &Pool) -> BTreeMap<Vec<u8>, Seen> {
    let mut tree = BTreeMap::new();
    let mut rest: Vec<Vec<u8>> = (0..SHARED).map(|index| shared(index).into_bytes()).collect();
    while let Some(directory) = rest.pop() {
        for entry in client.read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            let path = [&directory[..], b"/", entry.name.as_bytes()].concat();
            let attributes = client.lstat(&path).unwrap().attributes;
            assert_eq!((attributes.inode, attributes.kind), (entry.inode, entry.kind));
            if entry.kind == FileKind::Directory {
                rest.push(path.clone());
            }
            tree.insert(path, Seen { inode: entry.inode, kind: entry.kind, links: attributes.links });
        }
    }
    tree
}

// SEMANTICS 10.1, 10.2
/// Names of different clients lie side by side and in each other's way, but are nobody else's to
/// change: each operation comes to what the client's own model says, and so does the whole tree.
#[test]
fn renames_and_links_come_to_what_each_client_says_while_servers_are_killed() {
    let pool = TestPool::start(SERVERS, "192MiB");
    let first = patient(&pool, true);
    for index in 0..SHARED {
        first.mkdir(shared(index), 0o755).unwrap();
    }
    let mut owners: Vec<Owner> =
        (0..CLIENTS).map(|own| Owner::new(patient(&pool, own % 2 == 0), own)).collect();
    while_servers_are_killed(&pool, || {
        std::thread::scope(|scope| {
            for owner in &mut owners {
                scope.spawn(|| (0..STEPS).for_each(|_| owner.step()));
            }
        });
    });
    let mut expected = BTreeMap::new();
    owners.iter().for_each(|owner| expected.extend(owner.tree()));
    assert_eq!(whole_tree(&first), expected);
    let done: usize = owners.iter().map(|owner| owner.done).sum();
    assert!(done > STEPS && expected.len() > 10, "{done} done, {} left", expected.len());
    // What is left can be removed, and then nothing is left: not in the servers either.
    (0..SHARED).for_each(|index| first.remove_tree(shared(index)).unwrap());
    drop(owners);
    eventually(|| (first.statfs().ok()?.inodes == 1).then_some(()));
}

/// Everybody renames everything: nothing is lost, nothing is there twice, and no directory is
/// inside itself.
#[test]
fn what_several_clients_rename_at_once_is_all_there_in_the_end() {
    let pool = TestPool::start(SERVERS, "192MiB");
    let first = patient(&pool, true);
    let mut inodes = Vec::new();
    for index in 0..SHARED {
        first.mkdir(shared(index), 0o755).unwrap();
        for number in 0..3 {
            inodes.push(first.mkdir(format!("{}/d{number}", shared(index)), 0o755).unwrap().inode);
            let file = first.open(format!("{}/f{number}", shared(index)), &exclusive()).unwrap();
            inodes.push(file.inode());
        }
    }
    while_servers_are_killed(&pool, || {
        std::thread::scope(|scope| {
            for own in 0..CLIENTS {
                let client = patient(&pool, own % 2 == 0);
                scope.spawn(move || rename_anything(&client, own));
            }
        });
    });
    let tree = whole_tree(&first);
    let mut found: Vec<InodeId> = tree.values().map(|seen| seen.inode).collect();
    found.sort();
    inodes.sort();
    assert_eq!(found, inodes);
    for (path, seen) in &tree {
        let inside = tree.iter().filter(|(other, seen)| {
            seen.kind == FileKind::Directory
                && other
                    .strip_prefix(&path[..])
                    .is_some_and(|rest| rest.first() == Some(&b'/') && !rest[1..].contains(&b'/'))
        });
        let expected = if seen.kind == FileKind::Directory { 2 + inside.count() as u32 } else { 1 };
        assert_eq!(seen.links, expected, "{}", path.escape_ascii());
    }
}

fn rename_anything(client: &Pool, own: u64) {
    let mut draw = Draw(own);
    let mut done = 0;
    for _ in 0..STEPS {
        let mut place = || {
            let mut path = shared(draw.below(SHARED));
            for _ in 0..draw.below(2) {
                path += &format!("/d{}", draw.below(3));
            }
            path + &format!("/{}{}", ["d", "f"][draw.below(2)], draw.below(3))
        };
        let (old, new) = (place(), place());
        // Nothing is replaced: what was there is there in the end.
        let mode = [RenameMode::Keep, RenameMode::Exchange][draw.below(2)];
        match client.rename(&old, &new, mode) {
            Ok(()) => done += 1,
            Err(error) => assert!(
                matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::Exists | ErrorKind::Invalid | ErrorKind::NotDirectory
                ),
                "{old} {new} {mode:?}: {error}"
            ),
        }
    }
    assert!(done > STEPS / 50, "client {own} has done {done}");
}
