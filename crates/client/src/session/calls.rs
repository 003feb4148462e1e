//! Calls: requests that are repeated until they are answered, also on a new connection or at another server, and
//! that have one effect.

use std::cell::Cell;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use ramlace_base::{Epoch, Error, ErrorKind, Name, Result, ServerId, Slot};
use ramlace_transport::blocking::Received;
use ramlace_wire::{ClusterMap, Front, Header, Kind, Request};

use crate::backoff::Backoff;
use crate::session::Session;
use crate::session::exchange::{AnyExchange, Exchange};
use crate::session::holders::answered_by;
use crate::session::judging::name_server;
use crate::session::lines::{Line, Server, Unanswered, reply_without_data};
use crate::session::places::OnTurn;
use crate::session::retry::{OnRetry, VerdictOfOne, verdict_of_one};
use crate::session::sequences::Ticket;

/// What is sent along with a request, and how it is sent.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) slot: Slot,
    pub(crate) ticket: Option<&'a Ticket<'a>>,
    /// The known path by which it is sent; may be empty.
    pub(crate) path: &'a [Name],
    pub(crate) data: &'a [IoSlice<'a>],
    pub(crate) on_retry: OnRetry,
    /// Set when a reply was lost: a server may still process that copy of the request.
    pub(crate) repeated: Option<&'a Cell<bool>>,
    /// Is told when it has to wait for its turn.
    pub(crate) on_turn: Option<OnTurn<'a>>,
    /// It needs a connection that can pass descriptors.
    pub(crate) local_only: bool,
    pub(crate) deadline: Instant,
}

impl<'a> Call<'a> {
    /// A query about a lane: when the file has another generation, the caller gets Retry.
    pub(crate) fn about_lane(slot: Slot, deadline: Instant) -> Call<'a> {
        Call { on_retry: OnRetry::Tell, ..Call::of_slot(slot, deadline) }
    }

    /// A plain query to a slot.
    pub(crate) fn of_slot(slot: Slot, deadline: Instant) -> Call<'a> {
        Call {
            slot,
            ticket: None,
            path: &[],
            data: &[],
            on_retry: OnRetry::Repeat,
            repeated: None,
            on_turn: None,
            local_only: false,
            deadline,
        }
    }
}

impl Session {
    /// Sends a query to the server of a slot.
    pub(crate) fn ask<R: Request>(
        self: &Arc<Session>,
        slot: Slot,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        self.plain_call(slot, request, None, &[], OnRetry::Repeat, deadline)
    }

    /// Sends a mutation to a slot; it is made exactly once.
    pub(crate) fn change<R: Request>(
        self: &Arc<Session>,
        slot: Slot,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        self.change_by(&[], slot, request, deadline)
    }

    /// The same as long as this path leads to the directory that the request names; else `Astray`, and
    /// nothing has changed.
    pub(crate) fn change_by<R: Request>(
        self: &Arc<Session>,
        path: &[Name],
        slot: Slot,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        let ticket = self.ticket(slot, deadline)?;
        let lost = Cell::new(false);
        let call =
            Call { ticket: Some(&ticket), path, repeated: Some(&lost), ..Call::of_slot(slot, deadline) };
        let changed = self.call(request, &call, |_, received| reply_without_data(received));
        self.answered(R::KIND, ticket, lost.get(), changed)
    }

    /// The same with a sequence number that the caller has.
    pub(crate) fn change_with<R: Request>(
        self: &Arc<Session>,
        ticket: &Ticket<'_>,
        path: &[Name],
        slot: Slot,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        self.plain_call(slot, request, Some(ticket), path, OnRetry::Repeat, deadline)
    }

    /// The same for a mutation that depends on the file's generation: the caller gets Retry.
    pub(crate) fn change_lane<R: Request>(
        self: &Arc<Session>,
        slot: Slot,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        let ticket = self.ticket(slot, deadline)?;
        let lost = Cell::new(false);
        let call = Call { ticket: Some(&ticket), repeated: Some(&lost), ..Call::about_lane(slot, deadline) };
        let changed = self.call(request, &call, |_, received| reply_without_data(received));
        self.answered(R::KIND, ticket, lost.get(), changed)
    }

