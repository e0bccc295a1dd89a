//! Completion scripts: `venice-lab` completes the words of its own commands.

use clap::Command;
use venice_cli::manual::{self, Shell};
use venice_cli::terminal;

/// First line of the completion function that clap generates for bash and zsh.
const FUNCTION: &str = "_venice() {\n";

/// Part of the bash function. Called as the function of `venice` is, that of `venice-lab` takes the
/// first word for its own name.
const BASH: &str = r#"    # venice-lab completes the words of its own commands.
    local lab_at=1
    [[ ${COMP_WORDS[1]} == help ]] && lab_at=2
    if ((COMP_CWORD > lab_at)) && [[ ${COMP_WORDS[lab_at]} =~ ^(bench|paper|model|sim)$ ]]; then
        declare -F _venice_lab >/dev/null \
            || eval "$("${VENICE_LAB:-venice-lab}" completions bash 2>/dev/null)"
        if declare -F _venice_lab >/dev/null; then
            _venice_lab "$@"
            return
        fi
    fi
"#;

/// Part of the zsh function.
const ZSH: &str = r#"    # venice-lab completes the words of its own commands.
    local lab_at=2
    [[ $words[2] == help ]] && lab_at=3
    if (( CURRENT > lab_at )) && [[ $words[lab_at] == (bench|paper|model|sim) ]]; then
        (( $+functions[_venice-lab] )) \
            || eval "$("${VENICE_LAB:-venice-lab}" completions zsh 2>/dev/null)"
        if (( $+functions[_venice-lab] )); then
            _venice-lab "$@"
            return
        fi
    fi
"#;

/// Rules for fish, after those of `venice`.
const FISH: &str = r#"
# venice-lab completes the words of its own commands.
function __fish_venice_lab_has_words
    set -l words (commandline -opc)
    set -l at 2
    test "$words[2]" = help; and set at 3
    test (count $words) -ge $at; and contains -- "$words[$at]" bench paper model sim
end

function __fish_venice_lab_complete
    set -l lab venice-lab
    test -n "$VENICE_LAB"; and set lab $VENICE_LAB
    if not functions -q __fish_venice_lab_needs_command; and type -q $lab
        $lab completions fish | source
    end
    set -l words (commandline -opc)
    complete -C "venice-lab "(string join ' ' -- (string escape -- $words[2..]) (commandline -ct))
end

complete -c venice -n __fish_venice_lab_has_words -f -a "(__fish_venice_lab_complete)"
"#;

/// Prints the completion script of `venice`.
///
/// # Errors
/// When stdout cannot be written.
pub fn print(args: &manual::CompletionsArgs, command: Command) -> anyhow::Result<i32> {
    let script = manual::completion_script(args.shell, command);
    terminal::say_bytes(with_lab(args.shell, script).as_bytes())?;
    Ok(0)
}

/// Lets `venice-lab` complete its commands. In the other shells they complete to nothing.
fn with_lab(shell: Shell, script: String) -> String {
    match shell {
        Shell::Bash => script.replacen(FUNCTION, &format!("{FUNCTION}{BASH}"), 1),
        Shell::Zsh => script.replacen(FUNCTION, &format!("{FUNCTION}{ZSH}"), 1),
        Shell::Fish => script + FISH,
        _ => script,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab;
    use clap::CommandFactory;

    #[test]
    fn scripts_ask_venice_lab() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = manual::completion_script(shell, super::super::Cli::command());
            let script = with_lab(shell, script);
            assert!(script.contains("# venice-lab completes"), "{shell}");
        }
        for text in [BASH, ZSH] {
            assert!(text.contains(&format!("({})", lab::COMMANDS.join("|"))));
        }
        assert!(FISH.contains(&lab::COMMANDS.join(" ")));
    }
}
