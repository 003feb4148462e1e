//! Memory of Python objects that a call reads or fills while the interpreter does other things.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;

/// The contiguous bytes of an object, held for one call.
pub(crate) struct Bytes {
    buffer: PyUntypedBuffer,
}

impl Bytes {
    /// The bytes of any object with contiguous memory, to be read.
    pub(crate) fn readable(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() && !buffer.is_fortran_contiguous() {
            return Err(PyBufferError::new_err("the memory is not contiguous; pass a contiguous copy"));
        }
        Ok(Bytes { buffer })
    }

    /// The same, to be filled: the object must be writable.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
        let bytes = Bytes::readable(object)?;
        if bytes.buffer.readonly() {
            return Err(PyTypeError::new_err("a read-only object cannot be read into"));
        }
        Ok(bytes)
    }

    /// The bytes, for the length of one call.
    pub(crate) fn as_slice(&self) -> &[u8] {
        let length = self.buffer.len_bytes();
        if length == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous and holds `length` bytes, and the export that `self`
        // keeps forbids its owner to move or free them. That no Python thread writes to them
        // meanwhile is the caller's duty in Python, as it is for os.write.
        unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast::<u8>(), length) }
    }

    /// The bytes to fill, for the length of one call.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        let length = self.buffer.len_bytes();
        if length == 0 || self.buffer.readonly() {
            return &mut [];
        }
        // SAFETY: as in `as_slice`; the owner allows writes, and `&mut self` lends them once.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.buf_ptr().cast::<u8>(), length) }
    }
}
