//! Extended attributes, as the kernel asks for them.
//!
//! Before a write the kernel asks for `security.capability`, once after each time that it has heard of the
//! attributes. Attributes tell whether there are extended ones, so that a file that is written here and has
//! none is answered without asking its home, and so is any file while its attributes are leased: `ls -l` asks each for
//! `security.selinux`.

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, Result};
use ramlace_fuse::{Caller, Reply};
use ramlace_wire::xattrs::{XattrMode, XattrName};
use ramlace_wire::{LayoutHints, Mode};

use crate::mounted::PoolFileSystem;
use crate::refresh::{Answer, refreshed_by, tell};

/// This attribute of a file is its own mode; of a directory the mode that it hands down. Without one it is as each mount has it.
pub const MODE_ATTRIBUTE: &str = "user.ramlace.mode";

/// Whether a name is that attribute's.
pub(crate) fn is_mode(name: &[u8]) -> bool {
    name == MODE_ATTRIBUTE.as_bytes()
}

impl PoolFileSystem {
    /// The value of the attribute that is a mode.
    pub(crate) fn get_mode(&self, inode: InodeId) -> Result<Vec<u8>> {
        let own = self.raw().info(inode)?.hints.mode;
        let none = || Error::new(ErrorKind::NoData, "it has no mode of its own");
        own.map(|mode| mode.name().as_bytes().to_vec()).ok_or_else(none)
    }

    /// Sets it, by the flags of setxattr.
    pub(crate) fn set_mode(&self, inode: InodeId, value: &[u8], flags: u32) -> Result<()> {
        let unknown = || Error::new(ErrorKind::Invalid, "a mode is coherent, strict or relaxed");
        let mode = Mode::named(value).ok_or_else(unknown)?;
        self.change_mode(inode, Some(mode), xattr_mode(flags)?)
    }

    /// From now on it is as each mount has it.
    pub(crate) fn remove_mode(&self, inode: InodeId) -> Result<()> {
        self.change_mode(inode, None, XattrMode::Replace)
    }

    fn change_mode(&self, inode: InodeId, mode: Option<Mode>, how: XattrMode) -> Result<()> {
        let hints = self.raw().info(inode)?.hints;
        match (how, hints.mode) {
            (XattrMode::Create, Some(_)) => {
                return Err(Error::new(ErrorKind::Exists, "it has a mode already"));
            }
            (XattrMode::Replace, None) => {
                return Err(Error::new(ErrorKind::NoData, "it has no mode of its own"));
            }
            _ => {}
        }
        let set = self.raw().set_layout(inode, LayoutHints { mode, ..hints });
        self.leases.changed_here(&[inode]);
        set
    }

    /// An attribute refreshes a file, or some bytes of it. An empty range changes nothing.
    pub(crate) fn refresh(&self, inode: InodeId, name: &[u8], reply: Reply, answer: Answer) {
        match refreshed_by(name) {
            Some(Ok(part)) if !part.is_empty() => self.refresh_part(inode, part, reply, answer),
            Some(Err(error)) => tell(reply, answer, Err(error)),
            Some(Ok(_)) | None => tell(reply, answer, Ok(())),
        }
    }

    /// Refreshes some bytes of a file.
    pub(crate) fn refresh_part(&self, inode: InodeId, part: ByteRange, reply: Reply, answer: Answer) {
        // What a strict file has nobody changes without asking for it, and what is stored here is published first.
        let reader = if self.modes.of(inode) == Mode::Strict { None } else { self.handles.only_read(inode) };
        self.refresher.refresh((inode, part), reader, reply, answer);
    }

    pub(crate) fn set_xattr(&self, inode: InodeId, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        let name = XattrName::new(name)?;
        let mode = xattr_mode(flags)?;
        self.handles.expect_xattrs(inode);
        let set = self.raw().set_xattr(inode, &name, value, mode);
        self.leases.changed_here(&[inode]);
        set
    }

    pub(crate) fn get_xattr(&self, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        let name = XattrName::new(name)?;
        let believed = || self.leases.attributes_believed(self.leases.ask(), inode);
        if name.as_bytes() == XattrName::CAPABILITY && self.handles.has_no_xattrs(inode)
            || believed().is_some_and(|believed| !believed.xattrs)
        {
            return Err(Error::new(ErrorKind::NoData, "it has no extended attributes"));
        }
        self.raw().get_xattr(inode, &name)
    }

    /// The names, each ended by a NUL.
    pub(crate) fn list_xattrs(&self, inode: InodeId) -> Result<Vec<u8>> {
        let names = self.raw().list_xattrs(inode)?;
        Ok(names.iter().flat_map(|name| [name.as_bytes(), b"\0"].concat()).collect())
    }

    pub(crate) fn remove_xattr(&self, inode: InodeId, name: &[u8], caller: Caller) -> Result<()> {
        let removed = self.raw().remove_xattr(inode, &XattrName::new(name)?);
        self.leases.changed_here(&[inode]);
        // Before a file is changed the kernel takes its capabilities away, for whoever changes it (it lets nobody but the
        // super-user ask for that). Another mount's writer may have done so since it looked.
        let before_change = caller.uid != 0 || self.handles.is_written_here(inode);
        match removed {
            Err(error)
                if error.kind() == ErrorKind::NoData && name == XattrName::CAPABILITY && before_change =>
            {
                Ok(())
            }
            removed => removed,
        }
    }
}

fn xattr_mode(flags: u32) -> Result<XattrMode> {
    Ok(match flags as i32 {
        0 => XattrMode::Any,
        libc::XATTR_CREATE => XattrMode::Create,
        libc::XATTR_REPLACE => XattrMode::Replace,
        _ => return Err(Error::new(ErrorKind::Invalid, "flags of setxattr that nobody knows")),
    })
}

/// Answers with the bytes, or with their number when there is no room to ask for more.
pub(crate) fn answer_sized(reply: Reply, bytes: Result<Vec<u8>>, size: u32) {
    match bytes {
        Err(error) => reply.error(error.errno()),
        Ok(bytes) if size == 0 => reply.xattr_size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(ErrorKind::OutOfRange.errno()),
        Ok(bytes) => reply.data(&bytes),
    };
}
