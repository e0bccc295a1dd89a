//! The texts below `--help`. In the source their lines end where the editor's do; on the terminal
//! they are wrapped once, at its width.

use clap::Command;

/// Returns `command`, with all its subcommands, changed so that the lines of each paragraph below
/// its help are one. Lines that begin with a blank stay as they are.
pub fn with_flowing_text(command: Command) -> Command {
    let text = command.get_after_help().map(|text| flow(&text.to_string()));
    let command = match text {
        Some(text) => command.after_help(text),
        None => command,
    };
    command.mut_subcommands(with_flowing_text)
}

fn flow(text: &str) -> String {
    let mut flowing = String::with_capacity(text.len());
    let mut may_join = false;
    for line in text.lines() {
        let is_plain = !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
        if !flowing.is_empty() {
            flowing.push(if may_join && is_plain { ' ' } else { '\n' });
        }
        flowing.push_str(line);
        may_join = is_plain;
    }
    flowing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_one_line() {
        let text = "EXAMPLES:\n  venice ps\n  venice ps --json\n\nFirst line\nand second.\n\nLast.";
        let wanted =
            "EXAMPLES:\n  venice ps\n  venice ps --json\n\nFirst line and second.\n\nLast.";
        assert_eq!(flow(text), wanted);
    }

    #[test]
    fn subcommands_flow_too() {
        let inner = Command::new("ps").after_help("a\nb");
        let command = with_flowing_text(Command::new("venice").subcommand(inner));
        let inner = command.find_subcommand("ps").expect("it is there");
        assert_eq!(inner.get_after_help().map(ToString::to_string), Some("a b".to_owned()));
    }
}
