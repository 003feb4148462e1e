//! What can be planted in the pool's world.

/// Something that must be done for the pure crates, and is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// None.
    None,
    /// A server answers, and then writes the record.
    AnswersBeforeTheLog,
    /// A new life applies records that the snapshot has.
    ReplaysWhatTheSnapshotHas,
    /// A snapshot lets go of records that it does not have.
    SnapshotIsOld,
    /// A client gives its second attempt a number of its own.
    RetriesWithANewNumber,
    /// Each attempt has the whole time.
    RenewsDeadlines,
    /// Connections to a server's last life stay in use.
    KeepsDeadConnections,
    /// It is not noted that an answer was lost.
    ForgetsLostAnswers,
    /// A change counts as cancelled when its slot was told so once.
    ForgetsUnacknowledgedCancels,
    /// A subject of the outbox that its home did not receive stays taken up.
    KeepsSubjects,
    /// Nobody says that silent homes have shown signs of life.
    NeverNotesLife,
    /// A mount is not told that a change may have been done.
    DoubtsNothing,
    /// A session counts as knowing what has become of a change that it has cancelled.
    KnowsWhatWasCancelled,
    /// A server sends a delivery once.
    DeliversOnce,
    /// A new life forgets its slots' pending deliveries.
    ForgetsDeliveries,
    /// A delivery counts as done when it was sent.
    BelievesDeliveries,
    /// A lane is said to be dropped, and stays.
    KeepsLanes,
    /// A lane begins without a word to its file.
    BeginsLanesUnnoted,
    /// Bytes of a write that comes late are taken.
    TakesLateWrites,
    /// The end of a session is told to one of the slots that know it.
    EndsSessionsInOneSlot,
    /// A server does not remember which sessions have ended.
    TakesEndedSessions,
    /// A request for news is no sign of life.
    ListeningIsNoLife,
    /// A session ends after half of its time.
    EndsSessionsEarly,
    /// A session that says nothing stays.
    KeepsSessions,
    /// A client takes what its last session had open for open.
    KeepsFilesOpen,
    /// A store that comes back empty is said to be what it was.
    SaysThatItKeptItsStore,
    /// What is lost is read as what is in the store.
    ReadsWhatIsLost,
    /// A write of a part is taken, whatever the chunk has lost.
    WritesPartOfWhatIsLost,
    /// A lane that begins again forgets that it has lost something.
    BeginsWithoutItsLoss,
    /// Inline bytes are promoted to their lane again when the message comes twice.
    PromotesTwice,
    /// A client believes the answer to an operation for that to the next.
    MistakesAnswers,
    /// A server answers changes while somebody believes otherwise.
    AnswersAtOnce,
    /// Answers to queries do not wait, those to changes do.
    ShowsAtOnce,
    /// A server answers others' parts of operations while somebody believes otherwise.
    PeersAnswerAtOnce,
    /// A server waits for holders for as long as they count, and no margin.
    WaitsTooShort,
    /// A server counts what was told as done.
    NotifiesOnce,
    /// A server takes a holder for the session that made the change.
    TakesHolderForChanger,
    /// A new life answers before what the last one gave is over.
    NewLifeDoesNotWait,
    /// A holder counts a lease from the answer on, and what was recalled only since then.
    CountsFromTheAnswer,
    /// A holder acknowledges, and drops a moment later.
    AcknowledgesFirst,
    /// A holder takes a renewal for good whatever it has yet to receive.
    RenewsWhatIsRecalled,
    /// A holder takes the renewal of one life for the leases of another.
    RenewsOverLives,
    /// A holder believes a lease for twice its time.
    BelievesTwiceAsLong,
}

impl Bug {
    /// All that can be planted.
    pub const ALL: [Bug; 42] = [
        Bug::AnswersBeforeTheLog,
        Bug::ReplaysWhatTheSnapshotHas,
        Bug::SnapshotIsOld,
        Bug::RetriesWithANewNumber,
        Bug::RenewsDeadlines,
        Bug::KeepsDeadConnections,
        Bug::ForgetsLostAnswers,
        Bug::ForgetsUnacknowledgedCancels,
        Bug::KeepsSubjects,
        Bug::NeverNotesLife,
        Bug::DoubtsNothing,
        Bug::KnowsWhatWasCancelled,
        Bug::DeliversOnce,
        Bug::ForgetsDeliveries,
        Bug::BelievesDeliveries,
        Bug::KeepsLanes,
        Bug::BeginsLanesUnnoted,
        Bug::TakesLateWrites,
        Bug::EndsSessionsInOneSlot,
        Bug::TakesEndedSessions,
        Bug::ListeningIsNoLife,
        Bug::EndsSessionsEarly,
        Bug::KeepsSessions,
        Bug::KeepsFilesOpen,
        Bug::SaysThatItKeptItsStore,
        Bug::ReadsWhatIsLost,
        Bug::WritesPartOfWhatIsLost,
        Bug::BeginsWithoutItsLoss,
        Bug::PromotesTwice,
        Bug::MistakesAnswers,
        Bug::AnswersAtOnce,
        Bug::ShowsAtOnce,
        Bug::PeersAnswerAtOnce,
        Bug::WaitsTooShort,
        Bug::NotifiesOnce,
        Bug::TakesHolderForChanger,
        Bug::NewLifeDoesNotWait,
        Bug::CountsFromTheAnswer,
        Bug::AcknowledgesFirst,
        Bug::RenewsWhatIsRecalled,
        Bug::RenewsOverLives,
        Bug::BelievesTwiceAsLong,
    ];
}
