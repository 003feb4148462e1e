//! Calls end at their deadline, wherever they are, and their connection with them.

use std::io::IoSliceMut;
use std::time::{Duration, Instant};

use ramlace_base::ErrorKind;
use ramlace_transport::blocking::Connection;
use ramlace_transport::{Address, Failure};
use ramlace_wire::Kind;
use ramlace_wire::chunk::{Keep, ReadChunk, WriteChunk, WriteOrigin};
use ramlace_wire::session::Heartbeat;

use crate::memory::pattern;
use crate::proxy::{GREETING_DOWN, GREETING_UP, Mischief, Proxy};
use crate::server::{TestServer, header, owner, read, scratch_directory, soon, target};

fn late(millis: u64) -> Instant {
    Instant::now() + Duration::from_millis(millis)
}

fn assert_timed_out(connection: &mut Connection, failure: &Failure, address: &Address) {
    assert_eq!((failure.error.kind(), failure.fatal), (ErrorKind::TimedOut, true), "{failure}");
    assert!(failure.error.message().contains(&address.to_string()), "{failure}");
    assert!(!connection.is_open());
    let again = connection.send(header(Kind::Heartbeat, 99), &Heartbeat {}, &[], soon()).unwrap_err();
    assert_eq!((again.error.kind(), again.fatal), (ErrorKind::HostDown, true));
}

#[test]
fn a_reply_that_does_not_come_is_waited_for_until_the_deadline() {
    for server in TestServer::both() {
        // Longer and shorter than one slice of waiting.
        for millis in [1, 250] {
            let proxy = Proxy::new(&server.address, Mischief::None, Mischief::StallAt(GREETING_DOWN));
            let mut connection = Connection::connect(&proxy.address, &owner(), None, soon()).unwrap();
            let deadline = late(millis);
            connection.send(header(Kind::Heartbeat, 1), &Heartbeat {}, &[], soon()).unwrap();
            let failure = connection.receive::<Heartbeat>(1, deadline).unwrap_err();
            assert!(Instant::now() >= deadline);
            assert_timed_out(&mut connection, &failure, &proxy.address);
        }
    }
}

#[test]
fn a_deadline_may_pass_in_the_middle_of_data() {
    for server in TestServer::both() {
        for stall in [20_000, 600_000] {
            let bytes = pattern(1 << 20, 1);
            server.memory().write(0, &bytes);
            let proxy = Proxy::new(&server.address, Mischief::None, Mischief::StallAt(GREETING_DOWN + stall));
            let mut connection = Connection::connect(&proxy.address, &owner(), None, soon()).unwrap();
            let request =
                ReadChunk { target: target(), offset: 0, length: 1 << 20, take: false, keep: Keep::No };
            connection.send(header(Kind::ReadChunk, 1), &request, &[], soon()).unwrap();
            connection.receive::<ReadChunk>(1, soon()).unwrap();
            let mut into = vec![0; 1 << 20];
            let failure = connection.receive_data(&mut [IoSliceMut::new(&mut into)], late(150)).unwrap_err();
            assert_timed_out(&mut connection, &failure, &proxy.address);
        }
    }
}

#[test]
fn sending_to_a_peer_that_does_not_read_ends_at_the_deadline() {
    for server in TestServer::both() {
        let proxy = Proxy::new(&server.address, Mischief::StallAt(GREETING_UP), Mischief::None);
        let mut connection = Connection::connect(&proxy.address, &owner(), None, soon()).unwrap();
        let data = vec![1; 8 << 20];
        let request = WriteChunk { target: target(), offset: 0, origin: WriteOrigin::Program };
        let deadline = late(150);
        let failure = (0..100)
            .find_map(|call| {
                let data = [std::io::IoSlice::new(&data)];
                connection.send(header(Kind::WriteChunk, call), &request, &data, deadline).err()
            })
            .expect("800 MiB fit nowhere");
        assert_timed_out(&mut connection, &failure, &proxy.address);
    }
}

#[test]
fn a_server_that_does_not_greet_is_waited_for_until_the_deadline() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(silent.local_addr().unwrap().to_string());
    let error = Connection::connect(&address, &owner(), None, late(120)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.message().contains(&address.to_string()), "{error}");
}

#[test]
fn a_unix_socket_whose_queue_is_full_is_waited_for_until_the_deadline() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let directory = scratch_directory();
    let path = directory.join("full");
    let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 0).unwrap();
    let address = Address::Unix(path);
    let connect = || Connection::connect(&address, &owner(), None, late(60)).err().unwrap().kind();
    // The first has a place in the queue, and waits for the greeting; the others for a place.
    assert_eq!([connect(), connect(), connect()], [ErrorKind::TimedOut; 3]);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn nobody_at_the_address_is_told_at_once_and_by_name() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for address in [
        Address::Tcp(closed.to_string()),
        Address::Unix("/nonexistent/ramlace/socket".into()),
        Address::Unix("x".repeat(500).into()),
        Address::Tcp("no-such-host.invalid:1".into()),
    ] {
        let error = Connection::connect(&address, &owner(), None, soon()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::HostDown, "{error}");
        assert!(error.message().contains(&address.to_string()), "{error}");
    }
}

#[test]
fn a_name_is_as_good_as_a_number() {
    let server = TestServer::tcp();
    let Address::Tcp(place) = &server.address else { unreachable!() };
    let named = Address::Tcp(place.replace("127.0.0.1", "localhost"));
    let mut connection = Connection::connect(&named, &owner(), None, soon()).unwrap();
    assert_eq!(read(&mut connection, 1, 0, 1).unwrap(), [0]);
}
