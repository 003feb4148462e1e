//! The mounts of this machine, read from `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ramlace_base::{Error, Result};
use rustix::io::Errno;

use crate::flags::Flags;

/// Subtypes of our mounts begin so.
const KIND_PREFIX: &[u8] = b"fuse.ramlace";
/// What the kernel adds to the path of a directory that was removed. No path has two slashes otherwise.
const REMOVED_SUFFIX: &[u8] = b"//deleted";
/// Where the kernel lists the mounts that this process sees.
const MOUNTINFO_PATH: &str = "/proc/self/mountinfo";

/// One mount of ramlace, as this process's mount namespace has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Where.
    pub dir: PathBuf,
    /// The directory of the file system that is shown there: `/`, or another one of a bind mount. It ends in `//deleted`
    /// where that was removed.
    pub root: PathBuf,
    /// `fuse.ramlace`, or another subtype that begins so.
    pub kind: String,
    /// What was mounted, such as `ramlace:POOL`.
    pub source: String,
    /// The device's major and minor number: the name of its entry in `/sys/class/bdi`; the minor is the number
    /// of its connection in `/sys/fs/fuse/connections`.
    pub device: (u32, u32),
    /// The user who mounted it.
    pub user: u32,
    /// What the kernel keeps of it.
    pub flags: Flags,
}

impl MountPoint {
    /// Whether what is shown there was removed from the file system: it has no path any more.
    #[must_use]
    pub fn is_of_removed(&self) -> bool {
        self.root.as_os_str().as_bytes().ends_with(REMOVED_SUFFIX)
    }

    /// Whether the program that answered for it has ended. Waits for one that is stopped.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        // The kernel may still know attributes of a dead mount; it never keeps what statfs reports.
        rustix::fs::statfs(&self.dir).is_err_and(|errno| errno == Errno::NOTCONN)
    }
}

/// The mounts of ramlace that this process sees, oldest first.
///
/// # Errors
/// When `/proc` is not mounted.
pub fn mounts() -> Result<Vec<MountPoint>> {
    let text = std::fs::read(MOUNTINFO_PATH).map_err(|error| {
        Error::from_io(&error, format_args!("reading {MOUNTINFO_PATH}, which lists the mounts"))
    })?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse_line).collect())
}

/// The newest mount of ramlace on this directory, which must be in the kernel's form: absolute, no symbolic links.
pub fn mount_on(dir: &Path) -> Result<Option<MountPoint>> {
    Ok(mounts()?.into_iter().rfind(|mount| mount.dir == dir))
}

/// `36 35 98:0 /root /dir options optional-fields… - type source super-options`, of a mount of ours.
fn parse_line(line: &[u8]) -> Option<MountPoint> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = fields.nth(2)?;
    let root = fields.next()?;
    let dir = fields.next()?;
    let flags = fields.next()?;
    let mut tail = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, source) = (tail.next()?, tail.next()?);
    if !kind.starts_with(KIND_PREFIX) {
        return None;
    }
    let shared = tail.next()?;
    let user = shared.split(|byte| *byte == b',').find_map(|option| option.strip_prefix(b"user_id="))?;
    let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
    let path = |field| PathBuf::from(OsString::from_vec(unescape(field)));
    Some(MountPoint {
        dir: path(dir),
        root: path(root),
        kind: String::from_utf8_lossy(&unescape(kind)).into_owned(),
        source: String::from_utf8_lossy(&unescape(source)).into_owned(),
        device: (major.parse().ok()?, minor.parse().ok()?),
        user: std::str::from_utf8(user).ok()?.parse().ok()?,
        // What this mount says goes before what all mounts of the file system share.
        flags: Flags::of_lists(&[std::str::from_utf8(shared).ok()?, std::str::from_utf8(flags).ok()?]),
    })
}

/// The kernel writes space, tab, newline, `\` and `#` as `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let code = if *first == b'\\' { tail.get(..3).and_then(octal) } else { None };
        plain.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    plain
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_ours_is_read_whole() {
        let line = br"99 24 0:51 / /tmp/my\040pool\134x rw,nosuid,nodev shared:7 master:1 - fuse.ramlace ramlace:a\040b rw,dirsync,user_id=1000,group_id=4";
        let mount = parse_line(line).unwrap();
        assert_eq!(mount.dir, Path::new(r"/tmp/my pool\x"));
        assert_eq!((mount.root.as_path(), mount.is_of_removed()), (Path::new("/"), false));
        assert_eq!((mount.kind.as_str(), mount.source.as_str()), ("fuse.ramlace", "ramlace:a b"));
        assert_eq!((mount.device, mount.user), ((0, 51), 1000));
        assert_eq!(mount.flags.words(), "nosuid,nodev,dirsync");
    }

    #[test]
    fn of_a_bind_mount_the_directory_that_it_shows_is_known() {
        let rest = "/data rw shared:7 - fuse.ramlace ramlace:lab rw,user_id=0,group_id=0";
        let root = |field: &str| parse_line(format!("99 24 0:51 {field} {rest}").as_bytes()).unwrap();
        let bound = root(r"/my\040proj");
        assert_eq!((bound.root.as_path(), bound.dir.as_path()), (Path::new("/my proj"), Path::new("/data")));
        assert!(!bound.is_of_removed() && !root("/deleted").is_of_removed());
        assert!(root("/proj//deleted").is_of_removed());
    }

    #[test]
    fn other_lines_are_not_ours() {
        for line in [
            &b"24 1 0:22 / /proc rw - proc proc rw"[..],
            b"99 24 0:51 / /x rw - fuse.sshfs host: rw",
            b"99 24 0:51 / /x rw - fuse",
            b"99 24 x / /x rw - fuse.ramlace a rw,user_id=0",
            b"99 24 0:51 / /x rw - fuse.ramlace a rw",
            b"",
            b"- - - - -",
        ] {
            assert_eq!(parse_line(line), None);
        }
    }

    #[test]
    fn escapes_that_are_none_stay() {
        assert_eq!(unescape(br"a\04"), br"a\04");
        assert_eq!(unescape(br"a\999"), br"a\999");
        assert_eq!(unescape(br"\012"), b"\n");
        assert_eq!(unescape(br"\777"), br"\777", "more than a byte");
    }
}
