//! One client of the storm: random operations on names of its own, each as its model says.

use std::collections::BTreeSet;

use ramlace_base::{Name, Result};
use ramlace_client::RenameMode;
use ramlace_model::{Model, Node};
use ramlace_system_tests::pattern;
use ramlace_wire::FileKind;

use crate::door::{Door, Held, Seen, Told};

/// Directories that all clients share; they lie in different slots.
pub const SHARED: usize = 5;
/// Names that a client uses in one directory.
const NAMES: usize = 4;
/// Where writes begin, at most: beyond the first chunk, so that files have several lanes.
const OFFSET_MAX: usize = 5 << 19;
const LENGTH_MAX: usize = 70_000;
/// Files that are open at a time.
const HELD_MAX: usize = 4;

/// Where the clients meet: `/s0` to `/s4`.
pub fn shared(index: usize) -> String {
    format!("/s{index}")
}

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

pub struct Client {
    door: Door,
    model: Model,
    draw: Draw,
    /// What its names begin with.
    pub own: String,
    held: Vec<(Held, Node)>,
    pub done: usize,
    pub refused: usize,
}

impl Client {
    pub fn new(door: Door, own: &str, seed: u64) -> Client {
        let mut model = Model::new();
        for index in 0..SHARED {
            model.mkdir(Model::ROOT, &Name::new(&shared(index)[1..]).unwrap(), 0o755).unwrap();
        }
        Client { door, model, draw: Draw(seed), own: own.into(), held: Vec::new(), done: 0, refused: 0 }
    }

    /// One operation, drawn, done, and compared.
    pub fn step(&mut self) {
        let (what, old, new) = (self.draw.below(20), self.old_name(), self.place());
        let place = self.place();
        match what {
            0 | 1 => self.create(&place),
            2 | 3 => self.compare(
                "mkdir",
                &place,
                |door| door.mkdir(&place),
                |model| {
                    let (parent, name) = entry(model, &place)?;
                    model.mkdir(parent, &name, 0o755).map(drop)
                },
            ),
            4 => self.compare(
                "rmdir",
                &old,
                |door| door.rmdir(&old),
                |model| {
                    let (parent, name) = entry(model, &old)?;
                    model.rmdir(parent, &name)
                },
            ),
            5 | 6 => self.compare(
                "unlink",
                &old,
                |door| door.unlink(&old),
                |model| {
                    let (parent, name) = entry(model, &old)?;
                    model.unlink(parent, &name)
                },
            ),
            7 => self.compare(
                "link",
                &old,
                |door| door.link(&old, &new),
                |model| {
                    let node = found(model, &old)?;
                    let (parent, name) = entry(model, &new)?;
                    model.link(node, parent, &name)
                },
            ),
            8 => self.compare(
                "symlink",
                &place,
                |door| door.symlink("a/b", &place),
                |model| {
                    let (parent, name) = entry(model, &place)?;
                    model.symlink(parent, &name, b"a/b").map(drop)
                },
            ),
            9..=11 => self.rename(&old, &new),
            12 => self.chmod(&old),
            13 => self.truncate(&old),
            14 => self.append(&old),
            15 => self.look_at(&old),
            16 => self.hold(&old),
            17 => self.release(),
            _ => self.use_held(),
        }
    }

    fn create(&mut self, place: &str) {
        let real = self.door.create(place);
        let expected = entry(&self.model, place)
            .and_then(|(parent, name)| self.model.create(parent, &name, 0o644, true));
        self.agree("create", place, &real, &expected);
        if let (Ok(held), Ok((node, _))) = (real, expected) {
            self.held.push((held, node));
            self.use_held();
            if self.held.len() > HELD_MAX {
                self.release();
            }
        }
    }

    fn rename(&mut self, old: &str, new: &str) {
        let modes = [RenameMode::Replace, RenameMode::Replace, RenameMode::Keep, RenameMode::Exchange];
        let mode = modes[self.draw.below(modes.len())];
        self.compare(
            &format!("rename {mode:?} to {new}"),
            old,
            |door| door.rename(old, new, mode),
            |model| {
                let (parent, name) = entry(model, old)?;
                model.lookup(parent, &name)?;
                let (new_parent, new_name) = entry(model, new)?;
                model.rename(parent, &name, new_parent, &new_name, mode)
            },
        );
    }

