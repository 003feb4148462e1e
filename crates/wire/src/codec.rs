//! Bodies: postcard, with nothing left over.

use ramlace_base::{Error, ErrorKind, Result, Slot, limits};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::chunk::LaneTarget;
use crate::{ClusterMap, Kind, LaneRight, Permit};

/// A request body: it knows its number and what answers it.
pub trait Request: Serialize + DeserializeOwned {
    /// The message's number.
    const KIND: Kind;
    /// The body of the answer.
    type Reply: Serialize + DeserializeOwned;

    /// The slot that is asked: that of the inode which the request names, where it names one, or the one that the header
    /// names. That is so for what is about the entries of a directory, which may be spread over several slots.
    fn slot(&self, named: Slot) -> Slot {
        named
    }

    /// The lane whose bytes it is about, and what the session of a host must have opened the file for.
    fn lane_right(&self) -> Option<(&LaneTarget, LaneRight)> {
        None
    }

    /// The same by another permit; nothing for one that is about no lane.
    #[must_use]
    fn with_permit(&self, _permit: Option<Permit>) -> Option<Self> {
        None
    }

    /// Whether some state of a pool makes it true. What servers send each other is checked where it arrives.
    fn is_possible(&self) -> bool {
        true
    }

    /// Whether this can be the answer, in some state of a pool. The receiver checks it before it uses anything
    /// of the answer.
    fn fits(&self, _reply: &Self::Reply) -> bool {
        true
    }
}

/// The body of a frame with [`crate::flags::ERROR`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// [`ErrorKind::number`].
    pub kind: u16,
    /// A sentence for people.
    pub message: String,
    /// With `Moved`: the newer map.
    pub map: Option<ClusterMap>,
}

impl ErrorBody {
    /// The body that carries this error; an overlong text is cut.
    #[must_use]
    pub fn new(error: &Error) -> ErrorBody {
        let mut message = error.message().to_owned();
        if message.len() > limits::ERROR_TEXT_BYTES_MAX {
            let cut = (0..=limits::ERROR_TEXT_BYTES_MAX).rev().find(|at| message.is_char_boundary(*at));
            message.truncate(cut.unwrap_or(0));
        }
        ErrorBody { kind: error.kind().number(), message, map: None }
    }

    /// The error in the body.
    #[must_use]
    pub fn into_error(self) -> Error {
        match ErrorKind::from_number(self.kind) {
            Some(kind) => Error::new(kind, self.message),
            None => {
                Error::new(ErrorKind::Protocol, format!("error {} (unknown): {}", self.kind, self.message))
            }
        }
    }
}

/// The bytes of a body. Panics when it is larger than a frame may carry: the code that builds a message keeps
/// to its limits.
pub fn encode_body<T: Serialize>(body: &T) -> Vec<u8> {
    let bytes = postcard::to_stdvec(body).expect("every message can be written");
    assert!(bytes.len() <= limits::BODY_BYTES_MAX as usize, "a body of {} bytes was built", bytes.len());
    bytes
}

/// Reads the reply to a request; one that cannot be its answer is as wrong as one that cannot be read.
pub fn decode_reply<R: Request>(request: &R, bytes: &[u8]) -> Result<R::Reply> {
    let reply = decode_body(R::KIND, bytes)?;
    if !request.fits(&reply) {
        let text = format!("{:?} was answered with what cannot be; it is not believed", R::KIND);
        return Err(Error::new(ErrorKind::Protocol, text));
    }
    Ok(reply)
}

/// Reads a body; bytes left over are as wrong as bytes missing.
pub fn decode_body<T: DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((body, [])) => Ok(body),
        Ok((_, rest)) => Err(Error::new(
            ErrorKind::Protocol,
            format!("a {kind:?} message has {} bytes too many", rest.len()),
        )),
        Err(error) => {
            Err(Error::new(ErrorKind::Protocol, format!("a {kind:?} message makes no sense: {error}")))
        }
    }
}
