//! Addresses as arguments.

/// `HOST:PORT`, checked while arguments are read, so that a slip of the pen is a usage error.
pub fn check(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains(','));
    match port.map(|(_, port)| port.parse::<u16>()) {
        Some(Ok(_)) => Ok(text.to_string()),
        _ => Err("write HOST:PORT, for example 127.0.0.1:7470".to_string()),
    }
}

/// The same, or several with commas between.
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
