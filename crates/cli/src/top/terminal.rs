//! The terminal as a page: every key at once, nothing scrolls, and all as it was afterwards.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::Duration;

use ramlace_base::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

use super::page::{Line, Style};
use crate::failure::Done;
use crate::interrupt::Interrupt;
use crate::output::{Output, say_line};

/// The other screen without a cursor, and back.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";
/// The assumed size of a window that does not report its size.
const SIZE_USUAL: (usize, usize) = (80, 24);

/// The key, and the first byte of arrows and the like.
pub const ESCAPE: u8 = 0x1b;

/// What came while nothing was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A key that is one byte.
    Key(u8),
    /// Ctrl-C, SIGTERM, SIGHUP, or a terminal that has gone.
    End,
    /// Nothing.
    Nothing,
}

/// The terminal, changed; it is changed back when this is dropped.
pub struct Terminal {
    before: Termios,
    interrupt: Interrupt,
}

impl Terminal {
    /// Whether there is a terminal to read from and to type on.
    pub fn is_there() -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    /// Takes the terminal.
    pub fn open(output: &mut Output) -> Done<Terminal> {
        let interrupt = Interrupt::catch()?;
        let before = tcgetattr(io::stdin()).map_err(told)?;
        let mut now = before.clone();
        now.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        // A stopped program would leave the terminal changed; 0 is no key at all.
        now.special_codes[SpecialCodeIndex::VSUSP] = 0;
        now.special_codes[SpecialCodeIndex::VMIN] = 1;
        now.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Now, &now).map_err(told)?;
        let terminal = Terminal { before, interrupt };
        output.bytes(ENTER)?;
        output.flush()?;
        Ok(terminal)
    }

    /// Columns and lines.
    pub fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => SIZE_USUAL,
        }
    }

    /// Draws a page of exactly the screen's size.
    pub fn draw(&self, lines: &[Line], output: &mut Output) -> Done {
        let mut bytes = b"\x1b[H".to_vec();
        for (index, line) in lines.iter().enumerate() {
            if index > 0 {
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(style_code(line.style));
            bytes.extend_from_slice(line.text.as_bytes());
            bytes.extend_from_slice(b"\x1b[0m\x1b[K");
        }
        bytes.extend_from_slice(b"\x1b[J");
        output.bytes(&bytes)?;
        output.flush()
    }

    /// Waits for a key or a signal.
    pub fn wait(&self, patience: Duration) -> Result<Input> {
        let stdin = io::stdin();
        let timeout = Timespec::try_from(patience).expect("a moment fits");
        let mut waited = [
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::from_borrowed_fd(self.interrupt.fd(), PollFlags::IN),
        ];
        match poll(&mut waited, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Input::Nothing),
            Ok(_) => {}
            Err(errno) => return Err(told(errno)),
        }
        if !waited[1].revents().is_empty() {
            return Ok(Input::End);
        }
        let mut key = [0];
        // Unbuffered: what is left in a buffer would not wake the poll.
        match rustix::io::read(stdin.as_fd(), &mut key) {
            // An arrow or the like begins as Escape does, and has more behind it: none of them means anything.
            Ok(1..) if key[0] == ESCAPE && swallow_rest() => Ok(Input::Nothing),
            Ok(1..) => Ok(Input::Key(key[0])),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(Input::Nothing),
            Ok(0) | Err(_) => Ok(Input::End),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Standard output is locked by this thread, which may lock it again; it may be gone as well.
        let _ =
            io::Write::write_all(&mut io::stdout(), LEAVE).and_then(|()| io::Write::flush(&mut io::stdout()));
        if let Err(errno) = tcsetattr(io::stdin(), OptionalActions::Flush, &self.before) {
            say_line(&format!("ramlace: the terminal could not be set back ({errno}); 'stty sane' does it"));
        }
    }
}

/// Takes what an arrow and the like have behind their Escape, and no key after it: `[`, numbers and a letter, or
/// one letter, perhaps behind an `O`. Says whether there was anything.
fn swallow_rest() -> bool {
    let Some(first) = typed_already() else { return false };
    if first == b'O' {
        typed_already();
    } else if first == b'[' {
        while typed_already().is_some_and(|byte| !(0x40..=0x7e).contains(&byte)) {}
    }
    true
}

/// The next byte, if it is there.
fn typed_already() -> Option<u8> {
    let (stdin, now, mut byte) = (io::stdin(), Timespec { tv_sec: 0, tv_nsec: 0 }, [0]);
    let is_there = matches!(poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&now)), Ok(1..));
    (is_there && matches!(rustix::io::read(stdin.as_fd(), &mut byte), Ok(1..))).then_some(byte[0])
}

fn style_code(style: Style) -> &'static [u8] {
    match style {
        Style::Plain => b"",
        Style::Bold => b"\x1b[1m",
        Style::Inverse => b"\x1b[7m",
        Style::Bad => b"\x1b[1;31m",
        Style::Dim => b"\x1b[2m",
    }
}

fn told(errno: rustix::io::Errno) -> Error {
    Error::from_io(&errno.into(), "talking to the terminal")
}
