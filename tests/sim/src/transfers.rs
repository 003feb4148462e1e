//! Large transfers in virtual time: by when they have to come on ([`ramlace_client::pure::Progress`]), and the rule and the pauses by which pieces are sent
//! again, over servers that are slow, stopped for a while or for good, and cut connections when they begin anew.
//!
//! What holds: a transfer takes as long as it needs while answers come; it fails 5 s after its last progress, and half a second later where a server
//! that says nothing is asked for a sign of life; and not before. A [`TransferBug`] planted in what a transfer must do for the rule must be found.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ramlace_base::ErrorKind;
use ramlace_client::pure::{Backoff, Failed, OnRetry, Progress, Verdict};

use crate::dice::Dice;
use crate::tally::tally;

const SERVERS: usize = 3;
const PIECES: u64 = 60;
/// Pieces in flight on one connection.
const WINDOW: usize = 4;
/// SEMANTICS 17.2.
const PATIENCE_MILLIS: u64 = 5_000;
const SIGN_OF_LIFE_MILLIS: u64 = 500;
/// How long a connection may take to be made.
const HANDSHAKE_MILLIS: u64 = 2_000;
/// The longest pause between two attempts.
const PAUSE_MILLIS: u64 = 20;

/// What can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferBug {
    /// None.
    None,
    /// A transfer has the time of a call.
    NeverRenews,
    /// Pieces that are sent again have the whole time.
    RenewsEachRound,
    /// That something was sent counts as progress.
    CountsSending,
    /// Pauses are made also where there is no time for another attempt.
    PausesForEver,
}

impl TransferBug {
    /// All that can be planted.
    pub const ALL: [TransferBug; 4] = [
        TransferBug::NeverRenews,
        TransferBug::RenewsEachRound,
        TransferBug::CountsSending,
        TransferBug::PausesForEver,
    ];
}

tally! {
    /// How much has happened.
    TransferTally {
        /// Transfers that were done.
        done,
        /// Of these, some that took longer than a call may.
        long,
        /// Transfers that failed.
        failed,
        /// Pieces that were sent again.
        again,
    }
}

/// What a server does from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Serves,
    /// It is stopped: connections stay, and nothing is said.
    Nothing,
    /// Its process begins anew: connections are cut, and new ones are greeted afterwards.
    Restarts,
}

/// What it does, and until when.
struct Server {
    until: Vec<(u64, Does)>,
}

impl Server {
    /// `gentle`: it is never away for long, and answers something in between.
    fn new(dice: &mut Dice, gentle: bool) -> Server {
        let (serves, silent) = if gentle { (1_000, 3_000) } else { (0, 7_000) };
        let (mut at, mut until) = (0, Vec::new());
        while at < 120_000 {
            at += serves + dice.roll(4_000);
            until.push((at, Does::Serves));
            let (does, longest) =
                if dice.percent(50) { (Does::Nothing, silent) } else { (Does::Restarts, 1_500) };
            at += 1 + dice.roll(longest);
            until.push((at, does));
        }
        until.push((u64::MAX, Does::Serves));
        Server { until }
    }

    fn does(&self, now: u64) -> (Does, u64) {
        self.until
            .iter()
            .find(|(until, _)| now < *until)
            .map_or((Does::Serves, u64::MAX), |(until, does)| (*does, *until))
    }

    /// When something that takes so long is done by it, or when its connection is cut before.
    fn serves(&self, mut now: u64, mut millis: u64) -> Result<u64, u64> {
        loop {
            match self.does(now) {
                (Does::Serves, until) if until - now >= millis => return Ok(now + millis),
                (Does::Serves, until) => (millis, now) = (millis - (until - now), until),
                (Does::Nothing, until) => now = until,
                (Does::Restarts, _) => return Err(now),
            }
        }
    }

    /// When a connection is made, with a process that serves.
    fn greets(&self, mut now: u64) -> u64 {
        loop {
            match self.does(now) {
                (Does::Serves, _) => return now + 1,
                (_, until) => now = until,
            }
        }
    }
}

struct Run {
    dice: Dice,
    bug: TransferBug,
    gentle: bool,
    began: Instant,
    now: u64,
    servers: Vec<Server>,
    /// Pieces of each server that are not done.
    left: Vec<u64>,
    /// Whether a connection to it is there.
    connected: Vec<bool>,
    progress: Progress,
    /// As the simulator sees it.
    came_at: u64,
    tally: TransferTally,
}

/// Why a round has ended.
enum Ended {
    Done,
    /// A piece of a server has no answer, and is to be sent again.
    Failed(Failed),
}

/// Runs a seed to its end; what does not hold. In seeds that are even no server is away for long.
///
/// # Errors
/// That a transfer failed too early or too late.
pub fn run_transfers(seed: u64, bug: TransferBug) -> Result<TransferTally, String> {
    let (mut dice, began) = (Dice(seed), Instant::now());
    let gentle = seed.is_multiple_of(2);
    let servers = (0..SERVERS).map(|_| Server::new(&mut dice, gentle)).collect();
    let mut run = Run {
        dice,
        bug,
        gentle,
        began,
        now: 0,
        servers,
        left: vec![PIECES; SERVERS],
        connected: vec![false; SERVERS],
        progress: Progress::begin(began, Duration::from_millis(PATIENCE_MILLIS)),
        came_at: 0,
        tally: TransferTally::default(),
    };
    run.run()?;
    Ok(run.tally)
}

