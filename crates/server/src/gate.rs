//! The gate for replies: every answer to a request is sent here, in the order of its connection. An answer waits
//! here while a client may still use a lease on something that the answer shows to be changed. Answers will also
//! wait here for replicas.
//!
//! A request notes the slots that it reads or changes ([`Call::saw`], which the admission of a slot calls).
//! Its answer waits for the recalls that are pending in these slots when it is made. Meanwhile its connection
//! goes on with the next request: at most [`limits::ANSWERS_AT_GATE_PER_CONNECTION_MAX`] answers wait.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use ramlace_base::{Error, ErrorKind, Result, Slot, Timestamp, limits};
use ramlace_store::Window;
use ramlace_transport::RawSegment;
use ramlace_transport::nonblocking::Connection;
use ramlace_wire::{Header, Shows};

use crate::server::counts::Timed;
use crate::server::lease_desk::Recalled;
use crate::server::outgoing::PagesSent;
use crate::server::{Outcome, Refusal, Server};

/// A request under way, and the slots that its answer may show.
pub struct Call {
    header: Header,
    /// The slots that its answer may show: one, and any more.
    saw_first: Cell<Option<Slot>>,
    saw_more: RefCell<BTreeSet<Slot>>,
    /// Data recalls that its change has made, or found pending.
    recalls: RefCell<Vec<u64>>,
    shows: Shows,
    asked_for_map: Cell<bool>,
    /// When its session promised it, if it was promised under a delegation.
    promised: Option<Timestamp>,
}

impl Call {
    /// A request begins.
    pub fn new(header: &Header) -> Call {
        let (saw_first, saw_more, recalls, asked_for_map) = Default::default();
        let shows = header.kind.row().shows;
        Call { header: *header, saw_first, saw_more, recalls, shows, asked_for_map, promised: None }
    }

    /// One of the many changes that a request consists of.
    pub fn part(&self, header: &Header, promised: Option<Timestamp>) -> Call {
        Call { promised, asked_for_map: Cell::new(true), ..Call::new(header) }
    }

    /// Makes the request's answer wait for what its part waits for.
    pub fn absorb(&self, part: Call) {
        part.slots_seen().for_each(|slot| self.note(slot));
        self.recalls.borrow_mut().extend(part.recalls.into_inner());
    }

    /// When its session promised it, if it was promised under a delegation.
    pub fn promised(&self) -> Option<Timestamp> {
        self.promised
    }

    /// Whether the map may be fetched because of this request's epoch: once, however many slots the request
    /// names.
    pub fn may_ask_for_map(&self) -> bool {
        !self.asked_for_map.replace(true)
    }

    /// Its answer may reveal what is in this slot.
    pub fn saw(&self, slot: Slot) {
        if self.shows != Shows::Nothing {
            self.note(slot);
        }
    }

    fn note(&self, slot: Slot) {
        match self.saw_first.get() {
            None => self.saw_first.set(Some(slot)),
            Some(first) if first == slot => {}
            Some(_) => _ = self.saw_more.borrow_mut().insert(slot),
        }
    }

    fn slots_seen(&self) -> impl Iterator<Item = Slot> {
        self.saw_first.get().into_iter().chain(self.saw_more.borrow().iter().copied().collect::<Vec<_>>())
    }

    /// Its answer waits for the clients that have pages of the bytes that it changes.
    pub fn waits_for(&self, recalls: Vec<u64>) {
        self.recalls.borrow_mut().extend(recalls);
    }
}

impl Deref for Call {
    type Target = Header;
    fn deref(&self) -> &Header {
        &self.header
    }
}

/// The answer to a request.
pub enum Answer {
    /// A body alone.
    Body(Vec<u8>),
    /// A body, and a copy of some bytes.
    Staged(Vec<u8>, Vec<u8>),
    /// A body, and bytes in the store.
    InPlace {
        /// The body.
        body: Vec<u8>,
        /// Keeps the segments mapped.
        window: Window,
        /// The bytes.
        segments: Vec<RawSegment>,
        /// Where a kernel keeps them.
        pages: Option<PagesSent>,
    },
    /// A body, and a descriptor.
    Descriptor(Vec<u8>, OwnedFd),
}

impl Answer {
    /// Whether the connection takes no other request before it is sent.
    fn is_large(&self) -> bool {
        match self {
            Answer::InPlace { .. } => true,
            Answer::Staged(_, bytes) => bytes.len() > limits::STAGED_BYTES_MAX,
            Answer::Body(_) | Answer::Descriptor(..) => false,
        }
    }

    /// Bytes of memory that it takes until it is sent, without those in the store.
    fn held_bytes(&self) -> usize {
        match self {
            Answer::Body(body) | Answer::Descriptor(body, _) | Answer::InPlace { body, .. } => body.len(),
            Answer::Staged(body, bytes) => body.len() + bytes.len(),
        }
    }

    /// Bytes of its body and data.
    fn sent_bytes(&self) -> u64 {
        let bytes = match self {
            Answer::Body(body) | Answer::Descriptor(body, _) => body.len(),
            Answer::Staged(body, bytes) => body.len() + bytes.len(),
            Answer::InPlace { body, segments, .. } => {
                body.len() + segments.iter().map(|segment| segment.length).sum::<usize>()
            }
        };
        bytes as u64
    }
}

