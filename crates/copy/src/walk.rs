//! Finds what is to be copied, and makes the directories and links for it.

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::NewMode;

use crate::options::CopyOptions;
use crate::queue::Queue;
use crate::side::{Entries, Found, Identity, Kind, Side};
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
            *copy_root = to.look(true)?.map(|found| self.options.mounts.known(found.identity));
        }
        self.totals.files_done.fetch_add(1, Ordering::Relaxed);
        let (from, to) = (from.inside()?, to.inside()?);
        self.visit_all(from.list(found)?, (&from, &to), *copy_root, directories)
    }

    /// Visits what a directory has; only an error of its listing ends that.
    fn visit_all(
        &self,
        entries: Entries<'_>,
        (from, to): (&Side, &Side),
        copy_root: Option<Identity>,
        directories: &mut Vec<(Side, Side, Found)>,
    ) -> Result<()> {
        for entry in entries {
            if self.queue.is_aborted() {
                break;
            }
            let (name, found) = entry?;
            let found = match found {
                Ok(found) => found,
                // Somebody has removed it since it was listed.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale) => continue,
                Err(error) => {
                    (self.complain)(error);
                    continue;
                }
            };
            if Some(self.options.mounts.known(found.identity)) == copy_root {
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;

    use super::*;
    use crate::queue::Task;
    use crate::scratch::{Scratch, plain_options};

    /// The names of the files that are copied of these entries, and what is complained of.
    fn visited(entries: Vec<Result<(Vec<u8>, Result<Found>)>>, side: &Side) -> (Vec<String>, Vec<String>) {
        let (options, queue, totals) = (plain_options(1), Queue::default(), Totals::default());
        let complaints = RefCell::new(Vec::new());
        let complain = |error: Error| complaints.borrow_mut().push(error.message().to_owned());
        let walker = Walker { options: &options, queue: &queue, totals: &totals, complain: &complain };
        if let Err(error) =
            walker.visit_all(Box::new(entries.into_iter()), (side, side), None, &mut Vec::new())
        {
            complain(error);
        }
        queue.close();
        let mut names = Vec::new();
        while let Some((Task::File(task), _busy)) = queue.take() {
            names.push(task.from.shown().rsplit_once('/').unwrap().1.to_owned());
        }
        (names, complaints.take())
    }

    // SEMANTICS 111.4
    #[test]
    fn what_cannot_be_looked_at_is_told_and_the_rest_of_its_directory_is_copied() {
        let scratch = Scratch::new("entries");
        fs::write(scratch.at("file"), b"x").unwrap();
        let file = Side::Local(scratch.at("file")).look(true).unwrap().unwrap();
        let side = Side::Local(scratch.at("")).inside().unwrap();
        let entry = |name: &str, found| Ok((name.as_bytes().to_vec(), found));
        let error = |kind, text| Error::new(kind, text);
        let entries = vec![
            entry("removed", Err(error(ErrorKind::NotFound, "removed"))),
            entry("stale", Err(error(ErrorKind::Stale, "stale"))),
            entry("dead", Err(error(ErrorKind::HostDown, "its server is dead"))),
            entry("one", Ok(file)),
            Err(error(ErrorKind::Denied, "the listing ends")),
            entry("two", Ok(file)),
        ];
        let (names, complaints) = visited(entries, &side);
        assert_eq!(names, ["one"]);
        assert_eq!(complaints, ["its server is dead", "the listing ends"]);
    }

    // SEMANTICS 111.4
    #[test]
    fn an_entry_that_went_away_since_it_was_listed_does_not_end_the_listing() {
        let scratch = Scratch::new("vanished");
        let names = ["a", "b", "c", "d"];
        names.iter().for_each(|name| fs::write(scratch.at(name), b"x").unwrap());
        let side = Side::Local(scratch.at(""));
        let found = side.look(true).unwrap().unwrap();
        let mut entries = side.list(&found).unwrap();
        // The system gives out all names at once.
        let (first, _) = entries.next().unwrap().unwrap();
        let gone: Vec<&str> = names.into_iter().filter(|name| name.as_bytes() != first).take(2).collect();
        gone.iter().for_each(|name| fs::remove_file(scratch.at(name)).unwrap());
        let rest: Vec<(Vec<u8>, Result<Found>)> = entries.map(Result::unwrap).collect();
        assert_eq!(rest.len(), 3);
        for (name, found) in rest {
            let name = String::from_utf8(name).unwrap();
            assert_eq!(found.is_ok(), !gone.contains(&&*name), "{name}: {found:?}");
            if let Err(error) = found {
                assert_eq!(error.kind(), ErrorKind::NotFound);
                assert!(error.message().contains(&format!("/{name}: ")), "{error}");
            }
        }
    }
}
