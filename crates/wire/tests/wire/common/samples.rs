//! A value of every type on the wire, made from drawn words: no words, the smallest value.

use ramlace_base::{
    Epoch, Generation, InodeId, LaneId, Name, Sequence, ServerId, SessionId, Slot, Timestamp, limits,
};
use ramlace_wire::session::*;
use ramlace_wire::{
    check::*, chunk::*, cluster::*, coordination::*, delegation::*, holders::*, inline::*, keys::*,
    leases::*, listen::*, locks::*, mend::*, metrics::*, namespace::*, peer::*, permit::*, runs::*, walk::*,
    xattrs::*, *,
};

/// Where values come from: words that run out and are zero afterwards.
pub struct Source<'words> {
    words: &'words [u64],
    /// Every option is there and every list has two elements.
    full: bool,
}

impl Source<'_> {
    /// Values as the words have it.
    pub fn new(words: &[u64]) -> Source<'_> {
        Source { words, full: false }
    }

    /// Values with nothing left out.
    pub fn full(words: &[u64]) -> Source<'_> {
        Source { words, full: true }
    }

    fn word(&mut self) -> u64 {
        let Some((first, rest)) = self.words.split_first() else { return 0 };
        self.words = rest;
        *first
    }

    /// Large and small numbers alike.
    fn number(&mut self) -> u64 {
        let word = self.word();
        word >> (word % 64)
    }

    fn count(&mut self) -> usize {
        let word = self.word();
        if self.full { 2 } else { (word % 4) as usize }
    }
}

/// A type that can be made from a source.
pub trait Sample {
    /// The next value.
    fn sample(source: &mut Source) -> Self;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(impl Sample for $number {
        fn sample(source: &mut Source) -> $number { source.number() as $number }
    })*};
}
numbers!(u8, u16, u32, u64, i64);

macro_rules! wrapped {
    ($($wrapper:ident),*) => {$(impl Sample for $wrapper {
        fn sample(source: &mut Source) -> $wrapper { $wrapper(Sample::sample(source)) }
    })*};
}
wrapped!(
    ServerId,
    Slot,
    Epoch,
    Generation,
    Sequence,
    InodeId,
    SessionId,
    PoolId,
    HostId,
    KeyText,
    SecretBytes
);

macro_rules! fields {
    ($($name:ident { $($field:ident),* })*) => {$(impl Sample for $name {
        fn sample(_source: &mut Source) -> $name { $name { $($field: Sample::sample(_source)),* } }
    })*};
}

// Golden bytes are of files that reserve nothing: as they were before any could.
impl Sample for FileRules {
    fn sample(source: &mut Source) -> FileRules {
        FileRules { mode: Sample::sample(source), reserve: false }
    }
}

impl Sample for () {
    fn sample(_: &mut Source) {}
}

impl Sample for bool {
    fn sample(source: &mut Source) -> bool {
        source.word() & 1 == 1
    }
}

impl Sample for [u8; 8] {
    fn sample(source: &mut Source) -> [u8; 8] {
        std::array::from_fn(|_| Sample::sample(source))
    }
}

impl Sample for [u8; 16] {
    fn sample(source: &mut Source) -> [u8; 16] {
        std::array::from_fn(|_| Sample::sample(source))
    }
}

impl Sample for [u8; 32] {
    fn sample(source: &mut Source) -> [u8; 32] {
        std::array::from_fn(|_| Sample::sample(source))
    }
}

impl Sample for String {
    fn sample(source: &mut Source) -> String {
        let letters = ['a', '/', ' ', '\0', 'é', '∑', '🦀', '7'];
        (0..source.count() * 3).map(|_| letters[(source.word() % 8) as usize]).collect()
    }
}

impl Sample for Name {
    fn sample(source: &mut Source) -> Name {
        let bytes: Vec<u8> = Sample::sample(source);
        Name::new(bytes).unwrap_or_else(|_| Name::new("n").unwrap())
    }
}

impl Sample for Groups {
    fn sample(source: &mut Source) -> Groups {
        Groups::new(Sample::sample(source)).expect("a few groups are possible")
    }
}

impl<T: Sample> Sample for Vec<T> {
    fn sample(source: &mut Source) -> Vec<T> {
        (0..source.count()).map(|_| T::sample(source)).collect()
    }
}

