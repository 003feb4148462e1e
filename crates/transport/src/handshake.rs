//! The handshake without its sockets: what each side says and what it makes of the answer.
//!
//! Noise NNpsk0, the pool's secret as the pre-shared key, the client's preamble as the prologue:
//!
//! 1. client: preamble, message 1. It proves the secret, but an old one could be said again.
//! 2. server: preamble, message 2. It proves the secret, freshly.
//! 3. client: an empty message under the session's key ([`CONFIRMATION_BYTES`]): only who made
//!    message 1 just now can say it. Without it, whoever has recorded a message 1 would be let in,
//!    because the frames that follow are plain.

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_wire::PROTOCOL_VERSION;
use ramlace_wire::preamble::{PREAMBLE_BYTES, PREAMBLE_MAGIC, PREAMBLE_PAYLOAD_BYTES_MAX, Preamble, Status};
use snow::{Builder, HandshakeState, TransportState};

use crate::Secret;

const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Length of both Noise messages: an ephemeral key and a tag.
const MESSAGE_BYTES: usize = 32 + 16;
/// Length of the client's confirmation: a tag.
pub(crate) const CONFIRMATION_BYTES: usize = 16;

fn builder(prologue: &[u8; PREAMBLE_BYTES], secret: &Secret, initiator: bool) -> HandshakeState {
    let build = || {
        let builder = Builder::new(NOISE.parse()?).prologue(prologue)?.psk(0, secret.as_bytes())?;
        if initiator { builder.build_initiator() } else { builder.build_responder() }
    };
    build().expect("the Noise pattern is complete and its primitives are built in")
}

fn protocol(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, text)
}

/// The client's side, waiting for the server's answer.
pub(crate) struct ClientHandshake(HandshakeState);

impl ClientHandshake {
    /// Begins; returns what to send first.
    pub(crate) fn begin(secret: &Secret) -> (ClientHandshake, Vec<u8>) {
        let preamble = Preamble::new(Status::Welcome, MESSAGE_BYTES).encode();
        let mut noise = builder(&preamble, secret, true);
        let mut hello = preamble.to_vec();
        hello.resize(PREAMBLE_BYTES + MESSAGE_BYTES, 0);
        let written = noise.write_message(&[], &mut hello[PREAMBLE_BYTES..]);
        assert_eq!(written.expect("the system has random bytes"), MESSAGE_BYTES);
        (ClientHandshake(noise), hello)
    }

    /// Reads what came behind the server's preamble; returns the confirmation to send.
    ///
    /// Errors: the server's own line when it refuses (`Denied`, or `Protocol` when it speaks
    /// another version), `Denied` when it does not know the secret.
    pub(crate) fn finish(mut self, preamble: &Preamble, payload: &[u8]) -> Result<[u8; CONFIRMATION_BYTES]> {
        let same_version = preamble.version == PROTOCOL_VERSION;
        if preamble.status == Status::Refused {
            // What a stranger says must not move the reader's cursor.
            let line = String::from_utf8_lossy(payload).trim_end().replace(char::is_control, "?");
            let kind = if same_version { ErrorKind::Denied } else { ErrorKind::Protocol };
            return Err(Error::new(kind, format!("the server refused: {line}")));
        }
        if !same_version {
            return Err(protocol(versions_differ("server", preamble.version)));
        }
        self.0.read_message(payload, &mut []).map_err(|_| {
            Error::new(
                ErrorKind::Denied,
                "the server does not know the pool's secret; it belongs to another pool",
            )
        })?;
        let mut session = self.0.into_transport_mode().expect("both messages have passed");
        let mut confirmation = [0; CONFIRMATION_BYTES];
        let written = session.write_message(&[], &mut confirmation).expect("a tag fits");
        assert_eq!(written, CONFIRMATION_BYTES);
        Ok(confirmation)
    }
}

/// Checks the first bytes from a stranger, as far as they have come: nobody has to wait for the
/// rest of what cannot become a greeting.
///
/// Errors: `Protocol`, with the line that the stranger is told.
pub(crate) fn check_greeting(bytes: &[u8]) -> Result<()> {
    let length = bytes.len().min(PREAMBLE_MAGIC.len());
    if bytes[..length] != PREAMBLE_MAGIC[..length] {
        return Err(protocol("this is a ramlace server; what came is not its protocol"));
    }
    Ok(())
}

