//! The processes between a supervisor and a host: launcher and init.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getegid, geteuid, pidfd_open, pidfd_send_signal,
    set_parent_process_death_signal, setsid, waitpid,
};
use rustix::thread::{CapabilitySet, UnshareFlags};

use super::calls::Filters;
use super::root::{Places, enter_empty_root};
use super::sys::{self, Fork};
use super::{identity, landlock, limits};
use crate::confinement::{Confinement, Measure};
use crate::gate::{Gate, HostExit, Report};
use crate::spec::{EndpointSpec, LaunchOrder};

/// Exit code of a launcher or init that could not do its part; the reason is in a report.
const NOT_STARTED: i32 = 125;

/// The host's end of the gate, with all that its service needs.
pub(crate) struct HostEnd {
    pub order: LaunchOrder,
    pub gate: Gate,
    /// Page for the usage.
    pub usage: OwnedFd,
    pub places: Places,
    pub filters: Filters,
}

/// Launches a host by the order on standard input. Returns in the host, confined; launcher and init
/// end here.
///
/// # Errors
/// Fails if standard input brings no order. Every later failure is reported to the supervisor.
pub(crate) fn launch() -> io::Result<HostEnd> {
    sys::close_from(3)?;
    let gate = Gate::from_fd(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    // A key that interrupts the agent's terminal is for the agent.
    setsid()?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let (order, usage) = gate.receive_order()?;
    // A supervisor that died before the signal was set sent none.
    if gate.is_abandoned() {
        std::process::exit(NOT_STARTED);
    }
    drop(null);
    let mut report = Confinement::default();
    report.activate(Measure::ClosedDescriptors, "");
    or_fail(&gate, sys::check_single_thread().map_err(|error| error.to_string()));
    for (measure, why) in &order.no_cgroups {
        report.miss(*measure, why.clone());
    }
    leave_pid_namespace(&order, &mut report);
    let (ours, theirs) = or_fail(&gate, Gate::pair().map_err(|error| error.to_string()));
    match or_fail(&gate, sys::fork().map_err(|error| format!("forking init: {error}"))) {
        Fork::Parent(init) => {
            drop(theirs);
            std::process::exit(watch_init(&gate, &ours, init));
        }
        Fork::Child => {
            drop(ours);
            Ok(become_init((order, usage), gate, &theirs, report))
        }
    }
}

/// Unwraps the result of a step; its failure is reported and ends this process.
fn or_fail<T>(gate: &Gate, done: Result<T, String>) -> T {
    match done {
        Ok(value) => value,
        Err(why) => {
            // Without a supervisor there is nobody to report to.
            let _ = gate.send_report(&Report::Failed(why), &[]);
            std::process::exit(NOT_STARTED);
        }
    }
}

/// Leaves the PID namespace for the next child. Without root that takes a user namespace, which the
/// other namespaces then belong to.
fn leave_pid_namespace(order: &LaunchOrder, report: &mut Confinement) {
    if order.ids.is_err() {
        let entered =
            identity::open_proc().and_then(|proc| identity::enter_user_namespace(proc.as_fd()));
        report.enter(Measure::UserNamespace, entered);
    }
    report.enter(Measure::PidNamespace, sys::unshare(UnshareFlags::NEWPID));
}

/// Hands init's pidfd to the supervisor, lets init go on, and waits for its end. Returns the exit
/// code of this process.
fn watch_init(gate: &Gate, to_init: &Gate, init: Pid) -> i32 {
    let watched = || -> io::Result<OwnedFd> {
        let pidfd = pidfd_open(init, PidfdFlags::empty())?;
        let mut ready = [0];
        rustix::io::read(to_init, &mut ready)?;
        gate.send_report(&Report::Init, &[pidfd.as_fd()])?;
        // From here on this process only waits.
        identity::drop_bounding_set().or_else(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Ok(()),
            _ => Err(error),
        })?;
        // Without CAP_KILL its death would not reach an init of another user: the kernel checks the
        // permission for a parent-death signal too.
        identity::drop_capabilities(CapabilitySet::KILL)?;
        // The change of capabilities does not clear the signal; being sure costs one call.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        rustix::io::write(to_init, &[1])?;
        Ok(pidfd)
    };
    let pidfd = match watched() {
        Ok(pidfd) => pidfd,
        Err(error) => {
            let _ = gate.send_report(&Report::Failed(format!("watching init: {error}")), &[]);
            return NOT_STARTED;
        }
    };
    loop {
        let (in_, none) = (PollFlags::IN, PollFlags::empty());
        let mut fds = [PollFd::new(&pidfd, in_), PollFd::new(gate, none)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return NOT_STARTED,
        }
        if fds[1].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
            // The supervisor is gone, or wants the host to end.
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
        if fds[0].revents().contains(PollFlags::IN) || gate.is_abandoned() {
            return match waitpid(Some(init), WaitOptions::empty()) {
                Ok(Some((_, status))) => HostExit::from_status(status).to_code(),
                Ok(None) | Err(_) => NOT_STARTED,
            };
        }
    }
}

