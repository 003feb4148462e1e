//! What C programs pass in: texts, structures that grow, memory, and places for results.
//!
//! Each is a type of its own, which C sees as the pointer or the number that it is, and of which Rust can make no value: the
//! program has made it, and has promised what the header asks of it. So what must be believed is believed here, once for
//! each kind of argument, and a function of the ABI is as safe as any other. `tests/header.rs` knows what C calls each type.

use std::ffi::{CStr, c_char, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::path::PathBuf;

use libc::iovec;
use ramlace_base::{ByteRange, Error, ErrorKind, Result};

use crate::failure::{invalid, null};
use crate::types::ramlace_time;

/// A text that ends with a NUL and stays during the call; or NULL.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Its bytes.
    pub(crate) fn bytes(&self, what: &str) -> Result<&[u8]> {
        if self.is_null() {
            return Err(null(what));
        }
        // SAFETY: a text that stays during the call, by the header; this value is an argument of it.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// A text that may be missing and must be UTF-8.
    pub(crate) fn optional(&self, what: &str) -> Result<Option<String>> {
        if self.is_null() {
            return Ok(None);
        }
        let checked = std::str::from_utf8(self.bytes(what)?);
        checked.map(|text| Some(text.to_owned())).map_err(|_| invalid(format!("the {what} is no UTF-8")))
    }

    /// A local path that may be missing.
    pub(crate) fn optional_path(&self, what: &str) -> Result<Option<PathBuf>> {
        use std::os::unix::ffi::OsStrExt;
        if self.is_null() {
            return Ok(None);
        }
        Ok(Some(PathBuf::from(std::ffi::OsStr::from_bytes(self.bytes(what)?))))
    }
}

/// Memory for a result, which nobody else uses during the call; or NULL.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Puts a result there; it is made once it is known that there is a place.
    pub(crate) fn put(&self, what: &str, make: impl FnOnce() -> Result<T>) -> Result<()> {
        self.put_some(what, || make().map(Some)).map(drop)
    }

    /// Puts a result there if there is any; whether there is.
    pub(crate) fn put_some(&self, what: &str, make: impl FnOnce() -> Result<Option<T>>) -> Result<bool> {
        if self.0.is_null() {
            return Err(null(what));
        }
        let Some(value) = make()? else { return Ok(false) };
        // SAFETY: memory for a result, by the header; what was there is no value of Rust's.
        unsafe { self.0.write(value) };
        Ok(true)
    }

    /// Puts a result there, unless the program does not ask for it.
    pub(crate) fn put_if_wanted(&self, value: T) -> Result<()> {
        if self.0.is_null() { Ok(()) } else { self.put("place for a result", || Ok(value)) }
    }
}

/// A structure that an earlier call of this library has filled, and this one changes; or NULL.
#[repr(transparent)]
pub struct Filled<T>(*mut T);

impl<T: Copy> Filled<T> {
    /// Puts there what `make` makes of what is there.
    pub(crate) fn change(&self, what: &str, make: impl FnOnce(T) -> Result<T>) -> Result<()> {
        if self.0.is_null() {
            return Err(null(what));
        }
        // SAFETY: it was filled by this library, by the header.
        let before = unsafe { self.0.read() };
        Out(self.0).put(what, || make(before))
    }
}

/// Two times, of the last read and of the last change; or NULL.
#[repr(transparent)]
pub struct Times(*const ramlace_time);

impl Times {
    pub(crate) fn both(&self) -> Option<[ramlace_time; 2]> {
        // SAFETY: two times, by the header.
        (!self.0.is_null()).then(|| unsafe { self.0.cast::<[ramlace_time; 2]>().read() })
    }
}

/// How many bytes the memory has that the same call passes: no function has two such.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Length(usize);

impl Length {
    pub(crate) fn is_zero(self) -> bool {
        self.0 == 0
    }
}

/// Memory to write from, as much as the call's [`Length`] says, which nobody changes meanwhile.
#[repr(transparent)]
pub struct Source(*const c_void);

impl Source {
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn bytes(&self, length: Length) -> Result<&[u8]> {
        source(self.0.cast(), length.0)
    }
}

