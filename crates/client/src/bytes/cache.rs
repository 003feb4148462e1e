//! The read cache of this process: optional, bounded, and by leases.
//!
//! The cache is a client of its own beside the pool's, with its own session. So to the server any change of
//! bytes, also by a call of this very process, is another client's change, and the server recalls the bytes
//! before it answers: no entry point has to invalidate the cache. Only reads within one block are answered
//! from here, each from bytes that a server has read atomically: so they are as atomic as a server's own.
//! [`crate::bytes::blocks`] says when a block is valid.
//!
//! The cache answers a read or declines it; it makes no errors. It asks only servers that answer and whose
//! recalls are listened for, and waits for them no longer than [`PATIENCE_MILLIS_MAX`]; then the read goes
//! without the cache, with all of its time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, Result, ServerId, limits};
use ramlace_sync::{Mutex, MutexGuard};
use ramlace_wire::leases::{DataRecall, Leased as LeasedPart, Recall};
use ramlace_wire::{Layout, Mode};

use crate::bytes::blocks::{Asking, BLOCK_BYTES, Blocks, Brought, Found, Leased, Query};
use crate::bytes::cache_worker::{Work, Worker};
use crate::bytes::keeping::{CachedReads, ReadCache, RelaxedReads};
use crate::bytes::lane_numbers::LaneNumbers;
use crate::bytes::pages::Noted;
use crate::callbacks::DataLeases;
use crate::fork::PerFork;
use crate::session::retry::is_unacknowledged;
use crate::{ConnectOptions, File, Pool, Rights};

/// Requests that one read makes at most to validate cached blocks. Then it goes without the cache.
const QUERIES_PER_READ_MAX: usize = 4;
/// How long such a request may take, and after how long a read makes no other.
const PATIENCE_MILLIS_MAX: u32 = 250;
/// The same as a fraction of a call's deadline.
const PATIENCE_PART: u32 = 16;
/// How long a file is read without the cache after a request that brought nothing: so a file that others
/// change again and again costs hardly a message more than without a cache. A home gives no lease for as long
/// after it had to recall one.
const REST: Duration = Duration::from_millis(limits::LEASE_MILLIS);
/// The same for a file that a kernel changes without asking (passthrough).
const REST_OF_PASSTHROUGH: Duration = Duration::from_secs(5);

/// The cache of one pool.
pub(crate) struct ByteCache {
    /// The cache's own connection to the pool.
    pool: Pool,
    /// A forked child begins with an empty cache: its parent's leases are not its own.
    processes: PerFork<Arc<Process>>,
    bytes_max: u64,
    patience: Duration,
    me: Weak<ByteCache>,
}

/// The cache of one process.
struct Process {
    blocks: Mutex<Blocks>,
    worker: Worker,
    /// The epoch of the cluster map under which all of it was requested.
    epoch: AtomicU32,
}

/// An open file of which blocks may be cached; they are dropped with it.
struct CachedFile {
    cache: Arc<ByteCache>,
    process: Arc<Process>,
    inode: InodeId,
    /// The same file in the cache's session, once it is open there.
    file: Mutex<Option<Arc<File>>>,
    /// The cache's session may not read it.
    refused: AtomicBool,
}

/// The cache of one open file in relaxed mode. Lock order: `since`, then the process's blocks.
struct RelaxedFile {
    process: Arc<Process>,
    /// Unique in this process.
    number: u64,
    since: Mutex<Since>,
}

/// What is known since the last refresh.
#[derive(Default)]
struct Since {
    moment: u64,
    /// The numbers of lanes, taken since the last refresh.
    lanes: HashMap<u16, Arc<LaneNumbers>>,
}

/// A request that this thread has under way.
struct Asked<'a> {
    file: &'a CachedFile,
    query: Query,
}

/// Handles servers' recalls.
struct RecallHandler {
    cache: Weak<ByteCache>,
}

