//! Remote memory: how a node lends what it has idle, and how a program far away uses it.
//!
//! Two halves, one crate (Venice paper, section 5.2.1; OPERA, section 4):
//! - [`donor`]: slabs of locked memory, the table of grants over them;
//! - [`paged`]: the recipient's pager. It lives inside the program's own process, serves its
//!   page faults from borrowed slabs and keeps its resident memory within a budget.

pub mod donor;
pub mod paged;