/// Memory to read into, as much as the call's [`Length`] says, which nobody else uses meanwhile.
#[repr(transparent)]
pub struct Target<T>(*mut T);

impl<T> Target<T> {
    pub(crate) fn bytes(&mut self, length: Length) -> Result<&mut [u8]> {
        target(self.0.cast(), length.0)
    }

    /// Puts a whole result there.
    pub(crate) fn put(&mut self, length: Length, result: &[u8]) -> Result<()> {
        if self.0.is_null() {
            return Err(null("memory for the result"));
        }
        if result.len() > length.0 {
            let text = format!("the result has {} bytes, and there is room for {}", result.len(), length.0);
            return Err(Error::new(ErrorKind::OutOfRange, text));
        }
        target(self.0.cast(), result.len())?.copy_from_slice(result);
        Ok(())
    }
}

/// How many items the array has that the same call, or structure, passes: none has two such.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Count<N>(N);

impl<N: Copy> Count<N> {
    pub(crate) fn get(self) -> N {
        self.0
    }
}

/// An array of as many items as the call's, or the structure's, [`Count`] says.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Items<T>(*const T);

impl<T> Items<T> {
    /// Its items. Limits of the number are checked by the functions that know them.
    pub(crate) fn all<N: Copy>(&self, count: Count<N>, what: &str) -> Result<&[T]>
    where
        usize: TryFrom<N>,
    {
        let number =
            usize::try_from(count.0).ok().filter(|number| *number <= isize::MAX as usize / size_of::<T>());
        let number = number.ok_or_else(|| invalid(format!("more {what} than memory has")))?;
        if number == 0 {
            return Ok(&[]);
        }
        if self.0.is_null() {
            return Err(null(&format!("array of {what}")));
        }
        // SAFETY: so many items, by the header.
        Ok(unsafe { std::slice::from_raw_parts(self.0, number) })
    }
}

/// Places for results, as many as the call's [`Count`] says, which nobody else uses meanwhile; or NULL.
#[repr(transparent)]
pub struct Places<T>(*mut T);

impl<T: Copy> Places<T> {
    /// Puts results there, unless the program does not ask for them.
    pub(crate) fn put_if_wanted<N: Copy>(&mut self, results: &[T], count: Count<N>)
    where
        usize: TryFrom<N>,
    {
        assert_eq!(usize::try_from(count.0).ok(), Some(results.len()), "a result for each place");
        if !self.0.is_null() {
            // SAFETY: there are so many places, by the header; what was there is no value of Rust's.
            unsafe { self.0.copy_from_nonoverlapping(results.as_ptr(), results.len()) };
        }
    }
}

/// One of several buffers of a call: a struct iovec.
#[repr(transparent)]
pub struct Buffer(iovec);

impl Buffer {
    /// How many bytes it has.
    pub(crate) fn length(&self) -> usize {
        self.0.iov_len
    }
}

impl Items<Buffer> {
    /// The memory of buffers to write from.
    pub(crate) fn sources<N: Copy>(&self, count: Count<N>) -> Result<Vec<IoSlice<'_>>>
    where
        usize: TryFrom<N>,
    {
        let each = |Buffer(part): &Buffer| source(part.iov_base.cast_const().cast(), part.iov_len);
        self.all(count, "buffers")?.iter().map(|buffer| each(buffer).map(IoSlice::new)).collect()
    }

    /// The memory of buffers to read into, which do not overlap.
    pub(crate) fn targets<N: Copy>(&mut self, count: Count<N>) -> Result<Vec<IoSliceMut<'_>>>
    where
        usize: TryFrom<N>,
    {
        let each = |Buffer(part): &Buffer| target(part.iov_base.cast(), part.iov_len);
        self.all(count, "buffers")?.iter().map(|buffer| each(buffer).map(IoSliceMut::new)).collect()
    }
}

fn source<'a>(start: *const u8, length: usize) -> Result<&'a [u8]> {
    check_length(start, length)?;
    if length == 0 {
        return Ok(&[]);
    }
    // SAFETY: the program passed them together, by the header; callers here bind the slice to the arguments.
    Ok(unsafe { std::slice::from_raw_parts(start, length) })
}

