//! The handshake without its sockets: what each side says and what it makes of the answer.
//!
//! Noise NKpsk0: the server proves the pool's server key, the client the key of its role as the pre-shared key;
//! what the client sends first, its preamble with the role and its claim to a key, is the prologue.
//!
//! 1. client: preamble, claim, message 1, whose payload names the server that is meant. It proves the role's key,
//!    but an old one could be said again.
//! 2. server: preamble, message 2, whose payload says which server this is and how frames are protected. It
//!    proves the server key, freshly.
//! 3. client: an empty message under the session's key ([`CONFIRMATION_BYTES`]): only the maker of message 1
//!    can say it. Without it a recorded message 1 would be answered, and would hold a connection.
//!
//! Both sides then have a key for the frames of each direction, which nobody between them has: an attacker that
//! passes a greeting on, to the same server or another, has gained nothing.

use ramlace_base::{Error, ErrorKind, Redirect, Result, ServerId};
use ramlace_wire::PROTOCOL_VERSION;
use ramlace_wire::preamble::{PREAMBLE_BYTES, PREAMBLE_MAGIC, PREAMBLE_PAYLOAD_BYTES_MAX, Preamble, Status};
use snow::{Builder, HandshakeState, TransportState};

use crate::keys::{CLAIM_BYTES, Claim, ClientKey, KEY_BYTES, Proved, Role, ServerKeys, derive, wrong_secret};
use crate::seal::{FrameKeys, Protection};

const NOISE: &str = "Noise_NKpsk0_25519_ChaChaPoly_BLAKE2s";
/// An ephemeral key and a tag: the parts of a Noise message besides its payload.
const NOISE_BYTES: usize = 32 + 16;
/// Payload of message 1: the number of the server that is meant.
const WANTED_BYTES: usize = 4;
/// Payload of message 2: the server's number, how frames are protected, and three bytes of 0.
const ANSWER_BYTES: usize = 8;
/// Length of message 1.
const MESSAGE_1_BYTES: usize = NOISE_BYTES + WANTED_BYTES;
/// Length of message 2.
const MESSAGE_2_BYTES: usize = NOISE_BYTES + ANSWER_BYTES;
/// Length of the client's confirmation: a tag.
pub(crate) const CONFIRMATION_BYTES: usize = 16;
/// The bytes that a client sends before message 1.
const FRONT_BYTES: usize = PREAMBLE_BYTES + CLAIM_BYTES;
/// Bytes of a client's hello: its preamble, its claim and message 1.
pub(crate) const HELLO_BYTES: usize = FRONT_BYTES + MESSAGE_1_BYTES;
/// The bytes of a hello behind the preamble.
const HELLO_PAYLOAD_BYTES: usize = HELLO_BYTES - PREAMBLE_BYTES;
/// In the place of a server's number: any server of the pool is meant.
const WHICHEVER: u32 = u32::MAX;
/// The label for deriving the keys of frames from the Noise session.
const FRAME_WORDS: &[u8] = b"ramlace frames";

fn builder<'a>(prologue: &'a [u8; FRONT_BYTES], key: &'a [u8; KEY_BYTES]) -> Builder<'a> {
    let build = || Builder::new(NOISE.parse()?).prologue(prologue)?.psk(0, key);
    build().expect("the Noise pattern is complete and its primitives are built in")
}

fn protocol(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, text)
}

/// The keys of both directions, the client's first: each worked out from one of the Noise session's.
fn frame_keys(noise: &mut HandshakeState) -> [[u8; KEY_BYTES]; 2] {
    let (client, server) = noise.dangerously_get_raw_split();
    [derive(&client, FRAME_WORDS), derive(&server, FRAME_WORDS)]
}

/// The client's side, waiting for the server's answer.
pub(crate) struct ClientHandshake {
    noise: HandshakeState,
    wanted: Option<ServerId>,
}

/// What a client knows of the server once its greeting was answered.
pub(crate) struct Answered {
    /// The message to be sent before the first frame.
    pub(crate) confirmation: [u8; CONFIRMATION_BYTES],
    pub(crate) server: ServerId,
    pub(crate) protection: Protection,
    pub(crate) keys: FrameKeys,
}

