//! Confinement of a host, from the inside. The order matters:
//!
//! 1. The *launcher* closes what it inherited, ties its life to the supervisor's, reads the order,
//!    leaves the PID namespace (without root: the user namespace first) and forks.
//! 2. The *init* process ties its life to the launcher's and waits at a gate until the launcher has
//!    handed a pidfd of it to the supervisor: from here on nothing can get lost.
//! 3. It joins the control groups, leaves the other namespaces, moves into an empty root, takes the
//!    ids and limits, gives all capabilities up, and enters the Landlock domain.
//! 4. It forks the *host*, which gets its system-call filters, reports what is in force, and only
//!    then calls the service's first line.
//!
//! A change of ids clears the parent-death signal (prctl(2)): it is set anew, and whether the parent
//! died in between is checked after. Init stays outside of the service's reach: it reaps orphans,
//! reports how the host ended, and by its own end ends every process of the PID namespace.

mod calls;
mod identity;
mod landlock;
mod launcher;
mod limits;
mod root;
mod sys;

pub(crate) use self::launcher::{HostEnd, launch};
pub(crate) use self::root::Places;
