//! Where bytes lie.

use std::ffi::c_int;

use ramlace_base::Result;
use ramlace_wire::LayoutHints;

use crate::failure::invalid;
use crate::file::done;
use crate::pass::{Given, Growing, Out, Text};
use crate::pool::connected;
use crate::types::{ramlace_hints, ramlace_layout, ramlace_pool};

// SAFETY: it is `repr(C)`, begins with its size, and holds integers.
unsafe impl Growing for ramlace_hints {
    const NAME: &'static str = "hints";
}

/// How the file at path lies in the pool, or, of a directory, what new files in it inherit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_layout_get(
    pool: *mut ramlace_pool,
    path: Text,
    out: Out<ramlace_layout>,
) -> c_int {
    done(|| {
        let connected = connected(pool)?;
        let path = connected.path(&path)?;
        let get = || Ok(ramlace_layout::from(&connected.pool.get_layout(path)?));
        out.put("struct ramlace_layout", get)
    })
}

/// Sets what new files in a directory inherit; hints that are 0, or NULL, are as usual again.
/// ENOTDIR for a file: its layout was fixed when it was created. EINVAL for hints that make no
/// sense.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_layout_set(
    pool: *mut ramlace_pool,
    path: Text,
    hints: Given<ramlace_hints>,
) -> c_int {
    done(|| {
        let connected = connected(pool)?;
        let (path, (hints, local)) = (connected.path(&path)?, layout_hints(&hints)?);
        if local {
            return Err(invalid("a directory hands no `local` down: it is of the machine that makes a file"));
        }
        connected.pool.set_layout(path, hints)
    })
}

/// Hints as the client takes them, which checks their values; and whether the file shall lie on this machine.
pub(crate) fn layout_hints(hints: &Given<ramlace_hints>) -> Result<(LayoutHints, bool)> {
    let given = hints.read()?;
    let set = |value: u64| Some(value).filter(|value| *value != 0);
    let hints = LayoutHints {
        stripe_unit: set(given.stripe_unit),
        width: set(given.width.into()).map(|value| narrow(value, "width")).transpose()?,
        copies: set(given.copies.into()).map(|value| narrow(value, "number of copies")).transpose()?,
    };
    Ok((hints, given.local != 0))
}

fn narrow<T: TryFrom<u64>>(value: u64, what: &str) -> Result<T> {
    T::try_from(value).map_err(|_| invalid(format!("a {what} of {value} is not possible")))
}
