//! What went wrong, for the thread that asked; and the border that no panic crosses.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ramlace_base::{Error, ErrorKind, Result};

struct Failure {
    /// Ends with a NUL; empty as long as nothing has failed.
    text: Vec<u8>,
    code: c_int,
}

thread_local! {
    static LAST: RefCell<Failure> = const { RefCell::new(Failure { text: Vec::new(), code: 0 }) };
}

/// The text of this thread's last failed call: one sentence for people that names the file, the
/// server and the next step as far as they are known, in UTF-8, without a newline; "" when
/// nothing has failed. It stays until a call fails in this thread. Never NULL, not to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn ramlace_error() -> *const c_char {
    let text = LAST.try_with(|last| {
        let last = last.borrow();
        if last.text.is_empty() { c"".as_ptr() } else { last.text.as_ptr().cast() }
    });
    text.unwrap_or(c"".as_ptr())
}

/// The kind of this thread's last failure, one of enum ramlace_error_kind: finer than errno, and
/// not changed by other libraries. RAMLACE_ERROR_NONE when nothing has failed.
#[unsafe(no_mangle)]
pub extern "C" fn ramlace_error_code() -> c_int {
    LAST.try_with(|last| last.borrow().code).unwrap_or(0)
}

/// What a function returns when it has failed.
pub(crate) trait Failing {
    const FAILED: Self;
}

impl Failing for c_int {
    const FAILED: c_int = -1;
}

impl Failing for i64 {
    const FAILED: i64 = -1;
}

impl Failing for isize {
    const FAILED: isize = -1;
}

impl<T> Failing for *mut T {
    const FAILED: *mut T = std::ptr::null_mut();
}

/// Runs the work of one function of the ABI; keeps its error, or its panic, for the caller.
pub(crate) fn guard<T: Failing>(work: impl FnOnce() -> Result<T>) -> T {
    // What a panic leaves behind is dropped with its handle, or guarded by a lock that says so.
    let error = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => return value,
        Ok(Err(error)) => error,
        Err(panic) => from_panic(&*panic),
    };
    keep(&error);
    T::FAILED
}

fn from_panic(panic: &(dyn Any + Send)) -> Error {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    Error::new(ErrorKind::Fatal, format!("a bug in ramlace, please report it: {said}"))
}

/// Makes an error this thread's last one, and sets errno.
pub(crate) fn keep(error: &Error) {
    let mut text = error.message().replace(['\0', '\n', '\r'], " ").into_bytes();
    text.push(0);
    // A thread that is ending has no text any more; errno it still has.
    // A redirect that was not followed to its end within the deadline: programs know it as what it asks of them.
    let kind = if let ErrorKind::Redirect(_) = error.kind() { ErrorKind::Retry } else { error.kind() };
    let _ = LAST.try_with(|last| *last.borrow_mut() = Failure { text, code: kind.number().into() });
    // SAFETY: the C library gives every thread an errno, valid as long as the thread.
    unsafe { *libc::__errno_location() = error.errno() };
}

/// An error about an argument.
pub(crate) fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

/// A field without a meaning yet: a program that sets it wants something that this library does not do.
pub(crate) fn check_reserved(value: u32, of: &str) -> Result<()> {
    if value == 0 {
        return Ok(());
    }
    Err(invalid(format!("`reserved` of a struct {of} is {value}; it has no meaning yet, and has to be 0")))
}

/// The error of a pointer that must not be NULL.
pub(crate) fn null(what: &str) -> Error {
    Error::new(ErrorKind::Fault, format!("the {what} is a null pointer"))
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn text() -> String {
        // SAFETY: the text ends with a NUL and lives until the next failure of this thread.
        unsafe { CStr::from_ptr(ramlace_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_is_an_error_with_its_text() {
        let failed: c_int = guard(|| panic!("number {}", 7));
        assert_eq!(failed, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EIO));
        assert_eq!(text(), "a bug in ramlace, please report it: number 7");
        assert_eq!(ramlace_error_code(), 8);
    }

    #[test]
    fn each_thread_has_its_own_failure_and_success_keeps_it() {
        let failed: *mut c_int = guard(|| Err(invalid("one\ntwo\0three")));
        assert!(failed.is_null());
        std::thread::spawn(|| assert_eq!((text(), ramlace_error_code()), (String::new(), 0))).join().unwrap();
        assert_eq!(guard(|| Ok(5)), 5);
        assert_eq!((text(), ramlace_error_code()), (r"one two\x00three".into(), 14));
    }
}
