//! Writes a file into the pool and reads it back.
//!
//! `cargo run --release -p ramlace-system-tests --example hello`

use ramlace_base::Result;
use ramlace_client::{ConnectOptions, OpenOptions, Pool};

fn main() -> Result<()> {
    let pool = Pool::connect(&ConnectOptions::default())?;
    let file = pool.open("/hello", &OpenOptions::creating())?;
    let text = b"hello from a pool of memory";
    let written = file.write_at(text, 0)?;
    let mut back = vec![0; written];
    let read = file.read_at(&mut back, 0)?;
    println!("{}", String::from_utf8_lossy(&back[..read]));
    file.close()?;
    pool.unlink("/hello")
}
