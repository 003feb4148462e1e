//! The client: one session, and the tables of names, bytes and locks that this process has of its pool.

use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Instant;

use ramlace_base::{InodeId, Result, Slot};
use ramlace_sync::Mutex;
use ramlace_wire::Permit;

use crate::bytes::givers::Givers;
use crate::callbacks::{Callbacks, Doubt};
use crate::coordination::waits::Waits;
use crate::listening::Listening;
use crate::names::behind::Known;
use crate::names::gates::Inodes;
use crate::names::known_paths::KnownPaths;
use crate::names::renewals::Renewals;
use crate::names::spreads::Spreads;
use crate::session::behind::Kept;
use crate::session::descriptors::Descriptors;
use crate::session::pending::{Acknowledged, Message};
use crate::session::settings::Settings;
use crate::session::{OnSession, Session};

/// One process's state of a pool, on one session. Each table belongs to the room that is named by its path;
/// other rooms call that one.
///
/// Lock order: a table's lock is taken alone and not held while servers are asked. Where it is otherwise, the type
/// says so: [`crate::names::gates`], `renewals`, `OpenInode`, `listening`, `Ended`, `Copy`.
pub(crate) struct Client {
    session: Arc<Session>,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) inodes: Inodes,
    /// Slots that are delegated to this session.
    pub(crate) known: Mutex<Known>,
    /// Directories that are known to be spread over slots.
    pub(crate) spreads: Spreads,
    pub(crate) known_paths: KnownPaths,
    /// Locks that threads of this process wait for.
    pub(crate) waits: Waits,
    /// Servers that a thread listens to.
    pub(crate) listening: Listening,
    /// Leases that servers have renewed.
    pub(crate) renewals: Renewals,
    /// Servers that give leases on bytes.
    pub(crate) givers: Givers,
}

impl Client {
    /// A client on a session that no server knows yet.
    pub(crate) fn new(
        settings: &Arc<Settings>,
        callbacks: &Arc<Callbacks>,
        descriptors: &Arc<Descriptors>,
    ) -> Result<Arc<Client>> {
        let client = Arc::new(Client {
            session: Session::new(settings.clone(), descriptors)?,
            callbacks: callbacks.clone(),
            inodes: Inodes::default(),
            known: Mutex::default(),
            spreads: Spreads::default(),
            known_paths: KnownPaths::default(),
            waits: Waits::default(),
            listening: Listening::default(),
            renewals: Renewals::default(),
            givers: Givers::default(),
        });
        let above: Weak<Client> = Arc::downgrade(&client);
        client.session.carry(above);
        Ok(client)
    }
}

impl Client {
    /// Nothing more is promised by this client's session: sends what is pending, and reports what is lost.
    pub(crate) fn leave(&self) {
        self.session.leave_no_promises(|kept| self.check_prediction(kept));
    }
}

/// Calls go through the client's session.
impl Deref for Client {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        &self.session
    }
}

impl OnSession for Client {
    fn send(self: Arc<Client>, message: &Message, deadline: Instant) -> Result<Acknowledged> {
        match message {
            Message::CancelLock(request) => self.tell_cancelled(request, deadline),
            Message::Unlock(request) => self.tell_unlocked(request, deadline),
            Message::LeaveBarrier(slot, leave) => self.tell_left(*slot, leave, deadline),
            Message::Close(inode) => self.tell_closed(*inode, false, deadline),
            Message::CloseOpened(inode) => self.tell_closed(*inode, true, deadline),
            Message::Times(inode) => self.tell_times(*inode, deadline),
            Message::FailAppend(reserved) => self.tell_append_failed(*reserved, deadline),
            Message::EndRecalls(server) => self.tell_recalls_ended(*server, deadline),
            Message::FindCycle(wait) => self.find_cycle(*wait, deadline),
            // The session handles it itself.
            Message::CancelChange(_) => Ok(Acknowledged::Yes),
        }
    }

    fn doubts(&self, slot: Slot, doubt: Doubt) {
        if let Some(on_doubt) = self.callbacks.on_doubt.get() {
            on_doubt(slot, doubt);
        }
    }

    fn is_kept(&self, kept: &Kept<'_>) {
        self.check_prediction(kept);
    }

    fn is_given_back(&self, slot: Slot) {
        self.forget_delegated(slot);
    }

    fn close_due(self: Arc<Client>, until: Instant) -> Option<Instant> {
        Client::close_due(&self, until)
    }

    fn renew_permit(self: Arc<Client>, inode: InodeId, refused: Option<Permit>) -> Result<Option<Permit>> {
        Client::renew_permit(&self, inode, refused)
    }
}
