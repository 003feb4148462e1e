//! Memory of Python objects that a call reads or fills while the interpreter does other things.

use std::ffi::c_int;
use std::marker::PhantomData;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;

/// The contiguous bytes of an object, held for one call.
///
/// No format is asked for: what the elements are does not matter here, and some objects have none to tell (numpy's
/// dates). Nor are shape and strides read, which are NULL for an object without dimensions.
pub(crate) struct Bytes<'py> {
    /// It stays where it is: some owners have pointers into it.
    view: Box<ffi::Py_buffer>,
    /// It is given back while the interpreter is attached.
    attached: PhantomData<Python<'py>>,
}

impl<'py> Bytes<'py> {
    /// The bytes of any object with contiguous memory, to be read.
    pub(crate) fn readable(object: &Bound<'py, PyAny>) -> PyResult<Bytes<'py>> {
        Bytes::get(object, ffi::PyBUF_ANY_CONTIGUOUS).map_err(|refused| why_not(object, refused))
    }

    /// The same, to be filled: the object must be writable.
    pub(crate) fn writable(object: &Bound<'py, PyAny>) -> PyResult<Bytes<'py>> {
        let wanted = Bytes::get(object, ffi::PyBUF_ANY_CONTIGUOUS | ffi::PyBUF_WRITABLE);
        wanted.map_err(|_| match Bytes::readable(object) {
            // Objects refuse that with errors of different classes.
            Ok(_) => PyTypeError::new_err("a read-only object cannot be read into"),
            Err(refused) => refused,
        })
    }

    fn get(object: &Bound<'py, PyAny>, flags: c_int) -> PyResult<Bytes<'py>> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the interpreter is attached, as `object` proves, and `view` is for the object to fill.
        match unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } {
            0 => Ok(Bytes { view, attached: PhantomData }),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    fn length(&self) -> usize {
        // An owner that says less than nothing is broken.
        usize::try_from(self.view.len).unwrap_or(0)
    }

    /// The bytes, for the length of one call.
    pub(crate) fn as_slice(&self) -> &[u8] {
        let length = self.length();
        if length == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous and holds `length` bytes, and the export that `self`
        // keeps forbids its owner to move or free them. That no Python thread writes to them
        // meanwhile is the caller's duty in Python, as it is for os.write.
        unsafe { std::slice::from_raw_parts(self.view.buf.cast::<u8>(), length) }
    }

    /// The bytes to fill, for the length of one call.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        let length = self.length();
        if length == 0 || self.view.readonly != 0 {
            return &mut [];
        }
        // SAFETY: as in `as_slice`; the owner allows writes, and `&mut self` lends them once.
        unsafe { std::slice::from_raw_parts_mut(self.view.buf.cast::<u8>(), length) }
    }
}

impl Drop for Bytes<'_> {
    fn drop(&mut self) {
        // SAFETY: the interpreter is attached, by the type's lifetime, and the view was filled by `get`.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.view) }
    }
}

/// The error for an object that does not give its memory in one piece: most objects do not say what is missing.
fn why_not(object: &Bound<'_, PyAny>, refused: PyErr) -> PyErr {
    match Bytes::get(object, ffi::PyBUF_INDIRECT) {
        Ok(_) => PyBufferError::new_err("the memory is not contiguous; pass a contiguous copy"),
        Err(_) => refused,
    }
}
