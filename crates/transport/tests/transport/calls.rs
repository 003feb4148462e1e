//! Calls as they should go.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::time::Duration;

use ramlace_base::{Epoch, ErrorKind, Redirect, limits};
use ramlace_transport::blocking;
use ramlace_transport::nonblocking;
use ramlace_wire::chunk::{GrantLane, Keep, ReadChunk, WriteChunk, WriteOrigin};
use ramlace_wire::cluster::GetMap;
use ramlace_wire::session::Heartbeat;
use ramlace_wire::{Header, Kind, Request};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde::{Deserialize, Serialize};

use crate::memory::{Random, pattern};
use crate::proxy::{GREETING_DOWN, Mischief, Proxy};
use crate::server::{TestServer, header, map, owner, read, soon, target, write};

/// A message with a body of any length; the server sends the body back.
#[derive(Serialize, Deserialize)]
struct Long {
    bytes: Vec<u8>,
}

impl Request for Long {
    const KIND: Kind = Kind::ReadLink;
    type Reply = Long;
}

#[test]
fn data_of_every_size_goes_both_ways() {
    for server in TestServer::all() {
        let mut connection = server.connect();
        let sizes = [
            0,
            1,
            63,
            64,
            4096,
            16_383,
            16_384,
            65_535,
            65_536,
            65_537,
            262_144,
            1 << 20,
            (8 << 20) - 1,
            8 << 20,
        ];
        for (index, size) in sizes.into_iter().enumerate() {
            let call = index as u32 * 2;
            let bytes = pattern(size, index as u64);
            write(&mut connection, call, 100 + index as u64, &bytes).unwrap();
            assert_eq!(server.memory().read(100 + index, size), bytes, "{size} bytes written");
            assert_eq!(
                read(&mut connection, call + 1, 100 + index as u64, size).unwrap(),
                bytes,
                "{size} bytes read"
            );
        }
        drop(connection);
        assert_eq!(server.wait_for_ends(1), [None]);
    }
}

#[test]
fn many_buffers_are_gathered_and_scattered() {
    for server in TestServer::both() {
        let mut connection = server.connect();
        let bytes = pattern(300_000, 1);
        let pieces: Vec<IoSlice<'_>> = bytes.chunks(997).map(IoSlice::new).collect();
        let request = WriteChunk { target: target(), offset: 0, origin: WriteOrigin::Program };
        connection.send(header(Kind::WriteChunk, 1), &request, &pieces, soon()).unwrap();
        connection.receive::<WriteChunk>(1, soon()).unwrap();
        let request = ReadChunk { target: target(), offset: 0, length: 300_000, take: false, keep: Keep::No };
        connection.send(header(Kind::ReadChunk, 2), &request, &[], soon()).unwrap();
        connection.receive::<ReadChunk>(2, soon()).unwrap();
        let mut back = vec![0; 300_000];
        let mut pieces: Vec<IoSliceMut<'_>> = back.chunks_mut(1009).map(IoSliceMut::new).collect();
        connection.receive_data(&mut pieces, soon()).unwrap();
        assert_eq!(back, bytes);
    }
}

/// How many bytes wake a reader of this connection.
fn wakes_at(connection: &blocking::Connection) -> libc::c_int {
    let (mut bytes, mut length): (libc::c_int, libc::socklen_t) = (0, 4);
    let socket = connection.descriptor().unwrap().as_raw_fd();
    // SAFETY: the kernel writes a number and its length, which outlive the call.
    let outcome = unsafe {
        let number = (&raw mut bytes).cast();
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, number, &raw mut length)
    };
    assert_eq!(outcome, 0);
    bytes
}

