//! Changes of files in directories whose slot is delegated to this session: their answers are predicted here
//! ([`crate::names::predicting`]), and they are sent later, many in one message ([`crate::session::behind`]).
//!
//! The first create in a directory of a slot requests the slot's delegation; that create is waited for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, InodeId, Result, Sequence, Slot, Timestamp, limits};
use ramlace_wire::delegation::{ChangeMany, Delegated, ManyChanged};
use ramlace_wire::inline::{InlineWritten, Promote, Promoted, WriteInline};
use ramlace_wire::namespace::{Close, Closed, Create, Opened, SetAttributes};
use ramlace_wire::{Attributes, Kind, Layout, LayoutHints, Request, decode_body, decode_reply, encode_body};

use crate::callbacks::Broken;
use crate::client::Client;
use crate::names::predicting::KnownSlot;
use crate::session::behind::{Direct, Kept};
use crate::session::calls::Call;
use crate::session::lines::reply_without_data;
use crate::session::many::one_of_many;
use crate::session::pending::Message;
use crate::session::promises::{Promise, Version};

/// A slot whose delegation was refused is not requested again for this long.
const REFUSED: Duration = Duration::from_millis(limits::DELEGATION_REST_MILLIS);
/// The number of refused slots that are remembered.
const REFUSED_MAX: usize = 1_024;

/// What is known of slots that are delegated to this session.
#[derive(Default)]
pub(crate) struct Known {
    slots: HashMap<Slot, (Version, Clock, KnownSlot)>,
    refused: HashMap<Slot, Instant>,
}

/// An estimate of a server's clock, never ahead of it.
#[derive(Clone, Copy)]
struct Clock {
    server_time: Timestamp,
    at: Instant,
    /// The last time that was given out: the next is later.
    last: Timestamp,
}

impl Clock {
    fn new(server_time: Timestamp) -> Clock {
        Clock { server_time, at: Instant::now(), last: server_time }
    }

    fn now(&mut self) -> Timestamp {
        let passed = i64::try_from(self.at.elapsed().as_nanos()).unwrap_or(i64::MAX);
        let now = self.server_time.nanos.saturating_add(passed).max(self.last.nanos.saturating_add(1));
        self.last = Timestamp { nanos: now };
        self.last
    }
}

impl Client {
    /// Creates a file in a directory that is delegated to this session, or may become so; `None`: it is to be
    /// created in the usual way. `is_free` says whether there is certainly no such name when it is called: it
    /// is called while the slot is delegated, so that nobody else has made one since.
    pub(crate) fn create_behind(
        self: &Arc<Client>,
        request: &Create,
        is_free: impl FnOnce() -> bool,
    ) -> Option<Result<Opened>> {
        let slot = request.parent.slot();
        if !self.settings.behind || !request.named.is_empty() || request.wish.hints != LayoutHints::default()
        {
            return None;
        }
        let version = self.behind.version(slot);
        let is_free = version.is_some() && is_free();
        let promised = self.promised(slot, |known, at| {
            // What was known when the name was free is known now.
            let since = self.behind.version(slot).map(|now| now.names);
            if !is_free || since != version.map(|then| then.names) {
                return None;
            }
            let layout = self.usual_layout(request, known.entries(request.parent)?)?;
            let opened = known.create(request, layout, at)?;
            let sent = Create { layout: Some(layout), ..request.clone() };
            let inode = opened.info.attributes.inode;
            let made = promise(Kind::Create, inode, at, &sent, &opened);
            Some((Promise { makes: true, directory: Some(request.parent), ..made }, opened))
        });
        match promised {
            Some(opened) => Some(Ok(opened)),
            None if self.may_ask_for(slot) => self.create_and_ask(slot, request),
            None => None,
        }
    }

    /// The layout that a directory's server gives a new file, where nothing is asked for and nothing inherited.
    fn usual_layout(&self, request: &Create, entries: u64) -> Option<Layout> {
        let (map, usual) = (self.known_map()?, LayoutHints::default());
        let key = ramlace_layout::name_key(request.parent, request.name.as_bytes());
        let answers = |server| !request.wish.silent.contains(&server);
        let first = ramlace_layout::first_server(usual, &map, request.parent.slot(), entries);
        let layout = ramlace_layout::choose_from(first, usual, &map, answers, key).ok()?;
        Some(Layout { stripe_unit: layout.stripe_unit.max(request.wish.stripe_unit_min), ..layout })
    }

