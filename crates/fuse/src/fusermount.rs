//! Mounting and unmounting with the help of fusermount3, which may do both for ordinary users.

use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use ramlace_base::{Error, ErrorKind, Result};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// The program, found in the PATH.
const PROGRAM: &str = "fusermount3";
/// The variable that says on which descriptor it is to answer.
const ANSWER_VARIABLE: &str = "_FUSE_COMMFD";
/// Its own words that we keep, at most.
const WORDS_BYTES_MAX: u64 = 4096;

/// Mounts and brings the descriptor of the connection.
pub fn mount(dir: &Path, options: &str) -> Result<OwnedFd> {
    let failed = |error: &std::io::Error| Error::from_io(error, "making a pair of sockets for fusermount3");
    let (ours, theirs) = UnixStream::pair().map_err(|error| failed(&error))?;
    let mut command = Command::new(PROGRAM);
    // Its standard input is the socket: the one descriptor that a child gets without further ado.
    command.args(["-o", options, "--"]).arg(dir).env(ANSWER_VARIABLE, "0").stdin(OwnedFd::from(theirs));
    let words = run(&mut command, &format!("mounting {}", dir.display()))?;
    drop(command);
    receive(&ours).ok_or_else(|| {
        let dir = dir.display();
        Error::new(ErrorKind::Fatal, format!("{PROGRAM} mounted {dir} and passed no descriptor {words}"))
    })
}

/// Unmounts; `detach` also when programs still use it.
pub fn unmount(dir: &Path, detach: bool) -> Result<()> {
    let mut command = Command::new(PROGRAM);
    command.args(if detach { &["-u", "-z", "--"][..] } else { &["-u", "--"] }).arg(dir).stdin(Stdio::null());
    run(&mut command, &format!("unmounting {}", dir.display())).map(drop)
}

/// Runs it; its words are the error, or the answer.
fn run(command: &mut Command, doing: &str) -> Result<String> {
    command.stdout(Stdio::null()).stderr(Stdio::piped()).env("LC_ALL", "C");
    let mut child = command.spawn().map_err(|error| missing(&error, doing))?;
    let mut words = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        // What cannot be read is only missing in the message.
        let _ = stderr.take(WORDS_BYTES_MAX).read_to_end(&mut words);
    }
    let status =
        child.wait().map_err(|error| Error::from_io(&error, format_args!("waiting for {PROGRAM}")))?;
    let words = String::from_utf8_lossy(&words).trim().to_owned();
    if status.success() { Ok(words) } else { Err(explain(&words, doing)) }
}

fn missing(error: &std::io::Error, doing: &str) -> Error {
    if error.kind() == std::io::ErrorKind::NotFound {
        let message = format!("{doing}: {PROGRAM} is not installed; Debian's package fuse3 has it");
        return Error::new(ErrorKind::Unsupported, message);
    }
    Error::from_io(error, format_args!("{doing}: starting {PROGRAM}"))
}

/// The next step for what fusermount3 says.
fn explain(words: &str, doing: &str) -> Error {
    let (kind, step) = if words.contains("user_allow_other") {
        (
            ErrorKind::Denied,
            "; let root add the line `user_allow_other` to /etc/fuse.conf, or mount for yourself alone",
        )
    } else if words.contains("failed to open /dev/fuse: Permission denied") {
        (
            ErrorKind::NotPermitted,
            "; let root open the device to everybody (`chmod 666 /dev/fuse`), as Debian does",
        )
    } else if words.contains("/dev/fuse") || words.contains("fuse device not found") {
        (
            ErrorKind::Unsupported,
            "; let root load the module (`modprobe fuse`) or, in a container, pass /dev/fuse in",
        )
    } else if words.contains("busy") {
        (ErrorKind::Busy, "; programs still use it: end them, or unmount it lazily")
    } else if words.contains("not mounted") || words.contains("not found in") {
        (ErrorKind::NotFound, "; `mount` lists what is mounted")
    } else if words.contains("no write access") || words.contains("user has no") {
        (ErrorKind::Denied, "; choose a directory of your own")
    } else if words.contains("not permitted") || words.contains("denied") {
        (ErrorKind::NotPermitted, "; fusermount3 must be set-user-id root, and mounting allowed here")
    } else {
        (ErrorKind::Fatal, "")
    };
    Error::new(kind, format!("{doing}: {words}{step}"))
}

/// The descriptor that the socket brings.
fn receive(socket: &UnixStream) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    let mut parts = [std::io::IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fusermount_says_gets_a_next_step() {
        let conf =
            "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf";
        let error = explain(conf, "mounting /x");
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.message().contains("let root add the line"));
        let busy = explain("fusermount3: failed to unmount /x: Device or resource busy", "unmounting /x");
        assert_eq!(busy.kind(), ErrorKind::Busy);
    }
}
