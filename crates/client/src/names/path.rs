//! Resolves a path to an inode. One request resolves as many components as lie on one server; symbolic links and
//! `..` are resolved on the way.

use ramlace_base::{Error, ErrorKind, InodeId, Name, Result, limits};
use ramlace_wire::namespace::{Found, InodeInfo};
use ramlace_wire::walk::Walked;
use ramlace_wire::{ErrorBody, FileKind};

use crate::pool::locator::ShownPath;

/// The requests of path resolution.
pub(crate) trait Tree {
    /// Where names lead, one after the other, from `parent` on: one or more of them; with what is `wanted` of
    /// the last, if it comes without a further request.
    fn walk(&self, parent: InodeId, names: Vec<Name>, wanted: Wanted) -> Result<Walked>;
    /// The target of a symbolic link.
    fn read_link(&self, inode: InodeId) -> Result<Vec<u8>>;
    /// A path was resolved without a link on its way: `above` are the directories passed, the root first.
    fn note_path(&self, _path: &[u8], _above: &[InodeId]) {}
}

/// What is wanted with the last step, if that is the same request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Nothing,
    /// Everything about the inode.
    Info,
    /// That, and the bytes of an inline file.
    Bytes,
}

/// What came with the last step.
#[derive(Default)]
pub(crate) struct Came {
    pub(crate) info: Option<InodeInfo>,
    pub(crate) bytes: Option<Vec<u8>>,
}

/// The end of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A directory that the path names without a last name: `/`, `a/..`, `.`.
    Directory(InodeId),
    /// An entry, or the place where one could be created.
    Entry {
        parent: InodeId,
        name: Name,
        found: Option<Found>,
        /// The path ended with a slash: only a directory will do.
        slash: bool,
    },
}

/// Whether a symbolic link at the end of the path is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastLink {
    Follow,
    Keep,
    /// It is not looked up whether the last name exists: the caller finds out with its next request. A path
    /// that ends with a slash is followed.
    Unseen,
}

/// Resolves `path` from the root; a path without a leading slash means the same.
pub(crate) fn resolve(tree: &impl Tree, path: &[u8], last: LastLink) -> Result<Place> {
    check_path(path)?;
    let mut walker = Walker::new(tree, path);
    let place = walker.run(last).map_err(|error| error.context(ShownPath(path)))?;
    if last == LastLink::Unseen && walker.links == 0 {
        tree.note_path(path, &walker.above);
    }
    Ok(place)
}

/// The same, with what is wanted of what the path leads to.
pub(crate) fn resolve_with(
    tree: &impl Tree,
    path: &[u8],
    last: LastLink,
    wanted: Wanted,
) -> Result<(Place, Came)> {
    check_path(path)?;
    let mut walker = Walker { wanted, ..Walker::new(tree, path) };
    let place = walker.run(last).map_err(|error| error.context(ShownPath(path)))?;
    Ok((place, walker.came))
}

/// Resolves `path` and creates missing directories: `make` creates one, or finds one that another client has
/// created meanwhile.
pub(crate) fn resolve_making<T: Tree>(
    tree: &T,
    path: &[u8],
    make: impl FnMut(InodeId, &Name) -> Result<Found>,
) -> Result<()> {
    check_path(path)?;
    Walker::new(tree, path).run_making(make).map_err(|error| error.context(ShownPath(path)))
}

fn check_path(path: &[u8]) -> Result<()> {
    if path.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "the path is empty"));
    }
    if path.len() > limits::PATH_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::NameTooLong,
            format!("a path has at most {} bytes, this one {}", limits::PATH_BYTES_MAX, path.len()),
        ));
    }
    Ok(())
}

struct Walker<'a, T: Tree> {
    tree: &'a T,
    /// The directories passed, the root first: what `..` goes back to.
    above: Vec<InodeId>,
    /// Components still to go, the next one last.
    rest: Vec<Vec<u8>>,
    /// What is already known of the next components in `rest`, the next one last, until one of them leads
    /// elsewhere.
    ahead: Vec<Result<Found>>,
    links: usize,
    slash: bool,
    wanted: Wanted,
    /// What came with the last name.
    came: Came,
}

