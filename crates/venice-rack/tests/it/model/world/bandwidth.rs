//! What links carry, checked against what is recorded, whichever Monitor Node has recorded it.

use super::World;
use std::collections::BTreeMap;
use venice_rack::monitor::Record;
use venice_rack::rat::GrantState;

/// What a donor's link carries that nobody has measured, in bits a second.
const LINK_BPS: u64 = 10_000_000_000;
/// Five slabs of this and one more are too many for it.
const SLAB_BPS: u64 = 2_000_000_000;

impl World {
    /// From now on everybody says that it has to be carried, so that links are full before donors are.
    pub fn promising_bandwidth(mut self) -> Self {
        self.slab_bps = SLAB_BPS;
        self
    }

    /// No link is ever promised more than it carries.
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
