//! What an open file may be used for.

/// What a file is opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
}
