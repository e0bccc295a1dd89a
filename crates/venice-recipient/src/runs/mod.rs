//! The state of each program on borrowed memory, and changes of its budget: the part in the
//! program, or in its `venice run`.
//!
//! Each has a [`StatusServer`]: a socket in the run directory ([`RunsDir`]), and a thread that
//! reports its state ([`RunRow`]), changes its budget and hands out far pages ([`FarPages`]); and a
//! [`RunFile`] beside it with the state of its copies. The state comes from the run itself
//! ([`Watched`]). `venice ps`, `venice limit`, `venice core` and `venice status` call
//! ([`conversation`]) and read ([`files`]).

pub mod budget;
pub mod conversation;
mod far_pages;
mod left;
mod look;
mod process;
mod refaults;
mod row;
mod run_file;
mod runs_dir;
mod status_server;
mod unmanaged;

pub use far_pages::{CoreView, FarPages};
pub use left::sweep;
pub use look::{Look, Sample};
pub use process::{Identity, cpu_s, cpu_s_of_children, state_of};
pub use refaults::{RefaultBound, RefaultCounts, RunTime};
pub use row::{RunDevice, RunDevices, RunRow};
pub use run_file::{CopiesRow, RunFile, files};
pub use runs_dir::{DirError, RunsDir, make_private_dir};
pub use status_server::{About, Answer, Question, StatusServer, StatusServerError, Watched};
pub use unmanaged::{Cause, Unmanaged, total_bytes};

/// The refusal to another user.
pub const ANOTHER_USERS: &str = "it is another user's: ask as that user or as root";