/// An answer at the gate.
struct Held {
    header: Header,
    timed: Timed,
    outcome: Outcome<Answer>,
    recalled: Recalled,
    /// When it is replaced by the error that it is too late; `None`: it waits as long as it takes.
    until: Option<Instant>,
}

/// The answers of one connection that are not sent yet, in order.
#[derive(Default)]
pub struct Gate {
    held: VecDeque<Held>,
}

impl Gate {
    /// Whether the limit of waiting answers is reached.
    pub fn is_full(&self) -> bool {
        self.held.len() >= limits::ANSWERS_AT_GATE_PER_CONNECTION_MAX
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Sends all answers: no more requests come.
    pub async fn drain(mut self, server: &Server, connection: &mut Connection) -> Result<()> {
        while !self.is_empty() {
            self.wait(server).await;
            self.release(server, connection).await?;
        }
        connection.flush().await
    }

    /// Takes an answer, and sends it at once if nothing has to be waited for. Only errors of the connection
    /// are returned.
    pub async fn answer(
        &mut self,
        server: &Rc<Server>,
        connection: &mut Connection,
        call: &Call,
        timed: Timed,
        outcome: Outcome<Answer>,
        until: Option<Instant>,
    ) -> Result<()> {
        let bytes_alone = call.shows == Shows::Bytes;
        let mut recalled = server.leases.recalled(call.slots_seen(), bytes_alone);
        recalled.data = call.recalls.take();
        recalled.data.retain(|number| server.data.is_any_waited(&[*number]));
        // A window, or many bytes, are not held longer than it takes to send them.
        let is_large = outcome.as_ref().is_ok_and(Answer::is_large);
        if self.is_empty() && recalled.is_empty() {
            return send(server, connection, **call, &timed, outcome).await;
        }
        self.held.push_back(Held { header: **call, timed, outcome, recalled, until });
        if !self.is_first_free() {
            connection.hold_beside(self.held_bytes());
        }
        while !self.is_empty() && (is_large || self.is_first_free()) {
            self.wait(server).await;
            self.release(server, connection).await?;
        }
        Ok(())
    }

    /// The bytes of memory that the waiting answers take.
    fn held_bytes(&self) -> usize {
        let answers = self.held.iter().filter_map(|held| held.outcome.as_ref().ok());
        answers.map(Answer::held_bytes).sum()
    }

    fn is_first_free(&self) -> bool {
        self.held.front().is_some_and(|first| first.recalled.is_empty())
    }

    /// Waits until the first answer may be sent; for ever if there is none. May be dropped while it waits.
    pub async fn wait(&mut self, server: &Server) {
        let Some(first) = self.held.front_mut() else { return std::future::pending().await };
        if first.recalled.is_empty() {
            return;
        }
        let passed = async {
            server.leases.pass(&first.recalled).await;
            server.data.pass(&first.recalled.data).await;
        };
        match first.until {
            None => passed.await,
            Some(until) => {
                if tokio::time::timeout_at(until.into(), passed).await.is_err() {
                    first.outcome = Err(too_late(&first.header));
                }
            }
        }
        first.recalled = Recalled::default();
    }

    /// Sends the first answer. Only errors of the connection are returned.
    pub async fn release(&mut self, server: &Server, connection: &mut Connection) -> Result<()> {
        let Some(Held { header, timed, outcome, .. }) = self.held.pop_front() else { return Ok(()) };
        connection.hold_beside(self.held_bytes());
        send(server, connection, header, &timed, outcome).await
    }
}

/// Sends an answer that waits for nothing. Only errors of the connection are returned.
async fn send(
    server: &Server,
    connection: &mut Connection,
    header: Header,
    timed: &Timed,
    outcome: Outcome<Answer>,
) -> Result<()> {
    let outcome = match outcome {
        Ok(Answer::InPlace { pages: Some(pages), .. }) if !pages.begin(connection) => {
            let text = "others have changed these bytes before they were sent";
            Err(Error::new(ErrorKind::Retry, text).into())
        }
        other => other,
    };
    server.counts.end(timed, outcome.as_ref().map(Answer::sent_bytes).map_err(|refusal| &refusal.error));
    let reply = header.reply(server.membership.epoch());
    match outcome {
        Ok(Answer::Body(body)) => connection.queue_reply(reply, &body, &[]),
        Ok(Answer::Staged(body, bytes)) => connection.queue_reply(reply, &body, &bytes),
        Ok(Answer::InPlace { body, window: _window, segments, pages }) => {
            let copy = pages.as_ref().map(PagesSent::copy);
            // SAFETY: the window keeps the segments mapped until this call has returned; what is no part of it is
            // static.
            return unsafe { connection.send_in_place(reply, &body, &segments, copy).await };
        }
        Ok(Answer::Descriptor(body, descriptor)) => {
            return connection.send_descriptor(reply, &body, descriptor.as_fd()).await;
        }
        Err(refusal) => server.refuse(connection, &header, &refusal),
    }
    Ok(())
}

/// The operation itself continues; a retry finds its answer.
pub fn too_late(header: &Header) -> Refusal {
    let text = format!("{:?} was not done within its {} ms", header.kind, header.deadline_millis);
    Error::new(ErrorKind::TimedOut, text).into()
}
