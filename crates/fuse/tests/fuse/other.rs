//! Another process of this program, which does what a test asks.
//!
//! A process that answers a mount must never use its files: munmap writes dirty pages back while it holds the lock of
//! the address space, which the worker that reads that very request may need.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Tells such a process which file it is to use.
const PATH_VARIABLE: &str = "RAMLACE_FUSE_TEST_PATH";

pub struct Other {
    process: Child,
    answers: BufReader<ChildStdout>,
}

impl Other {
    /// Begins one that runs the test of this name alone, which calls [`serve`].
    pub fn new(test: &str, path: &Path) -> Other {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(PATH_VARIABLE, path);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Other { process, answers }
    }

    /// Has it do something, and returns its answer.
    pub fn ask(&mut self, what: &str) -> i64 {
        writeln!(self.process.stdin.as_mut().unwrap(), "{what}").unwrap();
        loop {
            let mut line = String::new();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the other process ended");
            // The test harness of the other process has its own lines.
            if let Some((_, answer)) = line.split_once("answer ") {
                return answer.trim().parse().unwrap();
            }
        }
    }

    /// Ends it, which unmaps what it has mapped.
    pub fn end(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The file that this process is to use; `None` in the program that runs the tests.
pub fn path() -> Option<PathBuf> {
    std::env::var_os(PATH_VARIABLE).map(PathBuf::from)
}

/// Answers each request until the input ends.
pub fn serve(mut answer: impl FnMut(&str) -> i64) {
    for line in std::io::stdin().lines() {
        println!("answer {}", answer(&line.unwrap()));
    }
}
