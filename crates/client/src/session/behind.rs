//! Sends the session's promises ([`crate::session::promises`]): before any other request to the slot, when
//! they are old, and when another session waits for the slot.
//!
//! A thread for each server sends on a connection of its own: it must not wait for one that is used by a call
//! that waits for another session, which may wait for this one. A thread that is about to send a request to a
//! slot sends the slot's promises itself if a connection is idle, because to wake a thread costs more than
//! the message.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ramlace_base::{Epoch, Error, ErrorKind, Redirect, Result, Sequence, ServerId, Slot, limits};
use ramlace_sync::{Condvar, Mutex};
use ramlace_wire::delegation::{Change, ChangeMany, Changed, ManyChanged};
use ramlace_wire::inline::{Bytes, InlineOutcome, InlineWritten};
use ramlace_wire::leases::DelegationRecall;
use ramlace_wire::{Front, Kind, Shows, decode_body};

use crate::backoff::Backoff;
use crate::session::Session;
use crate::session::exchange::{AnyExchange, Exchange};
use crate::session::heart::block_signals;
use crate::session::judging::name_server;
use crate::session::lines::{Line, Link, Server, Unanswered, roundtrip};
use crate::session::pending::Subject;
use crate::session::promises::{AllPromises, Due, NotPromised, Pending, Promise, Version};
use crate::session::retry::OnRetry;
use crate::session::sequences::NumberFor;

/// How often a thread checks what is due while there may be promises.
const LOOK: Duration = Duration::from_millis(limits::BEHIND_MILLIS_MAX / 4);
/// How often it checks while there are none.
const REST: Duration = Duration::from_secs(5);
/// The pause after a failure, and before a retry.
const PAUSE: Duration = Duration::from_millis(50);
/// How long one message may take.
const SEND_MILLIS_MAX: u64 = 2_000;
/// How long the end of a session waits for what is pending.
const CLOSE_MILLIS_MAX: u64 = 2_000;

/// The session's promises, for the threads that promise and those that send. None of its locks is held while
/// another is taken, or while a message is under way.
#[derive(Default)]
pub(crate) struct Behind {
    /// The number of slots of which something is known; 0 where nothing is ever promised.
    active: AtomicUsize,
    all: Mutex<AllPromises>,
    changed: Condvar,
    senders: Mutex<HashSet<ServerId>>,
    /// By slot: why and how often connections to its server were refused.
    refusals: Mutex<HashMap<Slot, (u64, Error)>>,
}

/// A change that is sent by itself, while it is under way.
pub(crate) struct Direct<'a> {
    behind: &'a Behind,
    slot: Slot,
    names: bool,
}

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        self.behind.with(|all| all.end_direct(self.slot, self.names));
    }
}

/// A create that requests a slot, while it is under way.
pub(crate) struct Asking<'a> {
    behind: &'a Behind,
    slot: Slot,
    /// `None`: another change was under way.
    version: Option<Version>,
    is_over: bool,
}

impl Asking<'_> {
    /// The version in which the answer is known, if it allows promises.
    fn end(mut self, delegation: Option<u64>) -> Option<Version> {
        self.is_over = true;
        let (slot, version) = (self.slot, self.version);
        self.behind.with(|all| all.end_asking(slot, version, delegation, Instant::now()))
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.behind.with(|all| all.end_asking(self.slot, self.version, None, Instant::now()));
        }
    }
}

/// The outcome of a promise.
pub(crate) struct Kept<'a> {
    pub(crate) promise: &'a Promise,
    /// The body of the reply.
    pub(crate) outcome: std::result::Result<&'a [u8], &'a Error>,
}

impl Behind {
    fn with<T>(&self, work: impl FnOnce(&mut AllPromises) -> T) -> T {
        let mut all = self.all.lock();
        let done = work(&mut all);
        self.active.store(all.count(), Ordering::Release);
        done
    }

    fn is_idle(&self) -> bool {
        self.active.load(Ordering::Acquire) == 0
    }

    /// How often connections to a slot's server were refused.
    fn refusals(&self, slot: Slot) -> u64 {
        self.refusals.lock().get(&slot).map_or(0, |(count, _)| *count)
    }

