//! A file's bytes mapped into this process: the lane files of this machine's servers, stitched
//! together chunk by chunk (`docs/records/store.md`).

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, Result, limits};
use ramlace_wire::Layout;
use ramlace_wire::namespace::Open;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::File;
use crate::bytes::memory::Memory;
use crate::bytes::near::grant_lane;
use crate::bytes::transfer::Direction;
use crate::coordination::changes::{Over, note_stores};
use crate::coordination::locking::soon;
use crate::fork::PerFork;
use crate::names::inodes::Handle;

/// The number of the next mapping for stores in this process.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// A reserved range of addresses, unmapped when it is dropped.
///
/// It begins at a huge page's border, so that chunks of 2 MiB can be mapped by one entry each.
pub(crate) struct AddressRange {
    whole: NonNull<u8>,
    whole_bytes: usize,
    start: NonNull<u8>,
}

// SAFETY: an address range has one owner; its memory is reached through raw pointers, whose users are
// responsible for that.
unsafe impl Send for AddressRange {}
// SAFETY: as above.
unsafe impl Sync for AddressRange {}

impl AddressRange {
    /// Reserves `bytes` bytes of addresses with these rights, private and without a file.
    pub(crate) fn reserve(bytes: usize, rights: ProtFlags) -> Result<AddressRange> {
        let align = limits::HUGE_PAGE_BYTES as usize;
        let too_big =
            || Error::new(ErrorKind::TooBig, format!("{bytes} bytes do not fit this machine's addresses"));
        let whole_bytes = bytes.checked_add(align).ok_or_else(too_big)?;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no other.
        let whole = unsafe {
            mmap_anonymous(std::ptr::null_mut(), whole_bytes, rights, MapFlags::PRIVATE | MapFlags::NORESERVE)
        }
        .map_err(|errno| Error::from_io(&errno.into(), format!("reserving addresses for {bytes} bytes")))?;
        let whole = NonNull::new(whole.cast::<u8>()).expect("the kernel maps nothing at address 0");
        let ahead = whole.as_ptr().align_offset(align);
        // SAFETY: less than `align` bytes ahead still lies in the range.
        let start = unsafe { whole.add(ahead) };
        Ok(AddressRange { whole, whole_bytes, start })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own, and nothing borrows from it any more.
        let unmapped = unsafe { munmap(self.whole.as_ptr().cast(), self.whole_bytes) };
        debug_assert!(unmapped.is_ok(), "an own range can be unmapped: {unmapped:?}");
    }
}

/// Private memory for many bytes, zeros at first; what is never touched takes no memory.
pub(crate) struct OwnBytes {
    range: AddressRange,
    bytes: usize,
}

impl OwnBytes {
    pub(crate) fn new(bytes: usize) -> Result<OwnBytes> {
        Ok(OwnBytes { range: AddressRange::reserve(bytes, ProtFlags::READ | ProtFlags::WRITE)?, bytes })
    }
}

impl Deref for OwnBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is at least so long, readable, and this value's alone.
        unsafe { std::slice::from_raw_parts(self.range.start().as_ptr(), self.bytes) }
    }
}

impl DerefMut for OwnBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the range is at least so long, writable, and this value's alone.
        unsafe { std::slice::from_raw_parts_mut(self.range.start().as_ptr(), self.bytes) }
    }
}

/// A file's bytes in this process's address space, shared with every other process that maps them on this
/// machine, and with the servers. Unmapped when it is dropped. It holds the file open: it outlives its
/// [`File`] and the file's name, but not the session or its server.
///
/// Loads and stores bypass the servers: they respect neither truncations nor sizes
/// (`docs/records/arrays.md`).
pub struct Mapping {
    range: AddressRange,
    length: usize,
    /// By this number its servers know a mapping for stores.
    number: Option<u64>,
    /// The lanes whose servers may know it: so many, from the first one on.
    asked_lanes: u16,
    /// A program has got it, and may have stored by it.
    is_handed_out: bool,
    inode: InodeId,
    layout: Layout,
    /// Without a reference of its own, the last close of an unlinked file would free the memory under the
    /// mapping. A forked child inherits the mapping, but not the reference.
    open: PerFork<Handle>,
}

