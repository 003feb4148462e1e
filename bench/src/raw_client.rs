//! The asking end of the raw loop: the same requests as the library's, as many in flight.

use ramlace_base::Result;

use crate::connection::{Connection, Head, Wish};

/// Moves `bytes` bytes in requests of `request` bytes over all connections in turns, `depth` in
/// flight on each, between the buffer (used from its start again and again) and the regions.
pub fn stream(
    connections: &[Connection],
    wish: Wish,
    bytes: usize,
    request: usize,
    depth: usize,
    buffer: &mut [u8],
) -> Result<()> {
    let places = buffer.len() / request;
    let count = bytes / request;
    let head = |index: usize| Head {
        wish,
        offset: (index / connections.len() * request) as u64,
        length: request as u64,
    };
    let mut sent = 0;
    for received in 0..count {
        while sent < count && sent < received + depth * connections.len() {
            let place = sent % places * request;
            let data = if wish == Wish::Write { &buffer[place..place + request] } else { &[] };
            connections[sent % connections.len()].send(head(sent), data)?;
            sent += 1;
        }
        let place = received % places * request;
        let data = if wish == Wish::Read { &mut buffer[place..place + request] } else { &mut [] };
        connections[received % connections.len()].receive(data)?;
    }
    Ok(())
}

/// One request and its reply.
pub fn call(connection: &Connection, wish: Wish, offset: u64, data: &mut [u8]) -> Result<()> {
    let head = Head { wish, offset, length: data.len() as u64 };
    connection.send(head, if wish == Wish::Write { data } else { &[] })?;
    connection.receive(if wish == Wish::Read { data } else { &mut [] }).map(drop)
}
