//! An open file: positional reads and writes.

use std::ops::Deref;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ramlace_base::{ByteRange, ErrorKind};
use ramlace_client::{Array as ClientArray, ArrayType, File as ClientFile, LockKind, Rights};
use ramlace_sync::Mutex;
use ramlace_wire::chunk::Sought;

use crate::buffer::Bytes;
use crate::error::detached;
use crate::info::{Layout, Stat};
use crate::mapping::{Copy, Mapping};
use crate::owned::give_back;
use crate::waiting::{interruptible, timeout_of};

/// What the client calls it; an array is a file whose attributes say more.
pub(crate) enum Opened {
    File(ClientFile),
    Array(ClientArray),
}

impl Opened {
    fn file(&self) -> &ClientFile {
        match self {
            Opened::File(file) => file,
            Opened::Array(array) => array.file(),
        }
    }
}

/// An open file, shared by the calls that use it. The last one to drop it closes it, which may ask a server.
#[derive(Clone)]
struct Held(Option<Arc<Opened>>);

impl Held {
    /// The file, where nobody else holds it.
    fn into_inner(mut self) -> Option<Opened> {
        self.0.take().and_then(Arc::into_inner)
    }
}

impl Deref for Held {
    type Target = Opened;

    fn deref(&self) -> &Opened {
        match &self.0 {
            Some(file) => file,
            None => unreachable!("it is taken where it ends alone"),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(last) = self.0.take().and_then(Arc::into_inner) {
            give_back(last);
        }
    }
}

/// An open file of a pool. Offsets and sizes are bytes.
#[pyclass(frozen, module = "ramlace._native")]
pub(crate) struct File {
    /// `None` once it is closed. Calls under way keep the file for themselves until they return.
    file: Mutex<Option<Held>>,
}

impl File {
    pub(crate) fn new(file: Opened) -> File {
        File { file: Mutex::new(Some(Held(Some(Arc::new(file))))) }
    }

    fn get(&self) -> PyResult<Held> {
        let file = self.file.lock();
        file.clone().ok_or_else(|| PyValueError::new_err("I/O operation on closed file."))
    }
}

/// Stands for some bytes of a file at one moment.
#[pyclass(frozen, eq, module = "ramlace._native")]
#[derive(PartialEq)]
pub(crate) struct ChangeVersion {
    version: ramlace_client::ChangeVersion,
}

fn kind_of(exclusive: bool) -> LockKind {
    if exclusive { LockKind::Exclusive } else { LockKind::Shared }
}

#[pymethods]
impl File {
    /// Reads at `offset` until the buffer is full or the file ends; returns the bytes read.
    fn read_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let file = self.get()?;
        let mut bytes = Bytes::writable(buffer)?;
        let slice = bytes.as_mut_slice();
        detached(py, || file.file().read_at(slice, offset))
    }

    /// Writes at `offset`; returns the bytes written: fewer than given only in a full pool.
    fn write_at(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let file = self.get()?;
        let bytes = Bytes::readable(data)?;
        let slice = bytes.as_slice();
        detached(py, || file.file().write_at(slice, offset))
    }

    /// Writes all at the file's end; returns (where that was, the bytes written).
    fn append(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<(u64, usize)> {
        let file = self.get()?;
        let bytes = Bytes::readable(data)?;
        let slice = bytes.as_slice();
        Ok((detached(py, || file.file().append(slice))?, slice.len()))
    }

    /// The published size.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let file = self.get()?;
        detached(py, || file.file().size())
    }

