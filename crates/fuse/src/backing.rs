//! Backing files: files that the kernel reads and maps by itself under FUSE passthrough. They are registered here with the
//! device; the reply to an open names one by its number.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Weak;

use ramlace_base::{Error, ErrorKind, Result};
use rustix::io::Errno;

use crate::device::Device;

/// Registers files for [`OpenFlags::passthrough`](crate::OpenFlags::passthrough).
///
/// The kernel takes no word back: while one descriptor of a node goes to a backing file, every other open of that node
/// must name the same one, or fails with EIO.
#[derive(Clone, Debug)]
pub struct BackingFiles {
    pub(crate) device: Weak<Device>,
}

/// A registered file. Dropping it takes the number back; open files that use it keep it.
#[derive(Debug)]
pub struct Backing {
    device: Weak<Device>,
    id: u32,
}

impl BackingFiles {
    /// Registers a regular file. The kernel opens it again for each open file that goes there, with that one's flags and
    /// the rights of this process.
    ///
    /// # Errors
    /// `NotPermitted` without CAP_SYS_ADMIN or where passthrough was not agreed on; `Unsupported` for a file of a kind
    /// that the kernel does not take.
    pub fn register(&self, file: impl AsFd) -> Result<Backing> {
        let device = self
            .device
            .upgrade()
            .ok_or_else(|| Error::new(ErrorKind::Stale, "the mount is gone, and its files with it"))?;
        let id = device.open_backing(file.as_fd().as_raw_fd()).map_err(|errno| {
            let kind = match errno {
                Errno::PERM => ErrorKind::NotPermitted,
                Errno::NOTTY | Errno::OPNOTSUPP | Errno::LOOP | Errno::INVAL => ErrorKind::Unsupported,
                _ => return Error::from_io(&errno.into(), "registering a file with the kernel"),
            };
            Error::new(kind, format!("the kernel takes no file for passthrough here: {errno}"))
        })?;
        Ok(Backing { device: self.device.clone(), id })
    }
}

impl Backing {
    /// The number for the answer to an open.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Some(device) = self.device.upgrade() {
            // A connection that is gone has no numbers any more.
            let _ = device.close_backing(self.id);
        }
    }
}