impl ByteCache {
    /// A new empty cache, if the options ask for one. Its session begins with the first read.
    pub(crate) fn wanted(options: &ConnectOptions) -> Result<Option<Arc<dyn ReadCache>>> {
        if options.cache_bytes == 0 {
            return Ok(None);
        }
        let label = format!("{} (cache)", options.label);
        let deadline_millis = (options.deadline_millis / PATIENCE_PART).clamp(1, PATIENCE_MILLIS_MAX);
        let of_its_own = ConnectOptions { cache_bytes: 0, deadline_millis, label, ..options.clone() };
        let pool = Pool::new(&of_its_own, None)?;
        // Waiting for other holders of the bytes is left to the read without the cache.
        pool.wait_for_nobody();
        let cache = Arc::new_cyclic(|me| ByteCache {
            pool,
            processes: PerFork::new(),
            bytes_max: options.cache_bytes,
            patience: Duration::from_millis(deadline_millis.into()),
            me: me.clone(),
        });
        let handler = Arc::new(RecallHandler { cache: cache.me.clone() });
        cache.pool.on_data_recalls(handler.clone());
        cache.pool.on_recalls(Box::new(move |recalls| handler.sizes_recalled(recalls)));
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
            // After a failure the next read asks for it again.
            Work::Begin => _ = self.begin(),
        }
    }

    /// Begins a session: the first one, or another when it has ended, and all leases with it.
    fn begin(&self) -> Result<()> {
        if self.pool.is_ended() {
            self.process()?.lock().clear();
            self.pool.reconnect()?;
        }
        self.pool.map().map(drop)
    }

    /// Whether there is a session. If not, the worker begins one.
    fn has_session(&self, process: &Process) -> bool {
        let there = self.notice_map(process);
        if !there {
            process.worker.wants(Work::Begin);
        }
        there
    }

    /// Under another map a lane may be another server's, which gave no leases for what was read from the one
    /// before: drops everything, also what is being read. Returns whether there are a map and a session.
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
        for _ in 0..QUERIES_PER_READ_MAX {
            let now = Instant::now();
            let found = self.process.lock().read(self.inode, buffer, offset, now);
            let asking = match found {
                Found::Read(bytes) => return Some(bytes),
                Found::Ask(asking) => asking,
                Found::Nothing => return None,
            };
            let _asked = Asked { file: self, query: asking.query };
            if now.saturating_duration_since(begun) >= self.cache.patience
                || !self.cache.has_session(&self.process)
            {
                return None;
            }
            let Some(file) = self.opened() else {
                self.open(path)?;
                continue;
            };
            match asking.query {
                Query::Size => self.ask_size(&file, asking)?,
                Query::Lane(lane) => self.ask_lane(&file, lane, asking)?,
                Query::Block(number) => return self.bring(&file, number, asking, buffer, offset),
            }
        }
        None
    }
}

impl CachedFile {
    /// The file in the cache's session.
    fn opened(&self) -> Option<Arc<File>> {
        let mut file = self.file.lock();
        // All files that were open in a session have ended with it.
        let ended = file.take_if(|file| has_ended(file));
        let there = file.clone();
        drop(file);
        drop(ended);
        there
    }

    fn open(&self, path: &[u8]) -> Option<()> {
        self.check_listening(None)?;
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
        self.check_listening(None)?;
        let asked = Instant::now();
        let leased = self
            .cache
            .pool
            .raw()
            .lease_attributes(self.inode, false)
            .map_err(|error| self.rest(&error))
            .ok()?;
        // What a kernel changes without asking cannot be cached.
        if !leased.attributes || leased.info.may_change_unnoticed {
            let rest = if leased.info.may_change_unnoticed { REST_OF_PASSTHROUGH } else { REST };
            self.process.lock().rest(self.inode, asked + rest);
            return None;
        }
        file.handle().ok()?.open.learn_info(&leased.info);
        let attributes = &leased.info.attributes;
        let leased = Leased {
            generation: attributes.generation,
            size: attributes.size,
            inline: leased.info.inline,
            until: asked + Duration::from_millis(limits::LEASE_MILLIS),
        };
        self.cache.notice_map(&self.process).then_some(())?;
        self.process.lock().learn_size(self.inode, asking.moment, leased);
        Some(())
    }

