//! What this process has read, kept for its next reads: optional, bounded, and by leases.
//!
//! The cache is a client of its own beside the pool's, with a session that does nothing else. So whatever changes bytes, a call of
//! this very process as well, is somebody else's change to the server, which recalls them before it answers: no door has to remember the
//! cache. Only reads within one block are answered from here, each from bytes that a server read at one moment: so they are as whole
//! as those of a server. When something is believed says [`crate::bytes::blocks`].
//!
//! The cache answers a read or has nothing to say of it: it makes no errors. It asks only servers that answer and whose recalls are heard,
//! and waits for them no longer than [`PATIENCE_MILLIS_MAX`]; then the read goes its usual way, with all of its time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, Result, ServerId, limits};
use ramlace_sync::{Mutex, MutexGuard};
use ramlace_wire::leases::{DataRecall, Leased as LeasedPart, Recall};
use ramlace_wire::{Layout, Mode};

use crate::bytes::blocks::{Asking, BLOCK_BYTES, Blocks, Brought, Found, Leased, Question};
use crate::bytes::cache_worker::{Work, Worker};
use crate::bytes::keeping::{CachedReads, ReadCache, RelaxedReads};
use crate::bytes::lane_numbers::LaneNumbers;
use crate::bytes::pages::Noted;
use crate::fork::PerFork;
use crate::hearers::DataLeases;
use crate::session::retry::is_unheard;
use crate::{ConnectOptions, File, Pool, Rights};

/// So often one read asks servers whether it may believe what is kept. Then it is read without the cache.
const QUESTIONS_PER_READ_MAX: usize = 4;
/// How long a question may take, and after how long a read asks no other.
const PATIENCE_MILLIS_MAX: u32 = 250;
/// The same as a part of the time that a call has.
const PATIENCE_PART: u32 = 16;
/// After a question that brought nothing a file is read without the cache for so long. So that a file which others change again and again
/// costs hardly a message more than without one. It is how long a home gives no lease after it had to recall one.
const REST: Duration = Duration::from_millis(limits::LEASE_MILLIS);
/// The same for a file that a kernel changes without asking.
const REST_OF_HANDED: Duration = Duration::from_secs(5);

/// What this process may keep of a pool's bytes.
pub(crate) struct ByteCache {
    /// It alone reads for the cache.
    pool: Pool,
    /// A forked child begins with nothing: its parent's leases are not its own.
    processes: PerFork<Arc<Process>>,
    bytes_max: u64,
    patience: Duration,
    me: Weak<ByteCache>,
}

/// What one process keeps.
struct Process {
    blocks: Mutex<Blocks>,
    worker: Worker,
    /// The map by which all of it was asked for.
    epoch: AtomicU32,
}

/// An open file of which blocks may be kept; they go with it.
struct CachedFile {
    cache: Arc<ByteCache>,
    process: Arc<Process>,
    inode: InodeId,
    /// The same file in the cache's session, once that has opened it.
    file: Mutex<Option<Arc<File>>>,
    /// That may not read it.
    refused: AtomicBool,
}

/// What one open file in relaxed mode keeps. Lock order: `since`, then the process's blocks.
struct RelaxedFile {
    process: Arc<Process>,
    /// Among all of this process.
    number: u64,
    since: Mutex<Since>,
}

/// What counts at this moment.
#[derive(Default)]
struct Since {
    moment: u64,
    /// The numbers that lanes had, taken since the last refresh.
    lanes: HashMap<u16, Arc<LaneNumbers>>,
}

/// A question of this thread.
struct Asked<'a> {
    file: &'a CachedFile,
    question: Question,
}

/// Hears what servers recall.
struct Hearer {
    cache: Weak<ByteCache>,
}

