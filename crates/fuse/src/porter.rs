//! The *porter*: a process that does for the daemon of a mount what the daemon's sandbox does not allow.
//!
//! It is started before the daemon enters its sandbox, for one directory. On request it mounts, starts the guard
//! ([`crate::guard`]), unmounts, and reads from `/proc` in which system call a thread waits and in which groups it is. It
//! does nothing else, whatever the daemon sends. An ordinary user's mounts are made and removed by fusermount3, which is
//! set-user-ID root; the process that starts it must still be able to gain that right, so it cannot be the daemon. The
//! porter reads nothing that programs, the kernel or servers send, and keeps no descriptor of the device.
//!
//! Requests and answers go over a socket pair, one at a time. The porter ends when the daemon's end is closed.

use std::ffi::OsString;
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_sync::Mutex;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::guard::{GuardCommand, pair};
use crate::guarding::stay_when_the_daemon_is_asked_to_end;
use crate::mount::{check_mount_point, mount, unmount_own};
use crate::mounts::{MountPoint, mount_on};
use crate::options::MountOptions;

/// Longest answer: an error's sentence, or as many groups as anybody may be in (256).
const ANSWER_BYTES_MAX: usize = 4096;

/// Guards that were killed while the kernel held them, and are still there.
const GUARDS_ENDING_MAX: usize = 64;

/// The kinds of requests: the first byte of each.
const MOUNT: u8 = b'm';
const GUARD: u8 = b'g';
const UNMOUNT: u8 = b'u';
const DETACH: u8 = b'd';
const SYSCALL: u8 = b'l';
const GROUPS: u8 = b'i';

/// The first byte of an answer.
const DONE: u8 = b'+';
const FAILED: u8 = b'-';

/// The daemon's side. The lock is held for one request and its answer, and no other is taken under it.
pub struct Porter {
    control: Mutex<OwnedFd>,
    /// Ends when the control does.
    _process: Child,
}

impl fmt::Debug for Porter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Porter").finish_non_exhaustive()
    }
}

impl Porter {
    /// Starts the process; the command runs [`run_porter`] with its standard input.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command) -> Result<Porter> {
        let (ours, theirs) = pair()?;
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null());
        let process =
            command.spawn().map_err(|error| Error::from_io(&error, "starting the porter of a mount"))?;
        Ok(Porter { control: Mutex::new(ours), _process: process })
    }

    /// Mounts, and brings the directory in the kernel's form and the descriptor of the connection.
    pub(crate) fn mount(&self) -> Result<(PathBuf, OwnedFd)> {
        let (dir, device) = self.ask(&[MOUNT], None)?;
        let none = || Error::new(ErrorKind::Fatal, "the porter of a mount passed no descriptor");
        Ok((PathBuf::from(OsString::from_vec(dir)), device.ok_or_else(none)?))
    }

    /// Starts a guard with this standard input. One that it has started before is killed.
    pub(crate) fn start_guard(&self, control: &OwnedFd) -> Result<()> {
        self.ask(&[GUARD], Some(control.as_fd())).map(drop)
    }

    /// Takes the mount away; with `detach` also when programs use it.
    ///
    /// # Errors
    /// `NotFound`: it is not there any more. `Busy`: programs use it.
    pub fn unmount(&self, detach: bool) -> Result<()> {
        self.ask(&[if detach { DETACH } else { UNMOUNT }], None).map(drop)
    }

    /// The system call in which a thread waits, as the kernel shows it in `/proc`.
    ///
    /// # Errors
    /// When it is not shown to this user.
    pub fn system_call_of(&self, thread: u32) -> Result<String> {
        let mut request = vec![SYSCALL];
        request.extend_from_slice(&thread.to_le_bytes());
        self.ask(&request, None).map(|(text, _)| String::from_utf8_lossy(&text).into_owned())
    }

    /// In which groups a thread is, as lines of `/proc/PID/status`.
    ///
    /// # Errors
    /// When it is not shown to this user.
    pub fn groups_of(&self, thread: u32) -> Result<String> {
        let mut request = vec![GROUPS];
        request.extend_from_slice(&thread.to_le_bytes());
        self.ask(&request, None).map(|(text, _)| String::from_utf8_lossy(&text).into_owned())
    }

    fn ask(&self, request: &[u8], passed: Option<BorrowedFd<'_>>) -> Result<(Vec<u8>, Option<OwnedFd>)> {
        let gone =
            || Error::new(ErrorKind::Fatal, "the porter of this mount has ended: somebody has killed it");
        let control = self.control.lock();
        send(control.as_fd(), request, passed).map_err(|_| gone())?;
        let mut answer = [0; ANSWER_BYTES_MAX];
        let (count, device) = receive(control.as_fd(), &mut answer).map_err(|_| gone())?;
        let Some((outcome, rest)) = answer[..count].split_first() else { return Err(gone()) };
        match (*outcome, rest) {
            (DONE, rest) => Ok((rest.to_vec(), device)),
            (FAILED, [low, high, text @ ..]) => {
                let kind =
                    ErrorKind::from_number(u16::from_le_bytes([*low, *high])).unwrap_or(ErrorKind::Fatal);
                Err(Error::new(kind, String::from_utf8_lossy(text).into_owned()))
            }
            _ => Err(gone()),
        }
    }
}

