//! Remote memory: a node lends its idle memory, and a program on another node uses it.
//!
//! Two halves, one crate (Venice paper, section 5.2.1; OPERA, section 4):
//! - [`donor`]: slabs of locked memory, and the table of grants over them;
//! - [`paged`]: the recipient's pager. It lives inside the program's own process, serves its page
//!   faults from borrowed slabs and keeps its resident memory within a budget.
//!
//! [`region`]: memory that one process lends without a rack.
//!
//! [`dump`] writes core dumps that have the far pages of a program.
//!
//! Without slabs: [`hotplug`], memory blocks that leave a donor's kernel, and devices whose memory
//! joins a recipient's kernel.

pub mod donor;
pub mod dump;
pub mod hotplug;
pub mod paged;
pub mod process_stat;
pub mod region;
