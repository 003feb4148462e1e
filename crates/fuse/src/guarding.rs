//! The guard's side: the process that writes the daemon's notifications to the device, and survives the daemon for a moment.
//!
//! It receives the device, and then lines, from the daemon by a socket ([`crate::guard`]), and opens no file. When the
//! daemon is gone, it answers `EIO` to every request that is queued or still comes: a drop may wait for pages that such a
//! request holds. When no drop is left it ends, and the kernel ends the connection.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_sync::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use zerocopy::IntoBytes;

use crate::abi::OutHeader;
use crate::become_io_flusher;
use crate::buffer::RequestBuffer;
use crate::decode::{Body, decode};
use crate::device::Device;
use crate::guard::MESSAGE_BYTES_MAX;

/// Enough for a loop that makes system calls.
const STACK_BYTES: usize = 128 << 10;
/// What asks the daemon, and with it all of its group, to end.
const NOT_FOR_A_GUARD: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// How many notifications are being written.
#[derive(Default)]
struct Telling {
    count: usize,
    /// The daemon has gone: nothing more is begun.
    over: bool,
}

/// What all threads share.
struct Shared {
    device: Device,
    telling: Mutex<Telling>,
    /// None is being written any more.
    quiet: Condvar,
    /// The daemon has gone.
    ended: Condvar,
}

/// Serves as the guard of a mount until its daemon ends. `enter_sandbox` is called before the first byte is read, in a process
/// that leads a group of its own.
///
/// # Errors
/// When this is no socket of a daemon.
pub fn run_guard(control: impl AsFd, enter_sandbox: impl FnOnce()) -> Result<()> {
    let _ = become_io_flusher();
    allow_many_descriptors();
    stay_when_the_daemon_is_asked_to_end();
    enter_sandbox();
    serve(control.as_fd())
}

/// Each line is one: a shell's programs may have fewer than there are threads that wait for the kernel.
fn allow_many_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

pub fn stay_when_the_daemon_is_asked_to_end() {
    // It fails where this process leads a group already.
    let _ = rustix::process::setsid();
    for signal in NOT_FOR_A_GUARD {
        // SAFETY: to ignore a signal needs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Returns when the daemon has gone and no notification is being written any more.
fn serve(control: BorrowedFd<'_>) -> Result<()> {
    let mut bytes = [0; 8];
    let Received::Descriptor(device) = receive(control, &mut bytes) else {
        return Err(Error::new(ErrorKind::Invalid, "a guard is started by the daemon of a mount alone"));
    };
    let shared = Arc::new(Shared {
        device: Device::new(device),
        telling: Mutex::default(),
        quiet: Condvar::new(),
        ended: Condvar::new(),
    });
    let mut buffer = RequestBuffer::new(usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(1 << 20))?;
    // Before it is needed: later there may be no room for a thread, and drops would wait for ever.
    let refusing = shared.clone();
    thread("refuser", move || {
        if refusing.await_end() {
            refusing.refuse(&mut buffer);
        }
    })
    .map_err(|error| Error::from_io(&error, "starting the thread that refuses requests"))?;
    loop {
        match receive(control, &mut [0]) {
            // If no thread can be started, the line is closed, which the daemon sees.
            Received::Descriptor(line) => {
                let shared = shared.clone();
                let _ = thread("line", move || shared.listen(&line));
            }
            // So it is where this process may have no more descriptors.
            Received::Nothing => {}
            Received::End => break,
        }
    }
    shared.end();
    shared.await_quiet();
    Ok(())
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.into()).stack_size(STACK_BYTES).spawn(run).map(drop)
}

/// What the daemon sends.
enum Received {
    Descriptor(OwnedFd),
    /// A message without a descriptor: the kernel has closed it, because this process had as many as it may have.
    Nothing,
    /// The daemon has ended.
    End,
}

fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Received {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(bytes)];
    let read =
        rustix::io::retry_on_intr(|| recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC));
    match read {
        Ok(message) if message.bytes > 0 => {}
        Ok(_) | Err(_) => return Received::End,
    }
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.map_or(Received::Nothing, Received::Descriptor)
}

