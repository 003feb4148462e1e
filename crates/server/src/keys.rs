//! The pool's key book at one server: the keys that it accepts, and how a change is distributed.
//!
//! The pool's secret changes in two steps. First every server accepts the new one; when all do, it becomes
//! the current one: servers write it into their secret's file and use it, and the old one is still accepted
//! until the owner ends that. So a client that reads the file at any time can connect everywhere, and a
//! server that dies in between finds the progress in its store.
//!
//! The server with the coordinator changes the book: it stores it, uses it, and sends it to every other
//! server until that has answered. A server that restarts asks for the book before it serves any host.

use std::rc::Rc;
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result, ServerId, SessionId};
use ramlace_transport::{Proved, Secret};
use ramlace_wire::keys::{
    AdoptKeyBook, ChangeKeys, GetKeyBook, HostKeyId, HostSession, KeyBook, KeyChange, KeyText, KeysChanged,
    KeysListed, RotateSecret, Rotation, SecretBytes, SecretRotated,
};
use ramlace_wire::{Header, Request};
use tokio::time::timeout_at;

use crate::clock;
use crate::connection::end_session;
use crate::membership::COORDINATOR;
use crate::server::kept_files::{load_file, save_file};
use crate::server::key_desk::{BOOK_FILE, keys_by};
use crate::server::{Outcome, Server};
use crate::stop::BugEndsProcess;

/// How long a change of the book waits for servers that do not answer.
const TELL_PATIENCE: Duration = Duration::from_millis(2_000);
/// The pause before the book is sent again to a server that did not answer.
const TELL_PAUSE: Duration = Duration::from_millis(500);

