//! The current session of a process, and its replacement when it has ended.

use std::sync::Arc;

use ramlace_base::Result;
use ramlace_sync::{Mutex, RwLock};

use crate::callbacks::Callbacks;
use crate::client::Client;
use crate::session::descriptors::Descriptors;
use crate::session::settings::Settings;

/// One process's sessions with a pool, one at a time. Lock order: `renewing`, which is held while servers are asked,
/// then `current`.
pub(crate) struct Sessions {
    settings: Arc<Settings>,
    callbacks: Arc<Callbacks>,
    current: RwLock<Arc<Client>>,
    /// Held while a new session begins.
    renewing: Mutex<()>,
    /// The descriptors of all sessions, for a forked child, which must not wait for the locks above.
    descriptors: Arc<Descriptors>,
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.current().leave();
    }
}

impl Sessions {
    /// With a first session that no server knows yet.
    pub(crate) fn new(settings: &Arc<Settings>, callbacks: &Arc<Callbacks>) -> Result<Sessions> {
        let descriptors = Arc::default();
        let current = RwLock::new(Client::new(settings, callbacks, &descriptors)?);
        let (settings, callbacks) = (settings.clone(), callbacks.clone());
        Ok(Sessions { settings, callbacks, current, renewing: Mutex::default(), descriptors })
    }

    /// The session to use for new calls; it may have ended.
    pub(crate) fn current(&self) -> Arc<Client> {
        self.current.read().clone()
    }

    /// Begins a new session when the current one has ended; returns whether it did. What was opened in the
    /// old one stays with it.
    pub(crate) fn renew(&self) -> Result<bool> {
        let _renewing = self.renewing.lock();
        if !self.current().is_ended() {
            return Ok(false);
        }
        let session = Client::new(&self.settings, &self.callbacks, &self.descriptors)?;
        session.map()?;
        let old = std::mem::replace(&mut *self.current.write(), session);
        // Not under the lock: dropping it may send messages to servers.
        old.leave();
        drop(old);
        Ok(true)
    }

    /// In a forked child: closes this process's copies of the parent's sockets.
    pub(crate) fn close_inherited_sockets(&self) {
        self.descriptors.close_inherited();
    }
}
