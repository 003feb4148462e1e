//! Connecting to a pool, and which paths belong to it.

use std::borrow::Cow;
use std::ffi::{c_char, c_int};

use libc::ssize_t;
use ramlace_base::Result;
use ramlace_client::{ConnectOptions, Locator, Pool, PoolName};

use crate::answers::put_bytes;
use crate::failure::{guard, invalid};
use crate::fork;
use crate::pass::{Given, Growing, Length, Out, Target, Text};
use crate::table::{self, Kept};
use crate::types::{ramlace_options, ramlace_pool, ramlace_statfs};

/// A connected pool.
pub(crate) struct Connected {
    pub(crate) pool: Pool,
}

impl Kept for Connected {
    const NAME: &'static str = "pool";
}

// SAFETY: it is `repr(C)`, begins with its size, and its other fields are integers and pointers,
// of which NULL is checked for.
unsafe impl Growing for ramlace_options {
    const NAME: &'static str = "options";
}

/// Connects to a pool: proves its secret to a server and begins a session, in which everything
/// else happens. The session ends with ramlace_disconnect and the close of the last file.
///
/// locator: NULL is the pool that the environment's RAMLACE_POOL names, else the user's default
/// pool on this machine; "lab" the user's pool of that name; "host:port" or "ramlace://host:port" the pool of
/// which one server listens there, whose secret is in options, in the environment
/// (RAMLACE_SECRET_FILE) or known on this machine. Any locator of a file in a pool will do as
/// well ("ramlace:/x", "ramlace://lab/x", "ramlace://host:port/x"): its path is not looked at.
/// options: NULL, or how to connect.
///
/// Returns NULL and sets errno: ENOENT no such pool, EHOSTDOWN no server answers, EACCES the
/// secret is wrong, EINVAL the locator or the options make no sense.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_connect(
    locator: Text,
    options: Given<ramlace_options>,
) -> *mut ramlace_pool {
    guard(|| {
        fork::watch();
        let name =
            if locator.is_null() { PoolName::Default } else { pool_meant_by(locator.bytes("locator")?)? };
        let options = connect_options(&name, &options)?;
        Ok(table::keep(Connected { pool: Pool::connect(&options)? }))
    })
}

/// Ends the connection; the handle is invalid afterwards. Files and directories that are open
/// stay so until they are closed. Returns 0, or -1 with EBADF when this is no connected pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_disconnect(pool: *mut ramlace_pool) -> c_int {
    guard(|| table::take::<Connected, _>(pool).map(|_| 0))
}

/// What the pool holds, in bytes; asks every server. One that does not answer costs a deadline
/// and is counted in silent_servers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_statfs(pool: *mut ramlace_pool, out: Out<ramlace_statfs>) -> c_int {
    guard(|| {
        let connected = connected(pool)?;
        out.put("ramlace_statfs", || Ok(connected.pool.statfs()?.into())).map(|()| 0)
    })
}

/// Puts the number that this pool has and no other into buffer, as a text with its NUL, at most size bytes
/// (64 are enough), and returns its bytes; with size 0 only that. ERANGE when it is longer than size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_pool_id(
    pool: *mut ramlace_pool,
    mut buffer: Target<c_char>,
    size: Length,
) -> ssize_t {
    guard(|| {
        let mut id = connected(pool)?.pool.map()?.pool.to_string().into_bytes();
        id.push(0);
        put_bytes(&id, &mut buffer, size)
    })
}

fn pool_meant_by(locator: &[u8]) -> Result<PoolName> {
    match std::str::from_utf8(locator) {
        Ok(text) => PoolName::parse(text),
        // The path behind the pool may hold any bytes.
        Err(_) => Locator::parse(locator).map(|locator| locator.pool),
    }
}

fn connect_options(name: &PoolName, options: &Given<ramlace_options>) -> Result<ConnectOptions> {
    let locator = Locator { pool: name.clone(), path: b"/".to_vec() };
    let mut connect = ConnectOptions::for_locator(&locator, None);
    let given = options.read()?;
    if given.deadline_millis != 0 {
        connect.deadline_millis = given.deadline_millis;
    }
    connect.local = match given.local {
        0 => connect.local,
        1 => true,
        -1 => false,
        other => return Err(invalid(format!("local is 1 (on), -1 (off) or 0 (as usual), not {other}"))),
    };
    let secret_file = given.secret_file.optional_path("secret file")?;
    connect.secret_file = secret_file.or(connect.secret_file);
    connect.label = given.label.optional("label")?.unwrap_or(connect.label);
    connect.cache_bytes = given.cache_bytes;
    Ok(connect)
}

pub(crate) fn connected(pool: *mut ramlace_pool) -> Result<std::sync::Arc<Connected>> {
    table::find(pool)
}

impl Connected {
    /// The path in this pool that a C program means by a path or a locator.
    pub(crate) fn path<'a>(&self, path: &'a Text) -> Result<Cow<'a, [u8]>> {
        self.pool.path_meant_by(path.bytes("path")?)
    }
}
