//! Calls that survive a lost connection, with one effect.

use std::cell::Cell;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use ramlace_base::{Epoch, Error, ErrorKind, Name, Redirect, Result, ServerId, Slot};
use ramlace_transport::blocking::Received;
use ramlace_wire::{ClusterMap, Front, Request};

use crate::backoff::Backoff;
use crate::session::Session;
use crate::session::holders::answered_by;
use crate::session::lines::{Line, Server, Unanswered, unbelievable};
use crate::session::sequences::Ticket;

/// What to do when a server answers Retry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnRetry {
    /// Ask again after a pause.
    Repeat,
    /// Tell the caller: what it believes of the file is outdated.
    Tell,
}

/// A request with all that goes with it.
pub(crate) struct Call<'a, R> {
    pub(crate) slot: Slot,
    pub(crate) request: &'a R,
    pub(crate) ticket: Option<&'a Ticket<'a>>,
    /// The path by which it goes, if it does.
    pub(crate) way: &'a [Name],
    pub(crate) data: &'a [IoSlice<'a>],
    pub(crate) on_retry: OnRetry,
    /// Set when it is sent again after its connection was lost.
    pub(crate) repeated: Option<&'a Cell<bool>>,
    /// Only a connection on which descriptors travel will do.
    pub(crate) local_only: bool,
    pub(crate) deadline: Instant,
}

