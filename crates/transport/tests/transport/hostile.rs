//! Peers that have proved the secret and then send nonsense.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use ramlace_base::{Epoch, ErrorKind};
use ramlace_transport::Address;
use ramlace_transport::blocking::Connection;
use ramlace_wire::chunk::{GrantLane, ReadChunk, WriteChunk, WriteOrigin};
use ramlace_wire::session::Heartbeat;
use ramlace_wire::{HEADER_BYTES, Header, Kind, encode_body, flags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::memory::{Random, pattern};
use crate::proxy::{GREETING_DOWN, GREETING_UP, HELLO, Mischief, Proxy};
use crate::server::{Setup, TestServer, header, owner, read, soon, target, write};

pub fn send_all(socket: &OwnedFd, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            // The server has closed the connection; what it made of it is asserted elsewhere.
            Err(_) => return,
        }
    }
}

/// Header and body of a write, as they are without a key.
pub fn write_head(offset: u64, data_bytes: u32) -> Vec<u8> {
    let body = encode_body(&WriteChunk { target: target(), offset, origin: WriteOrigin::Program });
    let header = Header { body_bytes: body.len() as u32, data_bytes, ..header(Kind::WriteChunk, 1) };
    [&header.encode()[..], &body].concat()
}

/// What follows each head on connections to this server.
pub fn tag_bytes(server: &TestServer) -> usize {
    if matches!(server.address, Address::Tcp(_)) { 16 } else { 0 }
}

fn raw(connection: &Connection) -> OwnedFd {
    connection.descriptor().unwrap().try_clone_to_owned().unwrap()
}

/// Bytes of a header, changed and with the checksum put right again.
fn with_checksum(mut bytes: [u8; HEADER_BYTES], change: impl FnOnce(&mut [u8; HEADER_BYTES])) -> Vec<u8> {
    change(&mut bytes);
    let checksum = crc_fast::crc32_iscsi(&bytes[..60]);
    bytes[60..].copy_from_slice(&checksum.to_le_bytes());
    bytes.to_vec()
}

#[test]
fn the_end_at_every_byte_of_a_request_is_an_error_and_between_requests_it_is_none() {
    {
        let server = TestServer::unix();
        let body = encode_body(&WriteChunk { target: target(), offset: 0, origin: WriteOrigin::Program });
        let data = pattern(50, 1);
        let frame_header =
            Header { body_bytes: body.len() as u32, data_bytes: 50, ..header(Kind::WriteChunk, 1) };
        let frame = [&frame_header.encode()[..], &body, &data].concat();
        for length in 0..=frame.len() {
            let connection = server.connect();
            send_all(&raw(&connection), &frame[..length]);
            drop(connection);
            let end = server.wait_for_ends(1).remove(0);
            match end {
                None => assert!(length == 0 || length == frame.len(), "a clean end after {length} bytes"),
                Some(error) => {
                    assert_eq!(error.kind(), ErrorKind::HostDown, "{error}");
                    // With a reply due, closing a connection resets it.
                    assert!(length > 0, "{error}");
                }
            }
        }
        // The same with data that go to their place.
        for length in [0, 1, 100_000, 199_999] {
            let connection = server.connect();
            let socket = raw(&connection);
            send_all(&socket, &write_head(0, 200_000));
            send_all(&socket, &vec![1; length]);
            drop((connection, socket));
            assert_eq!(server.wait_for_error().kind(), ErrorKind::HostDown);
        }
        server.assert_alive();
    }
}

#[test]
fn the_end_at_every_byte_of_a_reply_is_an_error() {
    let server = TestServer::tcp();
    server.memory().write(0, &pattern(100, 1));
    // A reply of 64 + 1 + 100 bytes, and two tags.
    for length in 0..197 {
        let proxy = Proxy::new(&server.address, Mischief::None, Mischief::CutAt(GREETING_DOWN + length));
        // The cut at nothing may come before the handshake has been finished by the client.
        let Ok(mut connection) = Connection::connect(&proxy.address, &owner(), None, soon()) else {
            assert_eq!(length, 0);
            continue;
        };
        let failure = read(&mut connection, 1, 0, 100).unwrap_err();
        assert_eq!((failure.error.kind(), failure.fatal), (ErrorKind::HostDown, true), "{length}: {failure}");
        assert!(!connection.is_open());
    }
}

