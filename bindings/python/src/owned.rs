//! What is given back without the interpreter.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use pyo3::prelude::*;

/// A value whose end may ask a server, or unmap much memory: other Python threads go on meanwhile. Where the
/// interpreter has ended it is just dropped.
pub(crate) struct Owned<T: Send>(ManuallyDrop<T>);

impl<T: Send> Owned<T> {
    pub(crate) fn new(value: T) -> Owned<T> {
        Owned(ManuallyDrop::new(value))
    }
}

impl<T: Send> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Send> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: it is taken here alone, and nobody sees it afterwards.
        give_back(unsafe { ManuallyDrop::take(&mut self.0) });
    }
}

/// Drops a value while other Python threads run.
pub(crate) fn give_back<T: Send>(value: T) {
    // Where the interpreter has ended the closure is dropped, and the value with it.
    let _ = Python::try_attach(move |py| py.detach(move || drop(value)));
}
