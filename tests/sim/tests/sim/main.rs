//! Many runs, each from its seed. `RAMLACE_SIM_SEED=7 cargo test --release -p ramlace-sim -- --nocapture` runs that seed alone, in each of the
//! simulations, and says what happened; with `planted` behind it, which seed finds which bug.

mod behind;
mod calls;
mod losing;
mod outbox;
mod pool;
mod stores;
mod transfers;

use std::fmt::Debug;
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds of the everyday round.
const SEEDS: u64 = 2000;
/// Seeds in which each planted bug must be found once.
const SEEDS_FOR_BUG: u64 = 300;

/// Runs the seeds; what happened in all of them, and of `enough` of it: a run in which nothing goes wrong shows nothing.
/// The same seed is the same run.
fn runs<T: AddAssign + Copy + Debug + Default + Eq>(
    run: impl Fn(u64) -> Result<T, String>,
    enough: impl Fn(&T, u64) -> Vec<bool>,
) {
    if let Ok(seed) = std::env::var("RAMLACE_SIM_SEED") {
        let seed = seed.parse().expect("RAMLACE_SIM_SEED is a number");
        let tally = run(seed);
        println!("seed {seed}: {tally:?}");
        return tally.map(drop).unwrap_or_else(|what| panic!("seed {seed}, {what}"));
    }
    let is_long = std::env::var_os("RAMLACE_TEST_LONG").is_some_and(|long| !long.is_empty());
    let seeds = if is_long { 9 * SEEDS } else { SEEDS };
    let mut all = T::default();
    for seed in 0..seeds {
        // The pure crates assert what cannot be: then the seed is to be known as well.
        let outcome = catch_unwind(AssertUnwindSafe(|| run(seed)));
        let outcome = outcome.unwrap_or_else(|_| Err("a panic, see above".into()));
        let tally = outcome
            .unwrap_or_else(|what| panic!("seed {seed}, {what}; RAMLACE_SIM_SEED={seed} runs it again"));
        if seed < 5 {
            assert_eq!(run(seed), Ok(tally), "the same seed");
        }
        all += tally;
    }
    println!("{seeds} seeds: {all:?}");
    for (place, enough) in enough(&all, seeds).into_iter().enumerate() {
        assert!(enough, "the number {place} is too small: {all:?}");
    }
}

/// Each bug that is planted is found. The pure crates assert what cannot be; that counts as found.
fn finds<B: Copy + Debug, T>(bugs: &[B], run: impl Fn(u64, B) -> Result<T, String>) {
    let found = |seed, bug| match catch_unwind(AssertUnwindSafe(|| run(seed, bug))) {
        Ok(outcome) => outcome.err(),
        Err(_) => Some("a panic".into()),
    };
    for bug in bugs {
        let first = (0..SEEDS_FOR_BUG).find_map(|seed| Some((seed, found(seed, *bug)?)));
        let (seed, what) = first.unwrap_or_else(|| panic!("{bug:?} is not found in {SEEDS_FOR_BUG} seeds"));
        println!("{bug:?} in seed {seed}: {}", what.chars().take(200).collect::<String>());
    }
}
