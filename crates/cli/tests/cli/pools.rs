//! Pools come and go: `up`, `status`, `down`, and what goes wrong with them.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use crate::common::{Home, kill, runs, there};

#[test]
fn a_pool_comes_up_is_seen_and_goes_down() {
    let home = Home::new();
    let up = home.run(["up", "--servers", "4", "--memory", "128MiB", "--no-reserve"]).good();
    for words in ["4 servers, 128 MiB", "ramlace cp", "ramlace mount DIR", "ramlace status", "ramlace down"] {
        assert!(up.text().contains(words), "{}", up.text());
    }
    let mode = |path: &str| home.pool("default").join(path).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(""), mode("secret"), mode("server-0.log")), (0o700, 0o600, 0o600));
    let status = home.run(["status"]).good().text();
    assert!(status.contains("4 of 4 servers answer") && status.contains("of 128 MiB used"), "{status}");
    let status = home.status();
    assert_eq!(status["healthy"], true);
    let servers = status["servers"].as_array().unwrap();
    assert_eq!(servers.len(), 4);
    let pids: Vec<u64> = servers
        .iter()
        .flat_map(|server| ["pid", "supervisor_pid"].map(|key| server[key].as_u64().unwrap()))
        .collect();
    assert!(pids.iter().all(|pid| runs(*pid)));
    home.run(["down"]).good();
    assert!(!pids.iter().any(|pid| runs(*pid)), "a server outlived 'down'");
    assert!(!there(&home.pool("default")));
    home.run(["status"]).bad(&["no pool 'default'", "ramlace up"]);
}

#[test]
fn up_twice_is_refused_and_harms_nothing() {
    let home = Home::with_pool(1, "64MiB");
    let before = home.status()["servers"][0]["pid"].clone();
    home.run(["up"]).bad(&["running already", "ramlace down", "--pool"]);
    assert_eq!(home.status()["servers"][0]["pid"], before);
    home.run(["up", "--pool", "other", "--memory", "64MiB", "--no-reserve"]).good();
    let named = home.command().args(["ls", "/"]).env("RAMLACE_POOL", "other").output().unwrap();
    crate::common::Done::from(named).good();
    home.run(["down", "--pool", "other"]).good();
    home.run(["ls"]).good();
}

#[test]
fn json_tells_programs_what_they_need() {
    let home = Home::new();
    let up = home.run(["up", "--servers", "2", "--memory", "64MiB", "--no-reserve", "--json"]).good().json();
    assert_eq!((up["pool"].as_str(), up["servers"].as_array().map(Vec::len)), (Some("default"), Some(2)));
    let failed = home.run(["up", "--json"]);
    let error: serde_json::Value = serde_json::from_str(&failed.stderr).unwrap();
    assert_eq!((failed.code, &error["error"]["errno_name"]), (Some(1), &"EEXIST".into()));
    let address = up["address"].as_str().unwrap();
    home.run(["status", "--pool", address]).good();
    home.run(["ls", &format!("ramlace://{address}/")]).good();
    assert_eq!(home.run(["down", "--json"]).good().json()["servers"], 2);
}

#[test]
fn pools_are_listed_and_named_in_every_form() {
    let home = Home::new();
    assert!(home.run(["pools"]).good().text().contains("ramlace up"));
    assert_eq!(home.run(["pools", "--json"]).good().json(), serde_json::json!([]));
    home.run(["up", "--memory", "32MiB", "--no-reserve", "--pool", "lab"]).good();
    let listed = home.run(["pools", "--json"]).good().json();
    assert_eq!((&listed[0]["name"], &listed[0]["state"]), (&"lab".into(), &"running".into()));
    assert_eq!(listed[0]["directory"], home.pool("lab").to_str().unwrap());
    assert!(home.run(["pools"]).good().text().contains("1 server running"));
    let address = listed[0]["address"].as_str().unwrap().to_owned();
    let forms = ["lab", "ramlace:lab", "ramlace://lab/any/path", &address, &format!("ramlace://{address}")];
    for form in forms {
        home.run(["ls", "--pool", form]).good();
        let named = home.command().args(["ls", "ramlace:/"]).env("RAMLACE_POOL", form).output().unwrap();
        crate::common::Done::from(named).good();
    }
    home.run(["ls", "--pool", "a/b"]).bad(&["no name of a pool", "host:port"]);
}

#[test]
fn a_wrong_command_line_is_told_to_programs() {
    let home = Home::new();
    let done = home.run(["up", "--servers", "many", "--json"]);
    let error: serde_json::Value = serde_json::from_str(&done.stderr).unwrap();
    assert_eq!((done.code, &error["error"]["errno_name"]), (Some(2), &"EINVAL".into()));
    assert!(error["error"]["message"].as_str().unwrap().contains("many"), "{error}");
}

