//! The interface: its name, and its properties in the kernel.

use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;

use rustix::ioctl::{Opcode, Updater, ioctl};
use rustix::net::netdevice::name_to_index;

use super::{XdpError, XdpMode};

/// Constants of <linux/sockios.h>.
const SIOCGIFADDR: Opcode = 0x8915;
const SIOCGIFMTU: Opcode = 0x8921;
/// Length of a name, with the zero behind it: `IFNAMSIZ`.
const NAME_BYTES: usize = 16;

/// An interface, and the mode of the program there: `eth0`, `eth0:native`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpInterface {
    /// Name as in `ip link`.
    pub name: String,
    /// Mode of the program: in the driver or after it.
    pub mode: XdpMode,
}

impl FromStr for XdpInterface {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, mode) = match text.split_once(':') {
            None => (text, XdpMode::Generic),
            Some((name, "generic")) => (name, XdpMode::Generic),
            Some((name, "native")) => (name, XdpMode::Native),
            Some((_, mode)) => {
                return Err(format!("invalid mode {mode:?}: expected generic or native"));
            }
        };
        if name.is_empty() || name.len() >= NAME_BYTES || name.contains(['/', '\0', ' ']) {
            return Err(format!("invalid interface name {name:?}: expected a name such as eth0"));
        }
        Ok(Self { name: name.to_owned(), mode })
    }
}

impl Display for XdpInterface {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.mode)
    }
}

impl Display for XdpMode {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Generic => "generic",
            Self::Native => "native",
        })
    }
}

/// Properties of an interface.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) index: u32,
    /// MTU of its packets in bytes, IP header included.
    pub(super) mtu_bytes: usize,
    /// Destination of datagrams for the socket.
    pub(super) to: SocketAddrV4,
}

impl Facts {
    /// Queries the properties through a socket of the same network namespace, which is bound to
    /// `local`.
    pub(super) fn ask(
        interface: &XdpInterface,
        socket: BorrowedFd<'_>,
        local: SocketAddr,
    ) -> Result<Self, XdpError> {
        let name = interface.name.as_str();
        let ip = match local.ip() {
            IpAddr::V4(ip) => ip,
            IpAddr::V6(ip) => return Err(XdpError::Version6 { ip }),
        };
        let index = name_to_index(socket.as_fd(), name)
            .map_err(|_| XdpError::NoInterface { name: name.to_owned() })?;
        let asking = XdpError::at(interface, "querying its address and MTU");
        let mtu = query::<SIOCGIFMTU>(socket, name).map_err(&asking)?;
        let mtu_bytes = u32::from_ne_bytes(*mtu.first_chunk().expect("four bytes")) as usize;
        // The address follows family and port, as in a `sockaddr_in`.
        let first = query::<SIOCGIFADDR>(socket, name)
            .map(|found| Ipv4Addr::from(*found[4..].first_chunk().expect("four bytes")))
            .map_err(|_| XdpError::NoAddress { name: name.to_owned() })?;
        if ip != first && !ip.is_unspecified() {
            return Err(XdpError::OtherAddress { name: name.to_owned(), ip, first });
        }
        Ok(Self { index, mtu_bytes, to: SocketAddrV4::new(first, local.port()) })
    }
}

/// Part of a `struct ifreq` behind the name.
type Answer = [u8; 24];

fn query<const WHAT: Opcode>(socket: BorrowedFd<'_>, name: &str) -> rustix::io::Result<Answer> {
    let mut request = [0u8; NAME_BYTES + size_of::<Answer>()];
    request[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: these read and write a `struct ifreq`, which has this length on 64-bit machines.
    unsafe { ioctl(socket, Updater::<WHAT, _>::new(&mut request)) }?;
    Ok(*request.last_chunk().expect("it has one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_interface_with_optional_mode() {
        let read = |text: &str| text.parse::<XdpInterface>();
        assert_eq!(read("eth0").unwrap().to_string(), "eth0:generic");
        assert_eq!(read("eth0:native").unwrap().to_string(), "eth0:native");
        assert!(read("eth0:fast").unwrap_err().contains("native"));
        for nonsense in ["", ":native", "a-name-too-long-for-it", "a/b"] {
            assert!(read(nonsense).unwrap_err().contains("eth0"), "{nonsense:?}");
        }
    }
}
