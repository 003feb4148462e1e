//! What the tests of the wire share: every message once, and values made from drawn words.
//!
//! A new message is one line in [`messages!`] and one `fields!` line for each new struct.
#![allow(dead_code, unused_imports, reason = "each test uses its part")]

mod samples;
mod variants;

use std::fmt::Debug;

use ramlace_wire::{Credentials, ErrorBody, Kind, Permit, Request, decode_body, encode_body};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use samples::{Sample, Source, header_sample};
pub use variants::variants;

/// A body that travels: what the generic checks need to know of it.
pub struct Body {
    /// `ReadChunk.request`, `ReadChunk.reply`, or `Error`.
    pub name: String,
    /// The message it belongs to.
    pub kind: Kind,
    /// Makes a value, checks that it comes back from its bytes, and gives the bytes.
    pub sample: fn(&mut Source) -> Vec<u8>,
    /// Decodes; what can be decoded must come back from its own bytes. False when it cannot.
    pub decodes: fn(&[u8]) -> bool,
    /// A value for each variant of each enum with a table of numbers that can stand in it.
    pub variants: fn() -> Vec<Shown>,
}

/// A value that shows variants.
pub struct Shown {
    /// Which it shows first: `Event.2`, by its number.
    pub variants: String,
    /// It came back from these.
    pub bytes: Vec<u8>,
    /// What they mean.
    pub meaning: String,
}

/// A value that travels.
pub trait Travels: Serialize + DeserializeOwned + PartialEq + Debug {}
impl<T: Serialize + DeserializeOwned + PartialEq + Debug> Travels for T {}

/// A value with a body's bytes.
pub trait Value: Sample + Travels {}
impl<T: Sample + Travels> Value for T {}

fn sample<T: Value>(source: &mut Source) -> Vec<u8> {
    bytes_of(&T::sample(source))
}