impl Server {
    fn check_keeps_book(&self) -> Result<()> {
        if self.config.options.coordinator.is_none() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Invalid, "this server does not keep the key book; ask server 0"))
    }

    /// The owner's change of the pool's secret.
    pub async fn rotate_secret(
        self: &Rc<Self>,
        request: RotateSecret,
        asker: &Proved,
    ) -> Outcome<SecretRotated> {
        self.check_keeps_book()?;
        // A server may have been forgotten since the others got the book.
        self.use_next_when_known()?;
        let keys = self.keys.keys();
        let mut book = keys.book().clone();
        if book.secrets.rotation() == Rotation::Going && !keys.is_newest(asker) {
            // The owner did not get the earlier answer, or got it before all servers had the new secret: to
            // end the old one now would lock the owner out.
            let (rotation, secret) = (Rotation::Going, book.secrets.current.clone());
            return Ok(SecretRotated { rotation, secret, untold: self.untold() });
        }
        if request.finish {
            self.check_all_use(&book)?;
            ramlace_cluster::finish_rotation(&mut book)?;
        } else {
            let mut new = [0; 32];
            clock::entropy(&mut new)?;
            ramlace_cluster::begin_rotation(&mut book, SecretBytes(new))?;
        }
        self.go_by_book(book)?;
        self.use_next_when_known()?;
        self.await_informed().await;
        let secrets = self.keys.keys().book().secrets.clone();
        Ok(SecretRotated { rotation: secrets.rotation(), secret: secrets.current, untold: self.untold() })
    }

    /// Refuses the end of a rotation while a server does not have the new secret in its file.
    fn check_all_use(&self, book: &KeyBook) -> Result<()> {
        let untold = self.untold();
        if book.secrets.rotation() != Rotation::Going || untold.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = untold.iter().map(ServerId::to_string).collect();
        let text = format!(
            "{} did not hear of the new secret, or cannot write it into its file (its log says why): bring it back, or \
             end its process, which serves by the old one otherwise, and 'ramlace forget' it",
            names.join(", ")
        );
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// When every server has the next secret, all begin to use it.
    fn use_next_when_known(self: &Rc<Self>) -> Result<()> {
        let mut book = self.keys.keys().book().clone();
        if book.secrets.rotation() == Rotation::Coming
            && self.untold().is_empty()
            && ramlace_cluster::use_next_secret(&mut book)
        {
            self.go_by_book(book)?;
        }
        Ok(())
    }

    async fn await_informed(&self) {
        let until = clock::instant() + TELL_PATIENCE;
        while !self.untold().is_empty()
            && timeout_at(until.into(), self.keys.answered.notified()).await.is_ok()
        {}
    }

    /// The owner's change of the book.
    pub async fn change_keys(self: &Rc<Self>, request: ChangeKeys) -> Outcome<KeysChanged> {
        self.check_keeps_book()?;
        let mut book = self.keys.keys().book().clone();
        let entry = ramlace_cluster::change_keys(&mut book, &request.change, clock::now())?;
        self.go_by_book(book)?;
        let line = match &request.change {
            KeyChange::MakeHost(_) => {
                let keys = self.keys.keys();
                let secrets = &keys.book().secrets;
                // If a new secret is being distributed, the key is derived from that, and stays valid.
                let newest = Secret::of(secrets.next.as_ref().unwrap_or(&secrets.current));
                Some(KeyText(newest.host_key(entry.key.clone()).to_line()))
            }
            KeyChange::RevokeHost(_) => {
                self.await_informed().await;
                None
            }
        };
        Ok(KeysChanged { entry, line, untold: self.untold() })
    }

    /// Uses a newer book from now on: stores it first, then ends the sessions of the keys that it revokes.
    fn go_by_book(self: &Rc<Self>, book: KeyBook) -> Result<()> {
        let known = self.keys.keys().book().version;
        let is_whole = self.keys.is_current.get() && self.keys.is_stored.get();
        if book.version < known || (book.version == known && is_whole) {
            return Ok(());
        }
        self.store_book(&book)?;
        self.keys.is_stored.set(true);
        self.use_book(book);
        Ok(())
    }

    /// The same for a server that returns to its pool. Its bytes are worth more than storing the book in a
    /// full store: it uses the book all the same, and the coordinator sends it again until it is stored.
    fn go_by_learned_book(self: &Rc<Self>, book: KeyBook) -> Result<()> {
        match self.go_by_book(book.clone()) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                eprintln!(
                    "ramlace: the newest key book is not kept for this server's next life yet: {error}"
                );
                self.keys.is_stored.set(false);
                self.use_book(book);
                Ok(())
            }
            outcome => outcome,
        }
    }

    fn use_book(self: &Rc<Self>, book: KeyBook) {
        *self.keys.keys.borrow_mut() = Rc::new(keys_by(book, &self.config.options));
        self.peers.set_key(&self.keys.secret().peer_key());
        self.keys.news.send_replace(());
        self.put_out_revoked();
        // The sender of the book gets the error, and the log has it.
        let _ = self.keep_secret_file();
    }

    /// Stores the book for a restart. If it is stored already this takes no room, so a server with a full
    /// store can start.
    fn store_book(&self, book: &KeyBook) -> Result<()> {
        let mut store = self.store.borrow_mut();
        match load_file::<KeyBook>(&mut store, BOOK_FILE)? {
            Some(there) if there == *book => Ok(()),
            _ => save_file(&mut store, BOOK_FILE, book),
        }
    }

    /// Writes the current secret into its file.
    fn keep_secret_file(&self) -> Result<()> {
        let kept = self.keys.secret().replace_in(&self.config.options.secret_file);
        if let (Err(error), true) = (&kept, self.keys.file_is_current.get()) {
            eprintln!("ramlace: the pool has another secret, which cannot be kept: {error}");
        }
        self.keys.file_is_current.set(kept.is_ok());
        kept
    }

    /// Ends the sessions of revoked keys, and closes their connections at once.
    fn put_out_revoked(self: &Rc<Self>) {
        let keys = self.keys.keys();
        let book = keys.book();
        self.callers.cut(|proved| keys.check(proved).is_err());
        let gone: Vec<SessionId> =
            self.host_sessions(|host| book.revokes(host)).map(|open| open.session).collect();
        for session in gone {
            match end_session(self, session) {
                // The session cannot be used any more. It ends when it expires and there is room again.
                Err(error) if error.kind() == ErrorKind::NoSpace => {}
                Err(error) => crate::durable::fatal(&error),
                Ok(()) => {}
            }
        }
    }

    fn host_sessions(&self, wanted: impl Fn(&HostKeyId) -> bool) -> impl Iterator<Item = HostSession> {
        let durable = self.durable.borrow();
        let of_host = durable.sessions.records().filter_map(|record| {
            let key = record.host.clone().filter(&wanted)?;
            Some(HostSession { key, session: record.session })
        });
        of_host.collect::<Vec<_>>().into_iter()
    }

    /// Another server has sent the book.
    pub fn adopt_key_book(self: &Rc<Self>, book: KeyBook, teller: &Proved) -> Outcome<()> {
        if self.config.options.coordinator.is_none() || !self.keys.keys().is_newest(teller) {
            let text = "the key book is kept by server 0, which sends it under the newest secret";
            return Err(Error::new(ErrorKind::Denied, text).into());
        }
        if !book.is_possible() {
            return Err(Error::new(ErrorKind::Protocol, "the key book that it sends is not valid").into());
        }
        self.go_by_book(book)?;
        Ok(self.keep_secret_file()?)
    }

    /// What the owner may see of the keys here.
    pub fn list_keys(&self) -> KeysListed {
        let sessions = self.host_sessions(|_| true).collect();
        KeysListed { hosts: self.keys.keys().book().hosts.clone(), sessions }
    }

    /// Asks for the book when this server has just joined; from then on it serves hosts. If it can ask no
    /// server it uses the book in its store, and gets a newer one as soon as possible.
    pub async fn learn_keys(self: &Rc<Self>) -> Result<()> {
        if let Some(address) = &self.config.options.coordinator {
            let header = Header::request(GetKeyBook::KIND);
            match self.peers.call_address(COORDINATOR, address, header, &GetKeyBook {}).await {
                Ok(book) if book.version >= self.keys.keys().book().version => {
                    self.go_by_learned_book(book)?;
                }
                Ok(_) => {}
                Err(failure) => {
                    eprintln!("ramlace: the key book of this server's last life stands: {}", failure.error);
                }
            }
        } else {
            self.store_book(self.keys.keys().book())?;
            self.tell_key_book();
            if let Err(error) = self.use_next_when_known() {
                eprintln!("ramlace: the next secret is not used yet: {error}");
            }
        }
        self.put_out_revoked();
        // The log has the reason; it is tried again whenever the book is received.
        let _ = self.keep_secret_file();
        self.keys.is_current.set(true);
        self.keys.became_current.notify_waiters();
        Ok(())
    }

    /// Servers that have not acknowledged the newest book, or could not write its secret.
    fn untold(&self) -> Vec<ServerId> {
        let Ok(map) = self.membership.map() else { return Vec::new() };
        let is_informed = |server: ServerId| match server == self.me {
            true => self.keys.file_is_current.get(),
            false => self.keys.is_informed(server),
        };
        let there = map.servers.iter().filter(|entry| !entry.forgotten).map(|entry| entry.server);
        there.filter(|server| !is_informed(*server)).collect()
    }

    fn tell_key_book(self: &Rc<Self>) {
        let Ok(map) = self.membership.map() else { return };
        for entry in map.servers.iter().filter(|entry| entry.server != self.me) {
            tokio::task::spawn_local(tell_one(self.clone(), entry.server));
        }
    }
}

/// Sends each newer book to one server until that has answered, for as long as this process lives.
async fn tell_one(server: Rc<Server>, other: ServerId) {
    let _bug = BugEndsProcess;
    let mut news = server.keys.news.subscribe();
    loop {
        let is_there =
            |map: &ramlace_wire::ClusterMap| map.server(other).is_some_and(|entry| !entry.forgotten);
        let map = server.membership.map().ok().filter(|map| is_there(map));
        let (Some(map), false) = (map, server.keys.is_informed(other)) else {
            // The sender lives as long as the server.
            let _ = news.changed().await;
            continue;
        };
        let book = server.keys.keys().book().clone();
        let version = book.version;
        match server.peers.call(&map, other, &AdoptKeyBook { book }).await {
            Ok(()) => {
                server.keys.informed.borrow_mut().insert(other, version);
                if let Err(error) = server.use_next_when_known() {
                    eprintln!("ramlace: the next secret is not used yet: {error}");
                }
                server.keys.answered.notify_one();
            }
            Err(_) => drop(tokio::time::timeout(TELL_PAUSE, news.changed()).await),
        }
    }
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
