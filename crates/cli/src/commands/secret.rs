//! `secret`: changes the pool's secret while the pool runs.

use ramlace_base::ServerId;
use ramlace_client::{Pool, Rotation, SecretRotation};
use serde_json::json;

use crate::failure::Done;
use crate::output::Output;
use crate::place::connect_options;

const EXAMPLES: &str = "\
Examples:
  ramlace secret rotate             a new secret, in the place of the old one
  ramlace secret rotate --finish    the old one is accepted no more

Nothing stops meanwhile: servers, mounts and programs continue, and the old secret is accepted until --finish. Before that, copy the new one to where the
old one was copied to (RAMLACE_SECRET_FILE), and give each machine its key anew (`ramlace host-key NAME`): host keys come from the secret. A
program that runs by then reads its key's file again and continues.";

/// Arguments of `secret`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// What to do with the pool's secret.
#[derive(clap::Subcommand, Debug)]
pub enum Action {
    /// Give the pool a new secret
    Rotate(RotateArgs),
}

/// Arguments of `secret rotate`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RotateArgs {
    /// End it: the secret before, and host keys that come from it, let nobody in any more
    #[arg(long)]
    pub finish: bool,
}

/// Changes the secret.
pub fn run(args: &Args, named: Option<&str>, output: &mut Output) -> Done {
    let Action::Rotate(RotateArgs { finish }) = &args.action;
    let rotate = || Pool::connect(&connect_options(named))?.rotate_secret(*finish);
    let mut rotated = rotate()?;
    if *finish && rotated.rotation == Rotation::Going && rotated.file.is_ok() {
        // The file here had the old secret until now; the command that has the new one ends the rotation.
        rotated = rotate()?;
    }
    tell(&rotated, output)?;
    output.flush()
}

fn tell(rotated: &SecretRotation, output: &mut Output) -> Done {
    let file = rotated.file.as_ref().map(|path| path.display().to_string());
    if output.json {
        let state = match rotated.rotation {
            Rotation::Coming => "coming",
            Rotation::Going => "in use",
            Rotation::Over => "finished",
        };
        let untold: Vec<u16> = rotated.untold.iter().map(|server| server.0).collect();
        let error = file.as_ref().err().map(ToString::to_string);
        return output
            .json(&json!({"state": state, "untold": untold, "file": file.ok(), "file_error": error}));
    }
    output.line(match rotated.rotation {
        Rotation::Coming => {
            "The new secret is on its way to every server, and is used by itself when all have it."
        }
        Rotation::Going => {
            "The pool has a new secret. The one before, and host keys that come from it, let in until 'ramlace secret \
             rotate --finish'."
        }
        Rotation::Over => "The pool has one secret; no other lets in.",
    })?;
    if !rotated.untold.is_empty() {
        let names: Vec<String> = rotated.untold.iter().map(ServerId::to_string).collect();
        output.note(format_args!(
            "servers that have yet to receive it, or to write it into their file: {}",
            names.join(", ")
        ));
    }
    match (rotated.rotation, file) {
        (Rotation::Coming, _) => {}
        (_, Ok(path)) => output.note(format_args!("it lies in {path}")),
        (_, Err(error)) => output.note(format_args!("it could not be written here: {error}")),
    }
    Ok(())
}
