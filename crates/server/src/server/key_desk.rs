//! Whom a server lets in, and who was told of that: see [`crate::keys`].

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

/// The key book, as the store keeps it.
pub const BOOK_FILE: &str = "key-book";

/// Whom this server lets in.
pub struct KeyDesk {
    pub keys: RefCell<Rc<ServerKeys>>,
    /// Where the coordinator is: the newest book that each server has answered.
    pub told: RefCell<BTreeMap<ServerId, u64>>,
    /// Changes when somebody has to be told.
    pub news: watch::Sender<()>,
    /// Told when somebody has answered.
    pub answered: Notify,
    /// It has the book that the pool had when this process began, as far as anybody could be asked.
    pub is_current: Cell<bool>,
    pub became_current: Notify,
    /// The store has the book by which this server goes.
    pub is_stored: Cell<bool>,
    /// The file of the secret has the current one.
    pub file_is_current: Cell<bool>,
}

impl KeyDesk {
    /// Goes by the book that the last life knew; in the first one by the secret's file.
    pub fn load(store: &mut Store, options: &ServeOptions) -> Result<KeyDesk> {
        let book: KeyBook = match load_file(store, BOOK_FILE)? {
            Some(book) => book,
            None => ramlace_cluster::first_key_book(options.secret()?.to_bytes(), clock::now()),
        };
        Ok(KeyDesk {
            keys: RefCell::new(Rc::new(keys_by(book, options))),
            file_is_current: Cell::new(true),
            told: RefCell::default(),
            news: watch::Sender::new(()),
            answered: Notify::new(),
            is_current: Cell::default(),
            is_stored: Cell::new(true),
            became_current: Notify::new(),
        })
    }

    /// What this server proves, and what those who connect have to prove.
    pub fn keys(&self) -> Rc<ServerKeys> {
        self.keys.borrow().clone()
    }

    /// The pool's secret.
    pub fn secret(&self) -> Secret {
        Secret::of(&self.keys().book().secrets.current)
    }

    /// A host, and whoever has a secret that was replaced, is served when this server has heard whom it must not serve: the
    /// book may have changed while it was dead.
    pub async fn admit(&self, proved: &Proved) -> Result<()> {
        while !self.is_current.get() && (proved.role == Role::Host || !self.keys().is_newest(proved)) {
            self.became_current.notified().await;
        }
        self.keys().check(proved)
    }

    pub fn is_told(&self, server: ServerId) -> bool {
        self.told.borrow().get(&server).is_some_and(|told| *told >= self.keys().book().version)
    }

    /// A server has begun anew: it is told once more.
    pub fn forget_told(&self, server: ServerId) {
        self.told.borrow_mut().remove(&server);
        self.news.send_replace(());
    }
}

/// What it has to prove by a book, and to ask of others.
pub fn keys_by(book: KeyBook, options: &ServeOptions) -> ServerKeys {
    ServerKeys::by_book(book, ServerId(options.server)).trusting_the_network(options.trust_network)
}