impl Mapping {
    /// The first byte; valid as long as the mapping is. Aligned to 2 MiB.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.range.start().as_ptr()
    }

    /// Bytes: the file's size when it was mapped.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the file was empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether stores are allowed; otherwise a store ends the process.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.number.is_some()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (Some(number), Some(handle)) = (self.number, self.open.get()) else { return };
        // No server has seen the stores: caches of the file are invalidated by the time of its last change,
        // and copies by the servers' numbers.
        let mut stored = ByteRange::default();
        if self.is_handed_out {
            handle.session.touch(&handle.open);
            stored.end = self.length as u64;
        }
        if !handle.session.is_ended() {
            // A server that does not hear of the end believes that there may be stores until the session ends.
            let over = Over { number, lanes: self.asked_lanes };
            let _ = note_stores(handle, (self.inode, &self.layout), stored, Some(over), soon);
        }
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Mapping({:?}, {} bytes)", self.as_ptr(), self.length)
    }
}

impl File {
    /// Maps the whole file. The servers of all its lanes must run on this machine, and every byte must have
    /// its memory ([`File::allocate`]; arrays have it from the beginning).
    ///
    /// Fails with Unsupported, naming the server, when a lane is elsewhere or local shortcuts are off: then
    /// fetch a copy ([`File::copy`]).
    pub fn map(&self, writable: bool) -> Result<Mapping> {
        self.try_map(writable).map_err(|error| self.tell(error))
    }

    /// Reports that the bytes were changed through mappings: to the home, so that clients that have cached
    /// them (mounts) drop them, and to the servers of its lanes, so that clients that wait for a change of
    /// them are notified. Mappings of one machine see each other's stores without it.
    pub fn publish(&self) -> Result<()> {
        self.publish_range(ByteRange { start: 0, end: u64::MAX })
    }

    /// The same for some bytes, as far as the file has them.
    pub fn publish_range(&self, range: ByteRange) -> Result<()> {
        self.needs_writing()?;
        let handle = self.handle()?;
        let _changing = self.changing(range);
        handle.session.touch(&handle.open);
        self.sync()?;
        // An inline file is never mapped.
        if handle.open.is_inline() {
            return Ok(());
        }
        self.note_stores(handle, range).map_err(|error| self.tell(error))
    }

    fn try_map(&self, writable: bool) -> Result<Mapping> {
        self.check_may_be_memory()?;
        if !self.rights().read || (writable && !self.rights().write) {
            return Err(Error::new(ErrorKind::BadHandle, "it was not opened for what the mapping needs"));
        }
        let length = self.size()?;
        let pieces = if self.layout().width == 1 { 1 } else { length.div_ceil(self.layout().stripe_unit) };
        if pieces > limits::MAPPING_PIECES_MAX {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "its {length} bytes in chunks of {} would take {pieces} mappings, and at most {} are made; \
                     create it with a larger stripe unit",
                    self.layout().stripe_unit,
                    limits::MAPPING_PIECES_MAX
                ),
            ));
        }
        let handle = self.handle()?;
        self.promote(handle)?;
        let bytes =
            usize::try_from(length).map_err(|_| Error::new(ErrorKind::TooBig, "it is larger than memory"))?;
        let again = Open { inode: self.inode(), read: true, write: writable, run: false };
        let (own, _) = handle.session.open_inode(&again)?;
        let range = AddressRange::reserve(bytes, ProtFlags::empty())?;
        let mut mapping = Mapping {
            range,
            length: bytes,
            number: writable.then(|| NUMBERS.fetch_add(1, Ordering::Relaxed)),
            asked_lanes: 0,
            is_handed_out: false,
            inode: self.inode(),
            layout: *self.layout(),
            open: PerFork::with(own),
        };
        for lane in 0..self.layout().width {
            if ramlace_layout::lane_length(self.layout(), lane, length) > 0 {
                let descriptor = self.grant(handle, lane, length, &mut mapping)?;
                self.stitch(&mapping, lane, &descriptor)?;
            }
        }
        mapping.is_handed_out = true;
        Ok(mapping)
    }

    /// A descriptor of a lane's file for a mapping, if its server can give one.
    fn grant(&self, handle: &Handle, lane: u16, file_bytes: u64, mapping: &mut Mapping) -> Result<OwnedFd> {
        let session = &handle.session;
        if !session.local() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "local shortcuts are switched off, so it cannot be mapped; fetch a copy of it instead",
            ));
        }
        let granted = self.with_size(handle, |size| {
            let transfer = self.transfer(handle, size, Direction::Read, Memory::none());
            let target = transfer.target(lane)?;
            grant_lane(session, target, mapping.number, session.deadline())
        });
        // A server that refuses later than that, or whose answer is lost, may count the mapping already.
        if !granted.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unsupported) {
            mapping.asked_lanes = lane + 1;
        }
        let (descriptor, length) = granted.map_err(suggest_copy)?;
        let needed = ramlace_layout::lane_length(self.layout(), lane, file_bytes);
        let there = length.min(allocated(&descriptor)?);
        if there < needed {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "lane {lane} has memory for {there} of its {needed} bytes, and a load beyond them would end \
                     the process; allocate the file first"
                ),
            ));
        }
        Ok(descriptor)
    }

    /// Maps the chunks of a lane into their places.
    fn stitch(&self, mapping: &Mapping, lane: u16, descriptor: &OwnedFd) -> Result<()> {
        let layout = self.layout();
        let length = mapping.length as u64;
        if layout.width == 1 {
            return stitch_piece(mapping, 0, length, 0, descriptor);
        }
        let lane_length = ramlace_layout::lane_length(layout, lane, length);
        let mut at = 0;
        while at < lane_length {
            let start = ramlace_layout::file_offset(layout, lane, at);
            let bytes = layout.stripe_unit.min(length - start);
            stitch_piece(mapping, start, bytes, at, descriptor)?;
            at += layout.stripe_unit;
        }
        Ok(())
    }
}

