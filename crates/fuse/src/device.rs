//! A descriptor of `/dev/fuse`: one connection to the kernel may have several.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The character device of FUSE.
pub const DEVICE_PATH: &str = "/dev/fuse";
/// FUSE_DEV_IOC_CLONE of `linux/fuse.h`: _IOR(229, 0, uint32_t).
const CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);

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
        unsafe { rustix::ioctl::ioctl(&descriptor, rustix::ioctl::Setter::<CLONE, u32>::new(connected))? };
        Ok(Device(descriptor))
    }

    /// Waits for a request.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.0, buffer)
    }

    /// Answers or tells: the parts are one message.
    pub fn write(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        rustix::io::writev(&self.0, parts).map(drop)
    }
}
