//! Memory for the bytes of large writes that wait: see [`crate::staging`].

use std::cell::RefCell;
use std::collections::BTreeMap;

use ramlace_base::{SessionId, limits};
use tokio::sync::Notify;

/// How much of it each session uses.
#[derive(Default)]
pub struct StagingRoom {
    of: RefCell<BTreeMap<SessionId, usize>>,
    freed: Notify,
}

/// A part of it, until this is dropped.
pub struct Room<'a> {
    all: &'a StagingRoom,
    session: SessionId,
    bytes: usize,
}

impl StagingRoom {
    /// Waits until there is room. A single write always fits.
    pub async fn take(&self, session: SessionId, bytes: usize) -> Room<'_> {
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

    /// The bytes in use.
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

#[cfg(test)]
mod tests {
    use std::rc::Rc;

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
