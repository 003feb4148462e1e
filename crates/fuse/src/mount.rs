//! Mounting and unmounting: by the system call where this process may, else by fusermount3.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use ramlace_base::{Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::device::{DEVICE_PATH, Device};
use crate::flags::Flags;
use crate::fusermount;
use crate::mounts::{MountPoint, mount_on};
use crate::options::{MountMethod, MountOptions};

/// Mounts on a directory in the kernel's form and brings the descriptor of the connection.
pub fn mount(dir: &Path, options: &MountOptions) -> Result<OwnedFd> {
    match options.method {
        MountMethod::SystemCall => by_system_call(dir, options),
        MountMethod::Fusermount => fusermount::mount(dir, &helper_options(options)),
        MountMethod::Automatic => match by_system_call(dir, options) {
            // Root in a container may lack the right, and an ordinary user has it in a namespace of theirs.
            Err(error) if matches!(error.kind(), ErrorKind::NotPermitted | ErrorKind::Denied) => {
                fusermount::mount(dir, &helper_options(options))
            }
            outcome => outcome,
        },
    }
}

/// The directory in the kernel's form, when a mount may go there.
pub fn check_mount_point(dir: &Path, options: &MountOptions) -> Result<PathBuf> {
    let shown = dir.display();
    let absolute = kernel_path(dir)?;
    if let Some(mount) = mount_on(&absolute)? {
        let state = if mount.is_dead() { "a dead mount" } else { "already a mount" };
        let what = mount.source;
        return Err(Error::new(
            ErrorKind::Busy,
            format!("{shown} is {state} of {what}; `ramlace unmount {shown}` takes it away"),
        ));
    }
    let metadata = std::fs::metadata(dir).map_err(|error| missing(&error, dir))?;
    if !metadata.is_dir() {
        return Err(Error::new(
            ErrorKind::NotDirectory,
            format!("{shown} is not a directory; mounts need one"),
        ));
    }
    let occupied = || std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    if !options.allow_nonempty && occupied() {
        let message =
            format!("{shown} is not empty, and a mount would hide what is in it; choose an empty directory");
        return Err(Error::new(ErrorKind::NotEmpty, message));
    }
    Ok(absolute)
}

fn missing(error: &std::io::Error, dir: &Path) -> Error {
    let dir = dir.display();
    if error.kind() == std::io::ErrorKind::NotFound {
        return Error::new(ErrorKind::NotFound, format!("{dir} does not exist; `mkdir -p {dir}` makes it"));
    }
    if is_dead(error) {
        let message = format!("{dir} is on a dead mount, whose program has ended; unmount that first");
        return Error::new(ErrorKind::HostDown, message);
    }
    Error::from_io(error, format_args!("looking at {dir}"))
}

fn is_dead(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOTCONN)
}

/// Takes the mount of ramlace on `dir` away; `detach`: also when programs still use it, which keep it until they end.
///
/// The program that answers the mount must still run when programs have mapped and changed its files: their pages
/// are written back first. A mount whose program has ended is taken away all the same.
///
/// # Errors
/// `NotFound`: no mount of ramlace is there. `Busy`: programs use it.
pub fn unmount(dir: &Path, detach: bool) -> Result<()> {
    let absolute = kernel_path(dir)?;
    take_away(&mount_on(&absolute)?.ok_or_else(|| not_mounted(dir))?, detach)
}

/// Takes this very mount away, which another one on the same directory is not.
///
/// # Errors
/// `NotFound`: it is not there any more. `Busy`: programs use it.
pub fn unmount_own(mount: &MountPoint, detach: bool) -> Result<()> {
    match mount_on(&mount.dir)? {
        Some(found) if found.device == mount.device => take_away(&found, detach),
        _ => Err(not_mounted(&mount.dir)),
    }
}

/// The newest mount of ramlace on a directory, which is not asked anything.
///
/// # Errors
/// When the directory above it cannot be reached.
pub fn mounted_on(dir: &Path) -> Result<Option<MountPoint>> {
    mount_on(&kernel_path(dir)?)
}

/// Takes mounts whose program has ended away from `dir`, in use or not, and says which: programs that have files of
/// them open get errors whether they are visible or not.
///
/// # Errors
/// When one cannot be taken away, such as another user's.
pub fn clear_dead(dir: &Path) -> Result<Vec<MountPoint>> {
    let dir = kernel_path(dir)?;
    let mut cleared = Vec::new();
    while let Some(mount) = mount_on(&dir)?.filter(MountPoint::is_dead) {
        take_away(&mount, true)?;
        cleared.push(mount);
    }
    Ok(cleared)
}

