//! Requirements of the options of `venice run`: the one table of what goes with which mode, port
//! and rack. Its refusals come before any allocation.

use venice_recipient::ReclaimTo;
use venice_wire::PortKind;

use super::{Faults, Mode, PageSizes, RunArgs};
use venice_cli::failure::Usage;

/// An option, or a mode, with what it requires.
pub struct Requirement {
    /// The option, as users write it.
    pub option: &'static str,
    is_given: fn(&RunArgs, Mode) -> bool,
    /// Modes in which it does not work, with the reason.
    refusing: &'static [(Mode, &'static str)],
    /// Its use of mapped memory, which the port must have; `None`: any port will do.
    mapped: Option<&'static str>,
    /// The reason why it does not work over an emulated link, and the remedy.
    link: Option<&'static str>,
}

/// Of an option without any.
const NONE: Requirement =
    Requirement { option: "", is_given: |_, _| false, refusing: &[], mapped: None, link: None };

/// Reason why devices do not go with a mode.
const OTHER_PROCESS: &str =
    "another process borrows the memory (venice get holds devices for any command)";

/// All requirements.
pub const REQUIREMENTS: [Requirement; 12] = [
    Requirement {
        option: Mode::Window.flag(),
        is_given: |_, mode| mode == Mode::Window,
        mapped: Some("maps the donors' memory"),
        link: Some("single loads and stores cannot be slowed down: use --mode paged"),
        ..NONE
    },
    Requirement {
        option: "--coding",
        is_given: |args, _| args.coding.is_some(),
        refusing: &[
            (
                Mode::Window,
                "a window maps the donors' memory in place, and a coded page is nowhere in one piece",
            ),
            (Mode::Swap, "a swap device keeps copies"),
        ],
        ..NONE
    },
    Requirement {
        option: "--write-behind",
        is_given: |args, _| args.write_behind.is_some(),
        refusing: &[
            (Mode::Window, "memory that a window has mapped survives its node"),
            (Mode::Swap, "a swap device keeps copies"),
        ],
        ..NONE
    },
    Requirement {
        option: "--read-ahead",
        is_given: |args, _| args.read_ahead.is_some(),
        refusing: &[
            (Mode::Window, "a window prefetches nothing"),
            (Mode::Swap, "the kernel reads ahead (sysctl vm.page-cluster)"),
        ],
        ..NONE
    },
    Requirement {
        option: "--page-size",
        is_given: |args, _| args.page_size.is_some(),
        refusing: &[
            (Mode::Window, "a window pages nothing in"),
            (Mode::Swap, "the kernel chooses how much it swaps at once (sysctl vm.page-cluster)"),
        ],
        ..NONE
    },
    Requirement {
        option: "--page-size 2m",
        is_given: |args, _| args.page_size.is_some_and(PageSizes::has_huge),
        mapped: Some("assembles huge pages from mapped memory"),
        ..NONE
    },
    Requirement {
        option: "--faults in-thread",
        is_given: |args, _| args.faults == Faults::InThread,
        refusing: &[
            (Mode::Window, "a window has no faults to serve"),
            (Mode::Swap, "the kernel serves page faults"),
        ],
        mapped: Some("brings pages in from mapped memory"),
        link: Some("each thread would have a link of its own: use --faults handler"),
    },
    Requirement {
        option: "--copies above 1",
        is_given: |args, _| args.copies.is_some_and(|copies| copies > 1),
        refusing: &[(Mode::Window, "that has one copy, which survives its node")],
        ..NONE
    },
    Requirement {
        option: "--reclaim-to disk",
        is_given: |args, _| {
            args.reclaim_to.iter().flatten().any(|place| matches!(place, ReclaimTo::Disk(_)))
        },
        refusing: &[
            (
                Mode::Window,
                "memory that a window has mapped moves to other donors or to this machine's memory",
            ),
            (Mode::Swap, "a swap device keeps its pages in memory"),
        ],
        ..NONE
    },
    Requirement {
        option: "--strict",
        is_given: |args, _| args.strict,
        refusing: &[(Mode::Swap, "the kernel pages all of the program's memory")],
        ..NONE
    },
    Requirement {
        option: "--accelerators",
        is_given: |args, _| args.devices.accelerators.is_some(),
        refusing: &[(Mode::Swap, OTHER_PROCESS)],
        ..NONE
    },
    Requirement {
        option: "--with",
        is_given: |args, _| !args.devices.wants.is_empty(),
        refusing: &[(Mode::Swap, OTHER_PROCESS)],
        ..NONE
    },
];

