//! Changes of the entry at the end of a path, in one request where the path of its directory is known
//! ([`crate::names::known_paths`]).

use ramlace_base::{Error, ErrorKind, InodeId, Name, Redirect, Result};

use crate::Pool;
use crate::names::path::{LastLink, Place, resolve};
use crate::names::raw::Raw;
use crate::pool::locator::ShownPath;

impl Pool {
    /// Does something with the entry that a path names, without looking it up first: with one request if the
    /// directory's path is known and one server has all of it, else after resolving the path. `None` where
    /// the path ends in a slash or in dots, or can only name a directory.
    pub(crate) fn at_entry<T>(
        &self,
        path: &[u8],
        work: impl Fn(Raw<'_>, InodeId, &Name) -> Result<T>,
    ) -> Result<Option<T>> {
        let tell = |error: Error| error.context(ShownPath(path));
        let session = self.session()?;
        if let Some((known, name)) = session.known_paths.find(path)
            && known.is_of_one_server(&*session.map()?)
        {
            match work(self.raw_by(&known.names), known.directory(), &name) {
                Err(error) if error.kind() == ErrorKind::Redirect(Redirect::Astray) => {
                    session.known_paths.forget(path)
                }
                done => return done.map(Some).map_err(tell),
            }
        }
        match resolve(&self.raw(), path, LastLink::Unseen)? {
            Place::Entry { parent, name, found: None, slash: false } => {
                work(self.raw(), parent, &name).map(Some).map_err(tell)
            }
            _ => Ok(None),
        }
    }
}
