//! Opening and closing files.

use std::ffi::c_int;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use libc::mode_t;
use ramlace_base::Result;
use ramlace_client::{File, OpenOptions, Placing};
use ramlace_wire::{LayoutHints, Mode};

use crate::copies::Copies;
use crate::failure::{guard, invalid};
use crate::layout::layout_hints;
use crate::pass::{Given, Text};
use crate::pool::connected;
use crate::position::Position;
use crate::table::{self, Kept};
use crate::types::{ramlace_file, ramlace_hints, ramlace_pool};

/// An open file with the position its calls share.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) position: Position,
    /// Writes go to the end.
    pub(crate) append: bool,
    /// What was fetched of it.
    pub(crate) copies: Copies,
    /// Its own memory was mapped: what is stored there is to be published as well.
    pub(crate) is_mapped: AtomicBool,
}

impl Kept for OpenFile {
    const NAME: &'static str = "file";
}

/// Flags that change nothing here: there is no exec that could inherit a file, none is a
/// terminal, offsets have 64 bits, and a write is in the servers' memory when it returns.
const FLAGS_WITHOUT_EFFECT: c_int =
    libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_LARGEFILE | LARGEFILE_OF_THE_KERNEL | libc::O_SYNC;
/// What O_LARGEFILE is to the kernel where the C library calls it 0.
const LARGEFILE_OF_THE_KERNEL: c_int = 0o100_000;

/// A flag of ramlace_open: this open file sees what others change after ramlace_refresh, or when it takes a lock of these bytes.
/// What it has read in small pieces it reads again without a message from what the program keeps (cache_bytes of struct
/// ramlace_options; without that nothing is kept). Nobody waits for it, and it sees its own changes at once. A lock also refreshes its
/// copies, and ramlace_unlock publishes what was stored into memory of the locked bytes.
pub const RAMLACE_O_RELAXED: c_int = 1 << 28;
/// A flag of ramlace_open: each read of this open file asks, also where the program keeps what it reads; ramlace_map and
/// ramlace_view are EOPNOTSUPP, for others would see a store later.
pub const RAMLACE_O_STRICT: c_int = 1 << 29;

/// Opens a file, or creates it.
///
/// flags: one of O_RDONLY, O_WRONLY and O_RDWR of <fcntl.h>, with any of O_CREAT, O_EXCL (with
/// O_CREAT), O_TRUNC and O_APPEND; the last two need a file open for writing.
/// O_CLOEXEC, O_NOCTTY, O_LARGEFILE and O_SYNC change nothing; one of RAMLACE_O_RELAXED and RAMLACE_O_STRICT is
/// about this open file alone, and where the file's own mode is stricter, that counts; every other flag is EINVAL.
/// mode: permission bits of a file that is created, of which the process's umask takes some away.
///
/// Returns NULL and sets errno: ENOENT, EEXIST, EISDIR, ENOTDIR, ELOOP, EACCES, ENAMETOOLONG,
/// ENOSPC, ENFILE (65536 files are open), EINVAL for flags and for a locator of another pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_open(
    pool: *mut ramlace_pool,
    path: Text,
    flags: c_int,
    mode: mode_t,
) -> *mut ramlace_file {
    guard(|| open(pool, &path, flags, mode, (LayoutHints::default(), Placing::Usual)))
}

/// Opens a file as ramlace_open does; a file that is created lies as the hints say. A file that
/// is there keeps its layout. hints: NULL is as usual. EINVAL for hints that make no sense.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_open_with(
    pool: *mut ramlace_pool,
    path: Text,
    flags: c_int,
    mode: mode_t,
    hints: Given<ramlace_hints>,
) -> *mut ramlace_file {
    guard(|| open(pool, &path, flags, mode, layout_hints(&hints)?))
}

/// Closes a file; the handle is invalid afterwards, whatever is returned. A file that is
/// unlinked lives until its last close. Calls that other threads have under way on it end as
/// usual, and the last of them closes it. Returns 0, or -1: EBADF when this is no open file, or
/// the error with which notifying the servers failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_close(file: *mut ramlace_file) -> c_int {
    guard(|| {
        let open = table::take::<OpenFile, _>(file)?;
        match Arc::try_unwrap(open) {
            Ok(open) => open.file.close().map(|()| 0),
            Err(_used_by_another_thread) => Ok(0),
        }
    })
}

pub(crate) fn open_file(file: *mut ramlace_file) -> Result<Arc<OpenFile>> {
    table::find(file)
}

fn open(
    pool: *mut ramlace_pool,
    path: &Text,
    flags: c_int,
    mode: mode_t,
    (hints, placing): (LayoutHints, Placing),
) -> Result<*mut ramlace_file> {
    let connected = connected(pool)?;
    let path = connected.path(path)?;
    let mut options = OpenOptions { hints, placing, ..options_of(flags)? };
    options.mode.mode = permissions(mode)?;
    if options.create {
        options.mode.umask = umask();
    }
    let file = connected.pool.open(path, &options)?;
    Ok(table::keep(OpenFile {
        file,
        position: Position::new(),
        append: options.append,
        copies: Copies::none(),
        is_mapped: AtomicBool::new(false),
    }))
}

