//! Which paths lie in the connected pool: plain paths do, and locators that name it.

use std::borrow::Cow;

use ramlace_base::{Error, ErrorKind, Result};

use crate::pool::Pool;
use crate::pool::directory::PoolDirectory;
use crate::pool::locator::{Locator, PoolName};

impl Pool {
    /// The path in this pool that a path or a locator names.
    ///
    /// `ramlace:/path` lies in the pool that was connected by its name; in one that was connected by an
    /// address, if `RAMLACE_POOL` or the user's default pool is that very pool. `Invalid` for a place in
    /// another pool.
    pub fn path_meant_by<'a>(&self, text: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        if !Locator::looks_like(text) {
            return Ok(Cow::Borrowed(text));
        }
        let locator = Locator::parse(text)?;
        if self.is_meant_by(&locator.pool)? { Ok(Cow::Owned(locator.path)) } else { Err(self.other(text)) }
    }

    fn is_meant_by(&self, name: &PoolName) -> Result<bool> {
        match (name, self.reached()) {
            // As with the command's --pool: a pool that was connected by name is the default one.
            (PoolName::Default, PoolName::Default | PoolName::Named(_)) => Ok(true),
            (PoolName::Default, PoolName::At(_)) => match PoolName::meant(None)? {
                PoolName::Default => Ok(false),
                meant => self.is_meant_by(&meant),
            },
            (PoolName::Named(name), PoolName::Named(own)) if name == own => Ok(true),
            (PoolName::Named(name), _) => self.is_named(name),
            (PoolName::At(address), PoolName::At(own)) if address == own => Ok(true),
            (PoolName::At(address), _) => {
                let map = self.map()?;
                Ok(map.servers.iter().any(|server| !server.forgotten && server.tcp == *address))
            }
        }
    }

    /// Whether this user's pool of that name is this one; false if there is none.
    fn is_named(&self, name: &str) -> Result<bool> {
        let id = self.map()?.pool.to_string();
        let file = PoolDirectory::locate(name).and_then(|directory| directory.read_pool_file());
        Ok(file.is_ok_and(|file| file.pool == id))
    }

    fn other(&self, path: &[u8]) -> Error {
        Error::new(
            ErrorKind::Invalid,
            format!(
                "{} lies in another pool than ramlace://{}, which is connected; connect to that one for it",
                path.escape_ascii(),
                self.reached()
            ),
        )
    }
}
