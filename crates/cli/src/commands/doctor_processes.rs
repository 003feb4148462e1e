//! Which rights this user's running servers and mounts have dropped, as the kernel reports it for each process.

use std::fs;
use std::os::unix::fs::MetadataExt;

use ramlace_base::units::count;

use super::doctor_checks::{Finding, State};

/// What a process serves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Serves {
    Slots,
    Mount,
    Guard,
}

/// A process of this user that serves.
struct Running {
    pid: u32,
    serves: Serves,
    /// It sends file contents over TCP as they are.
    trusts_network: bool,
}

/// Servers, then daemons of mounts and their guards; and what servers leave open to the network.
pub fn processes() -> [Finding; 4] {
    let found = running();
    let told = |name, one, kind| {
        tell(name, one, found.iter().filter(|process| process.serves == kind).map(|process| process.pid))
    };
    [
        told("processes of servers", "server", Serves::Slots),
        told("processes of mounts", "mount", Serves::Mount),
        told("guards of mounts", "guard", Serves::Guard),
        tell_trust(&found),
    ]
}

fn running() -> Vec<Running> {
    let user = rustix::process::geteuid().as_raw();
    // One that is not dumpable is shown as root's.
    let is_ours = move |pid: u32| {
        fs::metadata(format!("/proc/{pid}")).is_ok_and(|about| [user, 0].contains(&about.uid()))
            && number_of(pid, "Uid:").is_some_and(|owner| owner == u64::from(user))
    };
    ramlace_launch::look_at_each(ramlace_launch::all_processes().unwrap_or_default(), move |pid| {
        let ours = is_ours(pid).then(|| fs::read(format!("/proc/{pid}/cmdline")).ok())??;
        known_by(pid, &ours)
    })
}

fn known_by(pid: u32, command_line: &[u8]) -> Option<Running> {
    let serves = serves(command_line)?;
    let trusts_network = serves == Serves::Slots && trusts_network(command_line);
    Some(Running { pid, serves, trusts_network })
}

/// Whether the settings with which a server's child was started say so.
fn trusts_network(command_line: &[u8]) -> bool {
    let settings = command_line.split(|byte| *byte == 0).nth(2).unwrap_or_default();
    let settings: serde_json::Value = serde_json::from_slice(settings).unwrap_or_default();
    settings["options"]["trust_network"] == true
}

fn serves(command_line: &[u8]) -> Option<Serves> {
    let words: Vec<&[u8]> = command_line.split(|byte| *byte == 0).take(16).collect();
    match words.get(1..)? {
        [b"serve-child", ..] => Some(Serves::Slots),
        [b"mount", b"--daemon", ..] => Some(Serves::Mount),
        [b"mount", words @ ..] if is_in_the_foreground(words) => Some(Serves::Mount),
        [b"mount-guard", ..] => Some(Serves::Guard),
        _ => None,
    }
}

fn is_in_the_foreground(words: &[&[u8]]) -> bool {
    words.iter().take_while(|word| **word != b"--").any(|word| *word == b"--foreground")
}

/// What stands in `/proc/PID/status` behind a word.
fn number_of(pid: u32, word: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(word))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// What a process still has that others of its kind have dropped; `None`: it has ended meanwhile.
fn keeps(pid: u32) -> Option<Vec<&'static str>> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size"))?;
    let dumps_core = !core.split_ascii_whitespace().take(2).all(|bytes| matches!(bytes, "0" | "1"));
    let keeps = [
        (dumps_core, "core dumps"),
        (number_of(pid, "NoNewPrivs:")? == 0, "new rights by programs it starts"),
        (
            !is_filtered(number_of(pid, "Seccomp:")?, filters_of(pid), filters_it_was_given(pid)),
            "all system calls",
        ),
    ];
    Some(keeps.into_iter().filter(|(kept, _)| *kept).map(|(_, what)| what).collect())
}

/// How many filters of system calls a process has; kernels before 5.9 do not say.
fn filters_of(pid: u32) -> Option<u64> {
    number_of(pid, "Seccomp_filters:")
}

/// How many its container or session gave it: no more than its parent has, which gave it those that it has. This process may be in
/// another container.
fn filters_it_was_given(pid: u32) -> Option<u64> {
    let parent = number_of(pid, "PPid:").and_then(|parent| u32::try_from(parent).ok());
    parent.and_then(filters_of).or_else(|| filters_of(std::process::id()))
}

