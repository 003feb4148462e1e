//! The kinds of errors under the names of C.

/// What went wrong, as a number that never changes its meaning: finer than errno, where several
/// kinds are one number. Later versions may know more kinds.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ramlace_error_kind {
    /// Nothing has failed in this thread.
    RAMLACE_ERROR_NONE = 0,
    /// EAGAIN: The state is in motion; the same request may be sent again after a short pause.
    RAMLACE_ERROR_RETRY = 1,
    /// ENOSPC: The pool, or the server that holds these bytes, is full.
    RAMLACE_ERROR_NO_SPACE = 3,
    /// EACCES: The caller lacks the right.
    RAMLACE_ERROR_DENIED = 4,
    /// ESTALE: The session, the handle or the inode is gone.
    RAMLACE_ERROR_STALE = 5,
    /// EIO: The bytes were on a server that lost them.
    RAMLACE_ERROR_LOST = 6,
    /// EIO: Bytes that should make sense do not.
    RAMLACE_ERROR_CORRUPT = 7,
    /// EIO: A bug, or a machine that fails underneath.
    RAMLACE_ERROR_FATAL = 8,
    /// ENOENT: No such file or directory.
    RAMLACE_ERROR_NOT_FOUND = 9,
    /// EEXIST: The name is taken.
    RAMLACE_ERROR_EXISTS = 10,
    /// ENOTDIR: A directory was needed.
    RAMLACE_ERROR_NOT_DIRECTORY = 11,
    /// EISDIR: A directory was not allowed.
    RAMLACE_ERROR_IS_DIRECTORY = 12,
    /// ENOTEMPTY: The directory still has entries.
    RAMLACE_ERROR_NOT_EMPTY = 13,
    /// EINVAL: An argument makes no sense.
    RAMLACE_ERROR_INVALID = 14,
    /// ENAMETOOLONG: A name or a path has too many bytes.
    RAMLACE_ERROR_NAME_TOO_LONG = 15,
    /// EFBIG: An offset or a size is beyond the largest file.
    RAMLACE_ERROR_TOO_BIG = 16,
    /// ELOOP: Too many symbolic links on the way.
    RAMLACE_ERROR_LOOP = 17,
    /// EHOSTDOWN: The server does not answer; its bytes are out of reach until it returns.
    RAMLACE_ERROR_HOST_DOWN = 18,
    /// ETIMEDOUT: The deadline passed.
    RAMLACE_ERROR_TIMED_OUT = 19,
    /// ENFILE: A limit on the number of things was reached.
    RAMLACE_ERROR_TOO_MANY = 20,
    /// EOPNOTSUPP: This build or this pool does not do that.
    RAMLACE_ERROR_UNSUPPORTED = 21,
    /// EPERM: The operation itself is not allowed, to any user.
    RAMLACE_ERROR_NOT_PERMITTED = 22,
    /// EBUSY: Something is in use.
    RAMLACE_ERROR_BUSY = 23,
    /// EFAULT: The memory behind a mapping or a buffer is gone.
    RAMLACE_ERROR_FAULT = 24,
    /// EPROTO: The other side speaks another version or another protocol.
    RAMLACE_ERROR_PROTOCOL = 25,
    /// EMSGSIZE: A message is larger than the limit for its kind.
    RAMLACE_ERROR_TOO_LARGE = 26,
    /// EBADF: The handle was not opened for this.
    RAMLACE_ERROR_BAD_HANDLE = 27,
    /// EMLINK: The file has as many names as it can have.
    RAMLACE_ERROR_TOO_MANY_LINKS = 28,
    /// ENODATA: The inode has no such extended attribute.
    RAMLACE_ERROR_NO_DATA = 30,
    /// ERANGE: A name is too long, or the memory for a value too small.
    RAMLACE_ERROR_OUT_OF_RANGE = 31,
    /// E2BIG: The value of an extended attribute has too many bytes.
    RAMLACE_ERROR_VALUE_TOO_BIG = 32,
    /// ENOLCK: There are as many locks as there may be.
    RAMLACE_ERROR_TOO_MANY_LOCKS = 33,
    /// EDEADLK: Waiting for this lock would close a cycle of programs that wait for each other.
    RAMLACE_ERROR_DEADLOCK = 34,
    /// ENXIO: No data, or no hole, is left in the file from there on.
    RAMLACE_ERROR_NOTHING_THERE = 37,
}

#[cfg(test)]
mod tests {
    use ramlace_base::ErrorKind;

    #[test]
    fn every_kind_has_its_number_and_its_errno_in_c() {
        let source = include_str!("kinds.rs");
        for kind in ErrorKind::ALL {
            let mut name = String::new();
            for letter in format!("{kind:?}").chars() {
                if letter.is_uppercase() {
                    name.push('_');
                }
                name.push(letter.to_ascii_uppercase());
            }
            let line = format!("RAMLACE_ERROR{name} = {},", kind.number());
            let (before, _) = source.split_once(&line).unwrap_or_else(|| panic!("no {line}"));
            let doc = before.lines().rev().nth(1).unwrap();
            assert!(doc.contains(&format!("/// {}: ", kind.errno_name())), "{line} after {doc}");
        }
        let count = source.lines().filter(|line| line.trim_start().starts_with("RAMLACE_ERROR_")).count();
        assert_eq!(count, ErrorKind::ALL.len() + 1);
    }
}
