//! The store as the server's child uses it: lanes by name, their bytes, their memory.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ramlace_base::{ByteRange, Error, ErrorKind, LaneId, Result, limits};
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::ballast::Reservation;
use crate::cache::Cache;
use crate::lane::{self, Extent, Lane};
use crate::pool::{Pool, Purpose, Usage};
use crate::range_set::RangeSet;
use crate::spread::Spread;
use crate::sys::{self, PAGE_BYTES};
use crate::window::{Mapping, Window};
use crate::{StoreRoot, meta};

/// How often a cut is repeated that has left pages beyond the lane's end; a later trim tries again.
const CUT_TRIES_MAX: usize = 3;

/// The memory of one server, used by one thread.
///
/// After an error that is not `NoSpace`, `NotFound`, `Exists` or `Invalid` the machine is failing:
/// the counters still follow the kernel, since they are taken from it after each change.
#[derive(Debug)]
pub struct Store {
    // Declared first, so that its thread has ended before the files are closed.
    pub(crate) reservation: Option<Reservation>,
    pub(crate) root: StoreRoot,
    pub(crate) pool: Arc<Pool>,
    /// All lanes lie in one directory: a 4 KiB file costs 11.6 us to make in an empty one, 11.3 us
    /// beside 100,000 others (Linux 6.18), so that directories below it would gain nothing.
    pub(crate) directory: OwnedFd,
    pub(crate) meta_directory: Arc<OwnedFd>,
    pub(crate) lanes: HashMap<LaneId, Lane>,
    /// Whether any lane may have taken memory ahead.
    pub(crate) tails: bool,
    pub(crate) files: Cache<LaneId, Arc<OwnedFd>>,
    pub(crate) mappings: Cache<(LaneId, u64), Arc<Mapping>>,
    /// Made when it is first needed.
    pub(crate) spread: Option<Spread>,
}

impl Store {
    /// Opens the memory: counts what is there and drops nothing.
    ///
    /// Errors: `Corrupt` when it holds files that no store has made.
    pub fn open(root: StoreRoot) -> Result<Store> {
        let directory = sys::open_directory(root.descriptor(), "lanes")?;
        let meta_directory = sys::open_directory(root.descriptor(), "meta")?;
        let mut lanes = HashMap::new();
        for name in sys::names(&directory, "reading the lanes of the store")? {
            let id = lane::parse_file_name(&name)?;
            let file = sys::tell(
                sys::open_file(&directory, &name, OFlags::empty()),
                format_args!("opening lane {id}"),
            )?;
            let size = sys::file_size(&file, format_args!("looking at lane {id}"))?;
            // A client that was granted this file by an earlier process may still hold it.
            let (length, allocated) = (size.length, size.allocated);
            lanes.insert(
                id,
                Lane {
                    length,
                    allocated,
                    present: None,
                    blank: RangeSet::default(),
                    granted: true,
                    tail: true,
                },
            );
        }
        let lanes_bytes = lanes.values().map(|lane| lane.allocated).sum();
        let meta_bytes = meta::allocated_bytes(&meta_directory)?;
        let pool = Arc::new(Pool::new(&root, lanes_bytes, meta_bytes)?);
        Ok(Store {
            reservation: None,
            root,
            pool,
            directory,
            meta_directory: Arc::new(meta_directory),
            lanes,
            tails: true,
            files: Cache::new(limits::LANE_DESCRIPTORS_MAX),
            mappings: Cache::new(limits::WINDOWS_MAX),
            spread: None,
        })
    }

    /// The memory it works on.
    #[must_use]
    pub fn root(&self) -> &StoreRoot {
        &self.root
    }

    /// Gives the memory's handle back; what it holds stays.
    #[must_use]
    pub fn into_root(mut self) -> StoreRoot {
        self.reservation = None;
        self.root
    }

    /// Starts the thread that reserves in the background what is not used. Does nothing the second time.
    ///
    /// Up to two huge pages (4 MiB) stay unreserved. The thread sleeps when there is nothing to do
    /// and ends with the store.
    pub fn start_reservation(&mut self) -> Result<()> {
        if self.reservation.is_none() {
            self.reservation = Some(Reservation::start(Arc::clone(&self.pool))?);
        }
        Ok(())
    }

    /// Keeps so much from lanes: the log has promised to take it.
    pub fn withhold(&self, bytes: u64) {
        self.pool.withhold(bytes);
    }

