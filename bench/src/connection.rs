//! A blocking socket that carries requests of 64 bytes and what follows them: no checks, no
//! deadlines, no sessions. Nothing on this machine's sockets can be much faster.

use std::io::{IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use ramlace_base::{Error, ErrorKind, Result};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg};

/// Bytes of a request and of the head of a reply; ramlace's own headers are about as long.
pub const HEAD_BYTES: usize = 64;

/// What a request wants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Bytes of the region.
    Read = 1,
    /// Bytes of the region changed.
    Write = 2,
    /// A head in return.
    Echo = 3,
}

/// A request of the raw loop.
#[derive(Clone, Copy)]
pub struct Head {
    /// What is wanted.
    pub wish: Wish,
    /// Of the region.
    pub offset: u64,
    /// Bytes that follow: the request of a write, the reply to a read.
    pub length: u64,
}

impl Head {
    fn encode(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[0] = self.wish as u8;
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEAD_BYTES]) -> Result<Head> {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let wish = match bytes[0] {
            1 => Wish::Read,
            2 => Wish::Write,
            3 => Wish::Echo,
            _ => return Err(Error::new(ErrorKind::Protocol, "the raw loop is out of step")),
        };
        Ok(Head { wish, offset: number(8), length: number(16) })
    }
}

/// One end of a connection.
pub struct Connection {
    socket: OwnedFd,
}

impl Connection {
    /// Over an accepted or connected TCP socket.
    pub fn tcp(stream: TcpStream) -> Result<Connection> {
        stream.set_nodelay(true).map_err(|error| Error::from_io(&error, "setting up a connection"))?;
        Ok(Connection { socket: stream.into() })
    }

    /// Over a Unix socket.
    pub fn unix(stream: UnixStream) -> Connection {
        Connection { socket: stream.into() }
    }

    /// To a raw server: its port, or its Unix socket.
    pub fn open(port: u16, unix: Option<&Path>) -> Result<Connection> {
        let tell = |error: std::io::Error| Error::from_io(&error, "connecting to a raw server");
        match unix {
            None => Connection::tcp(TcpStream::connect(("127.0.0.1", port)).map_err(tell)?),
            Some(path) => Ok(Connection::unix(UnixStream::connect(path).map_err(tell)?)),
        }
    }

    /// Sends a head and the data behind it in as few calls as the kernel needs.
    pub fn send(&self, head: Head, data: &[u8]) -> Result<()> {
        let head = head.encode();
        let mut pieces = [IoSlice::new(&head), IoSlice::new(data)];
        let mut pieces = &mut pieces[..];
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            let sent =
                sendmsg(&self.socket, pieces, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
                    .map_err(|errno| Error::from_io(&errno.into(), "sending"))?;
            IoSlice::advance_slices(&mut pieces, sent);
        }
        Ok(())
    }

    /// Receives a head and, in the same call, the data behind it, whose length is known.
    pub fn receive(&self, data: &mut [u8]) -> Result<Head> {
        let mut head = [0; HEAD_BYTES];
        if !self.fill(&mut [IoSliceMut::new(&mut head), IoSliceMut::new(data)])? {
            return Err(Error::new(ErrorKind::HostDown, "the raw server ended"));
        }
        Head::decode(&head)
    }

    /// Receives a head; `None` at the end of the stream.
    pub fn receive_head(&self) -> Result<Option<Head>> {
        let mut head = [0; HEAD_BYTES];
        let there = self.fill(&mut [IoSliceMut::new(&mut head)])?;
        there.then(|| Head::decode(&head)).transpose()
    }

    /// Receives data whose head has come.
    pub fn receive_data(&self, data: &mut [u8]) -> Result<()> {
        self.fill(&mut [IoSliceMut::new(data)]).map(drop)
    }

    /// `false` when the stream has ended.
    fn fill(&self, pieces: &mut [IoSliceMut<'_>]) -> Result<bool> {
        let mut pieces = pieces;
        IoSliceMut::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            let mut control = RecvAncillaryBuffer::default();
            let received = recvmsg(&self.socket, pieces, &mut control, RecvFlags::WAITALL)
                .map_err(|errno| Error::from_io(&errno.into(), "receiving"))?;
            if received.bytes == 0 {
                return Ok(false);
            }
            IoSliceMut::advance_slices(&mut pieces, received.bytes);
        }
        Ok(true)
    }
}
