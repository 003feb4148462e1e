//! A file's bytes in the program's own memory.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use ramlace_base::Result;

use crate::answers::done;
use crate::failure::{guard, invalid, null};
use crate::open::open_file;
use crate::pass::Out;
use crate::table;
use crate::types::ramlace_file;

/// Maps a whole file into the program's memory, shared with every other program that maps it on
/// this machine: a store is seen by all of them, and by reads, at once. All its servers must run
/// on this machine and every byte must have its memory (ramlace_allocate). The file may be closed
/// and unlinked; the mapping lives until ramlace_unmap. Truncating a mapped file makes loads
/// beyond its end fatal to the program (SIGBUS).
///
/// protection: PROT_READ, or PROT_READ | PROT_WRITE, of <sys/mman.h>, for which the file must be
/// open. length: where the file's size in bytes goes; NULL is allowed.
///
/// Returns the first byte, aligned to 2 MiB, or NULL and sets errno: EOPNOTSUPP a server is
/// elsewhere, local shortcuts are off, or bytes have no memory; EBADF not open for that; EINVAL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_map(
    file: *mut ramlace_file,
    protection: c_int,
    length: Out<usize>,
) -> *mut c_void {
    guard(|| {
        let open = open_file(file)?;
        let mapping = open.file.map(writable(protection)?)?;
        open.is_mapped.store(true, Ordering::Relaxed);
        length.put_if_wanted(mapping.len())?;
        let start = mapping.as_ptr();
        table::keep_memory(start, mapping);
        Ok(start.cast())
    })
}

/// Ends a mapping or a view. address: what ramlace_map or ramlace_view returned. Nothing may use it afterwards; what
/// was stored into a copy and not published is gone. Returns 0, or -1 with EINVAL when no mapping begins there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_unmap(address: *mut c_void) -> c_int {
    done(|| {
        if address.is_null() {
            return Err(null("address"));
        }
        let memory = table::take_memory(address.addr());
        memory.map(drop).ok_or_else(|| invalid(format!("no mapping of a file begins at {address:p}")))
    })
}

fn writable(protection: c_int) -> Result<bool> {
    const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
    match protection {
        libc::PROT_READ => Ok(false),
        READ_WRITE => Ok(true),
        other => Err(invalid(format!("{other} is neither PROT_READ nor PROT_READ | PROT_WRITE"))),
    }
}
