//! An open inode without the memory of its lanes.

use ramlace_base::{Epoch, Generation, InodeId};
use ramlace_wire::namespace::InodeInfo;
use ramlace_wire::permit::Permit;

/// A size, and when it counts.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) generation: Generation,
    pub(crate) size: u64,
}

/// As which permit a client has.
pub(crate) struct Permits;

impl Permits {
    pub(crate) fn learn(&self, _permit: Option<Permit>) {}
}

pub(crate) struct OpenInode {
    pub(crate) inode: InodeId,
    pub(crate) permit: Permits,
}

impl OpenInode {
    pub(crate) fn new(info: &InodeInfo) -> OpenInode {
        OpenInode { inode: info.attributes.inode, permit: Permits }
    }

    pub(crate) fn of_size(inode: InodeId, _size: Size, _inline: bool, _since: Epoch) -> OpenInode {
        OpenInode { inode, permit: Permits }
    }

    pub(crate) fn learn_info(&self, _info: &InodeInfo) {}
}
