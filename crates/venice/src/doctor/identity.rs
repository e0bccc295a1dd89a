//! Who this machine is to its rack, and whether its clock is fit for certificates.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use venice_control::identity::Credential;

use super::Finding;
use crate::admittance::left;

const CERTIFICATE: &str = "identity";
const CLOCK: &str = "clock";
/// Where the packaged agent keeps its certificate.
const SERVICE_DIR: &str = "/var/lib/venice-agent/identity";
/// Certificates are good from ten minutes before they are made: half of it may be this machine's.
const LARGEST_ERROR: Duration = Duration::from_secs(5 * 60);

/// Rows about this machine's identity.
pub fn examine() -> Vec<Finding> {
    let found = places().into_iter().find_map(|dir| certificate(&dir));
    let none = || {
        let detail = "has joined no rack (`venice join`); a rack of `venice up` needs none";
        Finding::ok(CERTIFICATE, detail)
    };
    vec![found.unwrap_or_else(none), clock(venice_ports::time_of_day_error_us())]
}

fn places() -> Vec<PathBuf> {
    let named = std::env::var_os("VENICE_IDENTITY").filter(|dir| !dir.is_empty());
    let usual = [venice_agent::IDENTITY_DIR, SERVICE_DIR].map(PathBuf::from);
    named.map_or_else(|| usual.to_vec(), |dir| vec![dir.into()])
}

/// What is wrong with the certificate in `dir`, or that it is good; `None` where there is none.
fn certificate(dir: &Path) -> Option<Finding> {
    let path = Credential::file_in(dir);
    let found = match fs::symlink_metadata(&path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let detail = format!("only its owner may look into {}", dir.display());
            return Some(Finding::ok(CERTIFICATE, detail));
        }
        Err(_) => return None,
    };
    let (mode, owner) = (found.mode() & 0o777, found.uid());
    let path = path.display();
    if mode & 0o077 != 0 {
        let detail = format!("{path} has mode {mode:o}: others can read this node's key");
        let mend = format!("`chmod 600 {path}`; and join anew, if somebody may have read it");
        return Some(Finding::warn(CERTIFICATE, detail, mend));
    }
    if let Ok(folder) = fs::metadata(dir)
        && folder.uid() != owner
    {
        let detail = format!("{path} is user {owner}'s, its folder user {}'s", folder.uid());
        let mend = format!("`chown {} {path}`, so that the agent can read it", folder.uid());
        return Some(Finding::warn(CERTIFICATE, detail, mend));
    }
    Some(match Credential::load(dir) {
        Ok(credential) => {
            let said = credential.said();
            let (who, until) = (&said.caller, left(said.expires_s));
            if said.is_current() {
                Finding::ok(CERTIFICATE, format!("{who}, certificate good for {until} ({path})"))
            } else if said.is_over() {
                let mend = "join again: `venice join TOKEN`, with a token for this node";
                Finding::warn(CERTIFICATE, format!("{who}: the certificate {until}"), mend)
            } else {
                let detail = format!("{who}: the certificate in {path} is not valid yet");
                Finding::warn(CERTIFICATE, detail, "mend this machine's clock")
            }
        }
        Err(error) => {
            let mend = "run this as its owner or as root; if it is damaged, join again";
            Finding::warn(CERTIFICATE, error.to_string(), mend)
        }
    })
}

fn clock(error_us: Option<u64>) -> Finding {
    const MEND: &str = "`timedatectl set-ntp true`, or install chrony: certificates are of use only \
                        between clocks that agree within ten minutes";
    match error_us.map(Duration::from_micros) {
        None => {
            Finding::warn(CLOCK, "nothing keeps it: the kernel takes it as unsynchronised", MEND)
        }
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
    fn a_certificate_is_looked_at_with_its_mode_and_its_time() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("identity");
        assert!(certificate(&dir).is_none());
        let authority = Authority::create(&temp.path().join("authority")).unwrap();
        let node7 = Caller::Node("node7".into());
        authority.credential(&node7).unwrap().save(&dir).unwrap();
        let fine = certificate(&dir).unwrap();
        assert_eq!(fine.state, State::Ok);
        assert!(fine.detail.contains("node node7, certificate good for 30 days"), "{fine:?}");

        let file = Credential::file_in(&dir);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(certificate(&dir).unwrap().detail.contains("mode 640"));
        fs::write(&file, "nonsense").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(certificate(&dir).unwrap().detail.contains("is damaged"));

        let over = Lifetimes { node: Duration::ZERO, user: Duration::ZERO };
        let over = authority.with_lifetimes(over).credential(&node7).unwrap();
        while !over.said().is_over() {
            std::thread::sleep(Duration::from_millis(50));
        }
        over.save(&dir).unwrap();
        let over = certificate(&dir).unwrap();
        assert!(over.detail.contains("ended") && over.mend.contains("venice join"), "{over:?}");
    }

    #[test]
    fn a_clock_that_nothing_keeps_is_told() {
        assert_eq!(clock(None).state, State::Warn);
        assert_eq!(clock(Some(12_000)).detail, "synchronised, within 12 ms");
        assert_eq!(clock(Some(3_600_000_000)).state, State::Warn);
    }
}
