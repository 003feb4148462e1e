//! Runs a copy: one walker, several workers, and this thread, which reports the progress.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind};
use ramlace_sync::Mutex;

use crate::options::CopyOptions;
use crate::queue::{Queue, Task};
use crate::side::Side;
use crate::transfer::{FileTask, Totals, Transfer};
use crate::walk::{Root, Walker};

/// Errors that wait to be reported.
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
    /// Errors, each of which was reported.
    pub errors: u64,
    /// The pool or the disk is full, or the user has interrupted it: what was not begun was cancelled.
    pub aborted: bool,
    /// The user has interrupted it: what was under way failed.
    pub interrupted: bool,
    /// How long it took.
    pub took: Duration,
}

/// Called with the progress of a copy, in the thread that has called [`copy`].
pub trait Listener {
    /// So many bytes are copied, of so many that were found so far: several times in a second.
    fn progressed(&mut self, done: u64, found: u64);

    /// Something was not copied, or not in full.
    fn failed(&mut self, error: &Error);

    /// Whether the user wants it to end: asked several times in a second.
    fn is_interrupted(&mut self) -> bool {
        false
    }
}

/// Copies every source. Errors are reported as they come, and the rest continues; only a full destination ends
/// it all, or the user.
pub fn copy(roots: Vec<Root>, options: &CopyOptions, listener: &mut dyn Listener) -> Summary {
    let began = Instant::now();
    let (queue, totals) = (Queue::default(), Totals::default());
    let mut summary = Summary::default();
    // Modes that would have hindered the copy, set when it has ended.
    let later = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let (errors, received) = sync_channel::<Error>(ERRORS_WAITING_MAX);
        for _ in 0..options.jobs {
            let errors = errors.clone();
            let (queue, totals) = (&queue, &totals);
            scope.spawn(move || work(queue, totals, options, &errors));
        }
        let (queue, totals, later) = (&queue, &totals, &later);
        scope.spawn(move || walk(roots, options, queue, totals, later, &errors));
        loop {
            if !summary.interrupted && listener.is_interrupted() {
                summary.interrupted = true;
                totals.interrupted.store(true, Ordering::Relaxed);
                queue.abort();
            }
            match received.recv_timeout(TICK) {
                Ok(error) => {
                    summary.errors += 1;
                    listener.failed(&error);
                    if error.kind() == ErrorKind::NoSpace {
                        queue.abort();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            listener.progressed(load(&totals.bytes_done), load(&totals.bytes_found));
        }
    });
    for (side, mode) in later.into_inner() {
        if let Err(error) = side.set_mode(mode) {
            summary.errors += 1;
            listener.failed(&error);
        }
    }
    summary.files = load(&totals.files_done);
    summary.bytes = load(&totals.bytes_done);
    summary.aborted = queue.is_aborted();
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
            Task::File(task) => begin(*task, queue, totals, options).and_then(|transfer| {
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
fn begin(
    task: FileTask,
    queue: &Queue,
    totals: &Totals,
    options: &CopyOptions,
) -> Result<Arc<Transfer>, Error> {
    let transfer = Arc::new(Transfer::open(task, options, totals)?);
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    use std::path::Path;
    use std::{fs, io};

    use super::*;
    use crate::scratch::{Scratch, plain_options};

    const BIG_BYTES: usize = 20 << 20;

    #[derive(Default)]
    struct Recorder {
        errors: Vec<Error>,
        last: (u64, u64),
    }

    impl Listener for Recorder {
        fn progressed(&mut self, done: u64, found: u64) {
            self.last = (done, found);
        }

        fn failed(&mut self, error: &Error) {
            self.errors.push(error.clone());
        }
    }

    fn run(from: &Path, to: &Path) -> (Summary, Recorder) {
        let mut seen = Recorder::default();
        (run_with(from, to, &mut seen), seen)
    }

    fn run_with(from: &Path, to: &Path, listener: &mut dyn Listener) -> Summary {
        let root = Root { from: Side::Local(from.into()), to: Side::Local(to.into()) };
        copy(vec![root], &plain_options(3), listener)
    }

    #[test]
    fn a_tree_arrives_and_each_failure_is_told_once() {
        let scratch = Scratch::new("tree");
        let (from, to) = (scratch.at("from"), scratch.at("to"));
        fs::create_dir_all(from.join("closed")).unwrap();
        let big: Vec<u8> = (0..BIG_BYTES).map(|at| (at / 4096 % 251) as u8).collect();
        fs::write(from.join("closed/big"), &big).unwrap();
        fs::write(from.join("small"), b"x").unwrap();
        std::os::unix::fs::symlink("small", from.join("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
        fs::set_permissions(from.join("closed"), fs::Permissions::from_mode(0o500)).unwrap();

        let (summary, seen) = run(&from, &to);

        assert_eq!((summary.files, summary.bytes), (5, BIG_BYTES as u64 + 1));
        assert_eq!(seen.errors.len(), 1, "{:?}", seen.errors);
        assert_eq!((summary.errors, summary.aborted), (1, false));
        assert_eq!(seen.errors[0].kind(), ErrorKind::Unsupported);
        assert!(seen.errors[0].message().starts_with(from.join("socket").to_str().unwrap()));
        assert!(seen.last.0 <= seen.last.1 && seen.last.1 <= BIG_BYTES as u64 + 1, "{:?}", seen.last);
        assert!(fs::read(to.join("closed/big")).unwrap() == big);
        assert_eq!(fs::read(to.join("small")).unwrap(), b"x");
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("small"));
        // It could be filled, and got its mode at the end.
        assert_eq!(fs::metadata(to.join("closed")).unwrap().permissions().mode() & 0o777, 0o500);
        for closed in [&from, &to] {
            fs::set_permissions(closed.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
        }
    }

    #[test]
    fn where_there_is_no_room_the_copy_is_aborted() {
        let scratch = Scratch::new("full");
        let from = scratch.at("from");
        fs::write(&from, b"x").unwrap();

        let (summary, seen) = run(&from, Path::new("/dev/full"));

        assert!(summary.aborted);
        assert_eq!((summary.files, summary.errors, seen.errors.len()), (0, 1, 1), "{:?}", seen.errors);
        assert_eq!(seen.errors[0].kind(), ErrorKind::NoSpace);
        assert!(seen.errors[0].message().ends_with("/dev/full was overwritten and is incomplete"));
    }

    /// Interrupts a copy that has begun, and lets the worker that waits to open the pipe go on after that.
    struct Interrupter<'a> {
        pipe: &'a Path,
        has_begun: bool,
        told: bool,
        reader: Option<fs::File>,
        seen: Recorder,
    }

    impl Listener for Interrupter<'_> {
        fn progressed(&mut self, _: u64, found: u64) {
            self.has_begun = found > 0;
            if self.told {
                let open = || fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(self.pipe);
                self.reader.get_or_insert_with(|| open().unwrap());
            }
        }

        fn failed(&mut self, error: &Error) {
            self.seen.failed(error);
        }

        fn is_interrupted(&mut self) -> bool {
            self.told = self.has_begun;
            self.told
        }
    }

    // SEMANTICS 111.5
    #[test]
    fn an_interrupt_ends_what_is_under_way_and_begins_nothing_more() {
        let scratch = Scratch::new("interrupted");
        let (from, pipe) = (scratch.at("from"), scratch.at("pipe"));
        fs::write(&from, b"content").unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let seen = Recorder::default();
        let mut interrupter = Interrupter { pipe: &pipe, has_begun: false, told: false, reader: None, seen };

        let summary = run_with(&from, &pipe, &mut interrupter);

        let errors = &interrupter.seen.errors;
        assert_eq!((summary.files, summary.bytes, summary.errors), (0, 0, errors.len() as u64));
        assert!(summary.interrupted && summary.aborted);
        // It may have come before a worker had the file.
        assert!(errors.len() <= 1, "{errors:?}");
        assert!(errors.iter().all(|error| error.message().contains("was interrupted")), "{errors:?}");
    }

    #[test]
    fn of_a_source_that_is_not_there_nothing_is_made() {
        let scratch = Scratch::new("absent");

        let (summary, seen) = run(&scratch.at("from"), &scratch.at("to"));

        assert_eq!((summary.files, summary.errors), (0, 1));
        assert_eq!(seen.errors[0].kind(), ErrorKind::NotFound);
        assert_eq!(fs::metadata(scratch.at("to")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
