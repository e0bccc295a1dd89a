//! `venice doctor`: checks this machine, and says what is missing and how to fix it.

mod cuda;
mod devices;
mod facilities;
mod finding;
mod hotplug;
mod identity;
mod kernel;
mod libraries;
mod limits;
mod memory;
mod modes;
mod opencl;
mod ports;
mod processors;
mod service_hosts;
mod swap;

use std::io::IsTerminal;

use clap::Args;

use crate::mode::Mode;
pub use facilities::on_path;
pub use finding::{Finding, State};
pub use kernel::has_capability;
pub use memory::available_bytes;
use venice_cli::terminal::{self, Align};

/// `venice doctor`
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Print a list of objects: check, state (ok, warn, missing), needed_by (modes of `venice
    /// run`), detail, remedy
    #[arg(long)]
    pub json: bool,
}

/// Checks the machine and prints the report. Returns 1 if no mode of `venice run` can work, else 0.
pub fn execute(args: &DoctorArgs) -> anyhow::Result<i32> {
    venice_recipient::local_rack::use_helper();
    let findings = examine();
    if args.json {
        terminal::say_json(&findings)?;
    } else {
        terminal::say(report(&findings, std::io::stdout().is_terminal()))?;
    }
    Ok(verdict(&findings))
}

fn examine() -> Vec<Finding> {
    let mut findings = kernel::examine();
    findings.extend(libraries::examine());
    findings.extend(memory::examine());
    findings.extend(limits::examine());
    findings.extend(processors::examine());
    findings.extend(ports::examine());
    findings.extend(swap::examine());
    findings.extend(identity::examine());
    findings.extend(facilities::examine());
    findings.extend(hotplug::examine());
    findings.extend(devices::examine());
    findings.extend(opencl::examine());
    findings.extend(cuda::examine());
    findings.extend(service_hosts::examine());
    // The verdicts on the modes come first.
    let mut rows = modes::verdicts(&findings);
    rows.extend(findings);
    rows
}

fn verdict(findings: &[Finding]) -> i32 {
    if modes::working(findings).is_empty() { venice_cli::failure::EXIT_FAILURE } else { 0 }
}

fn report(findings: &[Finding], colour: bool) -> String {
    let rows = findings
        .iter()
        .map(|f| vec![f.state.word().to_string(), f.check.to_string(), f.detail.clone()])
        .collect();
    let columns = [("state", Align::Left), ("check", Align::Left), ("detail", Align::Left)];
    let mut text = terminal::table(&columns, rows);
    if colour {
        text = paint(&text, findings);
    }
    let broken: Vec<_> = findings.iter().filter(|f| !f.remedy.is_empty()).collect();
    if !broken.is_empty() {
        text.push_str("\n\nRemedies:");
    }
    for finding in broken {
        text.push_str(&format!("\n  {}: {}", finding.check, finding.remedy));
    }
    text.push_str("\n\n");
    text.push_str(&modes::closing(&modes::working(findings)));
    text
}

/// Colours the first word of every row. Runs last, because a table would count the escape codes as
/// width.
fn paint(table: &str, findings: &[Finding]) -> String {
    let mut lines: Vec<String> = table.lines().map(str::to_string).collect();
    for (line, finding) in lines.iter_mut().skip(1).zip(findings) {
        let word = finding.state.word();
        if let Some(rest) = line.strip_prefix(word) {
            *line = format!("\x1b[{}m{word}\x1b[0m{rest}", finding.state.colour_code());
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fails_when_no_mode_works() {
        let fine = Finding::ok("a", "there");
        let odd = Finding::warn("b", "small", "make it larger").needed_by(&Mode::ALL);
        let gone = Finding::missing("c", "gone", "get it");
        let of_two = gone.clone().needed_by(&[Mode::Paged, Mode::Window]);
        let of_swap = gone.clone().needed_by(&[Mode::Swap]);
        assert_eq!(verdict(&[fine, odd, gone]), 0);
        assert_eq!(verdict(std::slice::from_ref(&of_two)), 0);
        assert_eq!(verdict(&[of_two, of_swap]), 1);
    }

    #[test]
    fn this_machine_is_examined() {
        let findings = examine();
        for what in [
            "--mode paged",
            "--mode window",
            "--mode swap",
            "kernel",
            "userfaultfd",
            "write protection",
            "shared memory",
            "swapping",
            "memory cgroup",
            "overcommit",
            "huge pages",
            "processor shares",
            "UDP offload",
            "socket buffers",
            "encryption",
            "identity",
            "clock",
            "RDMA",
            "memory blocks",
            "dax/kmem",
            "DAX devices",
            "CXL",
            "devices to lend",
            "OpenCL",
            "OpenCL client driver",
            "CUDA client driver",
            "CUDA",
            "service hosts",
        ] {
            assert!(findings.iter().any(|f| f.check == what), "no row about {what}");
        }
        for finding in &findings {
            let hurt = finding.state != State::Ok;
            assert_eq!(
                hurt,
                !finding.remedy.is_empty(),
                "a remedy exactly where needed: {finding:?}"
            );
        }
    }

    #[test]
    fn report_lists_remedies() {
        let text = report(&[Finding::warn("b", "small", "make it larger")], false);
        assert!(text.contains("b: make it larger"), "{text}");
    }
}
