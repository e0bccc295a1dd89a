//! Addresses on the command line.

use std::net::IpAddr;

/// Checks `HOST:PORT` while arguments are read, so that a mistyped address is a usage error.
pub fn check(text: &str) -> Result<String, String> {
    check_with_example(text, "127.0.0.1:7470")
}

/// Checks the `HOST:PORT` of metrics.
pub fn check_metrics(text: &str) -> Result<String, String> {
    check_with_example(text, "127.0.0.1:9470")
}

fn check_with_example(text: &str, example: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains(','));
    match port.map(|(_, port)| port.parse::<u16>()) {
        Some(Ok(_)) => Ok(text.to_string()),
        _ => Err(format!("write HOST:PORT, for example {example}")),
    }
}

/// Checks an address that other machines use: refuses wildcards and port 0.
pub fn check_reachable(text: &str) -> Result<String, String> {
    let text = check(text)?;
    let (host, port) = text.rsplit_once(':').unwrap_or_default();
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    if ip.is_ok_and(|ip| ip.is_unspecified()) {
        return Err(format!(
            "{host} is not reachable from other machines: use one of this machine's addresses, for \
             example 10.0.0.1:{port}"
        ));
    }
    match port.parse() {
        Ok(0_u16) => Err("port 0 is not reachable: use the Monitor Node's port".to_string()),
        _ => Ok(text),
    }
}

/// Checks one or several addresses separated by commas.
pub fn check_list(text: &str) -> Result<String, String> {
    match text.split(',').try_for_each(|one| check(one).map(drop)) {
        Ok(()) => Ok(text.to_string()),
        Err(_) => {
            Err("write HOST:PORT, or several with commas between: 10.0.0.1:7470,10.0.0.2:7470"
                .to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_address_is_refused() {
        for wrong in ["0.0.0.0:7470", "[::]:7470", "10.0.0.1:0", "host"] {
            assert!(check_reachable(wrong).is_err(), "{wrong}");
        }
        for right in ["10.0.0.1:7470", "[fd00::1]:7470", "host1:1", "127.0.0.1:7470"] {
            assert_eq!(check_reachable(right).as_deref(), Ok(right));
        }
    }

    #[test]
    fn addresses_are_checked() {
        assert!(check("127.0.0.1:7470").is_ok());
        assert!(check("[::1]:7470").is_ok());
        for wrong in ["localhost", ":7470", "host:port", "host:99999"] {
            assert!(check(wrong).is_err(), "{wrong}");
            assert!(check_list(&format!("a:1,{wrong}")).is_err(), "{wrong}");
        }
        assert!(check_list("a:1,[::1]:2").is_ok() && check_list("a:1").is_ok());
        assert!(check_list("a:1,").is_err() && check("a:1,b:2").is_err());
    }
}
