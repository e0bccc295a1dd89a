//! What each program on borrowed memory tells of itself, and how its budget is changed: the half that
//! is in the program, or in its `venice run`.
//!
//! Each has a [`Desk`]: a socket in the run directory ([`RunsDir`]), and a thread that tells how it
//! does ([`RunRow`]) and changes its budget, and a [`RunFile`] beside it with how its copies are. What
//! is told comes from whoever moves its pages ([`Watched`]). `venice ps`, `venice limit` and `venice
//! status` ask ([`conversation`]) and read ([`files`]).

pub mod budget;
pub mod conversation;
mod desk;
mod left;
mod look;
mod process;
mod row;
mod run_file;
mod runs_dir;

pub use desk::{About, Answer, Desk, DeskError, Question, Watched};
pub use left::sweep;
pub use look::{Look, Sample};
pub use process::Identity;
pub use row::RunRow;
pub use run_file::{CopiesRow, RunFile, files};
pub use runs_dir::{DirError, RunsDir, make_private_dir};

/// What a stranger is told.
pub const ANOTHER_USERS: &str = "it is another user's: ask as that user or as root";
