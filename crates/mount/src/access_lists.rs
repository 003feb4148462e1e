//! Access control lists, as the kernel asks for them, and what it may keep of them.
//!
//! The kernel checks rights by lists before it asks the mount for anything, so it asks for the list of whatever belongs to
//! somebody else. It keeps the answer, also that there is none, until it hears of the inode's attributes anew or is told
//! to drop them. Its checks ask for attributes when those are over, but who reads a list by a descriptor gets what was
//! kept, however old it is. So the kernel keeps a list only while its inode's attributes are leased: a recall drops
//! both, and what is left when the lease runs out is dropped here, within the time that servers wait longer than kernels
//! believe. Any other answer is kept by nobody: the kernel is told to drop the list before it has it.

use ramlace_base::{Error, ErrorKind, InodeId, Result};
use ramlace_wire::xattrs::XattrName;

use crate::mounted::PoolFileSystem;

impl PoolFileSystem {
    /// A list of the inode, for which the kernel asks by this node. Who may reach an inode may read its lists.
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
            // It was removed while somebody here has it open: its mode says all that is left to say.
            Err(error) if error.kind() == ErrorKind::Stale && self.removed.get(inode).is_some() => {
                Err(Error::new(ErrorKind::NoData, "it was removed"))
            }
            list => list,
        }
    }
}
