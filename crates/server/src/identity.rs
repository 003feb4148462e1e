//! The identity of a request: the key that the connection has proved, the session it belongs to, and the user
//! for whom a host's session asks. A client cannot choose its identity by a field of a request; only a host's
//! session may choose among the users of its machine.

use ramlace_base::{Error, ErrorKind, Name, Result, SessionId};
use ramlace_transport::Role;
use ramlace_wire::session::SessionKind;
use ramlace_wire::{Asker, Credentials, Header, Kind, decode_on_behalf, decode_path, flags};

use crate::clock;
use crate::server::Server;

/// Refuses a kind of session that a connection of this role may not open. Each role's key opens only its own
/// kind: a host key does not give the owner's rights.
pub fn check_may_open(role: Role, kind: SessionKind) -> Result<()> {
    let text = match (role, kind) {
        (Role::Owner, SessionKind::User)
        | (Role::Peer, SessionKind::Peer)
        | (Role::Host, SessionKind::Host) => {
            return Ok(());
        }
        (_, SessionKind::Host) => {
            "a session for several users is opened with a host key of the pool, not with its secret"
        }
        (Role::Host, _) => {
            "a host key opens sessions for the users of a machine and no others; use the pool's secret"
        }
        _ => "a connection of the owner opens no session of a server, nor the other way round",
    };
    Err(Error::new(ErrorKind::Denied, text))
}

/// The session of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// None yet.
    Nobody,
    /// A client's session.
    Client(SessionId),
    /// The session of a machine, for its users.
    Host(SessionId),
    /// Another server's session.
    Peer(SessionId),
}

/// The identity of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub who: Credentials,
    /// It is one of the users for whom a host's session acts.
    pub on_behalf: bool,
}

/// A request's body, and the path before it, which is usually empty.
pub fn body_behind_path<'body>(header: &Header, body: &'body [u8]) -> Result<(Vec<Name>, &'body [u8])> {
    if header.flags & flags::BY_PATH == 0 {
        return Ok((Vec::new(), body));
    }
    if !header.kind.row().by_path {
        let text = format!("a {:?} goes by no path", header.kind);
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    decode_path(header.kind, body)
}

impl Server {
    /// The request's identity, and its body without the part that names it.
    pub fn identify<'body>(
        &self,
        role: Role,
        bound: Bound,
        header: &Header,
        body: &'body [u8],
    ) -> Result<(Identity, &'body [u8])> {
        let claims = header.flags & flags::ON_BEHALF != 0;
        if claims && !matches!(bound, Bound::Host(_)) {
            return Err(denied(header, "says for whom it is; only the session of a host may"));
        }
        let owner = || Identity { who: self.owner.clone(), on_behalf: false };
        let row = header.kind.row();
        match bound {
            _ if header.kind == Kind::OpenSession => Ok((owner(), body)),
            // Without a session only the map, which leads to the other servers, and the status may be asked
            // for.
            Bound::Nobody if row.asker == Asker::Anyone => Ok((owner(), body)),
            Bound::Nobody if header.kind == Kind::StopServer && role == Role::Owner => Ok((owner(), body)),
            Bound::Nobody => Err(denied(header, "needs a session; open one first")),
            Bound::Client(session) | Bound::Host(session) | Bound::Peer(session)
                if session != header.session =>
            {
                Err(denied(header, "names a session that is not this connection's"))
            }
            Bound::Peer(_) => Ok((owner(), body)),
            Bound::Client(_) | Bound::Host(_) if row.asker == Asker::Peer => {
                Err(denied(header, "is for servers of the pool alone"))
            }
            Bound::Host(_) if row.asker == Asker::Owner => {
                Err(denied(header, "is for the pool's owner, not for a session of a host"))
            }
            Bound::Client(session) => {
                let who = self.user_of_session(session)?;
                Ok((Identity { who, on_behalf: false }, body))
            }
            Bound::Host(session) => {
                let who = self.user_of_session(session)?;
                if claims {
                    return self.user_of_host(header, body);
                }
                let who = if row.may_be_by_open_file() { Credentials::WHOEVER } else { who };
                Ok((Identity { who, on_behalf: false }, body))
            }
        }
    }

    fn user_of_session(&self, session: SessionId) -> Result<Credentials> {
        self.durable.borrow_mut().sessions.note_alive(session, clock::instant())
    }

    /// The user for whom a host's session asks.
    fn user_of_host<'body>(&self, header: &Header, body: &'body [u8]) -> Result<(Identity, &'body [u8])> {
        if !header.kind.row().may_be_for_user() {
            return Err(denied(header, "is made for no user, and says for whom it is"));
        }
        let (who, body) = decode_on_behalf(header.kind, body)?;
        // The value by which chown means "as it is" is no user, and neither is the one that stands for a
        // session with an open file.
        if let Some(no) = [who.uid, who.gid].into_iter().find(|id| *id >= Credentials::WHOEVER.uid) {
            return Err(Error::new(ErrorKind::Invalid, format!("{no} is no user or group")));
        }
        let who = if self.config.options.root_squash { who.squashed() } else { who };
        Ok((Identity { who, on_behalf: true }, body))
    }
}

fn denied(header: &Header, text: &str) -> Error {
    Error::new(ErrorKind::Denied, format!("{:?} {text}", header.kind))
}
