//! `venice run`: a program on borrowed memory.
//!
//! This process supervises: it borrows, renews leases and watches the donors
//! ([`venice_recipient`]), lets the program's processes attach ([`attending`]), forwards signals
//! ([`child`]), reports the run's state ([`crate::runs`]) and its summary ([`summary`]). The shim
//! pages inside the program's own process; in [`swap_mode`] the kernel does.

mod attending;
mod child;
mod core_dumps;
mod devices;
mod devices_only;
mod imports;
mod job;
mod meeting_place;
mod mode_choice;
mod page_sizes;
mod program;
mod requirements;
mod shared_memory;
mod sharing;
mod summary;
mod swap_mode;
mod unmanaged;

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::Context;
use clap::{Args, ValueEnum};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use venice_control::Policy;
use venice_fabric::parse_bandwidth;
use venice_memory::paged::run_block::RunBlockMap;
use venice_recipient::local_rack::{access, use_helper};
use venice_recipient::runs::{self, About, RefaultCounts, RunTime, budget};
use venice_recipient::{
    AllocationSpec, Coding, Holding, Leases, Loan, MemorySpec, News, ReclaimTo, Shortage,
    WriteBehind, home,
};
use venice_wire::{ByteSize, PAGE_BYTES, SLAB_BYTES};

pub use child::{Child, Ended};
pub use job::{StandInArgs, execute as stand_in};
pub use meeting_place::{MeetingPlace, listen_alone};
pub use program::find as find_program;
pub use shared_memory::{RunPages, SharedMemory};
pub use unmanaged::UnmanagedView;

use crate::library::SHIM;
use crate::mode::Mode;
use crate::place;
use crate::rack::{self, PortKind, port_parser};
use crate::registry::{self, block_on};
use crate::runs::{Paged, open_desk};
use crate::waiting::{WaitArgs, borrow, check_amount, told};
use devices::{DeviceWatch, Devices};
use mode_choice::{AskedMode, ModeChoice};
use page_sizes::PageSizes;
use venice_cli::failure::{EXIT_RUNNER, Usage};
use venice_cli::terminal::remark;

/// Most copies: the slots of a run block.
const MAX_COPIES: i64 = venice_recipient::MOST_COPIES as i64;
/// Most pages prefetched with a demanded page.
const READ_AHEAD_PAGES: u32 = 63;

/// The program and its memory.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Most anonymous memory that the program and its children keep resident [default: half of what
    /// is available]
    #[arg(long, value_name = "SIZE")]
    local: Option<ByteSize>,
    /// Memory to borrow [default: three times --local, or what the rack has free and your quota
    /// allows if that is less]
    #[arg(long, value_name = "SIZE")]
    remote: Option<ByteSize>,
    /// Port to the donors [default: the rack's]
    #[arg(long, value_parser = port_parser())]
    port: Option<PortKind>,
    /// Copies of far memory, each on another node: 1 to 3 [default: 2, or 1 with a warning if the
    /// rack or your quota has no room for 2]; --mode window keeps one, since mapped memory outlives
    /// its node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_COPIES))]
    copies: Option<u32>,
    /// Erasure-code far memory instead: K data and M parity fragments of each page, each on another
    /// node (K is 2, 4 or 8; M is 1 to 3). Tolerates M dead nodes at a time; borrows (K+M)/K of
    /// --remote (--mode paged); its tables take 8 MiB of --local
    #[arg(long, value_name = "K+M", conflicts_with = "copies")]
    coding: Option<Coding>,
    /// Destinations for memory that a node reclaims while the program runs, in this order: donors
    /// (other nodes), local (this machine's memory, beyond --local, as far as it is available),
    /// disk (files in /var/tmp) or disk:DIR; disk requires --mode paged [default: donors,local]
    #[arg(long, value_name = "PLACES", value_delimiter = ',', value_parser = str::parse::<ReclaimTo>)]
    reclaim_to: Option<Vec<ReclaimTo>>,
    /// Also write far memory to a file in DIR, in the background: no data is lost with a node, even
    /// with a single copy. The file has no name, grows up to --remote and ends with the program;
    /// its write buffer takes 16 MiB of this machine's memory, beyond --local (--mode paged;
    /// --copies defaults to 1)
    #[arg(long, value_name = "DIR", conflicts_with = "coding")]
    write_behind: Option<PathBuf>,
    /// Borrow from these nodes only; may be repeated
    #[arg(long, value_name = "NODE", value_parser = crate::name::check)]
    donor: Vec<String>,
    /// Placement policy: nearest (near donors with much free memory), spread (evenly over all) or
    /// pack (as few as possible) [default: the rack's, initially nearest]
    #[arg(long, value_name = "nearest|spread|pack")]
    placement: Option<Policy>,
    /// Bandwidth to reserve on its links, spread evenly over the memory: 2Gbps. A donor grants no
    /// more than its link has free; grants keep their reservation (`venice links`, `venice grants`)
    #[arg(long, value_name = "RATE", value_parser = parse_bandwidth)]
    bandwidth: Option<NonZeroU64>,
    #[command(flatten)]
    devices: devices::DeviceArgs,
    #[command(flatten)]
    waiting: WaitArgs,
    /// Node that the program belongs to, where nodes relay [default: the first]
    #[arg(long, value_name = "NODE", value_parser = crate::name::check)]
    node: Option<String>,
    /// Mode in which the program uses borrowed memory
    #[arg(long, value_enum, default_value_t = AskedMode::Auto)]
    mode: AskedMode,
    /// Thread that serves page faults: a pager thread, or, for large mappings, the faulting thread
    /// (port shm; for computing programs: system calls on such memory may fail)
    #[arg(long, value_enum, default_value_t = Faults::Handler)]
    faults: Faults,
    /// Pages to prefetch ahead of a scan: on, off, or a maximum [default: on]
    #[arg(long, value_name = "on|off|PAGES", value_parser = read_ahead)]
    read_ahead: Option<u32>,
    /// Page size of paging [default: 4k]
    #[arg(long, value_enum)]
    page_size: Option<PageSizes>,
    /// Show where the memory would be placed, and why; borrow nothing (`venice place`)
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run: print JSON as `venice place --json` does
    #[arg(long, requires = "dry_run")]
    json: bool,
    /// Print a summary on stderr at the end
    #[arg(long)]
    stats: bool,
    /// Fail at the end (exit code 1) if the program had memory that Venice does not manage: 16MiB,
    /// or a sixteenth of --local if that is more. Without it, a message says so
    #[arg(long)]
    strict: bool,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

