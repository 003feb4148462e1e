//! The mode in which a file was opened last, where it is not the mount's.

use ramlace_wire::Mode;

use super::room::{Room, Taken};

/// Another mode than the mount's.
#[derive(Default)]
pub(crate) struct Other(Option<(Mode, Taken)>);

impl Other {
    /// `None`: the mount's. `room` counts the files that have another.
    pub(crate) fn set(&mut self, mode: Option<Mode>, room: &Room) {
        self.0 = mode.and_then(|mode| Some((mode, room.take()?)));
    }

    pub(crate) fn get(&self) -> Option<Mode> {
        self.0.as_ref().map(|(mode, _)| *mode)
    }

    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }

    pub(crate) fn is_blank(&self) -> bool {
        self.0.is_none()
    }
}
