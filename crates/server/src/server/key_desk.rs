//! The keys that a server accepts, and which servers have the key book: see [`crate::keys`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ramlace_base::{Result, ServerId};
use ramlace_store::Store;
use ramlace_transport::{Proved, Role, Secret, ServerKeys};
use ramlace_wire::keys::KeyBook;
use tokio::sync::{Notify, watch};

use crate::clock;
use crate::config::ServeOptions;
use crate::server::kept_files::load_file;

/// The file of the key book in the store.
pub const BOOK_FILE: &str = "key-book";

/// The keys that this server accepts.
pub struct KeyDesk {
    pub keys: RefCell<Rc<ServerKeys>>,
    /// On the coordinator's server: the newest book that each server has acknowledged.
    pub informed: RefCell<BTreeMap<ServerId, u64>>,
    /// Changes when a server has to be sent the book.
    pub news: watch::Sender<()>,
    /// Notified when a server has acknowledged it.
    pub answered: Notify,
    /// It has the book that the pool had when this process began, as far as a server could be asked.
    pub is_current: Cell<bool>,
    pub became_current: Notify,
    /// The store has the book that this server uses.
    pub is_stored: Cell<bool>,
    /// The secret's file has the current secret.
    pub file_is_current: Cell<bool>,
}

impl KeyDesk {
    /// Loads the book that the last incarnation used; the first one begins with the secret's file.
    pub fn load(store: &mut Store, options: &ServeOptions) -> Result<KeyDesk> {
        let book: KeyBook = match load_file(store, BOOK_FILE)? {
            Some(book) => book,
            None => ramlace_cluster::first_key_book(options.secret()?.to_bytes(), clock::now()),
        };
        Ok(KeyDesk {
            keys: RefCell::new(Rc::new(keys_by(book, options))),
            file_is_current: Cell::new(true),
            informed: RefCell::default(),
            news: watch::Sender::new(()),
            answered: Notify::new(),
            is_current: Cell::default(),
            is_stored: Cell::new(true),
            became_current: Notify::new(),
        })
    }

    /// What this server proves, and what connecting clients have to prove.
    pub fn keys(&self) -> Rc<ServerKeys> {
        self.keys.borrow().clone()
    }

    /// The pool's secret.
    pub fn secret(&self) -> Secret {
        Secret::of(&self.keys().book().secrets.current)
    }

    /// Hosts, and clients with a secret that was replaced, are served only once this server knows which of
    /// them are revoked: the book may have changed while the server was down.
    pub async fn admit(&self, proved: &Proved) -> Result<()> {
        while !self.is_current.get() && (proved.role == Role::Host || !self.keys().is_newest(proved)) {
            self.became_current.notified().await;
        }
        self.keys().check(proved)
    }

    pub fn is_informed(&self, server: ServerId) -> bool {
        self.informed.borrow().get(&server).is_some_and(|informed| *informed >= self.keys().book().version)
    }

    /// A server has restarted: it is sent the book again.
    pub fn forget_informed(&self, server: ServerId) {
        self.informed.borrow_mut().remove(&server);
        self.news.send_replace(());
    }
}

/// The keys that follow from a book: what this server proves, and requires of others.
pub fn keys_by(book: KeyBook, options: &ServeOptions) -> ServerKeys {
    ServerKeys::by_book(book, ServerId(options.server)).trusting_the_network(options.trust_network)
}
