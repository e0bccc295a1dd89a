//! The machine a figure was measured on.

use std::fs;

use serde::{Deserialize, Serialize};

/// Description of the machine, for comparison with figures of others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Model name of the first processor.
    pub cpu: String,
    /// Processors this process may use.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// Total memory in bytes.
    pub memory_bytes: u64,
    /// True if the processor reports a hypervisor.
    pub virtual_machine: bool,
}

impl Machine {
    /// Describes this machine; an unreadable part is `unknown` or 0.
    pub fn describe() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            memory_bytes: memory_bytes(&meminfo),
            virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        }
    }

    /// Returns the description in one line.
    pub fn line(&self) -> String {
        format!(
            "{}, {} cores, {:.1} GiB, Linux {}{}",
            self.cpu,
            self.cores,
            self.memory_bytes as f64 / (1u64 << 30) as f64,
            self.kernel,
            if self.virtual_machine { ", virtual machine" } else { "" },
        )
    }
}

/// Returns the load average of the last minute; 0 if the kernel does not report it.
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

fn memory_bytes(meminfo: &str) -> u64 {
    field(meminfo, "MemTotal")
        .and_then(|text| text.strip_suffix(" kB")?.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2GHz\nflags\t\t: fpu hypervisor\n";
        assert_eq!(field(cpuinfo, "model name"), Some("Some CPU @ 2GHz"));
        assert_eq!(memory_bytes("MemTotal:       24612345 kB\nMemFree: 1 kB\n"), 24612345 * 1024);
        assert_eq!(memory_bytes(""), 0);
    }
}
