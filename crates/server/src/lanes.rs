//! What a server knows of the lanes it holds: generations, losses, and writes under way.
//!
//! A lane is *known* from its first write on. A request with another generation than the
//! lane's shows that one side has not heard of a truncation yet (`docs/records/generations.md`).

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use ramlace_base::{ByteRange, Error, ErrorKind, Generation, LaneId, Result, Sequence, SessionId};
use ramlace_transport::nonblocking::Canceller;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// Names a write for ever.
pub type Writer = (SessionId, Sequence);

/// What of a lane outlives the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneRecord {
    /// The newest generation it has heard of.
    pub generation: Generation,
    /// Set when the lane began on a server that does not have the file's older bytes.
    pub loss: Option<Loss>,
    /// Kernels have its file since this handover, which was the last: then it has no holes. 0: none has it.
    pub handover: u64,
    /// Handovers up to this one are over, whenever a message says otherwise.
    pub handovers_over: u64,
}

impl LaneRecord {
    /// A lane that begins.
    pub fn new(generation: Generation, loss: Option<Loss>) -> LaneRecord {
        LaneRecord { generation, loss, handover: 0, handovers_over: 0 }
    }
}

/// Which bytes of a lane are lost: everything below `below` but the chunks written since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Bytes of a chunk.
    pub stripe_unit: u64,
    /// Bytes that the lane had when they were lost.
    pub below: u64,
    /// Chunks of the lane that were written whole since.
    pub recovered: BTreeSet<u64>,
}

impl Loss {
    /// The lane had bytes up to `length` when they were lost.
    pub fn new(stripe_unit: u64, length: u64) -> Loss {
        Loss { stripe_unit, below: length, recovered: BTreeSet::new() }
    }

    /// Whether some byte of the range is lost.
    pub fn touches(&self, range: ByteRange) -> bool {
        let lost = range.intersection(ByteRange { start: 0, end: self.below });
        !lost.is_empty() && self.chunks(lost).any(|chunk| !self.recovered.contains(&chunk))
    }

    /// Whether nothing is lost any more.
    pub fn is_over(&self) -> bool {
        !self.touches(ByteRange { start: 0, end: self.below })
    }

    /// Whether a write to the range leaves no byte half lost: lost chunks are written whole, as far
    /// as the lane had them.
    pub fn accepts_write(&self, range: ByteRange) -> bool {
        let whole = |chunk: u64| {
            range.start <= chunk * self.stripe_unit
                && range.end >= ((chunk + 1) * self.stripe_unit).min(self.below)
        };
        let lost = range.intersection(ByteRange { start: 0, end: self.below });
        lost.is_empty() || self.chunks(lost).all(|chunk| self.recovered.contains(&chunk) || whole(chunk))
    }

    /// Notes that the range was written; whether that changed anything.
    pub fn recover(&mut self, range: ByteRange) -> bool {
        let lost = range.intersection(ByteRange { start: 0, end: self.below });
        let before = self.recovered.len();
        if !lost.is_empty() {
            let chunks = self.chunks(lost);
            self.recovered.extend(chunks);
        }
        self.recovered.len() != before
    }

    /// Notes that the lane was cut to `length` bytes: what lay beyond is no loss any more.
    pub fn cut(&mut self, length: u64) {
        self.below = self.below.min(length);
        let chunks = self.below.div_ceil(self.stripe_unit);
        self.recovered.retain(|chunk| *chunk < chunks);
    }

    fn chunks(&self, range: ByteRange) -> std::ops::Range<u64> {
        range.start / self.stripe_unit..range.end.div_ceil(self.stripe_unit)
    }
}

/// A write into a lane's memory whose bytes are still arriving.
pub struct WriteUnderWay {
    /// Stops the connection that it arrives on.
    pub canceller: Canceller,
    /// Told when the write has ended, one way or the other.
    pub ended: Notify,
}

/// The lanes of one server.
#[derive(Default)]
pub struct Lanes {
    known: HashMap<LaneId, LaneRecord>,
    under_way: HashMap<LaneId, HashMap<Writer, Rc<WriteUnderWay>>>,
    changing: HashMap<LaneId, Rc<tokio::sync::Mutex<()>>>,
}

/// How a request's generation stands to a lane's.
pub enum Standing {
    /// The lane has had no write yet.
    Unknown,
    /// Both agree.
    Current,
    /// The requester knows of a truncation that the lane has not heard of.
    Behind,
}

impl Lanes {
    /// The lane's record.
    pub fn get(&self, lane: LaneId) -> Option<&LaneRecord> {
        self.known.get(&lane)
    }

    /// Sets or forgets a record, as the log says.
    pub fn set(&mut self, lane: LaneId, record: Option<LaneRecord>) {
        match record {
            Some(record) => self.known.insert(lane, record),
            None => self.known.remove(&lane),
        };
    }

    /// Whether a kernel may map the lane: then it must have no holes.
    pub fn is_handed(&self, lane: LaneId) -> bool {
        self.known.get(&lane).is_some_and(|record| record.handover != 0)
    }

