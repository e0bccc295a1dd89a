//! The choice of all devices of a request together, and the error if they are too few.

use super::super::MonitorCore;
use super::super::handshake::Chosen;
use super::super::pending::CheckedRequest;
use super::super::queue::Place;
use super::{DeviceSearch, MAX_REASONS, Stock, Tried, clipped};
use crate::types::RackError;
use crate::want::Want;

/// The indexes of wants that compete for too few devices.
#[derive(Debug)]
pub(in super::super) struct Shortage(Vec<usize>);

impl MonitorCore {
    /// Chooses devices for wants: pairs of an index and the number of devices.
    ///
    /// # Errors
    /// [`Shortage`]: there are too few for all of them together.
    pub(in super::super) fn choose_devices(
        &self,
        search: &DeviceSearch<'_>,
        wants: impl IntoIterator<Item = (usize, u32)>,
    ) -> Result<Vec<Chosen>, Shortage> {
        let mut chosen = Vec::new();
        for (index, count) in wants {
            for _ in 0..count {
                chosen = self.choose_one_more(search, index, chosen)?;
            }
        }
        // Grants are numbered in the order of the wants.
        chosen.sort_by_key(|chosen| chosen.want);
        Ok(chosen)
    }

    /// Chooses all devices of a request.
    ///
    /// # Errors
    /// [`Shortage`]: there are too few for all wants together.
    pub(in super::super) fn choose_all_devices(
        &self,
        search: &DeviceSearch<'_>,
    ) -> Result<Vec<Chosen>, Shortage> {
        let wants = search.checked.request.devices();
        self.choose_devices(search, wants.map(|(index, want)| (index, want.count)))
    }

    /// Chooses one more device for a want. Where only devices chosen for other wants suit, those
    /// take other ones: the shortest augmenting path of a bipartite matching (Kuhn 1955), by wants,
    /// since the pieces of a want may be exchanged. This finds a choice, if there is one, of
    /// devices that are lent whole and for pieces of one size; pieces of several sizes may be
    /// refused although they could be packed.
    fn choose_one_more(
        &self,
        search: &DeviceSearch<'_>,
        index: usize,
        chosen: Vec<Chosen>,
    ) -> Result<Vec<Chosen>, Shortage> {
        // Each want reached lacks one device in its choice.
        let mut reached = vec![(index, chosen)];
        let mut at = 0;
        while let Some((index, chosen)) = reached.get(at).cloned() {
            let want = &search.checked.request.wants[index];
            if let Some((donor, spec)) = self.choose_device(search, want, &chosen) {
                let share = spec.share(want.bytes.0);
                let piece = Chosen { want: index, donor: donor.node, share };
                return Ok([chosen, vec![piece]].concat());
            }
            for (position, other) in chosen.iter().enumerate() {
                if reached.iter().any(|(index, _)| *index == other.want) {
                    continue;
                }
                let mut rest = chosen.clone();
                rest.remove(position);
                if let Some(piece) = self.piece_instead(search, index, other, &rest) {
                    rest.push(piece);
                    reached.push((other.want, rest));
                }
            }
            at += 1;
        }
        let mut wants: Vec<usize> = reached.into_iter().map(|(index, _)| index).collect();
        wants.sort_unstable();
        Err(Shortage(wants))
    }

    /// Returns the piece of the device of `other` that a want may have instead of it.
    fn piece_instead(
        &self,
        search: &DeviceSearch<'_>,
        index: usize,
        other: &Chosen,
        rest: &[Chosen],
    ) -> Option<Chosen> {
        let want = &search.checked.request.wants[index];
        let device = other.share.device()?;
        let mut devices = self.devices_of_kind(want.kind);
        let (node, entry, spec) =
            devices.find(|(node, _, spec)| *node == other.donor && spec.is_device(device))?;
        let suits = self.suits(search, want, rest, (node, entry, spec));
        suits.then(|| Chosen { want: index, donor: node, share: spec.share(want.bytes.0) })
    }

    /// Checks that the devices of a request could ever be granted: what is lent may be returned, a
    /// faulty device repaired.
    pub(in super::super) fn check_devices_ever(
        &self,
        checked: &CheckedRequest,
        place: Place,
    ) -> Result<(), RackError> {
        let tried = Tried::default();
        let search = DeviceSearch {
            checked,
            place,
            tried: &tried,
            slabs: 0,
            stock: Stock::Whole,
            kept: None,
        };
        let shortage = self.choose_all_devices(&search).err();
        shortage.map_or(Ok(()), |shortage| {
            let why = self.why_no_device(&DeviceSearch { stock: Stock::Free, ..search }, &shortage);
            Err(RackError::NoDevice(format!(
                "{why}; waiting does not help: too few when all are free; ask for less, or lend more"
            )))
        })
    }

    /// Returns the error for a request that does not wait, with the remedy.
    pub(in super::super) fn no_device(
        &self,
        search: &DeviceSearch<'_>,
        shortage: &Shortage,
    ) -> RackError {
        self.check_devices_ever(search.checked, search.place).err().unwrap_or_else(|| {
            let why = self.why_no_device(search, shortage);
            RackError::NoDevice(format!("{why}; ask for less, lend more, or wait for it (--wait)"))
        })
    }

    /// Explains in words why there are too few devices.
    pub(in super::super) fn why_no_device(
        &self,
        search: &DeviceSearch<'_>,
        Shortage(short): &Shortage,
    ) -> String {
        let wants = summed(short.iter().map(|index| &search.checked.request.wants[*index]));
        let named = search.checked.named.is_some();
        let mut reasons = Vec::new();
        let devices = self.devices_of_kind(wants[0].kind);
        let devices = devices.filter(|(node, _, _)| search.checked.may_use(*node));
        let mut unlisted = 0;
        for (node, entry, spec) in devices {
            if reasons.len() == MAX_REASONS {
                unlisted += 1;
                continue;
            }
            let against = |want| self.why_not(search, want, &[], (node, entry, spec));
            let against: Option<Vec<String>> = wants.iter().map(against).collect();
            let why = match against {
                Some(against) => against.into_iter().next().unwrap_or_default(),
                None => "would do, and one is not enough".to_owned(),
            };
            reasons.push(clipped(format!("{} {}: {why}", entry.record.name, spec.address)));
        }
        let wanted: Vec<String> = wants.iter().map(Want::described).collect();
        let wanted = clipped(wanted.join(" and "));
        if reasons.is_empty() {
            let kind = wants[0].kind;
            let nobody = if named { "none of the nodes named" } else { "no node" };
            return format!(
                "no {wanted}: {nobody} offers any (`venice agent --offer {kind}:...` does; `venice \
                 resources` lists what is offered)"
            );
        }
        if unlisted > 0 {
            reasons.push(format!("and {unlisted} more, which `venice resources` lists"));
        }
        let reasons = reasons.join("; ");
        format!("no {wanted} available ({reasons})")
    }
}

/// Adds the counts of wants that are equal apart from these.
fn summed<'a>(wants: impl Iterator<Item = &'a Want>) -> Vec<Want> {
    let mut sums: Vec<Want> = Vec::new();
    for want in wants {
        match sums.iter_mut().find(|sum| Want { count: sum.count, ..want.clone() } == **sum) {
            Some(sum) => sum.count = sum.count.saturating_add(want.count),
            None => sums.push(want.clone()),
        }
    }
    sums
}
