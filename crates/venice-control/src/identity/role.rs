//! Names of callers in certificates: a URI, and for servers a DNS name for their role.

use venice_rack::caller::{Caller, User};

/// The DNS name in the Monitor Node's certificate.
pub(crate) const MONITOR_DNS: &str = "monitor.venice.internal";
/// The DNS name in the certificate of every node.
pub(crate) const NODE_DNS: &str = "node.venice.internal";

const SCHEME: &str = "venice://";

/// Returns the URI of a caller.
pub(crate) fn uri_of(caller: &Caller) -> String {
    match caller {
        Caller::Monitor => format!("{SCHEME}monitor"),
        Caller::Node(name) => format!("{SCHEME}node/{}", escaped(name)),
        Caller::User(User { node, uid, name, is_admin }) => {
            let role = if *is_admin { "admin" } else { "user" };
            format!("{SCHEME}{role}/{}/{uid}/{}", escaped(node), escaped(name))
        }
    }
}

/// Parses the URI of a caller.
pub(crate) fn caller_of(uri: &str) -> Option<Caller> {
    let parts: Vec<&str> = uri.strip_prefix(SCHEME)?.split('/').collect();
    match parts[..] {
        ["monitor"] => Some(Caller::Monitor),
        ["node", name] => Some(Caller::Node(unescaped(name)?)),
        [role @ ("user" | "admin"), node, uid, name] => Some(Caller::User(User {
            node: unescaped(node)?,
            uid: uid.parse().ok()?,
            name: unescaped(name)?,
            is_admin: role == "admin",
        })),
        _ => None,
    }
}

/// Returns the DNS name of a server's role; `None` for pure clients.
pub(crate) fn dns_of(caller: &Caller) -> Option<&'static str> {
    match caller {
        Caller::Monitor => Some(MONITOR_DNS),
        Caller::Node(_) => Some(NODE_DNS),
        Caller::User(_) => None,
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            let digits = std::str::from_utf8(&digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caller_uri_roundtrips() {
        for name in ["node7", "host one/two", "Jürgen%41", "a:b@c"] {
            let user = User { node: name.into(), uid: 7, name: name.into(), is_admin: false };
            let admin = User { is_admin: true, ..user.clone() };
            for caller in [Caller::Node(name.into()), Caller::User(user), Caller::User(admin)] {
                assert_eq!(caller_of(&uri_of(&caller)), Some(caller));
            }
        }
        assert_eq!(caller_of(&uri_of(&Caller::Monitor)), Some(Caller::Monitor));
    }

    #[test]
    fn malformed_uri_is_refused() {
        for uri in [
            "",
            "venice://",
            "venice://node/",
            "venice://node/a/b",
            "venice://user/a/x/b",
            "https://node/a",
            "venice://user/a/-1/b",
            "venice://node/%4",
            "venice://node/%FF",
        ] {
            assert_eq!(caller_of(uri), None, "{uri}");
        }
    }
}
