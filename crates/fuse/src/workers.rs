//! The threads that handle requests: there are as many as requests that block, up to a limit.

use std::collections::HashMap;
use std::os::unix::thread::{JoinHandleExt, RawPthread};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_sync::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;

use crate::FileSystem;
use crate::Urgency;
use crate::buffer::{RequestBuffer, Scratch};
use crate::counts::RequestCounts;
use crate::decode::{Body, Malformed, Message, decode};
use crate::delays::{Delays, Kind, Moment};
use crate::device::Device;
use crate::inflight::InFlight;
use crate::operation::Request;
use crate::options::Workers;
use crate::reply::{Channel, Reply};
use crate::turns::{Aside, Turns};

/// A surplus worker ends when so many of its requests in a row left enough others idle.
const SURPLUS_REQUESTS: u32 = 64;
/// Pause between two attempts to wake the workers that are to end.
const WAKE_PAUSE: Duration = Duration::from_millis(1);

/// What all workers of a session share, whatever the file system.
#[derive(Debug, Default)]
pub struct Control {
    stop: AtomicBool,
    ended: AtomicBool,
    threads: Mutex<HashMap<u64, RawPthread>>,
    changed: Condvar,
}

impl Control {
    /// Asks for the end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        drop(self.threads());
        self.changed.notify_all();
    }

    /// Waits until the end is asked for (true) or every worker has ended (false).
    pub fn wait(&self) -> bool {
        let mut threads = self.threads();
        while !threads.is_empty() && !self.stop.load(Ordering::SeqCst) {
            threads = self.changed.wait(threads);
        }
        !threads.is_empty()
    }

    /// Ends the workers, each after the request that it is answering.
    pub fn end_workers(&self) {
        self.ended.store(true, Ordering::SeqCst);
        let mut threads = self.threads();
        while !threads.is_empty() {
            // A worker that was about to read when the signal came reads on: hence again and again.
            for thread in threads.values() {
                // SAFETY: a thread takes itself off the list, under its lock, before it ends: this one still runs.
                unsafe { libc::pthread_kill(*thread, wake_signal()) };
            }
            threads = self.changed.wait_timeout(threads, WAKE_PAUSE);
        }
    }

    fn threads(&self) -> MutexGuard<'_, HashMap<u64, RawPthread>> {
        self.threads.lock()
    }
}

/// The signal that wakes a worker from its read; nothing else uses it in this process.
fn wake_signal() -> libc::c_int {
    libc::SIGRTMIN() + 3
}

extern "C" fn wake(_signal: libc::c_int) {}

/// Lets the signal interrupt a read and do nothing else.
fn catch_wake_signal() -> Result<()> {
    // SAFETY: zeros are a valid sigaction: no flags (a read is not restarted), an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = wake as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: `action` is valid during the call, and its handler touches nothing.
    if unsafe { libc::sigaction(wake_signal(), &raw const action, std::ptr::null_mut()) } == 0 {
        return Ok(());
    }
    Err(Error::from_io(&std::io::Error::last_os_error(), "catching the signal that ends workers"))
}

/// The workers of one session.
pub struct Pool<F> {
    file_system: Arc<F>,
    device: Arc<Device>,
    inflight: Arc<InFlight>,
    control: Arc<Control>,
    counts: Arc<RequestCounts>,
    delays: Option<Arc<Delays>>,
    limits: Workers,
    turns: Turns,
    request_bytes_max: usize,
    /// Workers that wait for a request.
    waiting: AtomicUsize,
    /// Workers that run or are being started.
    alive: AtomicUsize,
    next_number: AtomicU64,
    failure: Mutex<Option<Error>>,
}