/// The place where page faults are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Faults {
    /// In a thread of the pager
    Handler,
    /// In the faulting thread
    InThread,
}

fn read_ahead(text: &str) -> Result<u32, String> {
    match text {
        "on" => Ok(READ_AHEAD_PAGES),
        "off" => Ok(0),
        _ => match text.parse() {
            Ok(pages) if pages <= READ_AHEAD_PAGES => Ok(pages),
            _ => Err(format!("write on, off or a number of pages up to {READ_AHEAD_PAGES}")),
        },
    }
}

impl RunArgs {
    /// True if a program is to be run.
    pub fn runs_program(&self) -> bool {
        !self.dry_run
    }
}

/// Runs the program to its end; returns its exit code. If a signal ended the program, the same
/// signal ends this process.
pub fn execute(args: &RunArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    let program = program::find(&args.command[0])?;
    if devices_only::applies_to(args) {
        return devices_only::execute(args, monitor, &program);
    }
    use_helper();
    let local_bytes = local_bytes(args)?;
    check_amount(args.waiting.wait, args.remote.is_some())?;
    check_remote(args.remote)?;
    let ModeChoice { mode, reason: mode_reason } = mode_choice::choose(args, monitor, &program)?;
    requirements::check_mode(args, mode)?;
    check_write_behind(args)?;
    if mode == Mode::Swap {
        return swap_mode::execute(args, monitor, local_bytes, &program, mode_reason);
    }
    program::check(&program).with_context(|| format!("--mode {}", args.mode))?;
    let shim = SHIM.find()?;
    let port = port(args, monitor)?;
    requirements::check_port(args, mode, port)?;
    let page_sizes = args.page_size.unwrap_or_default();
    page_sizes.check(local_bytes, args.faults == Faults::InThread)?;
    let monitor = rack::monitor_address(monitor)?;
    requirements::check_link(args, mode, || emulated_link(&monitor))?;
    let access = access(&monitor);
    let home = home::find(&access, port, args.node.as_deref()).map_err(told)?;
    let (remote_bytes, default_bytes) =
        (args.remote.map(|size| size.0), local_bytes.saturating_mul(3));
    let most_bytes = remote_bytes.unwrap_or(default_bytes);
    let write_behind =
        args.write_behind.as_deref().map(|dir| WriteBehind::open(dir, most_bytes)).transpose()?;
    let memory = MemorySpec {
        remote_bytes,
        default_bytes,
        copies: copies(args, mode),
        coding: args.coding,
        bandwidth_bps: args.bandwidth.map_or(0, NonZeroU64::get),
        reclaim_to: args.reclaim_to.clone().unwrap_or_else(ReclaimTo::by_default),
        locks_local: false,
        write_behind,
    };
    let spec = AllocationSpec {
        memory: Some(memory),
        devices: args.devices.wants()?,
        donors: args.donor.clone(),
        home: home.as_ref().map(|home| home.name.clone()).unwrap_or_default(),
        placement: args.placement,
        waiting: args.waiting.waiting(),
        purpose: program.display().to_string(),
    };
    if args.dry_run {
        return place::show(&access, &spec, (port, args.node.as_deref()), args.json);
    }
    let limits = raise_descriptor_limit();
    let mut loan = borrow(&access, &spec, port)?;
    let mut devices = Devices::take(&mut loan, &spec)?;
    if let Some(Shortage { unusable }) = &loan.shortage {
        let unusable = crate::swap::in_words(unusable);
        remark(format!(
            "venice: the rack, or your quota, has no room for two copies of this program's far memory \
             on different nodes{unusable}: a node that dies takes some of it along (less --remote \
             has two; --copies 1 silences this)"
        ));
    }
    let relay_addr = home.as_ref().map(|home| home.relay_addr.as_str());
    note_room_on_disk(&loan);
    let run = set_up(args, mode, loan, local_bytes, port, relay_addr)?;
    let soft_limit = limits.current.unwrap_or(u64::MAX);
    run.block.program_descriptor_limit.store(soft_limit, Ordering::Relaxed);
    let tell = if mode == Mode::Window { tell_of_mapped } else { tell };
    let leases = Leases::keep(run.holding.clone(), tell)?;
    let unmanaged = UnmanagedView::default();
    let attending = attending::Attending::start(
        run.block_fd,
        (run.holding.clone(), unmanaged.clone()),
        &program.display().to_string(),
        soft_limit,
    )?;
    let address = attending.address()?;
    let mut start = child::with_shim(&program, &shim, &address, attending.inherited());
    let granted = devices.as_ref().map(Devices::rows).unwrap_or_default();
    if let Some(devices) = &mut devices {
        devices.describe_to(&mut start)?;
    }
    let began = Instant::now();
    let mut child = child::Child::start(start, &program, &args.command)?;
    let devices = devices.map(|devices| devices.watch(&child));
    let about = About {
        pid: child.pid(),
        command: shown(&args.command),
        devices: granted,
        monitor: access.monitor.clone(),
    };
    let watch =
        unmanaged::UnmanagedWatch::start(run.block.clone(), child.pid(), unmanaged.clone())?;
    let _sharing = sharing::SharingWatch::start(run.block.clone())?;
    let holding = run.holding.clone();
    let shared = attending.shared();
    let paged = Paged { holding, shared, unmanaged, mode_reason: mode_reason.clone() };
    let desk = open_desk(about, paged);
    let program = child.pid();
    let ended = child.wait(|| job::StandIn::start(&run.holding, program))?;
    attending.wait_for_the_rest(|left| child.pass_on_to(left));
    let has_lost_device = devices.is_some_and(DeviceWatch::finish);
    drop(desk);
    let time = RunTime { wall_s: began.elapsed().as_secs_f64(), cpu_s: runs::cpu_s_of_children() };
    let most_unmanaged = watch.finish();
    leases.give_back();
    page_sizes::tell(&run.block);
    if args.stats {
        match mode {
            Mode::Window => summary::print_window(&run.block),
            Mode::Paged | Mode::Swap => summary::print(&run.block),
        }
        remark(format!("venice: mode {mode}: {mode_reason}"));
    }
    summary::print_refaults(&RefaultCounts::of(&run.block), time, args.stats);
    drop(attending);
    let is_much = unmanaged::is_much(&most_unmanaged, local_bytes);
    if is_much || args.stats {
        summary::print_unmanaged(&most_unmanaged);
    }
    if args.strict && is_much && ended.is_success() {
        return Err(unmanaged::strict_error(&most_unmanaged));
    }
    Ok(if has_lost_device { EXIT_RUNNER } else { ended.pass_on() })
}