impl<T: Sample> Sample for Option<T> {
    fn sample(source: &mut Source) -> Option<T> {
        let there = bool::sample(source) || source.full;
        there.then(|| T::sample(source))
    }
}

impl<T: Sample> Sample for Box<T> {
    fn sample(source: &mut Source) -> Box<T> {
        Box::new(T::sample(source))
    }
}

impl<const N: usize> Sample for [u64; N] {
    fn sample(source: &mut Source) -> [u64; N] {
        std::array::from_fn(|_| source.number())
    }
}

impl<A: Sample, B: Sample> Sample for (A, B) {
    fn sample(source: &mut Source) -> (A, B) {
        (A::sample(source), B::sample(source))
    }
}

impl Sample for FileKind {
    fn sample(source: &mut Source) -> FileKind {
        FileKind::ALL[(source.word() % 7) as usize]
    }
}

impl Sample for TimeReason {
    fn sample(source: &mut Source) -> TimeReason {
        use TimeReason::{Chosen, Now, Wrote, WroteAndDropsSetId};
        [Chosen, Now, Wrote, WroteAndDropsSetId][(source.word() % 4) as usize]
    }
}

impl Sample for Mode {
    fn sample(source: &mut Source) -> Mode {
        Mode::ALL[(source.word() % 3) as usize]
    }
}

impl Sample for XattrMode {
    fn sample(source: &mut Source) -> XattrMode {
        [XattrMode::Any, XattrMode::Create, XattrMode::Replace][(source.word() % 3) as usize]
    }
}

impl Sample for XattrName {
    fn sample(source: &mut Source) -> XattrName {
        let class: &[u8] = [&b"user."[..], b"trusted.", b"security."][(source.word() % 3) as usize];
        let name: Vec<u8> = Sample::sample(source);
        XattrName::new([class, &name].concat()).unwrap_or_else(|_| XattrName::new("user.n").unwrap())
    }
}

impl Sample for Keep {
    fn sample(source: &mut Source) -> Keep {
        [Keep::No, Keep::Share, Keep::Strict, Keep::Own, Keep::BehindEnd][(source.word() % 5) as usize]
    }
}

impl Sample for WriteOrigin {
    fn sample(source: &mut Source) -> WriteOrigin {
        [WriteOrigin::Program, WriteOrigin::Through, WriteOrigin::Back, WriteOrigin::Beside]
            [(source.word() % 4) as usize]
    }
}

impl Sample for LaneRuns {
    fn sample(source: &mut Source) -> LaneRuns {
        // Ascending by what they are made of: gaps, lengths and counts that are small together.
        let (mut tiles, mut at) = (Vec::new(), source.number() >> 8);
        for _ in 0..source.count() + 1 {
            let (mut runs, mut end) = (Vec::new(), 0);
            for _ in 0..source.count() + 1 {
                let (length, count) = (1 + source.number() % 300, 1 + source.number() % 5);
                let (offset, stride) =
                    (end + if end == 0 { 0 } else { source.number() % 5000 }, length + source.number() % 900);
                end = offset + (count - 1) * stride + length;
                runs.push(Strided { offset, length, count, stride });
            }
            let (count, stride) = (1 + source.number() % 5, end + source.number() % 70_000);
            tiles.push(Tile { start: at, runs, count, stride });
            at += count * stride + source.number() % 70_000;
        }
        LaneRuns::new(tiles).expect("they ascend and are few")
    }
}

impl Sample for Sought {
    fn sample(source: &mut Source) -> Sought {
        [Sought::Data, Sought::Hole][(source.word() % 2) as usize]
    }
}

impl Sample for SessionKind {
    fn sample(source: &mut Source) -> SessionKind {
        [SessionKind::User, SessionKind::Host, SessionKind::Peer][(source.word() % 3) as usize]
    }
}

impl Sample for TroubleKind {
    fn sample(source: &mut Source) -> TroubleKind {
        TroubleKind::try_from((source.word() % 7) as u8 + 1).unwrap()
    }
}

impl Sample for RenameMode {
    fn sample(source: &mut Source) -> RenameMode {
        [RenameMode::Replace, RenameMode::Keep, RenameMode::Exchange][(source.word() % 3) as usize]
    }
}

