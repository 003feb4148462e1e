//! Gives and checks permits: a session of a host can reach only the bytes of files that it has opened.

use ramlace_base::{Error, ErrorKind, InodeId, Result, SessionId};
use ramlace_transport::{Holder, Proved};
use ramlace_wire::{Kind, Permit, Request, decode_body};

use crate::gate::Call;
use crate::server::{Outcome, Server};

impl Server {
    /// Decodes a request about a lane, and refuses one for which its session has no right. Does nothing else
    /// before. The outer error is for an invalid body.
    pub fn lane_request<R: Request>(
        &self,
        header: &Call,
        proved: &Proved,
        body: &[u8],
    ) -> Result<Outcome<R>> {
        let request: R = decode_body(header.kind, body)?;
        // A session that has proved the secret may do everything.
        if let (Some(host), Some((target, right))) = (&proved.host, request.lane_right()) {
            let holder = Holder { pool: self.pool, session: header.session, host };
            let permit = target.permit.unwrap_or_default();
            if !self.keys.keys().permits(holder, target.lane.inode, permit, right) {
                return Ok(Err(not_opened(header.kind, target.lane.inode, right.described()).into()));
            }
        }
        Ok(Ok(request))
    }

    /// The permit that proves to lanes for what a session has this inode open; `None` for a session that
    /// needs none.
    pub fn permit(&self, proved: &Proved, session: SessionId, inode: InodeId) -> Option<Permit> {
        let host = proved.host.as_ref()?;
        let opened = self.durable.borrow().names(inode.slot())?.opened_for(session, inode);
        Some(self.keys.keys().permit(Holder { pool: self.pool, session, host }, inode, opened))
    }
}

fn not_opened(kind: Kind, inode: InodeId, what: &str) -> Error {
    let text = format!("{kind:?}: this session of a host has not opened inode {inode} for {what}");
    Error::new(ErrorKind::Denied, text)
}