impl Requirement {
    /// Returns the reason why it does not work in a mode; `None`: it does.
    fn refusal(&self, mode: Mode) -> Option<&'static str> {
        self.refusing.iter().find(|(refusing, _)| *refusing == mode).map(|(_, why)| *why)
    }

    /// Returns the modes in which it works, as users write them.
    fn modes(&self) -> String {
        let fitting = Mode::ALL.into_iter().filter(|mode| self.refusal(*mode).is_none());
        fitting.map(Mode::flag).collect::<Vec<_>>().join(" or ")
    }
}

fn given(args: &RunArgs, mode: Mode) -> impl Iterator<Item = &'static Requirement> {
    REQUIREMENTS.iter().filter(move |it| (it.is_given)(args, mode))
}

/// Returns an option of `args` that a mode does not have; `None`: there is none.
pub fn option_outside(args: &RunArgs, mode: Mode) -> Option<&'static str> {
    given(args, mode).find(|it| it.refusal(mode).is_some()).map(|it| it.option)
}

/// Refuses options that the mode does not have.
pub fn check_mode(args: &RunArgs, mode: Mode) -> Result<(), Usage> {
    given(args, mode).try_for_each(|it| match it.refusal(mode) {
        None => Ok(()),
        Some(why) => {
            let (option, modes) = (it.option, it.modes());
            Err(Usage(format!("{option} requires {modes}, not {}: {why}", mode.flag())))
        }
    })
}

/// Refuses what needs mapped memory over a port without.
pub fn check_port(args: &RunArgs, mode: Mode, port: PortKind) -> Result<(), Usage> {
    if port.capabilities().mapped {
        return Ok(());
    }
    let needing = given(args, mode).find_map(|it| Some((it.option, it.mapped?)));
    needing.map_or(Ok(()), |(option, needs)| {
        Err(Usage(format!(
            "{option} {needs}, which --port {port} cannot: use {}, on the donors' own host",
            mapping_ports()
        )))
    })
}

/// Returns the ports that map memory, as users write them.
fn mapping_ports() -> String {
    let mapping = PortKind::ALL.into_iter().filter(|port| port.capabilities().mapped);
    mapping.map(|port| format!("--port {port}")).collect::<Vec<_>>().join(" or ")
}

