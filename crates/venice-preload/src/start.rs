//! Start of the shim.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use venice_memory::paged::attach::{self, Address, Attached, SOCKET_VARIABLE};
use venice_memory::paged::inheritance;
use venice_memory::paged::run_block::RunBlockMap;
use venice_memory::paged::{
    self, Descriptors, Pager, PagerSetup, ProgramEnd, Serves, Tether, Window, rlimits, sys,
};

use crate::{
    descriptors, early, exec, exit, fork, heap, limits, locks, mappings, namespaces,
    pager_instance, panics, patch, raw_calls, seccomp, shared_files, signals, thread_count,
    window_calls,
};

/// Starts the pager, or ends the process with a message: a program that was to run within a budget
/// must not run without one unnoticed.
pub extern "C" fn start() {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE) else { return };
    heap::heap().lock();
    window_calls::find_fork();
    // SAFETY: this runs before the program, and nothing else runs.
    unsafe { inheritance::take_service() };
    if let Err(why) = panics::prepare().and_then(|()| try_start(&socket)) {
        let _ = sys::write(2, format!("venice: {why}\n").as_bytes());
        sys::exit(FAILED);
    }
}

/// Exit code of `venice run` when it fails itself, not the program.
const FAILED: usize = 125;

fn try_start(socket: &OsStr) -> Result<(), String> {
    let address = Address::parse(socket).ok_or("the supervisor is of another version of Venice")?;
    let before = limits::lift();
    let attached =
        attach::attach(&address).map_err(|e| format!("starting the shim failed: {e}"))?;
    let block = RunBlockMap::open(attached.block.as_fd()).map_err(|e| e.to_string())?;
    let first = block.program_descriptor_limit.swap(0, Ordering::AcqRel);
    if first != 0 {
        rlimits::set_descriptors(first);
    }
    // SAFETY: this runs before the program, and nothing else runs.
    unsafe { exec::install(Path::new(socket), lowest_fd()).map_err(unpatched)? };
    if block.is_window() {
        return start_window(block, attached, &address, before);
    }
    let reserved = early::reserved();
    let setup = PagerSetup {
        block: Arc::new(block),
        process: attached.process,
        serves: Serves::Program {
            supervisor: attached.supervisor,
            shares_pids: attached.shares_pids,
        },
        lowest_fd: lowest_fd(),
    };
    let pager = paged::start(setup).map_err(limits::with_remedy)?;
    keep_for_programs(pager.descriptors(), &address);
    pager_instance::set(pager);
    // SAFETY: this runs before the program; the pager's threads use none of these functions.
    unsafe {
        mappings::install().map_err(unpatched)?;
        namespaces::install().map_err(unpatched)?;
        locks::install().map_err(unpatched)?;
        exit::install().map_err(unpatched)?;
        shared_files::install().map_err(unpatched)?;
        install_for_all_modes().map_err(unpatched)?;
    }
    early::adopt(pager, &reserved);
    if pager.block().faults_in_thread() {
        let refused = |errno| format!("installing the handler of SIGBUS failed: {errno}");
        assert!(paged::signal::begin(pager).map_err(refused)?, "there is only one pager");
        // SAFETY: as above.
        unsafe { signals::install().map_err(unpatched)? };
    }
    before.restore(pager.block());
    if !fork::install() {
        return Err(
            "registering the fork handlers failed: the C library has no room for them".into()
        );
    }
    Ok(())
}

/// Keeps open what the programs that this one starts need.
fn keep_for_programs(descriptors: &Descriptors, address: &Address) {
    let socket = address.inherited().map(ProgramEnd::fd);
    socket.into_iter().chain(exec::shim_descriptor()).for_each(|fd| descriptors.add_lasting(fd));
}

/// Installs the calls that are replaced in a window too.
///
/// # Errors
/// The name of the one that could not be replaced, and the reason.
///
/// # Safety
/// No other thread of the program may be running.
unsafe fn install_for_all_modes() -> Result<(), (&'static str, patch::PatchError)> {
    // SAFETY: forwarded to the caller.
    unsafe {
        descriptors::install()?;
        limits::install()?;
        seccomp::install()?;
        thread_count::install()?;
        raw_calls::install()
    }
}

fn unpatched((name, why): (&str, patch::PatchError)) -> String {
    format!("replacing the C library's {name} failed ({why:?}): use `--mode swap`")
}

/// Starts without a pager: the slabs become the program's memory themselves.
fn start_window(
    block: RunBlockMap,
    attached: Attached,
    address: &Address,
    before: limits::Before,
) -> Result<(), String> {
    let lifeline = attached.lifeline.ok_or("the supervisor is of another version of Venice")?;
    let tether = Tether::new(lifeline, lowest_fd());
    keep_for_programs(tether.descriptors(), address);
    let window = Window::start(block, attached.process, attached.supervisor, tether)
        .map_err(limits::with_remedy)?;
    // SAFETY: this runs before the program, and nothing else runs.
    unsafe {
        window_calls::install(window, tether).map_err(unpatched)?;
        install_for_all_modes().map_err(unpatched)?;
    }
    before.restore(window.block());
    if !fork::install() {
        return Err(
            "registering the fork handlers failed: the C library has no room for them".into()
        );
    }
    Ok(())
}

/// Returns the lowest number of the pager's descriptors: just under the limit, where programs do
/// not look.
fn lowest_fd() -> i32 {
    const MOST: u64 = 1 << 16;
    let limit = rlimits::descriptors()[0].min(MOST);
    (limit.saturating_sub(Pager::FDS as u64) as i32).max(3)
}
