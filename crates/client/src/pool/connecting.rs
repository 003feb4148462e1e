//! Connects a pool, with everything that is built on it.

use ramlace_base::Result;

use crate::bytes::cache::ByteCache;
use crate::pool::options::ConnectOptions;
use crate::{Pool, fork};

impl Pool {
    /// Finds the pool, proves knowledge of the secret, opens a session with one server and gets the map.
    pub fn connect(options: &ConnectOptions) -> Result<Pool> {
        fork::watch();
        ramlace_transport::trace::begin();
        let pool = Pool::new(options, ByteCache::wanted(options)?)?;
        pool.map()?;
        Ok(pool)
    }
}
