//! The key book at a server whose store is full.

use ramlace_store::Store;
use ramlace_wire::keys::HostKeyName;

use super::*;
use crate::testing::{TestServer, run};

const FILLER: &str = "filler";

/// Takes the last page of the store, also the one that is reserved for urgent records.
fn fill(store: &mut Store) {
    let mut filler = store.meta_append_file(FILLER).unwrap();
    let mut bytes = vec![1; 1 << 20];
    while !bytes.is_empty() {
        match filler.append_urgent(&bytes) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                bytes.truncate(bytes.len() / 2);
            }
        }
    }
}

// SEMANTICS 134.1
#[test]
fn a_full_store_keeps_no_server_from_its_pool_and_gets_the_book_when_there_is_room() {
    let server = TestServer::start(1);
    run(async {
        let work = |server: &Rc<Server>| {
            let mut book = server.keys.keys().book().clone();
            let make = KeyChange::MakeHost(HostKeyName::new("node7").unwrap());
            ramlace_cluster::change_keys(&mut book, &make, clock::now()).unwrap();
            fill(&mut server.store.borrow_mut());
            let is_full = |told: Result<()>| told.is_err_and(|error| error.kind() == ErrorKind::NoSpace);
            assert!(is_full(server.go_by_book(book.clone())));
            assert_ne!(*server.keys.keys().book(), book);
            server.go_by_learned_book(book.clone()).unwrap();
            assert_eq!(*server.keys.keys().book(), book);
            assert!(is_full(server.go_by_book(book.clone())), "it is told again while it is not kept");
            server.store.borrow_mut().meta_remove(FILLER).unwrap();
            server.go_by_book(book.clone()).unwrap();
            let kept: Option<KeyBook> = load_file(&mut server.store.borrow_mut(), BOOK_FILE).unwrap();
            assert_eq!(kept, Some(book));
        };
        server.within(work).await;
    });
}