    /// All records, for snapshots.
    pub fn records(&self) -> impl Iterator<Item = (LaneId, &LaneRecord)> {
        self.known.iter().map(|(lane, record)| (*lane, record))
    }

    /// Number of lanes.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether somebody is beginning, cutting or dropping the lane right now: its standing counts
    /// only with the lock of [`Lanes::changing`] in hand.
    pub fn is_changing(&self, lane: LaneId) -> bool {
        self.changing.contains_key(&lane)
    }

    /// Compares the requester's generation with the lane's. Retry when the requester is behind.
    pub fn standing(&self, lane: LaneId, generation: Generation) -> Result<Standing> {
        let Some(record) = self.known.get(&lane) else { return Ok(Standing::Unknown) };
        match generation.cmp(&record.generation) {
            std::cmp::Ordering::Equal => Ok(Standing::Current),
            std::cmp::Ordering::Greater => Ok(Standing::Behind),
            std::cmp::Ordering::Less => {
                Err(Error::new(ErrorKind::Retry, "the file was truncated meanwhile; ask its home again"))
            }
        }
    }

    /// The lock under which a lane is begun, cut or dropped; requests wait while it exists.
    pub fn changing(&mut self, lane: LaneId) -> Rc<tokio::sync::Mutex<()>> {
        self.changing.entry(lane).or_default().clone()
    }

    /// Removes the lock when nobody else waits for it.
    pub fn changed(&mut self, lane: LaneId, lock: &Rc<tokio::sync::Mutex<()>>) {
        // Two owners: this table and the caller.
        if Rc::strong_count(lock) <= 2 {
            self.changing.remove(&lane);
        }
    }

    /// Notes that a write's bytes begin to arrive.
    pub fn begin_write(&mut self, lane: LaneId, writer: Writer, write: Rc<WriteUnderWay>) {
        self.under_way.entry(lane).or_default().insert(writer, write);
    }

    /// Notes that the write has ended.
    pub fn end_write(&mut self, lane: LaneId, writer: Writer) {
        if let Some(writes) = self.under_way.get_mut(&lane) {
            if let Some(write) = writes.remove(&writer) {
                write.ended.notify_waiters();
            }
            if writes.is_empty() {
                self.under_way.remove(&lane);
            }
        }
    }

    /// A write under way that this one takes the place of: its own first attempt, or one of the
    /// session's numbers below `below`, which were given up.
    pub fn replaced_by(&self, lane: LaneId, writer: Writer, below: Sequence) -> Option<Rc<WriteUnderWay>> {
        let replaced = |other: &Writer| *other == writer || (other.0 == writer.0 && other.1 < below);
        self.under_way.get(&lane)?.iter().find(|(other, _)| replaced(other)).map(|(_, write)| write.clone())
    }

    /// Every write under way in a lane.
    pub fn writes_under_way(&self, lane: LaneId) -> Vec<Rc<WriteUnderWay>> {
        self.under_way.get(&lane).map(|writes| writes.values().cloned().collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    #[test]
    fn a_lost_chunk_accepts_only_a_whole_write() {
        let mut loss = Loss::new(100, 250);
        assert!(loss.touches(range(249, 251)) && !loss.touches(range(250, 400)));
        assert!(!loss.accepts_write(range(100, 199)) && !loss.accepts_write(range(150, 250)));
        assert!(loss.accepts_write(range(100, 200)) && loss.accepts_write(range(300, 301)));
        assert!(loss.recover(range(100, 200)) && !loss.recover(range(120, 130)));
        assert!(!loss.touches(range(100, 200)) && loss.touches(range(100, 201)));
        assert!(loss.accepts_write(range(120, 130)));
        // The last chunk is whole as far as the file had it.
        assert!(!loss.accepts_write(range(200, 249)) && loss.accepts_write(range(200, 250)));
        assert!(loss.recover(range(200, 250)) && !loss.is_over());
        assert!(loss.recover(range(0, 100)) && loss.is_over());
    }

    #[test]
    fn a_cut_makes_holes_of_losses() {
        let mut loss = Loss::new(100, 300);
        loss.recover(range(200, 300));
        loss.cut(150);
        assert!(loss.touches(range(0, 1)) && loss.touches(range(149, 160)));
        assert!(!loss.touches(range(150, 300)));
        assert!(loss.recovered.is_empty());
        loss.cut(0);
        assert!(loss.is_over());
    }

    #[test]
    fn an_older_generation_is_told_to_ask_again() {
        let lane = LaneId { inode: ramlace_base::InodeId(1), lane: 0 };
        let mut lanes = Lanes::default();
        assert!(matches!(lanes.standing(lane, Generation(1)), Ok(Standing::Unknown)));
        lanes.set(lane, Some(LaneRecord::new(Generation(3), None)));
        assert!(matches!(lanes.standing(lane, Generation(3)), Ok(Standing::Current)));
        assert!(matches!(lanes.standing(lane, Generation(5)), Ok(Standing::Behind)));
        assert_eq!(lanes.standing(lane, Generation(2)).err().unwrap().kind(), ErrorKind::Retry);
    }
}