/// Permission bits as the pool keeps them.
pub(crate) fn permissions(mode: mode_t) -> Result<u16> {
    u16::try_from(mode)
        .ok()
        .filter(|bits| *bits <= 0o7777)
        .ok_or_else(|| invalid(format!("the mode 0{mode:o} has more than permission bits")))
}

/// The process's umask: read, since setting it to look would race with other threads.
pub(crate) fn umask() -> u16 {
    // Systems that hide it (it is there since Linux 4.7) get the usual one.
    const USUAL: u16 = 0o022;
    // It is the second line: one read brings it.
    let mut head = [0; 256];
    let read = std::fs::File::open("/proc/thread-self/status").and_then(|mut file| file.read(&mut head));
    let status = String::from_utf8_lossy(&head[..read.unwrap_or(0)]);
    let told = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    told.and_then(|octal| u16::from_str_radix(octal.trim(), 8).ok()).unwrap_or(USUAL)
}

fn options_of(flags: c_int) -> Result<OpenOptions> {
    let (read, write) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => return Err(invalid("the flags hold O_WRONLY and O_RDWR at once")),
    };
    let has = |flag: c_int| flags & flag != 0;
    let known = libc::O_ACCMODE
        | libc::O_CREAT
        | libc::O_EXCL
        | libc::O_TRUNC
        | libc::O_APPEND
        | RAMLACE_O_RELAXED
        | RAMLACE_O_STRICT;
    let unknown = flags & !(known | FLAGS_WITHOUT_EFFECT);
    if unknown != 0 {
        return Err(invalid(format!("the flags 0{unknown:o} mean nothing to a pool")));
    }
    if has(libc::O_EXCL) && !has(libc::O_CREAT) {
        return Err(invalid("O_EXCL goes with O_CREAT"));
    }
    if !write && has(libc::O_APPEND) {
        return Err(invalid("O_APPEND needs O_WRONLY or O_RDWR"));
    }
    let sharing = match (has(RAMLACE_O_RELAXED), has(RAMLACE_O_STRICT)) {
        (false, false) => None,
        (true, false) => Some(Mode::Relaxed),
        (false, true) => Some(Mode::Strict),
        (true, true) => return Err(invalid("a file is opened in relaxed mode or in strict mode")),
    };
    Ok(OpenOptions {
        sharing,
        read,
        write,
        create: has(libc::O_CREAT),
        exclusive: has(libc::O_EXCL),
        truncate: has(libc::O_TRUNC),
        append: has(libc::O_APPEND),
        ..OpenOptions::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_mean_what_they_mean_elsewhere() {
        let options = options_of(libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC).unwrap();
        assert!(options.read && options.write && options.create && options.exclusive);
        assert!(!options.truncate && !options.append);
        let options = options_of(libc::O_WRONLY | libc::O_APPEND | libc::O_TRUNC | libc::O_SYNC).unwrap();
        assert!(!options.read && options.write && options.append && options.truncate && !options.create);
        assert!(options_of(libc::O_RDONLY).unwrap().read);
        let sharing = |flags| options_of(libc::O_RDWR | flags).unwrap().sharing;
        assert_eq!((sharing(0), sharing(RAMLACE_O_RELAXED)), (None, Some(Mode::Relaxed)));
        assert_eq!(sharing(RAMLACE_O_STRICT | libc::O_CREAT), Some(Mode::Strict));
    }

    #[test]
    fn the_umask_is_read_and_stays() {
        // SAFETY: sets this process's umask, twice, and puts it back; no other test creates files.
        unsafe {
            let before = libc::umask(0o027);
            assert_eq!((umask(), umask()), (0o027, 0o027));
            assert_eq!(libc::umask(before), 0o027);
        }
    }

    #[test]
    fn flags_that_cannot_be_obeyed_are_refused() {
        let wrong = [
            libc::O_WRONLY | libc::O_RDWR,
            libc::O_RDWR | libc::O_EXCL,
            libc::O_RDONLY | libc::O_APPEND,
            libc::O_RDONLY | libc::O_DIRECTORY,
            libc::O_RDONLY | libc::O_NOFOLLOW,
            libc::O_RDWR | libc::O_DIRECT,
            libc::O_RDWR | libc::O_TMPFILE,
            libc::O_RDONLY | libc::O_NONBLOCK,
            libc::O_RDONLY | libc::O_PATH,
            libc::O_RDWR | RAMLACE_O_RELAXED | RAMLACE_O_STRICT,
            libc::O_RDWR | 1 << 30,
            -1,
        ];
        for flags in wrong {
            assert!(options_of(flags).is_err(), "{flags:o}");
        }
        assert_eq!(permissions(0o7777).unwrap(), 0o7777);
        assert!(permissions(0o10_000).is_err());
        assert!(permissions(0o100_644).is_err());
    }
}
