//! Access control lists: the answers to the kernel's requests, and which of them the kernel may cache.
//!
//! The kernel checks rights by lists before it sends the mount any request, so it asks for the list of every
//! inode of another user. It caches the answer, also that there is none, until it gets new attributes of the
//! inode or is asked to drop them. Its checks ask for attributes when those have expired, but a read of a list
//! by a descriptor gets the cached one, however old it is. So the kernel may cache a list only while its
//! inode's attributes are leased. A recall drops both. When the lease expires, the list is dropped from here
//! ([`crate::kept_lists`]), before servers stop to wait for the holders of the lease. If the attributes are not
//! leased, the kernel is asked to drop the list before it gets the answer.

use ramlace_base::{Error, ErrorKind, InodeId, Result};
use ramlace_wire::xattrs::XattrName;

use crate::mounted::PoolFileSystem;

impl PoolFileSystem {
    /// A list of the inode, which the kernel names by this node. Every user that can reach an inode may read
    /// its lists.
    pub(crate) fn get_list(&self, node: u64, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        let asked = self.leases.ask();
        let believed = self.leases.attributes_believed(asked, inode);
        let list = match &believed {
            Some(believed) if !believed.xattrs => {
                Err(Error::new(ErrorKind::NoData, "it has no extended attributes"))
            }
            _ => self.ask_for_list(inode, name),
        };
        let leased =
            node == inode.0 && list.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::NoData);
        let keeps = leased
            && self
                .leases
                .attributes_believed(asked, inode)
                .is_some_and(|believed| self.kept_lists.keep(inode, believed.until));
        if !keeps {
            self.leases.drop_attributes_of(node);
        }
        list
    }

    fn ask_for_list(&self, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        match self.raw().get_xattr(inode, &XattrName::new(name)?) {
            // It was removed while a program here has it open: its mode is all that is left to answer with.
            Err(error) if error.kind() == ErrorKind::Stale && self.removed.get(inode).is_some() => {
                Err(Error::new(ErrorKind::NoData, "it was removed"))
            }
            list => list,
        }
    }
}
