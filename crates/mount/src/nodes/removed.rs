//! The last attributes of an inode that was removed: see [`crate::removed`].

use ramlace_wire::Attributes;

use super::room::{Room, Taken};

/// The last attributes, if they are kept.
#[derive(Default)]
pub(crate) struct Last(Option<Box<(Attributes, Taken)>>);

impl Last {
    /// Keeps them, if there is room.
    pub(crate) fn keep(&mut self, attributes: Attributes, room: &Room) {
        match &mut self.0 {
            Some(last) => last.0 = attributes,
            none => *none = room.take().map(|place| Box::new((attributes, place))),
        }
    }

    pub(crate) fn get(&self) -> Option<&Attributes> {
        self.0.as_ref().map(|last| &last.0)
    }

    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }

    pub(crate) fn is_blank(&self) -> bool {
        self.0.is_none()
    }
}
