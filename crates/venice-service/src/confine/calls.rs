//! System calls of a host: an allow-list for every host, groups on request, and calls that end it.
//!
//! A call that is not on the list fails with `EPERM`, as libraries expect of an old kernel or a
//! sandbox. A call that only an attack makes ends the host with SIGSYS.

use std::collections::BTreeMap;

use libc::{c_long, *};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::spec::CallGroup;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Calls of every host: memory, threads, time, files, sockets, waiting.
const EVERY_HOST: &[c_long] = &[
    // Memory.
    SYS_brk,
    SYS_madvise,
    SYS_memfd_create,
    SYS_mincore,
    SYS_mlock,
    SYS_mmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_msync,
    SYS_munlock,
    SYS_munmap,
    SYS_membarrier,
    // Threads and signals.
    SYS_exit,
    SYS_exit_group,
    SYS_futex,
    SYS_get_robust_list,
    SYS_getcpu,
    SYS_gettid,
    SYS_rseq,
    SYS_restart_syscall,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigtimedwait,
    SYS_sched_getaffinity,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_sched_setaffinity,
    SYS_sched_yield,
    SYS_set_robust_list,
    SYS_set_tid_address,
    SYS_seccomp,
    SYS_sigaltstack,
    SYS_tgkill,
    SYS_wait4,
    SYS_waitid,
    // Ids and limits, to read.
    SYS_getegid,
    SYS_geteuid,
    SYS_getgroups,
    SYS_getgid,
    SYS_getpid,
    SYS_getppid,
    SYS_getrandom,
    SYS_getresgid,
    SYS_getresuid,
    SYS_getrusage,
    SYS_getuid,
    SYS_prlimit64,
    SYS_sysinfo,
    SYS_times,
    SYS_uname,
    // Time.
    SYS_clock_getres,
    SYS_clock_gettime,
    SYS_clock_nanosleep,
    SYS_gettimeofday,
    SYS_nanosleep,
    SYS_timerfd_create,
    SYS_timerfd_gettime,
    SYS_timerfd_settime,
    // Files.
    SYS_close,
    SYS_close_range,
    SYS_copy_file_range,
    SYS_dup,
    SYS_dup3,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_fadvise64,
    SYS_fallocate,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fcntl,
    SYS_fdatasync,
    SYS_flock,
    SYS_fstat,
    SYS_fstatfs,
    SYS_fsync,
    SYS_ftruncate,
    SYS_getcwd,
    SYS_getdents64,
    SYS_lseek,
    SYS_mkdirat,
    SYS_newfstatat,
    SYS_openat,
    SYS_pipe2,
    SYS_pread64,
    SYS_preadv,
    SYS_preadv2,
    SYS_pwrite64,
    SYS_pwritev,
    SYS_pwritev2,
    SYS_read,
    SYS_readahead,
    SYS_readlinkat,
    SYS_readv,
    SYS_renameat,
    SYS_renameat2,
    SYS_statfs,
    SYS_statx,
    SYS_symlinkat,
    SYS_umask,
    SYS_unlinkat,
    SYS_utimensat,
    SYS_write,
    SYS_writev,
    // Sockets.
    SYS_accept,
    SYS_accept4,
    SYS_bind,
    SYS_connect,
    SYS_getpeername,
    SYS_getsockname,
    SYS_getsockopt,
    SYS_listen,
    SYS_recvfrom,
    SYS_recvmmsg,
    SYS_recvmsg,
    SYS_sendmmsg,
    SYS_sendmsg,
    SYS_sendto,
    SYS_setsockopt,
    SYS_shutdown,
    // Waiting.
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_epoll_pwait2,
    SYS_eventfd2,
    SYS_ppoll,
    SYS_pselect6,
];