impl ByteCache {
    /// An empty one, where one is wanted. Its session begins with the first read.
    pub(crate) fn wanted(options: &ConnectOptions) -> Result<Option<Arc<dyn ReadCache>>> {
        if options.cache_bytes == 0 {
            return Ok(None);
        }
        let label = format!("{} (cache)", options.label);
        let deadline_millis = (options.deadline_millis / PATIENCE_PART).clamp(1, PATIENCE_MILLIS_MAX);
        let of_its_own = ConnectOptions { cache_bytes: 0, deadline_millis, label, ..options.clone() };
        let pool = Pool::new(&of_its_own, None)?;
        // Who else has bytes is waited for by the read that goes the usual way.
        pool.wait_for_nobody();
        let cache = Arc::new_cyclic(|me| ByteCache {
            pool,
            processes: PerFork::new(),
            bytes_max: options.cache_bytes,
            patience: Duration::from_millis(deadline_millis.into()),
            me: me.clone(),
        });
        let hearer = Arc::new(Hearer { cache: cache.me.clone() });
        cache.pool.hear_data(hearer.clone());
        cache.pool.hear_recalls(Box::new(move |recalls| hearer.sizes_recalled(recalls)));
        Ok(Some(cache))
    }

    fn process(&self) -> Result<&Arc<Process>> {
        self.processes.get_or_make(|| {
            let cache = self.me.clone();
            let worker = Worker::start(move |work| cache.upgrade().map(|cache| cache.work(work)).is_some())?;
            let blocks = Mutex::new(Blocks::new(self.bytes_max));
            Ok(Arc::new(Process { blocks, worker, epoch: AtomicU32::new(0) }))
        })
    }

    fn work(&self, work: Work) {
        match work {
            Work::TellEnded(server) => self.pool.tell_ended(server),
            // What fails is wanted again by the next read.
            Work::Begin => _ = self.begin(),
        }
    }

    /// Begins a session, the first one or another: with the one before went all leases.
    fn begin(&self) -> Result<()> {
        if self.pool.is_ended() {
            self.process()?.lock().clear();
            self.pool.reconnect()?;
        }
        self.pool.map().map(drop)
    }

    /// Whether there is a session. If not, one is begun.
    fn has_session(&self, process: &Process) -> bool {
        let there = self.notice_map(process);
        if !there {
            process.worker.wants(Work::Begin);
        }
        there
    }

    /// By another map a lane is another server's, which knows nothing of what was brought from the one before: all goes, also what is
    /// on its way. Says whether there is a map, and a session.
    fn notice_map(&self, process: &Process) -> bool {
        let session = self.pool.session().ok().filter(|session| !session.is_ended());
        let Some(map) = session.and_then(|session| session.known_map()) else { return false };
        if process.epoch.swap(map.epoch.0, Ordering::AcqRel) != map.epoch.0 {
            process.lock().clear();
        }
        true
    }
}

impl ReadCache for ByteCache {
    fn open(&self, inode: InodeId, layout: &Layout) -> Result<Box<dyn CachedReads>> {
        let (process, cache) = (self.process()?.clone(), self.me.upgrade());
        let Some(cache) = cache else { unreachable!("a cache that is asked is there") };
        process.lock().open(inode, *layout);
        Ok(Box::new(CachedFile {
            cache,
            process,
            inode,
            file: Mutex::new(None),
            refused: AtomicBool::new(false),
        }))
    }

    fn open_relaxed(&self) -> Result<Box<dyn RelaxedReads>> {
        let number = RELAXED_OPENS.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(RelaxedFile { process: self.process()?.clone(), number, since: Mutex::default() }))
    }
}

static RELAXED_OPENS: AtomicU64 = AtomicU64::new(0);

impl CachedReads for CachedFile {
    fn read(&self, path: &[u8], buffer: &mut [u8], offset: u64) -> Option<usize> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        let begun = Instant::now();
        for _ in 0..QUESTIONS_PER_READ_MAX {
            let now = Instant::now();
            let found = self.process.lock().read(self.inode, buffer, offset, now);
            let asking = match found {
                Found::Read(bytes) => return Some(bytes),
                Found::Ask(asking) => asking,
                Found::Nothing => return None,
            };
            let _asked = Asked { file: self, question: asking.question };
            if now.saturating_duration_since(begun) >= self.cache.patience
                || !self.cache.has_session(&self.process)
            {
                return None;
            }
            let Some(file) = self.opened() else {
                self.open(path)?;
                continue;
            };
            match asking.question {
                Question::Size => self.ask_size(&file, asking)?,
                Question::Lane(lane) => self.ask_lane(&file, lane, asking)?,
                Question::Block(number) => return self.bring(&file, number, asking, buffer, offset),
            }
        }
        None
    }
}

impl CachedFile {
    /// The file in the cache's session.
    fn opened(&self) -> Option<Arc<File>> {
        let mut file = self.file.lock();
        // With its session went all that was open in it.
        let ended = file.take_if(|file| has_ended(file));
        let there = file.clone();
        drop(file);
        drop(ended);
        there
    }

