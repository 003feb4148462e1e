//! Both sides of the transport against each other and against peers that misbehave: real
//! sockets, real threads, loopback only.

mod calls;
mod deadlines;
mod faults;
mod greeting;
mod hostile;
mod listener;
mod memory;
mod proxy;
mod server;
mod slow;
