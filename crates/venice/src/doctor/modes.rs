//! Which modes of `venice run` work here, by what was found.

use super::{Finding, Mode, State, kernel};

/// A row for each mode.
pub fn judge(findings: &[Finding]) -> Vec<Finding> {
    Mode::ALL.map(|mode| verdict(mode, findings)).into()
}

/// Those that nothing stops.
pub fn working(findings: &[Finding]) -> Vec<Mode> {
    let is_stopped = |mode| findings.iter().any(|finding| finding.stops(mode));
    Mode::ALL.into_iter().filter(|&mode| !is_stopped(mode)).collect()
}

fn verdict(mode: Mode, findings: &[Finding]) -> Finding {
    let stops = findings.iter().filter(|finding| finding.stops(mode));
    let lacking = stops.map(|finding| finding.what).collect::<Vec<_>>().join(", ");
    if !lacking.is_empty() {
        let detail = format!("cannot work: {lacking}");
        return Finding::missing(mode.flag(), detail, format!("as is said of {lacking}"));
    }
    let can_move = findings
        .iter()
        .all(|finding| finding.what != kernel::HELD_WRITES || finding.state == State::Ok);
    match mode {
        Mode::Paged => Finding::ok(mode.flag(), "works, for dynamic programs"),
        Mode::Window if can_move => {
            let detail = "works, for dynamic programs, over shm; what is mapped can move";
            Finding::ok(mode.flag(), detail)
        }
        Mode::Window => Finding::warn(
            mode.flag(),
            "works, for dynamic programs, over shm; what is mapped stays where it is, though its node \
             wants it back",
            format!("as is said of {}", kernel::HELD_WRITES),
        ),
        Mode::Swap => Finding::ok(mode.flag(), "works, for any program, static ones too"),
    }
}

/// What the sheet ends with.
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
    fn each_mode_is_stopped_by_what_it_needs_alone() {
        assert_eq!(working(&found(State::Warn, State::Ok)), Mode::ALL);
        let old = found(State::Missing, State::Ok);
        assert_eq!(working(&old), [Mode::Window, Mode::Swap]);
        let rows = judge(&old);
        assert_eq!((rows[0].what, rows[0].state), ("--mode paged", State::Missing));
        assert!(rows[0].detail.contains("kernel") && rows[0].mend.contains("kernel"), "{rows:?}");
        assert_eq!((rows[1].state, rows[2].state), (State::Ok, State::Ok));

        let bare = found(State::Missing, State::Missing);
        assert_eq!(working(&bare), [Mode::Swap]);
        assert!(judge(&bare)[0].detail.ends_with("kernel, shim library"));
    }

    #[test]
    fn a_window_that_cannot_move_works_and_says_so() {
        let mut rows = found(State::Ok, State::Ok);
        rows.push(Finding::warn(kernel::HELD_WRITES, "refused", "run as root"));
        assert_eq!(working(&rows), Mode::ALL);
        let window = &judge(&rows)[1];
        assert_eq!(window.state, State::Warn);
        assert!(window.detail.contains("stays") && window.mend.contains(kernel::HELD_WRITES));
    }

    #[test]
    fn the_last_line_names_what_works_and_what_does_not() {
        assert!(!closing(&Mode::ALL).contains("--mode"));
        let said = closing(&[Mode::Window, Mode::Swap]);
        assert!(said.ends_with("with --mode window and --mode swap, not yet with --mode paged."));
        assert!(closing(&[]).contains("cannot"));
    }
}
