//! Errors of the client as the exceptions of `ramlace._errors`.

use pyo3::prelude::*;
use ramlace_base::Error;

/// The exception for an error: `ramlace._errors.make(errno, kind, message)`.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let made = py
        .import("ramlace._errors")
        .and_then(|module| module.getattr("make"))
        .and_then(|make| make.call1((error.errno(), format!("{:?}", error.kind()), error.message())));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        // The package is broken; that error says more than the one that cannot be raised.
        Err(broken) => broken,
    }
}

/// Runs `work` without the interpreter, so that other Python threads go on meanwhile.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> ramlace_base::Result<T> + Send,
) -> PyResult<T> {
    py.detach(work).map_err(|error| exception(py, &error))
}

/// Turns an error that needed no waiting into an exception.
pub(crate) fn raised<T>(py: Python<'_>, result: ramlace_base::Result<T>) -> PyResult<T> {
    result.map_err(|error| exception(py, &error))
}
