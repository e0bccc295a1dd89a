//! Checks of link bandwidth against the records, whichever Monitor Node has made them.

use super::World;
use std::collections::BTreeMap;
use venice_rack::monitor::Record;
use venice_rack::rat::GrantState;

/// Bandwidth of a donor's link that was not measured, in bits a second.
const LINK_BPS: u64 = 10_000_000_000;
/// Bandwidth need of a slab: six are too many for a link.
const SLAB_BPS: u64 = 2_000_000_000;

impl World {
    /// Makes all requests state a bandwidth need, so that links are full before donors are.
    pub fn promising_bandwidth(mut self) -> Self {
        self.slab_bps = SLAB_BPS;
        self
    }

    /// Checks that no link is promised more than it carries.
    pub(super) fn check_bandwidth(&self) {
        let mut promised_bps: BTreeMap<_, u64> = BTreeMap::new();
        for record in self.etcd.records() {
            let Record::Grant(grant) = record else { continue };
            if grant.state != GrantState::Releasing {
                *promised_bps.entry(grant.donor).or_default() += grant.bandwidth_bps;
            }
        }
        for (donor, bps) in promised_bps {
            assert!(bps <= LINK_BPS, "{bps} b/s were promised over the link of {donor:?}");
        }
    }
}