    fn refusal_since(&self, slot: Slot, count: u64) -> Option<Error> {
        self.refusals.lock().get(&slot).filter(|(times, _)| *times > count).map(|(_, why)| why.clone())
    }

    fn note_refusal(&self, slot: Slot, why: &Error) {
        let mut refusals = self.refusals.lock();
        let (count, last) = refusals.entry(slot).or_insert_with(|| (0, why.clone()));
        (*count, *last) = (*count + 1, why.clone());
        drop(refusals);
        self.changed.notify_all();
    }

    /// A change of a file begins that is not sent to the slot.
    pub(crate) fn begin_direct_of_files(&self, slot: Slot) {
        self.with(|all| {
            if all.begin_direct(slot, false) {
                all.end_direct(slot, false);
            }
        });
    }

    /// A change begins that is not sent among others: of a file, or one that may affect a directory and make inodes.
    fn begin_direct(&self, slot: Slot, names: bool) -> Option<Direct<'_>> {
        let begun = self.with(|all| all.begin_direct(slot, names));
        begun.then_some(Direct { behind: self, slot, names })
    }

    /// No pending promise will ever be done: `tell` is called for each.
    fn break_all(&self, why: &Error, tell: impl Fn(&Kept<'_>)) {
        let broken = self.with(|all| all.break_all(why));
        self.changed.notify_all();
        for promise in &broken {
            tell(&Kept { promise, outcome: Err(why) });
        }
    }

    /// What is pending in a slot now.
    fn pending(&self, slot: Slot) -> Option<Pending> {
        if self.is_idle() { None } else { self.with(|all| all.pending(slot)) }
    }

    pub(crate) fn version(&self, slot: Slot) -> Option<Version> {
        if self.is_idle() { None } else { self.with(|all| all.version(slot)) }
    }

    /// Whether the pending promises of a slot take half of what one message holds.
    pub(crate) fn is_nearly_full(&self, slot: Slot) -> bool {
        self.with(|all| all.is_nearly_full(slot))
    }

    /// How many changes have begun in a slot that were sent by themselves, if none is under way.
    pub(crate) fn quiet(&self, slot: Slot) -> Option<u64> {
        if self.is_idle() { None } else { self.with(|all| all.quiet(slot)) }
    }

    pub(crate) fn promise(
        &self,
        slot: Slot,
        version: Version,
        promise: Promise,
    ) -> std::result::Result<(), NotPromised> {
        self.with(|all| all.promise(slot, version, promise, Instant::now()))
    }
}

