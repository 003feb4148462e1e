//! The version of a file to which the kernel's pages belong, and whether some of these may have no memory.

use ramlace_base::{Generation, Timestamp};
use ramlace_client::LockedFile;
use ramlace_wire::Attributes;
use ramlace_wire::namespace::InodeInfo;

use super::room::{Room, Taken};

/// What distinguishes two states of a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    size: u64,
    generation: Generation,
    changed: Timestamp,
    /// A kernel changes it without reports: no two states of it are known to be the same.
    may_change_unnoticed: bool,
}

impl Version {
    pub(crate) fn of(info: &InodeInfo) -> Version {
        let Attributes { size, generation, changed, .. } = info.attributes;
        Version { size, generation, changed, may_change_unnoticed: info.may_change_unnoticed }
    }

    pub(crate) fn of_locked(file: &LockedFile) -> Version {
        let LockedFile { size, generation, changed, may_change_unnoticed } = *file;
        Version { size, generation, changed, may_change_unnoticed }
    }
}

/// The version of the kernel's pages, if it is known.
#[derive(Default)]
pub(crate) struct Known(Option<(Version, Taken)>);

impl Known {
    pub(crate) fn is(&self, version: Version) -> bool {
        !version.may_change_unnoticed && self.0.as_ref().is_some_and(|(known, _)| *known == version)
    }

    /// Remembers it, if there is room.
    pub(crate) fn learn(&mut self, version: Version, room: &Room) {
        match &mut self.0 {
            Some((known, _)) => *known = version,
            none => *none = room.take().map(|taken| (version, taken)),
        }
    }

    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }

    pub(crate) fn is_blank(&self) -> bool {
        self.0.is_none()
    }
}

/// Whether the kernel may have pages that came from holes while no program here could store into them.
#[derive(Default)]
pub(crate) struct Bare(Option<Taken>);

impl Bare {
    /// It may have some. Returns whether there was room to note that.
    pub(crate) fn note(&mut self, room: &Room) -> bool {
        if self.0.is_none() {
            self.0 = room.take();
        }
        self.is_noted()
    }

    pub(crate) fn is_noted(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }

    pub(crate) fn is_blank(&self) -> bool {
        self.0.is_none()
    }
}
