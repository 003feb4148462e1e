//! The machine's limit for a tree of files on a mount: a file system in this process's memory without a pool behind it, by the
//! same engine. The kernel may keep all that it is told for ever, and is never told to drop anything.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ramlace_base::Result;
use ramlace_fuse::{
    Attributes, DirectoryBuffer, Entry, FileSystem, MountOptions, OpenFlags, Operation, ROOT_NODE, Reply,
    Request, Session, SetAttributes, SetTime, StatFs, Time, Workers,
};
use ramlace_sync::Mutex;

use crate::args::Args;
use crate::null_fuse::answer_until_the_end;

const VALID: Duration = Duration::from_secs(3600);
const BLOCK_BYTES: u64 = 512;
/// Errors as numbers of the system.
type Answer<T> = std::result::Result<T, i32>;

/// A file, a directory or a symbolic link.
#[derive(Default)]
struct Node {
    attributes: Attributes,
    bytes: Vec<u8>,
    names: BTreeMap<Vec<u8>, u64>,
}

struct Tree {
    nodes: HashMap<u64, Node>,
    last: u64,
}

struct NullTree(Mutex<Tree>);

/// Mounts on `--mount`, says so, and answers until standard input ends.
pub fn run(args: &Args) -> Result<()> {
    let options = MountOptions { source: "ramlace-bench-null-tree".into(), ..MountOptions::default() };
    let session = Session::mount(&args.mount, &options)?;
    let tree = NullTree(Mutex::new(Tree::new()));
    // One thread that goes on while it finds requests: the best that a file system can be here.
    let workers = Workers { idle_threads_min: 1, ..Workers::default() };
    answer_until_the_end(session, tree, workers)
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs() as i64, since.subsec_nanos())
}

fn entry(attributes: &Attributes) -> Entry {
    let (node, attributes) = (attributes.ino, *attributes);
    Entry { node, generation: 0, attributes, entry_valid: VALID, attributes_valid: VALID }
}

impl Node {
    fn is_directory(&self) -> bool {
        self.attributes.mode & libc::S_IFMT == libc::S_IFDIR
    }

    fn resize(&mut self, size: u64) {
        self.bytes.resize(size as usize, 0);
        self.attributes.size = size;
        self.attributes.blocks = size.div_ceil(BLOCK_BYTES);
        self.attributes.modified = now();
    }

    fn change(&mut self, changes: &SetAttributes) {
        if let Some(size) = changes.size {
            self.resize(size);
        }
        let time = |set: SetTime| match set {
            SetTime::Now => now(),
            SetTime::At(time) => time,
        };
        let Attributes { mode, uid, gid, accessed, modified, .. } = self.attributes;
        self.attributes.mode = changes.mode.map_or(mode, |new| mode & libc::S_IFMT | new & 0o7777);
        self.attributes.uid = changes.uid.unwrap_or(uid);
        self.attributes.gid = changes.gid.unwrap_or(gid);
        self.attributes.accessed = changes.accessed.map_or(accessed, time);
        self.attributes.modified = changes.modified.map_or(modified, time);
        self.attributes.changed = now();
    }
}

impl Tree {
    fn new() -> Tree {
        let mut tree = Tree { nodes: HashMap::new(), last: 0 };
        let root = tree.add(libc::S_IFDIR | 0o777, (rustix::process::getuid().as_raw(), 0));
        debug_assert_eq!(root, ROOT_NODE);
        tree
    }

    fn add(&mut self, mode: u32, (uid, gid): (u32, u32)) -> u64 {
        self.last += 1;
        let (ino, time) = (self.last, now());
        let attributes = Attributes {
            ino,
            mode,
            // Of a directory it says: nobody has counted.
            links: 1,
            uid,
            gid,
            accessed: time,
            modified: time,
            changed: time,
            block_size: 4096,
            ..Attributes::default()
        };
        self.nodes.insert(ino, Node { attributes, ..Node::default() });
        ino
    }

