//! Address of the Monitor Node: from the flag, the environment, or the local rack.

use venice_recipient::local_rack::{self, MONITOR_VARIABLE};

use super::record::{PortKind, Record};
use super::run_dir::RunDir;
use crate::host_port;
use venice_cli::failure::Usage;

/// Returns `flag`, else `VENICE_MONITOR`, else the Monitor Node of this machine's rack.
pub fn monitor_address(flag: Option<&str>) -> anyhow::Result<String> {
    match explicit_address(flag)? {
        Some(address) => Ok(address),
        None => Ok(local_rack::find_of_machine()?.access.monitor),
    }
}

/// Returns the port of this machine's rack; udp without one.
pub fn default_port() -> anyhow::Result<PortKind> {
    Ok(local_rack::port()?)
}

/// Returns `flag`, else `VENICE_MONITOR`.
pub fn explicit_address(flag: Option<&str>) -> anyhow::Result<Option<String>> {
    if let Some(flag) = flag {
        return Ok(Some(flag.to_string()));
    }
    let variable = std::env::var(MONITOR_VARIABLE).ok().filter(|text| !text.is_empty());
    let wrong = |text: &str, why| Usage(format!("{MONITOR_VARIABLE} is {text:?}: {why}"));
    variable
        .map(|text| host_port::check_list(&text).map_err(|why| wrong(&text, why).into()))
        .transpose()
}

/// True if the Monitor Node at `addr` belongs to the local rack of `venice up`.
pub fn is_of_this_rack(addr: &str) -> bool {
    let record = RunDir::locate().and_then(|dir| Record::load(&dir));
    record.is_ok_and(|record| record.is_some_and(|record| record.monitor.addr == addr))
}
