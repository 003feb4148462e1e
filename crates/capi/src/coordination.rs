//! Barriers, cells, and waiting for a change of bytes.

use std::ffi::c_int;
use std::time::Duration;

use ramlace_base::{ByteRange, Result, limits};
use ramlace_client::ChangeVersion;

use crate::answers::done;
use crate::failure::{guard, invalid};
use crate::open::open_file;
use crate::pass::{Filled, Out, Text, file_bytes, range_of};
use crate::pool::connected;
use crate::types::{ramlace_file, ramlace_pool};

/// Lanes that a struct ramlace_version has room for.
pub const RAMLACE_VERSION_LANES: usize = 64;
const _: () = assert!(RAMLACE_VERSION_LANES == limits::WATCH_LANES_MAX);

/// Stands for some bytes of a file at one moment: ramlace_change_version fills it, and what is in it
/// is the library's own. It may be copied, and used by other threads and processes that have the same
/// file open.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ramlace_version {
    /// The first byte.
    pub start: u64,
    /// Behind the last one.
    pub end: u64,
    /// How many of lanes are used.
    pub count: u32,
    /// Whether home is used.
    pub has_home: u32,
    /// The file's own number.
    pub home: u64,
    /// One number for each lane.
    pub lanes: [u64; RAMLACE_VERSION_LANES],
}

/// Comes to the barrier with this name (1 to 255 bytes) as one of parties members, of which member is the
/// number from 0, and waits until all have come: for timeout_millis at most, for ever when that is
/// negative. The barrier needs nothing made beforehand and can be used again at once. Returns the
/// number of the round, from 1, or -1 and sets errno: ETIMEDOUT when not all came in time, and then
/// ramlace_error() names those that are missing and this member counts as if it had not come; EINVAL
/// when others came with another number of parties; EEXIST when this member waits there already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_barrier(
    pool: *mut ramlace_pool,
    name: Text,
    parties: u32,
    member: u32,
    timeout_millis: i64,
) -> i64 {
    guard(|| {
        let connected = connected(pool)?;
        let name = name.bytes("name")?;
        let round = connected.pool.barrier(name, parties, member, timeout_of(timeout_millis))?;
        Ok(round as i64)
    })
}

/// Adds number to the cell at offset, modulo 2^64, and puts what it held before into *before, unless that is
/// NULL. A cell is 8 bytes at a multiple of 8 within the file, which is open for reading and writing: an
/// unsigned number in little endian, or a signed one as its two's complement. The change is made
/// once and at one moment, whatever else reads and writes; stores into mapped memory of the
/// same cell are no part of that. Returns 0, or -1 and sets errno: EINVAL between cells and behind the
/// end of the file; EIO for bytes that were lost with their server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_fetch_add(
    file: *mut ramlace_file,
    offset: i64,
    number: u64,
    before: Out<u64>,
) -> c_int {
    done(|| {
        let found = open_file(file)?.file.fetch_add(file_bytes(offset, "offset")?, number)?;
        before.put_if_wanted(found)
    })
}

/// Puts new_number into the cell at offset if it holds expected, and puts what it held before into *before,
/// unless that is NULL: expected when it was changed. Otherwise as ramlace_fetch_add. Returns 1 when it was
/// changed, 0 when it held something else, -1 and sets errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_compare_swap(
    file: *mut ramlace_file,
    offset: i64,
    expected: u64,
    new_number: u64,
    before: Out<u64>,
) -> c_int {
    guard(|| {
        let file = &open_file(file)?.file;
        let found = file.compare_swap(file_bytes(offset, "offset")?, expected, new_number)?;
        before.put_if_wanted(found)?;
        Ok(c_int::from(found == expected))
    })
}

/// Takes the version of length bytes from offset on, 0 for all that follow. Take it before you read the
/// bytes: then ramlace_wait_change misses no change. Returns 0, or -1 and sets errno: EFBIG when the bytes lie on more
/// than RAMLACE_VERSION_LANES lanes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_change_version(
    file: *mut ramlace_file,
    offset: i64,
    length: i64,
    version: Out<ramlace_version>,
) -> c_int {
    done(|| {
        let range = range_of(offset, length)?;
        let take = || Ok(version_of(&open_file(file)?.file.change_version(range)?));
        version.put("struct ramlace_version", take)
    })
}

/// Waits until bytes of the version's range were written, cut off, or published by anybody since it was taken,
/// and takes the version of now into it: for timeout_millis at most, for ever when that is negative. May also
/// return when nothing has changed: after a server was started again, and after many changes close by. Returns 0, or -1
/// and sets errno: ETIMEDOUT when nothing has changed in time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_wait_change(
    file: *mut ramlace_file,
    version: Filled<ramlace_version>,
    timeout_millis: i64,
) -> c_int {
    done(|| {
        version.change("struct ramlace_version", |since| {
            let since = version_from(&since)?;
            let now = open_file(file)?.file.wait_for_change(&since, timeout_of(timeout_millis))?;
            Ok(version_of(&now))
        })
    })
}

fn version_of(version: &ChangeVersion) -> ramlace_version {
    let (home, numbers) = version.numbers();
    let mut lanes = [0; RAMLACE_VERSION_LANES];
    lanes[..numbers.len()].copy_from_slice(numbers);
    ramlace_version {
        start: version.range().start,
        end: version.range().end,
        count: numbers.len() as u32,
        has_home: u32::from(home.is_some()),
        home: home.unwrap_or_default(),
        lanes,
    }
}

fn version_from(version: &ramlace_version) -> Result<ChangeVersion> {
    let count = version.count as usize;
    if count > RAMLACE_VERSION_LANES || version.start >= version.end || version.end > limits::FILE_BYTES_MAX {
        return Err(invalid("the version was not filled by ramlace_change_version"));
    }
    let range = ByteRange { start: version.start, end: version.end };
    let home = (version.has_home != 0).then_some(version.home);
    Ok(ChangeVersion::from_numbers(range, home, version.lanes[..count].to_vec()))
}

fn timeout_of(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}