    fn node(&mut self, node: u64) -> Answer<&mut Node> {
        self.nodes.get_mut(&node).ok_or(libc::ESTALE)
    }

    fn find(&mut self, parent: u64, name: &[u8]) -> Answer<u64> {
        self.node(parent)?.names.get(name).copied().ok_or(libc::ENOENT)
    }

    fn entry(&mut self, node: u64) -> Answer<Entry> {
        Ok(entry(&self.node(node)?.attributes))
    }

    fn make(&mut self, parent: u64, name: &[u8], mode: u32, owner: (u32, u32)) -> Answer<Entry> {
        if self.find(parent, name).is_ok() {
            return Err(libc::EEXIST);
        }
        let made = self.add(mode, owner);
        self.enter(parent, name, made)?;
        self.entry(made)
    }

    fn enter(&mut self, parent: u64, name: &[u8], node: u64) -> Answer<()> {
        let parent = self.node(parent)?;
        parent.names.insert(name.to_vec(), node);
        parent.attributes.modified = now();
        Ok(())
    }

    fn remove(&mut self, parent: u64, name: &[u8], directory: bool) -> Answer<()> {
        let found = self.find(parent, name)?;
        let node = self.node(found)?;
        match (node.is_directory(), directory) {
            (true, false) => return Err(libc::EISDIR),
            (false, true) => return Err(libc::ENOTDIR),
            (true, true) if !node.names.is_empty() => return Err(libc::ENOTEMPTY),
            _ => {}
        }
        node.attributes.links = node.attributes.links.saturating_sub(1);
        self.node(parent)?.names.remove(name);
        // What is still open is read from memory that is gone: no work of the bench does that.
        if directory || self.node(found)?.attributes.links == 0 {
            self.nodes.remove(&found);
        }
        Ok(())
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) -> Answer<()> {
        let moved = self.find(from.0, from.1)?;
        if let Ok(replaced) = self.find(to.0, to.1) {
            let directory = self.node(replaced)?.is_directory();
            self.remove(to.0, to.1, directory)?;
        }
        self.node(from.0)?.names.remove(from.1);
        self.enter(to.0, to.1, moved)
    }

    /// Entries in the order of their inodes, whose number is their place: what is removed meanwhile moves nothing.
    fn list(&mut self, node: u64, after: u64, size: u32, plus: bool) -> Answer<DirectoryBuffer> {
        let mut buffer = DirectoryBuffer::new(size as usize);
        let names = &self.nodes.get(&node).ok_or(libc::ESTALE)?.names;
        let mut names: Vec<_> = names.iter().filter(|(_, ino)| **ino > after).collect();
        names.sort_by_key(|(_, ino)| **ino);
        for (name, ino) in names {
            let attributes = &self.nodes.get(ino).ok_or(libc::ESTALE)?.attributes;
            let fitted = match plus {
                true => buffer.push_plus(name, *ino, attributes.mode, *ino, Some(&entry(attributes))),
                false => buffer.push(name, *ino, attributes.mode, *ino),
            };
            if !fitted {
                break;
            }
        }
        Ok(buffer)
    }

    fn write(&mut self, node: u64, offset: u64, data: &[u8]) -> Answer<u32> {
        let node = self.node(node)?;
        let end = offset + data.len() as u64;
        let size = node.attributes.size.max(end);
        node.resize(size);
        node.bytes[offset as usize..end as usize].copy_from_slice(data);
        Ok(data.len() as u32)
    }
}

fn keep() -> OpenFlags {
    OpenFlags { keep_cache: true, ..OpenFlags::default() }
}

