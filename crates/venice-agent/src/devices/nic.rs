//! Network cards.

use venice_control::ResourceSpec;

use super::class::{Candidate, DeviceClass};
use super::host::Host;
use super::identity::Identity;
use super::offer::Offer;

const CARDS: &str = "/sys/class/net";

/// The class.
pub(super) struct Class;

impl DeviceClass for Class {
    fn form(&self) -> &'static str {
        "NAME"
    }

    fn check_text(&self, offer: &Offer) -> Result<(), String> {
        match offer {
            Offer { address, .. } if address.contains('/') => {
                Err("a network card is named without a path, for example eth1".to_owned())
            }
            Offer { bytes: Some(_), .. } => Err("a network card has no size".to_owned()),
            Offer { .. } => Ok(()),
        }
    }

    fn probe(&self, host: &Host, offer: &Offer) -> Result<(u64, Vec<String>), String> {
        let name = &offer.address;
        if !exists(host, name) {
            let why = "cannot be lent: this machine has no network interface of that name";
            return Err(why.to_owned());
        }
        if name == "lo" {
            return Err("cannot be lent: it is the loopback interface".to_owned());
        }
        Ok((0, capabilities(host, name)))
    }

    fn list(&self, host: &Host) -> Vec<Candidate> {
        let cards = names(host).into_iter();
        cards.map(|address| Candidate { is_in_use: is_up(host, &address), address }).collect()
    }

    fn is_there(&self, host: &Host, spec: &ResourceSpec) -> bool {
        exists(host, &spec.address)
    }

    fn identity(&self, host: &Host, address: &str) -> Identity {
        Identity::of_card(host, address, below(host, address))
    }
}

/// Returns driver and speed.
fn capabilities(host: &Host, name: &str) -> Vec<String> {
    let mut capabilities = Vec::new();
    match host.link_name(format!("{CARDS}/{name}/device/driver")) {
        Some(driver) => capabilities.push(driver),
        None if !has_device(host, name) => capabilities.push("virtual".to_owned()),
        None => {}
    }
    if !host.names(format!("{CARDS}/{name}/device/infiniband")).is_empty() {
        capabilities.push("rdma".to_owned());
    }
    capabilities.extend(speed(host, name));
    capabilities
}

fn exists(host: &Host, name: &str) -> bool {
    host.path(format!("{CARDS}/{name}")).is_dir()
}

/// Returns the interfaces with a device.
fn names(host: &Host) -> Vec<String> {
    host.names(CARDS).into_iter().filter(|name| has_device(host, name)).collect()
}

/// Returns the interfaces below this one, directly or not: a VLAN's card.
fn below(host: &Host, name: &str) -> Vec<String> {
    let lowers = |name: &str| {
        let names = host.names(format!("{CARDS}/{name}")).into_iter();
        names.filter_map(|it| it.strip_prefix("lower_").map(str::to_owned)).collect::<Vec<_>>()
    };
    let mut all = lowers(name);
    let mut at = 0;
    while let Some(below) = all.get(at) {
        let news: Vec<String> = lowers(below).into_iter().filter(|it| !all.contains(it)).collect();
        all.extend(news);
        at += 1;
    }
    all
}

/// True if the interface is up.
fn is_up(host: &Host, name: &str) -> bool {
    host.text(format!("{CARDS}/{name}/operstate")).is_some_and(|state| state == "up")
}

fn has_device(host: &Host, name: &str) -> bool {
    host.path(format!("{CARDS}/{name}/device")).exists()
}

/// Returns `25Gbps`, `100Mbps`; `None` if the card reports no speed, for example without a link.
fn speed(host: &Host, name: &str) -> Option<String> {
    let mbps: i64 = host.text(format!("{CARDS}/{name}/speed"))?.parse().ok()?;
    match mbps {
        ..=0 => None,
        mbps if mbps % 1000 == 0 => Some(format!("{}Gbps", mbps / 1000)),
        mbps => Some(format!("{mbps}Mbps")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn card_capabilities_are_speed_and_driver() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::in_folder(
            dir.path(),
            &[
                ("/sys/class/net/eth1/speed", "25000\n"),
                ("/sys/class/net/eth1/device/infiniband/mlx5_0", ""),
                ("/sys/class/net/eth1/operstate", "up\n"),
                ("/sys/class/net/veth3/speed", "-1\n"),
                ("/sys/class/net/lo/speed", ""),
            ],
        );
        std::os::unix::fs::symlink(
            "../../drivers/mlx5_core",
            dir.path().join("sys/class/net/eth1/device/driver"),
        )
        .unwrap();
        let of = |name: &str| Class.probe(&host, &format!("nic:{name}").parse().unwrap());
        assert_eq!(of("eth1").unwrap().1, ["mlx5_core", "rdma", "25Gbps"]);
        assert_eq!(of("veth3").unwrap().1, ["virtual"]);
        assert!(of("lo").unwrap_err().contains("loopback"));
        assert!(of("eth9").unwrap_err().contains("no network interface"));
        assert_eq!(names(&host), ["eth1"]);
        assert!(is_up(&host, "eth1") && !is_up(&host, "veth3"));
    }
}
