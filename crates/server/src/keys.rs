//! The pool's key book at one server: whom it lets in, and how the others hear of a change.
//!
//! The server with the coordinator changes the book. It keeps it in its store, goes by it, and tells every other
//! server until that has answered. A server that comes back asks for the book before it serves any host.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result, ServerId, SessionId};
use ramlace_store::Store;
use ramlace_transport::{Proved, Role, Secret, ServerKeys};
use ramlace_wire::keys::{
    ChangeKeys, GetKeyBook, HearKeyBook, HostKeyId, HostSession, KeyBook, KeyChange, KeyText, KeysChanged,
    KeysListed,
};
use ramlace_wire::{Header, Request};
use tokio::sync::{Notify, watch};
use tokio::time::timeout_at;

use crate::clock;
use crate::connection::end_session;
use crate::membership::{COORDINATOR, load_file, save_file};
use crate::server::{Outcome, Server};
use crate::stop::BugEndsProcess;

const BOOK_FILE: &str = "key-book";
/// Whoever changes the book waits so long for servers that do not answer.
const TELL_PATIENCE: Duration = Duration::from_millis(2_000);
/// Pause before a server that did not answer is told again.
const TELL_PAUSE: Duration = Duration::from_millis(500);

/// Whom this server lets in.
pub struct KeyDesk {
    secret: Secret,
    keys: RefCell<Rc<ServerKeys>>,
    /// Where the coordinator is: the newest book that each server has answered.
    told: RefCell<BTreeMap<ServerId, u64>>,
    /// Changes when somebody has to be told.
    news: watch::Sender<()>,
    /// Told when somebody has answered.
    answered: Notify,
    /// It has the book that the pool had when this process began, as far as anybody could be asked.
    is_current: Cell<bool>,
    became_current: Notify,
}

impl KeyDesk {
    /// Goes by the book that the last life knew.
    pub fn load(
        store: &mut Store,
        secret: Secret,
        server: ServerId,
        trusts_network: bool,
    ) -> Result<KeyDesk> {
        let book: Option<KeyBook> = load_file(store, BOOK_FILE)?;
        let book = book.unwrap_or_else(|| ramlace_cluster::first_key_book(clock::now()));
        let keys = secret.server_keys(server).trusting_the_network(trusts_network).by_book(book);
        Ok(KeyDesk {
            secret,
            keys: RefCell::new(Rc::new(keys)),
            told: RefCell::default(),
            news: watch::Sender::new(()),
            answered: Notify::new(),
            is_current: Cell::default(),
            became_current: Notify::new(),
        })
    }

    /// What this server proves, and what those who connect have to prove.
    pub fn keys(&self) -> Rc<ServerKeys> {
        self.keys.borrow().clone()
    }

    /// A host is served when this server has heard whom it must not serve: a book may have changed while it was dead.
    pub async fn admit(&self, proved: &Proved) -> Result<()> {
        while proved.role == Role::Host && !self.is_current.get() {
            self.became_current.notified().await;
        }
        self.keys().check(proved)
    }

    fn is_told(&self, server: ServerId) -> bool {
        self.told.borrow().get(&server).is_some_and(|told| *told >= self.keys().book().version)
    }

    /// A server has begun anew: it is told once more.
    pub fn forget_told(&self, server: ServerId) {
        self.told.borrow_mut().remove(&server);
        self.news.send_replace(());
    }
}

