//! One host's agent behind a transport command: its process, what is said to it and what it says.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::PoolFileHosts;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::agent_protocol::{AGENT_PROTOCOL, Answer, MESSAGE_BYTES_MAX, Order, line_of};
use crate::words;

/// The hidden command of `ramlace` that runs an [`Agent`](crate::Agent).
pub const AGENT_COMMAND: &str = "host-agent";
/// Where the host's name goes in a transport command.
const HOST_MARK: &str = "{host}";
/// What a login there may print before the agent sends its first message: greetings of shells.
const NOISE_BYTES_MAX: usize = 64 << 10;
/// What is kept of a transport's standard error: the end.
const SAID_BYTES_MAX: usize = 4 << 10;
/// How long after its last word a transport may take to end and to say why.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// What a shell answers when there is no such command.
const EXIT_NO_COMMAND: i32 = 127;
/// What the command line answers to words that it does not know.
const EXIT_USAGE: i32 = 2;

/// How commands are run on other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport {
    /// The transport's words; the host's name stands where `{host}` is, else behind them.
    pub words: Vec<String>,
    /// The words of `ramlace` there.
    pub remote_command: Vec<String>,
}

impl Transport {
    /// Takes both command lines apart.
    pub fn parse(transport: &str, remote_command: &str) -> Result<Transport> {
        Ok(Transport {
            words: words::split(transport).map_err(|error| error.context("--transport"))?,
            remote_command: words::split(remote_command)
                .map_err(|error| error.context("--remote-command"))?,
        })
    }

    /// As a pool's directory says how its hosts were reached when it was started.
    #[must_use]
    pub fn of(hosts: &PoolFileHosts) -> Transport {
        Transport { words: hosts.transport.clone(), remote_command: hosts.remote_command.clone() }
    }

    /// The same, whatever directory is the current one when it is used again.
    pub fn anchored(mut self) -> Result<Transport> {
        let program = std::path::Path::new(&self.words[0]);
        if self.words[0].contains('/') && !self.words[0].contains(HOST_MARK) {
            let whole = std::path::absolute(program)
                .map_err(|error| Error::from_io(&error, "asking for the current directory"))?;
            self.words[0] = whole.to_string_lossy().into_owned();
        }
        Ok(self)
    }

    /// The command that reaches the agent of a host.
    fn line(&self, host: &str) -> Vec<String> {
        let mut line: Vec<String> = self.words.iter().map(|word| word.replace(HOST_MARK, host)).collect();
        if !self.words.iter().any(|word| word.contains(HOST_MARK)) {
            line.push(host.to_owned());
        }
        line.extend(self.remote_command.iter().cloned());
        line.push(AGENT_COMMAND.to_owned());
        line
    }
}

/// An agent, or a transport command that has not reached it yet.
#[derive(Debug)]
pub struct Remote {
    /// As the transport gets it.
    pub host: String,
    /// It was ordered to start something, and has not said that nothing of it is left.
    pub may_run: bool,
    line: String,
    child: Child,
    stdin: Option<ChildStdin>,
    to_say: Vec<u8>,
    stdout: Option<ChildStdout>,
    received: Vec<u8>,
    stderr: Option<ChildStderr>,
    said: Vec<u8>,
    greeted: bool,
    noise_bytes: usize,
    silent_since: Option<Instant>,
}

impl Remote {
    /// Runs the transport command.
    pub fn start(transport: &Transport, host: &str) -> Result<Remote> {
        let words = transport.line(host);
        let line = words.join(" ");
        let doing = |error: io::Error| {
            Error::new(
                Error::from_io(&error, "").kind(),
                format!("host {host}: the transport command '{line}' cannot be started: {error}"),
            )
        };
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for this program, which then sends orders to the agents.
            .process_group(0)
            .spawn()
            .map_err(doing)?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let remote = Remote {
            host: host.to_owned(),
            may_run: false,
            child,
            stdin,
            to_say: Vec::new(),
            stdout,
            received: Vec::new(),
            stderr,
            said: Vec::new(),
            greeted: false,
            noise_bytes: 0,
            silent_since: None,
            line: line.clone(),
        };
        for pipe in remote.pipes() {
            fcntl_setfl(pipe, OFlags::NONBLOCK).map_err(|errno| doing(errno.into()))?;
        }
        Ok(remote)
    }

