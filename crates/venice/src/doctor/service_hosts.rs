//! Confinement of service hosts on this machine.

use venice_service::{Confinement, SupervisorConfig, echo, probe_confinement};

use super::Finding;

/// Row about the processes that serve granted devices.
pub fn examine() -> Vec<Finding> {
    vec![finding(probe())]
}

fn probe() -> Result<Confinement, String> {
    let dir = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    probe_confinement(SupervisorConfig::new(dir.path()), echo::ENTRY.name)
}

fn finding(probed: Result<Confinement, String>) -> Finding {
    let what = "service hosts";
    let confinement = match probed {
        Ok(confinement) => confinement,
        Err(why) => {
            let remedy = "start the agent as root, or allow user namespaces (only devices with a service \
                          need this)";
            return Finding::missing(what, format!("no host starts: {why}"), remedy);
        }
    };
    let missing: Vec<String> =
        confinement.missing().map(|(measure, why)| format!("{measure} ({why})")).collect();
    if missing.is_empty() {
        return Finding::ok(what, "confined by all measures");
    }
    let remedy = "start the agent as root on a kernel with namespaces, Landlock and control groups";
    Finding::warn(what, format!("confined without {}", missing.join(", ")), remedy)
}
