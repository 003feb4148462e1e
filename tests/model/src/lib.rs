//! The reference file system: one tree in plain collections, one operation after another.
//!
//! This is ramlace's executable specification of what a single program sees: names, kinds,
//! links, sizes, contents, and which operation fails with which [`ErrorKind`]. Property tests, the
//! simulator and the system tests run the same operations here and there and compare. It knows
//! no servers, slots, sessions or clocks, and everybody is the super-user: who may do what is said
//! by [`User`] alone.
//!
//! A node stays as long as an entry leads to it or somebody has it open, as in POSIX.
//!
//! Invariant: the model uses none of the code that it specifies, but for names, kinds and errors.
#![forbid(unsafe_code)]

mod content;
mod path;
mod rights;

use std::collections::BTreeMap;

pub use content::Content;
use ramlace_base::{Error, ErrorKind, Name, Result, limits};
use ramlace_wire::FileKind;
use ramlace_wire::namespace::RenameMode;
pub use rights::{Owned, User};

/// Names a node of the model for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u64);

/// A whole file system.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    nodes: BTreeMap<Node, Thing>,
    next: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Thing {
    mode: u16,
    links: u32,
    opens: u32,
    /// The directory above a directory.
    parent: Node,
    /// It never had a name, and may get one.
    linkable: bool,
    xattrs: BTreeMap<String, Vec<u8>>,
    body: Body,
}

#[derive(Clone, Debug, PartialEq)]
enum Body {
    File(Content),
    Directory(BTreeMap<Name, Node>),
    Symlink(Vec<u8>),
    Special(FileKind),
}

/// What `stat` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u16,
    /// Entries that lead to it (directories: 2 and one more for each subdirectory).
    pub links: u32,
    /// Bytes of a file or of a link's target; entries of a directory.
    pub size: u64,
}

impl Default for Model {
    fn default() -> Model {
        Model::new()
    }
}

impl Model {
    /// The root directory.
    pub const ROOT: Node = Node(1);

    /// An empty file system: a root directory with mode 0o755.
    #[must_use]
    pub fn new() -> Model {
        let root = Thing {
            mode: 0o755,
            links: 2,
            opens: 0,
            parent: Model::ROOT,
            linkable: false,
            xattrs: BTreeMap::new(),
            body: Body::Directory(BTreeMap::new()),
        };
        Model { nodes: BTreeMap::from([(Model::ROOT, root)]), next: 2 }
    }

    // ---- entries ----

    /// The node that an entry leads to.
    pub fn lookup(&self, parent: Node, name: &Name) -> Result<Node> {
        self.entries(parent)?.get(name).copied().ok_or_else(|| fail(ErrorKind::NotFound, name))
    }

    /// Makes an empty directory.
    pub fn mkdir(&mut self, parent: Node, name: &Name, mode: u16) -> Result<Node> {
        let made = self.add(parent, name, mode, 2, Body::Directory(BTreeMap::new()))?;
        self.thing_mut(parent)?.links += 1;
        Ok(made)
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, parent: Node, name: &Name) -> Result<()> {
        let node = self.lookup(parent, name)?;
        match &self.thing(node)?.body {
            Body::Directory(entries) if entries.is_empty() => {}
            Body::Directory(_) => return Err(fail(ErrorKind::NotEmpty, name)),
            _ => return Err(fail(ErrorKind::NotDirectory, name)),
        }
        self.entries_mut(parent)?.remove(name);
        self.thing_mut(parent)?.links -= 1;
        self.thing_mut(node)?.links = 0;
        self.drop_if_unused(node);
        Ok(())
    }

