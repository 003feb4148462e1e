//! Forged requests, of every kind and with every key: whatever they say, they are answered, or end their
//! connection, and the server lives on. A panic anywhere ends this process.

use std::time::Duration;

use ramlace_base::{Epoch, InodeId, Sequence, SessionId, Slot, limits};
use ramlace_wire::chunk::LaneTarget;
use ramlace_wire::namespace::Open;
use ramlace_wire::session::{GetServerStatus, SessionKind};
use ramlace_wire::{Header, Kind, encode_body};

use crate::testing::{Client, TestServer, run};
use crate::wire_samples::{Body, Draw, Source, bodies};

/// Requests with each key.
const REQUESTS: usize = 3_000;
/// After so many another session begins.
const REQUESTS_PER_SESSION: usize = 50;
/// Requests that are meant to end the server, or to lock its clients out, do so: these are no lies.
const NO_LIES: [Kind; 7] = [
    Kind::StopServer,
    Kind::ForgetServer,
    Kind::ChangeKeys,
    Kind::RotateSecret,
    Kind::AdoptKeyBook,
    Kind::JoinPool,
    Kind::OpenSession,
];
const PATIENCE: Duration = Duration::from_secs(5);

/// Numbers at the limits of their range, and those of existing files.
fn number(draw: &mut Draw, files: &[InodeId]) -> u64 {
    match draw.below(8) {
        0 => u64::MAX - draw.below(2) as u64,
        1 => limits::FILE_BYTES_MAX - draw.below(10) as u64,
        2 => 1 << draw.below(64),
        3 => draw.word() >> draw.below(64),
        4 | 5 => files[draw.below(files.len())].0,
        _ => draw.below(3) as u64,
    }
}

/// A request's body: valid, or with some numbers replaced.
fn made_up(draw: &mut Draw, body: &Body, files: &[InodeId]) -> Vec<u8> {
    let words: Vec<u64> = (0..100)
        .map(|_| {
            let wanted = number(draw, files);
            // In the encoding of numbers, and as plain bytes.
            if draw.below(2) == 0 && wanted >> 58 == 0 { wanted << 6 | 6 } else { wanted }
        })
        .collect();
    let mut bytes = (body.sample)(&mut Source::new(&words));
    for _ in 0..draw.below(3).min(bytes.len()) {
        let at = draw.below(bytes.len());
        bytes.splice(at..=at, encode_body(&number(draw, files)));
    }
    bytes
}

/// Sends one; returns whether the connection is still usable.
async fn says(client: &mut Client, header: Header, body: &[u8], data: &[u8]) -> bool {
    client.connection.queue_reply(header, body, data);
    if client.connection.flush().await.is_err() {
        return false;
    }
    let answer = tokio::time::timeout(PATIENCE, client.connection.read_request()).await;
    let Ok(Some((told, _))) = answer.unwrap_or_else(|_| panic!("{:?} was not answered", header.kind)) else {
        return false;
    };
    let mut taken = Vec::new();
    client.connection.read_data_staged(told.data_bytes as usize, &mut taken).await.is_ok()
}

async fn lies(
    server: &TestServer,
    kind: SessionKind,
    (files, target): (&[InodeId], LaneTarget),
    draw: &mut Draw,
) {
    let requests: Vec<Body> = bodies()
        .into_iter()
        .filter(|body| body.name.ends_with(".request") && !NO_LIES.contains(&body.kind))
        .collect();
    for number in 0..REQUESTS / REQUESTS_PER_SESSION {
        let session = SessionId([10 + kind as u8, number as u8, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        let mut client = Client::connect(&server.address, session, kind).await;
        client.epoch = Epoch(1);
        if kind != SessionKind::Peer {
            for (at, inode) in files.iter().enumerate() {
                let open = Open { inode: *inode, read: true, write: true, run: false };
                let _ = client.change(at as u64 + 1, 0, &open).await;
            }
        }
        for sequence in 100..100 + REQUESTS_PER_SESSION as u64 {
            let body = &requests[draw.below(requests.len())];
            let bytes = made_up(draw, body, files);
            let mut header = Header { deadline_millis: 20, ..client.header(body.kind, sequence, 0) };
            header.slot = if draw.below(4) == 0 { Slot(draw.word() as u16) } else { target.slot };
            if draw.below(8) == 0 {
                header.sequence = Sequence(draw.word() >> draw.below(64));
            }
            let data = vec![7; if body.kind.row().carries_data { draw.below(9_000) } else { 0 }];
            if !says(&mut client, header, &bytes, &data).await {
                break;
            }
        }
    }
}

#[test]
fn whatever_is_asked_the_server_lives_on() {
    let mut server = TestServer::start(1);
    run(async {
        let mut owner = Client::user(&server.address, 1).await;
        let (small, large) = crate::permits_tests::two_files(&mut owner).await;
        let files = [InodeId::ROOT, small, large.lane.inode];
        let mut draw = Draw(7);
        for kind in [SessionKind::Host, SessionKind::User, SessionKind::Peer] {
            lies(&server, kind, (&files, large), &mut draw).await;
        }
        let mut client = Client::connect(&server.address, SessionId([99; 16]), SessionKind::User).await;
        client.ask(&GetServerStatus {}).await.unwrap();
    });
    server.kill();
    server.revive();
    run(async {
        Client::user(&server.address, 98).await;
    });
}
