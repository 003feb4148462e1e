//! Values that a server keeps over a restart, each in a file of its store.

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_store::Store;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads a value that the last incarnation has kept.
pub fn load_file<T: DeserializeOwned>(store: &mut Store, name: &str) -> Result<Option<T>> {
    if !store.meta_names()?.iter().any(|other| other == name) {
        return Ok(None);
    }
    let bytes = store.meta_append_file(name)?.read_all()?;
    postcard::from_bytes(&bytes).map(Some).map_err(|error| {
        Error::new(ErrorKind::Corrupt, format!("the store's file '{name}' is damaged: {error}"))
    })
}

/// Keeps a value over a restart, replacing the old one atomically.
pub fn save_file<T: Serialize>(store: &mut Store, name: &str, value: &T) -> Result<()> {
    let temporary = format!("{name}-next");
    if store.meta_names()?.contains(&temporary) {
        store.meta_remove(&temporary)?;
    }
    let bytes = postcard::to_stdvec(value).expect("maps and coordinators can be written");
    store.meta_append_file(&temporary)?.append_urgent(&bytes)?;
    store.meta_rename_over(&temporary, name)
}