    fn pipes(&self) -> impl Iterator<Item = std::os::fd::BorrowedFd<'_>> {
        let stdin = self.stdin.as_ref().map(AsFd::as_fd);
        let stdout = self.stdout.as_ref().map(AsFd::as_fd);
        [stdin, stdout, self.stderr.as_ref().map(AsFd::as_fd)].into_iter().flatten()
    }

    /// What to wait for: the pipes on which it may send, and the one that still takes something.
    pub fn reads(&self) -> impl Iterator<Item = std::os::fd::BorrowedFd<'_>> {
        let stdout = self.stdout.as_ref().map(AsFd::as_fd);
        stdout.into_iter().chain(self.stderr.as_ref().map(AsFd::as_fd))
    }

    /// The pipe to it, while something is still to be said.
    pub fn writes(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.stdin.as_ref().filter(|_| !self.to_say.is_empty()).map(AsFd::as_fd)
    }

    /// Says something; it leaves when the pipe takes it.
    pub fn say(&mut self, order: &Order) {
        if let Order::Prepare(_) = order {
            self.may_run = true;
        }
        self.to_say.extend(line_of(order));
        self.push();
    }

    /// Closes its input: there is nothing more to say.
    pub fn hang_up(&mut self) {
        self.stdin = None;
    }

    /// Moves bytes, as far as the pipes have or take some.
    pub fn pump(&mut self) {
        self.push();
        if pull(&mut self.stdout, &mut self.received, MESSAGE_BYTES_MAX) {
            self.silent_since = Some(Instant::now());
        }
        pull(&mut self.stderr, &mut self.said, usize::MAX);
        let excess = self.said.len().saturating_sub(SAID_BYTES_MAX);
        self.said.drain(..excess);
    }

    fn push(&mut self) {
        while let Some(stdin) = self.stdin.as_mut().filter(|_| !self.to_say.is_empty()) {
            match stdin.write(&self.to_say) {
                Ok(count) => drop(self.to_say.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // It has ended; its last words say why.
                Err(_) => self.stdin = None,
            }
        }
    }

    /// The next answer, if there is one; the end of the transport is an error.
    pub fn next(&mut self) -> Option<Result<Answer>> {
        while let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.received.drain(..=end).collect();
            match serde_json::from_slice::<Answer>(&line) {
                Ok(answer) => return Some(self.take(answer)),
                // A login may greet people before it runs the command.
                Err(_) if !self.greeted => self.noise_bytes += line.len(),
                Err(_) => return Some(Err(self.misunderstood(&line))),
            }
            if self.noise_bytes > NOISE_BYTES_MAX {
                return Some(Err(self.misunderstood(&line)));
            }
        }
        if self.received.len() >= MESSAGE_BYTES_MAX
            || (!self.greeted && self.received.len() > NOISE_BYTES_MAX)
        {
            let line = std::mem::take(&mut self.received);
            return Some(Err(self.misunderstood(&line)));
        }
        self.has_ended().then(|| Err(self.ended()))
    }

    fn take(&mut self, answer: Answer) -> Result<Answer> {
        if let Answer::Hello { version, protocol } = &answer {
            self.greeted = true;
            let mine = env!("CARGO_PKG_VERSION");
            if version != mine || *protocol != AGENT_PROTOCOL {
                return Err(Error::new(
                    ErrorKind::Protocol,
                    format!(
                        "host {}: ramlace {version} (agent {protocol}) runs there, and {mine} (agent {AGENT_PROTOCOL}) \
                         here; install the same on both, or name it with --remote-command",
                        self.host
                    ),
                ));
            }
        }
        if matches!(answer, Answer::Stopped { .. } | Answer::Error { .. }) {
            self.may_run = false;
        }
        answer.into_result().map_err(|error| error.context(format!("host {}", self.host)))
    }

    /// Whether it has ended, and has said all that it had to say.
    pub fn has_ended(&mut self) -> bool {
        let Some(since) = self.silent_since else { return false };
        let exited = matches!(self.child.try_wait(), Ok(Some(_)));
        (exited && self.stderr.is_none()) || since.elapsed() >= LAST_WORDS
    }

    /// How it ended, once it has.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Why a host that has ended is of no use.
    pub fn ended(&mut self) -> Error {
        let status = self.exit_status();
        let how = status.map_or("closed its output".to_owned(), |status| format!("ended with {status}"));
        let advice = match status.and_then(|status| status.code()) {
            _ if self.greeted => "",
            Some(EXIT_NO_COMMAND) => {
                "; if ramlace is not on the PATH that commands have there, name it with --remote-command"
            }
            Some(EXIT_USAGE) => "; if an older ramlace is installed there, install the same as here",
            _ => "",
        };
        Error::new(
            ErrorKind::HostDown,
            format!("host {}: '{}' {how}{}{advice}", self.host, self.line, self.quotation()),
        )
    }

    /// The error of a host that has not answered for this time.
    pub fn late(&self, patience: Duration) -> Error {
        Error::new(
            ErrorKind::TimedOut,
            format!(
                "host {}: no answer from '{}' within {} seconds{}; --patience SECONDS waits longer",
                self.host,
                self.line,
                patience.as_secs_f64(),
                self.quotation()
            ),
        )
    }

    fn misunderstood(&self, line: &[u8]) -> Error {
        let shown = String::from_utf8_lossy(&line[..line.len().min(200)]).trim().escape_debug().to_string();
        Error::new(
            ErrorKind::Protocol,
            format!(
                "host {}: '{}' said what no agent of ramlace says: {shown}{}",
                self.host,
                self.line,
                self.quotation()
            ),
        )
    }

    /// What it has said on standard error.
    fn quotation(&self) -> String {
        let said = String::from_utf8_lossy(&self.said);
        let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if lines.is_empty() { String::new() } else { format!(", and said: {}", lines.join("; ")) }
    }

    /// Ends the transport command and what it runs on this machine.
    pub fn signal(&mut self, signal: Signal) {
        // A process that was waited for may be another one by now.
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process_group(Pid::from_child(&self.child), signal);
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Reads what there is, at most to `bytes_max`; true at the end, where the pipe is closed.
fn pull<R: Read>(pipe: &mut Option<R>, into: &mut Vec<u8>, bytes_max: usize) -> bool {
    let mut bytes = [0; 8192];
    while let Some(reader) = pipe.as_mut().filter(|_| into.len() < bytes_max) {
        match reader.read(&mut bytes) {
            Ok(0) => *pipe = None,
            Ok(count) => into.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(_) => *pipe = None,
        }
        if pipe.is_none() {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_found_again_from_elsewhere() {
        let word = |transport: &str| {
            Transport::parse(transport, "ramlace").unwrap().anchored().unwrap().words.swap_remove(0)
        };
        let here = std::env::current_dir().unwrap();
        assert_eq!(word("./via -x"), here.join("via").display().to_string());
        assert_eq!(
            (word("ssh"), word("/usr/bin/ssh"), word("{host}/x")),
            ("ssh".into(), "/usr/bin/ssh".into(), "{host}/x".into())
        );
    }

    #[test]
    fn the_host_stands_where_the_mark_is_else_at_the_end() {
        let line = |transport: &str, command: &str| {
            Transport::parse(transport, command).unwrap().line("n1").join("|")
        };
        assert_eq!(line("ssh -p 2222", "ramlace"), "ssh|-p|2222|n1|ramlace|host-agent");
        assert_eq!(line("ip netns exec {host}", "/x/ramlace"), "ip|netns|exec|n1|/x/ramlace|host-agent");
        assert_eq!(
            line("run --on={host} --", "env A=b ramlace"),
            "run|--on=n1|--|env|A=b|ramlace|host-agent"
        );
        let error = Transport::parse("'ssh", "ramlace").unwrap_err();
        assert!(error.message().starts_with("--transport"), "{error}");
    }
}