/// Serves as the porter of a mount on `dir` until its daemon ends.
///
/// # Errors
/// When this is no socket of a daemon.
pub fn run_porter(control: impl AsFd, dir: &Path, options: &MountOptions, guard: GuardCommand) -> Result<()> {
    stay_when_the_daemon_is_asked_to_end();
    let options = &options.within_limits();
    let mut desk =
        Desk { dir, options, guard, guarding: None, ending: Vec::new(), mounted: None, is_served: false };
    let mut request = [0; 8];
    loop {
        let (count, passed) = receive(control.as_fd(), &mut request)
            .map_err(|errno| Error::from_io(&errno.into(), "hearing the daemon of a mount"))?;
        let Some((what, rest)) = request[..count].split_first() else { return Ok(()) };
        let answer = desk.answer(*what, rest, passed);
        let (bytes, device) = match answer {
            Ok((rest, device)) => ([&[DONE], &rest[..]].concat(), device),
            Err(error) => {
                let kind = error.kind().number().to_le_bytes();
                ([&[FAILED], &kind[..], error.message().as_bytes()].concat(), None)
            }
        };
        let bytes = &bytes[..bytes.len().min(ANSWER_BYTES_MAX)];
        // A failed send means that the daemon has ended; the next receive finds that out and ends this loop.
        let _ = send(control.as_fd(), bytes, device.as_ref().map(AsFd::as_fd));
    }
}

impl Drop for Desk<'_> {
    /// The daemon has ended. If it requested nothing after the mount, it never served it: the mount is removed, or programs
    /// would hang on it.
    fn drop(&mut self) {
        if let Some(mounted) = self.mounted.as_ref().filter(|_| !self.is_served) {
            let _ = unmount_own(mounted, true);
        }
    }
}

/// The porter's state.
struct Desk<'options> {
    dir: &'options Path,
    options: &'options MountOptions,
    guard: GuardCommand,
    guarding: Option<Child>,
    /// Guards that were killed, and are there until the drops that they are in come back.
    ending: Vec<Child>,
    mounted: Option<MountPoint>,
    /// The daemon has received the mount, and has made another request since.
    is_served: bool,
}