impl<'a, R> Call<'a, R> {
    /// A question about a lane: when the file has another generation, Retry goes to the caller.
    pub(crate) fn about_lane(slot: Slot, request: &'a R, deadline: Instant) -> Call<'a, R> {
        Call { on_retry: OnRetry::Tell, ..Call::of_slot(slot, request, deadline) }
    }

    /// A question, with nothing that goes along.
    pub(crate) fn of_slot(slot: Slot, request: &'a R, deadline: Instant) -> Call<'a, R> {
        let (on_retry, repeated) = (OnRetry::Repeat, None);
        Call {
            slot,
            request,
            ticket: None,
            way: &[],
            data: &[],
            on_retry,
            repeated,
            local_only: false,
            deadline,
        }
    }
}

impl Session {
    /// Asks the server of a slot; nothing is changed.
    pub(crate) fn ask<R: Request>(
        self: &Arc<Session>,
        slot: Slot,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        self.plain_call(slot, request, None, &[], OnRetry::Repeat, deadline)
    }

    /// Changes something in a slot, exactly once.
    pub(crate) fn change<R: Request>(
        self: &Arc<Session>,
        slot: Slot,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        self.change_by(&[], slot, request, deadline)
    }

    /// The same as long as this path leads to the directory that the request names; else `Astray`, and nothing has changed.
    pub(crate) fn change_by<R: Request>(
        self: &Arc<Session>,
        way: &[Name],
        slot: Slot,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        let ticket = self.ticket(slot, deadline)?;
        self.change_with(&ticket, way, slot, request, deadline)
    }

    /// The same by a number that the caller has.
    pub(crate) fn change_with<R: Request>(
        self: &Arc<Session>,
        ticket: &Ticket<'_>,
        way: &[Name],
        slot: Slot,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        self.plain_call(slot, request, Some(ticket), way, OnRetry::Repeat, deadline)
    }

    /// The same for a change that depends on the file's generation: Retry goes to the caller.
    pub(crate) fn change_lane<R: Request>(
        self: &Arc<Session>,
        slot: Slot,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        let ticket = self.ticket(slot, deadline)?;
        self.plain_call(slot, request, Some(&ticket), &[], OnRetry::Tell, deadline)
    }

    /// Asks about a lane; when the file has another generation, Retry goes to the caller.
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
        way: &[Name],
        on_retry: OnRetry,
        deadline: Instant,
    ) -> Result<R::Reply> {
        let call = Call { ticket, way, on_retry, ..Call::of_slot(slot, request, deadline) };
        self.call(&call, |_, received| reply_without_data(received))
    }

    /// Sends a request until it is answered or its deadline has passed; `finish` takes the
    /// reply, and its data from the line. One that a lane refuses, because its permit is of a secret that the pool has
    /// no more, goes once more by the same number: it may have been done before, and its answer lost.
    pub(crate) fn call<R: Request, T>(
        self: &Arc<Session>,
        call: &Call<'_, R>,
        mut finish: impl FnMut(&mut Line, Received<R::Reply>) -> std::result::Result<T, Unanswered>,
    ) -> Result<T> {
        let mut backoff = Backoff::new(call.deadline);
        let mut renewed: Option<R> = None;
        loop {
            let map = self.map()?;
            let server = self.server_of(&map, call.slot)?;
            let request = renewed.as_ref().unwrap_or(call.request);
            let unanswered = match self.attempt(&server, &map, &Call { request, ..*call }, &mut finish) {
                Ok(reply) => return Ok(reply),
                Err(unanswered) => unanswered,
            };
            if call.on_retry == OnRetry::Tell && unanswered.error.kind() == ErrorKind::Retry {
                return Err(unanswered.error);
            }
            if unanswered.error.kind() == ErrorKind::Denied
                && let Some(by_another) = self.renew_permit_of(request)?
            {
                renewed = Some(by_another);
                backoff.pause_after(renewed_too_late(&unanswered.error))?;
                continue;
            }
            if !unanswered.told
                && let Some(repeated) = call.repeated
            {
                repeated.set(true);
            }
            let error = self.settle_failure(&server, map.epoch, unanswered, call.deadline)?;
            backoff.pause_after(error)?;
        }
    }

    /// The request by another permit than the one that a lane has refused, where there is one.
    fn renew_permit_of<R: Request>(&self, refused: &R) -> Result<Option<R>> {
        let Some((target, _)) = refused.lane_right() else { return Ok(None) };
        let Some(above) = self.above() else { return Ok(None) };
        let permit = above.renew_permit(target.lane.inode, target.permit)?;
        Ok(permit.and_then(|permit| refused.with_permit(Some(permit))))
    }

    fn attempt<R: Request, T>(
        &self,
        server: &Arc<Server>,
        map: &ClusterMap,
        call: &Call<'_, R>,
        finish: &mut impl FnMut(&mut Line, Received<R::Reply>) -> std::result::Result<T, Unanswered>,
    ) -> std::result::Result<T, Unanswered> {
        let (mut line, deadline) = self.line(server, call.deadline)?;
        if call.local_only && !line.is_local() {
            return Err(Unanswered::told(Error::new(
                ErrorKind::Unsupported,
                format!("{} is not reached through this machine's memory", server.id),
            )));
        }
        let mut header = self.header(R::KIND, call.ticket, answered_by(R::KIND, deadline), map.epoch);
        header.slot = call.slot;
        let who = crate::acting::current_for(R::KIND);
        let front = Front { who: who.as_ref(), way: call.way };
        line.send_behind(front, header, call.request, call.data, deadline).map_err(Unanswered::lost)?;
        let deadline = self.await_answer::<R>(&mut line, deadline)?;
        let received = match call.ticket {
            Some(_) => line.receive_change::<R>(header.call, deadline)?,
            None => line.receive::<R>(header.call, deadline)?,
        };
        let received = believed(&mut line, call.request, received)?;
        let finished = finish(&mut line, received)?;
        server.note_answer(true);
        Ok(finished)
    }

    /// Says whether a failure is worth another attempt, and does what makes one promising: `Ok`
    /// brings the error to fail with when there is no time for it. `epoch` is that of the map by
    /// which the server was asked.
    pub(crate) fn settle_failure(
        self: &Arc<Session>,
        server: &Arc<Server>,
        epoch: Epoch,
        unanswered: Unanswered,
        deadline: Instant,
    ) -> Result<Error> {
        let Unanswered { error, map, told, hopeless } = unanswered;
        if let Some(map) = map {
            self.adopt_map(*map)?;
        } else if error.kind() == ErrorKind::Redirect(Redirect::Moved) {
            self.refresh_map(deadline)?;
        }
        if !told {
            server.note_answer(false);
            server.drop_idle();
            if error.kind() == ErrorKind::TimedOut || Backoff::is_over(deadline) {
                server.give_up();
            }
            if error.kind() == ErrorKind::HostDown {
                // Its slots may have gone to others, or it may have come back elsewhere.
                let silent = Some(server.id).filter(|_| hopeless);
                let newest = self.refresh_map_without(silent, deadline)?;
                if hopeless && newest.epoch == epoch {
                    return Err(name_server(server, &error));
                }
            }
        }
        if told && error.kind() == ErrorKind::Stale {
            self.confirm(server)?;
        }
        let named = if told { error } else { name_server(server, &error) };
        tracing::debug!(target: "ramlace::client", server = server.id.0, error = %named, told, "may be asked again");
        match named.kind() {
            ErrorKind::HostDown | ErrorKind::Retry | ErrorKind::Redirect(Redirect::Moved) => Ok(named),
            _ => Err(named),
        }
    }

    /// Asks one server, whatever its slots.
    pub(crate) fn ask_server<R: Request>(
        self: &Arc<Session>,
        server: ServerId,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        self.map()?;
        let server = self.server(server)?;
        let mut backoff = Backoff::new(deadline);
        let mut silences = 0;
        loop {
            match self.try_server(&server, request, deadline) {
                Err(error) if error.kind() == ErrorKind::Retry => backoff.pause_after(error)?,
                // The idle connections may all be of its last life: the second try is new.
                Err(error) if error.kind() == ErrorKind::HostDown && silences == 0 => silences += 1,
                Err(error) if error.kind() == ErrorKind::HostDown => {
                    return Err(name_server(&server, &error));
                }
                other => return other,
            }
        }
    }

    /// One attempt, whatever comes of it.
    pub(crate) fn try_server<R: Request>(
        &self,
        server: &Arc<Server>,
        request: &R,
        deadline: Instant,
    ) -> Result<R::Reply> {
        let epoch = self.known_map().map_or(Epoch(0), |map| map.epoch);
        let asked = self.line(server, deadline).and_then(|(mut line, deadline)| {
            let header = self.header(R::KIND, None, answered_by(R::KIND, deadline), epoch);
            line.send(header, request, &[], deadline).map_err(Unanswered::lost)?;
            let deadline = self.await_answer::<R>(&mut line, deadline)?;
            let received = line.receive::<R>(header.call, deadline)?;
            reply_without_data(believed(&mut line, request, received)?)
        });
        asked.map_err(|unanswered| {
            if !unanswered.told {
                server.drop_idle();
            }
            unanswered.error
        })
    }
}

/// A reply that can be the answer to this request. Of another nothing is believed, and its connection ends.
fn believed<R: Request>(
    line: &mut Line,
    request: &R,
    received: Received<R::Reply>,
) -> std::result::Result<Received<R::Reply>, Unanswered> {
    if request.fits(&received.reply) {
        return Ok(received);
    }
    line.close();
    Err(Unanswered::lost(unbelievable::<R>()))
}

pub(crate) fn reply_without_data<T>(received: Received<T>) -> std::result::Result<T, Unanswered> {
    if received.data_bytes > 0 {
        let error = Error::new(ErrorKind::Protocol, "a reply brought bytes that nobody asked for");
        return Err(Unanswered::lost(error));
    }
    Ok(received.reply)
}

/// There was no time left to ask by a permit that has just come: that is no refusal.
pub(crate) fn renewed_too_late(refused: &Error) -> Error {
    let text =
        format!("{}, by a permit that is renewed by now; there was no time to ask again", refused.message());
    Error::new(ErrorKind::TimedOut, text)
}

/// Whether the home may not have heard.
pub(crate) fn is_unheard(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::HostDown | ErrorKind::TimedOut | ErrorKind::Retry | ErrorKind::Redirect(Redirect::Moved)
    )
}

/// Whether a change may have been done, or may be done yet, though its caller hears of an error.
pub(crate) fn is_unanswered(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::HostDown | ErrorKind::TimedOut)
}

/// What a call that failed advises; a report of all servers leaves it out, for it is that very report.
pub(crate) const STATUS_ADVICE: &str = "; 'ramlace status' shows which servers answer";

/// Tells a failure with the server's number and address, and what to do next.
pub(crate) fn name_server(server: &Server, error: &Error) -> Error {
    let entry = server.entry();
    let next = match error.kind() {
        ErrorKind::HostDown | ErrorKind::TimedOut => STATUS_ADVICE,
        _ => "",
    };
    // The connection names its address as well.
    let address = format!("tcp:{}: ", entry.tcp);
    let why = error.message().strip_prefix(&address).unwrap_or(error.message());
    Error::new(error.kind(), format!("{} at {} does not answer: {why}{next}", server.id, entry.tcp))
}