#[test]
fn a_reader_wakes_for_some_records_together_and_then_for_a_byte_again() {
    let server = TestServer::tcp();
    let mut connection = server.connect();
    for (call, size) in [(1, 1 << 20), (2, 3), (3, 65_536), (4, 65_537), (5, 300_001)] {
        let length = size as u32;
        let request = ReadChunk { target: target(), offset: 0, length, take: false, keep: Keep::No };
        connection.send(header(Kind::ReadChunk, call), &request, &[], soon()).unwrap();
        connection.receive::<ReadChunk>(call, soon()).unwrap();
        if call % 2 == 0 {
            connection.skip_data(soon()).unwrap();
        } else {
            let mut bytes = vec![1; size];
            connection.receive_data(&mut [IoSliceMut::new(&mut bytes)], soon()).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
        assert_eq!(wakes_at(&connection), 1, "after {size} bytes");
    }
}

#[test]
fn a_reader_that_has_taken_a_part_of_a_record_wakes_for_the_rest() {
    let server = TestServer::tcp();
    let record = 65_536;
    for (size, part) in
        [(2, 200), (2, 30_000), (2, 65_000), (2, 70_000), (3, 70_000), (3, 120_000), (4, 140_000)]
    {
        // The head and so much of the data come, and the rest when the reader has gone to sleep.
        let pause = Mischief::PauseAt(GREETING_DOWN + part, Duration::from_millis(20));
        let proxy = Proxy::new(&server.address, Mischief::None, pause);
        let mut connection = blocking::Connection::connect(&proxy.address, &owner(), None, soon()).unwrap();
        // A thread that is not woken sleeps for ever.
        let socket = connection.descriptor().unwrap().try_clone_to_owned().unwrap();
        set_socket_timeout(&socket, Timeout::Recv, None).unwrap();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(read(&mut connection, 1, 0, size * record).unwrap().len()));
        let outcome = is_done.recv_timeout(Duration::from_secs(20));
        let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        assert_eq!(outcome, Ok(size * record), "{part} bytes first");
    }
}

#[test]
fn requests_of_all_sizes_may_be_under_way_together() {
    for server in TestServer::both() {
        let mut connection = server.connect();
        let mut random = Random(5);
        let bytes = pattern(4 << 20, 2);
        server.memory().write(0, &bytes);
        for round in 0..20u32 {
            let calls: Vec<(u32, usize, usize)> = (0..30)
                .map(|index| {
                    let length = [0, 1, 100, 5_000, 70_000, 300_000][random.below(6)];
                    (round * 100 + index, random.below((4 << 20) - length), length)
                })
                .collect();
            for &(call, offset, length) in &calls {
                let request = ReadChunk {
                    target: target(),
                    offset: offset as u64,
                    length: length as u32,
                    take: false,
                    keep: Keep::No,
                };
                connection.send(header(Kind::ReadChunk, call), &request, &[], soon()).unwrap();
            }
            for &(call, offset, length) in &calls {
                let received = connection.receive::<ReadChunk>(call, soon()).unwrap();
                assert_eq!(received.data_bytes as usize, length);
                // Every third is not taken; the next receive skips it.
                if call % 3 > 0 {
                    let mut into = vec![0; length];
                    connection.receive_data(&mut [IoSliceMut::new(&mut into)], soon()).unwrap();
                    assert_eq!(into, bytes[offset..offset + length]);
                }
            }
        }
    }
}

#[test]
fn a_pipeline_of_small_frames_is_answered_in_order() {
    for server in TestServer::both() {
        let mut connection = server.connect();
        // A Unix socket holds some 200 small frames each way.
        for round in 0..20 {
            for call in 0..150 {
                connection
                    .send(header(Kind::Heartbeat, round * 150 + call), &Heartbeat {}, &[], soon())
                    .unwrap();
            }
            for call in 0..150 {
                let received = connection.receive::<Heartbeat>(round * 150 + call, soon()).unwrap();
                assert_eq!(received.epoch, Epoch(9));
            }
        }
    }
}

