//! Known paths of directories: a change of an entry is sent with such a path, in one request.
//!
//! This cache needs no validity: the request names the path and the directory, and its server does it only
//! while the path leads to that directory. Otherwise the answer is `Astray`, and the path is resolved again.
//! A server can check this if all directories on the path are its own.

use std::collections::HashMap;
use std::sync::Arc;

use ramlace_base::{InodeId, Name, Result, limits};
use ramlace_sync::{Mutex, MutexGuard};
use ramlace_wire::ClusterMap;

/// A path from the root, without links and dots.
pub(crate) struct KnownPath {
    pub(crate) names: Vec<Name>,
    /// Where each name leads; the last is the directory.
    inodes: Vec<InodeId>,
}

impl KnownPath {
    pub(crate) fn directory(&self) -> InodeId {
        self.inodes.last().copied().unwrap_or(InodeId::ROOT)
    }

    /// Whether one server has all of it, under this map.
    pub(crate) fn is_of_one_server(&self, map: &ClusterMap) -> bool {
        let first = map.primary(InodeId::ROOT.slot());
        first.is_some() && self.inodes.iter().all(|inode| map.primary(inode.slot()) == first)
    }
}

/// The paths that a session knows, by their text.
#[derive(Default)]
pub(crate) struct KnownPaths {
    known: Mutex<HashMap<Vec<u8>, Arc<KnownPath>>>,
}

impl KnownPaths {
    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Arc<KnownPath>>> {
        self.known.lock()
    }

    /// A path was resolved: `above` are the directories that it leads through, the root first.
    pub(crate) fn note(&self, path: &[u8], above: &[InodeId]) {
        let Some((directory, _)) = split(path) else { return };
        let names = directory.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
        let Ok(names) = names.map(Name::new).collect::<Result<Vec<Name>>>() else { return };
        let inodes = above.get(1..).unwrap_or_default().to_vec();
        if names.is_empty() || names.len() != inodes.len() || names.len() > limits::WALK_NAMES_MAX {
            return;
        }
        let mut known = self.lock();
        if known.len() >= limits::DIRECTORIES_REMEMBERED_MAX && !known.contains_key(directory) {
            // Resolving again costs a request, so it hardly matters which one is dropped.
            if let Some(other) = known.keys().next().cloned() {
                known.remove(&other);
            }
        }
        known.insert(directory.to_vec(), Arc::new(KnownPath { names, inodes }));
    }

    pub(crate) fn find(&self, path: &[u8]) -> Option<(Arc<KnownPath>, Name)> {
        let (directory, name) = split(path)?;
        let known = self.lock().get(directory)?.clone();
        Some((known, Name::new(name).ok()?))
    }

    pub(crate) fn forget(&self, path: &[u8]) {
        if let Some((directory, _)) = split(path) {
            self.lock().remove(directory);
        }
    }
}

/// A path's directory and its last name; `None` where it ends in none, or where its directory is the root.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.len() > limits::PATH_BYTES_MAX {
        return None;
    }
    let at = path.iter().rposition(|byte| *byte == b'/')?;
    let (directory, name) = (&path[..at], &path[at + 1..]);
    (!directory.is_empty() && !name.is_empty()).then_some((directory, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_paths_are_known_again_and_others_are_not() {
        let paths = KnownPaths::default();
        let above = [1, 2, 3].map(InodeId);
        paths.note(b"/a//./b/c", &above);
        let (known, name) = paths.find(b"/a//./b/x").unwrap();
        assert_eq!((known.directory(), name.as_bytes()), (InodeId(3), &b"x"[..]));
        assert_eq!(known.names, ["a", "b"].map(|name| Name::new(name).unwrap()));
        for path in [&b"/a/b/x"[..], b"/a//./b/", b"/a//./b/..", b"/a//./b/.", b"/x", b"x", b"", b"/"] {
            assert!(paths.find(path).is_none(), "{}", path.escape_ascii());
        }
        // Dots lead elsewhere, and with links the directories passed are more or fewer than the path's
        // components.
        for (path, above) in
            [(&b"/a/../c/d"[..], &above[..]), (b"/a/b/c/d", &above), (b"/a/d", &above), (b"/d", &above[..1])]
        {
            paths.note(path, above);
            assert!(paths.find(path).is_none(), "{}", path.escape_ascii());
        }
        paths.forget(b"/a//./b/other");
        assert!(paths.find(b"/a//./b/x").is_none());
    }

    #[test]
    fn so_many_are_remembered() {
        let paths = KnownPaths::default();
        for number in 0..limits::DIRECTORIES_REMEMBERED_MAX + 10 {
            paths.note(format!("/d{number}/x").as_bytes(), &[InodeId(1), InodeId(2)]);
        }
        assert_eq!(paths.lock().len(), limits::DIRECTORIES_REMEMBERED_MAX);
    }
}
