//! Start of a pager: when the shim is loaded, and again in the child of a fork.

use std::sync::atomic::Ordering;

use super::end;
use super::evictor::{self, Evictor};
use super::handler::{self, Handler};
use super::pager::{Pager, PagerError, PagerSetup};
use super::run_block::Owner;
use super::sys::Errno;
use super::thread;

/// Makes a pager and starts its threads. It must be called by the program's only thread.
///
/// # Errors
/// [`PagerError`], before anything has changed for the program.
pub fn start(setup: PagerSetup) -> Result<&'static Pager, PagerError> {
    let pager = Box::leak(Box::new(Pager::new(setup)?));
    end::report_in(&pager.block);
    threads(pager)?;
    Ok(pager)
}

/// Starts the handler and the evictor, and the service of faults in the program's threads.
pub(super) fn threads(pager: &'static Pager) -> Result<(), PagerError> {
    let kernel = |source| match source {
        Errno::EINVAL => PagerError::PidNamespace,
        source => PagerError::Kernel { doing: "start its threads", source },
    };
    let far = || pager.far();
    pager.waker.map_memory().map_err(kernel)?;
    let owner = Owner::Process(pager.process.load(Ordering::Relaxed));
    let handler = Box::leak(Box::new(Handler::new(pager, far()?))) as *mut Handler;
    let handler_thread = thread::spawn(handler::run, handler as usize).map_err(kernel)?;
    let evictor = Box::leak(Box::new(Evictor::new(pager, far()?.writing(&pager.block, owner)?)))
        as *mut Evictor;
    let evictor_thread = thread::spawn(evictor::run, evictor as usize).map_err(kernel)?;
    let (handler, evictor) =
        ((handler_thread, handler as usize), (evictor_thread, evictor as usize));
    pager.pause.set_threads(handler, evictor);
    pager.in_thread.as_ref().map_or(Ok(()), |in_thread| Ok(in_thread.begin(pager)?))
}