/// Older names of calls above, which only x86-64 has.
#[cfg(target_arch = "x86_64")]
const OLDER_NAMES: &[c_long] = &[
    SYS_access,
    SYS_arch_prctl,
    SYS_dup2,
    SYS_epoll_create,
    SYS_epoll_wait,
    SYS_eventfd,
    SYS_chmod,
    SYS_getdents,
    SYS_lstat,
    SYS_mkdir,
    SYS_open,
    SYS_pipe,
    SYS_poll,
    SYS_readlink,
    SYS_rename,
    SYS_rmdir,
    SYS_select,
    SYS_stat,
    SYS_symlink,
    SYS_time,
    SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_NAMES: &[c_long] = &[];

/// Calls that no service has a use for, and that end a host at once.
const FATAL: &[c_long] = &[
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_pidfd_getfd,
    SYS_kcmp,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_kexec_load,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_mount,
    SYS_umount2,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsmount,
    SYS_mount_setattr,
    SYS_pivot_root,
    SYS_chroot,
    SYS_setns,
    SYS_unshare,
    SYS_open_by_handle_at,
    SYS_name_to_handle_at,
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_acct,
    SYS_quotactl,
    SYS_setuid,
    SYS_setgid,
    SYS_setreuid,
    SYS_setregid,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setgroups,
    SYS_capset,
];

/// Calls that make a socket or give it a name: none is needed once the endpoints listen. io_uring
/// does the same past all filters, so that no group has it.
const ENDPOINTS_ONLY: &[c_long] = &[SYS_socket, SYS_socketpair, SYS_bind, SYS_listen, SYS_connect];

const DEVICES: &[c_long] = &[SYS_ioctl];
const PROCESSES: &[c_long] = &[
    SYS_execve,
    SYS_execveat,
    SYS_kill,
    SYS_setpgid,
    SYS_getpgid,
    SYS_setsid,
    SYS_pidfd_open,
    SYS_pidfd_send_signal,
];
#[cfg(target_arch = "x86_64")]
const FORK: &[c_long] = &[SYS_fork, SYS_vfork];
#[cfg(not(target_arch = "x86_64"))]
const FORK: &[c_long] = &[];

/// The filters of one host. Compiled before the fork, installed after it.
pub(crate) struct Filters {
    programs: Vec<BpfProgram>,
    sealing: BpfProgram,
}

impl Filters {
    /// Compiles the filters of a host with these groups of calls.
    ///
    /// # Errors
    /// Fails on a processor that seccomp filters are not made for here.
    pub(crate) fn compile(groups: &[CallGroup]) -> Result<Self, String> {
        let build = || -> Result<Self, seccompiler::BackendError> {
            let (allow, eperm) = (SeccompAction::Allow, SeccompAction::Errno(EPERM as u32));
            let kill = SeccompAction::KillProcess;
            // Of several filters the kernel takes the strictest answer.
            let programs = vec![
                filter(allowed(groups)?, eperm.clone(), allow.clone())?,
                filter(plain([SYS_clone3]), allow.clone(), SeccompAction::Errno(ENOSYS as u32))?,
                filter(fatal()?, allow.clone(), kill)?,
            ];
            let sealing = filter(plain(ENDPOINTS_ONLY.iter().copied()), allow, eperm)?;
            Ok(Self { programs, sealing })
        };
        build().map_err(|error| error.to_string())
    }

    /// Puts this thread, and all that it starts, under the filters. Needs `no_new_privs`.
    pub(crate) fn install(&self) -> Result<(), String> {
        let install = |program: &BpfProgram| seccompiler::apply_filter(program);
        self.programs.iter().try_for_each(install).map_err(|error| error.to_string())
    }

    /// Takes the calls that make sockets away from all threads of this process.
    pub(crate) fn seal(&self) -> Result<(), String> {
        seccompiler::apply_filter_all_threads(&self.sealing).map_err(|error| error.to_string())
    }
}

fn filter(
    rules: Rules,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, otherwise, matched, arch)?.try_into()
}

fn plain(calls: impl IntoIterator<Item = c_long>) -> Rules {
    calls.into_iter().map(|call| (call, Vec::new())).collect()
}