impl Session {
    /// A change that may affect a directory begins.
    pub(crate) fn begin_direct(&self, slot: Slot) -> Option<Direct<'_>> {
        if self.settings.behind { self.behind.begin_direct(slot, true) } else { None }
    }

    /// Other sessions wait for these slots.
    pub(crate) fn want_back(self: &Arc<Session>, recalls: &[DelegationRecall]) {
        if recalls.is_empty() {
            return;
        }
        self.behind.with(|all| all.want_back(recalls));
        self.behind.changed.notify_all();
        for recall in recalls {
            // Without a thread the holder does not react, and others proceed without it.
            let _ = self.start_sender(recall.slot);
        }
    }

    /// A create has returned the delegation by which the slot is the session's. Returns the version in which
    /// something is known of the slot, if it allows promises.
    ///
    /// Errors: there is no thread to give the slot back.
    pub(crate) fn is_delegated(
        self: &Arc<Session>,
        asking: Asking<'_>,
        number: u64,
    ) -> Result<Option<Version>> {
        self.start_sender(asking.slot)?;
        let known = asking.end(Some(number));
        self.behind.changed.notify_all();
        Ok(known)
    }

    /// To be called before a request of this kind is sent to a slot: sends the slot's promises first.
    pub(crate) fn before_asking(
        self: &Arc<Session>,
        slot: Slot,
        kind: Kind,
        deadline: Instant,
    ) -> Result<Option<Direct<'_>>> {
        let row = kind.row();
        let of_lane = row.shows == Shows::Bytes && !row.or_of_home;
        let may_make = self.settings.behind && row.changes && !row.of_file;
        if (self.behind.is_idle() && !may_make) || kind == Kind::ChangeMany || of_lane {
            return Ok(None);
        }
        let direct = if row.changes { self.behind.begin_direct(slot, !row.of_file) } else { None };
        // Abandoned changes are reported before promises are sent.
        if kind == Kind::CancelChange {
            return Ok(direct);
        }
        self.keep_promises(slot, deadline)?;
        if row.of_many_slots {
            let server = self.server_of(&*self.map()?, slot)?.id;
            self.keep_promises_to(server, deadline)?;
        }
        Ok(direct)
    }

    /// A create is about to request a slot. From here on nothing is promised there, and what was promised
    /// before is sent: a promise in between would use the inode number that this create gets.
    ///
    /// Errors: as for [`Session::keep_promises`].
    pub(crate) fn begin_asking(self: &Arc<Session>, slot: Slot, deadline: Instant) -> Result<Asking<'_>> {
        let (behind, version) = (&self.behind, self.behind.with(|all| all.begin_asking(slot)));
        let asking = Asking { behind, slot, version, is_over: false };
        // The end of a delegation that is in flight would end the one that the answer to this create brings.
        self.keep_promises_until(slot, deadline, |all| all.is_at_rest(slot))?;
        Ok(asking)
    }

    /// Sends all that is pending now, and waits until it is done.
    ///
    /// Errors: the first one; the other slots are tried all the same. `Lost`: some of it was refused.
    pub(crate) fn sync_all_promises(self: &Arc<Session>, deadline: Instant) -> Result<()> {
        let pending = self.behind.with(|all| all.with_pending());
        let synced = pending.into_iter().map(|slot| self.sync_promises(slot, deadline));
        synced.fold(Ok(()), Result::and)
    }

    /// Sends what is pending in a slot now, and waits until it is done.
    ///
    /// Errors: as for any request to the slot; the promises then stay pending. `Lost`: some of it was refused.
    pub(crate) fn sync_promises(self: &Arc<Session>, slot: Slot, deadline: Instant) -> Result<()> {
        let Some(pending) = self.behind.pending(slot) else { return Ok(()) };
        self.keep_these(slot, pending, deadline)?;
        match self.behind.with(|all| all.loss_among(slot, pending).cloned()) {
            Some(why) => Err(Error::new(ErrorKind::Lost, why.message())),
            None => Ok(()),
        }
    }

    /// The same for the slots of one server.
    pub(crate) fn keep_promises_to(self: &Arc<Session>, server: ServerId, deadline: Instant) -> Result<()> {
        let map = self.known_map();
        self.keep_promises_of(deadline, |slot| map.as_ref().and_then(|map| map.primary(slot)) == Some(server))
    }

    fn keep_promises_of(self: &Arc<Session>, deadline: Instant, of: impl Fn(Slot) -> bool) -> Result<()> {
        if self.behind.is_idle() {
            return Ok(());
        }
        let slots = self.behind.with(|all| all.with_pending());
        let kept = slots.into_iter().filter(|slot| of(*slot)).map(|slot| self.keep_promises(slot, deadline));
        kept.fold(Ok(()), Result::and)
    }

    /// Sends what is pending in a slot now, and waits until it is answered: what is promised meanwhile is not
    /// waited for.
    ///
    /// Errors: as for any request to the slot; the promises then stay pending.
    pub(crate) fn keep_promises(self: &Arc<Session>, slot: Slot, deadline: Instant) -> Result<()> {
        match self.behind.pending(slot) {
            Some(pending) => self.keep_these(slot, pending, deadline),
            None => Ok(()),
        }
    }

    fn keep_these(self: &Arc<Session>, slot: Slot, these: Pending, deadline: Instant) -> Result<()> {
        self.keep_promises_until(slot, deadline, |all| !all.are_pending(slot, these))
    }

    fn keep_promises_until(
        self: &Arc<Session>,
        slot: Slot,
        deadline: Instant,
        is_done: impl Fn(&AllPromises) -> bool,
    ) -> Result<()> {
        let behind = &self.behind;
        let mut backoff = Backoff::new(deadline);
        let refused = behind.refusals(slot);
        while !behind.is_idle() && !behind.with(|all| is_done(all)) {
            let map = self.map()?;
            let server = self.server_of(&map, slot)?;
            match server.idle_line() {
                Some(mut line) if behind.with(|all| all.begin_sending(slot)) => {
                    let until = deadline.min(Instant::now() + Duration::from_millis(SEND_MILLIS_MAX));
                    let sent = self.send_promises(slot, until, |request, until| {
                        self.ask_many(&mut line, slot, request, until)
                    });
                    behind.with(|all| all.end_sending(slot, Instant::now()));
                    behind.changed.notify_all();
                    match sent {
                        Ok(true) => {}
                        Ok(false) => self.await_sent(slot, deadline, refused, &is_done)?,
                        Err(unanswered) => {
                            drop(line);
                            let judged =
                                self.judge(&server, map.epoch, unanswered, OnRetry::Repeat, deadline);
                            judged.before_next(&mut backoff, || Ok(false))?;
                        }
                    }
                }
                _ => self.await_sent(slot, deadline, refused, &is_done)?,
            }
        }
        Ok(())
    }

    /// Waits until another thread has sent something.
    ///
    /// Errors: that its server refuses connections; `TimedOut`.
    fn await_sent(
        &self,
        slot: Slot,
        deadline: Instant,
        refused: u64,
        is_done: &impl Fn(&AllPromises) -> bool,
    ) -> Result<()> {
        let behind = &self.behind;
        let now = Instant::now();
        let why = behind.refusal_since(slot, refused);
        let mut all = behind.all.lock();
        if is_done(&all) {
            return Ok(());
        }
        if let Some(why) = why {
            return Err(why);
        }
        if now >= deadline {
            let text = format!("what was promised in {slot} could not be sent in time");
            return Err(Error::new(ErrorKind::TimedOut, text));
        }
        all.hurry(slot, now);
        behind.changed.notify_all();
        drop(behind.changed.wait_timeout(all, (deadline - now).min(PAUSE)));
        Ok(())
    }

    /// Sends promises of a slot, as many as one message holds; returns whether there were any. The caller has
    /// called `begin_sending`.
    fn send_promises(
        self: &Arc<Session>,
        slot: Slot,
        until: Instant,
        exchange: impl FnOnce(&ChangeMany, Instant) -> std::result::Result<ManyChanged, Unanswered>,
    ) -> std::result::Result<bool, Unanswered> {
        self.send_pending(Subject::CancelledChanges(slot), until).map_err(Unanswered::lost)?;
        let Some(request) = self.next_message(slot) else { return Ok(false) };
        let ManyChanged { changed, .. } = exchange(&request, until)?;
        self.take_in(slot, &changed);
        Ok(!changed.is_empty())
    }

    fn next_message(&self, slot: Slot) -> Option<ChangeMany> {
        self.behind.with(|all| {
            let (delegation, waiting) = all.sent_now(slot)?;
            let mut changes = Vec::new();
            for promise in waiting.iter_mut().take(limits::CHANGES_PER_MESSAGE_MAX) {
                let Some(kept) =
                    promise.kept.or_else(|| Some(self.sequences.try_take(slot, NumberFor::Program)?.keep()))
                else {
                    break;
                };
                promise.kept = Some(kept);
                changes.push(Change {
                    kind: promise.kind.number(),
                    sequence: kept.sequence,
                    outstanding: self.sequences.outstanding_of(kept),
                    at: promise.at,
                    makes: promise.makes.then_some(promise.inode),
                    body: Bytes(promise.body.clone()),
                });
            }
            (!changes.is_empty()).then_some(ChangeMany {
                delegation,
                changes,
                wanted_for: None,
                gives_back: false,
                acknowledged_below: Sequence(0),
            })
        })
    }

    fn take_in(&self, slot: Slot, changed: &[Changed]) {
        let is_lost = |changed: &Changed| {
            changed.error.as_ref().is_some_and(|error| error.kind == ErrorKind::Stale.number())
        };
        // A thread that waits for a promise must not find it answered before it finds it lost.
        let (done, outcomes) = self.behind.with(|all| {
            if changed.iter().any(is_lost) {
                all.is_lost(slot);
            }
            let done = all.answered(slot, changed.len());
            let outcomes: Vec<_> = done.iter().zip(changed).map(outcome_of).collect();
            for (promise, outcome) in done.iter().zip(&outcomes) {
                // A file that could not be closed is closed in the end.
                if let Err(why) = outcome
                    && promise.kind != Kind::Close
                {
                    all.note_loss(slot, promise.number, why);
                }
            }
            (done, outcomes)
        });
        let above = self.above();
        for (promise, outcome) in done.iter().zip(&outcomes) {
            if let Some(kept) = promise.kept {
                self.sequences.release(kept);
            }
            if let Some(above) = &above {
                above.is_kept(&Kept { promise, outcome: outcome.as_ref().copied() });
            }
        }
    }

    /// The session is over, and its promises are lost.
    fn break_promises(&self, why: &Error) {
        let above = self.above();
        self.behind.break_all(why, |kept| {
            if let Some(above) = &above {
                above.is_kept(kept);
            }
        });
    }

    /// The session is about to be left: sends what is pending, if it has not ended. What could not be sent is
    /// lost, and `tell` is called for it.
    pub(crate) fn leave_no_promises(self: &Arc<Session>, tell: impl Fn(&Kept<'_>)) {
        if self.behind.is_idle() {
            return;
        }
        let sent = match self.ended.get() {
            Some(why) => Err(why.clone()),
            None => self.sync_all_promises(Instant::now() + Duration::from_millis(CLOSE_MILLIS_MAX)),
        };
        let why = sent.err().unwrap_or_else(|| Error::new(ErrorKind::Stale, "its session has been left"));
        self.behind.break_all(&why, tell);
    }

    fn ask_many(
        &self,
        line: &mut Line,
        slot: Slot,
        request: &ChangeMany,
        until: Instant,
    ) -> std::result::Result<ManyChanged, Unanswered> {
        let mut header = self.header(Kind::ChangeMany, None, until, self.known_epoch());
        header.slot = slot;
        let mut exchange = Exchange::plain(request);
        line.send_body(Front::default(), header, &exchange.body(), &[], until).map_err(Unanswered::lost)?;
        let received = line.receive_body(header.kind, header.call, until, &mut |body| exchange.take(body))?;
        exchange.finish(line, received)?;
        Ok(exchange.result())
    }

    fn known_epoch(&self) -> Epoch {
        self.known_map().map_or(Epoch(0), |map| map.epoch)
    }

    /// Interprets an error of a server: as the end of the session, if the server confirms that.
    fn confirmed(&self, server: &Arc<Server>, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Stale => self.confirm(server).err().unwrap_or(error),
            _ => error,
        }
    }

    /// Makes sure that there is a thread that sends promises to a slot's server.
    fn start_sender(self: &Arc<Session>, slot: Slot) -> Result<()> {
        let server = self.server_of(&*self.map()?, slot)?.id;
        if !self.behind.senders.lock().insert(server) {
            return Ok(());
        }
        let (behind, session) = (self.behind.clone(), Arc::downgrade(self));
        let started = std::thread::Builder::new().name("ramlace-behind".into()).spawn(move || {
            block_signals();
            let mut sender = Sender { behind, session, server, link: None };
            while sender.look() {}
        });
        started.map(drop).map_err(|error| {
            self.behind.senders.lock().remove(&server);
            Error::from_io(&error, "starting a thread that sends what was promised")
        })
    }
}

