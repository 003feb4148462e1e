//! Changes of one slot in one message, and delegations: for a short time, a session to which a slot is
//! delegated answers its own requests for it, and sends its changes of the slot later, many in one message.
//!
//! While a slot is delegated its server asks the holder to give it back before it answers another caller from
//! the slot.

use ramlace_base::{InodeId, Sequence, Timestamp, limits};
use serde::{Deserialize, Serialize};

use crate::inline::Bytes;
use crate::namespace::InodeInfo;
use crate::{Credentials, ErrorBody, FileKind, Kind, Request};

/// Changes of the slot that the header names, done in their order, each exactly once by its own number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeMany {
    /// The number of the delegation under which they were promised; 0: none.
    pub delegation: u64,
    /// At most [`limits::CHANGES_PER_MESSAGE_MAX`].
    pub changes: Vec<Change>,
    /// The slot shall be delegated, or stay so, because files are made in this directory.
    pub wanted_for: Option<InodeId>,
    /// The delegation ends when all of this is done.
    pub gives_back: bool,
    /// With `gives_back`: the session has the answers of all its changes of the slot below this number, and the
    /// slot need not keep them; 0: nothing is said of them.
    pub acknowledged_below: Sequence,
}

/// One of them: a message of the namespace's family, as it would be sent alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The message's number.
    pub kind: u16,
    /// Its number in the session.
    pub sequence: Sequence,
    /// As in the header of a message.
    pub outstanding: u32,
    /// When the holder of the delegation promised it, by the server's clock.
    pub at: Timestamp,
    /// The inode that it makes, as promised; without a delegation `None`.
    pub makes: Option<InodeId>,
    /// The message's body.
    pub body: Bytes,
}

/// What became of one change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// The body of its reply.
    pub body: Bytes,
    /// Or why it was not done.
    pub error: Option<ErrorBody>,
}

/// What became of the first changes, in their order: those behind them are to be asked again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManyChanged {
    /// Of all changes, or of those before the first that has to be retried.
    pub changed: Vec<Changed>,
    /// The slot is delegated to the session.
    pub delegated: Option<Box<Delegated>>,
}

/// A delegation, and what its holder has to know to answer for the slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delegated {
    /// Its number in the slot, for ever.
    pub number: u64,
    /// The directory for which it was wanted, after the changes.
    pub directory: InodeInfo,
    /// The user for whom the session makes its changes.
    pub who: Credentials,
    /// The next inode that is made in the slot.
    pub next: InodeId,
    /// The server's clock.
    pub now: Timestamp,
}

impl ManyChanged {
    fn is_possible(&self, request: &ChangeMany) -> bool {
        let told = |delegated: &Delegated| {
            let directory = &delegated.directory;
            request.wanted_for.is_some_and(|wanted| directory.is_of(wanted))
                && directory.attributes.kind == FileKind::Directory
                && delegated.next.slot() == directory.attributes.inode.slot()
        };
        self.changed.len() <= request.changes.len() && self.delegated.as_deref().is_none_or(told)
    }
}

impl Request for ChangeMany {
    const KIND: Kind = Kind::ChangeMany;
    type Reply = ManyChanged;

    fn is_possible(&self) -> bool {
        self.changes.len() <= limits::CHANGES_PER_MESSAGE_MAX
    }

    fn fits(&self, reply: &ManyChanged) -> bool {
        reply.is_possible(self)
    }
}
