//! Finds what is to be copied, and makes the directories and links for it.

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::NewMode;

use crate::options::CopyOptions;
use crate::queue::Queue;
use crate::side::{Found, Identity, Kind, Side};
use crate::transfer::{FileTask, Totals};
use std::sync::atomic::Ordering;

/// One source and the full path of its copy.
pub struct Root {
    /// The source.
    pub from: Side,
    /// Its copy.
    pub to: Side,
}

/// Walks the sources; files go to the queue.
pub struct Walker<'a> {
    /// How to copy.
    pub options: &'a CopyOptions,
    /// Where files go.
    pub queue: &'a Queue,
    /// What is counted.
    pub totals: &'a Totals,
    /// Where errors go.
    pub complain: &'a dyn Fn(Error),
}

impl Walker<'_> {
    /// Walks one source. Directories that must not be written into get their mode at the end:
    /// they are returned with it.
    pub fn walk(&self, root: Root) -> Vec<(Side, u16)> {
        let mut later = Vec::new();
        let found = match root.from.look(!self.options.recursive) {
            Ok(Some(found)) => found,
            Ok(None) => {
                let text = format!("{} does not exist", root.from.shown());
                (self.complain)(Error::new(ErrorKind::NotFound, text));
                return later;
            }
            Err(error) => {
                (self.complain)(error);
                return later;
            }
        };
        if found.kind == Kind::Directory && !self.options.recursive {
            let text =
                format!("{} is a directory; cp -r copies it with all that is in it", root.from.shown());
            (self.complain)(Error::new(ErrorKind::IsDirectory, text));
            return later;
        }
        let mut directories = Vec::new();
        // The identity of the copy's root, once it exists: a source that contains its own copy stops there.
        let mut copy_root = None;
        self.visit(root.from, root.to, found, &mut directories);
        while let Some((from, to, found)) = directories.pop() {
            if self.queue.is_aborted() {
                break;
            }
            match self.enter(&from, &to, &found, &mut copy_root, &mut directories) {
                Ok(()) => {
                    if self.mode_of(&found) & 0o700 != 0o700 {
                        later.push((to, self.mode_of(&found)));
                    }
                }
                Err(error) => (self.complain)(error),
            }
        }
        later
    }

    fn mode_of(&self, directory: &Found) -> u16 {
        directory.mode & 0o777 & !self.options.umask
    }

    /// Makes the copy of a directory and visits its entries.
    fn enter(
        &self,
        from: &Side,
        to: &Side,
        found: &Found,
        copy_root: &mut Option<Identity>,
        directories: &mut Vec<(Side, Side, Found)>,
    ) -> Result<()> {
        // The owner must be able to fill it, whatever the source allows.
        let mode = NewMode { mode: found.mode & 0o777 | 0o700, umask: self.options.umask & !0o700 };
        match to.make_directory(mode) {
            Err(error) if error.kind() == ErrorKind::Exists => match to.look(true)? {
                Some(there) if there.kind == Kind::Directory => {}
                _ => {
                    return Err(Error::new(
                        ErrorKind::NotDirectory,
                        format!(
                            "{} is there and no directory; it stays, {} is not copied",
                            to.shown(),
                            from.shown()
                        ),
                    ));
                }
            },
            made => made?,
        }
        if copy_root.is_none() {
            *copy_root = to.look(true)?.map(|found| found.identity);
        }
        self.totals.files_done.fetch_add(1, Ordering::Relaxed);
        let (from, to) = (from.inside()?, to.inside()?);
        for entry in from.list(found)? {
            let (name, found) = entry?;
            if Some(found.identity) == *copy_root {
                let text = format!("{} lies in its own source and is not copied into itself", to.shown());
                (self.complain)(Error::new(ErrorKind::Invalid, text));
                continue;
            }
            if !self.visit(from.entry(&name), to.entry(&name), found, directories) {
                break;
            }
        }
        Ok(())
    }

    /// Deals with one thing that was found; false when the copy was cancelled.
    fn visit(&self, from: Side, to: Side, found: Found, directories: &mut Vec<(Side, Side, Found)>) -> bool {
        self.totals.files_found.fetch_add(1, Ordering::Relaxed);
        match found.kind {
            Kind::Directory => directories.push((from, to, found)),
            Kind::File => {
                self.totals.bytes_found.fetch_add(found.size, Ordering::Relaxed);
                return self.queue.push(FileTask { from, to, found });
            }
            Kind::Symlink => match copy_link(&from, &to) {
                Ok(()) => _ = self.totals.files_done.fetch_add(1, Ordering::Relaxed),
                Err(error) => (self.complain)(error),
            },
            Kind::Stream | Kind::Other => {
                let text = format!("{} is no file, directory or link; it is not copied", from.shown());
                (self.complain)(Error::new(ErrorKind::Unsupported, text));
            }
        }
        true
    }
}

/// Copies a link itself. It replaces a file or a link, never a directory.
fn copy_link(from: &Side, to: &Side) -> Result<()> {
    let target = from.read_link()?;
    match to.make_link(&target) {
        Err(error) if error.kind() == ErrorKind::Exists => {
            if to.look(false)?.is_some_and(|found| found.kind == Kind::Directory) {
                return Err(Error::new(
                    ErrorKind::IsDirectory,
                    format!("{} is a directory, which no link overwrites", to.shown()),
                ));
            }
            to.unlink()?;
            to.make_link(&target)
        }
        made => made,
    }
}