/// The body of the reply to a promise, or why it is lost.
fn outcome_of<'a>((promise, changed): (&Promise, &'a Changed)) -> Result<&'a [u8]> {
    if let Some(error) = &changed.error {
        return Err(error.clone().into_error());
    }
    let body = &changed.body.0[..];
    // The file went elsewhere meanwhile, or there was no room.
    let is_written = |written: InlineWritten| written.outcome == InlineOutcome::Written;
    match promise.kind {
        Kind::WriteInline if !decode_body(Kind::WriteInline, body).is_ok_and(is_written) => {
            Err(Error::new(ErrorKind::Stale, "a write that was promised was not done"))
        }
        _ => Ok(body),
    }
}

/// Holds the session only while it sends.
struct Sender {
    behind: Arc<Behind>,
    session: std::sync::Weak<Session>,
    server: ServerId,
    link: Option<Link>,
}

impl Sender {
    /// Does what is due, or sleeps; false when the thread is to end.
    fn look(&mut self) -> bool {
        let Some(session) = self.session.upgrade() else { return false };
        if let Some(why) = session.ended.get() {
            session.break_promises(why);
            return false;
        }
        let map = session.known_map();
        let is_mine = |slot| map.as_ref().and_then(|map| map.primary(slot)) == Some(self.server);
        let due = self.behind.with(|all| all.due(Instant::now(), is_mine));
        let done = match due {
            None => {
                // A slot may have moved to another server by now.
                for slot in self.behind.with(|all| all.with_pending()) {
                    let _ = session.start_sender(slot);
                }
                // The thread to be notified may be the last to hold it.
                drop(session);
                self.sleep();
                return true;
            }
            Some((slot, Due::Send)) => self.send(&session, slot),
            Some((slot, Due::GiveBack(number))) => self.give_back(&session, slot, number),
        };
        if let Err(error) = done {
            self.link = None;
            match error.kind() {
                ErrorKind::Stale if session.is_ended() => {}
                ErrorKind::Redirect(Redirect::Moved) => {
                    let _ = session.refresh_map(Instant::now() + Duration::from_millis(SEND_MILLIS_MAX));
                }
                // The server keeps too many answers of this session: those of slots that are given back go.
                ErrorKind::TooMany => self.behind.with(|all| all.rest(Instant::now())),
                _ => {}
            }
            drop(session);
            std::thread::sleep(PAUSE);
        }
        true
    }