/// The bytes of a value, which comes back from them and from no others.
pub fn bytes_of<T: Travels>(value: &T) -> Vec<u8> {
    let bytes = encode_body(value);
    assert_eq!(decode_body::<T>(Kind::GetMap, &bytes).as_ref(), Ok(value));
    for cut in 0..bytes.len() {
        assert!(decode_body::<T>(Kind::GetMap, &bytes[..cut]).is_err(), "{value:?} without its end");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(decode_body::<T>(Kind::GetMap, &longer).is_err(), "{value:?} with a byte too many");
    bytes
}

/// The same, of a request: one that is about a lane can be distinguished by another permit.
fn sample_request<R: Request + Value>(source: &mut Source) -> Vec<u8> {
    let bytes = sample::<R>(source);
    let request: R = decode_body(R::KIND, &bytes).unwrap();
    let permit = Permit { read: [1; 8], write: [2; 8] };
    let renewed = request.with_permit(Some(permit));
    assert_eq!(renewed.is_some(), request.lane_right().is_some(), "{request:?}");
    if let Some(renewed) = renewed {
        let (before, _) = request.lane_right().unwrap();
        let (target, _) = renewed.lane_right().unwrap();
        assert_eq!(target.permit, Some(permit));
        assert_eq!(renewed.with_permit(before.permit).as_ref(), Some(&request), "nothing else changes");
    }
    bytes
}

fn decodes<T: Value>(bytes: &[u8]) -> bool {
    let Ok(value) = decode_body::<T>(Kind::GetMap, bytes) else { return false };
    let again = encode_body(&value);
    assert_eq!(decode_body::<T>(Kind::GetMap, &again).as_ref(), Ok(&value));
    true
}

/// The same, of a request: whatever it says, whether it can be is found out.
fn decodes_request<R: Request + Value>(bytes: &[u8]) -> bool {
    let request = decode_body::<R>(R::KIND, bytes);
    if let Ok(request) = &request {
        let _ = (request.is_possible(), request.lane_right());
    }
    decodes::<R>(bytes)
}

/// The same, of a reply: whatever it says, whether it answers a request is found out.
fn decodes_reply<R: Request + Value>(bytes: &[u8]) -> bool
where
    R::Reply: Value,
{
    if let Ok(reply) = decode_body::<R::Reply>(R::KIND, bytes) {
        for mut source in [Source::new(&[]), Source::full(&[1, 2, 3, u64::MAX, 5, 1 << 40])] {
            let _ = R::sample(&mut source).fits(&reply);
        }
    }
    decodes::<R::Reply>(bytes)
}

fn shown<T: Travels>() -> Vec<Shown> {
    let with_variants = variants::<T>().into_iter().filter_map(|(names, value)| {
        let numbered: Vec<&str> = names.split('+').filter(|name| name.contains('.')).collect();
        let variants = (!numbered.is_empty()).then(|| numbered.join("+"))?;
        Some(Shown { variants, bytes: bytes_of(&value), meaning: format!("{value:?}") })
    });
    with_variants.collect()
}

fn pair<R: Request + Value>() -> [Body; 2]
where
    R::Reply: Value,
{
    let body = |part: &str| format!("{:?}.{part}", R::KIND);
    [
        Body {
            name: body("request"),
            kind: R::KIND,
            sample: sample_request::<R>,
            decodes: decodes_request::<R>,
            variants: shown::<R>,
        },
        Body {
            name: body("reply"),
            kind: R::KIND,
            sample: sample::<R::Reply>,
            decodes: decodes_reply::<R>,
            variants: shown::<R::Reply>,
        },
    ]
}

macro_rules! messages {
    ($($family:ident: $($message:ident),*;)*) => {
        /// The bodies of every message, and that of an error.
        pub fn bodies() -> Vec<Body> {
            let mut all = Vec::new();
            $($(all.extend(pair::<ramlace_wire::$family::$message>());)*)*
            all.push(Body {
                name: "Error".into(),
                kind: Kind::GetMap,
                sample: sample::<ErrorBody>,
                decodes: decodes::<ErrorBody>,
                variants: shown::<ErrorBody>,
            });
            // What stands before the body of a request that a host's session makes for a user.
            all.push(Body {
                name: "OnBehalf".into(),
                kind: Kind::GetMap,
                sample: sample::<Credentials>,
                decodes: decodes::<Credentials>,
                variants: shown::<Credentials>,
            });
            // And before that, the front of one that goes by a path.
            all.push(Body {
                name: "ByPath".into(),
                kind: Kind::GetMap,
                sample: sample::<Vec<ramlace_base::Name>>,
                decodes: decodes::<Vec<ramlace_base::Name>>,
                variants: shown::<Vec<ramlace_base::Name>>,
            });
            all
        }
    };
}

messages! {
    session: OpenSession, Heartbeat, CloseSession, GetServerStatus, StopServer;
    metrics: GetMetrics;
    listen: Listen;
    permit: GetPermit;
    cluster: GetMap, JoinPool, ForgetServer;
    keys: ChangeKeys, GetKeyBook, AdoptKeyBook, ListKeys, RotateSecret;
    mend: Mend, MendLanes, QueryOperations;
    check: CheckStore, CheckLanes, CheckSlots, CheckInodes, CheckEntries;
    chunk: ReadChunk, WriteChunk, ExtendChunk, PunchChunk, GrantLane, GrantPassthrough, AllocateLane, CountLane, SeekLane;
    runs: ReadRuns, WriteRuns;
    namespace: Lookup, GetAttributes, GetAttributesMany, SetAttributes, Truncate, Create, Open, OpenEntry, CancelChange, BeginPassthrough, Close, Symlink, ReadLink,
        MakeDirectory, RemoveDirectory, Unlink, ReadDirectory, Extend, NoteMemory, ReserveAppend, FinishAppend, SetLayout,
        Rename, Link, MakeNode, CreateUnnamed, GetPartitions;
    walk: Walk;
    delegation: ChangeMany;
    xattrs: SetXattr, GetXattr, ListXattrs, RemoveXattr;
    inline: ReadInline, WriteInline, Promote;
    locks: SetLock, CancelLock, GetLock, FindDeadlock, ListLockWaits, EndLockWait;
    coordination: ArriveBarrier, LeaveBarrier, ChangeCell, ChangeInlineCell, WatchChange, EndWatch, NoteChange;
    leases: LeaseName, LeaseAttributes, EndRecalls, WaitPublished, RenewLeases;
    holders: ListHolders;
    peer: CutLane, DropLane, QueryInode, TrimLane, Prepare, Decide, Ascend, FillLane, QueryPages, BeginLane, QueryRecalls;
}

/// A small generator (SplitMix64), so that every run is given by its seed.
pub struct Draw(pub u64);

impl Draw {
    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, 0 when there is none.
    pub fn below(&mut self, end: usize) -> usize {
        (self.word() % end.max(1) as u64) as usize
    }
}
