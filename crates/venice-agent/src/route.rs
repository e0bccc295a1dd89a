//! Address of this machine in the direction of the Monitor Node.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use crate::AgentError;

/// Returns the address by which this machine reaches the first of the Monitor Nodes that it has a
/// route to (`host:port`, several separated by commas). No packet is sent.
///
/// # Errors
/// [`AgentError::Config`]: there is none.
pub(crate) fn toward(monitors: &str) -> Result<IpAddr, AgentError> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for monitor in monitors.split(',') {
        match monitor.to_socket_addrs().and_then(|mut all| first_source(&mut all)) {
            Ok(address) => return Ok(address),
            Err(error) => last = error,
        }
    }
    Err(AgentError::Config(format!(
        "no address of this machine reaches the Monitor Node at {monitors} ({last}): check the address, \
         or set listen to this machine's own"
    )))
}

/// True if all Monitor Nodes are at loopback addresses. A name that is not known is not.
pub(crate) fn is_of_this_machine(monitors: &str) -> bool {
    monitors.split(',').all(|monitor| {
        monitor.to_socket_addrs().is_ok_and(|mut all| all.all(|it| it.ip().is_loopback()))
    })
}

fn first_source(targets: &mut dyn Iterator<Item = SocketAddr>) -> io::Result<IpAddr> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for target in targets {
        match source(target) {
            Ok(address) => return Ok(address),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Returns the address that the kernel sends from to a target (connect(2) of a datagram socket).
fn source(target: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(target)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_reaches_loopback() {
        assert!(toward("127.0.0.1:7470").unwrap().is_loopback());
        assert!(toward("no.such.host.invalid:1,127.0.0.1:7470").unwrap().is_loopback());
        assert!(is_of_this_machine("127.0.0.1:7470,[::1]:7470"));
    }

    #[test]
    fn other_machines_are_told_apart() {
        assert!(!is_of_this_machine("127.0.0.1:7470,192.0.2.1:7470"));
        assert!(!is_of_this_machine("no.such.host.invalid:1"));
        let refused = toward("no.such.host.invalid:1").unwrap_err().to_string();
        assert!(refused.contains("no.such.host.invalid:1") && refused.contains("listen"));
    }
}