impl ClientHandshake {
    /// Begins; returns the bytes to send first. `wanted`: the server that is meant, unless any of the pool
    /// will do.
    pub(crate) fn begin(key: &ClientKey, wanted: Option<ServerId>) -> (ClientHandshake, Vec<u8>) {
        let mut front = [0; FRONT_BYTES];
        let preamble = Preamble::of_client(key.role().number(), HELLO_PAYLOAD_BYTES);
        front[..PREAMBLE_BYTES].copy_from_slice(&preamble.encode());
        front[PREAMBLE_BYTES..].copy_from_slice(&key.claim().encode());
        let noise = builder(&front, key.key()).remote_public_key(key.server_public());
        let noise = noise.and_then(Builder::build_initiator);
        let mut noise = noise.expect("the Noise pattern is complete and its primitives are built in");
        let payload = wanted.map_or(WHICHEVER, |server| u32::from(server.0)).to_le_bytes();
        let mut hello = front.to_vec();
        hello.resize(HELLO_BYTES, 0);
        let written = noise.write_message(&payload, &mut hello[FRONT_BYTES..]);
        assert_eq!(written.expect("the system has random bytes"), MESSAGE_1_BYTES);
        (ClientHandshake { noise, wanted }, hello)
    }

    /// Reads what followed the server's preamble.
    ///
    /// Errors: the server's own line when it refuses (`Denied`, `HostDown` when another server was meant, or
    /// `Protocol` when it speaks another version), `Denied` when it has not the pool's server key.
    pub(crate) fn finish(mut self, preamble: &Preamble, payload: &[u8]) -> Result<Answered> {
        let same_version = preamble.version == PROTOCOL_VERSION;
        if preamble.status != Status::Welcome {
            // A stranger's text must not move the reader's cursor.
            let line = String::from_utf8_lossy(payload).trim_end().replace(char::is_control, "?");
            let kind = match preamble.status {
                _ if !same_version => ErrorKind::Protocol,
                Status::Elsewhere => ErrorKind::HostDown,
                _ => ErrorKind::Denied,
            };
            return Err(Error::new(kind, format!("the server refused: {line}")));
        }
        if !same_version {
            return Err(protocol(versions_differ("server", preamble.version)));
        }
        if *preamble != Preamble::new(Status::Welcome, MESSAGE_2_BYTES) {
            return Err(protocol("the server's greeting makes no sense"));
        }
        let mut answer = [0; ANSWER_BYTES];
        let read = self.noise.read_message(payload, &mut answer).map_err(|_| {
            Error::new(
                ErrorKind::Denied,
                "the server does not know the pool's secret; it belongs to another pool",
            )
        })?;
        assert_eq!(read, ANSWER_BYTES, "the length was checked");
        let (server, protection) = decode_answer(&answer)?;
        if self.wanted.is_some_and(|wanted| wanted != server) {
            return Err(Error::new(ErrorKind::HostDown, format!("{server} answers at this address")));
        }
        let [send, receive] = frame_keys(&mut self.noise);
        let mut session = self.noise.into_transport_mode().expect("both messages have passed");
        let mut confirmation = [0; CONFIRMATION_BYTES];
        let written = session.write_message(&[], &mut confirmation).expect("a tag fits");
        assert_eq!(written, CONFIRMATION_BYTES);
        Ok(Answered { confirmation, server, protection, keys: FrameKeys { send, receive } })
    }
}

fn decode_answer(answer: &[u8; ANSWER_BYTES]) -> Result<(ServerId, Protection)> {
    let number = u32::from_le_bytes([answer[0], answer[1], answer[2], answer[3]]);
    let server = u16::try_from(number).ok().map(ServerId);
    match (server, Protection::by_number(answer[4]), &answer[5..]) {
        (Some(server), Some(protection), [0, 0, 0]) => Ok((server, protection)),
        _ => Err(protocol("the server's answer to the greeting makes no sense")),
    }
}

