//! `pools`: the pools of this user that this machine knows.

use ramlace_base::units::count;
use ramlace_launch::{KnownPool, PoolState, known_pools, listed, option_for};
use serde_json::json;

use crate::failure::Done;
use crate::output::Output;
use crate::show::{answering, table};

const EXAMPLES: &str = "\
Examples:
  ramlace pools                            name, state and directory of each
  ramlace pools --json | jq -r '.[].name'

Pools of this user that were started on this machine, or from it by `up --hosts`. The directory of a pool has its secret
(secret), by which other machines reach it (RAMLACE_SECRET_FILE). `ramlace status --pool NAME` shows its servers.";

/// Arguments of `pools`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {}

/// Prints a line for each pool.
pub fn run(_: &Args, output: &mut Output) -> Done {
    let pools = known_pools()?;
    if output.json {
        let pool = |pool: &KnownPool| {
            json!({
                "name": pool.name, "state": word(&pool.state), "directory": pool.directory.to_string_lossy(),
                "address": pool.address,
            })
        };
        return output.json(&pools.iter().map(pool).collect());
    }
    if pools.is_empty() {
        return output.line("No pools; 'ramlace up' starts one.");
    }
    let head = ["POOL", "STATE", "ADDRESS", "DIRECTORY"].map(str::to_owned).to_vec();
    let row = |pool: &KnownPool| {
        vec![
            pool.name.clone(),
            told(&pool.state, &pool.name),
            pool.address.clone().unwrap_or_else(|| "-".into()),
            pool.directory.display().to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(pools.iter().map(row)).collect();
    table(&rows, &[]).into_iter().try_for_each(|line| output.line(line))
}

/// How a pool is, for programs.
fn word(state: &PoolState) -> &'static str {
    match state {
        PoolState::RunsHere(..) | PoolState::Answers(..) => "running",
        PoolState::Silent(..) => "not answering",
        PoolState::Dead => "dead",
        PoolState::Unknown(_) => "unknown",
    }
}

/// How a pool is, for people, with the next step for the pool of this name.
pub fn told(state: &PoolState, name: &str) -> String {
    let option = option_for(name);
    match state {
        PoolState::RunsHere(found, servers) if found == servers => {
            format!("{} running", count(*servers as u64, "server"))
        }
        PoolState::RunsHere(found, servers) => format!(
            "{found} of {} running; 'ramlace status{option}' names the others",
            count(*servers as u64, "server")
        ),
        PoolState::Answers(hosts, answered, servers) => {
            format!("{}, on {}", answering(*answered, *servers), listed(hosts))
        }
        PoolState::Silent(hosts, error) => format!(
            "on {}: {}; it may run all the same, 'ramlace status{option}' asks again",
            listed(hosts),
            error.message()
        ),
        PoolState::Dead => format!("dead; 'ramlace up{option}' or 'down{option}' clears it"),
        PoolState::Unknown(error) => error.message().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::{Error, ErrorKind};

    use super::*;

    #[test]
    fn a_pool_of_other_machines_is_not_dead_because_nothing_of_it_runs_here() {
        let hosts = || vec!["n1".to_owned(), "n2".to_owned()];
        let answers = PoolState::Answers(hosts(), 4, 4);
        assert_eq!(
            (answers.is_good(), &told(&answers, "lab")[..]),
            (true, "4 of 4 servers answer, on hosts n1, n2")
        );
        let silent = PoolState::Silent(hosts(), Error::new(ErrorKind::HostDown, "no route"));
        let silently = told(&silent, "lab");
        assert!(!silent.is_good() && silently.contains("status --pool lab"), "{silently}");
        for advice in ["down", "up", "dead"] {
            assert!(!silently.contains(advice), "{silently}");
        }
        assert!(told(&PoolState::Dead, "lab").contains("'down --pool lab' clears it"));
        assert_eq!(told(&PoolState::RunsHere(1, 1), "lab"), "1 server running");
        let less = PoolState::RunsHere(1, 3);
        assert!(
            !less.is_good()
                && told(&less, "lab").starts_with("1 of 3 servers running; 'ramlace status --pool lab'")
        );
        assert!(!PoolState::Answers(hosts(), 3, 4).is_good());
    }
}
