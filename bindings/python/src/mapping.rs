//! An array's bytes as Python sees them: mapped, or a fetched copy, both by the buffer protocol.

use std::os::raw::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use ramlace_base::ByteRange;

use crate::error::detached;
use crate::owned::Owned;

/// A file's bytes in shared memory. Unmapped when the last object that refers to them is gone.
#[pyclass(frozen, module = "ramlace._native")]
pub(crate) struct Mapping {
    mapping: Owned<ramlace_client::Mapping>,
}

impl Mapping {
    pub(crate) fn new(mapping: ramlace_client::Mapping) -> Mapping {
        Mapping { mapping: Owned::new(mapping) }
    }
}

#[pymethods]
impl Mapping {
    fn __len__(&self) -> usize {
        self.mapping.len()
    }

    /// # Safety
    /// Called by the interpreter alone, with a view for this call to fill.
    unsafe fn __getbuffer__(this: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let mapping = &this.get().mapping;
        // SAFETY: the bytes are mapped as long as `this` is, and the view keeps it.
        unsafe { fill(&this, view, flags, mapping.as_ptr(), mapping.len(), mapping.is_writable()) }
    }
}

/// A fetched copy of a file's bytes and its twin.
#[pyclass(frozen, module = "ramlace._native")]
pub(crate) struct Copy {
    copy: Owned<ramlace_client::Copy>,
}

impl Copy {
    pub(crate) fn new(copy: ramlace_client::Copy) -> Copy {
        Copy { copy: Owned::new(copy) }
    }
}

#[pymethods]
impl Copy {
    /// Sends what was changed here of the bytes from `start` to `end`; returns how many that were.
    fn publish(&self, py: Python<'_>, start: u64, end: u64) -> PyResult<u64> {
        detached(py, || self.copy.publish_range(ByteRange { start, end }))
    }

    /// Takes in what was changed elsewhere of the bytes from `start` to `end`.
    fn refresh(&self, py: Python<'_>, start: u64, end: u64) -> PyResult<()> {
        detached(py, || self.copy.refresh_range(ByteRange { start, end }))
    }

    /// Fetches everything; what was not published is lost.
    fn fetch(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.copy.fetch())
    }

    fn __len__(&self) -> usize {
        self.copy.len()
    }

    /// # Safety
    /// Called by the interpreter alone, with a view for this call to fill.
    unsafe fn __getbuffer__(this: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let copy = &this.get().copy;
        // SAFETY: the copy's memory stays as long as `this` does, and the view keeps it.
        unsafe { fill(&this, view, flags, copy.as_ptr(), copy.len(), true) }
    }
}

/// Fills a view with plain bytes that `owner` keeps alive.
///
/// # Safety
/// `start` must stay valid for `length` bytes, and for stores when `writable`, while `owner`
/// lives; `view` must be what the interpreter handed to `__getbuffer__`.
unsafe fn fill<T: pyo3::PyClass>(
    owner: &Bound<'_, T>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    start: *mut u8,
    length: usize,
    writable: bool,
) -> PyResult<()> {
    let length = isize::try_from(length).map_err(|_| PyBufferError::new_err("it is larger than memory"))?;
    // SAFETY: the caller's promise; FillInfo takes a reference to the owner for the view.
    let code = unsafe {
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start.cast(), length, c_int::from(!writable), flags)
    };
    if code == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}
