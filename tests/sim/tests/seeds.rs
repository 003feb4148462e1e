//! Many runs, each from its seed. `RAMLACE_SIM_SEED=7 cargo test --release -p ramlace-sim` runs that seed alone, and says what happened.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ramlace_sim::{Bug, Tally, run};

/// Seeds of the everyday round.
const SEEDS: u64 = 2000;
/// Seeds in which each planted bug must be found once.
const SEEDS_FOR_BUG: u64 = 300;

/// The pure crates assert what cannot be; that counts as found.
fn found(seed: u64, bug: Bug) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(|| run(seed, bug))) {
        Ok(Ok(_)) => None,
        Ok(Err(what)) => Some(what),
        Err(_) => Some("a panic".into()),
    }
}

#[test]
fn every_seed_ends_with_what_everybody_was_told() {
    if let Ok(seed) = std::env::var("RAMLACE_SIM_SEED") {
        let seed = seed.parse().expect("RAMLACE_SIM_SEED is a number");
        println!("seed {seed}: {:?}", run(seed, Bug::None));
        return run(seed, Bug::None).map(drop).unwrap_or_else(|what| panic!("seed {seed}, {what}"));
    }
    let mut all = Tally::default();
    let is_long = std::env::var_os("RAMLACE_TEST_LONG").is_some_and(|long| !long.is_empty());
    let seeds = if is_long { 9 * SEEDS } else { SEEDS };
    for seed in 0..seeds {
        let tally = run(seed, Bug::None)
            .unwrap_or_else(|what| panic!("seed {seed}, {what}; RAMLACE_SIM_SEED={seed} runs it again"));
        all.answered += tally.answered;
        all.lost += tally.lost;
        all.repeated += tally.repeated;
        all.deaths += tally.deaths;
        all.replayed += tally.replayed;
        all.events += tally.events;
    }
    println!("{seeds} seeds: {all:?}");
    // A run in which nothing goes wrong shows nothing.
    for many in [all.answered / 60, all.lost / 5, all.repeated / 5, all.deaths, all.replayed / 5] {
        assert!(many > seeds, "{all:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..5 {
        let told = |tally: Tally| format!("{tally:?}");
        assert_eq!(run(seed, Bug::None).map(told), run(seed, Bug::None).map(told));
    }
}

#[test]
fn each_planted_bug_is_found() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let found: Vec<_> =
        Bug::ALL.map(|bug| (bug, (0..SEEDS_FOR_BUG).find_map(|seed| Some((seed, found(seed, bug)?))))).into();
    std::panic::set_hook(quiet);
    for (bug, found) in found {
        match found {
            Some((seed, what)) => {
                println!("{bug:?} in seed {seed}: {}", what.chars().take(200).collect::<String>())
            }
            None => panic!("{bug:?} is not found in {SEEDS_FOR_BUG} seeds"),
        }
    }
}