fn target<'a>(start: *mut u8, length: usize) -> Result<&'a mut [u8]> {
    check_length(start, length)?;
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as in `source`, and nobody else uses them. The bytes may never have been written: the client fills
    // them by system calls or by stores and never loads one.
    Ok(unsafe { std::slice::from_raw_parts_mut(start, length) })
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

/// Largest structure that a later version may pass: a page, as the kernel's own calls have it.
const STRUCTURE_BYTES_MAX: usize = 4096;

/// A structure whose first field is its size to the program's knowledge, and for which bytes
/// that are all zero mean "as usual".
///
/// # Safety
/// The type is `repr(C)`, begins with a `usize`, and any bytes are a value of it.
pub unsafe trait Growing: Copy {
    /// What the header calls it, behind `ramlace_`.
    const NAME: &'static str;
}

/// A structure of an older, this, or a newer program, of which as many bytes can be read as its first field says; NULL means all
/// as usual.
#[repr(transparent)]
pub struct Given<T>(*const T);

impl<T: Growing> Given<T> {
    /// Reads it.
    pub(crate) fn read(&self) -> Result<T> {
        let mut value = MaybeUninit::<T>::zeroed();
        let pointer = self.0;
        if !pointer.is_null() {
            let (own, name) = (size_of::<T>(), T::NAME);
            // SAFETY: the size is its first field, by the trait, and readable, by the header.
            let size = unsafe { pointer.cast::<usize>().read_unaligned() };
            if !(size_of::<usize>()..=STRUCTURE_BYTES_MAX).contains(&size) {
                let text = format!("the size in the ramlace_{name} is {size}; begin with its _INIT macro");
                return Err(invalid(text));
            }
            // SAFETY: so many bytes are readable, by the header.
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
}

/// An offset, or a length, of a file.
pub(crate) fn file_bytes(value: i64, what: &str) -> Result<u64> {
    u64::try_from(value).map_err(|_| negative(value, what))
}

/// A range of a file. An empty range goes as far as any file may.
pub(crate) fn range_of(offset: i64, length: i64) -> Result<ByteRange> {
    let (start, length) = (file_bytes(offset, "offset")?, file_bytes(length, "length")?);
    ByteRange::at(start, length).ok_or_else(|| invalid("offset and length are beyond any file"))
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
        // The sizes lie within the arrays, or are refused.
        Given(words.as_ptr().cast::<Known>()).read().map(|known| (known.old, known.new))
    }

    #[test]
    fn structures_of_older_and_newer_programs_are_understood() {
        assert_eq!(read(&[16, (3 << 32) | 2]), Ok((2, 3)));
        assert_eq!(read(&[12, (3 << 32) | 2]), Ok((2, 0)));
        assert_eq!(read(&[8, (3 << 32) | 2]), Ok((0, 0)));
        assert_eq!(read(&[32, 2, 0, 0]), Ok((2, 0)));
        assert_eq!(Given::<Known>(std::ptr::null()).read().unwrap().new, 0);
        for wrong in [&[32, 2, 0, 1][..], &[0, 2], &[7, 2], &[4097, 2], &[usize::MAX, 2]] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn lengths_beyond_memory_and_null_buffers_are_refused() {
        let message = |refused: Result<&[u8]>| refused.unwrap_err().message().to_owned();
        assert!(Target::<u8>(std::ptr::null_mut()).bytes(Length(0)).unwrap().is_empty());
        assert!(message(Source(std::ptr::null()).bytes(Length(1))).contains("null pointer"));
        assert!(message(Source(std::ptr::dangling()).bytes(Length(usize::MAX))).contains("SSIZE_MAX"));
        let none = Items::<u64>(std::ptr::null());
        assert!(none.all(Count(0usize), "numbers").unwrap().is_empty());
        assert!(none.all(Count(1usize), "numbers").unwrap_err().message().contains("array of numbers"));
        assert!(
            none.all(Count(-1), "numbers").is_err() && none.all(Count(usize::MAX / 8), "numbers").is_err()
        );
    }
}