    /// Sends a query about a lane; when the file has another generation, the caller gets Retry.
    pub(crate) fn ask_lane<R: Request>(
        self: &Arc<Session>,
        slot: Slot,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        self.plain_call(slot, request, None, &[], OnRetry::Tell, deadline)
    }

    fn plain_call<R: Request>(
        self: &Arc<Session>,
        slot: Slot,
        request: &R,
        ticket: Option<&Ticket<'_>>,
        path: &[Name],
        on_retry: OnRetry,
        deadline: Instant,
    ) -> Result<R::Reply> {
        let call = Call { ticket, path, on_retry, ..Call::of_slot(slot, deadline) };
        self.call(request, &call, |_, received| reply_without_data(received))
    }

    /// Sends a request until it is answered or its deadline has passed; `finish` takes the reply, and its
    /// data from the connection. If a lane refuses its permit, because the pool's secret has changed, it is
    /// sent once more with the same number: it may have been done before, and its reply lost.
    pub(crate) fn call<R: Request, T>(
        self: &Arc<Session>,
        request: &R,
        call: &Call<'_>,
        finish: impl FnMut(&mut Line, Received<R::Reply>) -> std::result::Result<T, Unanswered>,
    ) -> Result<T> {
        let mut exchange = Exchange::new(request, finish);
        self.call_until_answered(&mut exchange, call)?;
        Ok(exchange.result())
    }

    fn call_until_answered(
        self: &Arc<Session>,
        exchange: &mut dyn AnyExchange,
        call: &Call<'_>,
    ) -> Result<()> {
        let _direct = self.before_asking(call.slot, exchange.kind(), call.deadline)?;
        let mut backoff = Backoff::new(call.deadline);
        loop {
            let map = self.map()?;
            let server = self.server_of(&map, call.slot)?;
            let unanswered = match self.attempt(&server, &map, exchange, call) {
                Ok(()) => return Ok(()),
                Err(unanswered) => unanswered,
            };
            if !unanswered.from_server
                && let Some(repeated) = call.repeated
            {
                repeated.set(true);
            }
            // It was refused because of answers that the server keeps: nothing has happened. What acknowledges them is itself
            // a call.
            let may_acknowledge = exchange.kind() != Kind::CancelChange;
            if unanswered.is_too_many() && may_acknowledge && self.acknowledge_many(server.id, call.deadline)
            {
                continue;
            }
            let judged = self.judge(&server, map.epoch, unanswered, call.on_retry, call.deadline);
            judged.before_next(&mut backoff, || self.renew_permit_of(exchange))?;
        }
    }

    /// Gives the request another permit than the one that a lane has refused; false if there is none.
    fn renew_permit_of(&self, refused: &mut dyn AnyExchange) -> Result<bool> {
        let Some((inode, permit)) = refused.permit() else { return Ok(false) };
        let Some(above) = self.above() else { return Ok(false) };
        Ok(above.renew_permit(inode, permit)?.is_some_and(|permit| refused.renew(permit)))
    }

    fn attempt(
        &self,
        server: &Arc<Server>,
        map: &ClusterMap,
        exchange: &mut dyn AnyExchange,
        call: &Call<'_>,
    ) -> std::result::Result<(), Unanswered> {
        let (mut line, deadline) = self.line_in_turn(server, call.deadline, call.on_turn)?;
        if call.local_only && !line.is_local() {
            return Err(Unanswered::from_server(Error::new(
                ErrorKind::Unsupported,
                format!("{} is not reached through this machine's memory", server.id),
            )));
        }
        let kind = exchange.kind();
        let mut header = self.header(kind, call.ticket, answered_by(kind, deadline), map.epoch);
        header.slot = call.slot;
        let who = crate::acting::current_for(kind);
        let front = Front { who: who.as_ref(), path: call.path };
        let received = self.exchange(&mut line, front, header, call.data, exchange, deadline)?;
        if call.ticket.is_some() {
            line.loses_reply()?;
        }
        exchange.finish(&mut line, received)?;
        server.note_answer(true);
        Ok(())
    }

