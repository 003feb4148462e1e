//! Memory to send from and to receive into: private huge pages, or a file of a tmpfs.

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use ramlace_base::{Error, Result};
use ramlace_store::{Backing, StoreOptions, StoreRoot};
use rustix::fs::{Mode, OFlags, openat};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

const HUGE_PAGE_BYTES: usize = 2 << 20;
/// What a tmpfs needs beside the bytes of its one file.
const SPARE_BYTES: usize = 32 << 20;

/// A mapping, unmapped when it is dropped.
pub struct Region {
    whole: *mut u8,
    whole_bytes: usize,
    start: NonNull<u8>,
    length: usize,
}

impl Region {
    /// Private memory, huge pages where the machine has them, touched already.
    pub fn private(length: usize) -> Result<Region> {
        let mut region = Region::place(length, ProtFlags::READ | ProtFlags::WRITE)?;
        // SAFETY: advice about memory of this region's own, which changes no content. Without huge
        // pages small ones serve.
        let _ = unsafe { madvise(region.start.as_ptr().cast(), length, Advice::LinuxHugepage) };
        region.bytes_mut().fill(1);
        Ok(region)
    }

    /// The first bytes of a file, shared. All of them must have their memory.
    pub fn of_file(file: &File, length: usize) -> Result<Region> {
        let region = Region::place(length, ProtFlags::empty())?;
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        let start = region.start.as_ptr().cast();
        // SAFETY: the range was reserved by `place` and nobody uses it yet.
        unsafe { mmap(start, length, rights, flags, file.as_fd(), 0) }
            .map_err(|errno| Error::from_io(&errno.into(), "mapping a file"))?;
        // SAFETY: advice about memory of this region's own, which changes no content; under
        // huge=advise nothing else brings huge pages.
        let _ = unsafe { madvise(start, length, Advice::LinuxHugepage) };
        Ok(region)
    }

    /// Takes the memory of all pages, as a server does for its chunks.
    fn populate(&self) -> Result<()> {
        // SAFETY: advice about memory of this region's own, which changes no content.
        unsafe { madvise(self.start.as_ptr().cast(), self.length, Advice::LinuxPopulateWrite) }
            .map_err(|errno| Error::from_io(&errno.into(), format!("taking {} bytes of memory", self.length)))
    }

    fn place(length: usize, rights: ProtFlags) -> Result<Region> {
        let whole_bytes = length + HUGE_PAGE_BYTES;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nobody's memory.
        let whole = unsafe { mmap_anonymous(std::ptr::null_mut(), whole_bytes, rights, flags) }
            .map_err(|errno| Error::from_io(&errno.into(), format!("reserving {length} bytes")))?;
        let whole: *mut u8 = whole.cast();
        let start = whole.wrapping_add(whole.align_offset(HUGE_PAGE_BYTES));
        let start = NonNull::new(start).expect("the kernel maps nothing at address 0");
        Ok(Region { whole, whole_bytes, start, length })
    }

    /// Publishes what was stored into a file's mapping.
    pub fn publish(&self) -> Result<()> {
        let start = self.start.as_ptr().cast();
        // SAFETY: the range is this region's own.
        unsafe { rustix::mm::msync(start, self.length, rustix::mm::MsyncFlags::SYNC) }
            .map_err(|errno| Error::from_io(&errno.into(), "publishing a mapping"))
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as this value lives; the file belongs to this program alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// All of it, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own, and what was borrowed from it is gone.
        let unmapped = unsafe { munmap(self.whole.cast(), self.whole_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A file with all its memory in a private tmpfs such as servers have: huge pages where possible.
/// The tmpfs goes with the returned root.
pub fn huge_file(length: usize) -> Result<(StoreRoot, File)> {
    let options = StoreOptions {
        size_bytes: (length + SPARE_BYTES) as u64,
        backing: Backing::PrivateTmpfs,
        name: "bench".into(),
    };
    let root = StoreRoot::create(&options)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let file = openat(root.descriptor(), "file", flags, Mode::from_raw_mode(0o600))
        .map_err(|errno| Error::from_io(&errno.into(), "making a file in a private tmpfs"))?;
    Ok((root, fill(file.into(), length)?))
}

/// A file without a name in the machine's shared memory: 4 KiB pages, unless this machine's
/// settings give shared memory huge ones.
pub fn small_page_file(length: usize) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = rustix::fs::open("/dev/shm", flags, Mode::from_raw_mode(0o600))
        .map_err(|errno| Error::from_io(&errno.into(), "making a file in /dev/shm"))?;
    fill(file.into(), length)
}

fn fill(file: File, length: usize) -> Result<File> {
    file.set_len(length as u64).map_err(|error| Error::from_io(&error, "making a file long"))?;
    Region::of_file(&file, length)?.populate()?;
    Ok(file)
}
