//! What the program's user is told when a page is lost with its donor.

use super::run_block::RunBlockMap;
use super::sys;

/// Says on standard error which node died and which page went with it; the access that asked
/// for the page gets `SIGBUS`.
pub fn announce(block: &RunBlockMap, donor: usize, address: usize) {
    let region = region_of(address);
    let node = block.donors()[donor].name();
    let pid = sys::getpid();
    let text = format!(
        "venice: node {node} died with the only copy of a page of this program: region \
         {region}, address {address:#x}, process {pid}: SIGBUS\n"
    );
    let _ = sys::write(2, text.as_bytes());
}

/// The mapping around `address`, `start-end [name]`, from `/proc/self/maps`.
fn region_of(address: usize) -> String {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return "?".into() };
    let holds = |line: &&str| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let Some((start, end)) = range else { return false };
        let number = |text| usize::from_str_radix(text, 16).unwrap_or(0);
        (number(start)..number(end)).contains(&address)
    };
    let Some(line) = maps.lines().find(holds) else { return "?".into() };
    let mut words = line.split_whitespace();
    let range = words.next().unwrap_or("?");
    words.nth(4).map_or_else(|| range.to_string(), |name| format!("{range} {name}"))
}
