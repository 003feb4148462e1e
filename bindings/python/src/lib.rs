//! The native module of the Python package `ramlace`: a thin shell over the client library.
//!
//! Invariant: every call that may wait releases the interpreter, and no decision is made here:
//! what Python users see (file objects, arrays, defaults) is made in Python, what a pool does
//! in the client. There is no numpy in this crate: mappings go out by the buffer protocol.
#![expect(clippy::needless_pass_by_value, reason = "PyO3 hands over arguments by value")]

mod buffer;
mod error;
mod file;
mod info;
mod mapping;
mod owned;
mod pool;
mod waiting;

use pyo3::prelude::*;

/// The module `ramlace._native`; its types are described in `_native.pyi`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<pool::Pool>()?;
    module.add_class::<file::File>()?;
    module.add_class::<file::ChangeVersion>()?;
    module.add_class::<mapping::Mapping>()?;
    module.add_class::<mapping::Copy>()?;
    module.add_class::<info::Stat>()?;
    module.add_class::<info::Layout>()?;
    module.add_class::<info::DirEntry>()?;
    module.add_class::<info::Capacity>()?;
    module.add_class::<info::ServerReport>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
