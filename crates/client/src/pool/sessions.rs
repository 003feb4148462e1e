//! The session that a process speaks in, and the one that follows it when it has ended.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use ramlace_base::Result;

use crate::pool::options::Settings;
use crate::session::Session;
use crate::session::descriptors::Descriptors;

/// One process's sessions with a pool, one at a time.
pub(crate) struct Sessions {
    settings: Arc<Settings>,
    current: RwLock<Arc<Session>>,
    /// Held while a new session begins.
    renewing: Mutex<()>,
    /// Of all sessions, for a forked child, which must not wait for the locks above.
    descriptors: Arc<Descriptors>,
}

impl Sessions {
    /// A first session that nobody has heard of yet.
    pub(crate) fn new(settings: &Arc<Settings>) -> Result<Sessions> {
        let descriptors = Arc::default();
        let session = Session::new(settings.clone(), &descriptors)?;
        let (settings, current) = (settings.clone(), RwLock::new(session));
        Ok(Sessions { settings, current, renewing: Mutex::default(), descriptors })
    }

    /// The session for what begins now; it may have ended.
    pub(crate) fn current(&self) -> Arc<Session> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins a new session when the current one has ended; whether it did. What was opened in
    /// the old one stays with it.
    pub(crate) fn renew(&self) -> Result<bool> {
        let _renewing = self.renewing.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.current().is_ended() {
            return Ok(false);
        }
        let session = Session::new(self.settings.clone(), &self.descriptors)?;
        session.map()?;
        let old =
            std::mem::replace(&mut *self.current.write().unwrap_or_else(PoisonError::into_inner), session);
        // Not under the lock: its end may speak to servers.
        drop(old);
        Ok(true)
    }

    /// In a forked child: gives up the parent's sockets, of which this process has copies.
    pub(crate) fn close_inherited_sockets(&self) {
        self.descriptors.close_inherited();
    }
}
