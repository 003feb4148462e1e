//! Runs a copy: one walker, several workers, and this thread, which shows progress.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind};
use ramlace_sync::Mutex;

use super::options::CopyOptions;
use super::progress::Progress;
use super::queue::{Queue, Task};
use super::side::Side;
use super::transfer::{FileTask, Totals, Transfer};
use super::walk::{Root, Walker};
use crate::failure::say;

/// Errors that wait to be said.
const ERRORS_WAITING_MAX: usize = 64;
/// Time between two checks of the counters.
const TICK: Duration = Duration::from_millis(100);

/// What a copy came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Files, directories and links copied.
    pub files: u64,
    /// Bytes copied, holes included.
    pub bytes: u64,
    /// Errors, each of which was said.
    pub errors: u64,
    /// The pool or the disk is full: what was not begun was cancelled.
    pub given_up: bool,
    /// How long it took.
    pub took: Duration,
}

/// Copies every source. Errors are reported as they come, and the rest continues; only a full destination ends
/// it all.
pub fn copy(roots: Vec<Root>, options: &CopyOptions, json: bool) -> Summary {
    let began = Instant::now();
    let (queue, totals) = (Queue::default(), Totals::default());
    let mut progress = Progress::new(json);
    let mut summary = Summary::default();
    // Modes that would have hindered the copy, set when it has ended.
    let later = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let (errors, said) = sync_channel::<Error>(ERRORS_WAITING_MAX);
        for _ in 0..options.jobs {
            let errors = errors.clone();
            let (queue, totals) = (&queue, &totals);
            scope.spawn(move || work(queue, totals, options, &errors));
        }
        let (queue, totals, later) = (&queue, &totals, &later);
        scope.spawn(move || walk(roots, options, queue, totals, later, &errors));
        loop {
            match said.recv_timeout(TICK) {
                Ok(error) => {
                    summary.errors += 1;
                    progress.pause(|| say(&error, json));
                    if error.kind() == ErrorKind::NoSpace {
                        queue.abort();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            progress.update(load(&totals.bytes_done), Some(load(&totals.bytes_found)));
        }
    });
    for (side, mode) in later.into_inner() {
        if let Err(error) = side.set_mode(mode) {
            summary.errors += 1;
            say(&error, json);
        }
    }
    summary.files = load(&totals.files_done);
    summary.bytes = load(&totals.bytes_done);
    summary.given_up = queue.is_aborted();
    summary.took = began.elapsed();
    summary
}

fn load(counter: &std::sync::atomic::AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn walk(
    roots: Vec<Root>,
    options: &CopyOptions,
    queue: &Queue,
    totals: &Totals,
    later: &Mutex<Vec<(Side, u16)>>,
    errors: &SyncSender<Error>,
) {
    let complain = |error| errors.send(error).expect("the main thread listens to the end");
    let walker = Walker { options, queue, totals, complain: &complain };
    for root in roots {
        let directories = walker.walk(root);
        later.lock().extend(directories);
    }
    queue.close();
}

fn work(queue: &Queue, totals: &Totals, options: &CopyOptions, errors: &SyncSender<Error>) {
    // Grows to one part and is used again for every file.
    let mut buffer = Vec::new();
    while let Some((task, _busy)) = queue.take() {
        let outcome = match task {
            Task::File(task) => begin(*task, queue, options).and_then(|transfer| {
                transfer.work(&mut buffer, totals);
                leave(transfer, totals)
            }),
            Task::Share(transfer) => {
                transfer.work(&mut buffer, totals);
                leave(transfer, totals)
            }
        };
        if let Err(error) = outcome {
            errors.send(error).expect("the main thread listens to the end");
        }
    }
}

/// Opens a file, and offers shares of a big one.
fn begin(task: FileTask, queue: &Queue, options: &CopyOptions) -> Result<Arc<Transfer>, Error> {
    let transfer = Arc::new(Transfer::open(task, options)?);
    let helpers = (options.jobs as u64 - 1).min(transfer.parts_left().saturating_sub(1));
    queue.share(&transfer, helpers as usize);
    Ok(transfer)
}

/// The last to leave finishes the copy.
fn leave(transfer: Arc<Transfer>, totals: &Totals) -> Result<(), Error> {
    match Arc::into_inner(transfer) {
        None => Ok(()),
        Some(transfer) => {
            transfer.finish()?;
            totals.files_done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }
}
