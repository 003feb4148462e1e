"""A pool on several machines: started, used and stopped through a transport command.

The machines are stood in for: a script runs the agent with a runtime directory for each host, so
that every host has a pool's directory of its own, and a test may put another program in its place. With
network namespaces (as root) each of them has a network card of its own as well.
"""

import contextlib
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from machines import Lab, Network, ip, joined, version
from pool import MIB, PATIENCE_SECONDS, Pool, binary, eventually, pattern, take_away

HELLO = '{"answer": "hello", "version": "VERSION", "protocol": 3}'
PREPARED = '{"answer": "prepared", "store_bytes": 33554432, "shared": false, "notes": []}'


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory with a short name: paths of sockets are short."""
    directory = Path(tempfile.mkdtemp(prefix="rh-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def lab(root: Path) -> Iterator[Lab]:
    made = Lab(root, ("alpha", "beta", "gamma"))
    yield made
    made.close()


# Up, use, down


def test_three_hosts_are_one_pool_from_everywhere(lab: Lab) -> None:
    lab.lines = lab.lines.replace("beta", "beta servers=2", 1)
    report = lab.up()
    print(f"up on 3 hosts in {report['seconds']:.3f} s")
    assert [(host["host"], host["servers"]) for host in report["hosts"]] == [
        ("alpha", [0]),
        ("beta", [1, 3]),
        ("gamma", [2]),
    ]
    assert report["memory_bytes"] == 96 * MIB
    assert [len(lab.hosts[host].processes()) for host in lab.hosts] == [2, 4, 2]
    content = pattern(1, 30 * MIB + 3)
    lab.starter.run("cp", "-", "ramlace:/x", stdin=content)
    for machine in lab.machines():
        assert machine.run("cat", "/x").stdout == content
        assert machine.run("cat", "/x", variables={"RAMLACE_LOCAL": "off"}).stdout == content
        hosts = [server["host"] for server in machine.status()]
        assert hosts == ["alpha", "beta", "gamma", "beta"]
    table = lab.starter.run("status").stdout.decode().splitlines()
    assert table[0].split()[-1] == "HOST", table
    assert table[2].split()[-1] == "beta", table
    # A program there uses the sockets of its own host, and none of another's.
    for host, machine in lab.hosts.items():
        file = json.loads((machine.directory / "pool.json").read_text())
        assert {server["host"] for server in file["servers"] if "unix" in server} == {host}
        assert file["hosts"]["here"] == host
        for path in (machine.directory, machine.directory / "secret", machine.directory / "pool.json"):
            assert path.stat().st_mode & 0o077 == 0, path
    script = "import ramlace, sys; sys.stdout.buffer.write(ramlace.connect(sys.argv[1]).open('/x').read())"
    done = subprocess.run(
        [sys.executable, "-c", script, lab.name],
        capture_output=True,
        check=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(lab.hosts["gamma"].runtime)},
        timeout=PATIENCE_SECONDS,
    )
    assert done.stdout == content
    lab.starter.run("down")
    lab.assert_nothing_left()


def test_the_hosts_may_come_from_standard_input_and_the_transport_from_the_environment(lab: Lab) -> None:
    words = ("up", "--hosts", "-", "--no-reserve", "--memory", "96MiB", "--remote-command", binary(), "--json")
    lines = "# three\n\n" + lab.lines.replace(" memory=32MiB", "")
    # A relative name means the same later, from another directory.
    variables = {"RAMLACE_TRANSPORT": f"'{os.path.relpath(lab.transport)}' {{host}}"}
    report = json.loads(lab.starter.run(*words, stdin=lines.encode(), variables=variables).stdout)
    assert [host["memory_bytes"] for host in report["hosts"]] == [32 * MIB] * 3
    subprocess.run(
        [binary(), "down", "--pool", lab.name],
        cwd="/",
        check=True,
        capture_output=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(lab.starter.runtime)},
        timeout=PATIENCE_SECONDS,
    )
    lab.assert_nothing_left()


def test_the_starting_machine_may_be_one_of_the_hosts(lab: Lab) -> None:
    lab.lines += "start memory=32MiB listen=127.0.0.1:0 advertise=127.0.0.1\n"
    lab.up()
    assert [process.server for process in lab.starter.processes()] == [3, 3]
    file = json.loads((lab.starter.directory / "pool.json").read_text())
    assert [server["host"] for server in file["servers"] if "unix" in server] == ["start"]
    lab.starter.run("cp", "-", "ramlace:/x", stdin=b"x" * MIB)
    assert lab.hosts["beta"].run("cat", "/x").stdout == b"x" * MIB
    report = lab.starter.json("down")
    assert [host["servers"] for host in report["hosts"]] == [1] * 4
    lab.assert_nothing_left()


def test_the_secret_is_on_no_command_line_and_in_no_environment(lab: Lab) -> None:
    lab.up()
    secret = (lab.starter.directory / "secret").read_text().strip().encode()
    assert len(secret) == 64
    assert {(machine.directory / "secret").read_text().strip().encode() for machine in lab.machines()} == {secret}
    told = (lab.root / "words").read_bytes()
    assert b"host-agent" in told
    assert secret not in told
    processes = lab.processes()
    assert len(processes) == 6
    for process in processes:
        assert secret not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        # Nobody but root looks into a child.
        with contextlib.suppress(PermissionError):
            assert secret not in Path(f"/proc/{process.pid}/environ").read_bytes()
    lab.starter.run("down")
    assert secret not in (lab.root / "words").read_bytes()


def test_a_pool_that_runs_is_not_started_again(lab: Lab) -> None:
    lab.up()
    before = [process.pid for process in lab.processes()]
    for words in (lab.words, ["up", "--memory", "32MiB"]):
        said = lab.starter.refused(*words)
        assert "runs on hosts alpha, beta, gamma already" in said, said
        assert "ramlace down --pool" in said, said
    # From another machine, too: the hosts know.
    other = lab.machine("other")
    said = other.refused(*lab.words)
    assert "host " in said, said
    assert "is running already" in said, said
    assert not other.directory.exists()
    assert [process.pid for process in lab.processes()] == before
    assert {server["state"] for server in lab.starter.status()} == {"up"}


def test_a_hosts_own_pool_of_that_name_is_left_alone(lab: Lab) -> None:
    beta = lab.hosts["beta"]
    beta.run("up", "--memory", "32MiB", "--no-reserve")
    beta.run("cp", "-", "ramlace:/kept", stdin=b"kept")
    said = lab.starter.refused(*lab.words)
    assert "host beta: pool" in said, said
    assert "is running already" in said, said
    assert beta.run("cat", "/kept").stdout == b"kept"
    beta.run("down")
    lab.assert_nothing_left()


# A host that fails takes the whole start with it, and nothing is left anywhere


@dataclass
class Broken:
    script: str
    told: tuple[str, ...]


BROKEN = {
    "refused": Broken("echo 'Permission denied (publickey)' >&2; exit 255", ("255", "Permission denied (publickey)")),
    "absent": Broken("exec no-such-ramlace host-agent", ("127", "not found", "--remote-command")),
    "older": Broken(
        "echo \"error: unrecognized subcommand 'host-agent'\" >&2; exit 2", ("older ramlace", "unrecognized")
    ),
    "version": Broken(
        "echo '" + HELLO.replace("VERSION", "0.0.9") + "'; sleep 1000", ("ramlace 0.0.9", "VERSION", "install the same")
    ),
    "protocol": Broken("echo '" + HELLO.replace("3}", "99}") + "'; sleep 1000", ("agent 99", "install the same")),
    "noise": Broken("yes hello", ("said what no agent of ramlace says", "hello")),
    "line": Broken("tr '\\0' x < /dev/zero", ("said what no agent of ramlace says", "xxx")),
    "hangs": Broken("sleep 1000", ("no answer", "--patience")),
    "hangs later": Broken(
        f"echo '{HELLO}'; echo '{PREPARED}'; sleep 1000", ("no answer from", "did not say that nothing is left there")
    ),
    "dies": Broken('"$@" | (read -r a; echo "$a"; read -r b; echo "$b")', ("ended with",)),
    "dies at once": Broken(f"echo '{HELLO}'", ("ended with",)),
    "talks": Broken(f"echo '{HELLO}'; echo nonsense; sleep 1000", ("said what no agent", "nonsense")),
    "another": Broken(f"echo '{HELLO}'; echo '{HELLO}'; sleep 1000", ("does not belong to the order",)),
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("host", ["alpha", "gamma"])
def test_a_host_that_fails_is_named_and_nothing_is_left(lab: Lab, how: str, host: str) -> None:
    broken = BROKEN[how]
    lab.replace(host, broken.script)
    # What falls silent after it may have started something is waited for.
    said = lab.fails("--patience", "2" if "sleep" in broken.script else "30")
    assert f"host {host}" in said, said
    for told in broken.told:
        assert told.replace("VERSION", version()) in said, said


def test_a_greeting_of_the_shell_there_does_no_harm(lab: Lab) -> None:
    lab.replace("beta", 'echo "Welcome to beta"; echo "{}"; echo Warning >&2; exec "$@"')
    lab.up()
    lab.starter.run("down")
    lab.assert_nothing_left()


def test_too_little_memory_on_one_host_is_an_error_that_names_it(lab: Lab) -> None:
    lab.lines = lab.lines.replace("gamma memory=32MiB", "gamma memory=900TiB")
    said = lab.fails()
    assert "host gamma: 900 TiB do not fit" in said, said


def test_a_transport_that_is_not_there_is_named(lab: Lab) -> None:
    lab.transport_words = "/no/such/transport -x"
    said = lab.fails()
    assert "'/no/such/transport -x alpha " in said, said
    assert "cannot be started" in said, said


def test_an_address_that_cannot_be_reached_from_here_is_an_error(lab: Lab) -> None:
    lab.lines = lab.lines.replace("advertise=127.0.0.1", "advertise=no-such-name.invalid", 1).replace(
        "listen=127.0.0.1:0", "listen=0.0.0.0:0", 1
    )
    said = lab.fails()
    assert "cannot be reached from here as no-such-name.invalid:" in said, said


# Kills what the agent has left running when it has ended, as a batch system does that ends a step.
ENDS_ALL = """
"$@"
code=$?
for line in /proc/[0-9]*/cmdline; do
    if grep -qa "$XDG_RUNTIME_DIR/ramlace/" "$line" 2> /dev/null; then
        process=${line#/proc/}
        kill -9 "${process%/cmdline}"
    fi
done
exit $code
"""


# SEMANTICS 146.1
def test_a_transport_that_ends_what_it_leaves_running_starts_no_pool(lab: Lab) -> None:
    lab.replace("beta", ENDS_ALL)
    said = lab.fails()
    assert "host beta: its server at 127.0.0.1:" in said, said
    assert "not any more since the transport command has ended" in said, said


def is_gone(path: Path) -> bool:
    return not path.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_up_that_is_ended_leaves_nothing(lab: Lab, number: signal.Signals) -> None:
    # Servers run on two hosts and wait for those of the third, which never come.
    lab.replace("gamma", f"echo '{HELLO}'; echo '{PREPARED}'; exec cat > /dev/null")
    up = subprocess.Popen(
        [binary(), "--pool", lab.name, *lab.words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "XDG_RUNTIME_DIR": str(lab.starter.runtime)},
    )
    assert eventually(lambda: all(lab.hosts[host].processes() for host in ("alpha", "beta")))
    up.send_signal(number)
    _, said = up.communicate(timeout=PATIENCE_SECONDS)
    if number == signal.SIGKILL:
        # The agents notice that nobody gives orders any more; what is left here, the next `up` clears.
        for host in lab.hosts.values():
            assert eventually(functools.partial(is_gone, host.directory))
        shutil.rmtree(lab.starter.directory)
    else:
        assert up.returncode == 1
        assert b"stopped by a signal" in said, said
    lab.assert_nothing_left()


def test_up_on_this_machine_that_is_ended_leaves_nothing(lab: Lab) -> None:
    # Server 1 cannot become ready: server 0 is stopped as soon as it listens.
    start = lab.starter
    up = subprocess.Popen(
        [binary(), "--pool", lab.name, "up", "--servers", "2", "--memory", "64MiB", "--no-reserve"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "XDG_RUNTIME_DIR": str(start.runtime)},
    )
    up.send_signal(signal.SIGINT)
    up.communicate(timeout=PATIENCE_SECONDS)
    if up.returncode == 0:
        start.run("down")
    for process in start.processes():
        process.send(signal.SIGCONT)
    assert eventually(lambda: not start.processes())


# Files that make no sense


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("", "names no host"),
        ("alpha\nbeta memory=much\n", "nodes:2"),
        ("alpha\nbeta\nalpha\n", "stands at"),
        ("alpha\nlocalhost\n", "means every machine itself"),
        ("-oProxyCommand=reboot\n", "no name of a host"),
        ("alpha slots=3\n", "known are"),
        ("alpha memory=1MiB\n", "too little"),
    ],
)
def test_a_hosts_file_that_makes_no_sense_is_refused(lab: Lab, lines: str, told: str) -> None:
    lab.lines = lines
    assert told in lab.fails()
    assert not (lab.root / "words").exists(), "a host was reached all the same"


def test_options_that_make_no_sense_are_refused(lab: Lab) -> None:
    assert "advertise=NAME" in lab.fails("--advertise", "x")
    lab.transport_words = "'ssh"
    assert "a quote is not closed" in lab.fails()
    lab.transport_words = ""
    assert "leave --memory out" in lab.fails("--memory", "1GiB")
    assert "nodes" in lab.starter.refused("up", "--hosts", str(lab.root / "no-nodes"))
    assert "between 0.01" in lab.starter.refused(*lab.words, "--patience", "0")


def mutated(line: bytes, dice: random.Random) -> bytes:
    """Damage a line; it stays one."""
    content = bytearray(line.rstrip(b"\n"))
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(content))
        content[at : at + dice.randint(0, 3)] = bytes(
            dice.choice(b'{}[]",:0\xff\0a') for _ in range(dice.randint(0, 3))
        )
        content = content or bytearray(b"x")
    return bytes(content).replace(b"\n", b"") + b"\n"


def test_an_agent_that_is_told_nonsense_starts_nothing(lab: Lab) -> None:
    dice = random.Random(7)
    alpha = lab.hosts["alpha"]
    prepare = {
        "order": "prepare", "pool": lab.name, "pool_id": "0" * 32, "secret": "ab" * 32, "host": "alpha",
        "servers": [0], "servers_total": 1, "slots": 4096, "listen": "127.0.0.1:0", "advertise": "127.0.0.1",
        "memory": 32 * MIB, "backing": "auto", "reserve": False, "patience_millis": 5000,
    }  # fmt: skip
    lines = [json.dumps(one).encode() for one in (prepare, {"order": "start_first"}, {"order": "leave"})]
    meant = {"pool": lab.name, "pool_id": "0" * 32, "secret": "ab" * 32}
    stop = json.dumps({"order": "stop", **meant, "force": False}).encode()
    inputs = [b"", b"\n", b"x", b"\xff" * 100, b'{"order": "leave"}\n', b"{" * 100_000 + b"\n", stop + b"\n"]
    # As it should be, but for the last word: what was started is stopped again.
    inputs.append(lines[0] + b"\n" + lines[1] + b"\n")
    for _ in range(25):
        inputs.append(b"".join(mutated(line, dice) for line in lines))
        inputs.append(mutated(stop, dice))
    for words in inputs:
        done = alpha.run("host-agent", check=False, stdin=words)
        assert done.returncode in (0, 1), done
        assert b"panicked" not in done.stderr, done.stderr
        assert b"abababab" not in done.stdout + done.stderr, "the secret was shown"
    # A mutation may have changed the pool's name.
    assert eventually(lambda: not lab.users()), lab.users()
    base = alpha.runtime / "ramlace"
    assert not base.exists() or not list(base.iterdir())


def test_an_agent_that_answers_nonsense_is_an_error(lab: Lab) -> None:
    dice = random.Random(11)
    answers = [HELLO.replace("VERSION", version()), PREPARED, '{"answer": "listening", "address": "127.0.0.1:1"}']
    answers.append('{"answer": "ready", "servers": []}')
    for _ in range(12):
        lines = [mutated(line.encode(), dice) if dice.random() < 0.5 else line.encode() + b"\n" for line in answers]
        (lab.root / "said").write_bytes(b"".join(lines))
        lab.replace("alpha", f"exec cat '{lab.root}/said'")
        assert "host alpha" in lab.fails("--patience", "5")


# Hosts that die or cannot be reached later


def test_a_host_that_died_is_shown_and_the_pool_can_be_stopped(lab: Lab) -> None:
    lab.up()
    lab.hosts["beta"].kill_server(1)
    done = lab.starter.run("status", check=False)
    assert done.returncode == 1
    said = done.stderr.decode()
    assert "host beta: server 1 at" in said and "does not answer" in said, said
    states = [(server["host"], server["state"]) for server in lab.starter.status()]
    assert states == [("alpha", "up"), ("beta", "not answering"), ("gamma", "up")]
    done = lab.starter.run("down")
    assert "host beta: of its 1 server still ran: 0" in done.stderr.decode(), done.stderr
    lab.assert_nothing_left()


def pools_by_doctor(machine: Pool) -> tuple[str, str]:
    """How doctor finds the pools that a machine knows; whether mounts work there is another matter."""
    report = json.loads(machine.run("doctor", "--json", check=False).stdout)
    (found,) = (check for check in report["checks"] if check["name"] == "pools")
    return found["state"], found["found"]


def test_doctor_tells_how_a_pool_on_several_hosts_is(lab: Lab) -> None:
    lab.up()
    for machine in lab.machines():
        assert pools_by_doctor(machine) == ("ok", f"{lab.name} (3 of 3 servers answer, on hosts alpha, beta, gamma)")
    lab.hosts["beta"].kill_server(1)
    for machine in (lab.starter, lab.hosts["alpha"], lab.hosts["beta"]):
        state, found = pools_by_doctor(machine)
        assert (state, "2 of 3 servers answer" in found) == ("absent", True), found
    for server, host in ((0, "alpha"), (2, "gamma")):
        lab.hosts[host].kill_server(server)
    state, found = pools_by_doctor(lab.starter)
    assert state == "absent"
    # What cannot be reached from here may run: nobody is told to end it.
    assert f"status --pool {lab.name}" in found, found
    assert "dead" not in found, found
    lab.starter.run("down")
    assert pools_by_doctor(lab.starter) == ("ok", "none; 'ramlace up' starts one")
    lab.assert_nothing_left()


def test_down_without_a_host_stops_the_others_and_can_be_repeated(lab: Lab) -> None:
    lab.up()
    lab.replace("beta", "echo 'No route to host' >&2; exit 255")
    said = lab.starter.refused("down")
    assert "No route to host" in said, said
    assert (
        f"servers may still run on beta; to stop them by hand, run there: ramlace down --force --pool {lab.name}"
        in said
    )
    assert [bool(lab.hosts[host].processes()) for host in lab.hosts] == [False, True, False]
    assert (lab.starter.directory / "pool.json").exists()
    report = json.loads(lab.starter.run("down", "--json", check=False).stdout)
    assert not report["down"]
    assert [host["stopped"] for host in report["hosts"]] == [True, False, True]
    lab.replace("beta", "sleep 1000")
    assert "no answer" in lab.starter.refused("down", "--patience", "1")
    lab.restore("beta")
    lab.starter.run("down")
    lab.assert_nothing_left()


# SEMANTICS 40.2
def test_down_of_a_pool_whose_mount_is_used_on_one_host_stops_none(lab: Lab) -> None:
    lab.up()
    in_use = '{"answer": "error", "kind": 23, "message": "host beta: the mount on /mnt is in use by sh (7)"}'
    hello = HELLO.replace("VERSION", version())
    lab.replace("beta", f"echo '{hello}'; read -r order; echo '{in_use}'; read -r order")
    said = lab.starter.refused("down")
    assert "in use by sh (7)" in said, said
    assert "nothing was changed" in said, said
    assert [bool(lab.hosts[host].processes()) for host in lab.hosts] == [True, True, True]
    assert (lab.starter.directory / "pool.json").exists()
    report = json.loads(lab.starter.run("down", "--json", check=False).stdout)
    assert (report["down"], [host["stopped"] for host in report["hosts"]]) == (False, [False] * 3)
    lab.restore("beta")
    lab.starter.run("down")
    lab.assert_nothing_left()


def test_down_with_force_forgets_what_cannot_be_reached(lab: Lab) -> None:
    lab.up()
    lab.replace("beta", "exit 255")
    assert "is forgotten here; host beta may still run it" in lab.starter.run("down", "--force").stdout.decode()
    assert not lab.starter.directory.exists()
    # What the message said to do by hand.
    beta = lab.hosts["beta"]
    assert beta.processes()
    said = beta.refused("down")
    assert "was started from" in said, said
    beta.run("down", "--force")
    lab.assert_nothing_left()


def test_down_on_another_host_refuses_and_with_force_stops_that_host_alone(lab: Lab) -> None:
    lab.up()
    gamma = lab.hosts["gamma"]
    said = gamma.refused("down")
    assert "runs on hosts alpha, beta, gamma" in said, said
    assert "stops the servers of gamma alone" in said, said
    assert {server["state"] for server in gamma.status()} == {"up"}
    gamma.run("down", "--force")
    assert not gamma.processes()
    assert [server["state"] for server in lab.starter.status()] == ["up", "up", "not answering"]
    lab.starter.run("down")
    lab.assert_nothing_left()


def test_down_leaves_a_hosts_next_pool_of_that_name_alone(lab: Lab) -> None:
    lab.up()
    beta = lab.hosts["beta"]
    beta.run("down", "--force")
    beta.run("up", "--memory", "32MiB", "--no-reserve")
    said = lab.starter.refused("down")
    assert "host beta" in said, said
    assert "is another one by now, and was left alone" in said, said
    assert len(beta.processes()) == 2
    beta.run("down")
    lab.starter.run("down")
    lab.assert_nothing_left()


# SEMANTICS 40.3
def test_down_stops_servers_of_hosts_whose_directory_is_gone(lab: Lab) -> None:
    lab.up()
    alpha, beta = lab.hosts["alpha"], lab.hosts["beta"]
    # As systemd does with the last session of a user: the servers live on.
    for host in (alpha, beta):
        take_away(host.runtime / "ramlace")
    # What is refused there has left a directory again, with nothing of the pool in it.
    assert "is running already (1 server)" in beta.refused("up", "--memory", "32MiB")
    report = json.loads(lab.starter.run("down", "--json").stdout)
    assert report["down"]
    assert [(host["host"], host["stopped"], host["servers"]) for host in report["hosts"]] == [
        ("alpha", True, 1),
        ("beta", True, 1),
        ("gamma", True, 1),
    ]
    lab.assert_nothing_left()


# SEMANTICS 40.3
def test_down_on_a_host_whose_directory_is_gone_stops_what_runs_there_and_says_that_there_is_more(lab: Lab) -> None:
    lab.up()
    beta = lab.hosts["beta"]
    take_away(beta.runtime / "ramlace")
    done = beta.run("down")
    assert f"Pool '{lab.name}' is down." in done.stdout.decode(), done
    said = done.stderr.decode()
    assert "2 further servers of the pool did not run here" in said, said
    assert f"'ramlace down --force --pool {lab.name}' stops them" in said, said
    assert not beta.processes()
    assert "host beta: of its 1 server still ran: 0" in lab.starter.run("down").stderr.decode()
    lab.assert_nothing_left()


# SEMANTICS 40.3
def test_down_leaves_a_hosts_next_pool_alone_whose_directory_is_gone(lab: Lab) -> None:
    lab.up()
    beta = lab.hosts["beta"]
    beta.run("down", "--force")
    beta.run("up", "--memory", "32MiB", "--no-reserve")
    take_away(beta.runtime / "ramlace")
    said = lab.starter.refused("down")
    assert "is another one by now, and was left alone" in said, said
    assert len(beta.processes()) == 2
    beta.run("down")
    lab.starter.run("down")
    lab.assert_nothing_left()


# SEMANTICS 40.4
def test_down_is_no_success_while_a_server_answers_that_its_host_has_not_found(lab: Lab) -> None:
    lab.up()
    hello = HELLO.replace("VERSION", version())
    unused, stopped = '{"answer": "unused"}', '{"answer": "stopped", "servers": 0, "notes": []}'
    lab.replace("beta", f"echo '{hello}'; read -r order; echo '{unused}'; read -r order; echo '{stopped}'")
    said = lab.starter.refused("down")
    assert "host beta: its server 1 was not found there, and answers at 127.0.0.1:" in said, said
    # Without it nobody could reach the server any more.
    assert (lab.starter.directory / "secret").exists()
    assert [bool(lab.hosts[host].processes()) for host in lab.hosts] == [False, True, False]
    lab.restore("beta")
    lab.starter.run("down")
    lab.assert_nothing_left()


# A network of their own


@pytest.fixture
def network() -> Iterator[Network]:
    with joined(*(f"r{letter}{os.getpid()}" for letter in "abc")) as made:
        yield made


@pytest.fixture
def net_lab(network: Network, root: Path) -> Iterator[tuple[Lab, Callable[..., Any]]]:
    """A lab whose hosts have a network, and a way to run commands in the namespace of its client."""
    *hosts, client = network.names
    lab = Lab(root, tuple(hosts))
    lab.write_transport("ip netns exec $host")
    lab.lines = "".join(f"{host} memory=64MiB servers=2 advertise={network.addresses[host]}\n" for host in hosts)

    def run(*words: str, stdin: bytes = b"", check: bool = True) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            ["ip", "netns", "exec", client, binary(), "--pool", lab.name, *words],
            input=stdin,
            capture_output=True,
            check=check,
            env={**os.environ, "XDG_RUNTIME_DIR": str(lab.starter.runtime), "RAMLACE_LOCAL": "off"},
            timeout=PATIENCE_SECONDS,
        )

    yield lab, run
    lab.close()


@pytest.mark.needs_root
def test_hosts_with_a_network_each(network: Network, net_lab: tuple[Lab, Callable[..., Any]]) -> None:
    lab, run = net_lab
    first, second, _ = network.names
    run(*lab.words)
    servers = json.loads(run("status", "--json").stdout)["servers"]
    assert [server["address"].rsplit(":")[0] for server in servers] == [
        network.addresses[host] for host in (first, second, first, second)
    ]
    before = [network.received(host) for host in (first, second)]
    content = pattern(5, 40 * MIB + 1)
    run("cp", "-", "ramlace:/x", stdin=content)
    gained = [network.received(host) - was for host, was in zip((first, second), before, strict=True)]
    assert sum(gained) > len(content), "the bytes took another way than the network"
    assert min(gained) > len(content) / 4, "one host got almost nothing"
    assert run("cat", "/x").stdout == content
    # On a host, by its own pool.json.
    there = {**os.environ, "XDG_RUNTIME_DIR": str(lab.hosts[second].runtime), "RAMLACE_LOCAL": "off"}
    words = ["ip", "netns", "exec", second, binary(), "--pool", lab.name, "cat", "/x"]
    done = subprocess.run(words, capture_output=True, check=True, env=there, timeout=PATIENCE_SECONDS)
    assert done.stdout == content
    # A cable is pulled: the bytes there cannot be read, and `down` takes another way.
    ip("-n", second, "link", "set", "card", "down")
    done = run("status", "--json", check=False)
    assert done.returncode == 1
    states = [(server["host"], server["state"]) for server in json.loads(done.stdout)["servers"]]
    assert states == [(first, "up"), (second, "not answering")] * 2
    done = run("cat", "/x", check=False)
    assert done.returncode == 1
    assert network.addresses[second].encode() in done.stderr, done.stderr
    run("down")
    lab.assert_nothing_left()


@pytest.mark.needs_root
def test_a_host_that_says_a_wrong_address_is_an_error(
    network: Network, net_lab: tuple[Lab, Callable[..., Any]]
) -> None:
    lab, run = net_lab
    second = network.names[1]
    lab.lines = lab.lines.replace(network.addresses[second], "10.219.79.99")
    began = time.monotonic()
    done = run(*lab.words, check=False)
    print(f"refused after {time.monotonic() - began:.1f} s")
    assert done.returncode == 1
    assert f"host {second}" in done.stderr.decode(), done.stderr
    assert "10.219.79.99" in done.stderr.decode(), done.stderr
    lab.assert_nothing_left()


def test_every_machine_has_the_new_secret_after_a_rotation_and_down_stops_them_all(lab: Lab) -> None:
    lab.up()
    old = lab.starter.secret
    report = lab.starter.json("secret", "rotate")
    assert (report["state"], report["file"]) == ("in use", str(lab.starter.directory / "secret"))
    secrets = {machine.secret for machine in lab.machines()}
    assert len(secrets) == 1
    assert old not in secrets
    assert lab.starter.json("secret", "rotate", "--finish")["state"] == "finished"
    lab.starter.run("down")
    lab.assert_nothing_left()


# SEMANTICS 134.2
def test_whoever_started_a_pool_stops_it_with_the_secret_of_before(lab: Lab) -> None:
    lab.up()
    path = lab.starter.directory / "secret"
    old = path.read_bytes()
    lab.starter.run("secret", "rotate")
    # As where the new secret came into use after the command was over.
    path.write_bytes(old)
    lab.starter.run("down")
    lab.assert_nothing_left()