#[test]
fn a_server_is_woken_by_a_request_and_not_again_when_its_answer_is_taken() {
    const CALLS: u32 = 40;
    let server = TestServer::unix();
    let mut connection = server.connect();
    // Until the server sleeps again; if it does not yet, nothing has to wake it.
    let rest = || std::thread::sleep(Duration::from_millis(3));
    rest();
    let before = server.sleeps();
    for call in 0..CALLS {
        connection.send(header(Kind::Heartbeat, call), &Heartbeat {}, &[], soon()).unwrap();
        let descriptor = connection.descriptor().unwrap();
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None).unwrap();
        rest();
        connection.receive::<Heartbeat>(call, soon()).unwrap();
        rest();
    }
    let sleeps = server.sleeps() - before;
    assert!(sleeps < u64::from(CALLS) * 3 / 2, "{sleeps} for {CALLS} calls");
}

#[test]
fn bodies_may_be_longer_than_any_buffer() {
    for server in TestServer::both() {
        let mut connection = server.connect();
        for (call, length) in
            [0, 16_000, 16_383, 16_384, 100_000, limits::BODY_BYTES_MAX as usize - 3].into_iter().enumerate()
        {
            let request = Long { bytes: pattern(length, 3) };
            connection.send(header(Kind::ReadLink, call as u32), &request, &[], soon()).unwrap();
            let received = connection.receive::<Long>(call as u32, soon()).unwrap();
            assert_eq!(received.reply.bytes, request.bytes);
        }
    }
}

#[test]
fn data_that_nobody_takes_is_skipped() {
    for server in TestServer::both() {
        let mut connection = server.connect();
        for (call, size) in [10, 70_000, 3 << 20].into_iter().enumerate() {
            let call = call as u32 * 2;
            write(&mut connection, call, u64::MAX, &pattern(size, 4)).unwrap();
            assert_eq!(read(&mut connection, call + 1, 0, 3).unwrap(), [0, 0, 0]);
        }
    }
}

#[test]
fn what_the_server_says_leaves_the_connection_as_it_was() {
    let server = TestServer::tcp();
    let mut connection = server.connect();
    connection.send(header(Kind::GetMap, 1), &GetMap {}, &[], soon()).unwrap();
    let failure = connection.receive::<GetMap>(1, soon()).unwrap_err();
    assert_eq!((failure.error.kind(), failure.fatal), (ErrorKind::Redirect(Redirect::Moved), false));
    assert_eq!(failure.map.as_deref(), Some(&map()));
    assert!(connection.is_open());
    write(&mut connection, 2, 0, b"on").unwrap();
}

#[test]
fn too_much_data_for_a_frame_is_refused_before_anything_is_sent() {
    let server = TestServer::tcp();
    let mut connection = server.connect();
    let failure = write(&mut connection, 1, 0, &vec![0; (8 << 20) + 1]).unwrap_err();
    assert_eq!((failure.error.kind(), failure.fatal), (ErrorKind::TooLarge, false));
    write(&mut connection, 2, 0, b"on").unwrap();
}

#[test]
fn buffers_of_another_length_are_refused() {
    let server = TestServer::tcp();
    let mut connection = server.connect();
    let request = ReadChunk { target: target(), offset: 0, length: 100, take: false, keep: Keep::No };
    connection.send(header(Kind::ReadChunk, 1), &request, &[], soon()).unwrap();
    connection.receive::<ReadChunk>(1, soon()).unwrap();
    let failure = connection.receive_data(&mut [IoSliceMut::new(&mut [0; 99])], soon()).unwrap_err();
    assert_eq!((failure.error.kind(), failure.fatal), (ErrorKind::Invalid, false));
    connection.skip_data(soon()).unwrap();
    write(&mut connection, 2, 0, b"on").unwrap();
}