impl Run {
    fn instant(&self) -> Instant {
        self.began + Duration::from_millis(self.now)
    }

    fn deadline(&self) -> u64 {
        (self.progress.deadline() - self.began).as_millis() as u64
    }

    fn made(&mut self) {
        self.came_at = self.now;
        if self.bug != TransferBug::NeverRenews {
            self.progress.made(self.instant());
        }
    }

    fn run(&mut self) -> Result<(), String> {
        let mut backoff = Backoff::new(self.progress.deadline());
        loop {
            let before: u64 = self.left.iter().sum();
            if self.bug == TransferBug::RenewsEachRound {
                self.progress.made(self.instant());
            }
            let failed = match self.round() {
                Ended::Done => {
                    self.tally.done += 1;
                    self.tally.long += u64::from(self.now > PATIENCE_MILLIS);
                    return Ok(());
                }
                Ended::Failed(failed) => failed,
            };
            if self.left.iter().sum::<u64>() < before {
                backoff = Backoff::new(self.progress.deadline());
            }
            backoff.move_to(self.progress.deadline());
            let again = failed.verdict(OnRetry::Tell, true) == Verdict::Again;
            let share = 0.5 + self.dice.roll(50) as f32 / 100.0;
            let mut pause = backoff.next(self.instant(), share).filter(|_| again);
            if again && self.bug == TransferBug::PausesForEver {
                pause = Some(pause.unwrap_or(Duration::from_millis(PAUSE_MILLIS)));
            }
            let Some(pause) = pause else { return self.fails() };
            self.tally.again += 1;
            // A pause of less than a millisecond is one.
            self.now += (pause.as_millis() as u64).max(1);
            if self.now > 600_000 {
                return Err("it never ends".into());
            }
        }
    }

    fn fails(&mut self) -> Result<(), String> {
        self.tally.failed += 1;
        if self.gentle {
            return Err(format!("at {} ms: it fails, and all servers came on in time", self.now));
        }
        let stood = self.now - self.came_at;
        // Pauses end before the deadline, and one that would not is not made.
        if !(PATIENCE_MILLIS - PAUSE_MILLIS..=PATIENCE_MILLIS + SIGN_OF_LIFE_MILLIS).contains(&stood) {
            return Err(format!("at {} ms: it fails {stood} ms after its last progress", self.now));
        }
        Ok(())
    }

    /// Sends each piece that is not done once, and takes the answers of each server in turn.
    fn round(&mut self) -> Ended {
        for server in (0..SERVERS).filter(|server| self.left[*server] > 0).collect::<Vec<_>>() {
            if !self.connected[server]
                && let Err(failed) = self.connect(server)
            {
                return Ended::Failed(failed);
            }
        }
        // When each piece under way is answered, or its connection is cut.
        let mut in_flight: Vec<VecDeque<Result<u64, u64>>> = vec![VecDeque::new(); SERVERS];
        let mut waiting = self.left.clone();
        while self.left.iter().any(|left| *left > 0) {
            for (server, (waiting, in_flight)) in waiting.iter_mut().zip(&mut in_flight).enumerate() {
                self.fill(server, waiting, in_flight);
            }
            for (server, in_flight) in in_flight.iter_mut().enumerate() {
                let Some(answer) = in_flight.pop_front() else { continue };
                if let Err(failed) = self.collect(server, answer) {
                    return Ended::Failed(failed);
                }
            }
        }
        Ended::Done
    }

    /// Sends pieces until the window is full; a server serves one after the other.
    fn fill(&mut self, server: usize, waiting: &mut u64, in_flight: &mut VecDeque<Result<u64, u64>>) {
        while *waiting > 0 && in_flight.len() < WINDOW {
            *waiting -= 1;
            let begins = match in_flight.back() {
                Some(Ok(before) | Err(before)) => self.now.max(*before),
                None => self.now,
            };
            let takes = 1 + self.dice.roll(400);
            in_flight.push_back(self.servers[server].serves(begins, takes));
            if self.bug == TransferBug::CountsSending {
                self.progress.made(self.instant());
            }
        }
    }

    fn connect(&mut self, server: usize) -> Result<(), Failed> {
        let begun = self.now;
        let greeted = self.servers[server].greets(begun);
        let until = self.deadline().min(begun + HANDSHAKE_MILLIS);
        if greeted > until {
            self.now = until.max(begun);
            return Err(lost(ErrorKind::HostDown));
        }
        self.now = greeted;
        self.progress.excuse(Duration::from_millis(greeted - begun));
        // What nobody was asked for counts for nobody.
        self.came_at += greeted - begun;
        self.connected[server] = true;
        Ok(())
    }

    fn collect(&mut self, server: usize, answer: Result<u64, u64>) -> Result<(), Failed> {
        let deadline = self.deadline();
        match answer {
            Ok(at) | Err(at) if at > deadline => {
                self.connected[server] = false;
                self.now = self.now.max(deadline + SIGN_OF_LIFE_MILLIS);
                Err(lost(ErrorKind::TimedOut))
            }
            Err(at) => {
                self.connected[server] = false;
                self.now = self.now.max(at);
                Err(lost(ErrorKind::HostDown))
            }
            Ok(at) => {
                self.now = self.now.max(at);
                self.left[server] -= 1;
                self.made();
                Ok(())
            }
        }
    }
}

fn lost(kind: ErrorKind) -> Failed {
    Failed { kind, from_server: false, refused_or_silent: false, brings_map: false }
}