/// Checks a client's preamble.
///
/// Errors: `Protocol` or `Denied`, with the line that the client is told.
pub(crate) fn check_client_preamble(bytes: &[u8; PREAMBLE_BYTES]) -> Result<()> {
    check_greeting(bytes)?;
    // The version is at a fixed place in every version; the rest may mean something else there.
    let version = u16::from_le_bytes([bytes[8], bytes[9]]);
    if version != PROTOCOL_VERSION {
        return Err(protocol(versions_differ("client", version)));
    }
    let preamble = Preamble::decode(bytes)?;
    if preamble.payload_bytes == 0 {
        return Err(Error::new(ErrorKind::Denied, "this pool has a secret and the client brought none"));
    }
    if preamble.payload_bytes as usize != MESSAGE_BYTES || preamble.status != Status::Welcome {
        return Err(protocol("the client's greeting makes no sense"));
    }
    Ok(())
}

fn versions_differ(who: &str, version: u16) -> String {
    format!(
        "the {who} speaks protocol version {version}, this side version {PROTOCOL_VERSION}; \
         install the same release of ramlace on both machines"
    )
}

/// Bytes of a client's hello: its preamble and message 1.
pub(crate) const HELLO_BYTES: usize = PREAMBLE_BYTES + MESSAGE_BYTES;

/// The server's side, waiting for the client's confirmation.
pub(crate) struct ServerHandshake(TransportState);

impl ServerHandshake {
    /// Reads a hello whose preamble has been checked; returns which of these keys it proves, and what
    /// to answer. Who knows none of them has cost one try of each.
    ///
    /// Errors: `Denied`, with the line that the client is told.
    pub(crate) fn answer(
        keys: &[&Secret],
        hello: &[u8; HELLO_BYTES],
    ) -> Result<(usize, ServerHandshake, Vec<u8>)> {
        let (preamble, message) = hello.split_at(PREAMBLE_BYTES);
        let read = |key: &Secret| {
            let mut noise = builder(preamble.try_into().expect("it was cut there"), key, false);
            noise.read_message(message, &mut []).ok().map(|_| noise)
        };
        let proved = keys.iter().enumerate().find_map(|(which, key)| Some((which, read(key)?)));
        let Some((which, mut noise)) = proved else {
            return Err(Error::new(
                ErrorKind::Denied,
                "the client's secret is not this pool's; check which pool it was given",
            ));
        };
        let mut answer = Preamble::new(Status::Welcome, MESSAGE_BYTES).encode().to_vec();
        answer.resize(HELLO_BYTES, 0);
        let written = noise.write_message(&[], &mut answer[PREAMBLE_BYTES..]);
        assert_eq!(written.expect("the system has random bytes"), MESSAGE_BYTES);
        let shaking = ServerHandshake(noise.into_transport_mode().expect("both messages have passed"));
        Ok((which, shaking, answer))
    }

    /// Checks the confirmation. Errors: `Denied`.
    pub(crate) fn confirm(mut self, confirmation: &[u8; CONFIRMATION_BYTES]) -> Result<()> {
        self.0
            .read_message(confirmation, &mut [])
            .map(drop)
            .map_err(|_| Error::new(ErrorKind::Denied, "the client repeated a greeting that was not its own"))
    }
}

