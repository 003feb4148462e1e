//! `serve`: one server in the foreground; and the hidden process that its supervisor starts.

use std::os::fd::AsFd;
use std::path::PathBuf;

use ramlace_base::{Error, ErrorKind, Result, limits, units};
use ramlace_client::{PoolDirectory, pool_name, read_secret_file};
use ramlace_launch::{adopt, default_slots, random_pool_id};
use ramlace_server::ServeOptions;

use crate::failure::{Done, Failure};

const EXAMPLES: &str = "\
Examples:
  ramlace serve --pool-id 0123456789abcdef0123456789abcdef --memory 8GiB \\
      --server 0 --servers 2 --listen 0.0.0.0:7000 --advertise node0:7000 --secret-file secret --unix /tmp/r0
  ramlace serve --pool-id 0123456789abcdef0123456789abcdef --memory 8GiB \\
      --server 1 --servers 2 --listen 0.0.0.0:7000 --advertise node1:7000 --secret-file secret --unix /tmp/r1 \\
      --coordinator node0:7000

All servers of a pool are told the same --pool-id, --servers, --slots and secret (64 hexadecimal digits in a
file that nobody else can read, such as `ramlace up` makes). On one machine `ramlace up` does all this.
SIGTERM or Ctrl-C stops the server; what it holds is gone.";

/// Arguments of `serve`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Memory to lend, such as 4GiB
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = units::parse_bytes)]
    pub memory: u64,

    /// This server's number, from 0
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub server: u16,

    /// How many servers the pool begins with
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub servers: u16,

    /// Slots of the pool [default: 4096, more for more than 256 servers]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,

    /// HOST:PORT of server 0; every other server needs it
    #[arg(long, value_name = "HOST:PORT")]
    pub coordinator: Option<String>,

    /// Address to listen on; port 0 lets the system choose
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS:PORT")]
    pub listen: String,

    /// HOST:PORT by which others reach this server [default: the address it listens on]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,

    /// Path of the Unix socket for clients on this machine [default: in the pool's directory]
    #[arg(long, value_name = "PATH")]
    pub unix: Option<PathBuf>,

    /// File with the pool's secret [default: in the pool's directory]
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,

    /// The pool's id, 32 hexadecimal digits, the same for all its servers [default for a pool of one: random]
    #[arg(long, value_name = "HEX")]
    pub pool_id: Option<String>,

    /// Files, directories and links that the server may hold [default: one for each KiB of its memory]
    #[arg(long, value_name = "N")]
    pub inodes: Option<u64>,

    /// Where the memory comes from
    #[arg(long, default_value = "auto", value_name = "KIND", value_parser = ["auto", "private-tmpfs", "shared-memory"])]
    pub backing: String,

    /// Do not take the whole memory from the machine at once, but as files need it
    #[arg(long)]
    pub no_reserve: bool,

    /// Let the super-user of a mount for everybody act as the super-user
    #[arg(long)]
    pub no_root_squash: bool,

    /// Send file contents over TCP as they are, without encryption
    #[arg(long)]
    pub trust_network: bool,

    /// Serve metrics, without names of files or users, at this address over HTTP, to everyone, in the format of Prometheus
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<String>,

    /// Descriptor to which `listening ADDRESS` and `ready`, or `error TEXT`, are written.
    #[arg(long, hide = true, value_name = "N")]
    pub ready_fd: Option<i32>,

    /// Leave the terminal and its session first.
    #[arg(long, hide = true)]
    pub detach: bool,
}

/// Arguments of the hidden `serve-child`.
#[derive(clap::Args, Debug)]
pub struct ChildArgs {
    /// Configuration from the supervisor, as JSON.
    pub config: String,
}

/// Runs the supervisor until the server is stopped.
pub fn run(args: &Args, named: Option<&str>) -> Done {
    if args.detach {
        // Fails only for the leader of a process group, which `up` never makes of a server.
        rustix::process::setsid().map_err(|errno| Error::from_io(&errno.into(), "leaving the terminal"))?;
    }
    // In the foreground, people read where the server listens, and that it is ready.
    let ready = match args.ready_fd {
        Some(number) => Some(adopt(number)?),
        None => std::io::stdout().as_fd().try_clone_to_owned().ok(),
    };
    let options = match options(args, named) {
        Ok(options) => options,
        Err(error) => {
            if let Some(ready) = ready {
                // The parent that started the server may have gone; the error is returned all the same.
                let _ = rustix::io::write(&ready, format!("error {error}\n").as_bytes());
            }
            return Err(error.into());
        }
    };
    ramlace_server::keep(&options, ready)?;
    Ok(())
}