    fn may_ask_for(&self, slot: Slot) -> bool {
        let known = self.known.lock();
        known.refused.get(&slot).is_none_or(|until| *until <= Instant::now())
    }

    /// Creates a file, and requests its directory's slot. `None` where the directory is spread, or the slot
    /// has moved: nothing was done.
    fn create_and_ask(self: &Arc<Client>, slot: Slot, request: &Create) -> Option<Result<Opened>> {
        if self.spreads.get(request.parent).is_some() || self.listen_to_recalls_of(slot).is_err() {
            return None;
        }
        let deadline = self.deadline();
        let asking = match self.begin_asking(slot, deadline) {
            Ok(asking) => asking,
            Err(error) => return Some(Err(error)),
        };
        let (opened, delegated) = match self.create_and_delegate(slot, request, deadline) {
            Ok(created) => created,
            Err(error) => {
                return if matches!(error.kind(), ErrorKind::Redirect(_)) { None } else { Some(Err(error)) };
            }
        };
        // Any other layout is inherited from the directory, and cannot be predicted for others.
        let entries = |given: &Delegated| given.directory.attributes.size.saturating_sub(1);
        let layout = delegated.as_ref().and_then(|given| self.usual_layout(request, entries(given)));
        let made = opened.info.layout.filter(|_| opened.created);
        let is_usual = layout.zip(made).is_some_and(|(layout, made)| {
            Layout { created: made.created, base_slot: made.base_slot, stride: made.stride, ..layout } == made
        });
        let known = delegated.as_ref().map(|given| self.is_delegated(asking, given.number).unwrap_or(None));
        match (known, delegated) {
            (Some(Some(version)), Some(given)) if is_usual => {
                let slot_known = KnownSlot::new(&given, opened.leased.names);
                self.known.lock().slots.insert(slot, (version, Clock::new(given.now), slot_known));
            }
            // Another change was under way: the next create requests the slot again.
            (Some(None), _) => {}
            // If it is delegated all the same, it is given back when another session wants it, or when it is
            // idle.
            _ => self.note_refused(slot),
        }
        Some(Ok(opened))
    }

    fn create_and_delegate(
        self: &Arc<Client>,
        slot: Slot,
        request: &Create,
        deadline: Instant,
    ) -> Result<(Opened, Option<Box<Delegated>>)> {
        let ticket = self.ticket(slot, deadline)?;
        let lost = std::cell::Cell::new(false);
        let (changes, wanted_for) = (vec![one_of_many(request, &ticket)], Some(request.parent));
        let many = ChangeMany {
            delegation: 0,
            changes,
            wanted_for,
            gives_back: false,
            acknowledged_below: Sequence(0),
        };
        let call = Call { repeated: Some(&lost), ..Call::of_slot(slot, deadline) };
        let answer = self
            .call(&many, &call, |_, received| reply_without_data(received))
            .and_then(|changed| first_of(request, changed));
        self.answered(Create::KIND, ticket, lost.get(), answer)
    }

    fn note_refused(&self, slot: Slot) {
        let (now, mut known) = (Instant::now(), self.known.lock());
        if known.refused.len() >= REFUSED_MAX {
            known.refused.retain(|_, until| *until > now);
        }
        known.refused.insert(slot, now + REFUSED);
    }

    /// Nothing is known of a slot any more.
    pub(crate) fn forget_delegated(&self, slot: Slot) {
        self.known.lock().slots.remove(&slot);
    }

    /// Promises a change of a slot, if its answer can be predicted.
    fn promised<T>(
        self: &Arc<Client>,
        slot: Slot,
        work: impl FnOnce(&mut KnownSlot, Timestamp) -> Option<(Promise, T)>,
    ) -> Option<T> {
        let mut known = self.known.lock();
        let version = self.behind.version(slot)?;
        let (of, clock, of_slot) = known.slots.get_mut(&slot)?;
        if of.names != version.names {
            known.slots.remove(&slot);
            return None;
        }
        if of.files != version.files {
            of_slot.forget_files();
            *of = version;
        }
        let (promise, answer) = work(of_slot, clock.now())?;
        if self.behind.promise(slot, version, promise).is_err() {
            // The prediction cannot be promised, so it must not be the base of others.
            known.slots.remove(&slot);
            return None;
        }
        drop(known);
        if self.behind.is_nearly_full(slot) {
            // A caller that promises faster than promises are sent has to wait. An error is reported by the
            // next request.
            let _ = self.keep_promises(slot, self.deadline());
        }
        Some(answer)
    }