/// Unmounts what `mounts` has returned.
pub fn take_away(mount: &MountPoint, detach: bool) -> Result<()> {
    let dir = mount.dir.as_path();
    let flags = UnmountFlags::NOFOLLOW | if detach { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(dir, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => fusermount::unmount(dir, detach),
        Err(Errno::BUSY) => Err(Error::new(
            ErrorKind::Busy,
            format!("programs still use {}; end them, or unmount it lazily", dir.display()),
        )),
        Err(errno) => Err(Error::from_io(&errno.into(), format_args!("unmounting {}", dir.display()))),
    }
}

/// Gives the newest mount of ramlace on `dir` the flags that `change` makes of those it has, for all programs that use it.
///
/// # Errors
/// `NotFound`: no mount of ramlace is there. `NotPermitted`: only root may. `Busy`: it shall be read-only, and
/// programs have files open for writing.
pub fn remount(dir: &Path, change: impl FnOnce(Flags) -> Result<Flags>) -> Result<()> {
    let mount = mount_on(&kernel_path(dir)?)?.ok_or_else(|| not_mounted(dir))?;
    let shown = dir.display();
    // The kernel takes no options of FUSE here; what the file system was given once stays.
    rustix::mount::mount_remount(&mount.dir, change(mount.flags)?.bits(), "").map_err(|errno| match errno {
        Errno::PERM => {
            let text = format!("only root may remount {shown}; unmount it, and mount it as it shall be");
            Error::new(ErrorKind::NotPermitted, text)
        }
        Errno::BUSY => Error::new(
            ErrorKind::Busy,
            format!("programs have files on {shown} open for writing; end them before it is made read-only"),
        ),
        errno => Error::from_io(&errno.into(), format_args!("remounting {shown}")),
    })
}

fn not_mounted(dir: &Path) -> Error {
    let text = format!("no mount of ramlace is on {}; `mount` lists what is mounted", dir.display());
    Error::new(ErrorKind::NotFound, text)
}

/// The absolute path that the kernel would show. The last part is not touched: it may be a dead mount.
fn kernel_path(dir: &Path) -> Result<PathBuf> {
    let failed = |error: std::io::Error| missing(&error, dir);
    // A symbolic link at the end is followed while that is possible; a dead mount cannot be one.
    if let Ok(path) = dir.canonicalize() {
        return Ok(path);
    }
    let absolute = std::path::absolute(dir).map_err(failed)?;
    match (absolute.parent(), absolute.components().next_back()) {
        (Some(parent), Some(Component::Normal(name))) => {
            Ok(parent.canonicalize().map_err(failed)?.join(name))
        }
        _ => Ok(absolute),
    }
}

fn by_system_call(dir: &Path, options: &MountOptions) -> Result<OwnedFd> {
    let device = Device::open().map_err(no_device)?;
    let flags = options.flags.bits();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut data = format!("fd={},rootmode=40000,user_id={uid},group_id={gid}", device.as_raw_fd());
    data.push_str(&kernel_options(options));
    let data =
        CString::new(data).map_err(|_| Error::new(ErrorKind::Invalid, "an option of the mount has a NUL"))?;
    let kind = format!("fuse.{}", options.subtype);
    match rustix::mount::mount(options.source.as_str(), dir, kind.as_str(), flags, Some(data.as_c_str())) {
        Ok(()) => Ok(device),
        Err(Errno::NODEV) => Err(no_device(Errno::NODEV)),
        Err(errno) => Err(Error::from_io(&errno.into(), format_args!("mounting {}", dir.display()))),
    }
}

fn no_device(errno: Errno) -> Error {
    match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => Error::new(
            ErrorKind::Unsupported,
            format!(
                "this machine has no {DEVICE_PATH}; let root load the module (`modprobe fuse`) or, in a container, pass the device in"
            ),
        ),
        Errno::ACCESS | Errno::PERM => Error::new(
            ErrorKind::NotPermitted,
            format!(
                "{DEVICE_PATH} may not be opened here; in a container, allow the device, else let root permit it"
            ),
        ),
        errno => Error::from_io(&errno.into(), format_args!("opening {DEVICE_PATH}")),
    }
}

/// Options that the kernel's own parser takes.
fn kernel_options(options: &MountOptions) -> String {
    let mut text = format!(",max_read={}", options.request_bytes_max);
    if options.allow_other {
        text.push_str(",allow_other");
    }
    if options.default_permissions {
        text.push_str(",default_permissions");
    }
    text
}

/// Options for fusermount3, which makes out of them what the system call takes.
fn helper_options(options: &MountOptions) -> String {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    let mut text = format!("fsname={},subtype={}", escaped(&options.source), escaped(&options.subtype));
    text.push_str(&kernel_options(options));
    text.extend([",", &options.flags.words()]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_fusermount_survive_commas_in_names() {
        let mut options = MountOptions { source: r"ramlace:a,b\c".into(), ..Default::default() };
        assert!(options.flags.apply("ro"));
        let text = helper_options(&options);
        assert!(text.starts_with(r"fsname=ramlace:a\,b\\c,subtype=ramlace,"), "{text}");
        assert!(text.ends_with(",default_permissions,ro,nosuid,nodev"), "{text}");
    }

    #[test]
    fn a_missing_device_says_what_to_do() {
        assert!(no_device(Errno::NOENT).message().contains("modprobe fuse"));
        assert_eq!(no_device(Errno::ACCESS).kind(), ErrorKind::NotPermitted);
    }
}