/// Checks the first bytes from a stranger, as far as they have come: a server need not wait for the rest if
/// they cannot become a greeting.
///
/// Errors: `Protocol`, with the line that is sent to the stranger.
pub(crate) fn check_greeting(bytes: &[u8]) -> Result<()> {
    let length = bytes.len().min(PREAMBLE_MAGIC.len());
    if bytes[..length] != PREAMBLE_MAGIC[..length] {
        return Err(protocol("this is a ramlace server; what came is not its protocol"));
    }
    Ok(())
}

/// Checks a client's preamble; returns the role in which it connects.
///
/// Errors: `Protocol` or `Denied`, with the line that is sent to the client.
pub(crate) fn check_client_preamble(bytes: &[u8; PREAMBLE_BYTES]) -> Result<Role> {
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
    match Role::by_number(preamble.role) {
        Some(role) if preamble == Preamble::of_client(role.number(), HELLO_PAYLOAD_BYTES) => Ok(role),
        _ => Err(protocol("the client's greeting makes no sense")),
    }
}

fn versions_differ(who: &str, version: u16) -> String {
    format!(
        "the {who} speaks protocol version {version}, this side version {PROTOCOL_VERSION}; \
         install the same release of ramlace on both machines"
    )
}

/// The server's side, waiting for the client's confirmation.
pub(crate) struct ServerHandshake {
    session: TransportState,
    keys: FrameKeys,
}

impl ServerHandshake {
    /// Reads a hello whose preamble has been checked; returns what the client proves, and the answer.
    ///
    /// Errors, with the line that is sent to the client: `Denied`; `Moved` when another server was meant.
    pub(crate) fn answer(
        keys: &ServerKeys,
        protection: Protection,
        hello: &[u8; HELLO_BYTES],
    ) -> Result<(Proved, ServerHandshake, Vec<u8>)> {
        let (front, message) = hello.split_first_chunk::<FRONT_BYTES>().expect("a hello is longer");
        let (preamble, claim) = front.split_first_chunk::<PREAMBLE_BYTES>().expect("the front is longer");
        let role = check_client_preamble(preamble)?;
        let claim = Claim::decode(claim.try_into().expect("it was cut there"), role)?;
        let answering = keys.for_claim(role, claim)?;
        let noise = builder(front, &answering.key).local_private_key(&answering.private);
        let noise = noise.and_then(Builder::build_responder);
        let mut noise = noise.expect("the Noise pattern is complete and its primitives are built in");
        let mut wanted = [0; WANTED_BYTES];
        if noise.read_message(message, &mut wanted).ok() != Some(WANTED_BYTES) {
            return Err(wrong_secret());
        }
        // Only a client that has the key learns whether it was revoked.
        keys.check(&answering.proved)?;
        let (me, wanted) = (u32::from(keys.server().0), u32::from_le_bytes(wanted));
        if wanted != me && wanted != WHICHEVER {
            let text = format!("this is server {me} of the pool; the greeting was meant for server {wanted}");
            return Err(Error::new(ErrorKind::Redirect(Redirect::Moved), text));
        }
        let mut payload = [0; ANSWER_BYTES];
        payload[..4].copy_from_slice(&me.to_le_bytes());
        payload[4] = protection.number();
        let mut answer = Preamble::new(Status::Welcome, MESSAGE_2_BYTES).encode().to_vec();
        answer.resize(PREAMBLE_BYTES + MESSAGE_2_BYTES, 0);
        let written = noise.write_message(&payload, &mut answer[PREAMBLE_BYTES..]);
        assert_eq!(written.expect("the system has random bytes"), MESSAGE_2_BYTES);
        let [receive, send] = frame_keys(&mut noise);
        let session = noise.into_transport_mode().expect("both messages have passed");
        Ok((answering.proved, ServerHandshake { session, keys: FrameKeys { send, receive } }, answer))
    }

    /// Checks the confirmation; returns the keys of the frames. Errors: `Denied`.
    pub(crate) fn confirm(mut self, confirmation: &[u8; CONFIRMATION_BYTES]) -> Result<FrameKeys> {
        let confirmed = self.session.read_message(confirmation, &mut []);
        confirmed
            .map(|_| self.keys)
            .map_err(|_| Error::new(ErrorKind::Denied, "the client repeated a greeting that was not its own"))
    }
}

