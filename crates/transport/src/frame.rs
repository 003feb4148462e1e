//! Operations on frames for both sides: building a head, decoding a reply.

use ramlace_base::{Error, ErrorKind, Result, limits};
use ramlace_wire::{ErrorBody, HEADER_BYTES, Header, Kind, decode_body, flags};

use crate::Failure;

/// Takes the body of a reply. An error means that the other side talks nonsense, and ends the connection.
///
/// Connections work with bytes, so that they are compiled once and not once for each message.
pub type TakeBody<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Receives by `receive`, which passes the body on once, and decodes that: what `receive` returns, and the reply.
pub fn decoding<T, U, E>(
    decode: impl Fn(&[u8]) -> Result<T>,
    receive: impl FnOnce(&mut TakeBody<'_>) -> std::result::Result<U, E>,
) -> std::result::Result<(U, T), E> {
    let mut reply = None;
    let received = receive(&mut |body| {
        reply = Some(decode(body)?);
        Ok(())
    })?;
    Ok((received, reply.expect("a reply that came was taken")))
}

/// Appends the header, with its lengths filled in, and the body.
///
/// Panics when body or data are larger than a frame may carry: the code that builds a message keeps to its
/// limits.
pub(crate) fn append_head(into: &mut Vec<u8>, header: Header, body: &[u8], data_bytes: usize) {
    assert!(body.len() <= limits::BODY_BYTES_MAX as usize, "a body of {} bytes was built", body.len());
    assert!(data_bytes <= limits::DATA_BYTES_MAX as usize, "data of {data_bytes} bytes were built");
    let header = Header { body_bytes: body.len() as u32, data_bytes: data_bytes as u32, ..header };
    into.reserve(HEADER_BYTES + body.len());
    into.extend_from_slice(&header.encode());
    into.extend_from_slice(body);
}

/// Reads a header that may come from anywhere.
pub(crate) fn decode_header(bytes: &[u8]) -> Result<Header> {
    let bytes: &[u8; HEADER_BYTES] = bytes[..HEADER_BYTES].try_into().expect("the length was just cut");
    Header::decode(bytes)
}

/// Checks that a frame is the reply to this call; it may still contain an error.
///
/// Errors: `Protocol`; the connection is out of step and of no further use.
pub(crate) fn check_reply(header: &Header, kind: Kind, call: u32) -> Result<()> {
    let refuse = |text: String| Err(Error::new(ErrorKind::Protocol, text));
    if !header.is_reply() {
        return refuse(format!("a {:?} request came where its reply was due", header.kind));
    }
    if header.kind != kind || header.call != call {
        return refuse(format!(
            "the reply to {:?}, call {}, came where the one to {kind:?}, call {call}, was due",
            header.kind, header.call
        ));
    }
    if header.is_error() && (header.data_bytes > 0 || header.flags & flags::DESCRIPTOR != 0) {
        return refuse(format!("an error in reply to {:?} brings data or a descriptor", header.kind));
    }
    Ok(())
}

/// Passes the reply's body on, or returns the failure that it contains.
pub(crate) fn take_reply(
    header: &Header,
    body: &[u8],
    take: &mut TakeBody<'_>,
) -> std::result::Result<(), Failure> {
    if header.is_error() {
        return Err(Failure::answered(decode_body::<ErrorBody>(header.kind, body)?));
    }
    Ok(take(body)?)
}