/// Refuses what does not work over an emulated link. `emulated` returns a node that emulates one,
/// and the link; it is asked only if that matters.
pub fn check_link(
    args: &RunArgs,
    mode: Mode,
    emulated: impl FnOnce() -> anyhow::Result<Option<(String, String)>>,
) -> anyhow::Result<()> {
    let Some((option, why)) = given(args, mode).find_map(|it| Some((it.option, it.link?))) else {
        return Ok(());
    };
    let Some((node, link)) = emulated()? else { return Ok(()) };
    let said = format!(
        "{option} does not work here: {node} emulates the link {link}, and {why}, or start the rack \
         without --link"
    );
    Err(Usage(said).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    fn args(words: &[&str]) -> RunArgs {
        let words = [&["run"], words, &["true"]].concat();
        Line::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).run
    }

    /// Options that give each requirement but that of a mode.
    const GIVING: [&[&str]; 11] = [
        &["--coding", "2+1"],
        &["--write-behind", "/tmp"],
        &["--read-ahead", "off"],
        &["--page-size", "64k"],
        &["--page-size", "2m"],
        &["--faults", "in-thread"],
        &["--copies", "2"],
        &["--reclaim-to", "disk"],
        &["--strict"],
        &["--accelerators", "1"],
        &["--with", "nic"],
    ];

    #[test]
    fn each_option_is_recognised() {
        let none = args(&["--copies", "1", "--reclaim-to", "local", "--faults", "handler"]);
        assert_eq!(given(&none, Mode::Paged).count(), 0);
        for (words, it) in GIVING.into_iter().zip(&REQUIREMENTS[1..]) {
            assert!((it.is_given)(&args(words), Mode::Paged), "{words:?} gives {}", it.option);
            for mode in Mode::ALL {
                let refused = check_mode(&args(words), mode).map_err(|usage| usage.0);
                assert_eq!(refused.is_err(), option_outside(&args(words), mode).is_some());
                assert!(mode != Mode::Paged || refused.is_ok(), "{refused:?}");
            }
        }
    }

    #[test]
    fn refusals_name_what_would_do() {
        let said = check_mode(&args(&["--strict"]), Mode::Swap).unwrap_err().0;
        assert!(
            said.starts_with("--strict requires --mode paged or --mode window, not --mode swap")
        );
        let huge = args(&["--page-size", "2m"]);
        let said = check_port(&huge, Mode::Paged, PortKind::Udp).unwrap_err().0;
        assert!(said.contains("--port udp cannot: use --port shm"), "{said}");
        assert!(check_port(&args(&[]), Mode::Window, PortKind::Verbs).is_err());
        assert!(check_port(&huge, Mode::Window, PortKind::Shm).is_ok());
        let link = || Ok(Some(("node1".to_owned(), "latency=2us".to_owned())));
        let said = check_link(&args(&[]), Mode::Window, link).unwrap_err().to_string();
        assert!(said.contains("node1 emulates the link latency=2us"), "{said}");
        let unasked = || panic!("a run without such an option asks nobody");
        assert!(check_link(&args(&["--strict"]), Mode::Paged, unasked).is_ok());
    }

    /// The tables of the guide, as this release would print them.
    fn tables() -> String {
        let yes = |is: bool| if is { "yes" } else { "no" };
        let mut text = String::from("| | paged | window | swap | over |\n|---|---|---|---|---|\n");
        for it in &REQUIREMENTS[1..] {
            let cells = Mode::ALL.map(|mode| match it.refusal(mode) {
                None => "yes".to_owned(),
                Some(why) => format!("no: {why}"),
            });
            let over = match it.mapped {
                None => "any port",
                Some(_) => "ports that map memory",
            };
            text += &format!("| `{}` | {} | {over} |\n", it.option, cells.join(" | "));
        }
        text += "\n| port | maps memory | one-sided | encrypts | leaves the machine | most grants at a \
                 time | modes |\n|---|---|---|---|---|---|---|\n";
        for port in PortKind::ALL {
            let can = port.capabilities();
            let modes = Mode::ALL.into_iter().filter(|mode| mode.works_over(port));
            let modes: Vec<String> = modes.map(|mode| mode.to_string()).collect();
            let most = can.max_grants.map_or("no limit".to_owned(), |most| most.to_string());
            text += &format!(
                "| {port} | {} | {} | {} | {} | {most} | {} |\n",
                yes(can.mapped),
                yes(can.one_sided),
                yes(can.encrypts),
                yes(can.leaves_machine),
                modes.join(", ")
            );
        }
        text
    }

    #[test]
    fn guide_has_these_tables() {
        let guide = include_str!("../../../../docs/guide/modes.md");
        for table in tables().split("\n\n") {
            assert!(guide.contains(table.trim_end()), "docs/guide/modes.md lacks:\n{table}");
        }
    }
}
