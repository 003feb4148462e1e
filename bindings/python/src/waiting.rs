//! Calls that may wait long: their timeouts, and signals that end them.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ramlace_base::{Error, ErrorKind, Result};

use crate::error::detached;

/// A timeout in seconds; none waits for ever.
pub(crate) fn timeout_of(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let timeout = seconds.map(Duration::try_from_secs_f64).transpose();
    timeout.map_err(|error| PyValueError::new_err(format!("timeout: {error}")))
}

/// Runs a call that asks several times a second whether to go on. Ctrl-C and its like end it with their own exception.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut (dyn FnMut() -> Result<()> + Send)) -> Result<T> + Send,
) -> PyResult<T> {
    let mut signal: Option<PyErr> = None;
    let done = detached(py, || {
        work(&mut || {
            // None: the interpreter has ended, and this thread with it. It must not touch it any more.
            let Some(checked) = Python::try_attach(|py| py.check_signals()) else {
                return Err(Error::new(ErrorKind::Busy, "the program ended while it waited"));
            };
            signal = checked.err();
            match signal {
                Some(_) => Err(Error::new(ErrorKind::Busy, "a signal came while it waited")),
                None => Ok(()),
            }
        })
    });
    match signal {
        Some(signal) => Err(signal),
        None => done,
    }
}