    /// Sets the size.
    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        let file = self.get()?;
        detached(py, || file.file().truncate(size))
    }

    /// Takes the memory of the first `length` bytes and makes the file at least so long.
    fn allocate(&self, py: Python<'_>, length: u64) -> PyResult<()> {
        let file = self.get()?;
        detached(py, || file.file().allocate(length))
    }

    /// Makes times exact at the home.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.get()?;
        detached(py, || file.file().sync())
    }

    /// Stores into mappings of the bytes from `start` to `end` have ended: clients that have cached them must read them again.
    fn publish(&self, py: Python<'_>, start: u64, end: u64) -> PyResult<()> {
        let file = self.get()?;
        match file.file().rights().write {
            true => detached(py, || file.file().publish_range(ByteRange { start, end })),
            // Nothing can have been stored.
            false => Ok(()),
        }
    }

    /// Locks the bytes from `start` to `end` (0: all that follow) and waits for at most so many seconds, for ever
    /// when None. False when a timeout of 0 finds them locked.
    fn lock(
        &self,
        py: Python<'_>,
        start: u64,
        end: u64,
        exclusive: bool,
        timeout: Option<f64>,
    ) -> PyResult<bool> {
        let file = self.get()?;
        let (range, kind) = (ByteRange { start, end }, kind_of(exclusive));
        // Both look for signals once more when the lock is there: a caller that gets one has nothing to unlock it by.
        if timeout == Some(0.0) {
            return interruptible(py, |pause| file.file().try_lock_with(range, kind, pause));
        }
        let timeout = timeout_of(timeout)?;
        interruptible(py, |pause| file.file().lock_with(range, kind, timeout, pause)).map(|()| true)
    }

    /// Unlocks the bytes from `start` to `end` (0: all that follow).
    fn unlock(&self, py: Python<'_>, start: u64, end: u64) -> PyResult<()> {
        let file = self.get()?;
        detached(py, || file.file().unlock(ByteRange { start, end }))
    }

    /// Adds to a cell; returns what it held.
    fn fetch_add(&self, py: Python<'_>, offset: u64, number: u64) -> PyResult<u64> {
        let file = self.get()?;
        detached(py, || file.file().fetch_add(offset, number))
    }

    /// Changes a cell that holds what is expected; returns what it held.
    fn compare_swap(&self, py: Python<'_>, offset: u64, expected: u64, new: u64) -> PyResult<u64> {
        let file = self.get()?;
        detached(py, || file.file().compare_swap(offset, expected, new))
    }

    /// The version of the bytes from `start` to `end` (0: all that follow).
    fn change_version(&self, py: Python<'_>, start: u64, end: u64) -> PyResult<ChangeVersion> {
        let file = self.get()?;
        let version = detached(py, || file.file().change_version(ByteRange { start, end }))?;
        Ok(ChangeVersion { version })
    }

    /// Waits until bytes of a version's range have changed; returns the version of then.
    fn wait_for_change(
        &self,
        py: Python<'_>,
        since: &ChangeVersion,
        timeout: Option<f64>,
    ) -> PyResult<ChangeVersion> {
        let file = self.get()?;
        let (since, timeout) = (&since.version, timeout_of(timeout)?);
        let wait =
            |pause: &mut (dyn FnMut() -> _ + Send)| file.file().wait_for_change_with(since, timeout, pause);
        Ok(ChangeVersion { version: interruptible(py, wait)? })
    }

    /// Where the next data, or hole, at or behind an offset begins.
    fn seek_data_or_hole(&self, py: Python<'_>, offset: u64, data: bool) -> PyResult<u64> {
        let file = self.get()?;
        let sought = if data { Sought::Data } else { Sought::Hole };
        detached(py, || file.file().seek(offset, sought))
    }

    /// Attributes as the home has them now.
    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        let file = self.get()?;
        Ok(Stat::new(&detached(py, || file.file().info())?))
    }

    /// Where the bytes lie, and the file's own mode.
    fn layout(&self) -> PyResult<Layout> {
        let file = self.get()?;
        Ok(Layout::of_file(file.file().layout(), file.file().rules()))
    }

    /// An array's shape, numpy's string for its type, and its order; None for a plain file.
    fn array_type(&self) -> PyResult<Option<(Vec<u64>, String, String)>> {
        let file = self.get()?;
        let Opened::Array(array) = &*file else { return Ok(None) };
        let kind: &ArrayType = array.kind();
        Ok(Some((kind.shape().to_vec(), kind.dtype().to_owned(), kind.order().to_string())))
    }

    /// Maps the whole file for loads and stores; None where its bytes are not in this machine's
    /// memory, or local shortcuts are off.
    fn map(&self, py: Python<'_>) -> PyResult<Option<Mapping>> {
        let file = self.get()?;
        detached(py, || match file.file().map(true) {
            Ok(mapping) => Ok(Some(Mapping::new(mapping))),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
            Err(error) => Err(error),
        })
    }

    /// Fetches a copy of the first `length` bytes, merged in grains of `grain` bytes.
    fn copy(&self, py: Python<'_>, length: usize, grain: usize) -> PyResult<Copy> {
        let file = self.get()?;
        detached(py, || {
            // The copy owns a file of its own: it may outlive this one.
            let rights = Rights { read: true, write: true };
            let (own, _) = file.file().pool().raw().open(file.file().inode(), rights)?;
            own.copy(length, grain).map(Copy::new)
        })
    }

    /// How this open file sees what others change.
    fn sharing(&self) -> PyResult<&'static str> {
        Ok(self.get()?.file().sharing().name())
    }

    /// Makes what others have changed from `start` to `end` visible to its reads, in relaxed mode.
    fn refresh(&self, py: Python<'_>, start: u64, end: u64) -> PyResult<()> {
        let file = self.get()?;
        detached(py, || file.file().refresh_range(ByteRange { start, end }))
    }

    /// The same open file for a call that goes on beside the program: it stays open when this one is closed.
    fn kept(&self) -> PyResult<File> {
        Ok(File { file: Mutex::new(Some(self.get()?)) })
    }

    /// Gives the file back; nothing happens the second time.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.file.lock().take();
        match file.and_then(Held::into_inner) {
            Some(Opened::File(file)) => detached(py, || file.close()),
            // An array closes its file when it is dropped; that may ask a server.
            Some(array) => detached(py, || {
                drop(array);
                Ok(())
            }),
            // A call in another thread still uses it, or it was kept for one; the last one closes it.
            None => Ok(()),
        }
    }
}
