//! Where servers listen.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use ramlace_base::{ErrorKind, Result};
use ramlace_transport::Address;
use ramlace_transport::nonblocking::Listener;

use crate::server::scratch_directory;

fn bind(address: &Address) -> Result<Address> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { Listener::bind(address)?.local_address() })
}

#[test]
fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
    let directory = scratch_directory();
    let path = directory.join("socket");
    let address = Address::Unix(path.clone());
    let live = UnixListener::bind(&path).unwrap();
    let error = bind(&address).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.message().contains(&address.to_string()), "{error}");
    drop(live);
    assert_eq!(bind(&address).unwrap(), address);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let directory = scratch_directory();
    let path = directory.join("precious");
    std::fs::write(&path, "bytes").unwrap();
    assert_eq!(bind(&Address::Unix(path.clone())).unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(std::fs::read(&path).unwrap(), b"bytes");
    let missing = Address::Unix(directory.join("no/such/directory"));
    assert_eq!(bind(&missing).unwrap_err().kind(), ErrorKind::NotFound);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_port_in_use_is_told_with_advice() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = bind(&Address::Tcp(taken.local_addr().unwrap().to_string())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.message().contains("choose another one"), "{error}");
}

#[test]
fn an_inherited_socket_keeps_its_address() {
    let listener = std::net::TcpListener::bind("[::1]:0")
        .or_else(|_| std::net::TcpListener::bind("127.0.0.1:0"))
        .unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap().to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let told = runtime.block_on(async { Listener::from_owned_fd(OwnedFd::from(listener))?.local_address() });
    assert_eq!(told.unwrap(), address);
}
