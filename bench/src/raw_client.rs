//! The asking end of the raw loop: the same requests as the library's, as many in flight.

use std::collections::VecDeque;
use std::ops::Range;

use ramlace_base::Result;

use crate::connection::{Connection, Head, Wish};

/// A stripe unit: the library's default.
const STRIPE_BYTES: usize = 2 << 20;

/// A sequential transfer that is striped over connections as the library stripes a file.
pub struct Transfer<'a> {
    /// One for each server.
    pub connections: &'a [Connection],
    /// To read or to write.
    pub wish: Wish,
    /// All of it.
    pub bytes: usize,
    /// Of one request; divides the stripe unit.
    pub request_bytes: usize,
}

impl Transfer<'_> {
    /// One request after the other, each answered before the next is sent.
    pub fn calls(&self, buffer: &mut [u8]) -> Result<()> {
        for index in 0..self.bytes / self.request_bytes {
            self.send(index, buffer)?;
            self.receive(index, buffer)?;
        }
        Ok(())
    }

    /// With `depth` requests in flight on each connection. The buffer is used from its start
    /// again and again.
    pub fn stream(&self, depth: usize, buffer: &mut [u8]) -> Result<()> {
        let count = self.bytes / self.request_bytes;
        let server = |index: usize| self.place(index).0;
        let all = 0..self.connections.len();
        let mut waiting: Vec<VecDeque<usize>> =
            all.clone().map(|one| (0..count).filter(|index| server(*index) == one).collect()).collect();
        let mut in_flight: Vec<VecDeque<usize>> = all.clone().map(|_| VecDeque::new()).collect();
        loop {
            for one in all.clone() {
                while in_flight[one].len() < depth
                    && let Some(index) = waiting[one].pop_front()
                {
                    self.send(index, buffer)?;
                    in_flight[one].push_back(index);
                }
            }
            let answered: Vec<usize> = in_flight.iter_mut().filter_map(VecDeque::pop_front).collect();
            if answered.is_empty() {
                return Ok(());
            }
            answered.into_iter().try_for_each(|index| self.receive(index, buffer))?;
        }
    }

    /// On which connection a request goes, and to which offset.
    fn place(&self, index: usize) -> (usize, usize) {
        let offset = index * self.request_bytes;
        let (chunk, rest) = (offset / STRIPE_BYTES, offset % STRIPE_BYTES);
        let servers = self.connections.len();
        (chunk % servers, chunk / servers * STRIPE_BYTES + rest)
    }

    fn send(&self, index: usize, buffer: &[u8]) -> Result<()> {
        let (server, offset) = self.place(index);
        let head = Head { wish: self.wish, offset: offset as u64, length: self.request_bytes as u64 };
        let data = if self.wish == Wish::Write { &buffer[self.part(index, buffer.len())] } else { &[] };
        self.connections[server].send(head, data)
    }

    fn receive(&self, index: usize, buffer: &mut [u8]) -> Result<()> {
        let part = self.part(index, buffer.len());
        let data = if self.wish == Wish::Read { &mut buffer[part] } else { &mut [] };
        self.connections[self.place(index).0].receive(data).map(drop)
    }

    fn part(&self, index: usize, buffer_bytes: usize) -> Range<usize> {
        let start = index * self.request_bytes % buffer_bytes;
        start..start + self.request_bytes
    }
}

/// One request and its reply.
pub fn call(connection: &Connection, wish: Wish, offset: u64, data: &mut [u8]) -> Result<()> {
    let head = Head { wish, offset, length: data.len() as u64 };
    connection.send(head, if wish == Wish::Write { data } else { &[] })?;
    connection.receive(if wish == Wish::Read { data } else { &mut [] }).map(drop)
}
