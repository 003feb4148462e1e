//! Unsolicited news for sessions: recalls of leases and of delegated slots, events that they wait for, and a
//! newer map. Each session keeps one request for it open (a long poll), on a connection of its own; a waiting
//! one is a sleeping task, and no thread.
//!
//! Events do not outlive the process, and are sent only once: a client that loses the connection asks again
//! about what it waits for, and the slots know. Recalls are sent again on a new connection, until they are
//! acknowledged.

use std::time::Duration;

use ramlace_base::{Epoch, Error, ErrorKind, Result, SessionId, limits};
use ramlace_wire::listen::{Listen, News};
use tokio::time::{sleep_until, timeout};

use crate::clock;
use crate::gate::Call;
use crate::server::Server;

impl Server {
    /// Answers when there is something for the session, or after a while.
    pub async fn listen(&self, header: &Call, request: Listen) -> Result<News> {
        let session = header.session;
        let received = clock::instant();
        let poll = self.events.begin(session);
        // This wakes tasks that wait for acknowledgements, and every listening session: only if something has
        // changed.
        if request.leases && self.leases.leases.borrow_mut().acknowledge(session, request.acknowledged) {
            self.leases.changed.notify_waiters();
        }
        let nothing = || News { life: self.data.life, ..News::default() };
        let asked = async {
            loop {
                let happened = self.events.changed(session, poll)?;
                if let Some(news) = self.news(session, header.epoch, &request) {
                    return Some(news);
                }
                let again = async {
                    let data = self.data.tells_at(session, request.received);
                    match self.delegations.tells_again_at(session).into_iter().chain(data).min() {
                        Some(at) => sleep_until(at.into()).await,
                        None => std::future::pending().await,
                    }
                };
                // Nothing else runs between the check and this: the server has one thread.
                tokio::select! {
                    () = happened.notified() => {}
                    () = self.leases.changed.notified() => {}
                    () = self.data.changed.notified() => {}
                    () = self.delegations.changed.notified() => {}
                    () = self.membership.changed.notified() => {}
                    () = again => {}
                }
            }
        };
        let patience = Duration::from_millis(limits::LISTEN_MILLIS_MAX);
        let news = match timeout(patience, asked).await {
            Ok(Some(news)) => Some(news),
            // A newer request has taken the place of this one, which has not looked for news any more.
            Ok(None) => None,
            Err(_) => Some(nothing()),
        };
        if self.durable.borrow().sessions.contains(session) {
            let waited_millis = (clock::instant() - received).as_millis() as u32;
            return Ok(news.map_or_else(nothing, |news| News { waited_millis, ..news }));
        }
        Err(Error::new(ErrorKind::Stale, "the session has ended while it listened"))
    }

    /// What there is for a session, if there is anything.
    fn news(&self, session: SessionId, epoch: Epoch, request: &Listen) -> Option<News> {
        let life = self.data.life;
        let news = News {
            recalls: self.leases.leases.borrow().unacknowledged(session),
            data: self.data.unacknowledged(session, request.received),
            delegations: self.delegations.tell(session, clock::instant()),
            events: self.events.take(session),
            map: self.membership.newer_than(epoch),
            life,
            waited_millis: 0,
        };
        let is_new_life = request.life != 0 && request.life != life;
        (is_new_life || news != News { life, ..News::default() }).then_some(news)
    }
}
