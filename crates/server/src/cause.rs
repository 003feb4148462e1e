//! The request that the present task works for: its *cause*. When the task asks another server, the log names the
//! cause beside that request, so that both can be found together. Nothing else depends on it.
//!
//! A server's child has one thread, whose tasks take turns. So the cause is a variable of that thread, which is
//! set whenever a task continues.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};

use ramlace_transport::trace::RequestName;

thread_local! {
    static CAUSE: Cell<Option<RequestName>> = const { Cell::new(None) };
}

/// The request for which this is done; `None` for what a server does of its own accord.
pub fn now() -> Option<RequestName> {
    CAUSE.get()
}

/// Does something for a request.
pub fn within<F: Future>(
    cause: Option<RequestName>,
    mut work: Pin<&mut F>,
) -> impl Future<Output = F::Output> {
    poll_fn(move |context| {
        let outer = CAUSE.replace(cause);
        let polled = work.as_mut().poll(context);
        CAUSE.set(outer);
        polled
    })
}

/// For a task of its own, which goes on for the request for which it begins.
pub fn kept<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let cause = now();
    async move { within(cause, pin!(work)).await }
}

#[cfg(test)]
mod tests {
    use ramlace_base::SessionId;
    use ramlace_wire::{Header, Kind};
    use tokio::task::{LocalSet, spawn_local, yield_now};

    use super::*;

    fn name(call: u32) -> Option<RequestName> {
        let session = SessionId([1; 16]);
        Some(RequestName::of(&Header { session, call, ..Header::request(Kind::GetMap) }))
    }

    /// The cause before and after others had their turn.
    async fn seen_twice() -> [Option<RequestName>; 2] {
        let before = now();
        yield_now().await;
        [before, now()]
    }

    #[tokio::test(flavor = "current_thread")]
    async fn each_task_goes_on_for_its_own_request() {
        let all = async {
            let (first, second) =
                (pin!(seen_twice()), pin!(async { (spawn_local(kept(seen_twice())), seen_twice().await) }));
            let (first, (task, second)) = tokio::join!(within(name(1), first), within(name(2), second));
            assert_eq!((first, second), ([name(1); 2], [name(2); 2]));
            assert_eq!(task.await.unwrap(), [name(2); 2]);
            assert_eq!(seen_twice().await, [None; 2]);
            let inner = pin!(async { within(None, pin!(seen_twice())).await });
            assert_eq!(within(name(3), inner).await, [None; 2]);
        };
        LocalSet::new().run_until(all).await;
    }
}
