//! Verdict on each mode of `venice run`, from the other findings.

use super::{Finding, Mode, State, kernel, ports};

/// Returns a row for each mode.
pub fn verdicts(findings: &[Finding]) -> Vec<Finding> {
    Mode::ALL.map(|mode| verdict(mode, findings)).into()
}

/// Returns the modes that nothing stops.
pub fn working(findings: &[Finding]) -> Vec<Mode> {
    let is_stopped = |mode| findings.iter().any(|finding| finding.stops(mode));
    Mode::ALL.into_iter().filter(|&mode| !is_stopped(mode)).collect()
}

fn verdict(mode: Mode, findings: &[Finding]) -> Finding {
    let stops = findings.iter().filter(|finding| finding.stops(mode));
    let lacking = stops.map(|finding| finding.check).collect::<Vec<_>>().join(", ");
    if !lacking.is_empty() {
        let detail = format!("missing: {lacking}");
        return Finding::missing(mode.flag(), detail, format!("see {lacking}"));
    }
    let can_move = findings
        .iter()
        .all(|finding| finding.check != kernel::HELD_WRITES || finding.state == State::Ok);
    let over = ports(mode, findings).join(", ");
    match mode {
        Mode::Paged => {
            Finding::ok(mode.flag(), format!("works, for dynamic programs, over {over}"))
        }
        Mode::Window if can_move => {
            let detail =
                format!("works, for dynamic programs, over {over}; mapped memory can move");
            Finding::ok(mode.flag(), detail)
        }
        Mode::Window => Finding::warn(
            mode.flag(),
            format!(
                "works, for dynamic programs, over {over}; mapped memory stays in place even if its \
                 node reclaims it"
            ),
            format!("see {}", kernel::HELD_WRITES),
        ),
        Mode::Swap => {
            let detail = format!("works, for any program, static ones too, over {over}");
            Finding::ok(mode.flag(), detail)
        }
    }
}

/// Returns the ports over which a mode works on this machine.
fn ports(mode: Mode, findings: &[Finding]) -> Vec<&'static str> {
    let lacks = |port| {
        let need = ports::need(port);
        findings.iter().any(|it| Some(it.check) == need && it.state == State::Missing)
    };
    mode.ports().filter(|port| !lacks(*port)).map(|port| port.id().name()).collect()
}

/// Returns the last line of the report.
pub fn closing(working: &[Mode]) -> String {
    let named =
        |modes: &[Mode]| modes.iter().map(|mode| mode.flag()).collect::<Vec<_>>().join(" and ");
    let others: Vec<Mode> = Mode::ALL.into_iter().filter(|mode| !working.contains(mode)).collect();
    match (working, &others[..]) {
        (_, []) => "This machine can run programs on borrowed memory (venice run).".to_owned(),
        ([], _) => {
            "This machine cannot run programs on borrowed memory (venice run) yet.".to_owned()
        }
        (working, others) => format!(
            "This machine can run programs on borrowed memory (venice run) with {}, not yet with {}.",
            named(working),
            named(others)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kernel_state: State, shim_state: State) -> Vec<Finding> {
        let of = |what, state, modes: &[Mode]| {
            Finding { state, ..Finding::ok(what, "looked at") }.needed_by(modes)
        };
        vec![
            of("kernel", kernel_state, &[Mode::Paged]),
            of("shim library", shim_state, &[Mode::Paged, Mode::Window]),
            of("memory cgroup", State::Ok, &[Mode::Swap]),
        ]
    }

    #[test]
    fn missing_need_stops_only_its_mode() {
        assert_eq!(working(&found(State::Warn, State::Ok)), Mode::ALL);
        let old = found(State::Missing, State::Ok);
        assert_eq!(working(&old), [Mode::Window, Mode::Swap]);
        let rows = verdicts(&old);
        assert_eq!((rows[0].check, rows[0].state), ("--mode paged", State::Missing));
        assert!(rows[0].detail.contains("kernel") && rows[0].remedy.contains("kernel"), "{rows:?}");
        assert_eq!((rows[1].state, rows[2].state), (State::Ok, State::Ok));

        let bare = found(State::Missing, State::Missing);
        assert_eq!(working(&bare), [Mode::Swap]);
        assert!(verdicts(&bare)[0].detail.ends_with("kernel, shim library"));
    }

    #[test]
    fn verdicts_name_usable_ports() {
        let mut rows = found(State::Ok, State::Ok);
        let details = |rows: &[Finding]| verdicts(rows).into_iter().map(|row| row.detail);
        assert!(details(&rows).any(|detail| detail.ends_with("over shm, udp, verbs")));
        rows.push(Finding::missing(ports::RDMA, "no device", "buy one"));
        for (detail, over) in details(&rows).zip(["shm, udp", "shm; mapped", "shm, udp"]) {
            assert!(detail.contains(&format!("over {over}")), "{detail}");
            assert!(!detail.contains("verbs"), "{detail}");
        }
    }

    #[test]
    fn immovable_window_warns() {
        let mut rows = found(State::Ok, State::Ok);
        rows.push(Finding::warn(kernel::HELD_WRITES, "refused", "run as root"));
        assert_eq!(working(&rows), Mode::ALL);
        let window = &verdicts(&rows)[1];
        assert_eq!(window.state, State::Warn);
        assert!(window.detail.contains("stays") && window.remedy.contains(kernel::HELD_WRITES));
    }

    #[test]
    fn closing_names_working_modes() {
        assert!(!closing(&Mode::ALL).contains("--mode"));
        let said = closing(&[Mode::Window, Mode::Swap]);
        assert!(said.ends_with("with --mode window and --mode swap, not yet with --mode paged."));
        assert!(closing(&[]).contains("cannot"));
    }
}