    /// Writes to a small file.
    pub(crate) fn write_behind(self: &Arc<Client>, request: &WriteInline) -> Option<InlineWritten> {
        self.promised(request.inode.slot(), |known, at| {
            let written = known.write(request, at)?;
            Some((promise(Kind::WriteInline, request.inode, at, request, &written), written))
        })
    }

    /// Changes attributes of a file.
    pub(crate) fn set_attributes_behind(self: &Arc<Client>, request: &SetAttributes) -> Option<Attributes> {
        self.promised(request.inode.slot(), |known, at| {
            let set = known.set_attributes(request, at)?;
            Some((promise(Kind::SetAttributes, request.inode, at, request, &set), set))
        })
    }

    /// Closes the session's last open file of an inode.
    pub(crate) fn close_behind(self: &Arc<Client>, request: &Close) -> Option<()> {
        self.promised(request.inode.slot(), |known, at| {
            known.close(request, at)?;
            Some((promise(Kind::Close, request.inode, at, request, &Closed::default()), ()))
        })
    }

    /// Promotes an inline file without bytes to its lanes.
    pub(crate) fn promote_behind(self: &Arc<Client>, request: Promote) -> Option<Promoted> {
        self.promised(request.inode.slot(), |known, at| {
            let promoted = known.promote(request.inode)?;
            Some((promise(Kind::Promote, request.inode, at, &request, &promoted), promoted))
        })
    }

    /// To be called before a change of an inode that may be a directory: it invalidates what is known of the
    /// slot's directories.
    pub(crate) fn before_changing(&self, inode: InodeId) -> Option<Direct<'_>> {
        // An inode that is open here is a file.
        if self.inodes.find(inode).is_some() { None } else { self.begin_direct(inode.slot()) }
    }

    /// To be called before bytes of a file are written to its lanes, which ask its home: sends what was
    /// promised of the file, and invalidates what is known of files in its slot.
    pub(crate) fn before_lanes(self: &Arc<Client>, inode: InodeId) -> Result<()> {
        let slot = inode.slot();
        if self.behind.version(slot).is_some() {
            self.behind.begin_direct_of_files(slot);
            self.keep_promises(slot, self.deadline())?;
        }
        Ok(())
    }

    /// The number of changes so far, before a change of a file is sent by itself; see `learn_file`.
    pub(crate) fn before_direct(&self, slot: Slot) -> Option<u64> {
        self.behind.version(slot)?;
        self.behind.quiet(slot)
    }

    /// The attributes of a file after a change that was sent by itself: they are known if there was no other
    /// change since `before`.
    pub(crate) fn learn_file(&self, before: Option<u64>, attributes: &Attributes) {
        let (Some(before), slot) = (before, attributes.inode.slot()) else { return };
        let mut known = self.known.lock();
        let Some(version) = self.behind.version(slot) else { return };
        if self.behind.quiet(slot) != Some(before + 1) {
            return;
        }
        if let Some((of, _, of_slot)) =
            known.slots.get_mut(&slot).filter(|(of, _, _)| of.names == version.names)
        {
            if of.files != version.files {
                of_slot.forget_files();
                *of = version;
            }
            of_slot.learn_file(attributes);
        }
    }

    /// Attributes of a file that was created by a promise, as predicted; without a request.
    pub(crate) fn promised_attributes(&self, inode: InodeId) -> Option<Attributes> {
        let slot = inode.slot();
        let version = self.behind.version(slot)?;
        let known = self.known.lock();
        let (of, _, of_slot) = known.slots.get(&slot)?;
        (*of == version).then(|| of_slot.attributes(inode).cloned()).flatten()
    }

    /// A promise was answered. If the answer differs from the prediction, callers that cached something
    /// because of it are notified.
    pub(crate) fn check_prediction(&self, kept: &Kept<'_>) {
        let Kept { promise, outcome } = kept;
        let news = match outcome {
            Ok(body) if promise.kind == Kind::Create => unlike_opened(&promise.answer, body),
            Ok(body) if promise.kind == Kind::SetAttributes => (promise.answer != **body).then_some(()),
            Ok(_) => None,
            Err(_) if promise.kind == Kind::Close => {
                // Its home may have it open still.
                self.send_later(Message::CloseOpened(promise.inode));
                None
            }
            Err(error) => {
                let lost = Broken::Lost { error: (*error).clone(), directory: promise.directory };
                self.tell_broken(promise.inode, &lost);
                return;
            }
        };
        if news.is_some() {
            self.tell_broken(promise.inode, &Broken::Unlike);
        }
    }

    fn tell_broken(&self, inode: InodeId, broken: &Broken) {
        if let Some(on_broken) = self.callbacks.on_broken.get() {
            on_broken(inode, broken);
        }
    }
}