impl<T: Tree> Walker<'_, T> {
    fn new<'a>(tree: &'a T, path: &[u8]) -> Walker<'a, T> {
        let mut walker = Walker {
            tree,
            above: vec![InodeId::ROOT],
            rest: Vec::new(),
            ahead: Vec::new(),
            links: 0,
            slash: path.ends_with(b"/"),
            wanted: Wanted::Nothing,
            came: Came::default(),
        };
        walker.push(path);
        walker
    }

    fn push(&mut self, path: &[u8]) {
        let mut components: Vec<&[u8]> =
            path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
        // A dot at the end means that the path ends in no name; all others can be ignored.
        let ends_in_dot = components.pop_if(|part| part == b".").is_some();
        components.retain(|part| *part != b".");
        components.extend(ends_in_dot.then_some(&b"."[..]));
        self.rest.extend(components.into_iter().map(<[u8]>::to_vec).rev());
    }

    fn here(&self) -> InodeId {
        *self.above.last().expect("the root is never left")
    }

    /// Where `name` leads, which was just taken from `rest`. The components behind it go in the same request,
    /// except for the last one if it is not looked up (`unseen`).
    fn step(&mut self, name: &Name, unseen: bool) -> Result<Found> {
        if let Some(known) = self.ahead.pop() {
            return known;
        }
        let mut names = vec![name.clone()];
        let behind = &self.rest[usize::from(unseen).min(self.rest.len())..];
        for component in behind.iter().rev().take(limits::WALK_NAMES_MAX - 1) {
            match Name::new(component.as_slice()) {
                Ok(name) if component != b".." && component != b"." => names.push(name),
                _ => break,
            }
        }
        let to_the_end = names.len() == self.rest.len() + 1;
        let wanted = if to_the_end { self.wanted } else { Wanted::Nothing };
        let Walked { steps, stopped, info, bytes } = self.tree.walk(self.here(), names, wanted)?;
        self.came = Came { info, bytes: bytes.map(|bytes| bytes.0) };
        let mut known: Vec<Result<Found>> = steps.into_iter().map(Ok).collect();
        known.extend(stopped.map(ErrorBody::into_error).map(Err));
        known.truncate(self.rest.len() + 1);
        self.ahead = known.into_iter().rev().collect();
        let nothing = || Err(Error::new(ErrorKind::Protocol, "a walk came without a step"));
        self.ahead.pop().unwrap_or_else(nothing)
    }

    fn run(&mut self, last: LastLink) -> Result<Place> {
        while let Some(component) = self.rest.pop() {
            if self.is_dots(&component) {
                continue;
            }
            let name = Name::new(component)?;
            let is_last = self.rest.is_empty();
            let unseen = last == LastLink::Unseen && !self.slash;
            if is_last && unseen {
                return Ok(Place::Entry { parent: self.here(), name, found: None, slash: false });
            }
            let found = match self.step(&name, unseen) {
                Err(error) if is_last && error.kind() == ErrorKind::NotFound => None,
                other => Some(other?),
            };
            let kind = found.as_ref().map(|found| found.kind);
            match kind {
                Some(FileKind::Symlink) if !is_last || last == LastLink::Follow || self.slash => {
                    self.follow(found.expect("it has a kind").inode)?;
                }
                _ if is_last => {
                    if self.slash
                        && kind.is_some_and(|kind| !matches!(kind, FileKind::Directory | FileKind::Symlink))
                    {
                        return Err(not_directory(&name));
                    }
                    return Ok(Place::Entry { parent: self.here(), name, found, slash: self.slash });
                }
                Some(FileKind::Directory) => self.above.push(found.expect("it has a kind").inode),
                _ => return Err(not_directory(&name)),
            }
        }
        Ok(Place::Directory(self.here()))
    }

    fn run_making(&mut self, mut make: impl FnMut(InodeId, &Name) -> Result<Found>) -> Result<()> {
        // Components of the path itself that are still to go; those of links lie above them.
        let mut own = self.rest.len();
        while let Some(component) = self.rest.pop() {
            let of_link = self.rest.len() >= own;
            own = own.min(self.rest.len());
            if self.is_dots(&component) {
                continue;
            }
            let name = Name::new(component)?;
            let found = match self.step(&name, false) {
                Err(error) if error.kind() == ErrorKind::NotFound && of_link => {
                    return Err(Error::new(ErrorKind::Exists, "a symbolic link on the way leads to nothing"));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => make(self.here(), &name)?,
                other => other?,
            };
            match found.kind {
                FileKind::Directory => self.above.push(found.inode),
                FileKind::Symlink => self.follow(found.inode)?,
                _ => return Err(not_directory(&name)),
            }
        }
        Ok(())
    }

    /// Handles a component that is no name: `.` stays, `..` goes up. Returns whether it is one.
    fn is_dots(&mut self, component: &[u8]) -> bool {
        if component == b".." {
            self.ahead.clear();
            if self.above.len() > 1 {
                self.above.pop();
            }
        }
        component == b".." || component == b"."
    }

    fn follow(&mut self, link: InodeId) -> Result<()> {
        self.ahead.clear();
        self.came = Came::default();
        self.links += 1;
        if self.links > limits::SYMLINK_DEPTH_MAX {
            return Err(Error::new(
                ErrorKind::Loop,
                format!("more than {} symbolic links lie on the way", limits::SYMLINK_DEPTH_MAX),
            ));
        }
        let target = self.tree.read_link(link)?;
        check_path(&target)?;
        if target.starts_with(b"/") {
            self.above.truncate(1);
        }
        // A link at the end of the path passes its own trailing slash on.
        self.slash |= self.rest.is_empty() && target.ends_with(b"/");
        self.push(&target);
        Ok(())
    }
}

