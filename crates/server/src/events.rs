//! What happens to sessions while they wait for it: told by the answer to a question that each session
//! keeps open on a connection of its own. A question that waits is a task asleep, and no thread.
//!
//! Nothing here outlives the process, and nothing is told twice: whoever loses the connection asks
//! again for what it waits for, and finds it in the slots.

use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result, SessionId, limits};
use ramlace_wire::locks::{Events, WaitEvents};
use tokio::time::timeout;

use crate::server::Server;

impl Server {
    /// Answers when something has happened to the session, or after a while.
    pub async fn wait_events(&self, session: SessionId, request: WaitEvents) -> Result<Events> {
        let question = self.events.begin(session);
        let asked = async {
            loop {
                let changed = match self.events.take(session, question) {
                    Ok(events) => return events,
                    Err(changed) => changed,
                };
                // Nothing else runs between the look and this: the server has one thread.
                changed.notified().await;
            }
        };
        let patience = if request.begins { 0 } else { limits::EVENTS_MILLIS_MAX };
        let events = timeout(Duration::from_millis(patience), asked).await.unwrap_or_default();
        if self.durable.borrow().sessions.contains(session) {
            return Ok(events);
        }
        Err(Error::new(ErrorKind::Stale, "the session has ended while it waited for events"))
    }
}
