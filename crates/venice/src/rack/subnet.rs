//! Network of a rack with network namespaces: an unused `10.x.y.0/24`.

use std::fs;
use std::net::Ipv4Addr;
use std::str::FromStr;

use anyhow::bail;
use serde::{Deserialize, Serialize};

/// `10.x.y.0/24`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subnet {
    second: u8,
    third: u8,
}

/// Start of the search: far from the popular 10.0 and 10.1.
const FIRST: (u8, u8) = (74, 70);

impl Subnet {
    /// Returns the first network that no route of this machine overlaps.
    pub fn free() -> anyhow::Result<Subnet> {
        let table = fs::read_to_string("/proc/net/route").unwrap_or_default();
        let routes = parse_routes(&table);
        let start = u16::from_be_bytes([FIRST.0, FIRST.1]);
        for step in 0..=u16::MAX {
            let [second, third] = start.wrapping_add(step).to_be_bytes();
            let candidate = Subnet { second, third };
            if !routes.iter().any(|route| route.overlaps(candidate)) {
                return Ok(candidate);
            }
        }
        bail!("no free network 10.x.y.0/24 on this machine: all are routed")
    }

    /// Address of the bridge, where the Monitor Node listens.
    pub fn bridge_address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.second, self.third, 1)
    }

    /// Address of the node with this index (0 is node1).
    pub fn node_address(self, index: usize) -> Ipv4Addr {
        let host = u8::try_from(index + 2).expect("`venice up` allows no more nodes than fit");
        Ipv4Addr::new(10, self.second, self.third, host)
    }

    fn base(self) -> u32 {
        u32::from(Ipv4Addr::new(10, self.second, self.third, 0))
    }
}

impl From<Subnet> for String {
    fn from(subnet: Subnet) -> String {
        format!("10.{}.{}.0/24", subnet.second, subnet.third)
    }
}

impl TryFrom<String> for Subnet {
    type Error = String;

    fn try_from(text: String) -> Result<Subnet, String> {
        text.parse()
    }
}

impl FromStr for Subnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Subnet, String> {
        let address = text.strip_suffix("/24").and_then(|a| a.parse::<Ipv4Addr>().ok());
        match address.map(|a| a.octets()) {
            Some([10, second, third, 0]) => Ok(Subnet { second, third }),
            _ => Err(format!("{text} is not a network of the form 10.x.y.0/24")),
        }
    }
}

#[derive(Debug, PartialEq)]
struct Route {
    base: u32,
    mask: u32,
}

impl Route {
    fn overlaps(&self, subnet: Subnet) -> bool {
        const MASK: u32 = 0xffff_ff00;
        let common = self.mask & MASK;
        self.base & common == subnet.base() & common
    }
}

/// Returns the routes of `/proc/net/route` except the default one. Addresses are in network byte
/// order, printed as a native number.
fn parse_routes(table: &str) -> Vec<Route> {
    let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::from_be);
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let route = Route { base: number(fields.get(1)?)?, mask: number(fields.get(7)?)? };
            (route.mask != 0).then_some(route)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
        eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0\n\
        eth0 00464A0A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";

    #[test]
    #[cfg(target_endian = "little")]
    fn routed_network_is_taken() {
        let routes = parse_routes(TABLE);
        assert_eq!(routes.len(), 1, "the default route blocks nothing");
        assert!(routes[0].overlaps("10.74.70.0/24".parse().unwrap()));
        assert!(!routes[0].overlaps("10.74.71.0/24".parse().unwrap()));
        let wide = Route { base: u32::from(Ipv4Addr::new(10, 0, 0, 0)), mask: 0xff00_0000 };
        assert!(wide.overlaps("10.74.71.0/24".parse().unwrap()));
    }

    #[test]
    fn subnet_text_roundtrips() {
        let subnet: Subnet = "10.74.70.0/24".parse().unwrap();
        assert_eq!(subnet.bridge_address(), Ipv4Addr::new(10, 74, 70, 1));
        assert_eq!(subnet.node_address(0), Ipv4Addr::new(10, 74, 70, 2));
        assert_eq!(String::from(subnet), "10.74.70.0/24");
        assert!("192.168.1.0/24".parse::<Subnet>().is_err());
        assert!("10.1.1.1/24".parse::<Subnet>().is_err());
    }
}