fn allowed(groups: &[CallGroup]) -> Result<Rules, seccompiler::BackendError> {
    let mut rules = plain(EVERY_HOST.iter().chain(OLDER_NAMES).copied());
    // Answered with ENOSYS, so that libc takes `clone`, whose flags a filter can see.
    rules.insert(SYS_clone3, Vec::new());
    let masked =
        |mask: c_int, value: c_int| argument(0, SeccompCmpOp::MaskedEq(mask as u64), value as u64);
    rules.insert(SYS_clone, vec![masked(CLONE_THREAD, CLONE_THREAD)?]);
    let families = [AF_UNIX, AF_INET, AF_INET6];
    let of_family = |family: &c_int| argument(0, SeccompCmpOp::Eq, *family as u64);
    rules.insert(SYS_socket, families.iter().map(of_family).collect::<Result<_, _>>()?);
    rules.insert(SYS_socketpair, vec![of_family(&AF_UNIX)?]);
    const PR_SET_VMA: c_int = 0x5356_4d41;
    let of_option = |option: &c_int| argument(0, SeccompCmpOp::Eq, *option as u64);
    // The last two add filters, which can only take calls away.
    let options = [PR_SET_NAME, PR_GET_NAME, PR_SET_VMA, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP];
    rules.insert(SYS_prctl, options.iter().map(of_option).collect::<Result<_, _>>()?);
    // The few controls of descriptors that the standard library asks for.
    let of_request = |request: &u64| argument(1, SeccompCmpOp::Eq, *request);
    let requests = [FIONBIO, FIOCLEX, FIONREAD];
    rules.insert(SYS_ioctl, requests.iter().map(of_request).collect::<Result<_, _>>()?);
    for group in groups {
        match group {
            CallGroup::Devices => rules.extend(plain(DEVICES.iter().copied())),
            CallGroup::Processes => {
                rules.extend(plain(PROCESSES.iter().chain(FORK).copied()));
                rules.extend(plain([SYS_clone]));
            }
        }
    }
    Ok(rules)
}

fn fatal() -> Result<Rules, seccompiler::BackendError> {
    let mut rules = plain(FATAL.iter().copied());
    let namespaces = [
        CLONE_NEWUSER,
        CLONE_NEWNS,
        CLONE_NEWPID,
        CLONE_NEWNET,
        CLONE_NEWIPC,
        CLONE_NEWUTS,
        CLONE_NEWCGROUP,
    ];
    let makes = |flag: &c_int| argument(0, SeccompCmpOp::MaskedEq(*flag as u64), *flag as u64);
    rules.insert(SYS_clone, namespaces.iter().map(makes).collect::<Result<_, _>>()?);
    Ok(rules)
}

/// Returns the rule that one argument of a call has this value. Its lower 32 bits are compared: all
/// arguments compared here are of that width.
fn argument(
    index: u8,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompRule, seccompiler::BackendError> {
    let condition = SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)?;
    SeccompRule::new(vec![condition])
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: [CallGroup; 2] = [CallGroup::Devices, CallGroup::Processes];

    #[test]
    fn every_group_compiles() {
        let filters = Filters::compile(&GROUPS).unwrap();
        assert_eq!(filters.programs.len(), 3);
        // The kernel's limit: seccomp(2).
        let longest = filters.programs.iter().map(Vec::len).max().unwrap();
        assert!(longest < 4096, "{longest} instructions");
    }

    #[test]
    fn no_fatal_call_is_allowed() {
        let allowed = allowed(&GROUPS).unwrap();
        let both: Vec<_> = FATAL.iter().filter(|call| allowed.contains_key(*call)).collect();
        assert!(both.is_empty(), "{both:?}");
    }

    #[test]
    fn no_group_has_io_uring() {
        let allowed = allowed(&GROUPS).unwrap();
        for call in [SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register] {
            assert!(!allowed.contains_key(&call), "call {call}");
        }
    }
}