/// The answer to a refused client: a preamble and one line.
pub(crate) fn refusal(error: &Error) -> Vec<u8> {
    let line = error.message();
    let cut =
        (0..=line.len().min(PREAMBLE_PAYLOAD_BYTES_MAX - 1)).rev().find(|at| line.is_char_boundary(*at));
    let line = &line[..cut.unwrap_or(0)];
    let status = if error.kind() == ErrorKind::Redirect(Redirect::Moved) {
        Status::Elsewhere
    } else {
        Status::Refused
    };
    let mut bytes = Preamble::new(status, line.len() + 1).encode().to_vec();
    bytes.extend_from_slice(line.as_bytes());
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use ramlace_base::Timestamp;
    use ramlace_wire::keys::{HostKeyEntry, HostKeyId, HostKeyName, KeyBook, PoolSecrets, SecretBytes};

    use super::*;
    use crate::{HostKey, Secret};

    const THIS: ServerId = ServerId(3);

    fn secret(byte: u8) -> Secret {
        Secret::from_bytes([byte; 32])
    }

    fn host_key(name: &str, serial: u32) -> HostKey {
        secret(1).host_key(HostKeyId { name: HostKeyName::new(name).unwrap(), serial })
    }

    fn begin(key: &ClientKey) -> (ClientHandshake, Vec<u8>) {
        ClientHandshake::begin(key, Some(THIS))
    }

    fn answered(hello: &[u8], with: &Secret) -> Result<(Proved, ServerHandshake, Vec<u8>)> {
        let hello: &[u8; HELLO_BYTES] = hello.try_into().unwrap();
        check_client_preamble(hello[..PREAMBLE_BYTES].try_into().unwrap())?;
        ServerHandshake::answer(&with.server_keys(THIS), Protection::Everything, hello)
    }

    fn finished(client: ClientHandshake, answer: &[u8]) -> Result<Answered> {
        let preamble = Preamble::decode(answer[..PREAMBLE_BYTES].try_into().unwrap())?;
        let payload = answer[PREAMBLE_BYTES..].get(..preamble.payload_bytes as usize);
        client.finish(&preamble, payload.ok_or_else(|| protocol("the answer is too short"))?)
    }

    #[test]
    fn both_sides_agree_on_roles_servers_protection_and_keys() {
        let pool = secret(1);
        for key in [pool.owner_key(), pool.peer_key(), pool.shared_host_key().client_key()] {
            for wanted in [Some(THIS), None] {
                let (client, hello) = ClientHandshake::begin(&key, wanted);
                let (proved, server, answer) = answered(&hello, &pool).unwrap();
                let at_client = finished(client, &answer).unwrap();
                let at_server = server.confirm(&at_client.confirmation).unwrap();
                assert_eq!((proved.role, at_client.server), (key.role(), THIS));
                assert_eq!(at_client.protection, Protection::Everything);
                assert_eq!(at_client.keys.send, at_server.receive);
                assert_eq!(at_client.keys.receive, at_server.send);
                assert_ne!(at_client.keys.send, at_client.keys.receive);
            }
        }
    }

    #[test]
    fn another_secret_is_refused_with_a_line() {
        let (client, hello) = begin(&secret(1).owner_key());
        let Err(error) = answered(&hello, &secret(2)) else { panic!("a wrong secret passed") };
        let answer = finished(client, &refusal(&error)).err().unwrap();
        assert_eq!(answer.kind(), ErrorKind::Denied);
        assert!(answer.message().contains("secret is not this pool's"), "{answer}");
    }

    #[test]
    fn a_greeting_for_another_server_is_refused_by_both_sides() {
        let pool = secret(1);
        let (client, hello) = ClientHandshake::begin(&pool.owner_key(), Some(ServerId(2)));
        let error = answered(&hello, &pool).err().unwrap();
        let answer = finished(client, &refusal(&error)).err().unwrap();
        assert_eq!(answer.kind(), ErrorKind::HostDown);
        assert!(
            answer.message().contains("this is server 3") && answer.message().contains("server 2"),
            "{answer}"
        );
        // A server that has the pool's key and the number that was meant is accepted.
        let (client, hello) = ClientHandshake::begin(&pool.owner_key(), Some(ServerId(2)));
        let hello: &[u8; HELLO_BYTES] = hello[..].try_into().unwrap();
        let lying = ServerKeys::of_secret(&[1; 32], ServerId(2));
        let (_, _, answer) = ServerHandshake::answer(&lying, Protection::Everything, hello).unwrap();
        assert_eq!(finished(client, &answer).unwrap().server, ServerId(2));
    }

    #[test]
    fn a_host_key_makes_no_server_and_no_owner() {
        let pool = secret(1);
        let host = pool.shared_host_key();
        // It answers a greeting with all that it has: its own key for every role, and some server key.
        let claimed = Secret::from_bytes(*host.client_key().key());
        let (_, hello) = begin(&host.client_key());
        assert!(answered(&hello, &claimed).is_err());
        // As the owner, or as another host, it has the wrong key, whatever it says that it is.
        let (_, mut hello) = begin(&host.client_key());
        hello[11] = Role::Owner.number();
        assert_eq!(answered(&hello, &pool).err().unwrap().kind(), ErrorKind::Protocol);
        hello[PREAMBLE_BYTES..FRONT_BYTES].copy_from_slice(&pool.owner_key().claim().encode());
        assert_eq!(answered(&hello, &pool).err().unwrap().kind(), ErrorKind::Denied);
        let (_, mut hello) = begin(&host.client_key());
        hello[PREAMBLE_BYTES..FRONT_BYTES]
            .copy_from_slice(&host_key("node7", 1).client_key().claim().encode());
        assert_eq!(answered(&hello, &pool).err().unwrap().kind(), ErrorKind::Denied);
        hello[11] = 9;
        assert_eq!(answered(&hello, &pool).err().unwrap().kind(), ErrorKind::Protocol);
    }

    // SEMANTICS 121.1, 121.3
    #[test]
    fn a_revoked_host_key_is_refused_by_its_name_and_the_others_go_on() {
        let made = |name: &str, serial, revoked| HostKeyEntry {
            key: HostKeyId { name: HostKeyName::new(name).unwrap(), serial },
            made: Timestamp::default(),
            revoked: Some(Timestamp::default()).filter(|_| revoked),
        };
        let hosts = vec![made("node7", 2, true), made("node8", 3, false)];
        let secrets = PoolSecrets::of(SecretBytes([1; 32]));
        let keys = ServerKeys::by_book(KeyBook { version: 1, secrets, hosts }, THIS);
        let greeted = |name: &str, serial: u32| {
            let (client, hello) = begin(&host_key(name, serial).client_key());
            let hello: &[u8; HELLO_BYTES] = hello[..].try_into().unwrap();
            match ServerHandshake::answer(&keys, Protection::Everything, hello) {
                Ok((proved, _, _)) => Ok(proved.host.unwrap().serial),
                Err(error) => Err(finished(client, &refusal(&error)).err().unwrap()),
            }
        };
        for (name, serial) in [("node7", 1), ("node7", 2), ("node8", 2)] {
            let answer = greeted(name, serial).unwrap_err();
            assert_eq!(answer.kind(), ErrorKind::Denied);
            assert!(answer.message().contains(&format!("the host key '{name}' was revoked")), "{answer}");
        }
        for (name, serial) in [("node7", 3), ("node8", 3), ("node", 1), ("default", 1)] {
            assert_eq!(greeted(name, serial).unwrap(), serial);
        }
        // A client that has not the key learns nothing of it.
        let (_, mut hello) = begin(&secret(2).shared_host_key().client_key());
        hello[PREAMBLE_BYTES..FRONT_BYTES]
            .copy_from_slice(&host_key("node7", 2).client_key().claim().encode());
        let error = ServerHandshake::answer(&keys, Protection::Everything, hello[..].try_into().unwrap());
        assert!(error.err().unwrap().message().contains("secret is not this pool's"));
    }

    // SEMANTICS 123.2
    #[test]
    fn every_secret_of_the_book_lets_in_and_no_other() {
        let bytes = |byte| SecretBytes([byte; 32]);
        let secrets = PoolSecrets { current: bytes(2), next: None, previous: Some(bytes(1)) };
        let keys = ServerKeys::by_book(KeyBook { version: 1, secrets, hosts: Vec::new() }, THIS);
        let answered = |key: &ClientKey| {
            let (client, hello) = begin(key);
            let hello: &[u8; HELLO_BYTES] = hello[..].try_into().unwrap();
            let (proved, server, answer) = ServerHandshake::answer(&keys, Protection::Everything, hello)?;
            server.confirm(&finished(client, &answer)?.confirmation)?;
            keys.check(&proved)?;
            Ok::<_, Error>(proved)
        };
        for byte in [1, 2] {
            let pool = secret(byte);
            for key in [pool.owner_key(), pool.peer_key(), pool.shared_host_key().client_key()] {
                let proved = answered(&key).unwrap();
                assert_eq!(
                    (proved.role, secret(3).server_keys(THIS).check(&proved).is_err()),
                    (key.role(), true)
                );
            }
        }
        assert_eq!(answered(&secret(3).owner_key()).unwrap_err().kind(), ErrorKind::Denied);
    }

    #[test]
    fn an_answer_without_the_server_key_is_not_believed() {
        let pool = secret(1);
        let (client, hello) = begin(&pool.shared_host_key().client_key());
        // The role's key is right, the server key is another pool's.
        let front: &[u8; FRONT_BYTES] = hello[..FRONT_BYTES].try_into().unwrap();
        let key = *pool.shared_host_key().client_key().key();
        let noise = builder(front, &key).local_private_key(&[9; 32]).and_then(Builder::build_responder);
        assert!(noise.unwrap().read_message(&hello[FRONT_BYTES..], &mut [0; 64]).is_err());
        let mut answer = Preamble::new(Status::Welcome, MESSAGE_2_BYTES).encode().to_vec();
        answer.resize(PREAMBLE_BYTES + MESSAGE_2_BYTES, 7);
        assert_eq!(finished(client, &answer).err().unwrap().kind(), ErrorKind::Denied);
    }

    #[test]
    fn a_recorded_greeting_lets_nobody_in() {
        for key in [secret(1).owner_key(), secret(1).shared_host_key().client_key()] {
            let (client, hello) = begin(&key);
            let (_, _, answer) = answered(&hello, &secret(1)).unwrap();
            let recorded = finished(client, &answer).unwrap().confirmation;
            let (_, server, _) = answered(&hello, &secret(1)).unwrap();
            assert_eq!(server.confirm(&recorded).err().unwrap().kind(), ErrorKind::Denied);
        }
    }

    #[test]
    fn no_changed_bit_passes() {
        let key = secret(1).owner_key();
        for bit in 0..(PREAMBLE_BYTES + MESSAGE_2_BYTES) * 8 {
            let (client, mut hello) = begin(&key);
            if bit < HELLO_BYTES * 8 {
                hello[bit / 8] ^= 1 << (bit % 8);
                assert!(answered(&hello, &secret(1)).is_err(), "bit {bit} of the hello");
                hello[bit / 8] ^= 1 << (bit % 8);
            }
            let (_, server, mut answer) = answered(&hello, &secret(1)).unwrap();
            answer[bit / 8] ^= 1 << (bit % 8);
            assert!(finished(client, &answer).is_err(), "bit {bit} of the answer");
            assert!(server.confirm(&[bit as u8; CONFIRMATION_BYTES]).is_err());
        }
    }

    #[test]
    fn an_old_version_hears_both_numbers() {
        let mut bytes = Preamble::of_client(1, HELLO_PAYLOAD_BYTES).encode();
        bytes[8..10].copy_from_slice(&77u16.to_le_bytes());
        let error = check_client_preamble(&bytes).unwrap_err();
        assert!(error.message().contains("version 77"), "{error}");
        let mut answer = refusal(&error);
        assert_eq!(answer.pop(), Some(b'\n'));
        assert!(answer.len() <= PREAMBLE_BYTES + PREAMBLE_PAYLOAD_BYTES_MAX);
    }
}