/// Runs the child until the server stops.
pub fn run_child(args: &ChildArgs) -> Done {
    match ramlace_server::run_child(&args.config) {
        0 => Ok(()),
        code => Err(Failure::Code(u8::try_from(code).unwrap_or(1))),
    }
}

/// Fills in what was not said from the pool's directory, which must be there then.
fn options(args: &Args, named: Option<&str>) -> Result<ServeOptions> {
    let name = pool_name(named);
    let directory = PoolDirectory::locate(&name)?;
    if args.unix.is_none() || args.secret_file.is_none() {
        directory.create()?;
    }
    let secret_file = args.secret_file.clone().unwrap_or_else(|| directory.secret_path());
    // A secret that others can read is refused before the server takes anything.
    read_secret_file(&secret_file)?;
    let socket = || directory.socket_path(ramlace_base::ServerId(args.server));
    // The name becomes part of the store's, which takes no dots.
    let name = name.replace('.', "_");
    Ok(args.options_of(name, pool_id(args)?, args.unix.clone().unwrap_or_else(socket), secret_file))
}

impl Args {
    /// The options of the server, with what the arguments may leave open.
    pub fn options_of(
        &self,
        name: String,
        pool_id: String,
        unix: PathBuf,
        secret_file: PathBuf,
    ) -> ServeOptions {
        ServeOptions {
            pool_name: name,
            pool_id,
            server: self.server,
            servers: self.servers,
            slots: self.slots.unwrap_or_else(|| default_slots(self.servers)),
            coordinator: self.coordinator.clone(),
            listen: self.listen.clone(),
            advertise: self.advertise.clone(),
            unix,
            secret_file,
            store_bytes: self.memory,
            inodes_max: self.inodes.unwrap_or(self.memory / limits::STORE_BYTES_PER_INODE),
            backing: self.backing.clone(),
            reserve: !self.no_reserve,
            root_squash: !self.no_root_squash,
            trust_network: self.trust_network,
            metrics: self.metrics.clone(),
        }
    }
}

fn pool_id(args: &Args) -> Result<String> {
    match &args.pool_id {
        Some(id) if id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            Ok(id.to_ascii_lowercase())
        }
        Some(id) => Err(Error::new(
            ErrorKind::Invalid,
            format!("'{}' is no id of a pool, which has 32 hexadecimal digits", id.escape_debug()),
        )),
        None if args.servers == 1 => random_pool_id(),
        None => Err(Error::new(
            ErrorKind::Invalid,
            "the servers of a pool share its id; give all of them the same --pool-id of 32 hexadecimal digits",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::Parser;
    use ramlace_launch::serve_words;

    use super::*;
    use crate::args::{Cli, Command};

    #[test]
    fn every_option_arrives_at_the_server() {
        let options = ServeOptions {
            pool_name: "lab".into(),
            pool_id: "0123456789abcdef0123456789abcdef".into(),
            server: 1,
            servers: 3,
            slots: 777,
            coordinator: Some("127.0.0.1:9".into()),
            listen: "0.0.0.0:7".into(),
            advertise: Some("node:7".into()),
            unix: "/x/u".into(),
            secret_file: "/x/s".into(),
            store_bytes: 123 << 20,
            inodes_max: 4567,
            backing: "shared-memory".into(),
            reserve: false,
            root_squash: false,
            trust_network: true,
            metrics: Some("127.0.0.1:9464".into()),
        };
        let words = [OsString::from("ramlace")].into_iter().chain(serve_words(&options));
        let cli = Cli::try_parse_from(words).unwrap();
        let Command::Serve(args) = &cli.command else { panic!("{:?}", cli.command) };
        let arrived = args.options_of("lab".into(), options.pool_id.clone(), "/x/u".into(), "/x/s".into());
        assert_eq!(format!("{arrived:?}"), format!("{options:?}"));
        assert_eq!(cli.pool.as_deref(), Some("lab"));
        assert_eq!(args.pool_id.as_deref(), Some(&options.pool_id[..]));
        assert_eq!(
            (args.unix.as_deref(), args.secret_file.as_deref()),
            (Some("/x/u".as_ref()), Some("/x/s".as_ref()))
        );
    }
}
