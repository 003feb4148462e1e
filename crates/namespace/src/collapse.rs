//! Spread directories that a caller wants removed: they are made whole first, which they can be when they are
//! empty.
//!
//! A session that asks gets Retry, and the home checks all partitions. When the session asks again the directory
//! is whole, or the answer says why it is not. One check answers all callers that asked before it began. A caller
//! that asks while it runs waits for the next one: what the earlier check found may have changed before the caller
//! asked. So several callers that retry do not delay each other, and each is answered after two checks at the
//! most.

use ramlace_base::{Error, ErrorKind, InodeId, Result};
use ramlace_wire::peer::Token;

use crate::state::directory::Spread;
use crate::state::inode::Body;
use crate::state::{FollowUp, SlotState};

impl SlotState {
    /// The result of the last check for this caller.
    pub(crate) fn check_not_refused(&mut self, inode: InodeId, token: Token) -> Result<()> {
        match self.spread_mut(inode).and_then(|spread| spread.callers.take_refusal(token)) {
            Some(why) => Err(why.into_error()),
            None => Ok(()),
        }
    }

    /// A caller that may remove the directory cannot do it yet.
    pub(crate) fn note_caller(&mut self, inode: InodeId, token: Token) {
        if let Some(spread) = self.spread_mut(inode) {
            spread.callers.note(token);
        }
    }

    /// Whether a directory can be removed as far as its partitions are concerned. One that is spread is made
    /// whole first, and the caller has to retry.
    pub(crate) fn check_whole(&mut self, inode: InodeId, token: Token) -> Result<()> {
        let Some(spread) = self.spread_mut(inode) else { return Ok(()) };
        spread.callers.note(token);
        self.follow_up.push(FollowUp::Collapse(inode));
        let text = format!("it is just being looked whether all parts of directory {inode} are empty");
        Err(Error::new(ErrorKind::Retry, text))
    }

    /// The directory is not made whole.
    pub(crate) fn note_refusal(&mut self, inode: InodeId, why: &Error) {
        // The caller retries. The slot that asks on its behalf would take another error for one of this slot's
        // own server.
        let why = match why.kind() {
            ErrorKind::HostDown | ErrorKind::TimedOut => Error::new(ErrorKind::Busy, why.message()),
            ErrorKind::Busy | ErrorKind::Retry => return,
            _ => why.clone(),
        };
        if let Some(spread) = self.spread_mut(inode) {
            spread.callers.refuse(&why);
        }
    }

    fn spread_mut(&mut self, inode: InodeId) -> Option<&mut Spread> {
        match &mut self.inodes.get_mut(&inode)?.body {
            Body::Directory(directory) => directory.spread.as_deref_mut(),
            _ => None,
        }
    }
}