impl Shared {
    /// Writes the notifications that arrive on one line, one after the other.
    fn listen(&self, line: &OwnedFd) {
        let mut message = [0; MESSAGE_BYTES_MAX];
        loop {
            let read = rustix::io::retry_on_intr(|| rustix::io::read(line, &mut message));
            let Ok(bytes @ 1..) = read else { return };
            {
                let mut telling = self.lock();
                if telling.over {
                    return;
                }
                telling.count += 1;
            }
            let message = &message[..bytes];
            let told = match bytes_nowhere(message) {
                0 => self.device.write(&[IoSlice::new(message)]),
                more => self.device.write_head(message, more),
            };
            let number = told.map_or_else(Errno::raw_os_error, |()| 0);
            let _ = rustix::net::send(line, &number.to_le_bytes(), SendFlags::NOSIGNAL);
            self.lock().count -= 1;
            self.quiet.notify_all();
        }
    }

    /// From now on no notification is begun.
    fn end(&self) {
        self.lock().over = true;
        self.ended.notify_all();
    }

    /// Waits until the daemon has gone. Returns whether a notification is being written then.
    fn await_end(&self) -> bool {
        let mut telling = self.lock();
        while !telling.over {
            telling = self.ended.wait(telling);
        }
        telling.count > 0
    }

    fn await_quiet(&self) {
        let mut telling = self.lock();
        while telling.count > 0 {
            telling = self.quiet.wait(telling);
        }
    }

    /// Refuses every request of the kernel until the mount is gone.
    fn refuse(&self, buffer: &mut RequestBuffer) {
        loop {
            match self.device.read(buffer.as_mut()) {
                Ok(bytes @ 1..) => self.refuse_one(&buffer.as_mut()[..bytes]),
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Ok(0) | Err(_) => return,
            }
        }
    }

    fn refuse_one(&self, request: &[u8]) {
        let unique = match decode(request) {
            Ok(message) => match message.body {
                Body::Forget { .. } | Body::BatchForget(_) | Body::Interrupt { .. } | Body::NotifyReply => {
                    return;
                }
                _ => message.unique,
            },
            Err(malformed) => match malformed.unique {
                Some(unique) => unique,
                None => return,
            },
        };
        let header = OutHeader { len: size_of::<OutHeader>() as u32, error: -libc::EIO, unique };
        // The program that made the request may have been killed meanwhile.
        let _ = self.device.write(&[IoSlice::new(header.as_bytes())]);
    }

    fn lock(&self) -> MutexGuard<'_, Telling> {
        self.telling.lock()
    }
}

