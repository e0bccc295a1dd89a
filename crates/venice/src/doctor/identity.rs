//! This machine's identity in its rack, and its clock's fitness for certificates.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use venice_control::identity::Credential;

use super::Finding;
use crate::certificate_text::left;

const CERTIFICATE: &str = "identity";
const CLOCK: &str = "clock";
/// Largest clock error: certificates are valid from ten minutes before they are made; half of that
/// may be this machine's error.
const LARGEST_ERROR: Duration = Duration::from_secs(5 * 60);

/// Rows about this machine's identity.
pub fn examine() -> Vec<Finding> {
    let found = places().into_iter().find_map(|dir| certificate(&dir));
    let none = || {
        let detail = "none (`venice join` makes one); a rack of `venice up` needs none";
        Finding::ok(CERTIFICATE, detail)
    };
    vec![found.unwrap_or_else(none), clock(venice_ports::time_of_day_error_us())]
}

fn places() -> Vec<PathBuf> {
    let named = std::env::var_os("VENICE_IDENTITY").filter(|dir| !dir.is_empty());
    let usual = [venice_agent::IDENTITY_DIR, venice_agent::SERVICE_IDENTITY_DIR].map(PathBuf::from);
    named.map_or_else(|| usual.to_vec(), |dir| vec![dir.into()])
}

/// Checks the certificate in `dir`; `None` if there is none.
fn certificate(dir: &Path) -> Option<Finding> {
    let path = Credential::file_in(dir);
    let found = match fs::symlink_metadata(&path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let detail = format!("{} is readable by its owner only", dir.display());
            return Some(Finding::ok(CERTIFICATE, detail));
        }
        Err(_) => return None,
    };
    let (mode, owner) = (found.mode() & 0o777, found.uid());
    let path = path.display();
    if mode & 0o077 != 0 {
        let detail = format!("{path} has mode {mode:o}: others can read this node's key");
        let remedy = format!("`chmod 600 {path}`; join again if the key may have been read");
        return Some(Finding::warn(CERTIFICATE, detail, remedy));
    }
    if let Ok(folder) = fs::metadata(dir)
        && folder.uid() != owner
    {
        let detail = format!("{path} is user {owner}'s, its folder user {}'s", folder.uid());
        let remedy = format!("`chown {} {path}` so that the agent can read it", folder.uid());
        return Some(Finding::warn(CERTIFICATE, detail, remedy));
    }
    Some(match Credential::load(dir) {
        Ok(credential) => {
            let said = credential.info();
            let (who, until) = (&said.caller, left(said.expires_s));
            if said.is_current() {
                Finding::ok(CERTIFICATE, format!("{who}, certificate valid for {until} ({path})"))
            } else if said.is_over() {
                let remedy = "join again: `venice join TOKEN`, with a token for this node";
                Finding::warn(CERTIFICATE, format!("{who}: the certificate {until}"), remedy)
            } else {
                let detail = format!("{who}: the certificate in {path} is not valid yet");
                Finding::warn(CERTIFICATE, detail, "correct this machine's clock")
            }
        }
        Err(error) => {
            let remedy = "run this as its owner or as root; join again if it is damaged";
            Finding::warn(CERTIFICATE, error.to_string(), remedy)
        }
    })
}

fn clock(error_us: Option<u64>) -> Finding {
    const MEND: &str = "`timedatectl set-ntp true`, or install chrony: certificates need clocks that \
                        agree within ten minutes";
    match error_us.map(Duration::from_micros) {
        None => Finding::warn(CLOCK, "not synchronised, according to the kernel", MEND),
        Some(error) if error > LARGEST_ERROR => {
            let detail = format!("may be wrong by {} s", error.as_secs());
            Finding::warn(CLOCK, detail, MEND)
        }
        Some(error) => Finding::ok(CLOCK, format!("synchronised, within {} ms", error.as_millis())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use venice_control::Caller;
    use venice_control::identity::{Authority, Lifetimes};

    use super::super::State;
    use super::*;

    #[test]
    fn certificate_mode_and_time_are_checked() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("identity");
        assert!(certificate(&dir).is_none());
        let authority = Authority::create(&temp.path().join("authority")).unwrap();
        let node7 = Caller::Node("node7".into());
        authority.credential(&node7).unwrap().save(&dir).unwrap();
        let fine = certificate(&dir).unwrap();
        assert_eq!(fine.state, State::Ok);
        assert!(fine.detail.contains("node node7, certificate valid for 30 days"), "{fine:?}");

        let file = Credential::file_in(&dir);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(certificate(&dir).unwrap().detail.contains("mode 640"));
        fs::write(&file, "nonsense").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(certificate(&dir).unwrap().detail.contains("is damaged"));

        let over = Lifetimes { node: Duration::ZERO, user: Duration::ZERO };
        let over = authority.with_lifetimes(over).credential(&node7).unwrap();
        while !over.info().is_over() {
            std::thread::sleep(Duration::from_millis(50));
        }
        over.save(&dir).unwrap();
        let over = certificate(&dir).unwrap();
        assert!(over.detail.contains("ended") && over.remedy.contains("venice join"), "{over:?}");
    }

    #[test]
    fn unsynchronised_clock_warns() {
        assert_eq!(clock(None).state, State::Warn);
        assert_eq!(clock(Some(12_000)).detail, "synchronised, within 12 ms");
        assert_eq!(clock(Some(3_600_000_000)).state, State::Warn);
    }
}