    /// Asks a lane's server whether all leases on the lane are still valid.
    fn ask_lane(&self, file: &File, lane: u16, asking: Asking) -> Option<()> {
        self.check_listening(Some((file, lane)))?;
        let asked = Instant::now();
        let current = match file.keeps_lane(lane) {
            // The blocks are not valid now, and may be again when the server answers.
            Err(error) if is_unacknowledged(&error) => {
                self.rest(&error);
                return None;
            }
            known => known.unwrap_or(false),
        };
        self.cache.notice_map(&self.process).then_some(())?;
        self.process.lock().learn_lane(self.inode, asking.moment, lane, asked, current);
        Some(())
    }

    /// Reads a block into the cache, and from it.
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
        self.check_listening(from_lane)?;
        let (asked, noted) = (Instant::now(), Noted::default());
        let mut bytes = vec![0; asking.size.saturating_sub(start).min(BLOCK_BYTES) as usize];
        let read = file.read_block(&mut bytes, start, &noted).map_err(|error| self.rest(&error)).ok()?;
        bytes.truncate(read);
        let there = bytes.get((offset - start) as usize..)?;
        let count = there.len().min(buffer.len());
        buffer[..count].copy_from_slice(&there[..count]);
        // Of a repeated request the server may have counted the other copy as the one whose bytes are cached.
        if !noted.repeated.get() && self.cache.notice_map(&self.process) {
            let brought = Brought { number, bytes: bytes.into(), asked, inline: noted.inline.get() };
            self.process.lock().keep(self.inode, asking.moment, brought);
        }
        Some(count)
    }

    /// `None` unless the lane's server, or the home, answers and its recalls are listened for.
    fn check_listening(&self, lane: Option<(&File, u16)>) -> Option<()> {
        let session = self.cache.pool.session().ok()?;
        let slot = match lane {
            None => self.inode.slot(),
            Some((file, lane)) => {
                ramlace_layout::lane_slot(file.layout(), lane, session.known_map()?.slots())
            }
        };
        session.is_listened_to(slot).then_some(())
    }

    /// A request has brought nothing.
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
        self.file.process.lock().answered(self.file.inode, self.query);
    }
}

impl Process {
    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock()
    }
}

impl RecallHandler {
    fn sizes_recalled(&self, recalls: &[Recall]) {
        let Some(cache) = self.cache.upgrade() else { return };
        let Some(process) = cache.processes.get() else { return };
        let mut blocks = process.lock();
        let sizes = recalls.iter().filter(|recall| recall.what == LeasedPart::Attributes);
        sizes.for_each(|recall| blocks.recall_size(recall.inode));
    }
}

impl DataLeases for RecallHandler {
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

    /// Blocks are believed for a time only, which is over.
    fn unheard(&self, _server: ServerId) {}
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
        // While this is held nothing is dropped or refreshed.
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
    /// Reads from the cache, where needed after filling it; `None`: read without the cache.
    pub(crate) fn read_kept_here(&self, buffer: &mut [u8], offset: u64) -> Option<Result<usize>> {
        match self.sharing() {
            Mode::Coherent => self.read_cached(buffer, offset).map(Ok),
            Mode::Relaxed => self.read_relaxed(buffer, offset),
            Mode::Strict => None,
        }
    }

    /// Reads from the leased cache, if there is one and it has or can get these bytes; `None`: read without
    /// it.
    fn read_cached(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        let cache = self.pool().cache()?;
        let last = offset.checked_add((buffer.len() as u64).checked_sub(1)?)?;
        if !self.rights().read || offset / BLOCK_BYTES != last / BLOCK_BYTES {
            return None;
        }
        // Nothing is read for a session that has ended, whatever another session has cached.
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
