//! `top`: once, for programs, and live on a terminal of its own.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Home, kill, noise};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

#[test]
fn once_it_prints_a_table() {
    let home = Home::with_pool(2, "64MiB");
    home.run_with(["cp", "-", "ramlace:/f"], &noise(6 << 20)).good();
    // Standard output is no terminal, so both are the same.
    for words in [&["top", "--once", "--interval", "200"][..], &["top", "--interval", "200"]] {
        let text = home.run(words).good().text();
        assert!(text.contains("Pool 'default', epoch") && text.contains("2 of 2 servers answer"), "{text}");
        assert!(text.contains("Not mounted on this machine") && text.contains("SERVER*"), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    }
    assert_eq!(home.run(["top", "--interval", "1"]).code, Some(2));
    Home::new().run(["top", "--once"]).bad(&["no pool 'default'", "ramlace up"]);
}

#[test]
fn programs_are_told_rates() {
    let home = Home::with_pool(2, "64MiB");
    let writer = home.write("noise", &noise(1 << 20));
    let mut top = home
        .command()
        .args(["top", "--json", "--interval", "2000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Written all the while that it measures.
    let mut number = 0;
    while top.try_wait().unwrap().is_none() {
        number += 1;
        home.run(["cp", writer.to_str().unwrap(), &format!("ramlace:/f{}", number % 8)]);
    }
    let mut text = String::new();
    top.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&json["healthy"], &json["pool"]), (&true.into(), &"default".into()));
    assert_eq!(json["total_bytes"], 64 << 20);
    let rate = |key: &str| json[key].as_f64().unwrap();
    assert!(rate("operations_per_second") > 0.0 && rate("written_bytes_per_second") > 0.0, "{json}");
    let servers = json["servers"].as_array().unwrap();
    assert_eq!(servers.len(), 2);
    let sum: f64 = servers.iter().map(|server| server["operations_per_second"].as_f64().unwrap()).sum();
    assert!((sum - rate("operations_per_second")).abs() < 1e-6, "{json}");
}

#[test]
fn programs_are_told_what_servers_are_asked() {
    let home = Home::with_pool(2, "64MiB");
    home.run_with(["cp", "-", "ramlace:/f"], &noise(1 << 20)).good();
    let mut top = home
        .command()
        .args(["top", "--messages", "--json", "--interval", "2000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Asked all the while that it measures; what is not there is an error of its message.
    while top.try_wait().unwrap().is_none() {
        assert_eq!(home.run(["stat", "ramlace:/nothing"]).code, Some(1));
    }
    let mut text = String::new();
    top.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let messages = json["messages"].as_array().unwrap();
    let rates: Vec<f64> = messages.iter().map(|one| one["calls_per_second"].as_f64().unwrap()).collect();
    assert!(rates.is_sorted_by(|one, other| one >= other), "the busiest first: {rates:?}");
    let failed: Vec<_> =
        messages.iter().filter(|one| one["errors_per_second"].as_f64().unwrap() > 0.0).collect();
    assert_eq!(failed.len(), 1, "{json}");
    let stat = failed[0];
    assert!(stat["errors_per_second"].as_f64() <= stat["calls_per_second"].as_f64(), "{stat}");
    assert!(stat["p50_micros_max"].as_u64().unwrap() <= stat["p99_micros_max"].as_u64().unwrap(), "{stat}");
    let text = home.run(["top", "--messages", "--once", "--interval", "100"]).good().text();
    assert!(text.starts_with("MESSAGE ") && text.contains(stat["message"].as_str().unwrap()), "{text}");
    assert_eq!(home.run(["top", "--messages", "--clients"]).code, Some(2));
}

#[test]
fn a_silent_server_is_shown_and_makes_it_fail() {
    let home = Home::with_pool(2, "64MiB");
    let server = home.status()["servers"][1].clone();
    kill(server["supervisor_pid"].as_u64().unwrap());
    kill(server["pid"].as_u64().unwrap());
    let done = home.run(["top", "--once", "--interval", "100"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    let text = done.text();
    for words in ["1 of 2 servers answers", "not answering for", "server 1 at ", " does not answer: "] {
        assert!(text.contains(words), "{text}");
    }
    let json = home.run(["top", "--json", "--interval", "100"]).json();
    assert_eq!(
        (&json["servers"][0]["state"], &json["servers"][1]["state"]),
        (&"up".into(), &"not answering".into())
    );
    // Of messages, the servers that answer are shown.
    let done = home.run(["top", "--messages", "--json", "--interval", "100"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(!done.json()["messages"].as_array().unwrap().is_empty());
}

/// `top` on a pseudo-terminal, and all that it has drawn.
struct Screen {
    control: File,
    terminal: OwnedFd,
    child: Child,
    drawn: String,
}

impl Screen {
    fn new(home: &Home, columns: u16, lines: u16, words: &[&str]) -> Screen {
        let (control, terminal) = pseudo_terminal();
        resize(&terminal, columns, lines);
        let side = || Stdio::from(terminal.try_clone().unwrap());
        let mut command: Command = home.command();
        let command = command.args(["top", "--interval", "100"]).args(words);
        let child = command.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
        Screen { control, terminal, child, drawn: String::new() }
    }

    /// Reads until this has been drawn since the last time.
    fn until(&mut self, words: &str) {
        let mut bytes = [0; 4096];
        let end = Instant::now() + Duration::from_secs(30);
        while !self.drawn.contains(words) {
            assert!(Instant::now() < end, "'{words}' was never drawn, but: {:?}", self.drawn);
            wait_readable(&self.control, words, &self.drawn);
            let count = self.control.read(&mut bytes).unwrap();
            self.drawn.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        let at = self.drawn.find(words).unwrap() + words.len();
        self.drawn.drain(..at);
    }

    fn press(&mut self, keys: &[u8]) {
        self.control.write_all(keys).unwrap();
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.terminal).unwrap().local_modes.contains(LocalModes::ICANON)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both ends, neither inherited by programs.
fn pseudo_terminal() -> (File, OwnedFd) {
    let mut options = File::options();
    let control = options.read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/ptmx").unwrap();
    let locked: libc::c_int = 0;
    // SAFETY: TIOCSPTLCK reads one int.
    let unlocked = unsafe { libc::ioctl(control.as_raw_fd(), libc::TIOCSPTLCK, &raw const locked) };
    assert_eq!(unlocked, 0, "{}", std::io::Error::last_os_error());
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: TIOCGPTPEER takes flags and returns a new descriptor, or -1.
    let terminal = unsafe { libc::ioctl(control.as_raw_fd(), libc::TIOCGPTPEER, flags) };
    assert!(terminal >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new, and nothing else owns it.
    (control, unsafe { OwnedFd::from_raw_fd(terminal) })
}

fn resize(terminal: &OwnedFd, columns: u16, lines: u16) {
    tcsetwinsize(terminal, Winsize { ws_col: columns, ws_row: lines, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

/// A test that waits for what never comes says so instead of hanging.
fn wait_readable(control: &File, words: &str, drawn: &str) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let patience = Timespec::try_from(Duration::from_secs(30)).unwrap();
    let ready = poll(&mut [PollFd::new(control, PollFlags::IN)], Some(&patience)).unwrap();
    assert!(ready > 0, "'{words}' was never drawn, but: {drawn:?}");
}

#[test]
fn on_a_terminal_it_is_live_until_q() {
    let home = Home::with_pool(2, "64MiB");
    let mut screen = Screen::new(&home, 120, 20, &[]);
    screen.until("\x1b[?1049h");
    screen.until("Pool 'default'");
    screen.until("2 of 2 servers answer");
    screen.until("q quit   s sort (by number)");
    assert!(screen.is_raw());
    screen.press(b"s");
    screen.until("s sort (by fill)");
    // An arrow is no Escape.
    screen.press(b"\x1b[A");
    screen.press(b"?");
    screen.until("pause, and go on");
    screen.press(b"?");
    screen.until("SERVER");
    screen.press(b"p");
    screen.until("PAUSED");
    screen.press(b"p");
    // A server dies: the view continues and says so.
    let server = home.status()["servers"][1].clone();
    kill(server["supervisor_pid"].as_u64().unwrap());
    kill(server["pid"].as_u64().unwrap());
    screen.until("1 of 2 servers answers");
    screen.until("not answering for");
    resize(&screen.terminal, 40, 7);
    screen.until("more; a taller window");
    screen.press(b"q");
    screen.until("\x1b[?1049l");
    assert_eq!(screen.child.wait().unwrap().code(), Some(0));
    assert!(!screen.is_raw(), "the terminal is as it was");
}

#[test]
fn keys_lead_from_servers_to_messages_and_clients() {
    let home = Home::with_pool(1, "64MiB");
    let mut screen = Screen::new(&home, 140, 60, &["--messages"]);
    screen.until("calls/s, ");
    screen.until("MESSAGE ");
    // Its own requests are counted as those of others are.
    screen.until("GetMetrics");
    screen.until("s sort (by calls)   p pause   c clients   m servers");
    screen.press(b"s");
    screen.until("s sort (by p99)");
    screen.press(b"p");
    screen.until("PAUSED");
    screen.press(b"c");
    screen.until("1 client");
    screen.until("SESSION ");
    screen.until("c servers   m messages");
    screen.press(b"c");
    screen.until("1 of 1 server answers");
    screen.press(b"m");
    screen.until("s sort (by p99)   p pause   c clients   m servers");
    // A server that dies is named here, too, and the keys go on.
    let server = home.status()["servers"][0].clone();
    kill(server["supervisor_pid"].as_u64().unwrap());
    kill(server["pid"].as_u64().unwrap());
    screen.until("answer");
    screen.press(b"q");
    screen.until("\x1b[?1049l");
    assert_eq!(screen.child.wait().unwrap().code(), Some(0));
    assert!(!screen.is_raw());
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let home = Home::with_pool(1, "64MiB");
    let mut screen = Screen::new(&home, 100, 20, &[]);
    screen.until("1 of 1 server answers");
    assert!(screen.is_raw());
    let process = rustix::process::Pid::from_child(&screen.child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    screen.until("\x1b[?1049l");
    assert_eq!(screen.child.wait().unwrap().code(), Some(0));
    assert!(!screen.is_raw());
}
