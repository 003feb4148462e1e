//! Peers that stop reading or writing: bounded, and no other connection is delayed.

use std::time::Duration;

use ramlace_base::ErrorKind;
use ramlace_transport::blocking::Connection;
use ramlace_wire::Kind;
use ramlace_wire::chunk::{Keep, ReadChunk};

use crate::hostile::{send_all, tag_bytes, write_head};
use crate::memory::pattern;
use crate::proxy::{GREETING_UP, Mischief, Proxy};
use crate::server::{Setup, TestServer, header, owner, read, soon, target, write};

/// Anonymous memory of this process.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[test]
fn a_client_that_never_reads_costs_little_and_delays_nobody() {
    // A Unix socket holds some hundreds of small requests at most.
    for (server, requests) in [(TestServer::tcp(), 8000), (TestServer::unix(), 150)] {
        for length in [60_000, 1 << 20] {
            let mut greedy = server.connect();
            let before = resident_bytes();
            let request = ReadChunk { target: target(), offset: 0, length, take: false, keep: Keep::No };
            for call in 0..requests {
                greedy.send(header(Kind::ReadChunk, call), &request, &[], soon()).unwrap();
            }
            let mut other = server.connect();
            let bytes = pattern(200_000, 1);
            server.memory().write(0, &bytes);
            for call in 0..100 {
                assert_eq!(read(&mut other, call, 0, 200_000).unwrap(), bytes);
            }
            // Other tests run beside this one; unbounded queues would be 480 MB and more over TCP.
            let grown = resident_bytes().saturating_sub(before);
            assert!(grown < 300 << 20, "{grown} bytes more");
            drop((greedy, other));
            server.wait_for_ends(2);
        }
    }
}

#[test]
fn a_client_that_never_reads_loses_its_connection() {
    let setup = Setup { stall: Some(Duration::from_millis(100)), ..Setup::default() };
    for server in [TestServer::tcp_with(setup), TestServer::unix_with(setup)] {
        for length in [60_000, 1 << 20] {
            let mut greedy = server.connect();
            let request = ReadChunk { target: target(), offset: 0, length, take: false, keep: Keep::No };
            for call in 0..600 {
                if greedy.send(header(Kind::ReadChunk, call), &request, &[], soon()).is_err() {
                    break;
                }
            }
            let error = server.wait_for_error();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            assert!(error.message().contains("reads nothing"), "{error}");
        }
    }
}

#[test]
fn a_client_that_stops_inside_a_frame_loses_its_connection_and_an_idle_one_does_not() {
    let setup = Setup { stall: Some(Duration::from_millis(50)), ..Setup::default() };
    for server in [TestServer::tcp_with(setup), TestServer::unix_with(setup)] {
        let mut idle = server.connect();
        for data_bytes in [1000, 1 << 20] {
            for sent in [0, 500] {
                // The head is here, and so many bytes behind it.
                let head = write_head(0, data_bytes as u32).len() + tag_bytes(&server);
                let stall = Mischief::StallAt(GREETING_UP + head + sent);
                let proxy = Proxy::new(&server.address, stall, Mischief::None);
                let mut connection = Connection::connect(&proxy.address, &owner(), None, soon()).unwrap();
                assert!(write(&mut connection, 1, 0, &vec![1; data_bytes]).unwrap_err().fatal);
                let error = server.wait_for_error();
                assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
                assert!(error.message().contains("sends nothing"), "{error}");
            }
        }
        let connection = server.connect();
        let raw = connection.descriptor().unwrap().try_clone_to_owned().unwrap();
        send_all(&raw, b"R");
        assert_eq!(server.wait_for_error().kind(), ErrorKind::TimedOut);
        assert_eq!(read(&mut idle, 1, 0, 1).unwrap().len(), 1);
    }
}
