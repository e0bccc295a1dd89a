//! How a pager starts: when the shim is loaded, and again in the child of a fork.

use super::evictor::{self, Evictor};
use super::far::{Far, ShmFar};
use super::handler::{self, Handler};
use super::pager::{Pager, PagerError, PagerSetup};
use super::run_block::PortKind;
use super::thread;
use super::udp_far::UdpFar;
use super::verbs_far::VerbsFar;
use venice_ports::channels::AccessLink;

/// Makes a pager and starts its threads. It must be called by the program's only thread.
///
/// # Errors
/// [`PagerError`], before anything has changed for the program.
pub fn start(setup: PagerSetup) -> Result<&'static Pager, PagerError> {
    let pager = Box::leak(Box::new(Pager::new(setup)?));
    threads(pager)?;
    Ok(pager)
}

/// Starts the handler and the evictor.
pub(super) fn threads(pager: &'static Pager) -> Result<(), PagerError> {
    let kernel = |source| PagerError::Kernel { doing: "start its threads", source };
    let handler = Box::leak(Box::new(Handler::new(pager, far(pager)?))) as *mut Handler;
    let evictor = Box::leak(Box::new(Evictor::new(pager, far(pager)?))) as *mut Evictor;
    thread::spawn(handler::run, handler as usize).map_err(kernel)?;
    thread::spawn(evictor::run, evictor as usize).map_err(kernel)
}

/// A way to the donors for one thread.
fn far(pager: &Pager) -> Result<Far, PagerError> {
    match (pager.block.port(), pager.window) {
        (PortKind::Shm, Some(window)) => {
            let link = pager.block.link().map(AccessLink::new);
            Ok(Far::Shm(ShmFar { window, link }))
        }
        (PortKind::Verbs, _) => VerbsFar::open(&pager.block, &pager.descriptors)
            .map(|verbs| Far::Verbs(Box::new(verbs)))
            .map_err(PagerError::Verbs),
        _ => UdpFar::open(&pager.block, &pager.descriptors)
            .map(|udp| Far::Udp(Box::new(udp)))
            .map_err(|source| PagerError::Kernel { doing: "open its UDP port", source }),
    }
}