impl Sample for Bytes {
    fn sample(source: &mut Source) -> Bytes {
        Bytes(Sample::sample(source))
    }
}

impl Sample for BytesPlace {
    fn sample(source: &mut Source) -> BytesPlace {
        [BytesPlace::Lanes, BytesPlace::Inode, BytesPlace::Leaving][(source.word() % 3) as usize]
    }
}

impl Sample for FirstPage {
    fn sample(source: &mut Source) -> FirstPage {
        [FirstPage::Locked, FirstPage::Read, FirstPage::Free][(source.word() % 3) as usize]
    }
}

impl Sample for InlineMode {
    fn sample(source: &mut Source) -> InlineMode {
        [InlineMode::At, InlineMode::Within, InlineMode::End][(source.word() % 3) as usize]
    }
}

impl Sample for InlineOutcome {
    fn sample(source: &mut Source) -> InlineOutcome {
        [InlineOutcome::Written, InlineOutcome::InLanes, InlineOutcome::Full][(source.word() % 3) as usize]
    }
}

impl Sample for LockTable {
    fn sample(source: &mut Source) -> LockTable {
        [LockTable::Fcntl, LockTable::Flock][(source.word() % 2) as usize]
    }
}

impl Sample for WaitsTo {
    fn sample(source: &mut Source) -> WaitsTo {
        [WaitsTo::Look, WaitsTo::Share, WaitsTo::Read, WaitsTo::Own, WaitsTo::Write]
            [(source.word() % 5) as usize]
    }
}

impl Sample for Leased {
    fn sample(source: &mut Source) -> Leased {
        [Leased::Attributes, Leased::Names][(source.word() % 2) as usize]
    }
}

impl Sample for LockKind {
    fn sample(source: &mut Source) -> LockKind {
        [LockKind::Shared, LockKind::Exclusive][(source.word() % 2) as usize]
    }
}

impl Sample for LockOutcome {
    fn sample(source: &mut Source) -> LockOutcome {
        [LockOutcome::Granted, LockOutcome::Queued, LockOutcome::Refused][(source.word() % 3) as usize]
    }
}

impl Sample for Event {
    fn sample(source: &mut Source) -> Event {
        match source.word() % 3 {
            0 => Event::LockGranted {
                inode: Sample::sample(source),
                wait: Sample::sample(source),
                file: Sample::sample(source),
            },
            1 => Event::BarrierPassed { wait: Sample::sample(source), round: Sample::sample(source) },
            _ => Event::Changed {
                wait: Sample::sample(source),
                lane: Sample::sample(source),
                number: Sample::sample(source),
            },
        }
    }
}

impl Sample for CellChange {
    fn sample(source: &mut Source) -> CellChange {
        match source.word() % 2 {
            0 => CellChange::Add(Sample::sample(source)),
            _ => CellChange::Swap { expected: Sample::sample(source), new: Sample::sample(source) },
        }
    }
}

impl Sample for Part {
    fn sample(source: &mut Source) -> Part {
        match source.word() % 10 {
            0 => Part::MakeDirectory {
                parent: Sample::sample(source),
                mode: Sample::sample(source),
                owner: Sample::sample(source),
                hints: Sample::sample(source),
                lists: Sample::sample(source),
            },
            1 => Part::SealDirectory { inode: Sample::sample(source), owner: Sample::sample(source) },
            2 => Part::RaiseLinks { inode: Sample::sample(source) },
            3 => Part::LowerLinks { inode: Sample::sample(source), owner: Sample::sample(source) },
            4 => Part::PutEntry(Sample::sample(source)),
            5 => Part::MoveInode {
                inode: Sample::sample(source),
                parent: Sample::sample(source),
                owner: Sample::sample(source),
            },
            6 => Part::TakePartition(Sample::sample(source)),
            7 => Part::SealPartition { inode: Sample::sample(source) },
            8 => Part::SetPartition { inode: Sample::sample(source), attributes: Sample::sample(source) },
            _ => Part::OrderMoves,
        }
    }
}