/// What makes and removes names.
fn names(tree: &mut Tree, request: &Request<'_>, reply: Reply) {
    let (node, owner) = (request.node, (request.caller.uid, request.caller.gid));
    match request.operation {
        Operation::Lookup { name } => match tree.find(node, name) {
            Ok(found) => answer(reply, tree.entry(found), |reply, entry| reply.entry(&entry)),
            Err(_) => _ = reply.negative_entry(VALID),
        },
        Operation::MakeDirectory { name, mode, .. } => {
            let made = tree.make(node, name, libc::S_IFDIR | mode, owner);
            answer(reply, made, |reply, entry| reply.entry(&entry));
        }
        Operation::Create { name, mode, .. } => {
            let made = tree.make(node, name, libc::S_IFREG | mode, owner);
            answer(reply, made, |reply, entry| reply.created(&entry, 0, keep()));
        }
        Operation::Symlink { name, target } => {
            let made = tree.make(node, name, libc::S_IFLNK | 0o777, owner).and_then(|made| {
                tree.write(made.node, 0, target)?;
                tree.entry(made.node)
            });
            answer(reply, made, |reply, entry| reply.entry(&entry));
        }
        Operation::Link { node: linked, name } => {
            let made = tree.enter(node, name, linked).and_then(|()| {
                tree.node(linked)?.attributes.links += 1;
                tree.entry(linked)
            });
            answer(reply, made, |reply, entry| reply.entry(&entry));
        }
        Operation::Unlink { name } => done(reply, tree.remove(node, name, false)),
        Operation::RemoveDirectory { name } => done(reply, tree.remove(node, name, true)),
        Operation::Rename { name, new_parent, new_name, .. } => {
            done(reply, tree.rename((node, name), (new_parent, new_name)));
        }
        _ => contents(tree, request, reply),
    }
}

/// What reads and changes files.
fn contents(tree: &mut Tree, request: &Request<'_>, reply: Reply) {
    let node = request.node;
    match request.operation {
        Operation::GetAttributes { .. } => {
            let found = tree.node(node).map(|node| node.attributes);
            answer(reply, found, |reply, found| reply.attributes(&found, VALID));
        }
        Operation::SetAttributes(changes) => {
            let changed = tree.node(node).map(|node| {
                node.change(&changes);
                node.attributes
            });
            answer(reply, changed, |reply, changed| reply.attributes(&changed, VALID));
        }
        Operation::Open { flags, .. } => {
            if flags & libc::O_TRUNC as u32 != 0 {
                tree.node(node).into_iter().for_each(|node| node.resize(0));
            }
            reply.opened(0, keep());
        }
        Operation::OpenDirectory { .. } => _ = reply.opened(0, OpenFlags::default()),
        Operation::ReadDirectory { offset, size, .. } => {
            answer(reply, tree.list(node, offset, size, false), |reply, entries| reply.directory(&entries));
        }
        Operation::ReadDirectoryPlus { offset, size, .. } => {
            answer(reply, tree.list(node, offset, size, true), |reply, entries| reply.directory(&entries));
        }
        Operation::Read { offset, length, .. } => {
            answer(reply, tree.node(node), |reply, node| {
                let start = node.bytes.len().min(offset as usize);
                let end = node.bytes.len().min(start + length as usize);
                reply.data(&node.bytes[start..end])
            });
        }
        Operation::ReadLink => answer(reply, tree.node(node), |reply, node| reply.data(&node.bytes)),
        Operation::Write { offset, data, .. } => {
            answer(reply, tree.write(node, offset, data), |reply, bytes| reply.written(bytes));
        }
        Operation::StatFs => {
            reply.statfs(&StatFs { block_size: 4096, name_bytes_max: 255, ..StatFs::default() });
        }
        Operation::Fsync { .. } | Operation::Release { .. } | Operation::ReleaseDirectory { .. } => {
            reply.ok();
        }
        // The kernel asks no more for a flush, for extended attributes, and for whatever else it can do without.
        _ => _ = reply.error(libc::ENOSYS),
    }
}

impl FileSystem for NullTree {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let mut tree = self.0.lock();
        names(&mut tree, &request, reply);
    }
}

fn answer<T>(reply: Reply, result: Answer<T>, tell: impl FnOnce(Reply, T) -> bool) {
    match result {
        Ok(value) => tell(reply, value),
        Err(errno) => reply.error(errno),
    };
}

fn done(reply: Reply, result: Answer<()>) {
    answer(reply, result, |reply, ()| reply.ok());
}