#[test]
fn a_damaged_header_is_noticed_by_both_sides() {
    let server = TestServer::tcp();
    let mut random = Random(11);
    for _ in 0..60 {
        let (byte, bit) = (random.below(HEADER_BYTES), random.below(8) as u8);
        let proxy = Proxy::new(&server.address, Mischief::Flip(GREETING_UP + byte, bit), Mischief::None);
        let mut connection = Connection::connect(&proxy.address, &owner(), None, soon()).unwrap();
        assert!(write(&mut connection, 1, 0, b"never").unwrap_err().fatal);
        drop((connection, proxy));
        let error = server.wait_for_error();
        assert!([ErrorKind::Corrupt, ErrorKind::Protocol].contains(&error.kind()), "{error}");

        let proxy = Proxy::new(&server.address, Mischief::None, Mischief::Flip(GREETING_DOWN + byte, bit));
        let mut connection = Connection::connect(&proxy.address, &owner(), None, soon()).unwrap();
        let failure = read(&mut connection, 1, 0, 10).unwrap_err();
        assert!([ErrorKind::Corrupt, ErrorKind::Protocol].contains(&failure.error.kind()), "{failure}");
        assert!(failure.fatal && !connection.is_open());
        drop((connection, proxy));
        server.wait_for_ends(1);
    }
    assert_eq!(server.memory().read(0, 5), [0; 5]);
    server.assert_alive();
}

#[test]
fn the_end_at_every_byte_of_a_sealed_request_is_an_error() {
    let server = TestServer::tcp();
    // 64 bytes of header, a body, 50 bytes of data, and two tags.
    let frame = write_head(0, 50).len() + 16 + 50 + 16;
    for length in 1..frame {
        let proxy = Proxy::new(&server.address, Mischief::CutAt(GREETING_UP + length), Mischief::None);
        let mut connection = Connection::connect(&proxy.address, &owner(), None, soon()).unwrap();
        assert!(write(&mut connection, 1, 0, &pattern(50, 1)).unwrap_err().fatal);
        drop(connection);
        assert_eq!(server.wait_for_error().kind(), ErrorKind::HostDown);
    }
    assert_eq!(server.memory().read(0, 50), vec![0; 50]);
}

// SEMANTICS 27.3
#[test]
fn a_bit_changed_anywhere_on_the_network_is_noticed_before_a_byte_reaches_its_place() {
    let server = TestServer::tcp();
    server.memory().write(1 << 20, &pattern(200_000, 2));
    let head = write_head(0, 200_000).len() + 16;
    let mut random = Random(17);
    for _ in 0..60 {
        let (byte, bit) = (random.below(head + 200_000 + 4 * 16), random.below(8) as u8);
        let flip = Mischief::Flip(GREETING_UP + byte, bit);
        let proxy = Proxy::new(&server.address, flip, Mischief::None);
        let mut connection = Connection::connect(&proxy.address, &owner(), None, soon()).unwrap();
        assert!(write(&mut connection, 1, 0, &vec![1; 200_000]).unwrap_err().fatal);
        drop((connection, proxy));
        let error = server.wait_for_error();
        assert!([ErrorKind::Corrupt, ErrorKind::Protocol].contains(&error.kind()), "{byte}: {error}");
        // The record that it hit is not there, nor what comes behind it.
        let from = byte.saturating_sub(head) / (65_536 + 16) * 65_536;
        assert_eq!(server.memory().read(from, 200_000 - from), vec![0; 200_000 - from], "{byte}");
        server.memory().write(0, &vec![0; 200_000]);

        let (byte, bit) = (random.below(200_000), random.below(8) as u8);
        let flip = Mischief::Flip(GREETING_DOWN + byte, bit);
        let proxy = Proxy::new(&server.address, Mischief::None, flip);
        let mut connection = Connection::connect(&proxy.address, &owner(), None, soon()).unwrap();
        let failure = read(&mut connection, 1, 1 << 20, 200_000).unwrap_err();
        assert!([ErrorKind::Corrupt, ErrorKind::Protocol].contains(&failure.error.kind()), "{failure}");
        drop((connection, proxy));
        server.wait_for_ends(1);
    }
    server.assert_alive();
}

