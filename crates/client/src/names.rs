//! Names and inodes: paths and the requests that resolve them, attributes, directories, open inodes, and the
//! leases on what a kernel or this process caches of them.

pub(crate) mod behind;
pub(crate) mod by_known_path;
pub(crate) mod closing;
pub(crate) mod deferred;
pub(crate) mod gates;
pub(crate) mod inodes;
pub(crate) mod known_paths;
pub(crate) mod leases;
pub(crate) mod many;
pub(crate) mod namespace;
pub(crate) mod open;
pub(crate) mod open_inode;
pub(crate) mod partitions;
pub(crate) mod path;
pub(crate) mod placing;
pub(crate) mod predicting;
pub(crate) mod raw;
pub(crate) mod renewals;
pub(crate) mod rights;
pub(crate) mod spreads;
pub(crate) mod together;
pub(crate) mod xattrs;
