//! What a server sends a session without being asked: the answers to a request that is always open (a long
//! poll).
//!
//! Each session has one connection for it with each server. The requests show that the session is alive, so
//! that nothing else has to.

use ramlace_base::limits;
use serde::{Deserialize, Serialize};

use crate::leases::{DataRecall, DelegationRecall, Recall};
use crate::locks::Event;
use crate::{ClusterMap, Kind, Request};

/// The session is alive; what is new for it? Answered when there is something, or after a while. A newer map
/// than that of the header is something, unless that has none. A request takes the place of those that came
/// before it, and acknowledges what was sent in answer to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listen {
    /// The session relies on leases. Otherwise it is given none, and receives nothing else.
    pub leases: bool,
    /// Recalls up to this number are done: the session no longer relies on their leases. 0 on a new connection.
    pub acknowledged: u64,
    /// Data recalls up to this number were received; they are acknowledged by [`crate::leases::EndRecalls`]. 0
    /// on a new connection: all that are not acknowledged are sent again.
    pub received: u64,
    /// The server's incarnation as far as the client knows; if that is not this one, the request is answered
    /// at once. 0: not known yet.
    pub life: u64,
}

/// What there is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct News {
    /// Recalls that were not acknowledged, by their numbers. At most [`limits::EVENTS_PER_ANSWER_MAX`].
    pub recalls: Vec<Recall>,
    /// Those of leases on bytes; at most as many.
    pub data: Vec<DataRecall>,
    /// Slots that are delegated to the session, and that another session asks about: they are to be given back
    /// by [`crate::delegation::ChangeMany`]. At most as many; sent again while they are not given back.
    pub delegations: Vec<DelegationRecall>,
    /// What has happened, oldest first; at most as many.
    pub events: Vec<Event>,
    /// A newer map than the session's.
    pub map: Option<ClusterMap>,
    /// The server's incarnation: a number that no other incarnation of it has, and not 0. A restarted server
    /// knows which sessions had leases on data, but not on what: a session that had some drops all that it
    /// has of this server, and reports that by [`crate::leases::EndRecalls`].
    pub life: u64,
    /// How long the server has waited before it sent this, from when it had received the request: no recall that began
    /// before that moment, and fits in here, is missing.
    pub waited_millis: u32,
}

impl Request for Listen {
    const KIND: Kind = Kind::Listen;
    type Reply = News;

    fn fits(&self, reply: &News) -> bool {
        let News { recalls, data, delegations, events, map: _, life: _, waited_millis: _ } = reply;
        [recalls.len(), data.len(), delegations.len(), events.len()]
            .into_iter()
            .all(|count| count <= limits::EVENTS_PER_ANSWER_MAX)
            && data.iter().all(DataRecall::is_possible)
            && events.iter().all(Event::is_possible)
    }
}
