//! A descriptor of `/dev/fuse`. One connection to the kernel may have several of them.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter};

use crate::abi::BackingMap;

/// The character device of FUSE.
pub const DEVICE_PATH: &str = "/dev/fuse";
/// FUSE_DEV_IOC_CLONE of `linux/fuse.h`: _IOR(229, 0, uint32_t).
const CLONE: Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);
/// FUSE_DEV_IOC_BACKING_OPEN: _IOW(229, 1, struct fuse_backing_map).
const BACKING_OPEN: Opcode = rustix::ioctl::opcode::write::<BackingMap>(229, 1);
/// FUSE_DEV_IOC_BACKING_CLOSE: _IOW(229, 2, uint32_t).
const BACKING_CLOSE: Opcode = rustix::ioctl::opcode::write::<u32>(229, 2);

/// One descriptor. A request is answered by the descriptor that it was read from: the kernel looks nowhere else.
#[derive(Debug)]
pub struct Device(OwnedFd);

impl Device {
    /// A descriptor without a connection.
    pub fn open() -> Result<OwnedFd, Errno> {
        rustix::fs::open(DEVICE_PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
    }

    /// The descriptor of a mount.
    pub fn new(descriptor: OwnedFd) -> Device {
        Device(descriptor)
    }

    /// Another descriptor of the same connection, with its own queue of requests to be answered.
    ///
    /// Fails where this process may not open the device; the connection can be shared then.
    pub fn try_clone(&self) -> Result<Device, Errno> {
        let descriptor = Device::open()?;
        let connected = self.0.as_raw_fd().cast_unsigned();
        // SAFETY: the kernel reads one u32, a descriptor's number, from the pointer, which is valid during the call.
        unsafe { rustix::ioctl::ioctl(&descriptor, Setter::<CLONE, u32>::new(connected))? };
        Ok(Device(descriptor))
    }

    /// Registers a file of this process, and brings its number.
    pub fn open_backing(&self, descriptor: RawFd) -> Result<u32, Errno> {
        let map = BackingMap { fd: descriptor, ..BackingMap::default() };
        // SAFETY: the kernel reads the structure, which is valid during the call.
        let id = unsafe { libc::ioctl(self.0.as_raw_fd(), BACKING_OPEN as libc::c_ulong, &raw const map) };
        u32::try_from(id).map_err(|_| last_error())
    }

    /// Takes a number back.
    pub fn close_backing(&self, id: u32) -> Result<(), Errno> {
        // SAFETY: the kernel reads one u32 from the pointer, which is valid during the call.
        unsafe { rustix::ioctl::ioctl(&self.0, Setter::<BACKING_CLOSE, u32>::new(id)) }
    }

    /// Waits for a request.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.0, buffer)
    }

    /// Writes the head of a message whose last bytes are missing: they are said to lie where no memory is mapped. The kernel does
    /// what it does before it copies them.
    pub fn write_head(&self, head: &[u8], more: usize) -> Result<(), Errno> {
        // The first page of a process is never mapped.
        let nowhere = std::ptr::without_provenance_mut::<libc::c_void>(1);
        let parts = [
            libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
            libc::iovec { iov_base: nowhere, iov_len: more },
        ];
        // SAFETY: the kernel reads the head, which is valid during the call; what it cannot read it refuses.
        let written = unsafe { libc::writev(self.0.as_raw_fd(), parts.as_ptr(), parts.len() as libc::c_int) };
        if written < 0 { Err(last_error()) } else { Ok(()) }
    }

    /// Answers or notifies: the parts are one message.
    pub fn write(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        rustix::io::writev(&self.0, parts).map(drop)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