impl Server {
    /// The owner's change of the book.
    pub async fn change_keys(self: &Rc<Self>, request: ChangeKeys) -> Outcome<KeysChanged> {
        if self.config.options.coordinator.is_some() {
            let text = "this server does not keep the key book; ask server 0";
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        let mut book = self.keys.keys().book().clone();
        let entry = ramlace_cluster::change_keys(&mut book, &request.change, clock::now())?;
        self.go_by_book(book)?;
        let line = match &request.change {
            KeyChange::MakeHost(_) => Some(KeyText(self.keys.secret.host_key(entry.key.clone()).to_line())),
            KeyChange::RevokeHost(_) => {
                let until = clock::instant() + TELL_PATIENCE;
                while !self.untold().is_empty()
                    && timeout_at(until.into(), self.keys.answered.notified()).await.is_ok()
                {}
                None
            }
        };
        Ok(KeysChanged { entry, line, untold: self.untold() })
    }

    /// Goes by a newer book from now on: it is in the store first, then whoever it revokes is put out.
    fn go_by_book(self: &Rc<Self>, book: KeyBook) -> Result<()> {
        let known = self.keys.keys().book().version;
        if book.version < known || (book.version == known && self.keys.is_current.get()) {
            return Ok(());
        }
        save_file(&mut self.store.borrow_mut(), BOOK_FILE, &book)?;
        let trusts_network = self.config.options.trust_network;
        let keys = self.keys.secret.server_keys(self.me).trusting_the_network(trusts_network).by_book(book);
        *self.keys.keys.borrow_mut() = Rc::new(keys);
        self.keys.news.send_replace(());
        self.put_out_revoked();
        Ok(())
    }

    /// Ends the sessions of revoked keys, and cuts their connections at once.
    fn put_out_revoked(self: &Rc<Self>) {
        let keys = self.keys.keys();
        let book = keys.book();
        self.callers.cut(|host| book.revokes(host));
        let gone: Vec<SessionId> =
            self.host_sessions(|host| book.revokes(host)).map(|open| open.session).collect();
        for session in gone {
            match end_session(self, session) {
                // Nobody can use it any more. It ends when its time to be heard is over and there is room again.
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

    /// Another server has told of the book.
    pub fn hear_key_book(self: &Rc<Self>, book: KeyBook) -> Outcome<()> {
        if !book.is_possible() {
            return Err(Error::new(ErrorKind::Protocol, "it tells of a key book that cannot be").into());
        }
        Ok(self.go_by_book(book)?)
    }

    /// What the owner sees of keys here.
    pub fn list_keys(&self) -> KeysListed {
        let sessions = self.host_sessions(|_| true).collect();
        KeysListed { book: self.keys.keys().book().clone(), sessions }
    }

    /// Asks for the book, when this server has just joined; from then on it serves hosts. One that can ask nobody goes by
    /// the book in its store, and is told of a newer one as soon as it can be.
    pub async fn learn_keys(self: &Rc<Self>) -> Result<()> {
        if let Some(address) = &self.config.options.coordinator {
            let header = Header::request(GetKeyBook::KIND);
            match self.peers.call_address(COORDINATOR, address, header, &GetKeyBook {}).await {
                Ok(book) if book.version >= self.keys.keys().book().version => self.go_by_book(book)?,
                Ok(_) => {}
                Err(failure) => {
                    eprintln!("ramlace: the key book of this server's last life stands: {}", failure.error);
                }
            }
        } else {
            save_file(&mut self.store.borrow_mut(), BOOK_FILE, self.keys.keys().book())?;
            self.tell_key_book();
        }
        self.put_out_revoked();
        self.keys.is_current.set(true);
        self.keys.became_current.notify_waiters();
        Ok(())
    }

    /// Servers that have not answered the newest book.
    fn untold(&self) -> Vec<ServerId> {
        let Ok(map) = self.membership.map() else { return Vec::new() };
        let others = map.servers.iter().filter(|entry| !entry.forgotten && entry.server != self.me);
        others.map(|entry| entry.server).filter(|server| !self.keys.is_told(*server)).collect()
    }

    fn tell_key_book(self: &Rc<Self>) {
        let Ok(map) = self.membership.map() else { return };
        for entry in map.servers.iter().filter(|entry| entry.server != self.me) {
            tokio::task::spawn_local(tell_one(self.clone(), entry.server));
        }
    }
}

/// Tells one server of each newer book until it has answered, as long as this process lives.
async fn tell_one(server: Rc<Server>, other: ServerId) {
    let _bug = BugEndsProcess;
    let mut news = server.keys.news.subscribe();
    loop {
        let is_there =
            |map: &ramlace_wire::ClusterMap| map.server(other).is_some_and(|entry| !entry.forgotten);
        let map = server.membership.map().ok().filter(|map| is_there(map));
        let (Some(map), false) = (map, server.keys.is_told(other)) else {
            // The sender lives as long as the server.
            let _ = news.changed().await;
            continue;
        };
        let book = server.keys.keys().book().clone();
        let version = book.version;
        match server.peers.call(&map, other, &HearKeyBook { book }).await {
            Ok(()) => {
                server.keys.told.borrow_mut().insert(other, version);
                server.keys.answered.notify_one();
            }
            Err(_) => drop(tokio::time::timeout(TELL_PAUSE, news.changed()).await),
        }
    }
}