    fn open(&self, path: &[u8]) -> Option<()> {
        self.hears(None)?;
        let (mut file, _) = self
            .cache
            .pool
            .raw()
            .open(self.inode, Rights { read: true, write: false })
            .map_err(|error| {
                self.refused.store(error.kind() == ErrorKind::Denied, Ordering::Relaxed);
                self.rest(&error);
            })
            .ok()?;
        file.path = path.to_vec();
        *self.file.lock() = Some(Arc::new(file));
        Some(())
    }

    /// Asks the home for a lease on the size.
    fn ask_size(&self, file: &File, asking: Asking) -> Option<()> {
        self.hears(None)?;
        let asked = Instant::now();
        let told = self
            .cache
            .pool
            .raw()
            .lease_attributes(self.inode, false)
            .map_err(|error| self.rest(&error))
            .ok()?;
        // What kernels change without asking is nothing to be kept.
        if !told.attributes || told.info.handed {
            let rest = if told.info.handed { REST_OF_HANDED } else { REST };
            self.process.lock().rest(self.inode, asked + rest);
            return None;
        }
        file.handle().ok()?.open.learn_info(&told.info);
        let attributes = &told.info.attributes;
        let leased = Leased {
            generation: attributes.generation,
            size: attributes.size,
            inline: told.info.inline,
            until: asked + Duration::from_millis(limits::LEASE_MILLIS),
        };
        self.cache.notice_map(&self.process).then_some(())?;
        self.process.lock().learn_size(self.inode, asking.moment, leased);
        Some(())
    }

    /// Asks a lane's server whether all that is kept of the lane is as it was.
    fn ask_lane(&self, file: &File, lane: u16, asking: Asking) -> Option<()> {
        self.hears(Some((file, lane)))?;
        let asked = Instant::now();
        let current = match file.keeps_lane(lane) {
            // What is kept is not believed, and may be when the server answers again.
            Err(error) if is_unheard(&error) => {
                self.rest(&error);
                return None;
            }
            told => told.unwrap_or(false),
        };
        self.cache.notice_map(&self.process).then_some(())?;
        self.process.lock().learn_lane(self.inode, asking.moment, lane, asked, current);
        Some(())
    }

    /// Brings a block, and reads from it.
    fn bring(
        &self,
        file: &File,
        number: u64,
        asking: Asking,
        buffer: &mut [u8],
        offset: u64,
    ) -> Option<usize> {
        let (start, layout) = (number * BLOCK_BYTES, file.layout());
        let lane = (start / layout.stripe_unit) % u64::from(layout.width);
        let from_lane = (!file.handle().ok()?.open.is_inline()).then_some((file, lane as u16));
        self.hears(from_lane)?;
        let (asked, noted) = (Instant::now(), Noted::default());
        let mut bytes = vec![0; asking.size.saturating_sub(start).min(BLOCK_BYTES) as usize];
        let read = file.read_block(&mut bytes, start, &noted).map_err(|error| self.rest(&error)).ok()?;
        bytes.truncate(read);
        let there = bytes.get((offset - start) as usize..)?;
        let count = there.len().min(buffer.len());
        buffer[..count].copy_from_slice(&there[..count]);
        // Of a request that was repeated a server may believe that it has brought what is kept, and it was the other one.
        if !noted.repeated.get() && self.cache.notice_map(&self.process) {
            let brought = Brought { number, bytes: bytes.into(), asked, inline: noted.inline.get() };
            self.process.lock().keep(self.inode, asking.moment, brought);
        }
        Some(count)
    }

    /// Goes on where a lane's server, or the home, answers and is heard.
    fn hears(&self, lane: Option<(&File, u16)>) -> Option<()> {
        let session = self.cache.pool.session().ok()?;
        let slot = match lane {
            None => self.inode.slot(),
            Some((file, lane)) => {
                ramlace_layout::lane_slot(file.layout(), lane, session.known_map()?.slots())
            }
        };
        session.hears(slot).then_some(())
    }

    /// A question has brought nothing.
    fn rest(&self, why: &Error) {
        tracing::debug!(target: "ramlace::client", inode = %self.inode, error = %why, "is read without the cache");
        self.process.lock().rest(self.inode, Instant::now() + REST);
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        self.process.lock().close(self.inode);
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.file.process.lock().answered(self.file.inode, self.question);
    }
}

