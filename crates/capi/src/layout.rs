//! Where bytes lie.

use std::ffi::c_int;

use ramlace_base::{Result, ServerId, limits};
use ramlace_client::{Part, Placing};
use ramlace_wire::{FileRules, HostId, LayoutHints, Mode};

use crate::answers::done;
use crate::failure::invalid;
use crate::pass::{Given, Growing, Length, Out, Target, Text};
use crate::pool::connected;
use crate::types::{ramlace_hints, ramlace_layout, ramlace_pool};

/// Modes of files: when other machines see what programs store into a file that is mapped through a mount. When it is published:
/// by msync, fsync or close.
pub const RAMLACE_MODE_COHERENT: u32 = 1;
/// At once: mapped files are one memory (Linux 6.6).
pub const RAMLACE_MODE_STRICT: u32 = 2;
/// When it is published, and the other program refreshes or takes a lock: nobody waits for what a mount still shows.
pub const RAMLACE_MODE_RELAXED: u32 = 3;

// SAFETY: it is `repr(C)`, begins with its size, and holds integers and an array's place, which any bytes are.
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
        let get = || {
            let info = connected.pool.get_layout(path)?;
            let map = connected.pool.map()?;
            let first = info.layout.and_then(|layout| map.primary(layout.base_slot));
            let first_server = first.map_or(0, |server| u32::from(server.0) + 1);
            Ok(ramlace_layout { first_server, ..ramlace_layout::from(&info) })
        };
        out.put("struct ramlace_layout", get)
    })
}

/// Sets what new files in a directory inherit, or a file's own mode and reserve; hints that are 0, or NULL, are as
/// usual again. ENOTDIR for all else of a file: it was fixed when it was created. EBUSY for a file
/// that somebody has open and that has others. EINVAL for hints that make no sense.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_layout_set(
    pool: *mut ramlace_pool,
    path: Text,
    hints: Given<ramlace_hints>,
) -> c_int {
    done(|| {
        let connected = connected(pool)?;
        let (path, (hints, placing)) = (connected.path(&path)?, layout_hints(&hints)?);
        if placing != Placing::Usual {
            return Err(invalid("a directory hands neither `local` nor `first_server` nor `parts` down"));
        }
        connected.pool.set_layout(path, hints)
    })
}

/// Writes 16 bytes that are this machine's until it starts anew, and no other's: what `machine` of a
/// struct ramlace_part is to be. ERANGE where size is less.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_machine(mut machine: Target<u8>, size: Length) -> c_int {
    done(|| machine.put(size, &ramlace_client::this_host()?.0))
}

/// Hints as the client takes them, which checks their values; and which servers shall have the file.
pub(crate) fn layout_hints(hints: &Given<ramlace_hints>) -> Result<(LayoutHints, Placing)> {
    let given = hints.read()?;
    let set = |value: u64| Some(value).filter(|value| *value != 0);
    let hints = LayoutHints {
        stripe_unit: set(given.stripe_unit),
        width: set(given.width.into()).map(|value| narrow(value, "width")).transpose()?,
        copies: set(given.copies.into()).map(|value| narrow(value, "number of copies")).transpose()?,
        rules: FileRules {
            mode: set(given.mode.into()).map(mode).transpose()?,
            reserve: match given.reserve {
                0 => false,
                1 => true,
                other => {
                    return Err(invalid(format!(
                        "`reserve` of a struct ramlace_hints is {other}; it is 0 or 1"
                    )));
                }
            },
        },
    };
    let placing = match (given.local, given.first_server, given.part_count.get()) {
        (0, 0, 0) => Placing::Usual,
        (_, 0, 0) => Placing::Here,
        (0, first, 0) => Placing::From(ServerId(narrow(u64::from(first) - 1, "server's number")?)),
        (0, 0, _) => Placing::Parts(parts(&given)?),
        _ => return Err(invalid("only one of `local`, `first_server` and `parts` can be wished")),
    };
    Ok((hints, placing))
}

fn parts(hints: &ramlace_hints) -> Result<Vec<Part>> {
    let count = hints.part_count.get();
    if count > limits::PARTS_MAX {
        return Err(invalid(format!("{count} parts of a file; there may be {}", limits::PARTS_MAX)));
    }
    let given = hints.parts.all(hints.part_count, "parts")?;
    Ok(given.iter().map(|part| Part { bytes: part.bytes, host: HostId(part.machine) }).collect())
}

fn mode(number: u64) -> Result<Mode> {
    let known = u8::try_from(number).ok().and_then(|number| Mode::try_from(number).ok());
    known.ok_or_else(|| invalid(format!("{number} is no RAMLACE_MODE")))
}

fn narrow<T: TryFrom<u64>>(value: u64, what: &str) -> Result<T> {
    T::try_from(value).map_err(|_| invalid(format!("a {what} of {value} is not possible")))
}
