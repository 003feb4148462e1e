//! Reading and writing an open file, and what else can be done with it.

use std::ffi::{c_int, c_void};

use libc::ssize_t;
use ramlace_base::{ByteRange, limits};
use ramlace_wire::chunk::Sought;

use crate::answers::{count, done};
use crate::failure::{guard, invalid};
use crate::open::{OpenFile, open_file};
use crate::pass::{Length, Out, Source, Target, file_bytes};
use crate::types::{ramlace_file, ramlace_stat};

/// Reads up to length bytes at offset, in bytes from the beginning, into buffer; the position is
/// neither used nor moved. Returns the bytes read: fewer than length only where the file ends,
/// 0 at its end. Returns -1 and sets errno: EBADF not open, or not for reading; EINVAL a
/// negative offset or a length beyond SSIZE_MAX; EFAULT buffer is NULL; EIO bytes that were
/// lost with their server; EHOSTDOWN or ETIMEDOUT a server does not answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_pread(
    file: *mut ramlace_file,
    mut buffer: Target<c_void>,
    length: Length,
    offset: i64,
) -> ssize_t {
    guard(|| {
        let open = open_file(file)?;
        let target = buffer.bytes(length)?;
        count(open.file.read_at(target, file_bytes(offset, "offset")?)?)
    })
}

/// Writes length bytes at offset, in bytes from the beginning, extending the file where needed;
/// the position is neither used nor moved. With O_APPEND the bytes go to the end of the file,
/// whatever the offset, as Linux has it. Returns the bytes written: fewer than length only when
/// the pool filled up in the middle. When it returns, the bytes are in the servers' memory and
/// every later read of any client sees them. Returns -1 and sets errno: EBADF not open, or not
/// for writing; ENOSPC nothing could be written; EFBIG beyond 2^62 bytes; and as ramlace_pread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_pwrite(
    file: *mut ramlace_file,
    buffer: Source,
    length: Length,
    offset: i64,
) -> ssize_t {
    guard(|| {
        let open = open_file(file)?;
        let source = buffer.bytes(length)?;
        count(open.file.write_at(source, file_bytes(offset, "offset")?)?)
    })
}

/// Reads up to length bytes at the file's position and moves it behind them; otherwise as
/// ramlace_pread. Reads, writes and seeks of one file by several threads happen one after the
/// other, each whole: no byte is read twice. A forked child has a position of its own, which
/// begins where its parent's was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_read(
    file: *mut ramlace_file,
    mut buffer: Target<c_void>,
    length: Length,
) -> ssize_t {
    guard(|| {
        let open = open_file(file)?;
        let target = buffer.bytes(length)?;
        let turn = open.position.turn()?;
        let read = open.file.read_at(target, turn.get())?;
        turn.set(turn.get() + read as u64);
        count(read)
    })
}

/// Writes length bytes at the file's position, with O_APPEND at its end, and moves the position
/// behind them; otherwise as ramlace_pwrite, one call after the other as ramlace_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_write(file: *mut ramlace_file, buffer: Source, length: Length) -> ssize_t {
    guard(|| {
        let open = open_file(file)?;
        let source = buffer.bytes(length)?;
        let turn = open.position.turn()?;
        if open.append && !source.is_empty() {
            let start = open.file.append(source)?;
            turn.set(start + source.len() as u64);
            return count(source.len());
        }
        let written = open.file.write_at(source, turn.get())?;
        turn.set(turn.get() + written as u64);
        count(written)
    })
}

/// Writes length bytes at the end of the file, all of them or none, whatever the flags it was
/// opened with; the position is neither used nor moved. Bytes of one append are never mixed
/// with another's, from any number of clients. Returns the offset at which they begin, or -1 as
/// ramlace_pwrite; a failed append may leave a hole, which reads as zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_append(file: *mut ramlace_file, buffer: Source, length: Length) -> i64 {
    guard(|| {
        let open = open_file(file)?;
        let source = buffer.bytes(length)?;
        open.file.append(source).map(|start| start as i64)
    })
}

/// Moves the position: offset is in bytes from the beginning (whence SEEK_SET), from the
/// position (SEEK_CUR) or from the end (SEEK_END); or to the next data (SEEK_DATA) or hole
/// (SEEK_HOLE) at or behind the byte that offset counts from the beginning; the end is a hole, too.
/// A position beyond the end is allowed; a write there leaves a hole. Returns the new position, or
/// -1: EINVAL for another whence or a position before the beginning or beyond 2^62, ENXIO where no
/// data, or no hole, is left before the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_lseek(file: *mut ramlace_file, offset: i64, whence: c_int) -> i64 {
    guard(|| {
        let open = open_file(file)?;
        let turn = open.position.turn()?;
        let sought = match whence {
            libc::SEEK_DATA => Some(Sought::Data),
            libc::SEEK_HOLE => Some(Sought::Hole),
            _ => None,
        };
        if let Some(sought) = sought {
            let found = open.file.seek(file_bytes(offset, "offset")?, sought)?;
            turn.set(found);
            return Ok(found as i64);
        }
        let from = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => turn.get(),
            libc::SEEK_END => open.file.size()?,
            other => {
                return Err(invalid(format!(
                    "{other} is neither SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA nor SEEK_HOLE"
                )));
            }
        };
        let to = from.checked_add_signed(offset).filter(|to| *to <= limits::FILE_BYTES_MAX);
        let to = to.ok_or_else(|| invalid(format!("no position is {offset} bytes from {from}")))?;
        turn.set(to);
        Ok(to as i64)
    })
}

/// Sets the size in bytes; what is cut off is gone, what is added reads as zeros. The position
/// stays. Returns 0, or -1: EBADF not open for writing, EINVAL negative, EFBIG beyond 2^62.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_ftruncate(file: *mut ramlace_file, size: i64) -> c_int {
    done(|| open_file(file)?.file.truncate(file_bytes(size, "size")?))
}

/// Makes the file's times exact at its home. Bytes need no flushing: they are in the servers'
/// memory when a write returns, and no disk is behind it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_fsync(file: *mut ramlace_file) -> c_int {
    done(|| open_file(file)?.file.sync())
}

/// What the file is and has; see ramlace_stat.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_fstat(file: *mut ramlace_file, out: Out<ramlace_stat>) -> c_int {
    done(|| {
        let open = open_file(file)?;
        out.put("struct ramlace_stat", || Ok(ramlace_stat::from(&open.file.info()?)))
    })
}

/// Takes the memory of the file's first length bytes and makes the file at least so long: writes
/// there cannot meet a full pool, and ramlace_map can map it. Returns 0, or -1: ENOSPC when not
/// all of it could be taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_allocate(file: *mut ramlace_file, length: i64) -> c_int {
    done(|| open_file(file)?.file.allocate(file_bytes(length, "length")?))
}

/// Gives the memory of length bytes at offset back; they read as zeros. The size stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_punch(file: *mut ramlace_file, offset: i64, length: i64) -> c_int {
    done(|| {
        let open: std::sync::Arc<OpenFile> = open_file(file)?;
        let (start, length) = (file_bytes(offset, "offset")?, file_bytes(length, "length")?);
        // Both are below 2^63: their sum fits.
        open.file.punch(ByteRange { start, end: start + length })
    })
}
