//! Which sessions get which unsolicited news.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ramlace_base::{InodeId, Name};
use ramlace_wire::leases::LeaseName;
use ramlace_wire::listen::{Listen, News};

use crate::testing::{Client, TestServer, run};

const NO_LIFE: u64 = u64::MAX;

fn asks(leases: bool, life: u64) -> Listen {
    Listen { leases, acknowledged: 0, received: 0, life }
}

#[test]
fn a_session_that_believes_nothing_by_leases_is_given_none_though_it_listens() {
    run(async {
        let server = TestServer::start(1);
        let mut client = Client::user(&server.address, 1).await;
        let mut listener = client.another(&server.address).await;
        let lease = LeaseName {
            parent: InodeId::ROOT,
            name: Name::new("none").unwrap(),
            names: true,
            neighbours_max: 0,
        };
        listener.ask(&asks(false, NO_LIFE)).await.unwrap();
        assert!(client.ask(&lease).await.unwrap().directory.is_none());
        listener.ask(&asks(true, NO_LIFE)).await.unwrap();
        assert!(client.ask(&lease).await.unwrap().directory.is_some());
    });
}

#[test]
fn a_request_gives_way_to_the_next_one_of_its_session() {
    run(async {
        let server = TestServer::start(1);
        let mut first = Client::user(&server.address, 1).await;
        let mut second = first.another(&server.address).await;
        let life = first.ask(&asks(true, NO_LIFE)).await.unwrap().life;
        let waits = tokio::task::spawn_local(async move { first.ask(&asks(true, life)).await.unwrap() });
        tokio::task::yield_now().await;
        let told = second.ask(&asks(true, NO_LIFE)).await.unwrap();
        let nothing = News { life: told.life, ..News::default() };
        assert_eq!(waits.await.unwrap(), nothing, "nobody has looked for news");
    });
}

#[test]
fn a_newer_map_is_told_to_a_session_that_listens_by_an_older_one() {
    run(async {
        let server = TestServer::start(1);
        let mut listener = Client::user(&server.address, 1).await;
        let known = server.look(|server| (*server.membership.map().unwrap()).clone()).await;
        let life = listener.ask(&asks(false, NO_LIFE)).await.unwrap().life;
        let waits = tokio::task::spawn_local(async move { listener.ask(&asks(false, life)).await.unwrap() });
        tokio::task::yield_now().await;
        let mut newer = known.clone();
        newer.epoch = known.epoch.next();
        let told = newer.clone();
        server
            .look(move |server| server.membership.adopt(&mut server.store.borrow_mut(), told).unwrap())
            .await;
        assert_eq!(waits.await.unwrap().map, Some(newer));
    });
}

#[test]
fn a_session_that_listens_wakes_no_other() {
    run(async {
        let server = TestServer::start(1);
        let mut listener = Client::user(&server.address, 1).await;
        let woken = Arc::new(AtomicUsize::new(0));
        let counts = woken.clone();
        server
            .within(move |server| {
                let server = server.clone();
                tokio::task::spawn_local(async move {
                    loop {
                        server.leases.changed.notified().await;
                        counts.fetch_add(1, Ordering::Relaxed);
                    }
                });
            })
            .await;
        for _ in 0..5 {
            listener.ask(&asks(true, NO_LIFE)).await.unwrap();
        }
        assert_eq!(woken.load(Ordering::Relaxed), 0, "nothing was recalled");
    });
}