fn tell(news: News) {
    remark(format!("venice: {news}"));
}

/// Reports an event of a window run. Mapped memory stays with the processes that have mapped it,
/// whatever becomes of the process that created it.
fn tell_of_mapped(news: News) {
    let News::Lost(lost) = news else { return tell(news) };
    remark(format!("venice: {}; memory mapped here stays, nothing is lost", lost.what()));
}

/// Refuses --write-behind where it does not work, before any allocation.
fn check_write_behind(args: &RunArgs) -> Result<(), Usage> {
    match &args.write_behind {
        Some(_) if args.page_size.is_some_and(PageSizes::has_huge) => Err(Usage(
            "--write-behind writes small pages, and pages of 2 MiB leave whole: use --page-size 64k \
             with it"
                .into(),
        )),
        Some(dir) if !dir.is_dir() => {
            Err(Usage(format!("--write-behind: {dir:?} is not a directory")))
        }
        _ => Ok(()),
    }
}

/// Returns the requested number of copies; `None`: as many as there is room for, two at most.
fn copies(args: &RunArgs, mode: Mode) -> Option<u32> {
    match mode {
        Mode::Window => Some(1),
        Mode::Paged | Mode::Swap if args.write_behind.is_some() => Some(args.copies.unwrap_or(1)),
        Mode::Paged | Mode::Swap => args.copies,
    }
}