impl<F: FileSystem> Pool<F> {
    /// Starts the first worker.
    pub fn start(
        file_system: Arc<F>,
        device: Arc<Device>,
        control: Arc<Control>,
        counts: Arc<RequestCounts>,
        delays: Option<Arc<Delays>>,
        limits: Workers,
        request_bytes_max: usize,
    ) -> Result<Arc<Pool<F>>> {
        catch_wake_signal()?;
        let threads_max = limits.threads_max.max(1);
        let idle_threads_min = limits.idle_threads_min.clamp(1, threads_max);
        let limits = Workers { idle_threads_min, threads_max, ..limits };
        let pool = Arc::new(Pool {
            file_system,
            device,
            inflight: Arc::default(),
            control,
            counts,
            delays,
            limits,
            turns: Turns::new(limits),
            request_bytes_max,
            waiting: AtomicUsize::new(0),
            alive: AtomicUsize::new(0),
            next_number: AtomicU64::new(0),
            failure: Mutex::new(None),
        });
        pool.add_worker()?;
        Ok(pool)
    }

    /// What answers the requests.
    pub fn file_system(&self) -> Arc<F> {
        Arc::clone(&self.file_system)
    }

    /// Why the loop ended, if not by an unmount.
    pub fn take_failure(&self) -> Option<Error> {
        self.failure.lock().take()
    }

    /// Starts a worker unless the limit is reached.
    fn add_worker(self: &Arc<Pool<F>>) -> Result<()> {
        let threads_max = Turns::threads_max(self.limits);
        let below_limit = |alive: usize| (alive < threads_max).then_some(alive + 1);
        if self.alive.fetch_update(Ordering::SeqCst, Ordering::SeqCst, below_limit).is_err() {
            return Ok(());
        }
        let started = self.spawn();
        if started.is_err() {
            self.alive.fetch_sub(1, Ordering::SeqCst);
        }
        started
    }

    fn spawn(self: &Arc<Pool<F>>) -> Result<()> {
        let mut worker = Worker::new(Arc::clone(self))?;
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        // The list is held until the new thread is on it, so that its own departure comes after.
        let mut threads = self.control.threads();
        let thread = std::thread::Builder::new().name("ramlace-fuse".into()).spawn(move || {
            let pool = Arc::clone(&worker.pool);
            worker.run();
            drop(worker);
            let control = Arc::clone(&pool.control);
            pool.alive.fetch_sub(1, Ordering::SeqCst);
            drop(pool);
            control.threads().remove(&number);
            control.changed.notify_all();
        });
        let thread = thread.map_err(|error| Error::from_io(&error, "starting a worker of the mount"))?;
        threads.insert(number, thread.as_pthread_t());
        Ok(())
    }

    fn fail(&self, error: Error) {
        let mut failure = self.failure.lock();
        failure.get_or_insert(error);
        drop(failure);
        self.control.stop();
    }
}

/// One thread's own things.
struct Worker<F> {
    pool: Arc<Pool<F>>,
    channel: Arc<Channel>,
    buffer: RequestBuffer,
    scratch: Scratch,
    surplus_requests: u32,
}

impl<F: FileSystem> Worker<F> {
    fn new(pool: Arc<Pool<F>>) -> Result<Worker<F>> {
        // Where the device may not be opened again, the workers share the session's descriptor.
        let device = pool.device.try_clone().map_or_else(|_| Arc::clone(&pool.device), Arc::new);
        let (inflight, delays) = (Arc::clone(&pool.inflight), pool.delays.clone());
        let channel = Arc::new(Channel { device, inflight, delays });
        let buffer = RequestBuffer::new(pool.request_bytes_max)?;
        let scratch = Scratch::new(pool.request_bytes_max)?;
        Ok(Worker { pool, channel, buffer, scratch, surplus_requests: 0 })
    }

    /// Answers requests until the mount is gone, the end is asked for, or there are workers enough.
    fn run(&mut self) {
        while !self.pool.control.ended.load(Ordering::SeqCst) && !self.is_surplus() {
            self.pool.waiting.fetch_add(1, Ordering::SeqCst);
            let read = self.channel.device.read(self.buffer.as_mut());
            let others_waiting = self.pool.waiting.fetch_sub(1, Ordering::SeqCst) - 1;
            match read {
                Ok(bytes) => {
                    if others_waiting == 0 {
                        self.make_company();
                    }
                    self.answer(bytes);
                }
                // A signal; or a request that was taken back while it was being read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                // Unmounted, or ended by force while this worker was reading.
                Err(Errno::NODEV | Errno::CONNABORTED) => {
                    self.pool.turns.are_over();
                    return self.pool.file_system.unmounted();
                }
                Err(errno) => {
                    return self.pool.fail(Error::from_io(&errno.into(), "reading a request of the kernel"));
                }
            }
        }
    }

