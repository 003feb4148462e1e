//! Many runs of one lane's bytes in one request.

use ramlace_base::{ErrorKind, Generation};
use ramlace_wire::Kind;
use ramlace_wire::chunk::{AllocateLane, LaneTarget};
use ramlace_wire::runs::{LaneRuns, Strided, Tile, WriteRuns};
use ramlace_wire::session::GetServerStatus;

use crate::server_tests::{create, layout, target};
use crate::testing::{Client, TestServer, run};

fn rows(start: u64, length: u64, count: u64, stride: u64) -> LaneRuns {
    let runs = vec![Strided { offset: 0, length, count, stride }];
    LaneRuns::new(vec![Tile { start, runs, count: 1, stride: 0 }]).unwrap()
}

// SEMANTICS 98.5, 98.6
#[test]
fn runs_are_written_whole_and_once_and_their_gaps_stay() {
    let mut server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let target = target(&create(&mut client, 1, "file", layout(1)).await);
        assert_eq!(client.read_runs(target, rows(0, 2, 3, 4)).await.unwrap(), [0; 6]);
        client.write(2, 0, target, 0, b"................").await.unwrap();
        client.write_runs(3, target, rows(1, 2, 3, 5), b"aabbcc").await.unwrap();
        assert_eq!(client.read(target, 0, 16).await.unwrap(), b".aa...bb...cc...");
        client.write(4, 1, target, 6, b"newer").await.unwrap();
        // Repeated, also after a restart of the server: it is answered, and not done again.
        for _ in 0..3 {
            client.write_runs(3, target, rows(1, 2, 3, 5), b"aabbcc").await.unwrap();
            server.kill();
            server.revive();
            client = Client::user(&server.address, 1).await;
        }
        assert_eq!(client.read(target, 0, 16).await.unwrap(), b".aa...newercc...");
        assert_eq!(client.read_runs(target, rows(1, 1, 4, 5)).await.unwrap(), b"anc\0");
        // Without a number, with more bytes than the runs have, or of another generation.
        let wrong = client.write_runs(0, target, rows(0, 1, 2, 2), b"xx").await;
        assert_eq!(wrong.unwrap_err().kind(), ErrorKind::Invalid);
        let wrong = client.write_runs(7, target, rows(0, 1, 2, 2), b"xxx").await;
        assert_eq!(wrong.unwrap_err().kind(), ErrorKind::Invalid);
        let old = LaneTarget { generation: Generation(0), ..target };
        let wrong = client.write_runs(8, old, rows(0, 1, 2, 2), b"xx").await;
        assert_eq!(wrong.unwrap_err().kind(), ErrorKind::Retry);
        assert_eq!(client.read_runs(old, rows(0, 1, 2, 2)).await.unwrap_err().kind(), ErrorKind::Retry);
        assert_eq!(client.read(target, 0, 16).await.unwrap(), b".aa...newercc...");
    });
}

// SEMANTICS 98.7
#[test]
fn runs_that_do_not_fit_leave_everything_as_it_was() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let target = target(&create(&mut client, 1, "file", layout(1)).await);
        client.write(2, 0, target, 0, b"here").await.unwrap();
        // Less is left than 4,096 pages.
        let status = client.ask(&GetServerStatus {}).await.unwrap();
        let length = (status.store_bytes - status.used_bytes).saturating_sub(10 << 20);
        let most = AllocateLane { target, offset: 1 << 40, length, more: 0, keep_size: false };
        client.change(5, 3, &most).await.unwrap();
        let used = client.ask(&GetServerStatus {}).await.unwrap().used_bytes;
        // Each run is in pages of its own, huge or small ones.
        let many = rows(0, 1, 4096, 1 << 20);
        let refused = client.write_runs(6, target, many, &[7; 4096]).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        assert_eq!(client.read(target, 0, 4).await.unwrap(), b"here");
        assert!(client.ask(&GetServerStatus {}).await.unwrap().used_bytes <= used);
        client.write_runs(7, target, rows(0, 1, 2, 1 << 30), b"no").await.unwrap();
    });
}

#[test]
fn a_request_whose_runs_make_no_sense_ends_its_connection_alone() {
    let server = TestServer::start(1);
    run(async {
        let mut client = Client::user(&server.address, 1).await;
        let target = target(&create(&mut client, 1, "file", layout(1)).await);
        let mut body = ramlace_wire::encode_body(&WriteRuns { target, runs: rows(0, 1, 2, 2) });
        // The number of runs in the tile's only description: none.
        let place = body.len() - 4;
        assert_eq!(body[place], 2);
        body[place] = 0;
        let header = client.header(Kind::WriteRuns, 2, 0);
        client.connection.queue_reply(header, &body, b"xx");
        let _ = client.connection.flush().await;
        assert!(client.answer::<()>().await.is_err());
        let mut client = Client::user(&server.address, 1).await;
        client.write_runs(3, target, rows(0, 1, 2, 2), b"xx").await.unwrap();
    });
}