/// Warns of a disk that may fill up, before the program starts.
fn note_room_on_disk(loan: &Loan) {
    let Some(behind) = loan.spec.memory.as_ref().and_then(|memory| memory.write_behind.as_ref())
    else {
        return;
    };
    let wanted_bytes = loan.slab_count() as u64 * SLAB_BYTES;
    if let Ok(free_bytes) = behind.free_bytes()
        && free_bytes < wanted_bytes
    {
        remark(format!(
            "venice: the disk for --write-behind has {} free, and the program may write {}: pages \
             that do not fit are kept by their donors alone",
            ByteSize(free_bytes),
            ByteSize(wanted_bytes)
        ));
    }
}

/// Returns `--port`, else the rack's. An error without a rack: then no port is to blame.
fn port(args: &RunArgs, monitor: Option<&str>) -> anyhow::Result<PortKind> {
    match args.port {
        Some(port) => Ok(port),
        None => rack::monitor_address(monitor).and_then(|_| rack::default_port()),
    }
}

/// Refuses an amount of nothing: a program beyond `--local` would be killed.
fn check_remote(remote: Option<ByteSize>) -> anyhow::Result<()> {
    if remote.is_some_and(|size| size.0 == 0) {
        let said = "--remote 0 borrows nothing: give an amount, for example 1GiB";
        return Err(Usage(said.into()).into());
    }
    Ok(())
}

/// Returns a node that emulates a link, and the link.
fn emulated_link(monitor: &str) -> anyhow::Result<Option<(String, String)>> {
    let nodes = block_on(async { registry::connect(monitor).await?.nodes().await })?;
    let node = nodes.into_iter().find(|node| !node.link.is_empty());
    Ok(node.map(|node| (node.name, node.link)))
}

/// A run block and the state that its processes share.
struct Run {
    block: Arc<RunBlockMap>,
    block_fd: std::os::fd::OwnedFd,
    holding: Arc<Holding>,
}

fn set_up(
    args: &RunArgs,
    mode: Mode,
    loan: Loan,
    local_bytes: u64,
    port: PortKind,
    home: Option<&str>,
) -> anyhow::Result<Run> {
    let (block_fd, block) = loan.run_block(port)?;
    block.limit_pages.store(local_bytes / PAGE_BYTES, Ordering::Relaxed);
    block.read_ahead_pages.store(args.read_ahead.unwrap_or(READ_AHEAD_PAGES), Ordering::Relaxed);
    block
        .fingerprint_seed
        .store(venice_ports::random_u64().context("drawing a random number")?, Ordering::Relaxed);
    if let Some(link) = loan.link() {
        block.set_link(&link);
    }
    args.page_size.unwrap_or_default().put_into(&block);
    if mode == Mode::Window {
        block.set_window();
    }
    if args.faults == Faults::InThread {
        block.set_faults_in_thread();
    }
    let block = Arc::new(block);
    let holding = Holding::new(loan, block.clone(), home)?;
    Ok(Run { block, block_fd, holding })
}

/// Raises the soft descriptor limit to the hard one: each slab takes a descriptor. Returns the old
/// limits, which the shim restores for the program.
pub fn raise_descriptor_limit() -> Rlimit {
    let limits = getrlimit(Resource::Nofile);
    // Where it is refused, a run with few slabs still works.
    let raised = Rlimit { current: limits.maximum, maximum: limits.maximum };
    let _ = setrlimit(Resource::Nofile, raised);
    limits
}

/// Returns `--local`, checked against the machine.
fn local_bytes(args: &RunArgs) -> anyhow::Result<u64> {
    let local_bytes = args.local.map_or_else(budget::by_default, |size| Ok(size.0))?;
    budget::check(local_bytes)?.map_err(Usage)?;
    Ok(local_bytes)
}

/// Returns the program and its arguments on one line, for display.
fn shown(command: &[OsString]) -> String {
    let text = command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