    /// Nobody else would take the next request while this one is being answered.
    fn make_company(&self) {
        if let Err(error) = self.pool.add_worker() {
            // The requests wait until a worker is free: slower, and no reason to stop.
            eprintln!("ramlace-fuse: going on with fewer workers: {error}");
        }
    }

    /// There have been more idle workers than wanted for a while.
    fn is_surplus(&mut self) -> bool {
        let enough = self.pool.waiting.load(Ordering::Relaxed) >= self.pool.limits.idle_threads_min;
        self.surplus_requests = if enough { self.surplus_requests + 1 } else { 0 };
        self.surplus_requests > SURPLUS_REQUESTS
    }

    /// Answers what it has read, or puts it aside; then what others have put aside.
    fn answer(&mut self, bytes: usize) {
        let Worker { pool, channel, buffer, scratch, .. } = self;
        let mut next = pool.answer(channel, &buffer.as_mut()[..bytes], scratch, None);
        while let Some(Aside { channel, bytes, urgency, kept }) = next {
            drop(kept);
            next = pool.answer(&channel, &bytes, scratch, Some(urgency));
        }
    }
}

impl<F: FileSystem> Pool<F> {
    /// Handles one message, which has its turn if `urgency` is given; what has its turn next.
    fn answer(
        &self,
        channel: &Arc<Channel>,
        bytes: &[u8],
        scratch: &mut Scratch,
        urgency: Option<Urgency>,
    ) -> Option<Aside> {
        let file_system = &*self.file_system;
        let decoded = decode(bytes);
        if let (Ok(message), None) = (&decoded, urgency) {
            self.counts.note(message.opcode);
        }
        match decoded {
            Ok(Message { opcode, unique, node, caller, body: Body::Request(operation) }) => {
                let has_turn = urgency.is_some();
                let urgency = urgency.unwrap_or_else(|| file_system.urgency(&operation));
                let aside = || {
                    // An interrupt finds it while it waits.
                    channel.inflight.begin(unique);
                    let kept = file_system.waits(unique, &operation);
                    Aside { channel: channel.clone(), bytes: bytes.into(), urgency, kept }
                };
                if !has_turn && !self.turns.begin(urgency, bytes.len(), aside) {
                    return None;
                }
                let kind = Kind::of_request(opcode, urgency == Urgency::WritesBack);
                channel.delay(kind, Moment::Before);
                let reply = match has_turn {
                    true => Reply::entered(channel, unique, opcode),
                    false => Reply::new(channel, unique, opcode),
                };
                let reply = reply.of(kind);
                let request = Request { unique, node, caller, operation, scratch };
                // A handler that panics is a bug of its own; its request is answered (EIO) when `reply` is dropped.
                let _ = std::panic::catch_unwind(AssertUnwindSafe(|| file_system.handle(request, reply)));
                return self.turns.end(urgency);
            }
            Ok(message) => {
                channel.delay(Kind::of_request(message.opcode, false), Moment::Before);
                take_unanswered(file_system, channel, &message);
            }
            Err(Malformed { unique, opcode }) => {
                let bytes = bytes.len();
                eprintln!("ramlace-fuse: a request of {bytes} bytes (operation {opcode}) makes no sense");
                if let Some(unique) = unique {
                    Reply::new(channel, unique, opcode).error(libc::EINVAL);
                }
            }
        }
        None
    }
}