#[test]
fn a_missing_server_is_said_once_and_makes_reports_fail() {
    let home = Home::with_pool(2, "64MiB");
    let server = home.status()["servers"][1].clone();
    kill(server["supervisor_pid"].as_u64().unwrap());
    kill(server["pid"].as_u64().unwrap());
    let status = home.run(["status"]).bad(&["server 1 at "]);
    assert_eq!(status.stderr.matches("does not answer").count(), 1, "{}", status.stderr);
    assert!(!status.stderr.contains("ramlace status"), "{}", status.stderr);
    assert!(status.text().contains("1 of 2 servers answers"), "{}", status.text());
    let df = home.run(["df"]).bad(&["1 server does not answer and is not counted", "ramlace status"]);
    assert!(df.text().contains("32 MiB"), "{}", df.text());
    let json = home.run(["df", "--json"]);
    assert_eq!((json.code, &json.json()["silent_servers"]), (Some(1), &1.into()));
}

#[test]
fn a_host_that_is_not_there_is_no_missing_secret() {
    let home = Home::new();
    home.run(["ls", "ramlace://nowhere.invalid:7000/"]).bad(&["nowhere.invalid:7000"]);
    let said = home.run(["ls", "ramlace://nowhere.invalid:7000/"]).stderr;
    assert!(!said.contains("secret"), "{said}");
    home.run(["ls", "ramlace://127.0.0.1:1/"]).bad(&[
        "/ramlace/POOL/secret",
        "ramlace pools",
        "RAMLACE_SECRET_FILE",
    ]);
}

#[test]
fn down_of_nothing_says_so() {
    let home = Home::new();
    home.run(["down"]).bad(&["no pool 'default' to stop", "ramlace up"]);
    home.run(["down", "--pool", "../x"]).bad(&["no name of a pool"]);
    home.run(["ls", "--pool", "nowhere"]).bad(&["no pool 'nowhere'"]);
}

#[test]
fn what_cannot_start_leaves_nothing_behind() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    // Server 1 of this pool wants the port that is taken; another process may have that of server 0.
    let listen = format!("127.0.0.1:{}", port - 1);
    let small = ["--memory", "64MiB", "--no-reserve"];
    let ports = home.run(["up", "--servers", "2", "--listen", &listen].iter().chain(&small));
    ports.bad(&["did not start: cannot listen on 127.0.0.1:", "in use", "--listen"]);
    home.run(["up", "--memory", "1000TiB"]).bad(&["do not fit", "--memory"]);
    home.run(["up", "--memory", "1MiB"]).bad(&["at least 16 MiB"]);
    home.run(["up", "--servers", "4096", "--memory", "1GiB"]).bad(&["too little for 4096 servers"]);
    home.run(["up", "--slots", "3"].iter().chain(&small)).bad(&["3 slots"]);
    home.run(["up", "--listen", "0.0.0.0:7000"].iter().chain(&small)).bad(&["--advertise"]);
    home.run(["up", "--listen", "host"].iter().chain(&small)).bad(&["ADDRESS:PORT"]);
    home.run(["up", "--listen", "192.0.2.1:0"].iter().chain(&small)).bad(&["cannot listen on 192.0.2.1:0"]);
    assert!(!there(&home.pool("default")));
    assert_eq!(home.run(["up", "--memory", "lots"]).code, Some(2));
    assert_eq!(home.run(["up", "--servers", "0"]).code, Some(2));
}

#[test]
fn a_dead_pool_is_seen_and_cleared_away() {
    let home = Home::with_pool(2, "64MiB");
    for server in home.status()["servers"].as_array().unwrap() {
        kill(server["supervisor_pid"].as_u64().unwrap());
        kill(server["pid"].as_u64().unwrap());
    }
    let status = home.run(["status"]);
    assert_eq!(status.code, Some(1));
    assert!(status.text().contains("0 of 2 servers answer"), "{status:?}");
    assert_eq!(home.status()["servers"][1]["state"], "not answering");
    let up = home.run(["up", "--memory", "64MiB", "--no-reserve"]);
    assert_eq!(up.code, Some(0), "{up:?}");
    assert!(up.stderr.contains("no longer running"), "{up:?}");
    assert_eq!(home.status()["servers"].as_array().unwrap().len(), 1);
}

#[test]
fn a_server_without_its_supervisor_is_stopped_too() {
    let home = Home::with_pool(1, "64MiB");
    let status = home.status();
    let pid = status["servers"][0]["pid"].as_u64().unwrap();
    kill(status["servers"][0]["supervisor_pid"].as_u64().unwrap());
    home.run(["up"]).bad(&["running already"]);
    let down = home.run(["down"]);
    assert_eq!(down.code, Some(0));
    assert!(down.stderr.contains("lost its supervisor"), "{down:?}");
    assert!(!runs(pid));
}

