//! Several clients in one tree, by the library and by a mount, while servers and clients are
//! killed. Names of different clients lie side by side; each client's own come to exactly what its
//! model says, in bytes too. In the end `ramlace check` finds nothing, and nothing is left over.
//!
//! `RAMLACE_STORM_SECONDS` says for how long; a few seconds unless told otherwise.
#![allow(clippy::disallowed_methods, reason = "a test is told how long to run, and reads the clock")]

mod client;
mod door;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ramlace_base::ServerId;
use ramlace_client::{ConnectOptions, Pool};
use ramlace_system_tests::TestPool;
use ramlace_wire::LayoutHints;

use client::{Client, SHARED, shared};
use door::Door;

const SERVERS: u16 = 3;
const SECONDS_DEFAULT: u64 = 8;
/// What each client does at least: where the machine was busy, after the last kill.
const DONE_MIN: usize = 51;
/// Between two kills of servers: each lives for longer than its supervisor takes for a failed start, and than the three
/// quarters of a second for which a server that mounts have used is quiet when it comes back.
const KILL_PAUSE: Duration = Duration::from_millis(1_500);
/// How long a client lives that is killed.
const VICTIM_LIFE: Duration = Duration::from_millis(900);
/// Where a victim finds its pool.
const VICTIM: &str = "RAMLACE_STORM_VICTIM";

fn patient(options: ConnectOptions) -> Pool {
    Pool::connect(&ConnectOptions { deadline_millis: 60_000, ..options }).unwrap()
}

/// A mount of the pool, taken away in the end.
struct Mount<'pool> {
    pool: &'pool TestPool,
    directory: PathBuf,
}

impl Mount<'_> {
    /// `None` where nothing can be mounted.
    fn new(pool: &TestPool) -> Option<Mount<'_>> {
        if !Path::new("/dev/fuse").exists() {
            eprintln!("skipped the mount: there is no /dev/fuse");
            return None;
        }
        let directory = std::env::temp_dir().join(format!("rl-storm-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let mounted = pool.run(&["mount", directory.to_str().unwrap()]);
        assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
        Some(Mount { pool, directory })
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let gone = self.pool.run(&["unmount", self.directory.to_str().unwrap()]);
        if !gone.status.success() && !std::thread::panicking() {
            panic!("{}", String::from_utf8_lossy(&gone.stderr));
        }
        let _ = std::fs::remove_dir(&self.directory);
    }
}

/// Kills one server after the other; their supervisors start them again.
fn kill_servers(pool: &TestPool, end: Instant) {
    let client = patient(pool.options(false));
    for kill in 0.. {
        std::thread::sleep(KILL_PAUSE);
        if Instant::now() >= end {
            return;
        }
        let status = eventually(|| client.server_status(ServerId(kill % SERVERS)).ok());
        let pid = rustix::process::Pid::from_raw(status.pid as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
}

/// Starts clients in processes of their own and kills them at work.
fn kill_clients(pool: &TestPool, end: Instant) {
    let options = pool.options(true);
    let words = format!("{}\n{}", options.secret_file.unwrap().display(), options.addresses.join("\n"));
    for number in 0.. {
        if Instant::now() >= end {
            return;
        }
        let mut victim = victim(&words, number);
        std::thread::sleep(VICTIM_LIFE);
        victim.kill().unwrap();
        let died = victim.wait().unwrap();
        assert_eq!(died.code(), None, "a victim ended by itself: {died}");
    }
}

fn victim(words: &str, number: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "a_victim_works_until_it_is_killed"])
        .env(VICTIM, format!("{number}\n{words}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Not a test of its own: a client that the storm starts and kills.
#[test]
#[ignore = "the storm starts it in processes of its own"]
fn a_victim_works_until_it_is_killed() {
    let Ok(words) = std::env::var(VICTIM) else { return };
    let mut lines = words.lines();
    let number: u64 = lines.next().unwrap().parse().unwrap();
    let secret_file = lines.next().map(PathBuf::from);
    let addresses = lines.map(str::to_owned).collect();
    let options =
        ConnectOptions { addresses, secret_file, label: "victim".into(), ..ConnectOptions::default() };
    let mut client = Client::new(Door::Library(patient(options)), &format!("v{number}-"), number);
    loop {
        client.step();
    }
}

/// Asks until there is an answer.
fn eventually<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "there is no answer in a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

// SEMANTICS 26.1
#[test]
fn a_storm_of_everything_leaves_each_client_what_its_model_says_and_nothing_else() {
    let seconds = std::env::var("RAMLACE_STORM_SECONDS").ok().and_then(|text| text.parse().ok());
    let seconds = seconds.unwrap_or(SECONDS_DEFAULT);
    // Killed clients leave their trees behind: about 10 MiB a second.
    let pool = TestPool::start(SERVERS, if seconds > 30 { "6GiB" } else { "1GiB" });
    let end = Instant::now() + Duration::from_secs(seconds);
    let first = patient(pool.options(true));
    (0..SHARED).for_each(|index| _ = first.mkdir(shared(index), 0o755).unwrap());
    // Files with many lanes, and files with few.
    let fine = LayoutHints { stripe_unit: Some(64 << 10), ..LayoutHints::default() };
    (0..2).for_each(|index| first.set_layout(shared(index), fine).unwrap());
    let mount = Mount::new(&pool);
    let mut doors =
        vec![Door::Library(patient(pool.options(true))), Door::Library(patient(pool.options(false)))];
    doors.extend(mount.iter().flat_map(|mount| [0, 1].map(|_| Door::Mount(mount.directory.clone()))));
    let mut clients: Vec<Client> =
        (0..).zip(doors).map(|(own, door)| Client::new(door, &format!("c{own}-"), own)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| kill_servers(&pool, end));
        scope.spawn(|| kill_clients(&pool, end));
        for client in &mut clients {
            scope.spawn(move || {
                let busy = end + Duration::from_secs(60);
                while Instant::now() < end || (client.done < DONE_MIN && Instant::now() < busy) {
                    client.step();
                }
            });
        }
    });
    let seen_by = Door::Library(patient(pool.options(false)));
    for client in &mut clients {
        client.close_all();
        client.compare_whole_tree(&seen_by);
        assert!(client.done >= DONE_MIN, "{} has done {}", client.own, client.done);
        eprintln!("{}: {} operations done, {} refused", client.own, client.done, client.refused);
    }
    pool.assert_in_order();
    drop(clients);
    (0..SHARED).for_each(|index| first.remove_tree(shared(index)).unwrap());
    // Sessions of killed clients end, and then nothing is left, neither inodes nor memory.
    eventually(|| (first.statfs().ok()?.inodes == 1).then_some(()));
    eventually(|| {
        let statuses = first.status().ok()?;
        let lanes: u64 =
            statuses.into_iter().map(|report| report.status.map_or(1, |status| status.lanes)).sum();
        (lanes == 0).then_some(())
    });
    pool.assert_in_order();
    drop(mount);
}