    /// Which purpose has which memory, by the store's own counters.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.pool.usage()
    }

    /// Memory in use as the kernel counts it: `used_bytes + reserved_bytes` of [`Store::usage`], as long
    /// as no client has changed a granted file (see [`Store::recount_granted`]) and the reservation rests.
    pub fn kernel_usage(&self) -> Result<u64> {
        if self.root.is_private() {
            let stat =
                sys::tell(rustix::fs::fstatvfs(self.root.descriptor()), "asking for the store's fill")?;
            return Ok((stat.f_blocks - stat.f_bfree) * stat.f_frsize);
        }
        let ballast = meta::file_bytes(self.root.descriptor(), "ballast")?;
        Ok(meta::allocated_bytes(&self.directory)? + meta::allocated_bytes(&self.meta_directory)? + ballast)
    }

    /// Makes an empty lane. Errors: `Exists`; `NoSpace` when the kernel has no more files to give.
    pub fn create_lane(&mut self, id: LaneId) -> Result<()> {
        if self.lanes.contains_key(&id) {
            return Err(Error::new(ErrorKind::Exists, format!("lane {id} exists already")));
        }
        let flags = OFlags::CREATE | OFlags::EXCL;
        let file = sys::tell(
            sys::open_file(&self.directory, &lane::file_name(id), flags),
            format_args!("creating lane {id}"),
        )?;
        self.files.insert(id, Arc::new(file));
        let present = Some(RangeSet::default());
        self.lanes.insert(
            id,
            Lane {
                length: 0,
                allocated: 0,
                present,
                blank: RangeSet::default(),
                granted: false,
                tail: false,
            },
        );
        Ok(())
    }

    /// Whether there is such a lane.
    #[must_use]
    pub fn has_lane(&self, id: LaneId) -> bool {
        self.lanes.contains_key(&id)
    }

    /// Removes a lane and frees all its memory at once, even while it is mapped or granted: windows
    /// then give EFAULT, and a client that still maps the file gets SIGBUS from its loads.
    ///
    /// Errors: `NotFound`.
    pub fn remove_lane(&mut self, id: LaneId) -> Result<()> {
        let file = self.file(id)?;
        self.windows_forget(id);
        let emptied = sys::tell(rustix::fs::ftruncate(&file, 0), format_args!("emptying lane {id}"));
        self.account(id, &file, 0)?;
        emptied?;
        sys::tell(
            rustix::fs::unlinkat(&self.directory, lane::file_name(id), AtFlags::empty()),
            format_args!("removing lane {id}"),
        )?;
        let lane = self.lanes.remove(&id).expect("file() found it");
        // Normally nothing; what could not be freed leaves the books together with its name.
        self.pool.account(Purpose::Lanes, 0, lane.allocated, 0);
        self.files.remove(id);
        Ok(())
    }

    /// All lanes, in no order.
    pub fn lane_ids(&self) -> impl ExactSizeIterator<Item = LaneId> + '_ {
        self.lanes.keys().copied()
    }

    /// Length of the lane's file: the end of the furthest [`Store::prepare_write`] or what `cut` set.
    ///
    /// Errors: `NotFound`.
    pub fn lane_length(&mut self, id: LaneId) -> Result<u64> {
        self.refresh(id)?;
        Ok(self.lane(id)?.length)
    }

    /// Memory that the lane holds. Errors: `NotFound`.
    pub fn lane_allocated_bytes(&mut self, id: LaneId) -> Result<u64> {
        self.refresh(id)?;
        Ok(self.lane(id)?.allocated)
    }

    /// Fills `buffer` from `offset` on: says how many bytes the file had, and zeroes the rest.
    ///
    /// Errors: `NotFound`.
    pub fn read_staged(&mut self, id: LaneId, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        checked_range(id, offset, buffer.len() as u64)?;
        let file = self.file(id)?;
        let read = sys::tell(sys::read_all_at(&file, buffer, offset), format_args!("reading lane {id}"))?;
        buffer[read..].fill(0);
        Ok(read)
    }

    /// Writes all of `bytes` at `offset`, after [`Store::prepare_write`] of the same range.
    ///
    /// Errors: `NotFound`; `Fatal` when the range was not prepared, which is a bug of the caller, or
    /// was cut off meanwhile by a client that holds the file (prepare again).
    pub fn write_staged(&mut self, id: LaneId, offset: u64, bytes: &[u8]) -> Result<()> {
        let range = checked_range(id, offset, bytes.len() as u64)?;
        let file = self.file(id)?;
        self.refresh(id)?;
        let lane = self.lane(id)?;
        if range.is_empty() {
            return Ok(());
        }
        let pages = range.aligned_outward(PAGE_BYTES);
        if range.end > lane.length || !lane.present.as_ref().is_some_and(|present| present.contains(pages)) {
            return Err(sys::fatal(format!(
                "lane {id} was not prepared for bytes {} to {}",
                range.start, range.end
            )));
        }
        sys::tell(sys::write_all_at(&file, bytes, offset), format_args!("writing lane {id}"))
    }

    /// Maps a range of a lane for system calls; see [`Window`] for the rules.
    ///
    /// Errors: `NotFound`; `NoSpace` when the process has no address space left.
    pub fn window(&mut self, id: LaneId, offset: u64, length: u64) -> Result<Window> {
        let range = checked_range(id, offset, length)?;
        self.lane(id)?;
        let mut window = Window::new();
        for part in split_at(range, limits::WINDOW_BYTES) {
            let mapping = self.mapping(id, part.start / limits::WINDOW_BYTES)?;
            window.push(mapping, part.start % limits::WINDOW_BYTES, part.length());
        }
        Ok(window)
    }

    /// Bytes and holes of a range, in order and without gaps; beyond the file's end there is a hole.
    ///
    /// Errors: `NotFound`.
    pub fn extents(&mut self, id: LaneId, offset: u64, length: u64) -> Result<Vec<Extent>> {
        let range = checked_range(id, offset, length)?;
        let file = self.file(id)?;
        let mut extents = Vec::with_capacity(1);
        let mut push = |start, end, is_hole| {
            if start < end {
                extents.push(Extent { range: ByteRange { start, end }, is_hole });
            }
        };
        let mut at = range.start;
        while let Some(data) = sys::tell(
            sys::next_data(&file, at, range.end),
            format_args!("looking for the holes of lane {id}"),
        )? {
            push(at, data.start, true);
            push(data.start, data.end, false);
            at = data.end;
        }
        push(at, range.end, true);
        Ok(extents)
    }

    /// Where the next bytes at or behind `offset` are that may be other than zero; `None`: nowhere.
    ///
    /// Errors: `NotFound`.
    pub fn next_data(&mut self, id: LaneId, offset: u64) -> Result<Option<u64>> {
        let file = self.file(id)?;
        // The last page is there to its end, wherever the file ends in it.
        let (page, end) = (offset / PAGE_BYTES * PAGE_BYTES, limits::FILE_BYTES_MAX);
        let data =
            sys::tell(sys::next_data(&file, page, end), format_args!("looking for data of lane {id}"))?;
        Ok(data.map(|data| data.start.max(offset)))
    }

    /// Where the next hole at or behind `offset` is; behind the file's end there is one.
    ///
    /// Errors: `NotFound`.
    pub fn next_hole(&mut self, id: LaneId, offset: u64) -> Result<u64> {
        let file = self.file(id)?;
        let page = offset / PAGE_BYTES * PAGE_BYTES;
        let hole =
            sys::tell(sys::next_hole(&file, page), format_args!("looking for the holes of lane {id}"))?;
        Ok(hole.next_multiple_of(PAGE_BYTES).max(offset))
    }

    /// Makes a range read as zeros: frees its whole pages and zeroes its edges. The length stays.
    ///
    /// Errors: `NotFound`.
    pub fn punch(&mut self, id: LaneId, offset: u64, length: u64) -> Result<()> {
        let range = checked_range(id, offset, length)?;
        let file = self.file(id)?;
        if range.is_empty() {
            return Ok(());
        }
        let punched = sys::tell(sys::punch(&file, range), format_args!("punching lane {id}"));
        let freed = ByteRange {
            start: range.start.next_multiple_of(PAGE_BYTES),
            end: range.end / PAGE_BYTES * PAGE_BYTES,
        };
        self.forget_pages(id, freed);
        self.account(id, &file, 0)?;
        punched
    }

    /// Writes zeros into a range, as far as the lane goes, and frees nothing. Its memory must be there.
    ///
    /// Errors: `NotFound`; `NoSpace` where its memory was not there.
    pub fn zero(&mut self, id: LaneId, offset: u64, length: u64) -> Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let range = checked_range(id, offset, length)?;
        let end = range.end.min(self.lane_length(id)?);
        let file = self.file(id)?;
        let mut at = range.start;
        while at < end {
            let bytes = (end - at).min(ZEROS.len() as u64);
            let zeros = &ZEROS[..bytes as usize];
            sys::tell(sys::write_all_at(&file, zeros, at), format_args!("zeroing lane {id}"))?;
            at += bytes;
        }
        Ok(())
    }

    /// Zeroes what was stored behind the lane's end within its last page. Errors: `NotFound`.
    pub fn clean_tail(&mut self, id: LaneId) -> Result<()> {
        let length = self.lane_length(id)?;
        let tail = ByteRange { start: length, end: length.next_multiple_of(PAGE_BYTES) };
        if tail.is_empty() {
            return Ok(());
        }
        let file = self.file(id)?;
        sys::tell(sys::punch(&file, tail), format_args!("cleaning the end of lane {id}"))
    }

    /// Sets the lane's time of modification to the beginning of time. Errors: `NotFound`.
    pub fn forget_time(&mut self, id: LaneId) -> Result<()> {
        let file = self.file(id)?;
        let never = rustix::fs::Timespec { tv_sec: 0, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: never, last_modification: never };
        sys::tell(rustix::fs::futimens(&file, &times), format_args!("setting the time of lane {id}"))
    }

    /// Makes the lane `length` bytes long: frees everything beyond, also what was taken ahead, and
    /// zeroes the rest of the last page. A longer lane ends in a hole. Errors: `NotFound`.
    pub fn cut(&mut self, id: LaneId, length: u64) -> Result<()> {
        checked_range(id, 0, length)?;
        let file = self.file(id)?;
        let mut cut = sys::tell(rustix::fs::ftruncate(&file, length), format_args!("cutting lane {id}"));
        self.forget_pages(id, ByteRange { start: length.next_multiple_of(PAGE_BYTES), end: u64::MAX });
        self.account(id, &file, 0)?;
        for _ in 0..CUT_TRIES_MAX {
            if cut.is_err() || !self.has_tail(id)? {
                break;
            }
            std::thread::yield_now();
            cut = sys::tell(rustix::fs::ftruncate(&file, length), format_args!("cutting lane {id}"));
            self.account(id, &file, 0)?;
        }
        let tail = cut.is_err() || self.has_tail(id)?;
        self.lane_mut(id)?.tail = tail;
        self.tails |= tail;
        cut
    }

    /// Whether the lane has pages beyond its end. The kernel keeps a huge page whole, and zeroes its end, while
    /// another user holds it for a moment: then it cannot be split.
    fn has_tail(&self, id: LaneId) -> Result<bool> {
        let lane = self.lane(id)?;
        Ok(lane.allocated > lane.length.next_multiple_of(PAGE_BYTES))
    }

    /// Gives back what was taken ahead beyond the lane's end: for the last close. Errors: `NotFound`.
    pub fn trim(&mut self, id: LaneId) -> Result<()> {
        self.refresh(id)?;
        let lane = self.lane(id)?;
        if lane.tail {
            let length = lane.length;
            // Cutting a file to the length it has frees the pages beyond it.
            self.cut(id, length)?;
        }
        Ok(())
    }

    /// A fresh descriptor of the lane's file alone, close-on-exec, for passing to a local client.
    ///
    /// It leads to nothing else: neither the directory nor other files. A client of the same uid can cut the
    /// file even through a read-only one, so from now on the file is checked before it is trusted. A client
    /// must not change the file's length: what it adds is counted when it is seen, and may be cut again while
    /// the store is full. Errors: `NotFound`; `TooMany` when the process has no descriptors left.
    pub fn grant(&mut self, id: LaneId, writable: bool) -> Result<OwnedFd> {
        let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lane = self.lane_mut(id)?;
        lane.granted = true;
        // A client that has the file may write it without notice.
        lane.blank = RangeSet::default();
        sys::tell(
            rustix::fs::openat(&self.directory, lane::file_name(id), flags, Mode::empty()),
            format_args!("opening lane {id} for a client"),
        )
    }

    /// Examines every lane that a client may have changed, so that the counters are the kernel's.
    pub fn recount_granted(&mut self) -> Result<()> {
        let granted: Vec<LaneId> =
            self.lanes.iter().filter(|(_, lane)| lane.granted).map(|(id, _)| *id).collect();
        granted.into_iter().try_for_each(|id| self.refresh(id))
    }

    pub(crate) fn lane(&self, id: LaneId) -> Result<&Lane> {
        self.lanes.get(&id).ok_or_else(|| absent(id))
    }

    pub(crate) fn lane_mut(&mut self, id: LaneId) -> Result<&mut Lane> {
        self.lanes.get_mut(&id).ok_or_else(|| absent(id))
    }

    /// The lane's file, opened if it is not.
    pub(crate) fn file(&mut self, id: LaneId) -> Result<Arc<OwnedFd>> {
        self.lane(id)?;
        if let Some(file) = self.files.get(id) {
            return Ok(Arc::clone(file));
        }
        let file = sys::tell(
            sys::open_file(&self.directory, &lane::file_name(id), OFlags::empty()),
            format_args!("opening lane {id}"),
        )?;
        Ok(Arc::clone(self.files.insert(id, Arc::new(file))))
    }

    /// The mapping of the lane's window with this index, made if it is not there.
    pub(crate) fn mapping(&mut self, id: LaneId, index: u64) -> Result<Arc<Mapping>> {
        if let Some(mapping) = self.mappings.get((id, index)) {
            return Ok(Arc::clone(mapping));
        }
        let file = self.file(id)?;
        let mapping = Mapping::new(file.as_fd(), index * limits::WINDOW_BYTES, limits::WINDOW_BYTES)?;
        Ok(Arc::clone(self.mappings.insert((id, index), Arc::new(mapping))))
    }

    /// Takes the file's sizes into the books and ends a promise. What is known of its pages stays.
    pub(crate) fn account(&mut self, id: LaneId, file: &OwnedFd, promised: u64) -> Result<()> {
        let size = sys::file_size(file, format_args!("looking at lane {id}"));
        let lane = self.lanes.get_mut(&id).ok_or_else(|| absent(id))?;
        let before = lane.allocated;
        if let Ok(size) = &size {
            (lane.length, lane.allocated) = (size.length, size.allocated);
        }
        self.pool.account(Purpose::Lanes, promised, before, lane.allocated);
        size.map(|_| ())
    }

    /// Examines a granted lane again; if a client changed it, forgets what was known of its pages.
    pub(crate) fn refresh(&mut self, id: LaneId) -> Result<()> {
        let lane = self.lane(id)?;
        if !lane.granted {
            return Ok(());
        }
        let (length, allocated) = (lane.length, lane.allocated);
        let file = self.file(id)?;
        self.account(id, &file, 0)?;
        let lane = self.lane_mut(id)?;
        if lane.length != length || lane.allocated != allocated {
            (lane.present, lane.tail) = (None, true);
            self.tails = true;
        }
        self.scan_pages(id)
    }

    /// Finds out which pages of a lane are there, if that is not known.
    pub(crate) fn scan_pages(&mut self, id: LaneId) -> Result<()> {
        if self.lane(id)?.present.is_none() {
            let file = self.file(id)?;
            let lane = self.lane_mut(id)?;
            lane.present = Some(lane::scan(&file, 0, lane.length)?);
        }
        Ok(())
    }

    pub(crate) fn forget_pages(&mut self, id: LaneId, range: ByteRange) {
        if let Some(present) = self.lanes.get_mut(&id).and_then(|lane| lane.present.as_mut()) {
            present.remove(range);
        }
    }

    fn windows_forget(&mut self, id: LaneId) {
        self.mappings.retain(|(lane, _)| *lane != id);
    }
}

fn absent(id: LaneId) -> Error {
    Error::new(ErrorKind::NotFound, format!("lane {id} is not in this store"))
}

/// The range of a request; nothing lies beyond the largest file.
pub(crate) fn checked_range(id: LaneId, offset: u64, length: u64) -> Result<ByteRange> {
    ByteRange::at(offset, length).filter(|range| range.end <= limits::FILE_BYTES_MAX).ok_or_else(|| {
        Error::new(
            ErrorKind::TooBig,
            format!("{length} bytes at {offset} of lane {id} lie beyond the largest file"),
        )
    })
}

/// Cuts a range at the multiples of `unit`.
pub(crate) fn split_at(range: ByteRange, unit: u64) -> impl Iterator<Item = ByteRange> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let start = at;
        at = range.end.min((start / unit + 1) * unit);
        Some(ByteRange { start, end: at })
    })
}
