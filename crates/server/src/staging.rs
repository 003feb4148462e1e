//! Room for large writes that are taken before they wait for other machines: whoever sends one may stop in the middle, and must hold
//! no page then. What finds no room stays in its connection.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ramlace_base::{ByteRange, SessionId, limits};
use ramlace_lanes::Place;
use ramlace_wire::chunk::WriteOrigin;
use tokio::sync::Notify;

use crate::gate::Call;
use crate::server::Server;

/// Who has how much of it.
#[derive(Default)]
pub struct StagingRoom {
    of: RefCell<BTreeMap<SessionId, usize>>,
    freed: Notify,
}

/// Some of it, until it is dropped.
pub struct Room<'a> {
    all: &'a StagingRoom,
    session: SessionId,
    bytes: usize,
}

impl StagingRoom {
    /// Waits until there is room. A single write always fits.
    async fn take(&self, session: SessionId, bytes: usize) -> Room<'_> {
        while !self.has_room(session, bytes) {
            self.freed.notified().await;
        }
        *self.of.borrow_mut().entry(session).or_default() += bytes;
        Room { all: self, session, bytes }
    }

    fn has_room(&self, session: SessionId, bytes: usize) -> bool {
        let own = self.of.borrow().get(&session).copied().unwrap_or(0);
        own + bytes <= limits::STAGED_BYTES_PER_SESSION_MAX
            && self.bytes() + bytes <= limits::STAGED_BYTES_PER_SERVER_MAX
    }

    /// What is in use.
    pub fn bytes(&self) -> usize {
        self.of.borrow().values().sum()
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let mut of = self.all.of.borrow_mut();
        if let Some(bytes) = of.get_mut(&self.session) {
            *bytes -= self.bytes;
            if *bytes == 0 {
                of.remove(&self.session);
            }
        }
        self.all.freed.notify_waiters();
    }
}

/// A write by way of a kernel's pages, which nobody waits for before its bytes have come.
struct Coming<'a> {
    server: &'a Server,
    place: Place,
    session: SessionId,
    range: ByteRange,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.server.data.has_come(self.place, self.session, self.range);
    }
}

impl Server {
    /// Room for the bytes of a write that will wait for others with them. What a kernel writes back waits for nobody, and small
    /// writes are taken as they come: `None`.
    pub async fn room_to_stage(
        self: &Rc<Self>,
        call: &Call,
        (place, range): (Place, ByteRange),
        origin: WriteOrigin,
    ) -> Option<Room<'_>> {
        let bytes = call.data_bytes as usize;
        if origin == WriteOrigin::Back || bytes <= limits::STAGED_BYTES_MAX {
            return None;
        }
        let session = call.session;
        let _coming = (origin == WriteOrigin::Through).then(|| {
            self.data.comes(place, session, range);
            Coming { server: self, place, session, range }
        });
        Some(self.data.staging.take(session, bytes).await)
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::{spawn_local, yield_now};

    use super::*;
    use crate::testing::run;

    const EACH: usize = limits::DATA_BYTES_MAX as usize;

    fn session(number: usize) -> SessionId {
        SessionId([number as u8; 16])
    }

    // SEMANTICS 128.13
    #[test]
    fn large_writes_that_wait_take_no_more_memory_than_there_is_for_them() {
        run(async {
            let all = Rc::new(StagingRoom::default());
            let mut taken = Vec::new();
            let of_one = limits::STAGED_BYTES_PER_SESSION_MAX / EACH;
            for number in 0..limits::STAGED_BYTES_PER_SERVER_MAX / EACH {
                taken.push(all.take(session(number / of_one), EACH).await);
            }
            let (waiting, dropped) = (all.clone(), Rc::new(std::cell::Cell::new(false)));
            let seen = dropped.clone();
            let next = spawn_local(async move {
                waiting.take(session(100), EACH).await;
                assert!(seen.get());
            });
            yield_now().await;
            dropped.set(true);
            drop(taken.pop());
            next.await.unwrap();
            // There is room, but none for one session more.
            let waiting = all.clone();
            let more = spawn_local(async move { drop(waiting.take(session(0), EACH).await) });
            yield_now().await;
            assert!(!more.is_finished());
            taken.remove(0);
            more.await.unwrap();
            taken.clear();
            assert_eq!((all.bytes(), all.of.borrow().len()), (0, 0));
        });
    }
}
