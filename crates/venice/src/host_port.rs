//! Addresses as arguments.

/// `HOST:PORT`, checked while arguments are read, so that a slip of the pen is a usage error.
pub fn check(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    match port.map(|(_, port)| port.parse::<u16>()) {
        Some(Ok(_)) => Ok(text.to_string()),
        _ => Err("write HOST:PORT, for example 127.0.0.1:7470".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        assert!(check("127.0.0.1:7470").is_ok());
        assert!(check("[::1]:7470").is_ok());
        for wrong in ["localhost", ":7470", "host:port", "host:99999"] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }
}
