//! The session that a process speaks in, and the one that follows it when it has ended.

use std::sync::Arc;

use ramlace_base::Result;
use ramlace_sync::{Mutex, RwLock};

use crate::client::Client;
use crate::hearers::Hearers;
use crate::session::descriptors::Descriptors;
use crate::session::settings::Settings;

/// One process's sessions with a pool, one at a time.
pub(crate) struct Sessions {
    settings: Arc<Settings>,
    hearers: Arc<Hearers>,
    current: RwLock<Arc<Client>>,
    /// Held while a new session begins.
    renewing: Mutex<()>,
    /// Of all sessions, for a forked child, which must not wait for the locks above.
    descriptors: Arc<Descriptors>,
}

impl Sessions {
    /// A first session that nobody has heard of yet.
    pub(crate) fn new(settings: &Arc<Settings>, hearers: &Arc<Hearers>) -> Result<Sessions> {
        let descriptors = Arc::default();
        let current = RwLock::new(Client::new(settings, hearers, &descriptors)?);
        let (settings, hearers) = (settings.clone(), hearers.clone());
        Ok(Sessions { settings, hearers, current, renewing: Mutex::default(), descriptors })
    }

    /// The session for what begins now; it may have ended.
    pub(crate) fn current(&self) -> Arc<Client> {
        self.current.read().clone()
    }

    /// Begins a new session when the current one has ended; whether it did. What was opened in
    /// the old one stays with it.
    pub(crate) fn renew(&self) -> Result<bool> {
        let _renewing = self.renewing.lock();
        if !self.current().is_ended() {
            return Ok(false);
        }
        let session = Client::new(&self.settings, &self.hearers, &self.descriptors)?;
        session.map()?;
        let old = std::mem::replace(&mut *self.current.write(), session);
        // Not under the lock: its end may speak to servers.
        drop(old);
        Ok(true)
    }

    /// In a forked child: gives up the parent's sockets, of which this process has copies.
    pub(crate) fn close_inherited_sockets(&self) {
        self.descriptors.close_inherited();
    }
}