/// Messages that are for the engine, or that nobody waits for.
fn take_unanswered<F: FileSystem>(file_system: &F, channel: &Arc<Channel>, message: &Message<'_>) {
    let reply = || Reply::new(channel, message.unique, message.opcode);
    match &message.body {
        Body::Forget { lookups } => file_system.forget(message.node, *lookups),
        Body::BatchForget(forgets) => {
            forgets.iter().for_each(|(node, count)| file_system.forget(node, count))
        }
        Body::Interrupt { target } => {
            if channel.inflight.interrupt(*target) {
                file_system.interrupt(*target);
            }
        }
        Body::Destroy => _ = reply().ok(),
        // The greeting is over; a second one is out of place.
        Body::Init(_) => _ = reply().error(libc::EIO),
        Body::NotifyReply | Body::Request(_) => {}
    }
}

/// A session that ended by a failure of the device.
pub fn lost(error: &Error) -> Error {
    Error::new(ErrorKind::Fatal, format!("the mount ended: {error}"))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use zerocopy::IntoBytes;

    use super::*;
    use crate::abi::{InHeader, OutHeader, opcode};
    use crate::guard::pair;

    /// Each request says here that it is handled, and waits to be told to go on. It fails if its program has a signal.
    struct Blocking {
        handled: Mutex<Sender<u64>>,
        go: Mutex<Receiver<()>>,
    }

    impl FileSystem for Blocking {
        fn handle(&self, request: Request<'_>, reply: Reply) {
            self.handled.lock().send(request.unique).unwrap();
            self.go.lock().recv().unwrap();
            match reply.interrupted() {
                true => reply.error(libc::EINTR),
                false => reply.ok(),
            };
        }
    }

    fn send(kernel: &OwnedFd, opcode: u32, unique: u64, body: &[u8]) {
        let len = (size_of::<InHeader>() + body.len()) as u32;
        let header = InHeader { len, opcode, unique, ..Default::default() };
        rustix::io::write(kernel, &[header.as_bytes(), body].concat()).unwrap();
    }

    fn answer_of(kernel: &OwnedFd) -> OutHeader {
        let mut header = OutHeader::default();
        rustix::io::read(kernel, header.as_mut_bytes()).unwrap();
        header
    }

    // SEMANTICS 38.2
    #[test]
    fn a_signal_is_not_forgotten_while_its_request_waits_for_its_turn() {
        let (kernel, device) = pair().unwrap();
        let ((handled, is_handled), (go, goes)) = (channel(), channel());
        let file_system = Arc::new(Blocking { handled: Mutex::new(handled), go: Mutex::new(goes) });
        let limits = Workers { idle_threads_min: 1, threads_max: 1, reserved_threads: 1 };
        let device = Arc::new(Device::new(device));
        let control = Arc::<Control>::default();
        let pool =
            Pool::start(file_system, device, control.clone(), Arc::default(), None, limits, 4096).unwrap();
        send(&kernel, opcode::STATFS, 2, &[]);
        assert_eq!(is_handled.recv(), Ok(2));
        send(&kernel, opcode::STATFS, 34, &[]);
        // Another thread could read the interrupts before the one that has read the request has entered it.
        while !pool.inflight.is_known(34) {
            std::thread::yield_now();
        }
        send(&kernel, opcode::INTERRUPT, 35, 34_u64.as_bytes());
        // Many more, of requests that were answered. What has no descriptor of its own is read in this order.
        for other in (2..200_u64).map(|number| number * 32 + 2) {
            send(&kernel, opcode::INTERRUPT, other + 1, other.as_bytes());
        }
        // It waits for no turn, and is answered when everything before it was read.
        send(&kernel, opcode::DESTROY, 6, &[]);
        assert_eq!(answer_of(&kernel).unique, 6);
        go.send(()).unwrap();
        assert_eq!(answer_of(&kernel), OutHeader { len: 16, error: 0, unique: 2 });
        assert_eq!(is_handled.recv(), Ok(34));
        go.send(()).unwrap();
        assert_eq!(answer_of(&kernel), OutHeader { len: 16, error: -libc::EINTR, unique: 34 });
        control.end_workers();
        assert!(!pool.inflight.interrupted(34), "it is entered once");
    }
}