#[test]
fn a_pool_that_trusts_its_network_still_notices_a_changed_head() {
    let server = TestServer::tcp_with(Setup { trusts_network: true, ..Setup::default() });
    let head = write_head(0, 1000).len() + 16;
    for byte in 0..head {
        let flip = Mischief::Flip(GREETING_UP + byte, (byte % 8) as u8);
        let proxy = Proxy::new(&server.address, flip, Mischief::None);
        let mut connection = Connection::connect(&proxy.address, &owner(), None, soon()).unwrap();
        assert!(write(&mut connection, 1, 0, &vec![1; 1000]).unwrap_err().fatal);
        drop((connection, proxy));
        let error = server.wait_for_error();
        assert!([ErrorKind::Corrupt, ErrorKind::Protocol].contains(&error.kind()), "{byte}: {error}");
    }
    assert_eq!(server.memory().read(0, 1000), vec![0; 1000]);
}

#[test]
fn a_frame_injected_into_a_proved_connection_ends_it_and_is_not_done() {
    for server in
        [TestServer::tcp(), TestServer::tcp_with(Setup { trusts_network: true, ..Setup::default() })]
    {
        let mut connection = server.connect();
        write(&mut connection, 1, 0, b"mine").unwrap();
        // An attacker on the network knows the protocol and all that was sent in plain.
        send_all(
            &raw(&connection),
            &[write_head(0, 5), vec![0; 16], b"yours".to_vec(), vec![0; 16]].concat(),
        );
        let error = server.wait_for_error();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(write(&mut connection, 2, 0, b"more").unwrap_err().fatal);
        assert_eq!(server.memory().read(0, 5), b"mine\0");
    }
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let server = TestServer::unix();
    let good = header(Kind::Heartbeat, 1).encode();
    let number = |at: usize, value: u32| {
        with_checksum(good, |bytes| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes()))
    };
    let nonsense: Vec<(&str, Vec<u8>)> = vec![
        ("a huge body", number(52, u32::MAX)),
        ("huge data", number(56, u32::MAX)),
        ("a body one byte too long", number(52, (1 << 20) + 1)),
        ("data one byte too long", number(56, (8 << 20) + 1)),
        ("an old version", with_checksum(good, |bytes| bytes[4] = 99)),
        ("an unknown message", with_checksum(good, |bytes| bytes[7] = 99)),
        ("unknown flags", with_checksum(good, |bytes| bytes[9] = 0x80)),
        ("another magic", with_checksum(good, |bytes| bytes[0] = 0)),
        ("a wrong checksum", {
            let mut bytes = good;
            bytes[60] ^= 1;
            bytes.to_vec()
        }),
        ("garbage", pattern(100_000, 3)),
    ];
    for (what, bytes) in nonsense {
        let connection = server.connect();
        send_all(&raw(&connection), &bytes);
        let error = server.wait_for_error();
        let kinds = [ErrorKind::Protocol, ErrorKind::Corrupt, ErrorKind::TooLarge];
        assert!(kinds.contains(&error.kind()), "{what}: {error}");
    }
    server.assert_alive();
}

/// A reply as the server would send it, changed.
fn reply(kind: Kind, call: u32, change: impl FnOnce(&mut Header), body: &[u8]) -> Vec<u8> {
    let mut header = Header { body_bytes: body.len() as u32, ..header(kind, call).reply(Epoch(1)) };
    change(&mut header);
    [&header.encode()[..], body].concat()
}

#[test]
fn replies_that_make_no_sense_end_the_connection() {
    let server = TestServer::unix();
    let unit = encode_body(&());
    let nonsense = vec![
        ("another call", reply(Kind::Heartbeat, 2, |_| {}, &unit)),
        ("another message", reply(Kind::Unlink, 1, |_| {}, &unit)),
        ("no reply", reply(Kind::Heartbeat, 1, |header| header.flags = 0, &unit)),
        (
            "an error with data",
            reply(
                Kind::Heartbeat,
                1,
                |header| {
                    header.flags |= flags::ERROR;
                    header.data_bytes = 1;
                },
                &[],
            ),
        ),
        ("an error that says nothing", reply(Kind::Heartbeat, 1, |header| header.flags |= flags::ERROR, &[])),
        ("a body too long", reply(Kind::Heartbeat, 1, |_| {}, &[1, 2, 3])),
        (
            "a descriptor that is not there",
            reply(Kind::Heartbeat, 1, |header| header.flags |= flags::DESCRIPTOR, &unit),
        ),
        ("garbage", pattern(500, 4)),
    ];
    for (what, bytes) in nonsense {
        let proxy = Proxy::new(&server.address, Mischief::None, Mischief::Replace(GREETING_DOWN, bytes));
        let mut connection = Connection::connect(&proxy.address, &owner(), None, soon()).unwrap();
        connection.send(header(Kind::Heartbeat, 1), &Heartbeat {}, &[], soon()).unwrap();
        let failure = connection.receive::<Heartbeat>(1, soon()).unwrap_err();
        assert_eq!((failure.error.kind(), failure.fatal), (ErrorKind::Protocol, true), "{what}: {failure}");
        assert!(!connection.is_open(), "{what}");
    }
}

