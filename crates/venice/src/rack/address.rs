//! Where the Monitor Node is: the flag, the environment, or the rack of this machine.

use venice_recipient::local_rack::MONITOR_VARIABLE;

use super::record::{PortKind, Record};
use super::run_dir::RunDir;

/// `flag`, else `VENICE_MONITOR`, else the local rack's.
pub fn monitor_address(flag: Option<&str>) -> anyhow::Result<String> {
    if let Some(address) = explicit_address(flag) {
        return Ok(address);
    }
    let dir = RunDir::locate()?;
    match Record::load(&dir)? {
        Some(record) => Ok(record.monitor.addr),
        None => anyhow::bail!(
            "no Monitor Node is known: start a rack with `venice up`, or name one with --monitor \
             ADDR or {MONITOR_VARIABLE} (looked for a rack in {})",
            dir.path().display()
        ),
    }
}

/// How recipients reach the donors of this machine's rack; without one, as if they were others.
pub fn default_port() -> anyhow::Result<PortKind> {
    Ok(Record::load(&RunDir::locate()?)?.map_or(PortKind::Udp, |record| record.port))
}

/// `flag`, else `VENICE_MONITOR`.
pub fn explicit_address(flag: Option<&str>) -> Option<String> {
    let variable = || std::env::var(MONITOR_VARIABLE).ok().filter(|text| !text.is_empty());
    flag.map(str::to_string).or_else(variable)
}
