//! Report of the measures that confine a host.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A measure that confines a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// User and group ids of its own.
    UserIds,
    /// User namespace (user_namespaces(7)).
    UserNamespace,
    /// Mount namespace (mount_namespaces(7)).
    MountNamespace,
    /// PID namespace: all processes of the host end with its init (pid_namespaces(7)).
    PidNamespace,
    /// Network namespace without any interface (network_namespaces(7)).
    NetworkNamespace,
    /// IPC namespace (ipc_namespaces(7)).
    IpcNamespace,
    /// UTS namespace (uts_namespaces(7)).
    UtsNamespace,
    /// Root directory of its own: an empty tmpfs with what the spec names.
    EmptyRoot,
    /// Landlock domain (landlock(7)).
    Landlock,
    /// Allow-list of system calls (seccomp(2)).
    Seccomp,
    /// `no_new_privs` (prctl(2)).
    NoNewPrivileges,
    /// Empty capability sets (capabilities(7)).
    NoCapabilities,
    /// Resource limits (setrlimit(2)).
    ResourceLimits,
    /// Control group that limits memory.
    MemoryCgroup,
    /// Control group that limits processor time.
    CpuCgroup,
    /// Control group that limits processes.
    PidsCgroup,
    /// No inherited descriptors.
    ClosedDescriptors,
    /// Death with the supervisor (PR_SET_PDEATHSIG).
    ParentDeathSignal,
}

impl Measure {
    /// All measures, in the order of reports.
    pub const ALL: [Self; 18] = [
        Self::UserIds,
        Self::UserNamespace,
        Self::MountNamespace,
        Self::PidNamespace,
        Self::NetworkNamespace,
        Self::IpcNamespace,
        Self::UtsNamespace,
        Self::EmptyRoot,
        Self::Landlock,
        Self::Seccomp,
        Self::NoNewPrivileges,
        Self::NoCapabilities,
        Self::ResourceLimits,
        Self::MemoryCgroup,
        Self::CpuCgroup,
        Self::PidsCgroup,
        Self::ClosedDescriptors,
        Self::ParentDeathSignal,
    ];

    /// Returns the measure's name in reports and specs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UserIds => "user-ids",
            Self::UserNamespace => "user-namespace",
            Self::MountNamespace => "mount-namespace",
            Self::PidNamespace => "pid-namespace",
            Self::NetworkNamespace => "network-namespace",
            Self::IpcNamespace => "ipc-namespace",
            Self::UtsNamespace => "uts-namespace",
            Self::EmptyRoot => "empty-root",
            Self::Landlock => "landlock",
            Self::Seccomp => "seccomp",
            Self::NoNewPrivileges => "no-new-privileges",
            Self::NoCapabilities => "no-capabilities",
            Self::ResourceLimits => "resource-limits",
            Self::MemoryCgroup => "memory-cgroup",
            Self::CpuCgroup => "cpu-cgroup",
            Self::PidsCgroup => "pids-cgroup",
            Self::ClosedDescriptors => "closed-descriptors",
            Self::ParentDeathSignal => "parent-death-signal",
        }
    }

    /// True if no host starts without it, whatever its spec requires.
    pub const fn is_indispensable(self) -> bool {
        match self {
            Self::Seccomp
            | Self::NoNewPrivileges
            | Self::NoCapabilities
            | Self::ResourceLimits
            | Self::ClosedDescriptors
            | Self::ParentDeathSignal => true,
            Self::UserIds
            | Self::UserNamespace
            | Self::MountNamespace
            | Self::PidNamespace
            | Self::NetworkNamespace
            | Self::IpcNamespace
            | Self::UtsNamespace
            | Self::EmptyRoot
            | Self::Landlock
            | Self::MemoryCgroup
            | Self::CpuCgroup
            | Self::PidsCgroup => false,
        }
    }
}

impl std::fmt::Display for Measure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// State of a measure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeasureState {
    /// In force; the text gives details, or is empty.
    Active(String),
    /// Not in force, with the reason.
    Missing(String),
}