/// Sends bytes with one end of a pipe; returns the other end, which sees its end when no process holds the
/// first one any more.
fn send_with_pipe(socket: impl AsFd, bytes: &[u8]) -> std::fs::File {
    let (read, write) = rustix::pipe::pipe().unwrap();
    let descriptors = [write.as_fd(), write.as_fd(), write.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    read.into()
}

#[test]
fn descriptors_that_a_client_sends_are_closed() {
    let server = TestServer::unix();
    let mut connection = server.connect();
    let body = encode_body(&Heartbeat {});
    let frame = Header { body_bytes: body.len() as u32, ..header(Kind::Heartbeat, 1) }.encode();
    let mut pipe = send_with_pipe(raw(&connection), &[&frame[..], &body].concat());
    connection.receive::<Heartbeat>(1, soon()).unwrap();
    assert_eq!(pipe.read(&mut [0]).unwrap(), 0);
    write(&mut connection, 2, 0, b"on").unwrap();
}

#[test]
fn descriptors_that_a_server_did_not_announce_are_closed() {
    use std::os::unix::net::UnixListener;
    // A server of the test's own, behind which a real one does the greeting.
    let server = TestServer::unix();
    let directory = crate::server::scratch_directory();
    let path = directory.join("rogue");
    let listener = UnixListener::bind(&path).unwrap();
    let real = server.address.clone();
    let rogue = std::thread::spawn(move || {
        use std::io::Write;
        let (mut client, _) = listener.accept().unwrap();
        let mut real = crate::proxy::Stream::connect(&real);
        let mut bytes = [0; GREETING_UP];
        client.read_exact(&mut bytes[..HELLO]).unwrap();
        real.write_all(&bytes[..HELLO]).unwrap();
        let mut answer = [0; GREETING_DOWN];
        real.read_exact(&mut answer).unwrap();
        client.write_all(&answer).unwrap();
        client.read_exact(&mut bytes[HELLO..]).unwrap();
        let mut pipes = Vec::new();
        let unit = encode_body(&());
        pipes.push(send_with_pipe(&client, &reply(Kind::Heartbeat, 1, |_| {}, &unit)));
        // In the middle of a frame, and in the middle of its data.
        let body = encode_body(&ramlace_wire::chunk::ChunkRead { hole: false, kept: false });
        let frame = reply(Kind::ReadChunk, 2, |header| header.data_bytes = 100_000, &body);
        client.write_all(&frame[..10]).unwrap();
        pipes.push(send_with_pipe(&client, &frame[10..]));
        pipes.push(send_with_pipe(&client, &vec![5; 50_000]));
        pipes.push(send_with_pipe(&client, &vec![5; 50_000]));
        pipes.push(send_with_pipe(&client, &reply(Kind::Heartbeat, 3, |_| {}, &unit)));
        (client, pipes)
    });
    let mut connection =
        Connection::connect(&ramlace_transport::Address::Unix(path), &owner(), None, soon()).unwrap();
    connection.send(header(Kind::Heartbeat, 1), &Heartbeat {}, &[], soon()).unwrap();
    assert!(connection.receive::<Heartbeat>(1, soon()).unwrap().descriptor.is_none());
    assert!(connection.receive::<ReadChunk>(2, soon()).unwrap().descriptor.is_none());
    let mut into = vec![0; 100_000];
    connection.receive_data(&mut [std::io::IoSliceMut::new(&mut into)], soon()).unwrap();
    assert_eq!(into, vec![5; 100_000]);
    assert!(connection.receive::<Heartbeat>(3, soon()).unwrap().descriptor.is_none());
    let (_client, pipes) = rogue.join().unwrap();
    for mut pipe in pipes {
        assert_eq!(pipe.read(&mut [0]).unwrap(), 0);
    }
    let request = GrantLane { target: target(), mapping: None };
    connection.send(header(Kind::GrantLane, 4), &request, &[], soon()).unwrap();
    drop(_client);
    assert!(connection.receive::<GrantLane>(4, soon()).unwrap_err().fatal);
    std::fs::remove_dir_all(directory).unwrap();
}