/// What a refused client is told: a preamble and one line.
pub(crate) fn refusal(error: &Error) -> Vec<u8> {
    let line = error.message();
    let cut =
        (0..=line.len().min(PREAMBLE_PAYLOAD_BYTES_MAX - 1)).rev().find(|at| line.is_char_boundary(*at));
    let line = &line[..cut.unwrap_or(0)];
    let mut bytes = Preamble::new(Status::Refused, line.len() + 1).encode().to_vec();
    bytes.extend_from_slice(line.as_bytes());
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret::from_bytes([byte; 32])
    }

    fn answered(hello: &[u8], with: &Secret) -> Result<(ServerHandshake, Vec<u8>)> {
        let hello: &[u8; HELLO_BYTES] = hello.try_into().unwrap();
        check_client_preamble(hello[..PREAMBLE_BYTES].try_into().unwrap())?;
        let keys = [with, &with.host_key()];
        ServerHandshake::answer(&keys, hello).map(|(_, server, answer)| (server, answer))
    }

    fn finished(client: ClientHandshake, answer: &[u8]) -> Result<[u8; CONFIRMATION_BYTES]> {
        let preamble = Preamble::decode(answer[..PREAMBLE_BYTES].try_into().unwrap())?;
        let payload = answer[PREAMBLE_BYTES..].get(..preamble.payload_bytes as usize);
        client.finish(&preamble, payload.ok_or_else(|| protocol("the answer is too short"))?)
    }

    #[test]
    fn both_sides_with_the_secret_agree() {
        let (client, hello) = ClientHandshake::begin(&secret(1));
        let (server, answer) = answered(&hello, &secret(1)).unwrap();
        server.confirm(&finished(client, &answer).unwrap()).unwrap();
    }

    #[test]
    fn another_secret_is_refused_with_a_line() {
        let (client, hello) = ClientHandshake::begin(&secret(1));
        let Err(error) = answered(&hello, &secret(2)) else { panic!("a wrong secret passed") };
        let told = finished(client, &refusal(&error)).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Denied);
        assert!(told.message().contains("secret is not this pool's"), "{told}");
    }

    #[test]
    fn the_host_key_is_told_from_the_secret() {
        let (pool, other) = (secret(1), secret(2));
        let which = |key: &Secret| {
            let (client, hello) = ClientHandshake::begin(key);
            let hello: &[u8; HELLO_BYTES] = hello[..].try_into().unwrap();
            let (which, server, answer) = ServerHandshake::answer(&[&pool, &pool.host_key()], hello)?;
            server.confirm(&finished(client, &answer)?)?;
            Ok::<usize, Error>(which)
        };
        assert_eq!(which(&pool).unwrap(), 0);
        assert_eq!(which(&pool.host_key()).unwrap(), 1);
        assert_eq!(which(&other.host_key()).unwrap_err().kind(), ErrorKind::Denied);
        assert_eq!(which(&pool.host_key().host_key()).unwrap_err().kind(), ErrorKind::Denied);
    }

    #[test]
    fn a_recorded_greeting_with_the_host_key_lets_nobody_in() {
        let (client, hello) = ClientHandshake::begin(&secret(1).host_key());
        let (_, answer) = answered(&hello, &secret(1)).unwrap();
        let recorded = finished(client, &answer).unwrap();
        let (server, _) = answered(&hello, &secret(1)).unwrap();
        assert_eq!(server.confirm(&recorded).unwrap_err().kind(), ErrorKind::Denied);
    }

    #[test]
    fn a_server_with_another_secret_is_not_believed() {
        let (client, _) = ClientHandshake::begin(&secret(1));
        let (_, hello) = ClientHandshake::begin(&secret(2));
        let (_, answer) = answered(&hello, &secret(2)).unwrap();
        assert_eq!(finished(client, &answer).unwrap_err().kind(), ErrorKind::Denied);
    }

    #[test]
    fn a_recorded_greeting_lets_nobody_in() {
        let (client, hello) = ClientHandshake::begin(&secret(1));
        let (_, answer) = answered(&hello, &secret(1)).unwrap();
        let recorded = finished(client, &answer).unwrap();
        let (server, _) = answered(&hello, &secret(1)).unwrap();
        assert_eq!(server.confirm(&recorded).unwrap_err().kind(), ErrorKind::Denied);
    }

    #[test]
    fn no_changed_bit_passes() {
        for bit in 0..HELLO_BYTES * 8 {
            let (client, mut hello) = ClientHandshake::begin(&secret(1));
            hello[bit / 8] ^= 1 << (bit % 8);
            assert!(answered(&hello, &secret(1)).is_err(), "bit {bit} of the hello");
            hello[bit / 8] ^= 1 << (bit % 8);
            let (server, mut answer) = answered(&hello, &secret(1)).unwrap();
            answer[bit / 8] ^= 1 << (bit % 8);
            assert!(finished(client, &answer).is_err(), "bit {bit} of the answer");
            assert!(server.confirm(&[bit as u8; CONFIRMATION_BYTES]).is_err());
        }
    }

    #[test]
    fn an_old_version_hears_both_numbers() {
        let mut bytes = Preamble::new(Status::Welcome, MESSAGE_BYTES).encode();
        bytes[8..10].copy_from_slice(&77u16.to_le_bytes());
        let error = check_client_preamble(&bytes).unwrap_err();
        assert!(error.message().contains("version 77"), "{error}");
        let mut told = refusal(&error);
        assert_eq!(told.pop(), Some(b'\n'));
        assert!(told.len() <= PREAMBLE_BYTES + PREAMBLE_PAYLOAD_BYTES_MAX);
    }
}
