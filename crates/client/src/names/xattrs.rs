//! Extended attributes by path and by inode.

use ramlace_base::{Error, InodeId, Result};
use ramlace_wire::xattrs::{GetXattr, ListXattrs, RemoveXattr, SetXattr, XattrMode, XattrName};

use crate::names::path::LastLink;
use crate::pool::locator::ShownPath;
use crate::{Pool, Raw};

impl Raw<'_> {
    /// Sets an extended attribute.
    pub fn set_xattr(self, inode: InodeId, name: &XattrName, value: &[u8], mode: XattrMode) -> Result<()> {
        let session = self.pool.session()?;
        let request = SetXattr { inode, name: name.clone(), value: value.to_vec(), mode };
        session.change(inode.slot(), &request, session.deadline())
    }

    /// The value of an extended attribute; `NoData` when there is none that the caller may see.
    pub fn get_xattr(self, inode: InodeId, name: &XattrName) -> Result<Vec<u8>> {
        let session = self.pool.session()?;
        session.ask(inode.slot(), &GetXattr { inode, name: name.clone() }, session.deadline())
    }

    /// The extended attributes that the caller may see.
    pub fn list_xattrs(self, inode: InodeId) -> Result<Vec<XattrName>> {
        let session = self.pool.session()?;
        session.ask(inode.slot(), &ListXattrs { inode }, session.deadline())
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(self, inode: InodeId, name: &XattrName) -> Result<()> {
        let session = self.pool.session()?;
        session.change(inode.slot(), &RemoveXattr { inode, name: name.clone() }, session.deadline())
    }
}

impl Pool {
    /// Sets an extended attribute: `user.`, `trusted.` or `security.` and a name. `follow` a link at the
    /// end of the path.
    pub fn set_xattr(
        &self,
        path: impl AsRef<[u8]>,
        follow: bool,
        name: impl AsRef<[u8]>,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let name = XattrName::new(name.as_ref())?;
        self.with_xattrs(path.as_ref(), follow, |raw, inode| raw.set_xattr(inode, &name, value, mode))
    }

    /// The value of an extended attribute; `NoData` when there is none that the caller may see.
    pub fn get_xattr(&self, path: impl AsRef<[u8]>, follow: bool, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let name = XattrName::new(name.as_ref())?;
        self.with_xattrs(path.as_ref(), follow, |raw, inode| raw.get_xattr(inode, &name))
    }

    /// The extended attributes that the caller may see, in the order of their bytes.
    pub fn list_xattrs(&self, path: impl AsRef<[u8]>, follow: bool) -> Result<Vec<XattrName>> {
        self.with_xattrs(path.as_ref(), follow, |raw, inode| raw.list_xattrs(inode))
    }

    /// Removes an extended attribute; `NoData` when there is none.
    pub fn remove_xattr(&self, path: impl AsRef<[u8]>, follow: bool, name: impl AsRef<[u8]>) -> Result<()> {
        let name = XattrName::new(name.as_ref())?;
        self.with_xattrs(path.as_ref(), follow, |raw, inode| raw.remove_xattr(inode, &name))
    }

    fn with_xattrs<T>(
        &self,
        path: &[u8],
        follow: bool,
        work: impl FnOnce(Raw<'_>, InodeId) -> Result<T>,
    ) -> Result<T> {
        let last = if follow { LastLink::Follow } else { LastLink::Keep };
        let (inode, _) = self.find(path, last)?;
        work(self.raw(), inode).map_err(|error: Error| error.context(ShownPath(path)))
    }
}