fn promise<R: Request>(kind: Kind, inode: InodeId, at: Timestamp, request: &R, answer: &R::Reply) -> Promise {
    Promise {
        kind,
        inode,
        directory: None,
        makes: false,
        at,
        body: encode_body(request),
        answer: encode_body(answer),
        kept: None,
        number: 0,
    }
}

/// The outcome of a message with a single change.
fn first_of(request: &Create, reply: ManyChanged) -> Result<(Opened, Option<Box<Delegated>>)> {
    let none = || Error::new(ErrorKind::Retry, "the change is to be asked again");
    let first = reply.changed.into_iter().next().ok_or_else(none)?;
    if let Some(error) = first.error {
        return Err(error.into_error());
    }
    Ok((decode_reply(request, &first.body.0)?, reply.delegated))
}

/// `Some` if a create was answered differently than predicted: another file was made, or less of it is
/// leased.
fn unlike_opened(predicted: &[u8], body: &[u8]) -> Option<()> {
    let decoded = |bytes| decode_body::<Opened>(Kind::Create, bytes).ok();
    let (predicted, done) = (decoded(predicted)?, decoded(body));
    let is_like = done.is_some_and(|done| {
        done.info.attributes == predicted.info.attributes
            && (done.leased.names || !predicted.leased.names)
            && done.leased.attributes
            && done.parent == predicted.parent
    });
    (!is_like).then_some(())
}

#[cfg(test)]
mod tests {
    use ramlace_wire::Credentials;
    use ramlace_wire::namespace::Open;

    use super::*;
    use crate::fake::FakePool;
    use crate::{OpenOptions, Pool};

    /// The slot of a file in the root becomes the client's, which knows the file.
    fn delegate(pool: &FakePool, client: &Pool, file: InodeId) {
        let (session, slot) = (client.session().unwrap(), file.slot());
        let asking = session.begin_asking(slot, session.deadline()).unwrap();
        let version = session.is_delegated(asking, 7).unwrap().unwrap();
        let info = |inode| pool.state().inodes[&inode].info.clone();
        let given = Delegated {
            number: 7,
            directory: info(InodeId::ROOT),
            who: Credentials::new(0, 0),
            next: InodeId::new(slot, 1_000),
            now: Timestamp { nanos: 1 },
        };
        let mut known = KnownSlot::new(&given, false);
        known.learn_file(&info(file).attributes);
        session.known.lock().slots.insert(slot, (version, Clock::new(given.now), known));
    }

    #[test]
    fn an_open_by_name_knows_of_a_close_that_is_promised_meanwhile() {
        let pool = FakePool::start(1);
        let client = pool.connect();
        let file = client.open("/file", &OpenOptions::creating()).unwrap();
        let (inode, session) = (file.inode(), client.session().unwrap());
        delegate(&pool, &client, inode);
        let opens = session.inodes.open_by_name();
        assert!(!opens.may_be_closed(inode, false));
        drop(file);
        assert_eq!(pool.seen(Kind::Close), 0, "it is promised");
        assert!(opens.may_be_closed(inode, false));
    }

    #[test]
    fn a_close_that_its_home_may_have_done_already_is_not_promised() {
        let pool = FakePool::start(1);
        let inode = pool.connect().open("/file", &OpenOptions::creating()).unwrap().inode();
        let client = pool.connect();
        let session = client.session().unwrap();
        // Its caller got no answer.
        let open = Open { inode, read: true, write: false, run: false };
        session.change(inode.slot(), &open, session.deadline()).unwrap();
        delegate(&pool, &client, inode);
        let before = pool.seen(Kind::Close);
        session.tell_closed(inode, true, session.deadline()).unwrap();
        assert_eq!(pool.seen(Kind::Close), before + 1);
        assert!(pool.state().open.is_empty());
    }
}
