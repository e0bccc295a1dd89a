//! How a pager starts: when the shim is loaded, and again in the child of a fork.

use super::evictor::{self, Evictor};
use super::far::Far;
use super::handler::{self, Handler};
use super::pager::{Pager, PagerError, PagerSetup};
use super::thread;

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
    let far = || Far::open(&pager.block, pager.window, &pager.descriptors);
    let handler = Box::leak(Box::new(Handler::new(pager, far()?))) as *mut Handler;
    let evictor = Box::leak(Box::new(Evictor::new(pager, far()?))) as *mut Evictor;
    thread::spawn(handler::run, handler as usize).map_err(kernel)?;
    thread::spawn(evictor::run, evictor as usize).map_err(kernel)
}
