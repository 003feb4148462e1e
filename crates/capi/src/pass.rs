//! What C programs pass in: texts, structures that grow, and memory.

use std::ffi::{CStr, c_char};
use std::mem::{MaybeUninit, size_of};
use std::path::PathBuf;

use ramlace_base::{Error, Result};

use crate::failure::{invalid, not_null, null};

/// Largest structure that a later version may pass: a page, as the kernel's own calls have it.
const STRUCTURE_BYTES_MAX: usize = 4096;

/// A structure whose first field tells its size to the program's knowledge, and for which bytes
/// that are all zero mean "as usual".
///
/// # Safety
/// The type is `repr(C)`, begins with a `usize`, and any bytes are a value of it.
pub(crate) unsafe trait Growing: Copy {
    const NAME: &'static str;
}

/// Reads a structure of an older, this, or a newer program; NULL means all as usual.
///
/// # Safety
/// The pointer is NULL, or as many bytes as its first field says can be read.
pub(crate) unsafe fn growing<T: Growing>(pointer: *const T) -> Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    if !pointer.is_null() {
        let (own, name) = (size_of::<T>(), T::NAME);
        // SAFETY: the size is its first field, by the trait, and readable, by the caller.
        let size = unsafe { pointer.cast::<usize>().read_unaligned() };
        if !(size_of::<usize>()..=STRUCTURE_BYTES_MAX).contains(&size) {
            let text = format!("the size in the ramlace_{name} is {size}; begin with its _INIT macro");
            return Err(invalid(text));
        }
        // SAFETY: so many bytes are readable, by the caller.
        let bytes = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), size) };
        if bytes[own.min(size)..].iter().any(|byte| *byte != 0) {
            let text = format!("the ramlace_{name} has fields set that this version does not know");
            return Err(invalid(text));
        }
        // SAFETY: the source has `size` bytes, the destination `own`; they are different memory.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.as_mut_ptr().cast::<u8>(), own.min(size));
        }
    }
    // SAFETY: zeroed, then partly overwritten; any bytes are a value, by the trait.
    Ok(unsafe { value.assume_init() })
}

/// The bytes of a text.
///
/// # Safety
/// The pointer is NULL, or leads to bytes that end with a NUL and stay while the result is used.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a [u8]> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// A text that may be missing and must be UTF-8.
///
/// # Safety
/// As for `text`.
pub(crate) unsafe fn optional_text(pointer: *const c_char, what: &str) -> Result<Option<String>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { text(pointer, what) }?;
    let checked = std::str::from_utf8(bytes);
    checked.map(|text| Some(text.to_owned())).map_err(|_| invalid(format!("the {what} is no UTF-8")))
}

/// A local path that may be missing.
///
/// # Safety
/// As for `text`.
pub(crate) unsafe fn optional_path(pointer: *const c_char, what: &str) -> Result<Option<PathBuf>> {
    use std::os::unix::ffi::OsStrExt;
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { text(pointer, what) }?;
    Ok(Some(PathBuf::from(std::ffi::OsStr::from_bytes(bytes))))
}

/// Where a result goes.
///
/// # Safety
/// The pointer is NULL, or leads to memory for a `T` that nobody else uses during the call.
pub(crate) unsafe fn put<T>(pointer: *mut T, what: &str, make: impl FnOnce() -> Result<T>) -> Result<()> {
    let place = not_null(pointer, what)?;
    let value = make()?;
    // SAFETY: the caller's promise; what was there is no value of Rust's.
    unsafe { place.write(value) };
    Ok(())
}

/// Memory to read into.
///
/// # Safety
/// Unless it is refused, `length` bytes can be written, and nobody else uses them while the
/// result is used.
pub(crate) unsafe fn buffer<'a>(start: *mut u8, length: usize) -> Result<&'a mut [u8]> {
    check_length(start, length)?;
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: the caller's promise. The bytes may never have been written: the client fills them
    // by system calls or by stores and never loads one.
    Ok(unsafe { std::slice::from_raw_parts_mut(start, length) })
}

/// Memory to write from.
///
/// # Safety
/// Unless it is refused, `length` bytes can be read, and nobody changes them while the result is
/// used.
pub(crate) unsafe fn bytes<'a>(start: *const u8, length: usize) -> Result<&'a [u8]> {
    check_length(start, length)?;
    if length == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(start, length) })
}

pub(crate) fn check_length(start: *const u8, length: usize) -> Result<()> {
    if isize::try_from(length).is_err() {
        return Err(invalid(format!("{length} bytes are more than SSIZE_MAX")));
    }
    if start.is_null() && length > 0 {
        return Err(null("buffer"));
    }
    Ok(())
}

/// An offset, or a length, of a file.
pub(crate) fn file_bytes(value: i64, what: &str) -> Result<u64> {
    u64::try_from(value).map_err(|_| negative(value, what))
}

fn negative(value: i64, what: &str) -> Error {
    invalid(format!("the {what} is negative: {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Known {
        size: usize,
        old: u32,
        new: u32,
    }

    // SAFETY: it is `repr(C)`, begins with its size, and holds integers.
    unsafe impl Growing for Known {
        const NAME: &'static str = "known";
    }

    fn read(words: &[usize]) -> Result<(u32, u32)> {
        // SAFETY: the tests pass sizes within their arrays, or sizes that are refused.
        unsafe { growing(words.as_ptr().cast::<Known>()) }.map(|known| (known.old, known.new))
    }

    #[test]
    fn structures_of_older_and_newer_programs_are_understood() {
        assert_eq!(read(&[16, (3 << 32) | 2]), Ok((2, 3)));
        assert_eq!(read(&[12, (3 << 32) | 2]), Ok((2, 0)));
        assert_eq!(read(&[8, (3 << 32) | 2]), Ok((0, 0)));
        assert_eq!(read(&[32, 2, 0, 0]), Ok((2, 0)));
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { growing::<Known>(std::ptr::null()) }.unwrap().new, 0);
        for wrong in [&[32, 2, 0, 1][..], &[0, 2], &[7, 2], &[4097, 2], &[usize::MAX, 2]] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn lengths_beyond_memory_and_null_buffers_are_refused() {
        // SAFETY: what is not refused is empty.
        unsafe {
            assert!(buffer(std::ptr::null_mut(), 0).unwrap().is_empty());
            assert!(bytes(std::ptr::null(), 1).unwrap_err().message().contains("null pointer"));
            assert!(
                buffer(std::ptr::dangling_mut(), usize::MAX).unwrap_err().message().contains("SSIZE_MAX")
            );
        }
    }
}
