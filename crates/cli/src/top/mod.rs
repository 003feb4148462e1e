//! The live view of a pool: `ask` asks the servers, `samples` makes rates of what they answer, `view` is what
//! is shown, `page` lays it out, `terminal` puts it on the screen. `clients` is which clients move how many
//! bytes. `clients`, `samples`, `view` and `page` are pure: no clock, no socket, no terminal.

mod ask;
mod clients;
mod looking;
mod messages;
mod page;
pub mod samples;
mod terminal;
mod view;

pub use ask::{Asking, Counted, counted_of, events_of, millis_since};
pub use clients::{Clients, client_table, clients_json};
pub use looking::{Looking, Subject};
pub use messages::{Messages, number_text};
pub use page::{Line, page, plain, table_page};
pub use samples::{Event, Samples};
pub use terminal::{Input, Terminal};
pub use view::{Sort, View, as_json};