impl Process {
    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock()
    }
}

impl Hearer {
    fn sizes_recalled(&self, recalls: &[Recall]) {
        let Some(cache) = self.cache.upgrade() else { return };
        let Some(process) = cache.processes.get() else { return };
        let mut blocks = process.lock();
        let sizes = recalls.iter().filter(|recall| recall.what == LeasedPart::Attributes);
        sizes.for_each(|recall| blocks.recall_size(recall.inode));
    }
}

impl DataLeases for Hearer {
    fn recalled(&self, server: ServerId, recalls: &[DataRecall]) {
        let Some(cache) = self.cache.upgrade() else { return };
        let Some(process) = cache.processes.get() else { return };
        let mut blocks = process.lock();
        recalls.iter().for_each(|recall| blocks.recall(recall));
        drop(blocks);
        let done: Vec<u64> = recalls.iter().map(|recall| recall.number).collect();
        cache.pool.note_ended(server, &done);
        process.worker.wants(Work::TellEnded(server));
    }

    fn forgotten(&self, server: ServerId, life: u64) {
        let Some(cache) = self.cache.upgrade() else { return };
        let Some(process) = cache.processes.get() else { return };
        process.lock().clear();
        cache.pool.note_dropped_all(server, life);
        process.worker.wants(Work::TellEnded(server));
    }
}

impl RelaxedReads for RelaxedFile {
    fn read(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        self.process.lock().read_relaxed(self.number, buffer, offset)
    }

    fn moment(&self) -> u64 {
        self.since.lock().moment
    }

    fn lane_number(&self, lane: u16) -> Option<Arc<LaneNumbers>> {
        self.since.lock().lanes.get(&lane).cloned()
    }

    fn learn_lane(&self, moment: u64, lane: u16, number: Arc<LaneNumbers>) {
        let mut since = self.since.lock();
        if since.moment == moment {
            since.lanes.entry(lane).or_insert(number);
        }
    }

    fn keep(&self, moment: u64, number: u64, bytes: Arc<[u8]>, numbers: Option<Arc<LaneNumbers>>) {
        // As long as this is held nothing is dropped or refreshed.
        let since = self.since.lock();
        if since.moment == moment {
            self.process.lock().keep_relaxed(self.number, number, bytes, numbers);
        }
    }

    fn begin_refresh(&self, range: ByteRange) -> Vec<(ByteRange, Option<Arc<LaneNumbers>>)> {
        let mut since = self.since.lock();
        since.moment += 1;
        since.lanes.clear();
        self.process.lock().of_relaxed(self.number, range)
    }

    fn drop_range(&self, range: ByteRange) {
        let mut since = self.since.lock();
        since.moment += 1;
        self.process.lock().drop_relaxed(self.number, range);
    }
}

impl Drop for RelaxedFile {
    fn drop(&mut self) {
        self.process.lock().drop_relaxed(self.number, ByteRange { start: 0, end: u64::MAX });
    }
}

impl File {
    /// Reads what this process keeps, or brings and keeps it; `None`: read without that.
    pub(crate) fn read_kept_here(&self, buffer: &mut [u8], offset: u64) -> Option<Result<usize>> {
        match self.sharing() {
            Mode::Coherent => self.read_cached(buffer, offset).map(Ok),
            Mode::Relaxed => self.read_relaxed(buffer, offset),
            Mode::Strict => None,
        }
    }

    /// Reads from the cache, where there is one and it has these bytes or brings them; `None`: read without it.
    fn read_cached(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        let cache = self.pool().cache()?;
        let last = offset.checked_add((buffer.len() as u64).checked_sub(1)?)?;
        if !self.rights().read || offset / BLOCK_BYTES != last / BLOCK_BYTES {
            return None;
        }
        // In the name of a session that has ended nothing is read, whatever another one knows.
        if has_ended(self) {
            return None;
        }
        self.cached
            .get_or_make(|| cache.open(self.inode(), self.layout()))
            .ok()?
            .read(&self.path, buffer, offset)
    }
}

/// Whether the session in which a file was opened is known to have ended.
fn has_ended(file: &File) -> bool {
    file.handle().is_ok_and(|handle| handle.session.is_ended())
}
