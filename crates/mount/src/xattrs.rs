//! Extended attributes, as the kernel requests them.
//!
//! Before a write the kernel asks for `security.capability`, once after each time that it gets the
//! attributes. These show whether there are extended attributes. So a file that is written here and has none
//! is answered without asking its home, and so is any file while its attributes are leased: `ls -l` asks for
//! `security.selinux` of each.

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, Result};
use ramlace_fuse::{Caller, Reply};
use ramlace_wire::xattrs::{XattrMode, XattrName};
use ramlace_wire::{FileRules, LayoutHints, Mode};

use crate::mounted::PoolFileSystem;
use crate::refresh::{Answer, refreshed_by, tell};

/// This attribute of a file is its own mode; of a directory, the mode that new files inherit. Without one,
/// each mount's mode counts.
pub const MODE_ATTRIBUTE: &str = "user.ramlace.mode";

/// This attribute is `1` if a file reserves its memory when it grows; for a directory, if its new files do.
/// It cannot have another value.
pub const RESERVE_ATTRIBUTE: &str = "user.ramlace.reserve";

/// A rule that a file has as an attribute, or a directory for its new files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Mode,
    Reserve,
}

/// Whether an attribute of this name is a rule.
pub(crate) fn is_rule(name: &[u8]) -> bool {
    Rule::named(name).is_ok()
}

fn none_of_its_own() -> Error {
    Error::new(ErrorKind::NoData, "it has no such rule of its own")
}

impl Rule {
    fn named(name: &[u8]) -> Result<Rule> {
        match name {
            name if name == MODE_ATTRIBUTE.as_bytes() => Ok(Rule::Mode),
            name if name == RESERVE_ATTRIBUTE.as_bytes() => Ok(Rule::Reserve),
            _ => Err(none_of_its_own()),
        }
    }

    fn value(self, rules: FileRules) -> Option<&'static str> {
        match self {
            Rule::Mode => rules.mode.map(Mode::name),
            Rule::Reserve => rules.reserve.then_some("1"),
        }
    }

    /// The rules with another value of this one; `None`: without it.
    fn with(self, rules: FileRules, value: Option<&[u8]>) -> Result<FileRules> {
        let invalid = |text: &str| Error::new(ErrorKind::Invalid, text);
        match (self, value) {
            (Rule::Mode, None) => Ok(FileRules { mode: None, ..rules }),
            (Rule::Mode, Some(name)) => {
                let mode =
                    Mode::named(name).ok_or_else(|| invalid("a mode is coherent, strict or relaxed"))?;
                Ok(FileRules { mode: Some(mode), ..rules })
            }
            (Rule::Reserve, None) => Ok(FileRules { reserve: false, ..rules }),
            (Rule::Reserve, Some(b"1")) => Ok(FileRules { reserve: true, ..rules }),
            (Rule::Reserve, Some(_)) => Err(invalid("it is 1, or is removed")),
        }
    }
}

impl PoolFileSystem {
    /// The value of an attribute that is a rule.
    pub(crate) fn get_rule(&self, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        let value = Rule::named(name)?.value(self.raw().info(inode)?.hints.rules);
        value.map(|value| value.as_bytes().to_vec()).ok_or_else(none_of_its_own)
    }

    /// Sets it, by the flags of setxattr.
    pub(crate) fn set_rule(&self, inode: InodeId, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        let rule = Rule::named(name)?;
        rule.with(FileRules::default(), Some(value))?;
        self.change_rule(inode, rule, Some(value), xattr_mode(flags)?)
    }

    /// Removes the rule: from now on the default counts, for a mode the one of each mount.
    pub(crate) fn remove_rule(&self, inode: InodeId, name: &[u8]) -> Result<()> {
        self.change_rule(inode, Rule::named(name)?, None, XattrMode::Replace)
    }

    fn change_rule(&self, inode: InodeId, rule: Rule, value: Option<&[u8]>, how: XattrMode) -> Result<()> {
        let hints = self.raw().info(inode)?.hints;
        match (how, rule.value(hints.rules)) {
            (XattrMode::Create, Some(_)) => return Err(Error::new(ErrorKind::Exists, "it has one already")),
            (XattrMode::Replace, None) => return Err(none_of_its_own()),
            _ => {}
        }
        let set =
            self.raw().set_layout(inode, LayoutHints { rules: rule.with(hints.rules, value)?, ..hints });
        self.leases.changed_here(&[inode]);
        set
    }

    /// Refreshes a file, or some bytes of it, by an attribute. An empty range changes nothing.
    pub(crate) fn refresh(&self, inode: InodeId, name: &[u8], reply: Reply, answer: Answer) {
        match refreshed_by(name) {
            Some(Ok(part)) if !part.is_empty() => self.refresh_part(inode, part, reply, answer),
            Some(Err(error)) => tell(reply, answer, Err(error)),
            Some(Ok(_)) | None => tell(reply, answer, Ok(())),
        }
    }

    /// Refreshes some bytes of a file.
    pub(crate) fn refresh_part(&self, inode: InodeId, part: ByteRange, reply: Reply, answer: Answer) {
        // The bytes of a strict file cannot be changed without a recall here, and what is stored here is
        // published first.
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
        // Before a file is changed the kernel removes its capabilities, for any user (it lets only the
        // super-user ask for that). A writer on another mount may have removed them since it last asked.
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

/// Answers with the bytes, or with their number if the caller gave no room.
pub(crate) fn answer_sized(reply: Reply, bytes: Result<Vec<u8>>, size: u32) {
    match bytes {
        Err(error) => reply.error(error.errno()),
        Ok(bytes) if size == 0 => reply.xattr_size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(ErrorKind::OutOfRange.errno()),
        Ok(bytes) => reply.data(&bytes),
    };
}
