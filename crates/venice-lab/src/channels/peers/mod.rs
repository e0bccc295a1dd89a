//! Third-party benchmarks, run unmodified: libfabric's, UCX's and iperf3.
//!
//! Both ends of each are child processes, pinned to the same two processors as Venice's ends, over
//! the same wire. A missing program is named in place of its figures. Their output is read by
//! parsers of their own (`parse_*`), which are tested on recorded output.

mod iperf;
mod libfabric;
mod pair;
mod ucx;

use serde::{Deserialize, Serialize};

pub(super) use iperf::{iperf3, iperf3_tcp};
pub(super) use libfabric::libfabric;
pub(super) use ucx::ucx;

use venice_measure::child::{find_program, run_tool};

/// A third-party program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its name.
    pub program: String,
    /// Version that it reports; `None` if it is not installed.
    pub version: Option<String>,
}

/// Each program's Debian package and version flag.
const PROGRAMS: [(&str, &str, &str, &str); 3] = [
    ("fi_pingpong", "libfabric-bin", "fi_info", "--version"),
    ("ucx_perftest", "ucx-utils", "ucx_info", "-v"),
    ("iperf3", "iperf3", "iperf3", "--version"),
];

/// Lists the peers and their versions.
pub(super) fn versions() -> Vec<Peer> {
    PROGRAMS
        .iter()
        .map(|(program, _, version_program, flag)| {
            let output = find_program(program).and_then(|_| run_tool(version_program, &[flag]));
            let version = output.ok().and_then(|text| first_version(&text));
            Peer { program: (*program).to_owned(), version }
        })
        .collect()
}

/// Finds the first word that is a version number.
fn first_version(text: &str) -> Option<String> {
    let is_version = |word: &&str| {
        word.contains('.') && word.chars().all(|letter| letter.is_ascii_digit() || letter == '.')
    };
    text.split_whitespace().find(is_version).map(str::to_owned)
}

/// Returns the note in place of a missing program's figures.
pub(super) fn not_installed(program: &str) -> Option<String> {
    let (_, package, ..) = PROGRAMS.iter().find(|row| row.0 == program)?;
    find_program(program).err().map(|_| format!("not installed: apt-get install {package}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_output() {
        let said = "# Version 1.13.1\n# Git branch '<unknown>', revision 0000000\n";
        assert_eq!(first_version(said).as_deref(), Some("1.13.1"));
        let said = "iperf 3.12 (cJSON 1.7.15)\nLinux vm 6.18.44 #1 SMP";
        assert_eq!(first_version(said).as_deref(), Some("3.12"));
        let said = "fi_info: 1.17.0\nlibfabric: 1.17.0\n";
        assert_eq!(first_version(said).as_deref(), Some("1.17.0"));
        assert_eq!(first_version("none here"), None);
    }
}
