//! Family 0x03: the namespace. A request goes to the slot of the inode it names first; one that names
//! an entry of a directory, or lists or describes a directory, goes to the slot that its header names:
//! a directory may be spread over several.

mod attributes;
mod entries;
mod open;
mod sizes;

pub use attributes::*;
pub use entries::*;
pub use open::*;
pub use sizes::*;
