//! What the program's user is told when a page is lost with its donor.

use super::run_block::RunBlockMap;
use super::sys;

/// Says on standard error which node died and which page went with it; the access that asked
/// for the page gets `SIGBUS`.
pub fn announce(block: &RunBlockMap, donor: usize, address: usize) {
    let node = block.donors()[donor].name();
    let pid = sys::getpid();
    let text = format!(
        "venice: node {node} died and held the only copy of the page at {address:#x} \
         (process {pid}): SIGBUS\n"
    );
    let _ = sys::write(2, text.as_bytes());
}