impl Desk<'_> {
    fn answer(
        &mut self,
        what: u8,
        rest: &[u8],
        passed: Option<OwnedFd>,
    ) -> Result<(Vec<u8>, Option<OwnedFd>)> {
        let done = |()| (Vec::new(), None);
        self.is_served = self.mounted.is_some();
        match (what, passed) {
            (MOUNT, None) if self.mounted.is_none() => {
                let dir = check_mount_point(self.dir, self.options)?;
                let device = mount(&dir, self.options)?;
                self.mounted = mount_on(&dir)?;
                Ok((dir.into_os_string().into_vec(), Some(device)))
            }
            (GUARD, Some(control)) => self.start_guard(control).map(done),
            (UNMOUNT | DETACH, None) => match &self.mounted {
                Some(mounted) => unmount_own(mounted, what == DETACH).map(done),
                None => Err(Error::new(ErrorKind::NotFound, "nothing is mounted yet")),
            },
            (SYSCALL, None) => read_of(rest, "syscall").map(|text| (text, None)),
            (GROUPS, None) => {
                let status = read_of(rest, "status")?;
                let lines = status.split_inclusive(|byte| *byte == b'\n');
                let told = lines.filter(|line| IDENTITY.iter().any(|word| line.starts_with(word)));
                Ok((told.collect::<Vec<_>>().concat(), None))
            }
            _ => Err(unasked()),
        }
    }

    fn start_guard(&mut self, control: OwnedFd) -> Result<()> {
        // Not waited for: a thread of it may be in a drop, and what this mount does next may be what that waits for. It runs
        // nothing of its own any more.
        if let Some(mut before) = self.guarding.take() {
            let _ = before.kill();
            self.ending.push(before);
        }
        self.ending.retain_mut(|before| !matches!(before.try_wait(), Ok(Some(_))));
        if self.ending.len() >= GUARDS_ENDING_MAX {
            let text = format!("{GUARDS_ENDING_MAX} guards of this mount were killed and have not ended yet");
            return Err(Error::new(ErrorKind::TooMany, text));
        }
        let mut command = (self.guard)();
        command.stdin(Stdio::from(control)).stdout(Stdio::null());
        let child =
            command.spawn().map_err(|error| Error::from_io(&error, "starting the guard of a mount"))?;
        self.guarding = Some(child);
        Ok(())
    }
}

/// The lines of a thread's status that say as which user it runs; the porter passes on no others.
const IDENTITY: [&[u8]; 3] = [b"Uid:", b"Gid:", b"Groups:"];

/// What `/proc` has of the thread that a request names.
fn read_of(request: &[u8], name: &str) -> Result<Vec<u8>> {
    let thread = request.try_into().map(u32::from_le_bytes).map_err(|_| unasked())?;
    let path = format!("/proc/{thread}/{name}");
    std::fs::read(&path).map_err(|error| Error::from_io(&error, &path))
}

fn unasked() -> Error {
    Error::new(ErrorKind::Invalid, "this is nothing that the porter of a mount is asked")
}

fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    passed: Option<BorrowedFd<'_>>,
) -> std::result::Result<(), Errno> {
    let descriptors: Vec<BorrowedFd<'_>> = passed.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> std::result::Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(bytes)];
    let received =
        rustix::io::retry_on_intr(|| recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC))?;
    let passed = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((received.bytes, passed))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A porter that is a thread of this process.
    fn served(dir: &'static str) -> (Porter, std::thread::JoinHandle<Result<()>>) {
        let (ours, theirs) = pair().unwrap();
        let runs = std::thread::spawn(move || {
            let options = MountOptions::default();
            run_porter(theirs, Path::new(dir), &options, Box::new(|| Command::new("true")))
        });
        let process = Command::new("true").spawn().unwrap();
        (Porter { control: Mutex::new(ours), _process: process }, runs)
    }

    #[test]
    fn what_goes_wrong_is_said_with_its_kind_and_the_porter_goes_on() {
        let (porter, runs) = served("/there/is/no/such/directory");
        for _ in 0..2 {
            assert_eq!(porter.mount().unwrap_err().kind(), ErrorKind::NotFound);
            assert_eq!(porter.unmount(true).unwrap_err().kind(), ErrorKind::NotFound);
            assert_eq!(porter.ask(b"?", None).unwrap_err().kind(), ErrorKind::Invalid);
        }
        drop(porter);
        runs.join().unwrap().unwrap();
    }

    #[test]
    fn it_shows_in_which_call_a_thread_waits_and_starts_guards() {
        let (porter, runs) = served("/");
        assert_eq!(porter.system_call_of(std::process::id()).unwrap().lines().count(), 1);
        let told = porter.groups_of(std::process::id()).unwrap();
        let words: Vec<&str> = told.lines().filter_map(|line| line.split(':').next()).collect();
        assert_eq!(words, ["Uid", "Gid", "Groups"], "nothing but who it is");
        assert!(porter.groups_of(u32::MAX).is_err());
        for _ in 0..2 {
            porter.start_guard(&pair().unwrap().0).unwrap();
        }
        drop(porter);
        runs.join().unwrap().unwrap();
    }
}
