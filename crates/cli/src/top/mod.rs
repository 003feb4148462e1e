//! The live view of a pool: `ask` asks the servers, `samples` makes rates of what they answer, `view` is what
//! is shown, `page` lays it out, `terminal` puts it on the screen. `clients` is which clients move how many
//! bytes. `clients`, `samples`, `view` and `page` are pure: no clock, no socket, no terminal.

mod ask;
mod clients;
mod page;
pub mod samples;
mod terminal;
mod view;

pub use ask::{Asking, events_of};
pub use clients::{Clients, SortClients, client_page, client_table, clients_json};
pub use page::{finish_page, page, plain};
pub use samples::Samples;
pub use terminal::{ESCAPE, Heard, Terminal};
pub use view::{Sort, View, as_json};
