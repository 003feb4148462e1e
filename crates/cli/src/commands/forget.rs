//! `forget`: gives a dead server's slots to the others.

use ramlace_base::{Error, ErrorKind, ServerId};
use ramlace_client::Pool;
use serde_json::json;

use crate::failure::Done;
use crate::output::Output;
use crate::place::connect_options;

const EXAMPLES: &str = "\
Examples:
  ramlace status         shows which server does not answer
  ramlace forget 2       the others take over its slots, empty

What the server held is lost from then on: reading it is an error, never zeros. Files can be removed, cut
off, or written anew in whole chunks. A server that may come back with its memory should be waited for.";

/// Arguments of `forget`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The number of the dead server, as `status` shows it
    #[arg(value_name = "SERVER")]
    pub server: u16,
}

/// Forgets one server that does not answer.
pub fn run(args: &Args, named: Option<&str>, output: &mut Output) -> Done {
    let pool = Pool::connect(&connect_options(named))?;
    let server = ServerId(args.server);
    if pool.server_status(server).is_ok() {
        let text = format!("{server} answers, and its bytes are safe; only a dead server can be forgotten");
        return Err(Error::new(ErrorKind::Busy, text).into());
    }
    let epoch = pool.forget_server(server)?;
    if output.json {
        output.json(&json!({"server": server.0, "epoch": epoch.0}))?;
    } else {
        output.line(format_args!(
            "{server} is forgotten: the others hold its slots since {epoch}, and what it held is lost."
        ))?;
    }
    output.flush()?;
    Ok(())
}