#[test]
fn a_killed_server_comes_back_by_itself() {
    let home = Home::with_pool(2, "64MiB");
    let pid = home.status()["servers"][1]["pid"].as_u64().unwrap();
    kill(pid);
    let end = Instant::now() + Duration::from_secs(20);
    while home.status()["servers"][1]["restarts"] != 1 {
        assert!(Instant::now() < end, "server 1 did not come back: {}", home.status());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_ne!(home.status()["servers"][1]["pid"].as_u64().unwrap(), pid);
}

#[test]
fn shared_memory_is_given_back() {
    let home = Home::new();
    let name = format!("shm{}", std::process::id());
    let up = ["up", "--memory", "64MiB", "--no-reserve", "--backing", "shared-memory", "--pool", &name];
    let stores = || {
        let named =
            |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().contains(&format!("-{name}-"));
        std::fs::read_dir("/dev/shm").unwrap().flatten().filter(named).count()
    };
    let pids = |up: &crate::common::Done| -> Vec<u64> {
        let supervisor = up.json()["servers"][0]["supervisor_pid"].as_u64().unwrap();
        let status = home.run(["status", "--json", "--pool", &name]).json();
        vec![supervisor, status["servers"][0]["pid"].as_u64().unwrap()]
    };
    home.run(up).good();
    assert_eq!(stores(), 1);
    home.run(["down", "--pool", &name]).good();
    assert_eq!(stores(), 0);
    let killed = home.run(up.iter().chain(&["--json"])).good();
    pids(&killed).into_iter().for_each(kill);
    assert_eq!(stores(), 1);
    let down = home.run(["down", "--pool", &name]);
    assert_eq!((down.code, stores()), (Some(0), 0), "{down:?}");
}

#[test]
fn the_wrong_secret_opens_nothing() {
    let home = Home::with_pool(1, "64MiB");
    let address = home.status()["servers"][0]["address"].as_str().unwrap().to_owned();
    let wrong = home.write("wrong", format!("{}\n", "ab".repeat(32)).as_bytes());
    std::fs::set_permissions(&wrong, std::fs::Permissions::from_mode(0o600)).unwrap();
    let locator = format!("ramlace://{address}/");
    let done = home.command().args(["ls", &locator]).env("RAMLACE_SECRET_FILE", &wrong).output().unwrap();
    crate::common::Done::from(done).bad(&["secret"]);
    // A user who has no secret of that pool gets a message that says what is missing.
    let stranger = Home::new();
    stranger.run(["ls", &locator]).bad(&["secret", "RAMLACE_SECRET_FILE"]);
}

#[test]
fn a_server_alone_serves_in_the_foreground() {
    let home = Home::new();
    let mut child = home
        .command()
        .args(["serve", "--memory", "32MiB", "--no-reserve", "--pool", "alone"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let listening = lines.next().unwrap().unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let address = listening.strip_prefix("listening ").unwrap();
    let list = home
        .command()
        .args(["status", "--pool", address])
        .env("RAMLACE_SECRET_FILE", home.pool("alone").join("secret"))
        .output();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let status = crate::common::Done::from(list.unwrap()).good().text();
    assert!(status.contains("1 of 1 server answers"), "{status}");
}

#[test]
fn doctor_tries_the_machine() {
    let home = Home::new();
    let report = home.run(["doctor", "--json"]).json();
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.iter().any(|check| check["name"] == "private store"));
    assert!(
        checks.iter().all(|check| ["ok", "absent", "broken"].contains(&check["state"].as_str().unwrap()))
    );
    assert!(home.run(["doctor"]).text().contains("kernel"));
}

#[test]
fn usage_is_explained() {
    let home = Home::new();
    for arguments in [&["nonsense"][..], &["cp", "a"], &["ls", "--nonsense"], &["rm"], &["layout"]] {
        assert_eq!(home.run(arguments).code, Some(2), "{arguments:?}");
    }
    let negative = home.run(["up", "--memory", "-1GiB"]);
    assert_eq!(negative.code, Some(2));
    assert!(negative.stderr.contains("'-1GiB' is no size"), "{}", negative.stderr);
    assert!(home.run(["cp", "--help"]).good().text().contains("Examples:"));
    assert!(home.run(["--version"]).good().text().starts_with("ramlace "));
    for shell in ["bash", "zsh", "fish"] {
        assert!(home.run(["completions", shell]).good().text().contains("stripe-unit"), "{shell}");
    }
}