    /// Creates a file and opens it; opens the one that is there unless `exclusive`. Tells
    /// whether it was made.
    pub fn create(&mut self, parent: Node, name: &Name, mode: u16, exclusive: bool) -> Result<(Node, bool)> {
        let (node, made) = match self.lookup(parent, name) {
            Ok(_) if exclusive => return Err(fail(ErrorKind::Exists, name)),
            Ok(node) => (node, false),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                (self.add(parent, name, mode, 1, Body::File(Content::default()))?, true)
            }
            Err(error) => return Err(error),
        };
        match self.thing(node)?.body {
            Body::File(_) => {}
            Body::Directory(_) => return Err(fail(ErrorKind::IsDirectory, name)),
            Body::Symlink(_) => return Err(fail(ErrorKind::Loop, name)),
            Body::Special(_) => return Err(fail(ErrorKind::Unsupported, name)),
        }
        self.thing_mut(node)?.opens += 1;
        Ok((node, made))
    }

    /// Makes a file without a name and opens it; it may be linked while it is open.
    pub fn create_unnamed(&mut self, parent: Node, mode: u16) -> Result<Node> {
        self.check_live(parent)?;
        let node = Node(self.next);
        self.next += 1;
        let (body, xattrs) = (Body::File(Content::default()), BTreeMap::new());
        self.nodes.insert(node, Thing { mode, links: 0, opens: 1, parent, linkable: true, xattrs, body });
        Ok(node)
    }

    /// Makes a symbolic link.
    pub fn symlink(&mut self, parent: Node, name: &Name, target: &[u8]) -> Result<Node> {
        match target.len() {
            0 => Err(fail(ErrorKind::NotFound, name)),
            length if length > limits::SYMLINK_BYTES_MAX => Err(fail(ErrorKind::NameTooLong, name)),
            _ if target.contains(&0) => Err(fail(ErrorKind::Invalid, name)),
            _ => self.add(parent, name, 0o777, 1, Body::Symlink(target.to_vec())),
        }
    }

    /// Makes a pipe, a socket or a device.
    pub fn make_node(&mut self, parent: Node, name: &Name, kind: FileKind, mode: u16) -> Result<Node> {
        match kind.is_special() {
            true => self.add(parent, name, mode, 1, Body::Special(kind)),
            false => Err(fail(ErrorKind::Invalid, name)),
        }
    }

    /// Removes an entry that is no directory.
    pub fn unlink(&mut self, parent: Node, name: &Name) -> Result<()> {
        let node = self.lookup(parent, name)?;
        if self.thing(node)?.kind() == FileKind::Directory {
            return Err(fail(ErrorKind::IsDirectory, name));
        }
        self.entries_mut(parent)?.remove(name);
        self.thing_mut(node)?.links -= 1;
        self.drop_if_unused(node);
        Ok(())
    }

    /// Makes one more entry for a node that is no directory.
    pub fn link(&mut self, node: Node, parent: Node, name: &Name) -> Result<()> {
        self.check_free(parent, name)?;
        let thing = self.thing(node)?;
        if thing.kind() == FileKind::Directory {
            return Err(fail(ErrorKind::NotPermitted, "a link to a directory"));
        }
        if thing.links == 0 && !thing.linkable {
            return Err(fail(ErrorKind::NotFound, "the node has no name any more"));
        }
        let thing = self.thing_mut(node)?;
        (thing.links, thing.linkable) = (thing.links + 1, false);
        self.put(parent, name, node)
    }

    /// Gives an entry another name, here or in another directory.
    pub fn rename(
        &mut self,
        parent: Node,
        name: &Name,
        new_parent: Node,
        new_name: &Name,
        mode: RenameMode,
    ) -> Result<()> {
        self.check_live(parent)?;
        let moved = self.lookup(parent, name)?;
        if (parent, name) == (new_parent, new_name) {
            return if mode == RenameMode::Keep { Err(fail(ErrorKind::Exists, name)) } else { Ok(()) };
        }
        let is_directory = |model: &Model, node: Node| Ok(model.thing(node)?.kind() == FileKind::Directory);
        if parent != new_parent && is_directory(self, moved)? {
            self.check_outside(moved, new_parent)?;
        }
        self.check_live(new_parent)?;
        let there = self.entries(new_parent)?.get(new_name).copied();
        match (mode, there) {
            (RenameMode::Keep, Some(_)) => return Err(fail(ErrorKind::Exists, new_name)),
            (RenameMode::Exchange, None) => return Err(fail(ErrorKind::NotFound, new_name)),
            (_, Some(there)) if there == moved => return Ok(()),
            (RenameMode::Exchange, Some(there)) => {
                if parent != new_parent && is_directory(self, there)? {
                    self.check_outside(there, parent)?;
                }
            }
            (_, Some(there)) => self.check_replaceable(moved, there)?,
            (_, None) => {}
        }
        self.take(parent, name)?;
        if let Some(there) = there {
            self.take(new_parent, new_name)?;
            if mode == RenameMode::Exchange {
                self.put(parent, name, there)?;
            } else {
                let thing = self.thing_mut(there)?;
                thing.links = if thing.kind() == FileKind::Directory { 0 } else { thing.links - 1 };
                self.drop_if_unused(there);
            }
        }
        self.put(new_parent, new_name, moved)
    }

    /// The entries of a directory, by name.
    pub fn read_directory(&self, directory: Node) -> Result<Vec<(Name, Node, FileKind)>> {
        let entries = self.entries(directory)?.iter();
        entries.map(|(name, node)| Ok((name.clone(), *node, self.thing(*node)?.kind()))).collect()
    }

    // ---- nodes ----

    /// What a node is.
    pub fn stat(&self, node: Node) -> Result<Stat> {
        let thing = self.thing(node)?;
        let size = match &thing.body {
            Body::File(content) => content.size(),
            Body::Directory(entries) => entries.len() as u64,
            Body::Symlink(target) => target.len() as u64,
            Body::Special(_) => 0,
        };
        Ok(Stat { kind: thing.kind(), mode: thing.mode, links: thing.links, size })
    }

    /// Sets the permission bits.
    pub fn set_mode(&mut self, node: Node, mode: u16) -> Result<()> {
        self.thing_mut(node)?.mode = mode;
        Ok(())
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, node: Node) -> Result<Vec<u8>> {
        match &self.thing(node)?.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(fail(ErrorKind::Invalid, format!("{node:?} is no symbolic link"))),
        }
    }

    /// Keeps a node alive until it is closed as often as it was opened.
    pub fn open(&mut self, node: Node) -> Result<()> {
        self.thing_mut(node)?.opens += 1;
        Ok(())
    }

    /// Gives an open node back.
    pub fn close(&mut self, node: Node) -> Result<()> {
        let thing = self.thing_mut(node)?;
        thing.opens =
            thing.opens.checked_sub(1).ok_or_else(|| fail(ErrorKind::BadHandle, "nobody has it open"))?;
        self.drop_if_unused(node);
        Ok(())
    }

    /// Every node that lives, and whether an entry leads to it.
    pub fn nodes(&self) -> impl Iterator<Item = (Node, bool)> + '_ {
        self.nodes.iter().map(|(node, thing)| (*node, thing.links > 0))
    }

    /// Sets an extended attribute, of files and directories alone.
    pub fn set_xattr(&mut self, node: Node, name: &str, value: &[u8]) -> Result<()> {
        match self.thing(node)?.kind() {
            FileKind::File | FileKind::Directory => {}
            _ => {
                return Err(fail(ErrorKind::NotPermitted, "only files and directories have user attributes"));
            }
        }
        self.thing_mut(node)?.xattrs.insert(name.to_owned(), value.to_vec());
        Ok(())
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&mut self, node: Node, name: &str) -> Result<()> {
        match self.thing(node)?.kind() {
            FileKind::File | FileKind::Directory => {}
            _ => {
                return Err(fail(ErrorKind::NotPermitted, "only files and directories have user attributes"));
            }
        }
        let value = self.thing_mut(node)?.xattrs.remove(name);
        value.map(drop).ok_or_else(|| fail(ErrorKind::NoData, name))
    }

    /// The extended attributes of a node.
    pub fn xattrs(&self, node: Node) -> Result<&BTreeMap<String, Vec<u8>>> {
        Ok(&self.thing(node)?.xattrs)
    }

    // ---- contents ----

    /// The bytes of a file from `offset`, at most `length`, ending where the file ends.
    pub fn read(&self, file: Node, offset: u64, length: usize) -> Result<Vec<u8>> {
        Ok(self.content(file)?.read(offset, length))
    }

    /// Writes bytes; what lies between the old end and `offset` becomes a hole of zeros.
    pub fn write(&mut self, file: Node, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_end(offset, bytes.len() as u64)?;
        self.content_mut(file)?.write(offset, bytes);
        Ok(())
    }

    /// Writes bytes at the end; returns where that was.
    pub fn append(&mut self, file: Node, bytes: &[u8]) -> Result<u64> {
        let offset = self.content(file)?.size();
        self.write(file, offset, bytes)?;
        Ok(offset)
    }

    /// The file has at least `size` bytes: new ones are zeros.
    pub fn extend(&mut self, file: Node, size: u64) -> Result<()> {
        self.check_end(size, 0)?;
        let content = self.content_mut(file)?;
        content.set_size(size.max(content.size()));
        Ok(())
    }

    /// The file has exactly `size` bytes: new ones are zeros.
    pub fn truncate(&mut self, file: Node, size: u64) -> Result<()> {
        self.content(file)?;
        self.check_end(size, 0)?;
        self.content_mut(file)?.set_size(size);
        Ok(())
    }

    // ---- inside ----

    fn add(&mut self, parent: Node, name: &Name, mode: u16, links: u32, body: Body) -> Result<Node> {
        self.check_free(parent, name)?;
        let node = Node(self.next);
        self.next += 1;
        self.entries_mut(parent)?.insert(name.clone(), node);
        self.nodes.insert(
            node,
            Thing { mode, links, opens: 0, parent, linkable: false, xattrs: BTreeMap::new(), body },
        );
        Ok(node)
    }

    fn check_live(&self, directory: Node) -> Result<()> {
        self.entries(directory)?;
        match self.thing(directory)?.links {
            0 => Err(fail(ErrorKind::NotFound, "the directory has been removed")),
            _ => Ok(()),
        }
    }

    fn check_free(&self, parent: Node, name: &Name) -> Result<()> {
        self.check_live(parent)?;
        match self.entries(parent)?.contains_key(name) {
            true => Err(fail(ErrorKind::Exists, name)),
            false => Ok(()),
        }
    }

    /// A directory is not moved to a place inside itself.
    fn check_outside(&self, moved: Node, into: Node) -> Result<()> {
        let mut at = into;
        while at != Model::ROOT {
            if at == moved {
                return Err(fail(ErrorKind::Invalid, "a directory inside itself"));
            }
            self.entries(at)?;
            at = self.thing(at)?.parent;
        }
        Ok(())
    }

    /// Whether a rename may put what it moves in the place of what is there.
    fn check_replaceable(&self, moved: Node, there: Node) -> Result<()> {
        match (&self.thing(moved)?.body, &self.thing(there)?.body) {
            (Body::Directory(_), Body::Directory(entries)) if entries.is_empty() => Ok(()),
            (Body::Directory(_), Body::Directory(_)) => Err(fail(ErrorKind::NotEmpty, "what is replaced")),
            (Body::Directory(_), _) => Err(fail(ErrorKind::NotDirectory, "what is replaced")),
            (_, Body::Directory(_)) => Err(fail(ErrorKind::IsDirectory, "what is replaced")),
            _ => Ok(()),
        }
    }

    /// Takes an entry out; what it led to lives on.
    fn take(&mut self, parent: Node, name: &Name) -> Result<Node> {
        let node = self.entries_mut(parent)?.remove(name).ok_or_else(|| fail(ErrorKind::NotFound, name))?;
        if self.thing(node)?.kind() == FileKind::Directory {
            self.thing_mut(parent)?.links -= 1;
        }
        Ok(node)
    }

    /// Puts an entry in.
    fn put(&mut self, parent: Node, name: &Name, node: Node) -> Result<()> {
        self.entries_mut(parent)?.insert(name.clone(), node);
        if self.thing(node)?.kind() == FileKind::Directory {
            self.thing_mut(parent)?.links += 1;
            self.thing_mut(node)?.parent = parent;
        }
        Ok(())
    }

    fn drop_if_unused(&mut self, node: Node) {
        if self.nodes.get(&node).is_some_and(|thing| thing.links == 0 && thing.opens == 0) {
            self.nodes.remove(&node);
        }
    }

    fn check_end(&self, offset: u64, length: u64) -> Result<()> {
        match offset.checked_add(length) {
            Some(end) if end <= limits::FILE_BYTES_MAX => Ok(()),
            _ => Err(fail(ErrorKind::TooBig, "beyond the largest file")),
        }
    }

    fn thing(&self, node: Node) -> Result<&Thing> {
        self.nodes.get(&node).ok_or_else(|| fail(ErrorKind::Stale, format!("{node:?} is gone")))
    }

    fn thing_mut(&mut self, node: Node) -> Result<&mut Thing> {
        self.nodes.get_mut(&node).ok_or_else(|| fail(ErrorKind::Stale, format!("{node:?} is gone")))
    }

    fn entries(&self, node: Node) -> Result<&BTreeMap<Name, Node>> {
        match &self.thing(node)?.body {
            Body::Directory(entries) => Ok(entries),
            _ => Err(fail(ErrorKind::NotDirectory, format!("{node:?}"))),
        }
    }

    fn entries_mut(&mut self, node: Node) -> Result<&mut BTreeMap<Name, Node>> {
        match &mut self.thing_mut(node)?.body {
            Body::Directory(entries) => Ok(entries),
            _ => Err(fail(ErrorKind::NotDirectory, format!("{node:?}"))),
        }
    }

    fn content(&self, node: Node) -> Result<&Content> {
        match &self.thing(node)?.body {
            Body::File(content) => Ok(content),
            Body::Directory(_) => Err(fail(ErrorKind::IsDirectory, format!("{node:?}"))),
            Body::Symlink(_) | Body::Special(_) => {
                Err(fail(ErrorKind::Invalid, format!("{node:?} is no file")))
            }
        }
    }

    fn content_mut(&mut self, node: Node) -> Result<&mut Content> {
        self.content(node)?;
        match &mut self.thing_mut(node)?.body {
            Body::File(content) => Ok(content),
            _ => unreachable!("just looked at"),
        }
    }
}

impl Thing {
    fn kind(&self) -> FileKind {
        match self.body {
            Body::File(_) => FileKind::File,
            Body::Directory(_) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Special(kind) => kind,
        }
    }
}

fn fail(kind: ErrorKind, about: impl std::fmt::Display) -> Error {
    Error::new(kind, format!("the model says {kind:?}: {about}"))
}