/// Bytes of memory that a lane's file has: a load or a store where it has a hole would allocate some, and end
/// the process where none is left. Room behind its end counts as well.
fn allocated(lane: &OwnedFd) -> Result<u64> {
    let stat = rustix::fs::fstat(lane)
        .map_err(|errno| Error::from_io(&errno.into(), "looking at the memory of a lane"))?;
    Ok(stat.st_blocks.cast_unsigned() * 512)
}

/// Maps `bytes` bytes of a lane's file from `lane_offset` to `start` in the mapping.
fn stitch_piece(
    mapping: &Mapping,
    start: u64,
    bytes: u64,
    lane_offset: u64,
    descriptor: &OwnedFd,
) -> Result<()> {
    let mut rights = ProtFlags::READ;
    rights.set(ProtFlags::WRITE, mapping.is_writable());
    assert!(start + bytes <= mapping.length as u64, "a chunk lies within its file");
    // SAFETY: the piece lies within the reserved range, which is this mapping's alone and which
    // nobody uses yet.
    unsafe {
        let place = mapping.range.start().as_ptr().add(start as usize);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        mmap(place.cast(), bytes as usize, rights, flags, descriptor.as_fd(), lane_offset)
    }
    .map(drop)
    .map_err(|errno| Error::from_io(&errno.into(), "mapping a lane"))
}

fn suggest_copy(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unsupported => Error::new(
            ErrorKind::Unsupported,
            format!("{}, so it cannot be mapped here; fetch a copy of it instead", error.message()),
        ),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use ramlace_wire::Kind;
    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

    use super::*;
    use crate::OpenOptions;
    use crate::fake::FakePool;

    // SEMANTICS 8.5
    #[test]
    fn a_file_that_could_not_be_mapped_counts_as_unchanged() {
        let pool = FakePool::start(2);
        // Either nothing is asked, or a server of another machine is.
        for local in [false, true] {
            let client = crate::Pool::connect(&crate::ConnectOptions { local, ..pool.options() }).unwrap();
            let file = client.open("/file", &OpenOptions::creating()).unwrap();
            file.allocate(100_000).unwrap();
            let handle = file.handle().unwrap();
            file.sync().unwrap();
            assert_eq!(file.map(true).unwrap_err().kind(), ErrorKind::Unsupported);
            assert_eq!(handle.open.written(), 0, "nothing was stored");
            assert_eq!(pool.seen(Kind::NoteChange), 0, "no server has granted anything");
        }
    }

    // SEMANTICS 8.8
    #[test]
    fn what_has_no_memory_does_not_count_for_a_mapping() {
        let file = memfd_create("lane", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 10_000).unwrap();
        assert_eq!(allocated(&file).unwrap(), 0);
        rustix::io::pwrite(&file, &[1; 4096], 4096).unwrap();
        assert!(allocated(&file).unwrap() < 10_000, "its first page is a hole");
        fallocate(&file, FallocateFlags::empty(), 0, 10_000).unwrap();
        assert!(allocated(&file).unwrap() >= 10_000);
    }
}