    /// Of files and directories: the mode of a symbolic link is that of what it leads to.
    fn chmod(&mut self, path: &str) {
        let mode = 0o700 | self.draw.below(0o100) as u16;
        if self.kind(path) != Some(FileKind::Symlink) {
            self.compare(
                "chmod",
                path,
                |door| door.chmod(path, mode),
                |model| model.set_mode(found(model, path)?, mode),
            );
        }
    }

    fn truncate(&mut self, path: &str) {
        let size = self.draw.below(OFFSET_MAX + LENGTH_MAX) as u64;
        if self.kind(path) == Some(FileKind::File) {
            self.compare(
                "truncate",
                path,
                |door| door.truncate(path, size),
                |model| model.truncate(found(model, path)?, size),
            );
        }
    }

    fn append(&mut self, path: &str) {
        let bytes = pattern(1 + self.draw.below(LENGTH_MAX), self.draw.below(256) as u8);
        if self.kind(path) == Some(FileKind::File) && self.size(path) < (OFFSET_MAX + LENGTH_MAX) as u64 {
            self.compare(
                "append",
                path,
                |door| door.append(path, &bytes),
                |model| model.append(found(model, path)?, &bytes).map(drop),
            );
        }
    }

    /// What a name leads to, and what is in it.
    fn look_at(&mut self, path: &str) {
        let real = self.door.stat(path);
        assert_eq!(real.ok(), found(&self.model, path).ok().map(|node| seen(&self.model, node)), "{path}");
        match self.kind(path) {
            Some(FileKind::Directory) => self.compare_names(path),
            Some(FileKind::Symlink) => assert_eq!(self.door.read_link(path), Ok(b"a/b".to_vec())),
            _ => {}
        }
        self.done += 1;
    }

    fn compare_names(&self, path: &str) {
        let real: BTreeSet<String> = self.door.list(path).unwrap().into_iter().collect();
        let node = found(&self.model, path).unwrap();
        let expected: BTreeSet<String> =
            self.model.read_directory(node).unwrap().into_iter().map(|(name, ..)| shown(&name)).collect();
        assert_eq!(real, expected, "{path}");
    }

    // ---- open files, with names or without ----

    fn hold(&mut self, path: &str) {
        if self.kind(path) != Some(FileKind::File) || self.held.len() >= HELD_MAX {
            return;
        }
        let node = found(&self.model, path).unwrap();
        let held = self.door.open(path).unwrap_or_else(|errno| panic!("opening {path}: errno {errno}"));
        self.model.open(node).unwrap();
        self.held.push((held, node));
    }

    /// Writes into an open file, and reads all of it back.
    fn use_held(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.draw.below(self.held.len());
        let (offset, length) = (self.draw.below(OFFSET_MAX) as u64, self.draw.below(LENGTH_MAX));
        let bytes = pattern(length, self.draw.below(256) as u8);
        let (held, node) = &self.held[at];
        held.write(&bytes, offset).unwrap();
        self.model.write(*node, offset, &bytes).unwrap();
        let (from, most) = (self.draw.below(OFFSET_MAX) as u64, LENGTH_MAX);
        assert!(
            held.read(from, most).unwrap() == self.model.read(*node, from, most).unwrap(),
            "bytes from {from}"
        );
        self.done += 1;
    }

    fn release(&mut self) {
        if !self.held.is_empty() {
            let at = self.draw.below(self.held.len());
            let (held, node) = self.held.swap_remove(at);
            let size = self.model.stat(node).unwrap().size;
            let whole = size as usize + 1;
            assert!(
                held.read(0, whole).unwrap() == self.model.read(node, 0, whole).unwrap(),
                "the bytes differ"
            );
            held.close().unwrap();
            self.model.close(node).unwrap();
        }
    }

    pub fn close_all(&mut self) {
        while !self.held.is_empty() {
            self.release();
        }
    }

    // ---- comparing ----

    fn compare(
        &mut self,
        what: &str,
        path: &str,
        real: impl FnOnce(&Door) -> Told<()>,
        expected: impl FnOnce(&mut Model) -> Result<()>,
    ) {
        let real = real(&self.door);
        let expected = expected(&mut self.model);
        self.agree(what, path, &real, &expected);
    }