#[test]
fn a_descriptor_travels_with_its_reply() {
    let server = TestServer::unix();
    let mut connection = server.connect();
    assert!(connection.is_local());
    server.memory().write(0, b"shared");
    let request = GrantLane { target: target(), mapping: Some(1) };
    // Two grants among other requests, all of them in flight at once.
    for call in 0..4 {
        connection.send(header(Kind::Heartbeat, call * 2), &Heartbeat {}, &[], soon()).unwrap();
        connection.send(header(Kind::GrantLane, call * 2 + 1), &request, &[], soon()).unwrap();
    }
    for call in 0..4 {
        assert!(connection.receive::<Heartbeat>(call * 2, soon()).unwrap().descriptor.is_none());
        let granted = connection.receive::<GrantLane>(call * 2 + 1, soon()).unwrap();
        let descriptor = granted.descriptor.expect("a descriptor was granted");
        let mut bytes = [0; 6];
        rustix::io::pread(&descriptor, &mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"shared");
        let descriptor_flags = rustix::io::fcntl_getfd(&descriptor).unwrap();
        assert!(descriptor_flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}

#[test]
fn over_tcp_no_descriptor_travels() {
    let server = TestServer::tcp();
    let mut connection = server.connect();
    assert!(!connection.is_local());
    let request = GrantLane { target: target(), mapping: Some(1) };
    connection.send(header(Kind::GrantLane, 1), &request, &[], soon()).unwrap();
    let failure = connection.receive::<GrantLane>(1, soon()).unwrap_err();
    assert_eq!((failure.error.kind(), failure.fatal), (ErrorKind::Unsupported, false));
}

#[test]
fn bytes_that_come_one_by_one_are_as_good() {
    for server in TestServer::both() {
        let proxy = Proxy::new(&server.address, Mischief::Dribble, Mischief::Dribble);
        let mut connection = blocking::Connection::connect(&proxy.address, &owner(), None, soon()).unwrap();
        let bytes = pattern(80_000, 6);
        write(&mut connection, 1, 0, &bytes[..3000]).unwrap();
        write(&mut connection, 2, 3000, &bytes[3000..]).unwrap();
        assert_eq!(read(&mut connection, 3, 0, 2000).unwrap(), bytes[..2000]);
        assert_eq!(read(&mut connection, 4, 0, 80_000).unwrap(), bytes);
        drop(connection);
    }
}

fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

#[test]
fn servers_call_each_other() {
    for server in TestServer::both() {
        run(async {
            let limit = Duration::from_secs(20);
            let mut connection =
                nonblocking::Connection::connect(&server.address, &owner(), None).await.unwrap();
            for length in [0, 100, 500_000] {
                let request = Long { bytes: pattern(length, 7) };
                let reply = connection.call(Header::request(Kind::ReadLink), &request, limit).await.unwrap();
                assert_eq!(reply.bytes, request.bytes);
            }
            let failure =
                connection.call(Header::request(Kind::GetMap), &GetMap {}, limit).await.unwrap_err();
            assert_eq!((failure.error.kind(), failure.fatal), (ErrorKind::Redirect(Redirect::Moved), false));
            assert_eq!(failure.map.as_deref(), Some(&map()));
            connection.call(Header::request(Kind::Heartbeat), &Heartbeat {}, limit).await.unwrap();
        });
    }
}

#[test]
fn a_server_that_does_not_answer_another_in_time_loses_the_connection() {
    let server = TestServer::tcp();
    let proxy = Proxy::new(&server.address, Mischief::None, Mischief::StallAt(crate::proxy::GREETING_DOWN));
    run(async {
        let mut connection = nonblocking::Connection::connect(&proxy.address, &owner(), None).await.unwrap();
        let limit = Duration::from_millis(50);
        let failure =
            connection.call(Header::request(Kind::Heartbeat), &Heartbeat {}, limit).await.unwrap_err();
        assert_eq!((failure.error.kind(), failure.fatal), (ErrorKind::TimedOut, true));
        assert!(failure.error.message().contains(&proxy.address.to_string()), "{failure}");
        let failure =
            connection.call(Header::request(Kind::Heartbeat), &Heartbeat {}, limit).await.unwrap_err();
        assert!(failure.fatal);
    });
}
