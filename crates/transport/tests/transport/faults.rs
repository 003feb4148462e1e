//! Memory that vanishes under a transfer is an error, never a signal.

use ramlace_base::ErrorKind;
use ramlace_transport::blocking::Connection;

use crate::memory::pattern;
use crate::proxy::{GREETING_UP, Mischief, Proxy};
use crate::server::{MEMORY_BYTES, Setup, TestServer, owner, read, soon, write};

#[test]
fn writing_into_memory_that_is_gone_is_an_error_and_the_connection_goes_on() {
    for server in TestServer::all() {
        let mut connection = server.connect();
        // The cut lies among what came with the request, among what comes later, and before all.
        for (call, kept) in [1000, 500_000, 0].into_iter().enumerate() {
            let call = call as u32 * 3;
            server.memory().truncate(kept);
            let bytes = pattern(1 << 20, 1);
            let failure = write(&mut connection, call, 0, &bytes).unwrap_err();
            assert_eq!((failure.error.kind(), failure.fatal), (ErrorKind::Fault, false), "{failure}");
            server.memory().truncate(MEMORY_BYTES);
            write(&mut connection, call + 1, 7, &bytes).unwrap();
            assert_eq!(read(&mut connection, call + 2, 7, 1 << 20).unwrap(), bytes);
        }
    }
}

#[test]
fn reading_from_memory_that_is_gone_ends_the_connection_and_no_other() {
    for server in TestServer::all() {
        for kept in [0, 300_000] {
            let mut other = server.connect();
            let mut connection = server.connect();
            server.memory().truncate(kept);
            let failure = read(&mut connection, 1, 0, 1 << 20).unwrap_err();
            assert!(failure.fatal);
            let error = server.wait_for_error();
            assert_eq!(error.kind(), ErrorKind::Fault, "{error}");
            server.memory().truncate(MEMORY_BYTES);
            assert_eq!(read(&mut other, 1, 0, 10).unwrap(), [0; 10]);
            drop(other);
            server.wait_for_ends(1);
        }
    }
}

#[test]
fn a_cancelled_write_stores_nothing_more() {
    for server in [
        TestServer::tcp_with(Setup { cancels_writes: true, ..Setup::default() }),
        TestServer::unix_with(Setup { cancels_writes: true, ..Setup::default() }),
    ] {
        // A frame that announces a megabyte and brings a tenth of it.
        let proxy = Proxy::new(&server.address, Mischief::StallAt(GREETING_UP + 100_000), Mischief::None);
        let mut connection = Connection::connect(&proxy.address, &owner(), None, soon()).unwrap();
        assert!(write(&mut connection, 1, 0, &vec![1; 1 << 20]).unwrap_err().fatal);
        let error = server.wait_for_error();
        assert_eq!(error.kind(), ErrorKind::HostDown, "{error}");
        assert_eq!(server.memory().read(100_000, 1 << 20), vec![0; 1 << 20]);
    }
}