fn not_directory(name: &Name) -> Error {
    Error::new(ErrorKind::NotDirectory, format!("'{name}' is no directory"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::HashMap;

    use super::*;

    /// root(1): dir(2): file(3), up -> ..(4), self -> dir?; links by target.
    #[derive(Default)]
    struct Model {
        entries: HashMap<(u64, &'static str), (u64, FileKind)>,
        targets: HashMap<u64, &'static str>,
        requests: Cell<usize>,
    }

    impl Tree for Model {
        /// The server of the even inodes does not know the odd ones.
        fn walk(&self, parent: InodeId, names: Vec<Name>, _: Wanted) -> Result<Walked> {
            self.requests.set(self.requests.get() + 1);
            let mut walked = Walked { steps: Vec::new(), stopped: None, info: None, bytes: None };
            let mut here = parent;
            for name in names {
                match self.lookup(here, &name) {
                    Err(error) if walked.steps.is_empty() => return Err(error),
                    Err(error) => {
                        walked.stopped = Some(ErrorBody::new(&error));
                        break;
                    }
                    Ok(found) => {
                        let (inode, kind) = (found.inode, found.kind);
                        walked.steps.push(found);
                        if kind != FileKind::Directory || inode.0 % 2 != parent.0 % 2 {
                            break;
                        }
                        here = inode;
                    }
                }
            }
            Ok(walked)
        }

        fn read_link(&self, inode: InodeId) -> Result<Vec<u8>> {
            Ok(self.targets[&inode.0].as_bytes().to_vec())
        }
    }

    impl Model {
        fn lookup(&self, parent: InodeId, name: &Name) -> Result<Found> {
            let key = (parent.0, std::str::from_utf8(name.as_bytes()).unwrap());
            let (inode, kind) = *self
                .entries
                .iter()
                .find(|(entry, _)| **entry == key)
                .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("no '{name}'")))?
                .1;
            Ok(Found { inode: InodeId(inode), kind, attributes: None })
        }
    }

    fn model() -> Model {
        let mut model = Model::default();
        for (parent, name, inode, kind) in [
            (1, "dir", 2, FileKind::Directory),
            (2, "file", 3, FileKind::File),
            (2, "sub", 5, FileKind::Directory),
            (1, "abs", 10, FileKind::Symlink),
            (2, "up", 11, FileKind::Symlink),
            (1, "loop", 12, FileKind::Symlink),
            (1, "gone", 13, FileKind::Symlink),
            (1, "filelink", 14, FileKind::Symlink),
            (1, "even", 21, FileKind::Directory),
            (21, "more", 23, FileKind::Directory),
            (23, "dir", 25, FileKind::Directory),
        ] {
            model.entries.insert((parent, name), (inode, kind));
        }
        model.targets = HashMap::from([
            (10, "/dir/sub"),
            (11, "../dir/sub/"),
            (12, "loop"),
            (13, "dir/nothing"),
            (14, "dir/file"),
        ]);
        model
    }

    fn inode_at(path: &str, last: LastLink) -> Result<Option<u64>> {
        Ok(match resolve(&model(), path.as_bytes(), last)? {
            Place::Directory(inode) => Some(inode.0),
            Place::Entry { found, .. } => found.map(|found| found.inode.0),
        })
    }

    #[test]
    fn paths_lead_where_they_say() {
        for (path, inode) in [
            ("/", 1),
            ("//", 1),
            (".", 1),
            ("/..", 1),
            ("/../dir", 2),
            ("dir", 2),
            ("/dir/", 2),
            ("/dir/./file", 3),
            ("/dir/sub/..", 2),
            ("/dir/sub/../file", 3),
            ("/abs", 5),
            ("/abs/", 5),
            ("/abs/../file", 3),
            ("/dir/.", 2),
            ("/abs/.", 5),
            ("/dir/up", 5),
            ("/dir/up/../up", 5),
            ("/filelink", 3),
        ] {
            assert_eq!(inode_at(path, LastLink::Follow).unwrap(), Some(inode), "{path}");
        }
        assert_eq!(inode_at("/abs", LastLink::Keep).unwrap(), Some(10));
        assert_eq!(inode_at("/abs/", LastLink::Keep).unwrap(), Some(5));
        assert_eq!(inode_at("/new", LastLink::Keep).unwrap(), None);
    }

    #[test]
    fn a_dangling_link_leads_to_the_place_of_its_target() {
        let place = resolve(&model(), b"/gone", LastLink::Follow).unwrap();
        let Place::Entry { parent, name, found, .. } = place else { panic!("{place:?}") };
        assert_eq!((parent.0, name.to_string(), found), (2, "nothing".into(), None));
    }

    #[test]
    fn wrong_paths_get_their_errno() {
        let long = format!("/{}", "x".repeat(256));
        let very_long = "/x".repeat(2049);
        for (path, kind) in [
            ("", ErrorKind::NotFound),
            ("/no/file", ErrorKind::NotFound),
            ("/dir/file/x", ErrorKind::NotDirectory),
            ("/dir/file/", ErrorKind::NotDirectory),
            ("/filelink/", ErrorKind::NotDirectory),
            ("/dir/file/.", ErrorKind::NotDirectory),
            ("/new/.", ErrorKind::NotFound),
            ("/loop", ErrorKind::Loop),
            ("/loop/x", ErrorKind::Loop),
            ("/a\0b", ErrorKind::Invalid),
            (&long, ErrorKind::NameTooLong),
            (&very_long, ErrorKind::NameTooLong),
        ] {
            let error = inode_at(path, LastLink::Follow).unwrap_err();
            assert_eq!(error.kind(), kind, "{path}: {error}");
        }
        assert!(inode_at("/no/file", LastLink::Keep).unwrap_err().message().starts_with("/no/file: "));
    }

    #[test]
    fn what_is_missing_is_made_once_and_below_what_was_found() {
        let made = |path: &str| {
            let (model, mut made) = (model(), Vec::new());
            resolve_making(&model, path.as_bytes(), |parent, name| {
                made.push((parent.0, name.to_string()));
                Ok(Found {
                    inode: InodeId(100 + made.len() as u64),
                    kind: FileKind::Directory,
                    attributes: None,
                })
            })
            .map(|()| made)
        };
        let expected = |made: &[(u64, &str)]| -> Vec<(u64, String)> {
            made.iter().map(|(parent, name)| (*parent, (*name).to_owned())).collect()
        };
        for (path, steps) in [
            ("/", &[][..]),
            ("dir/sub/", &[]),
            ("/dir/sub/x/y", &[(5, "x"), (101, "y")]),
            ("abs/x", &[(5, "x")]),
            ("/dir/up/x/../z", &[(5, "x"), (5, "z")]),
            ("a/../b", &[(1, "a"), (1, "b")]),
        ] {
            assert_eq!(made(path).unwrap(), expected(steps), "{path}");
        }
        for (path, kind) in [
            ("", ErrorKind::NotFound),
            ("/dir/file", ErrorKind::NotDirectory),
            ("/dir/file/x", ErrorKind::NotDirectory),
            ("/filelink/x", ErrorKind::NotDirectory),
            ("/gone", ErrorKind::Exists),
            ("/gone/x", ErrorKind::Exists),
            ("/loop/x", ErrorKind::Loop),
        ] {
            let error = made(path).unwrap_err();
            assert_eq!(error.kind(), kind, "{path}: {error}");
        }
        let model = model();
        let deep = "/dir".to_owned() + &"/sub/..".repeat(100);
        resolve_making(&model, deep.as_bytes(), |_, name| panic!("{name}")).unwrap();
        assert_eq!(model.requests.get(), 101);
    }

    #[test]
    fn each_server_on_the_way_costs_one_request() {
        let requests = |path: &str, last| {
            let model = model();
            // Succeeds or fails, but does not panic.
            let _ = resolve(&model, path.as_bytes(), last);
            model.requests.get()
        };
        for (path, count) in
            [("/dir", 1), ("/dir/file", 2), ("/dir/sub/../file", 3), ("/dir/none", 2), ("/even/more/dir", 1)]
        {
            assert_eq!(requests(path, LastLink::Keep), count, "{path}");
        }
        assert_eq!(requests("/even/more/none", LastLink::Keep), 1);
        assert_eq!(requests("/even/more/none", LastLink::Unseen), 1);
        assert_eq!(requests("/new", LastLink::Unseen), 0);
    }
}
