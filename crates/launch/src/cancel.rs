//! Whether what was begun is still wanted.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A descriptor of the caller's that becomes readable, and stays so, when what was begun is not wanted any more.
#[derive(Clone, Copy, Debug)]
pub struct Cancel<'a>(BorrowedFd<'a>);

impl<'a> Cancel<'a> {
    /// Nothing is read from it.
    #[must_use]
    pub fn new(descriptor: BorrowedFd<'a>) -> Cancel<'a> {
        Cancel(descriptor)
    }

    /// To be waited for beside others.
    pub fn fd(self) -> BorrowedFd<'a> {
        self.0
    }

    /// Whether it has come.
    pub fn came(self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::from_borrowed_fd(self.0, PollFlags::IN)], Some(&now)), Ok(1..))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_has_come_stays() {
        let (read, mut write) = std::io::pipe().unwrap();
        let cancel = Cancel::new(read.as_fd());
        assert!(!cancel.came());
        write.write_all(b"!").unwrap();
        assert!(cancel.came() && cancel.came());
    }
}
