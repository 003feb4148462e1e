//! The part of a call that depends on its message type: it encodes the request, and decodes the reply.
//!
//! The rest of a call (connections, retries, deadlines) works with bytes and is compiled once, not once for each
//! of the messages.

use ramlace_base::{InodeId, Result};
use ramlace_transport::blocking::Received;
use ramlace_wire::{Kind, Permit, Request, decode_reply, encode_body};

use crate::session::lines::{Line, Unanswered, reply_without_data};

/// A request and its reply, of whatever message.
pub(crate) trait AnyExchange {
    /// The message's number.
    fn kind(&self) -> Kind;

    /// The body of the request.
    fn body(&self) -> Vec<u8>;

    /// Takes the body of the reply. Its error ends the connection: the reply cannot be one to this request.
    fn take(&mut self, body: &[u8]) -> Result<()>;

    /// Takes the reply, whose body was taken, and its data from the connection.
    fn finish(&mut self, line: &mut Line, received: Received<()>) -> std::result::Result<(), Unanswered>;

    /// The file and the permit of a request about the bytes of a lane.
    fn permit(&self) -> Option<(InodeId, Option<Permit>)>;

    /// From now on the request has this permit; false if it can have none.
    fn renew(&mut self, permit: Permit) -> bool;
}

/// A request, and what its caller makes of the reply.
pub(crate) struct Exchange<'a, R: Request, T, F> {
    request: &'a R,
    /// The same by another permit than the one that was refused.
    renewed: Option<R>,
    reply: Option<R::Reply>,
    result: Option<T>,
    finish: F,
}

impl<'a, R: Request, T, F> Exchange<'a, R, T, F>
where
    F: FnMut(&mut Line, Received<R::Reply>) -> std::result::Result<T, Unanswered>,
{
    /// `finish` takes the reply, and its data from the connection.
    pub(crate) fn new(request: &'a R, finish: F) -> Exchange<'a, R, T, F> {
        Exchange { request, renewed: None, reply: None, result: None, finish }
    }

    /// What `finish` has returned. Panics unless the call has succeeded.
    pub(crate) fn result(self) -> T {
        self.result.expect("a call that succeeds has finished")
    }

    fn request(&self) -> &R {
        self.renewed.as_ref().unwrap_or(self.request)
    }
}

type Finish<R> = fn(&mut Line, Received<R>) -> std::result::Result<R, Unanswered>;

impl<'a, R: Request> Exchange<'a, R, R::Reply, Finish<R::Reply>> {
    /// The result is the reply, which brings no data.
    pub(crate) fn plain(request: &'a R) -> Exchange<'a, R, R::Reply, Finish<R::Reply>> {
        Exchange::new(request, |_, received| reply_without_data(received))
    }
}

impl<R: Request, T, F> AnyExchange for Exchange<'_, R, T, F>
where
    F: FnMut(&mut Line, Received<R::Reply>) -> std::result::Result<T, Unanswered>,
{
    fn kind(&self) -> Kind {
        R::KIND
    }

    fn body(&self) -> Vec<u8> {
        encode_body(self.request())
    }

    fn take(&mut self, body: &[u8]) -> Result<()> {
        self.reply = Some(decode_reply(self.request(), body)?);
        Ok(())
    }

    fn finish(&mut self, line: &mut Line, received: Received<()>) -> std::result::Result<(), Unanswered> {
        let reply = self.reply.take().expect("its body was taken");
        self.result = Some((self.finish)(line, received.with(reply))?);
        Ok(())
    }

    fn permit(&self) -> Option<(InodeId, Option<Permit>)> {
        self.request().lane_right().map(|(target, _)| (target.lane.inode, target.permit))
    }

    fn renew(&mut self, permit: Permit) -> bool {
        self.renewed = self.request().with_permit(Some(permit));
        self.renewed.is_some()
    }
}