    fn sleep(&self) {
        let all = self.behind.all.lock();
        let rest = if all.count() == 0 { REST } else { LOOK };
        drop(self.behind.changed.wait_timeout(all, rest));
    }

    fn send(&mut self, session: &Arc<Session>, slot: Slot) -> Result<()> {
        let behind = self.behind.clone();
        if !behind.with(|all| all.begin_sending(slot)) {
            return Ok(());
        }
        let until = Instant::now() + Duration::from_millis(SEND_MILLIS_MAX);
        let sent = session.send_promises(slot, until, |request, until| {
            self.exchange(session, slot, request, until).map_err(Unanswered::lost)
        });
        behind.with(|all| all.end_sending(slot, Instant::now()));
        behind.changed.notify_all();
        match sent {
            Ok(true) => Ok(()),
            // There are too many unanswered mutations in the slot.
            Ok(false) => Err(Error::new(ErrorKind::Retry, "nothing could be sent")),
            Err(unanswered) => Err(unanswered.error),
        }
    }

    fn give_back(&mut self, session: &Arc<Session>, slot: Slot, number: u64) -> Result<()> {
        let behind = self.behind.clone();
        if !behind.with(|all| all.begin_giving_back(slot, number)) {
            return Ok(());
        }
        // Nothing is promised there until this has ended, so nothing is pending that this would leave out.
        let request = ChangeMany {
            delegation: number,
            changes: Vec::new(),
            wanted_for: None,
            gives_back: true,
            acknowledged_below: session.sequences.acknowledged_below(slot),
        };
        let until = Instant::now() + Duration::from_millis(SEND_MILLIS_MAX);
        let given = self.exchange(session, slot, &request, until);
        match given {
            Ok(_) => {
                behind.with(|all| all.is_over(slot, number));
                if let Some(above) = session.above() {
                    above.is_given_back(slot);
                }
                Ok(())
            }
            Err(error) => {
                behind.with(|all| all.end_sending(slot, Instant::now()));
                Err(error)
            }
        }
    }

    fn exchange(
        &mut self,
        session: &Arc<Session>,
        slot: Slot,
        request: &ChangeMany,
        until: Instant,
    ) -> Result<ManyChanged> {
        let server = session.server(self.server)?;
        let link = match &mut self.link {
            Some(link) => link,
            none => none.insert(session.connect(&server, until).map_err(|failure| {
                if failure.refused {
                    self.behind.note_refusal(slot, &name_server(&server, &failure.error));
                }
                failure.error
            })?),
        };
        let mut header = session.header(Kind::ChangeMany, None, until, session.known_epoch());
        header.slot = slot;
        let answered = roundtrip(link, header, request, until);
        answered.map_err(|error| session.confirmed(&server, error))
    }
}