/// Confines this process and forks the host from it. Returns in the host.
fn become_init(
    (order, usage): (LaunchOrder, OwnedFd),
    gate: Gate,
    launcher: &Gate,
    mut report: Confinement,
) -> HostEnd {
    let waited = tie_to(launcher).and_then(|()| {
        rustix::io::write(launcher, &[1])?;
        let mut go = [0];
        match rustix::io::read(launcher, &mut go)? {
            1 => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    });
    if waited.is_err() {
        std::process::exit(NOT_STARTED);
    }
    let places = or_fail(&gate, confine(&order, launcher, &mut report));
    if let Some(cache) = places.cache.as_ref().filter(|_| order.kept.is_some()) {
        or_fail(&gate, hand_over(&gate, cache).map_err(|error| format!("opening caches: {error}")));
    }
    let filters = or_fail(&gate, Filters::compile(&order.spec.calls));
    match or_fail(&gate, sys::fork().map_err(|error| format!("forking the host: {error}"))) {
        Fork::Parent(host) => {
            if filters.install().is_err() {
                std::process::exit(NOT_STARTED);
            }
            let exit = reap_until_end(host);
            let _ = gate.send_report(&Report::Ended(exit), &[]);
            std::process::exit(exit.to_code())
        }
        Fork::Child => {
            let _ = set_parent_process_death_signal(Some(Signal::KILL));
            report.enter(Measure::Seccomp, filters.install());
            or_fail(&gate, report.check(&order.spec.require));
            let confined = gate.send_report(&Report::Confined(report), &[]);
            or_fail(&gate, confined.map_err(|error| error.to_string()));
            HostEnd { order, gate, usage, places, filters }
        }
    }
}

/// Hands the directory of caches to the supervisor: a descriptor keeps its tmpfs beyond the end of
/// the mount namespace. The host does not inherit it.
fn hand_over(gate: &Gate, cache: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let cache = rustix::fs::open(cache, flags, Mode::empty())?;
    gate.send_report(&Report::Cache, &[cache.as_fd()])
}

/// Sets the parent-death signal; fails if the parent died before.
fn tie_to(parent: &Gate) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if parent.is_abandoned() { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
}

/// Takes every measure but the system-call filters.
///
/// # Errors
/// Fails if an indispensable measure fails, or if the process is left half-way in another root.
fn confine(
    order: &LaunchOrder,
    launcher: &Gate,
    report: &mut Confinement,
) -> Result<Places, String> {
    let named = |step: &'static str| move |error: io::Error| format!("{step}: {error}");
    join_cgroups(order, report);
    let proc = identity::open_proc().map_err(named("opening /proc"))?;
    let groups = identity::groups_of(&order.spec.devices).map_err(named("looking at devices"))?;
    leave_namespaces(order, report);
    let places = change_root(order, report)?;
    let has_memory_cgroup = report.is_active(Measure::MemoryCgroup);
    limits::set_limits(&order.spec.limits, has_memory_cgroup)
        .map_err(named("setting resource limits"))?;
    report.activate(Measure::ResourceLimits, "");
    // A convenience for the machine, no measure.
    let _ = identity::prefer_as_victim(proc.as_fd());

    match &order.ids {
        Ok((uid, gid)) => {
            identity::drop_bounding_set().map_err(named("emptying the bounding set"))?;
            identity::take_ids(*uid, *gid, &groups).map_err(named("taking the host's user id"))?;
            report.activate(Measure::UserIds, format!("uid {uid}, gid {gid}"));
            report.enter(Measure::UserNamespace, identity::enter_user_namespace(proc.as_fd()));
        }
        Err(why) => report.miss(Measure::UserIds, why.clone()),
    }
    drop(proc);
    tie_to(launcher).map_err(named("setting the parent-death signal"))?;
    report.activate(Measure::ParentDeathSignal, "");
    let emptied = identity::drop_bounding_set();
    if report.is_active(Measure::UserNamespace) {
        emptied.map_err(named("emptying the bounding set"))?;
    }
    identity::drop_capabilities(CapabilitySet::empty()).map_err(named("dropping capabilities"))?;
    report.activate(Measure::NoCapabilities, "");
    report.activate(Measure::NoNewPrivileges, "");
    match landlock::enter_domain(&order.spec, &places) {
        Ok(details) => report.activate(Measure::Landlock, details),
        Err(why) => report.miss(Measure::Landlock, why),
    }
    Ok(places)
}

fn join_cgroups(order: &LaunchOrder, report: &mut Confinement) {
    for (procs, measures) in &order.cgroups {
        // 0: the process that writes (cgroups(7)).
        let joined = std::fs::write(procs, "0")
            .map_err(|error| format!("joining {}: {error}", procs.display()));
        measures.iter().for_each(|measure| report.enter(*measure, joined.clone()));
    }
}

fn leave_namespaces(order: &LaunchOrder, report: &mut Confinement) {
    report.enter(Measure::MountNamespace, sys::unshare(UnshareFlags::NEWNS));
    report.enter(Measure::IpcNamespace, sys::unshare(UnshareFlags::NEWIPC));
    let uts = sys::unshare(UnshareFlags::NEWUTS)
        .and_then(|()| rustix::system::sethostname(b"venice-host"));
    report.enter(Measure::UtsNamespace, uts);
    let is_udp = |endpoint: &EndpointSpec| matches!(endpoint, EndpointSpec::Udp { .. });
    if order.spec.endpoints.iter().any(is_udp) {
        report.miss(Measure::NetworkNamespace, "the host has a udp endpoint");
    } else {
        report.enter(Measure::NetworkNamespace, sys::unshare(UnshareFlags::NEWNET));
    }
}

/// Moves into an empty root if there is a mount namespace for it.
fn change_root(order: &LaunchOrder, report: &mut Confinement) -> Result<Places, String> {
    if !report.is_active(Measure::MountNamespace) {
        report.miss(Measure::EmptyRoot, "no mount namespace");
        std::env::set_current_dir(Path::new("/")).map_err(|error| error.to_string())?;
        return Ok(Places::outside(order));
    }
    let own = || (geteuid().as_raw(), getegid().as_raw());
    let owner = order.ids.as_ref().map_or_else(|_| own(), |ids| *ids);
    enter_empty_root(order, owner).map_err(|error| format!("making an empty root: {error}"))?;
    report.activate(Measure::EmptyRoot, "");
    Ok(Places::in_root(&order.spec))
}

/// Reaps every child until the host ends; returns how it ended. Orphans of the PID namespace are
/// children of its init.
fn reap_until_end(host: Pid) -> HostExit {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if ended == host => return HostExit::from_status(status),
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return HostExit::Exited(NOT_STARTED),
        }
    }
}
