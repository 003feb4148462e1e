//! The read-ahead of a mount, set through its backing device's entry in sysfs.

use std::path::PathBuf;

/// Where the kernel keeps the settings of this device, in KiB.
fn path((major, minor): (u32, u32)) -> PathBuf {
    PathBuf::from(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"))
}

/// Read-ahead now, in bytes, where sysfs reports it.
pub fn read_ahead_bytes(device: (u32, u32)) -> Option<u64> {
    let text = std::fs::read_to_string(path(device)).ok()?;
    text.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// Sets the read-ahead, which INIT can only lower; the reason when that is not allowed.
pub fn set_read_ahead(device: (u32, u32), bytes: usize) -> Result<(), String> {
    let path = path(device);
    std::fs::write(&path, (bytes >> 10).to_string()).map_err(|error| {
        format!("read-ahead of {} KiB could not be set in {}: {error}", bytes >> 10, path.display())
    })
}
