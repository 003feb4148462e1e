//! The access for which a file is open.

/// The access for which a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
}
