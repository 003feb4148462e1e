//! A walk through a tree of the pool: everything below a path, links not followed.
//!
//! It goes by inode, so that a tree may be deeper than a path is long, costs no lookups, and cannot be led
//! elsewhere by a link that another user puts in its way. What others remove meanwhile is passed over.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use ramlace_base::{Error, ErrorKind, InodeId, Result, limits};
use ramlace_client::Pool;
use ramlace_wire::namespace::DirectoryEntry;
use ramlace_wire::{Attributes, FileKind};

use crate::failure::Done;
use crate::place::{Pools, base_name, in_pool};
use crate::show::escaped;

/// One thing in a tree.
pub struct Node<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// As the user would write it: the name that was given, and the names from there on.
    pub path: &'a [u8],
    /// The last name of `path`; `/` for the root.
    pub name: &'a [u8],
    /// 0 for what the user named.
    pub depth: usize,
    /// Its inode.
    pub inode: InodeId,
    /// What it is.
    pub kind: FileKind,
    /// Always there in a walk in full.
    pub attributes: Option<&'a Attributes>,
}

impl Node<'_> {
    /// The attributes, in a walk that asks for them.
    pub fn attributes(&self) -> &Attributes {
        self.attributes.expect("this walk asks for attributes")
    }
}

/// What is done on the way.
pub trait Visitor {
    /// Something, before what is in it. Says whether a directory is entered.
    fn enter(&mut self, node: &Node<'_>) -> Done<bool>;

    /// A directory that was entered, after what is in it.
    fn leave(&mut self, _: &Node<'_>) -> Done {
        Ok(())
    }

    /// Something could not be examined; the walk continues.
    fn failed(&mut self, error: Error);
}

/// Where a walk begins.
pub struct Root {
    /// The pool.
    pub pool: Pool,
    /// What the user wrote.
    shown: Vec<u8>,
    name: Vec<u8>,
    attributes: Attributes,
}

impl Root {
    /// Examines what the user named; a link at the end of it is followed or not.
    pub fn find(path: &OsStr, follow: bool, pools: &mut Pools) -> Result<Root> {
        let locator = in_pool(path)?;
        let pool = pools.of(&locator)?;
        let info = if follow { pool.stat(&locator.path)? } else { pool.lstat(&locator.path)? };
        let name = match base_name(&locator.path) {
            b"" => b"/",
            name => name,
        };
        Ok(Root { pool, shown: path.as_bytes().to_vec(), name: name.to_vec(), attributes: info.attributes })
    }

    /// Walks: each directory before what is in it, in the order in which the pool lists it. `in_full`: every
    /// node has its attributes, else those that came along.
    pub fn walk(&self, in_full: bool, visitor: &mut impl Visitor) -> Done {
        Walk { root: self, in_full }.run(visitor)
    }

    fn node(&self) -> Node<'_> {
        Node {
            pool: &self.pool,
            path: &self.shown,
            name: &self.name,
            depth: 0,
            inode: self.attributes.inode,
            kind: self.attributes.kind,
            attributes: Some(&self.attributes),
        }
    }
}

/// A directory on the way.
struct Level {
    inode: InodeId,
    attributes: Option<Attributes>,
    /// Its path is so long; its name begins there.
    path_length: usize,
    name_start: usize,
    page: VecDeque<DirectoryEntry>,
    after: u64,
    end: bool,
}

impl Level {
    fn new(inode: InodeId, attributes: Option<Attributes>, path: &[u8], name_length: usize) -> Level {
        let (path_length, name_start) = (path.len(), path.len().saturating_sub(name_length));
        Level { inode, attributes, path_length, name_start, page: VecDeque::new(), after: 0, end: false }
    }

    /// The next entry; an error once, and nothing after it.
    fn next(&mut self, pool: &Pool, in_full: bool) -> Result<Option<DirectoryEntry>> {
        while self.page.is_empty() && !self.end {
            let (raw, most) = (pool.raw(), limits::READDIR_ENTRIES_MAX);
            let page = if in_full {
                raw.read_directory_plus(self.inode, self.after, most)
            } else {
                raw.read_directory(self.inode, self.after, most)
            };
            match page {
                Ok(page) => {
                    self.end = page.end;
                    self.after = page.entries.last().map_or(self.after, |last| last.cookie);
                    self.page = page.entries.into();
                }
                Err(error) => {
                    self.end = true;
                    return if is_gone(&error) { Ok(None) } else { Err(error) };
                }
            }
        }
        Ok(self.page.pop_front())
    }
}

/// Another user has removed it since it was listed.
pub fn is_gone(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale)
}

struct Walk<'a> {
    root: &'a Root,
    in_full: bool,
}

impl Walk<'_> {
    fn run(&self, visitor: &mut impl Visitor) -> Done {
        let mut path = self.root.shown.clone();
        let mut levels = Vec::new();
        let node = self.root.node();
        if visitor.enter(&node)? && node.kind == FileKind::Directory {
            levels.push(Level::new(node.inode, node.attributes.cloned(), &path, 0));
        }
        while let Some(level) = levels.last_mut() {
            path.truncate(level.path_length);
            match level.next(&self.root.pool, self.in_full) {
                Ok(Some(entry)) => levels.extend(self.meet(&entry, levels.len(), &mut path, visitor)?),
                Ok(None) => {
                    let level = levels.pop().expect("it was there a moment ago");
                    self.leave(&level, levels.len(), &path, visitor)?;
                }
                Err(error) => visitor.failed(error.context(escaped(&path))),
            }
        }
        Ok(())
    }

    /// One entry: what becomes of the path, and the level to go into.
    fn meet(
        &self,
        entry: &DirectoryEntry,
        depth: usize,
        path: &mut Vec<u8>,
        visitor: &mut impl Visitor,
    ) -> Done<Option<Level>> {
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(entry.name.as_bytes());
        let attributes = match self.look(entry) {
            Ok(attributes) => attributes,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => {
                visitor.failed(error.context(escaped(path)));
                return Ok(None);
            }
        };
        let (name, inode, kind) = (entry.name.as_bytes(), entry.inode, entry.kind);
        let pool = &self.root.pool;
        let node = Node { pool, path, name, depth, inode, kind, attributes: attributes.as_ref() };
        let enter = visitor.enter(&node)? && kind == FileKind::Directory;
        Ok(enter.then(|| Level::new(inode, attributes, path, name.len())))
    }

    fn look(&self, entry: &DirectoryEntry) -> Result<Option<Attributes>> {
        match &entry.attributes {
            None if self.in_full => Ok(Some(self.root.pool.raw().info(entry.inode)?.attributes)),
            known => Ok(known.clone()),
        }
    }

    fn leave(&self, level: &Level, depth: usize, path: &[u8], visitor: &mut impl Visitor) -> Done {
        if depth == 0 {
            return visitor.leave(&self.root.node());
        }
        visitor.leave(&Node {
            pool: &self.root.pool,
            path,
            name: &path[level.name_start..],
            depth,
            inode: level.inode,
            kind: FileKind::Directory,
            attributes: level.attributes.as_ref(),
        })
    }
}