/// How many bytes a message lacks of the length in its header, if it is one without its end ([`Device::write_head`]).
fn bytes_nowhere(message: &[u8]) -> usize {
    let said = message.first_chunk().map_or(0, |len| u32::from_le_bytes(*len) as usize);
    let more = said.saturating_sub(message.len());
    // The first pages of a process are not mapped.
    if message.len() > size_of::<OutHeader>() && more <= 2 * rustix::param::page_size() { more } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::thread::{JoinHandle, spawn};

    use super::*;
    use crate::abi::{InHeader, opcode};
    use crate::guard::{pair, pass};

    /// A guard whose device is a socket: the other end is the kernel.
    struct Guarded {
        kernel: OwnedFd,
        daemon: OwnedFd,
        runs: JoinHandle<Result<()>>,
    }

    fn guarded() -> Guarded {
        let (kernel, device) = pair().unwrap();
        let (daemon, control) = pair().unwrap();
        pass(&daemon, &4096_u64.to_le_bytes(), &device).unwrap();
        Guarded { kernel, daemon, runs: spawn(move || serve(control.as_fd())) }
    }

    impl Guarded {
        fn line(&self) -> OwnedFd {
            let (ours, theirs) = pair().unwrap();
            pass(&self.daemon, &[0], &theirs).unwrap();
            ours
        }
    }

    fn read(from: &OwnedFd) -> Vec<u8> {
        let mut bytes = [0; 256];
        let count = rustix::io::read(from, &mut bytes).unwrap();
        bytes[..count].to_vec()
    }

    fn request(opcode: u32, unique: u64) -> Vec<u8> {
        let header = InHeader { len: size_of::<InHeader>() as u32, opcode, unique, ..Default::default() };
        header.as_bytes().to_vec()
    }

    #[test]
    fn what_the_daemon_says_reaches_the_kernel_and_the_answer_comes_back() {
        let guarded = guarded();
        let lines = [guarded.line(), guarded.line()];
        for (line, words) in lines.iter().zip(["one", "other"]) {
            rustix::io::write(line, words.as_bytes()).unwrap();
            assert_eq!(read(&guarded.kernel), words.as_bytes());
            assert_eq!(read(line), 0_i32.to_le_bytes());
        }
        drop(guarded.daemon);
        guarded.runs.join().unwrap().unwrap();
    }

    // SEMANTICS 114.4
    #[test]
    fn of_a_message_whose_last_byte_lies_nowhere_the_kernel_sees_that() {
        let guarded = guarded();
        let line = guarded.line();
        let header = OutHeader { len: size_of::<OutHeader>() as u32 + 9, ..Default::default() };
        let message = [header.as_bytes(), &[7; 8]].concat();
        rustix::io::write(&line, &message).unwrap();
        // A device reads what is there first; a socket takes no part of it.
        assert_eq!(read(&line), libc::EFAULT.to_le_bytes());
        rustix::io::write(&line, &message[1..]).unwrap();
        assert_eq!(read(&guarded.kernel), message[1..]);
        drop(guarded.daemon);
        guarded.runs.join().unwrap().unwrap();
    }

    // SEMANTICS 120.5
    #[test]
    fn a_line_that_does_not_arrive_is_not_the_daemons_end() {
        let guarded = guarded();
        let line = guarded.line();
        // So it is where the guard has as many descriptors as it may have.
        rustix::io::write(&guarded.daemon, &[0]).unwrap();
        rustix::io::write(&line, b"words").unwrap();
        assert_eq!(read(&guarded.kernel), b"words");
        assert_eq!(read(&line), 0_i32.to_le_bytes());
        let late = guarded.line();
        rustix::io::write(&late, b"later").unwrap();
        assert_eq!(read(&guarded.kernel), b"later");
        drop(guarded.daemon);
        guarded.runs.join().unwrap().unwrap();
    }

    #[test]
    fn who_is_started_by_nobody_says_so() {
        let (_, nobody) = pair().unwrap();
        assert_eq!(serve(nobody.as_fd()).unwrap_err().kind(), ErrorKind::Invalid);
    }

    // SEMANTICS 120.1
    #[test]
    fn requests_that_nobody_answers_any_more_are_refused() {
        let (kernel, device) = pair().unwrap();
        let shared = Arc::new(Shared {
            device: Device::new(device),
            telling: Mutex::new(Telling { count: 1, over: false }),
            quiet: Condvar::new(),
            ended: Condvar::new(),
        });
        let refuser = spawn(move || shared.refuse(&mut RequestBuffer::new(4096).unwrap()));
        for (opcode, unique, is_answered) in [
            (opcode::FORGET, 0, false),
            (opcode::GETATTR, 4, true),
            (opcode::INTERRUPT, 5, false),
            (9_999, 8, true),
        ] {
            rustix::io::write(&kernel, &request(opcode, unique)).unwrap();
            if is_answered {
                let expected = OutHeader { len: 16, error: -libc::EIO, unique };
                assert_eq!(read(&kernel), expected.as_bytes());
            }
        }
        drop(kernel);
        refuser.join().unwrap();
    }
}
