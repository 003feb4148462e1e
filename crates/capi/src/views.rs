//! A file's bytes as memory, wherever its servers are, and the two verbs that keep such memory in step.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ramlace_base::{ByteRange, ErrorKind, Result};
use ramlace_client::{Copy, Rights};

use crate::answers::done;
use crate::failure::{guard, invalid};
use crate::open::{OpenFile, open_file};
use crate::pass::{Out, range_of};
use crate::table;
use crate::types::ramlace_file;

/// The first length bytes of the file, 0 for all that it has, as memory of the program, which is read and written. Where all servers
/// of the file are on this machine and every byte has its memory it is the file's own memory, as by ramlace_map, and
/// *shared is 1. Elsewhere it is a copy that is fetched now, and *shared is 0: what is stored there others see
/// after ramlace_publish, and what others have published is seen there after ramlace_refresh. Both are given the
/// file that the view was made by, and act as long as that is open. Copies are merged in grains of
/// grain bytes (1 where it is 0), such as an array's elements: of two machines that store into different grains
/// both win. A forked child makes views of its own. The file must be open for reading; without writing what is stored
/// into a copy stays there, and into shared memory it is fatal (SIGSEGV). shared: NULL is allowed.
///
/// Returns the first byte, aligned to 2 MiB, which ramlace_unmap gives back, or NULL and sets errno: EINVAL for a
/// file that has no, or fewer, bytes; EBADF not open for reading; EOPNOTSUPP opened with RAMLACE_O_STRICT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_view(
    file: *mut ramlace_file,
    length: usize,
    grain: usize,
    shared: Out<c_int>,
) -> *mut c_void {
    guard(|| {
        let open = open_file(file)?;
        let (start, is_shared) = view(&open, length, grain.max(1))?;
        shared.put_if_wanted(c_int::from(is_shared))?;
        Ok(start.cast())
    })
}

/// Makes what the program has stored into memory of the file visible to others: length bytes from offset on, 0 for all that
/// follow. A copy (ramlace_view) sends the grains of them that were changed; of the file's own memory
/// (ramlace_map), which this machine's programs see at once, others are notified to look again. Written bytes
/// (ramlace_pwrite) are there for all when the call returns and need no publish. For a program's mapping of a file
/// on a mount: msync, or RAMLACE_IOC_PUBLISH.
///
/// Returns 0, or -1 and sets errno: EINVAL negative, or beyond any file; EBADF where a copy was changed and the file is not
/// open for writing; ENOSPC. What was not sent then counts as changed still.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_publish(file: *mut ramlace_file, offset: i64, length: i64) -> c_int {
    done(|| {
        let (open, range) = (open_file(file)?, all_or_some(offset, length)?);
        let copies = open.copies.all()?;
        publish(&open, range, is_mapped(&open, &copies), &copies)
    })
}

/// Whether a publish is about the file's own memory as well: another open file of the same may have been mapped, too.
pub(crate) fn is_mapped(open: &OpenFile, copies: &[Arc<Copy>]) -> bool {
    open.is_mapped.load(Ordering::Relaxed) || copies.is_empty()
}

/// Makes what others have published visible in the program's memory of the file: length bytes from offset on, 0 for all that
/// follow. What was stored there and not published stays. Of what has not changed no bytes are fetched: that costs a
/// message for each lane. The file's own memory needs no refresh, nor do reads but those of a file that was opened with
/// RAMLACE_O_RELAXED. For a program's mapping of a file on a mount: RAMLACE_IOC_REFRESH.
///
/// Returns 0, or -1 and sets errno: EINVAL negative, or beyond any file; EIO for bytes that were lost, or
/// for a file that was cut off and has fewer than the copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_refresh(file: *mut ramlace_file, offset: i64, length: i64) -> c_int {
    done(|| refresh(&*open_file(file)?, all_or_some(offset, length)?))
}

/// Publishes what was stored into copies of a file, and into its own memory where that `is_mapped`.
pub(crate) fn publish(
    open: &OpenFile,
    range: ByteRange,
    is_mapped: bool,
    copies: &[Arc<Copy>],
) -> Result<()> {
    if is_mapped && open.file.rights().write {
        open.file.publish_range(range)?;
    }
    let published = copies.iter().try_for_each(|copy| copy.publish_range(range).map(drop));
    if !copies.is_empty() {
        open.file.forget_kept(range);
    }
    published
}

/// Refreshes what was fetched, and what reads of the file have kept.
pub(crate) fn refresh(open: &OpenFile, range: ByteRange) -> Result<()> {
    open.file.refresh_range(range)?;
    refresh_copies(open, range)
}

/// Refreshes what was fetched alone.
pub(crate) fn refresh_copies(open: &OpenFile, range: ByteRange) -> Result<()> {
    open.copies.all()?.iter().try_for_each(|copy| copy.refresh_range(range))
}

/// Where the memory begins, and whether it is the file's own.
fn view(open: &OpenFile, length: usize, grain: usize) -> Result<(*mut u8, bool)> {
    let size = open.file.size()?;
    let bytes = if length == 0 { size } else { length as u64 };
    if bytes == 0 || bytes > size {
        return Err(invalid(format!("a view of {bytes} bytes of a file that has {size}")));
    }
    open.file.check_may_be_memory()?;
    let rights = open.file.rights();
    match open.file.map(rights.write) {
        Ok(mapping) => {
            open.is_mapped.store(true, Ordering::Relaxed);
            let start = mapping.as_ptr();
            table::keep_memory(start, mapping);
            Ok((start, true))
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            // The copy has a file of its own: it may outlive this one.
            let raw = open.file.pool().raw();
            let (own, _) = raw.open(open.file.inode(), Rights { read: true, ..rights })?;
            let bytes =
                usize::try_from(bytes).map_err(|_| invalid(format!("{bytes} bytes fit no memory")))?;
            let copy = Arc::new(own.copy(bytes, grain)?);
            open.copies.add(&copy)?;
            let start = copy.as_ptr();
            table::keep_memory(start, copy);
            Ok((start, false))
        }
        Err(error) => Err(error),
    }
}

/// The end of the largest file.
const END: u64 = i64::MAX as u64;

/// A length of 0 goes as far as the file does.
pub(crate) fn all_or_some(offset: i64, length: i64) -> Result<ByteRange> {
    let range = range_of(offset, length)?;
    if range.end > END {
        return Err(invalid("offset and length are beyond any file"));
    }
    Ok(bytes_of(range))
}

/// What a locked range has of any file: a lock may go further than files do. An empty one has all that follow.
pub(crate) fn bytes_of(range: ByteRange) -> ByteRange {
    let end = if range.is_empty() { END } else { range.end.min(END) };
    ByteRange { end, ..range }
}