/// Measures in force for one host, and those that are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Confinement {
    states: BTreeMap<Measure, MeasureState>,
}

impl Confinement {
    /// Returns the state of a measure; `None` if the host did not come that far.
    pub fn state(&self, measure: Measure) -> Option<&MeasureState> {
        self.states.get(&measure)
    }

    /// True if the measure is in force.
    pub fn is_active(&self, measure: Measure) -> bool {
        matches!(self.state(measure), Some(MeasureState::Active(_)))
    }

    /// Returns the measures that are not in force, each with the reason.
    pub fn missing(&self) -> impl Iterator<Item = (Measure, &str)> {
        Measure::ALL.into_iter().filter_map(|measure| match self.state(measure) {
            Some(MeasureState::Active(_)) => None,
            Some(MeasureState::Missing(why)) => Some((measure, why.as_str())),
            None => Some((measure, "not reached")),
        })
    }

    pub(crate) fn activate(&mut self, measure: Measure, details: impl Into<String>) {
        self.states.insert(measure, MeasureState::Active(details.into()));
    }

    pub(crate) fn miss(&mut self, measure: Measure, why: impl Into<String>) {
        self.states.insert(measure, MeasureState::Missing(why.into()));
    }

    /// Enters the outcome of a measure.
    pub(crate) fn enter<E: std::fmt::Display>(&mut self, measure: Measure, done: Result<(), E>) {
        match done {
            Ok(()) => self.activate(measure, ""),
            Err(why) => self.miss(measure, why.to_string()),
        }
    }

    /// Checks that every required measure is in force.
    ///
    /// # Errors
    /// Names the first one that is not, with the reason.
    pub(crate) fn check(&self, required: &[Measure]) -> Result<(), String> {
        let is_required =
            |measure: &Measure| measure.is_indispensable() || required.contains(measure);
        if let Some((measure, why)) = self.missing().find(|(measure, _)| is_required(measure)) {
            return Err(format!("{measure} is required: {why}"));
        }
        // Else what the host forks could outlive it.
        if self.is_active(Measure::PidNamespace) || self.is_active(Measure::PidsCgroup) {
            return Ok(());
        }
        Err(String::from("pid-namespace or pids-cgroup is required: the machine grants neither"))
    }
}

/// One line a measure: `landlock  active (ABI 7)`.
impl std::fmt::Display for Confinement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for measure in Measure::ALL {
            match self.state(measure) {
                Some(MeasureState::Active(details)) if details.is_empty() => {
                    writeln!(f, "{measure:20} active")?;
                }
                Some(MeasureState::Active(details)) => {
                    writeln!(f, "{measure:20} active ({details})")?;
                }
                Some(MeasureState::Missing(why)) => writeln!(f, "{measure:20} missing: {why}")?,
                None => writeln!(f, "{measure:20} missing: not reached")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measure_is_listed() {
        let names: Vec<String> =
            Measure::ALL.iter().map(|measure| serde_json::to_string(measure).unwrap()).collect();
        let expected: Vec<String> =
            Measure::ALL.iter().map(|measure| format!("\"{measure}\"")).collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn missing_requirement_is_named() {
        let mut report = Confinement::default();
        Measure::ALL.iter().for_each(|measure| report.activate(*measure, ""));
        assert_eq!(report.check(&Measure::ALL), Ok(()));
        report.miss(Measure::Landlock, "kernel without Landlock");
        assert_eq!(report.check(&[Measure::Seccomp]), Ok(()));
        let refused = report.check(&[Measure::Landlock]).unwrap_err();
        assert_eq!(refused, "landlock is required: kernel without Landlock");
        report.miss(Measure::Seccomp, "no");
        assert!(report.check(&[]).is_err(), "no host runs without seccomp");
        report.activate(Measure::Seccomp, "");
        report.miss(Measure::PidNamespace, "no");
        assert_eq!(report.check(&[]), Ok(()));
        report.miss(Measure::PidsCgroup, "no");
        assert!(report.check(&[]).is_err(), "nothing would end what the host forks");
    }
}