    /// Sends a query to one server, whatever its slots.
    pub(crate) fn ask_server<R: Request>(
        self: &Arc<Session>,
        server: ServerId,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        self.map()?;
        if R::KIND.row().of_many_slots {
            self.keep_promises_to(server, deadline)?;
        }
        let server = self.server(server)?;
        let mut exchange = Exchange::plain(request);
        self.ask_until_answered(&server, &mut exchange, deadline)?;
        Ok(exchange.result())
    }

    fn ask_until_answered(
        &self,
        server: &Arc<Server>,
        exchange: &mut dyn AnyExchange,
        deadline: Instant,
    ) -> Result<()> {
        let mut backoff = Backoff::new(deadline);
        let mut silences = 0;
        loop {
            let error = match self.try_exchange(server, exchange, deadline) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match verdict_of_one(error.kind(), silences) {
                VerdictOfOne::AfterPause => backoff.pause_after(error)?,
                VerdictOfOne::AtOnce => silences += 1,
                VerdictOfOne::Over if error.kind() == ErrorKind::HostDown => {
                    return Err(name_server(server, &error));
                }
                VerdictOfOne::Over => return Err(error),
            }
        }
    }

    /// A single attempt.
    pub(crate) fn try_server<R: Request>(
        &self,
        server: &Arc<Server>,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        let mut exchange = Exchange::plain(request);
        self.try_exchange(server, &mut exchange, deadline)?;
        Ok(exchange.result())
    }

    fn try_exchange(
        &self,
        server: &Arc<Server>,
        exchange: &mut dyn AnyExchange,
        deadline: Instant,
    ) -> Result<()> {
        let asked =
            self.line(server, deadline).and_then(|(line, deadline)| self.ask_on(line, exchange, deadline));
        asked.map_err(|unanswered| {
            if !unanswered.from_server {
                server.drop_idle();
            }
            unanswered.error
        })
    }

    /// The same with this time limit, even if all connections are in use. A late reply says nothing about the
    /// connections: they stay.
    pub(crate) fn try_server_by<R: Request>(
        &self,
        server: &Arc<Server>,
        request: &R,
        until: Instant,
    ) -> Result<R::Reply> {
        let mut exchange = Exchange::plain(request);
        let asked = self.line_by(server, until).and_then(|line| self.ask_on(line, &mut exchange, until));
        asked.map_err(|unanswered| unanswered.error)?;
        Ok(exchange.result())
    }

    fn ask_on(
        &self,
        mut line: Line,
        exchange: &mut dyn AnyExchange,
        deadline: Instant,
    ) -> std::result::Result<(), Unanswered> {
        let kind = exchange.kind();
        let epoch = self.known_map().map_or(Epoch(0), |map| map.epoch);
        let header = self.header(kind, None, answered_by(kind, deadline), epoch);
        let received = self.exchange(&mut line, Front::default(), header, &[], exchange, deadline)?;
        exchange.finish(&mut line, received)
    }

    /// Sends a request, and takes the body of its reply.
    fn exchange(
        &self,
        line: &mut Line,
        front: Front<'_>,
        header: Header,
        data: &[IoSlice<'_>],
        exchange: &mut dyn AnyExchange,
        deadline: Instant,
    ) -> std::result::Result<Received<()>, Unanswered> {
        line.send_body(front, header, &exchange.body(), data, deadline).map_err(Unanswered::lost)?;
        let deadline = self.await_answer(header.kind, line, deadline)?;
        line.receive_body(header.kind, header.call, deadline, &mut |body| exchange.take(body))
    }
}
