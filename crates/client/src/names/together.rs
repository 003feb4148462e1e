//! Sends several changes of one slot in one message where that is allowed, and one by one otherwise.

use std::sync::Arc;

use ramlace_base::{ErrorKind, Result, Slot};
use ramlace_wire::Request;

use crate::client::Client;

impl Client {
    /// Makes changes of one slot, and calls `done` with each and its outcome, in no certain order. `alone` makes
    /// one that has to be sent by itself: only the pool's owner may send many, and the slot may have moved.
    pub(crate) fn change_together<R: Request>(
        self: &Arc<Client>,
        slot: Slot,
        requests: &[R],
        alone: impl Fn(&R) -> Result<R::Reply>,
        mut done: impl FnMut(&R, Result<R::Reply>),
    ) {
        if self.settings.for_users {
            return requests.iter().for_each(|request| done(request, alone(request)));
        }
        let mut rest = requests.iter();
        let mut redirected = Vec::new();
        let outcome = self.change_many(
            slot,
            requests,
            || self.deadline(),
            |changed| {
                let request = rest.next().expect("one answer for each");
                match changed {
                    Err(error) if matches!(error.kind(), ErrorKind::Redirect(_)) => redirected.push(request),
                    changed => done(request, changed),
                }
            },
        );
        match outcome {
            Err(error) if matches!(error.kind(), ErrorKind::Redirect(_)) => redirected.extend(rest),
            Err(error) => rest.for_each(|request| done(request, Err(error.clone()))),
            Ok(()) => {}
        }
        redirected.into_iter().for_each(|request| done(request, alone(request)));
    }
}