impl Sample for Prepared {
    fn sample(source: &mut Source) -> Prepared {
        match source.word() % 4 {
            0 => Prepared::Ready,
            1 => Prepared::Made(Sample::sample(source)),
            2 => Prepared::Linked(Sample::sample(source)),
            _ => Prepared::Found(Sample::sample(source)),
        }
    }
}

impl Sample for Rotation {
    fn sample(source: &mut Source) -> Rotation {
        [Rotation::Over, Rotation::Coming, Rotation::Going][(source.word() % 3) as usize]
    }
}

impl Sample for HostKeyName {
    fn sample(source: &mut Source) -> HostKeyName {
        let letters = *b"a7._-Z0";
        let name: Vec<u8> = (0..source.count()).map(|_| letters[(source.word() % 7) as usize]).collect();
        HostKeyName::new(format!("n{}", String::from_utf8(name).unwrap())).unwrap()
    }
}

impl Sample for KeyChange {
    fn sample(source: &mut Source) -> KeyChange {
        let changes = [KeyChange::MakeHost, KeyChange::RevokeHost];
        changes[(source.word() % 2) as usize](Sample::sample(source))
    }
}

/// The lists that a default list with two names makes of modes.
impl Sample for AccessList {
    fn sample(source: &mut Source) -> AccessList {
        let entries: [(u16, u16, u32); 6] =
            [(1, 7, u32::MAX), (2, 6, 5), (4, 5, u32::MAX), (8, 7, 7), (16, 7, u32::MAX), (32, 7, u32::MAX)];
        let mut form = 2_u32.to_le_bytes().to_vec();
        for (tag, rights, id) in entries {
            form.extend([&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat());
        }
        let list = AccessList::from_attribute(&form).unwrap().unwrap();
        list.inherited((source.word() % 0o1000) as u16)
    }
}

fields! {
    AccessLists { access, default }
    NewMode { mode, umask }
    Timestamp { nanos }
    LaneId { inode, lane }
    Credentials { uid, gid, groups }
    Owner { uid, gid }
    Attributes {
        inode, kind, mode, uid, gid, links, size, device, generation, accessed, modified, changed, created, xattrs, allocated
    }
    Layout { stripe_unit, width, base_slot, stride, copies, created }
    LayoutHints { stripe_unit, width, copies, rules }
    ServerEntry { server, host, tcp, unix, store_bytes, forgotten }
    Chain { servers, complete_since }
    ClusterMap { pool, epoch, hash_seed, coordinator, servers, chains }
    ErrorBody { kind, message, map }

    OpenSession { kind, resume, label }
    SessionOpened { pool, server, host, epoch, credentials, expiry_millis }
    Heartbeat {}
    CloseSession {}
    GetServerStatus {}
    GetMetrics {}
    Metrics { messages, sessions }
    MessageMetrics { kind, errors, received_bytes, sent_bytes, micros, classes }
    SessionMetrics { session, label, host, requests, received_bytes, sent_bytes }
    ServerStatus {
        server, pid, supervisor_pid, restarts, uptime_millis, epoch, trusts_network, store_bytes, used_bytes, meta_bytes,
        files_free_bytes, reserved_bytes, inodes, inodes_max, lanes, locks, lock_waits, barrier_waits, change_waits, sessions, connections, read_bytes, written_bytes, requests, notes
    }
    StopServer {}

    GetMap {}
    JoinPool { entry, keeps_store }
    ForgetServer { server }
    Forgotten { epoch }

    HostKeyId { name, serial }
    HostKeyEntry { key, made, revoked }
    PoolSecrets { current, next, previous }
    KeyBook { version, secrets, hosts }
    ChangeKeys { change }
    KeysChanged { entry, line, untold }
    GetKeyBook {}
    AdoptKeyBook { book }
    ListKeys {}
    HostSession { key, session }
    KeysListed { hosts, sessions }
    RotateSecret { finish }
    SecretRotated { rotation, secret, untold }

    CheckStore {}
    StoreFacts { server, epoch, lanes_bytes, summed_bytes, counted_bytes, kernel_bytes }
    CheckLanes { after }
    LanesPage { lanes, end }
    LaneFacts { lane, generation, length, allocated_bytes, lost_below, writing }
    CheckSlots { after }
    SlotsPage { slots, end }
    PartitionFacts { directory, links, held }
    SlotFacts { slot, inodes, asked, held, partitions, deliveries, troubles }
    Trouble { kind, inode, text }
    CheckInodes { after }
    InodesPage { inodes, troubles, end }
    InodeFacts { inode, kind, links, opens, held, parent, file }
    FileFacts { extent, generation, layout, untrimmed, cutting, lanes_begun }
    EntryPlace { slot, directory, cookie }
    CheckEntries { after }
    EntriesPage { entries, next }
    EntryFacts { directory, cookie, name, inode, kind, misplaced }
    Mend { repair, after }
    Mended { found, next }
    MendLanes { lanes }
    LanesMended { mended, fit }
    QueryOperations { coordinator }
    OperationsKnown { next, unfinished }

    Permit { read, write }
    GetPermit { inode }
    LaneTarget { lane, slot, generation, created, permit }
    ReadChunk { target, offset, length, keep, take }
    ChunkRead { hole, kept }
    WriteChunk { target, offset, origin }
    ChunkWritten { recall }
    ExtendChunk { write, size, from, sequence, outstanding }
    ChunkExtended { size }
    PunchChunk { target, offset, length }
    GrantLane { target, mapping }
    LaneGranted { length }
    GrantPassthrough { target, passthrough, length, stores }
    AllocateLane { target, offset, length, more, keep_size }
    CountLane { target }
    LaneCounted { allocated }
    SeekLane { target, offset, sought }
    ReadRuns { target, runs }
    RunsRead { hole }
    WriteRuns { target, runs }
    LaneSought { offset }

    Lookup { parent, name }
    Found { inode, kind, attributes }
    GetAttributes { inode }
    GetAttributesMany { inodes }
    ChangeMany { delegation, changes, wanted_for, gives_back, acknowledged_below }
    Change { kind, sequence, outstanding, at, makes, body }
    Changed { body, error }
    ManyChanged { changed, delegated }
    Delegated { number, directory, who, next, now }
    ManyAttributes { attributes }
    Walk { from, names, info, bytes }
    Walked { steps, stopped, info, bytes }
    InodeInfo { attributes, layout, hints, named, partitions, inline, may_change_unnoticed }
    GetPartitions { inode, slots }
    PartitionsInfo { attributes, slots }
    SetAttributes { inode, mode, uid, gid, accessed, modified, times }
    Truncate { inode, size, allocated }
    LayoutWish { hints, stripe_unit_min, silent }
    Create { parent, name, mode, exclusive, read, write, layout, wish, named }
    EntryLeased { names, attributes }
    Opened { info, created, permit, leased, parent }
    BeginPassthrough { inode, write, over }
    PassthroughBegun { number, size }
    Open { inode, read, write, run }
    OpenEntry { parent, name, read, write }
    CancelChange { sequence }
    ChangeCancelled { opened }
    Close { inode, modified, leases }
    Closed { attributes }
    Symlink { parent, name, target }
    Made { attributes, parent }
    ReadLink { inode }
    MakeDirectory { parent, name, mode }
    RemoveDirectory { parent, name }
    Unlink { parent, name }
    Unlinked { parent, inode }
    ReadDirectory { inode, after, entries_max }
    DirectoryEntry { cookie, name, inode, kind, attributes }
    DirectoryPage { entries, end, next }
    Extend { inode, generation, size, from }
    NoteMemory { inode, generation, start, end, taken }
    SizeInfo { size, generation }
    ReserveAppend { inode, length }
    AppendReserved { inode, number, offset, generation }
    FinishAppend { inode, number, failed }
    SetLayout { inode, hints }
    Rename { parent, name, new_parent, new_slot, new_name, mode }
    Link { parent, name, inode }
    MakeNode { parent, name, kind, mode, device }
    CreateUnnamed { parent, mode, read, write, layout, wish }
    SetXattr { inode, name, value, mode }
    GetXattr { inode, name }
    ListXattrs { inode }
    RemoveXattr { inode, name }

    ReadInline { inode, offset, length, keep }
    InlineRead { size, bytes, since }
    WriteInline { inode, mode, offset, bytes, origin }
    InlineWritten { outcome, offset, size, since, recall }
    Promoted { size, since }
    Promote { inode, first_page }

    SetLock { inode, table, owner, kind, start, end, pid, number, waits, settled_below, detects }
    LockedFile { size, generation, changed, may_change_unnoticed }
    LockAnswer { outcome, file }
    CancelLock { inode, number, take_back }
    GetLock { inode, table, owner, kind, start, end }
    HeldLock { kind, start, end, pid }
    ConflictingLock { lock }
    FindDeadlock { inode, wait, owner }
    DeadlockFound { found, waits }
    LockOwner { session, owner }
    ListLockWaits { owners }
    LockWait { inode, owner, wait, blockers }
    LockWaits { waits }
    EndLockWait { inode, session, wait }
    LockWaitEnded { ended }

    ArriveBarrier { name, parties, member, wait, host, pid }
    BarrierAnswer { passed }
    LeaveBarrier { name, member, wait }
    MemberPlace { host, pid, gone }
    MissingMember { member, last }
    BarrierLeft { passed, missing_count, missing }
    ChangeCell { target, offset, change }
    CellChanged { before, changed }
    ChangeInlineCell { inode, offset, change }
    InlineCellChanged { outcome, cell, size }
    WatchChange { inode, lane, start, end, since, wait }
    WatchAnswer { changed, number, inline }
    EndWatch { inode, lane, wait }
    NoteChange { target, start, end, over }

    LeaseName { parent, name, names, neighbours_max }
    NameLeased { found, names, attributes, directory, neighbours, is_all }
    RenewLeases {}
    LeasesRenewed { renewed, life, taken, newest }
    LeaseAttributes { inode, names }
    AttributesLeased { info, attributes, names }
    Listen { leases, acknowledged, received, life }
    Recall { number, inode, what }
    DataRecall { number, inode, lane, start, end }
    News { recalls, data, delegations, events, map, life, waited_millis }
    DelegationRecall { slot, number }
    EndRecalls { done, blocked, relaxed, life }
    WaitPublished { recall }
    ListHolders { inode }
    Holders { places, left_out }
    HeldPlace { inode, lane, holders, waits, fought, storers, passed_through }
    Storer { session, label }
    Holder { session, label, shares, owned_bytes, recalls, millis, fenced }
    PageWait { session, label, to, start, end, blockers }
    FoughtPage { offset, changes, millis, since_millis, sides }

    Token { session, sequence }
    IntentStamp { coordinator, number, open_from }
    Prepare { token, stamp, slot, number, who, now, part }
    PutEntry { parent, name, inode, kind, from, owner, mode }
    Target { inode, kind, owner }
    PartitionAttributes { mode, owner, hints, lists, accessed, modified }
    TakePartition { inode, first, attributes, partitions, entries }
    MovedEntry { cookie, name, inode, kind }
    Decide { token, stamp, slot, commit, now }
    Ascend { token, inode, until }
    Ascended { inode }
    CutLane { lane, slot, generation, length, by }
    LaneCut { life, recalls }
    QueryRecalls { life, recalls }
    RecallsKnown { over }
    DropLane { lane, slot }
    QueryInode { inode, since }
    QueryPages { inode, session }
    BeginLane { lane, by }
    InodeAnswer { generation, size, smallest_size, layout, place, kept_by }
    TrimLane { lane, slot, passthroughs_over }
    FillLane { lane, slot, generation, bytes }
}

/// A header within its limits.
pub fn header_sample(source: &mut Source) -> Header {
    let kind = Kind::ALL[source.word() as usize % Kind::ALL.len()];
    let within = |source: &mut Source, most: u32| (source.number() % (u64::from(most) + 1)) as u32;
    let outstanding = u32::sample(source);
    Header {
        kind,
        flags: source.number() as u16 & flags::ALL,
        slot: Sample::sample(source),
        deadline_millis: within(source, limits::DEADLINE_MILLIS_MAX),
        session: Sample::sample(source),
        sequence: Sequence(u64::sample(source).max(outstanding.into())),
        outstanding,
        epoch: Sample::sample(source),
        call: Sample::sample(source),
        body_bytes: within(source, limits::BODY_BYTES_MAX),
        data_bytes: within(source, limits::DATA_BYTES_MAX),
    }
}
