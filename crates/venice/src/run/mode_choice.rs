//! The mode of a run, and the reason for it: `--mode auto` ([0079]).
//!
//! [0079]: docs/decisions/0079-auto-takes-window-where-paging-is-refused.md

use std::path::Path;

use clap::ValueEnum;
use venice_memory::paged::{Uffd, sys};

use super::program::{self, NoShim};
use super::requirements::option_outside;
use super::{Mode, RunArgs, emulated_link, imports, port};
use crate::rack;
use crate::swap;
use venice_cli::terminal::remark;

/// The mode as asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AskedMode {
    /// Paged; swap for a program that only the kernel can page, where this user may swap; window where
    /// this user may not page, the memory can be mapped, and the program starts neither threads nor
    /// processes
    Auto,
    /// By a pager inside the program, started by a preloaded shim library
    Paged,
    /// Not paged: memory beyond --local is mapped from the donors, and survives the death of its
    /// node (port shm)
    Window,
    /// By the kernel, which swaps to borrowed memory: any program, static ones included (root, or the
    /// group with a swap helper)
    Swap,
}

impl std::fmt::Display for AskedMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            AskedMode::Auto => "auto",
            AskedMode::Paged => "paged",
            AskedMode::Window => "window",
            AskedMode::Swap => "swap",
        })
    }
}

/// The mode of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeChoice {
    /// The mode.
    pub mode: Mode,
    /// The reason, for users.
    pub reason: String,
}

/// Returns the mode of a run of `program`. A choice of `--mode auto` in a process that may not page
/// is reported on stderr.
///
/// # Errors
/// If there is no rack, or it does not answer.
pub fn choose(args: &RunArgs, monitor: Option<&str>, program: &Path) -> anyhow::Result<ModeChoice> {
    let asked = |mode: Mode| Ok(ModeChoice { mode, reason: format!("--mode {mode} is given") });
    match args.mode {
        AskedMode::Paged => asked(Mode::Paged),
        AskedMode::Window => asked(Mode::Window),
        AskedMode::Swap => asked(Mode::Swap),
        AskedMode::Auto => {
            if let Some(choice) = swap_choice(args, program) {
                return Ok(choice);
            }
            let facts = Facts {
                paged_option: option_outside(args, Mode::Window),
                can_page: can_page(),
                window_obstacle: || window_obstacle(args, monitor, program),
            };
            facts.choose()
        }
    }
}

/// Returns swap for a program into which the shim cannot be loaded, if it can run so here.
fn swap_choice(args: &RunArgs, program: &Path) -> Option<ModeChoice> {
    let no_shim = program::check(program).err()?.downcast::<NoShim>().ok()?;
    if option_outside(args, Mode::Swap).is_some() || swap::check_user().is_err() {
        return None;
    }
    let choice = ModeChoice { mode: Mode::Swap, reason: no_shim.what };
    remark(format!("venice: --mode auto is {}: {}", choice.mode, choice.reason));
    Some(choice)
}

/// The facts that the choice depends on.
struct Facts<O> {
    /// The option that only paging has.
    paged_option: Option<&'static str>,
    can_page: bool,
    /// Returns why a window is not possible, or not safe; `None`: it is both.
    window_obstacle: O,
}

impl<O: FnOnce() -> anyhow::Result<Option<String>>> Facts<O> {
    fn choose(self) -> anyhow::Result<ModeChoice> {
        let paged = |reason| Ok(ModeChoice { mode: Mode::Paged, reason });
        if let Some(option) = self.paged_option {
            return paged(format!("{option} requires it"));
        }
        if self.can_page {
            return paged("this user may page, and it suits any program".to_owned());
        }
        let choice = match (self.window_obstacle)()? {
            Some(obstacle) => ModeChoice {
                mode: Mode::Paged,
                reason: format!("a window would not be possible or safe: {obstacle}"),
            },
            None => ModeChoice {
                mode: Mode::Window,
                reason:
                    "this user may not page, and the program starts no threads and no processes"
                        .to_owned(),
            },
        };
        remark(format!("venice: --mode auto is {}: {}", choice.mode, choice.reason));
        Ok(choice)
    }
}

/// True if a pager of this user gets its userfaultfd, by a helper too.
fn can_page() -> bool {
    Uffd::open().is_ok_and(|uffd| {
        sys::close(uffd.fd);
        true
    })
}

/// Returns why the program's memory cannot be mapped, or why it may not be safe there.
fn window_obstacle(
    args: &RunArgs,
    monitor: Option<&str>,
    program: &Path,
) -> anyhow::Result<Option<String>> {
    let port = port(args, monitor)?;
    if !Mode::Window.works_over(port) {
        return Ok(Some(format!("memory cannot be mapped over --port {port}")));
    }
    if let Some((node, link)) = emulated_link(&rack::monitor_address(monitor)?)? {
        return Ok(Some(format!("{node} emulates the link {link}")));
    }
    Ok(imports::may_start(program))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(
        paged_option: Option<&'static str>,
        can_page: bool,
        obstacle: Option<&str>,
    ) -> ModeChoice {
        let obstacle = obstacle.map(str::to_owned);
        Facts { paged_option, can_page, window_obstacle: || Ok(obstacle) }.choose().unwrap()
    }

    #[test]
    fn paging_comes_first() {
        assert_eq!(choice(None, true, None).mode, Mode::Paged);
        let with_option = choice(Some("--coding"), false, None);
        assert_eq!(
            (with_option.mode, with_option.reason.as_str()),
            (Mode::Paged, "--coding requires it")
        );
    }

    #[test]
    fn window_where_paging_is_refused() {
        assert_eq!(choice(None, false, None).mode, Mode::Window);
        let unsafe_there = choice(None, false, Some("sort imports fork"));
        assert_eq!(unsafe_there.mode, Mode::Paged);
        assert!(unsafe_there.reason.contains("sort imports fork"), "{}", unsafe_there.reason);
    }
}
