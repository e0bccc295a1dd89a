//! Devices that the nodes of a local rack lend.

use std::str::FromStr;

use venice_agent::{BadOffer, Offer, offered_twice};

use super::up::UpArgs;
use venice_cli::failure::Usage;

/// A device of this machine and the node that lends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeOffer {
    node: Option<String>,
    offer: Offer,
}

impl FromStr for NodeOffer {
    type Err = BadOffer;

    fn from_str(text: &str) -> Result<Self, BadOffer> {
        // The kind precedes the first colon and contains no slash.
        let kind = text.split(':').next().unwrap_or_default();
        match kind.split_once('/') {
            Some((node, _)) => {
                let offer = text[node.len() + 1..].parse()?;
                Ok(Self { node: Some(node.to_owned()), offer })
            }
            None => Ok(Self { node: None, offer: text.parse()? }),
        }
    }
}

impl NodeOffer {
    /// Returns the node that lends it: the first one where none is named.
    fn node(&self) -> &str {
        self.node.as_deref().unwrap_or("node1")
    }
}

/// Returns the devices that a node lends.
pub fn offers_of(args: &UpArgs, node: &str) -> Vec<String> {
    let its = args.offer.iter().filter(|it| it.node() == node);
    its.map(|it| it.offer.to_string()).collect()
}

/// Checks that every device belongs to one node, under any name, unless it is the processors, and
/// that the node exists.
pub fn check_offers(args: &UpArgs, nodes: u32) -> anyhow::Result<()> {
    let is_node = |name: &str| (1..=nodes).any(|number| name == format!("node{number}"));
    for NodeOffer { node, offer } in &args.offer {
        if let Some(node) = node.as_deref().filter(|node| !is_node(node)) {
            let said = format!("--offer {node}/{offer}: there are node1 to node{nodes}");
            return Err(Usage(said).into());
        }
    }
    for NodeOffer { offer, .. } in &args.offer {
        offer.check().map_err(|why| Usage(format!("--offer {offer} {why}")))?;
    }
    let offers: Vec<(&str, Offer)> =
        args.offer.iter().map(|it| (it.node(), it.offer.clone())).collect();
    match offered_twice(&offers) {
        Some((offer, why)) => Err(Usage(format!("--offer {offer} {why}")).into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offer_may_name_node() {
        let read = |text: &str| {
            let NodeOffer { node, offer } = text.parse().unwrap();
            (node, offer.to_string())
        };
        assert_eq!(read("nic:eth1"), (None, "nic:eth1".into()));
        assert_eq!(
            read("node2/storage:/srv/pool=1GiB"),
            (Some("node2".into()), "storage:/srv/pool=1GiB".into())
        );
        assert!("node2/pool:/srv".parse::<NodeOffer>().is_err());
    }
}