/// Whether a process has filters of its own, beside those that it was given.
fn is_filtered(mode: u64, filters: Option<u64>, given: Option<u64>) -> bool {
    const FILTERED: u64 = 2;
    mode == FILTERED && filters.zip(given).is_none_or(|(filters, given)| filters > given)
}

fn tell(name: &'static str, one: &str, pids: impl Iterator<Item = u32>) -> Finding {
    let looked_at: Vec<(u32, Vec<&str>)> = pids.filter_map(|pid| Some((pid, keeps(pid)?))).collect();
    let open: Vec<String> = looked_at
        .iter()
        .filter(|(_, keeps)| !keeps.is_empty())
        .map(|(pid, keeps)| format!("process {pid} keeps {}", keeps.join(", ")))
        .collect();
    let found = match (looked_at.len(), open.is_empty()) {
        (0, _) => format!("no {one} of this user runs here"),
        (running, true) => format!(
            "{}: no core dump, no new rights, and the system calls of {} work alone",
            count(running as u64, one),
            if running == 1 { "its" } else { "their" }
        ),
        _ => open.join("; "),
    };
    Finding { name, state: if open.is_empty() { State::Ok } else { State::Absent }, found }
}

fn tell_trust(found: &[Running]) -> Finding {
    let servers = found.iter().filter(|process| process.serves == Serves::Slots).count();
    let trusting: Vec<String> = found
        .iter()
        .filter(|process| process.trusts_network)
        .map(|process| format!("process {} neither hides nor proves them (--trust-network)", process.pid))
        .collect();
    let told = match (servers, trusting.is_empty()) {
        (0, _) => "no server of this user runs here".to_owned(),
        (running, true) => format!("{}: sealed", count(running as u64, "server")),
        _ => trusting.join("; "),
    };
    let state = if trusting.is_empty() { State::Ok } else { State::Absent };
    Finding { name: "file contents over TCP", state, found: told }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_mounts_are_known_by_their_words() {
        let is = |line: &[u8], serving: Option<Serves>| assert!(serves(line) == serving, "{line:?}");
        is(b"/usr/bin/ramlace\0serve-child\0{}\0", Some(Serves::Slots));
        is(b"ramlace\0mount\0--daemon\0--pool\0x\0--\0/mnt\0", Some(Serves::Mount));
        is(b"ramlace\0mount\0--strict\0--foreground\0/mnt\0", Some(Serves::Mount));
        is(b"ramlace\0mount-guard\0--for\0/mnt\0", Some(Serves::Guard));
        for other in [
            &b""[..],
            b"ramlace\0",
            b"ramlace\0mount\0/mnt\0",
            b"ramlace\0mount\0--\0--foreground\0",
            b"ramlace\0mount-porter\0/mnt\0",
        ] {
            is(other, None);
        }
    }

    #[test]
    fn a_server_that_trusts_its_network_is_named() {
        let started = |pid, trusts: bool| {
            let settings = serde_json::json!({ "options": { "trust_network": trusts } });
            known_by(pid, format!("ramlace\0serve-child\0{settings}\0").as_bytes()).unwrap()
        };
        let (sealed, open) =
            (tell_trust(&[started(6, false)]), tell_trust(&[started(6, false), started(7, true)]));
        assert_eq!((sealed.state, open.state), (State::Ok, State::Absent));
        assert!(open.found.contains("process 7") && !open.found.contains("process 6"), "{}", open.found);
    }

    #[test]
    fn a_containers_filter_is_not_taken_for_a_servers() {
        assert!(is_filtered(2, Some(2), Some(0)) && is_filtered(2, Some(3), Some(1)));
        assert!(!is_filtered(2, Some(1), Some(1)) && !is_filtered(0, Some(0), Some(0)));
        assert!(is_filtered(2, None, None) && !is_filtered(0, None, None));
    }

    #[test]
    fn filters_of_a_container_are_those_that_the_parent_has() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let given = filters_it_was_given(child.id());
        let (here, there) = (filters_of(std::process::id()), filters_of(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((given, there), (here, here), "one that has given up nothing has those it was given");
    }

    #[test]
    fn what_a_process_keeps_is_named() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let kept = keeps(child.id()).unwrap();
        let told = tell("tests", "test", [child.id()].into_iter());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(told.state, if kept.is_empty() { State::Ok } else { State::Absent });
        assert!(kept.iter().all(|what| told.found.contains(what)), "{}", told.found);
    }
}
