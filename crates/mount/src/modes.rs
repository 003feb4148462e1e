//! The consistency mode of each file on this mount: the file's own, which its home returns at the open, or else
//! the mount's.
//!
//! A file's own mode cannot change while any client has it open. The kernel's pages of a file that is not
//! open are cached by the mode of the last open, and are dropped by an open in another mode.

use std::sync::Arc;

use ramlace_base::{Error, ErrorKind, InodeId, Result};
use ramlace_wire::Mode;

use crate::nodes::Nodes;
use crate::nodes::room::Room;

/// The modes of all files.
pub(crate) struct Modes {
    usual: Mode,
    can_be_strict: bool,
    nodes: Arc<Nodes>,
    /// Files with another mode than the mount's: most mounts have none, and check no further.
    others: Room,
}

impl Modes {
    /// `usual`: the mount's mode.
    pub(crate) fn new(usual: Mode, can_be_strict: bool, nodes: &Arc<Nodes>) -> Modes {
        Modes { usual, can_be_strict, nodes: nodes.clone(), others: Room::new(usize::MAX) }
    }

    /// The mode for an open of a file that has `own` as its own.
    ///
    /// Errors: this kernel does not support it.
    pub(crate) fn of_opened(&self, inode: InodeId, own: Option<Mode>) -> Result<Mode> {
        let mode = own.unwrap_or(self.usual);
        if mode == Mode::Strict && !self.can_be_strict {
            let text = format!("file {inode} is strict by its own layout, which needs Linux 6.6");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        Ok(mode)
    }

    /// A file is being opened in a mode; returns whether it had another one at the last open.
    pub(crate) fn note(&self, inode: InodeId, mode: Mode) -> bool {
        if self.of(inode) == mode {
            return false;
        }
        let other = Some(mode).filter(|mode| *mode != self.usual);
        self.nodes.change(inode, |node| node.mode.set(other, &self.others));
        true
    }

    /// The mode of a file's last open, or of its next.
    pub(crate) fn of(&self, inode: InodeId) -> Mode {
        if self.others.taken() == 0 {
            return self.usual;
        }
        self.nodes.read(inode, |node| node.mode.get()).flatten().unwrap_or(self.usual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);

    // SEMANTICS 140.1
    #[test]
    fn a_file_s_own_mode_counts_and_else_the_mount_s() {
        for usual in Mode::ALL {
            let nodes = Arc::<Nodes>::default();
            let modes = Modes::new(usual, true, &nodes);
            assert_eq!(modes.of_opened(FILE, None).unwrap(), usual);
            for own in Mode::ALL {
                assert_eq!(modes.of_opened(FILE, Some(own)).unwrap(), own);
                assert_eq!(modes.note(FILE, own), own != usual);
                assert!(!modes.note(FILE, own));
                assert_eq!((modes.of(FILE), modes.of(InodeId(8))), (own, usual));
                assert_eq!(modes.note(FILE, usual), own != usual);
                assert_eq!(modes.others.taken(), 0);
            }
            nodes.tell(FILE);
            modes.note(FILE, Mode::Strict);
            modes.note(FILE, Mode::Relaxed);
            nodes.forget(FILE, 1);
            assert_eq!(modes.of(FILE), usual);
            assert_eq!(modes.others.taken(), 0);
        }
    }

    // SEMANTICS 140.5
    #[test]
    fn a_strict_file_is_not_opened_where_the_kernel_cannot() {
        let modes = Modes::new(Mode::Coherent, false, &Arc::default());
        let opened = |own| modes.of_opened(FILE, own);
        assert_eq!(opened(Some(Mode::Strict)).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(opened(None).unwrap(), Mode::Coherent);
        assert_eq!(opened(Some(Mode::Relaxed)).unwrap(), Mode::Relaxed);
    }
}
