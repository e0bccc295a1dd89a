//! A rack of processes on this machine: `venice up`, `venice status`, `venice down`.

mod address;
mod down;
mod log;
mod memory_devices;
mod network;
mod offers;
mod process;
mod record;
mod run_dir;
mod standing;
mod start;
mod status;
mod subnet;
mod up;

pub use address::{default_port, explicit_address, is_of_this_rack, monitor_address};
pub use down::{DownArgs, execute as down};
pub use log::last_error;
pub use network::namespace_path;
pub use process::{Identity, Lives, spawn};
pub use record::{PortKind, Record, port_parser};
pub use run_dir::RunDir;
pub use status::{StatusArgs, execute as status};
pub use up::{UpArgs, execute as up};
