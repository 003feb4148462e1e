//! `pools`: the pools of this user that this machine knows.

use serde_json::json;

use crate::failure::Done;
use crate::known_pools::{KnownPool, known_pools};
use crate::output::Output;
use crate::show::table;

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
                "name": pool.name, "state": pool.state.word(), "directory": pool.directory.to_string_lossy(),
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
            pool.state.told(&pool.name),
            pool.address.clone().unwrap_or_else(|| "-".into()),
            pool.directory.display().to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(pools.iter().map(row)).collect();
    table(&rows, &[]).into_iter().try_for_each(|line| output.line(line))
}
