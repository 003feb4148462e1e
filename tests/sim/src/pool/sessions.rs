//! Sessions: servers end those from which they receive nothing for too long, by the product's table, and a client that learns that begins anew with nothing open.

use ramlace_base::{SessionId, Slot, limits};
use ramlace_server::pure::SessionRecord;
use ramlace_slot::SlotChange;

use super::client::{Doing, Doubt};
use super::network::Message;
use super::{Bug, Event, WHO, World};

/// A server that looks later than this after a session's time was stopped itself, and what was sent meanwhile is yet to be read.
const LATE_MILLIS: u64 = 1_000;
/// SEMANTICS 19.2.
const SILENCE_MILLIS: u64 = 10_000;
/// How often a server without sessions looks whether there is one.
const PAUSE_MILLIS: u64 = 2_500;

impl World {
    /// Something has come to a server in the name of a session; false: that has ended, and its client is told.
    pub(super) fn is_open(
        &mut self,
        server: usize,
        client: usize,
        session: SessionId,
    ) -> Result<bool, String> {
        self.hears_of(server, (client, session), true)
    }

    fn hears_of(
        &mut self,
        server: usize,
        (client, session): (usize, SessionId),
        is_life: bool,
    ) -> Result<bool, String> {
        let (now, instant) = (self.agenda.now, self.agenda.instant());
        let of_server = &mut self.servers[server];
        if of_server.ended.contains(&session) && self.bug != Bug::TakesEndedSessions {
            let delay = self.delay();
            self.arrives_after(delay, Message::Ended { client, session });
            return Ok(false);
        }
        if !of_server.sessions.contains(session) {
            let record = SessionRecord { session, who: WHO, host: None, label: String::new() };
            of_server.sessions.insert(record, instant);
        }
        let heard = of_server.heard.insert(session, now).unwrap_or(now);
        let silent = now - heard.max(of_server.there_since.min(now));
        if silent > SILENCE_MILLIS + 1 {
            return Err(format!("{session} goes on at server {server}, and was last heard at {heard} ms"));
        }
        if is_life {
            of_server.sessions.note_alive(session, instant).map_err(|error| error.to_string())?;
        }
        Ok(true)
    }

    /// The same of a request for news, which is what keeps a session that has nothing else to say.
    pub(super) fn is_open_for_news(
        &mut self,
        server: usize,
        client: usize,
        session: SessionId,
    ) -> Result<bool, String> {
        self.hears_of(server, (client, session), self.bug != Bug::ListeningIsNoLife)
    }

    /// A server ends the sessions whose time is over; `due`: when it was to look.
    pub(super) fn expires(&mut self, server: usize, due: u64) -> Result<(), String> {
        let (now, instant) = (self.agenda.now, self.agenda.instant());
        let early = if self.bug == Bug::EndsSessionsEarly { limits::SESSION_EXPIRY_MILLIS / 2 } else { 0 };
        let of_server = &mut self.servers[server];
        if !of_server.is_up() || of_server.looks_at != due {
            return Ok(());
        }
        if now >= due + LATE_MILLIS {
            of_server.sessions.note_all_alive(instant);
        }
        if self.bug != Bug::KeepsSessions {
            for session in of_server.sessions.expired(self.agenda.instant_of(now + early)) {
                let heard = self.servers[server].heard.get(&session).copied().unwrap_or_default();
                if now < heard + SILENCE_MILLIS {
                    return Err(format!(
                        "{session} has ended at server {server}, and was heard at {heard} ms"
                    ));
                }
                self.tally.expired += 1;
                self.end_session(server, session)?;
            }
        }
        let next = self.servers[server].sessions.next_expiry().map(|next| self.agenda.millis_of(next));
        let next = next.unwrap_or(now + PAUSE_MILLIS).clamp(now + 1, now + limits::SESSION_EXPIRY_MILLIS);
        let next = if early > 0 { now + PAUSE_MILLIS } else { next };
        self.looks_at_sessions(server, next);
        Ok(())
    }

    /// A server will look whether sessions are over; its process does that once at a time.
    pub(super) fn looks_at_sessions(&mut self, server: usize, due: u64) {
        self.servers[server].looks_at = due;
        self.agenda.at(due, Event::Expires { server, due });
    }

    /// A session ends at a server, in each slot that knows it.
    pub(super) fn end_session(&mut self, server: usize, session: SessionId) -> Result<(), String> {
        let now = self.stamp();
        let of_server = &mut self.servers[server];
        of_server.ended.insert(session);
        of_server.sessions.remove(session);
        of_server.leases.end_session(session);
        of_server.acknowledged.end_session(session);
        of_server.waiting.retain(|token| token.session != session);
        let values = of_server.slots.iter().flatten();
        let knowing = values.filter(|(_, value)| value.knows(session)).map(|(slot, _)| *slot);
        let most = if self.bug == Bug::EndsSessionsInOneSlot { 1 } else { usize::MAX };
        let knowing: Vec<Slot> = knowing.take(most).collect();
        for slot in knowing {
            self.commit(slot, &SlotChange::SessionEnded { session, now })?;
        }
        let listening = &mut self.servers[server].listening;
        let listener = listening.iter().find(|(_, listening)| listening.session == session);
        if let Some(client) = listener.map(|(client, _)| *client) {
            listening.remove(&client);
            let delay = self.delay();
            self.arrives_after(delay, Message::Ended { client, session });
        }
        self.release(server)
    }

    /// A client learns that its session has ended: what it had open is closed, and it begins another one.
    pub(super) fn session_is_over(&mut self, client: usize, session: SessionId) {
        if self.have_left || self.clients[client].session() != session {
            return;
        }
        self.tally.begun_anew += 1;
        let of_client = &mut self.clients[client];
        let call = of_client.caller.begins_anew();
        match (of_client.doing.clone(), call) {
            (Some(Doing::Write { file, offset, byte }), Some(_)) => of_client.doubts_byte(file, offset, byte),
            (Some(doing), Some(kept)) => {
                of_client.doubts.push(Doubt { doing, kept, session, acknowledged: true });
            }
            _ => {}
        }
        // Its new session knows nothing of those changes, and is told of them as others are.
        of_client.doubts.iter_mut().for_each(|doubt| doubt.acknowledged = true);
        of_client.begins_session(self.bug == Bug::KeepsFilesOpen);
        of_client.mount.ends();
        if of_client.doing.is_some() {
            self.is_not_done(client);
        }
        for server in 0..self.servers.len() {
            self.connects(client, server);
        }
    }

    /// Servers know sessions that no client has any more, or a client has yet to learn that its own has ended.
    pub(super) fn sessions_are_ending(&self) -> bool {
        let current: Vec<SessionId> = self.clients.iter().map(|client| client.session()).collect();
        self.servers.iter().any(|server| {
            server.sessions.records().any(|record| !current.contains(&record.session))
                || current.iter().any(|session| server.ended.contains(session))
        })
    }
}
