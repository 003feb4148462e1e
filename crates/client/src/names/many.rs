//! Many names by one call: each directory is resolved once, and its names go many by one message.

use std::collections::BTreeMap;

use ramlace_base::{Error, ErrorKind, InodeId, Name, Result, limits};
use ramlace_wire::FileKind;

use crate::Pool;
use crate::names::path::LastLink;
use crate::pool::locator::ShownPath;

/// Names of one directory, each with the places of its paths in the call.
type Names = BTreeMap<Name, Vec<usize>>;

impl Pool {
    /// Removes files and links, in no certain order; returns what became of each, in the order of the paths. A name that
    /// is given twice is removed once, and `NotFound` for the others.
    pub fn unlink_many<P: AsRef<[u8]>>(&self, paths: &[P]) -> Vec<Result<()>> {
        let (directories, alone) = by_directory(paths);
        let mut outcomes: Vec<Result<()>> = paths.iter().map(|_| Ok(())).collect();
        for at in alone {
            outcomes[at] = self.unlink(&paths[at]);
        }
        for (directory, names) in directories {
            self.unlink_in(directory, &names, |at, outcome| {
                outcomes[at] = outcome.map_err(|error| error.context(ShownPath(paths[at].as_ref())));
            });
        }
        outcomes
    }

    /// Removes names of one directory; calls `note` with the place of each and its outcome.
    fn unlink_in(&self, directory: &[u8], names: &Names, mut note: impl FnMut(usize, Result<()>)) {
        let mut note_all = |name: &Name, outcome: Result<()>| {
            let Some((first, again)) = names.get(name).and_then(|places| places.split_first()) else {
                return;
            };
            for at in again {
                let is_gone = || Error::new(ErrorKind::NotFound, "the call has just removed it");
                note(*at, outcome.clone().and_then(|()| Err(is_gone())));
            }
            note(*first, outcome);
        };
        let sent = self.directory_at(directory).and_then(|parent| {
            self.raw().unlink_each(parent, names.keys().cloned().collect(), &mut note_all)
        });
        if let Err(error) = sent {
            names.keys().for_each(|name| note_all(name, Err(error.clone())));
        }
    }

    fn directory_at(&self, path: &[u8]) -> Result<InodeId> {
        if path.is_empty() {
            return Ok(InodeId::ROOT);
        }
        match self.find(path, LastLink::Follow)? {
            (inode, FileKind::Directory) => Ok(inode),
            _ => Err(Error::new(ErrorKind::NotDirectory, format!("{} is no directory", ShownPath(path)))),
        }
    }
}

/// The paths by their directories, and those that do not simply end in a name.
fn by_directory<P: AsRef<[u8]>>(paths: &[P]) -> (BTreeMap<&[u8], Names>, Vec<usize>) {
    let (mut directories, mut alone) = (BTreeMap::<&[u8], Names>::new(), Vec::new());
    for (at, path) in paths.iter().enumerate() {
        match split(path.as_ref()) {
            Some((directory, name)) => {
                directories.entry(directory).or_default().entry(name).or_default().push(at);
            }
            None => alone.push(at),
        }
    }
    (directories, alone)
}

/// A path's directory, empty for the root, and its name; `None` where it ends in a slash, in dots or in what can be no name,
/// or is too long.
fn split(path: &[u8]) -> Option<(&[u8], Name)> {
    if path.len() > limits::PATH_BYTES_MAX {
        return None;
    }
    let at = path.iter().rposition(|byte| *byte == b'/');
    let (directory, name) = at.map_or((&path[..0], path), |at| (&path[..at], &path[at + 1..]));
    Some((directory, Name::new(name).ok()?))
}