    fn agree<R, E>(&mut self, what: &str, path: &str, real: &Told<R>, expected: &Result<E>) {
        let real = real.as_ref().map(|_| ()).map_err(|errno| *errno);
        let expected = expected.as_ref().map(|_| ()).map_err(ramlace_base::Error::errno);
        // The kernel looks at some things in another order than a server.
        let agrees = match self.door {
            Door::Library(_) => real == expected,
            Door::Mount(_) => real.is_ok() == expected.is_ok(),
        };
        assert!(agrees, "{}: {what} {path}: {real:?}, the model says {expected:?}", self.own);
        *(if real.is_ok() { &mut self.done } else { &mut self.refused }) += 1;
    }

    /// Every name of this client, seen by another door.
    pub fn compare_whole_tree(&self, door: &Door) {
        let mut files = 0;
        for (path, node) in self.own_tree() {
            let expected = seen(&self.model, node);
            assert_eq!(door.stat(&path), Ok(expected), "{path}");
            if expected.kind == FileKind::File {
                files += 1;
                let whole = expected.size as usize + 1;
                let held = door.open(&path).unwrap();
                assert!(held.read(0, whole).unwrap() == self.model.read(node, 0, whole).unwrap(), "{path}");
                held.close().unwrap();
            }
        }
        for index in 0..SHARED {
            let mine = |name: &String| name.starts_with(&self.own);
            let real: BTreeSet<String> =
                door.list(&shared(index)).unwrap().into_iter().filter(mine).collect();
            let node = found(&self.model, &shared(index)).unwrap();
            let names = self.model.read_directory(node).unwrap().into_iter();
            assert_eq!(real, names.map(|(name, ..)| shown(&name)).collect());
        }
        eprintln!("{}: {files} files are as they should be", self.own);
    }

    fn own_tree(&self) -> Vec<(String, Node)> {
        let mut tree = Vec::new();
        let mut rest = vec![(String::new(), Model::ROOT)];
        while let Some((above, directory)) = rest.pop() {
            for (name, node, kind) in self.model.read_directory(directory).unwrap() {
                let path = format!("{above}/{}", shown(&name));
                if kind == FileKind::Directory {
                    rest.push((path.clone(), node));
                }
                if directory != Model::ROOT {
                    tree.push((path, node));
                }
            }
        }
        tree
    }

    // ---- drawing ----

    /// A place for a name of this client: in a directory that is there, shared or its own.
    fn place(&mut self) -> String {
        let own: Vec<String> = self
            .own_tree()
            .into_iter()
            .filter(|(_, node)| self.model.stat(*node).unwrap().kind == FileKind::Directory)
            .map(|(path, _)| path)
            .collect();
        let at = self.draw.below(SHARED + own.len());
        let directory = own.get(at.wrapping_sub(SHARED)).cloned().unwrap_or_else(|| shared(at));
        format!("{directory}/{}{}", self.own, self.draw.below(NAMES))
    }

    /// Mostly a name that is there.
    fn old_name(&mut self) -> String {
        let names = self.own_tree();
        if names.is_empty() || self.draw.below(8) == 0 {
            return self.place();
        }
        names[self.draw.below(names.len())].0.clone()
    }

    fn kind(&self, path: &str) -> Option<FileKind> {
        found(&self.model, path).ok().map(|node| self.model.stat(node).unwrap().kind)
    }

    fn size(&self, path: &str) -> u64 {
        found(&self.model, path).map_or(0, |node| self.model.stat(node).unwrap().size)
    }
}

fn shown(name: &Name) -> String {
    String::from_utf8(name.as_bytes().to_vec()).expect("the storm's names are text")
}

fn entry(model: &Model, path: &str) -> Result<(Node, Name)> {
    Ok(model.resolve_parent(path)?.expect("the storm does not touch the root"))
}

fn found(model: &Model, path: &str) -> Result<Node> {
    let (parent, name) = entry(model, path)?;
    model.lookup(parent, &name)
}

fn seen(model: &Model, node: Node) -> Seen {
    let stat = model.stat(node).unwrap();
    let is_file = stat.kind == FileKind::File;
    Seen { kind: stat.kind, mode: stat.mode, links: stat.links, size: if is_file { stat.size } else { 0 } }
}
