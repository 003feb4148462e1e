//! The kernels that have a file: see [`crate::passthrough`].

use std::collections::BTreeMap;

use ramlace_base::{SessionId, numbered_variants};
use serde::{Deserialize, Serialize};

/// The kernels that have one file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Passthrough {
    /// The sessions whose kernels have it, and whether they may write.
    pub sessions: BTreeMap<SessionId, bool>,
    /// A kernel has it, and may even write it, that cannot be asked any more.
    pub loose: Option<Loose>,
}

/// What such a kernel may do with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Loose {
    Reads,
    Writes,
}

numbered_variants! { Loose:
    0 Reads;
    1 Writes;
}
