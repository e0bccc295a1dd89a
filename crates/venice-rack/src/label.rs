//! Texts that callers choose and others read: names of users, recipients and purposes.

/// Most bytes in the name of a user, in a recipient or a purpose.
pub const MAX_LABEL_BYTES: usize = 64;

/// Describes the rule, for messages.
pub const LABEL_RULE: &str = "up to 64 bytes without control characters";

/// True if `text` may be shown to others: it has at most [`MAX_LABEL_BYTES`] and no control
/// character.
pub fn is_label(text: &str) -> bool {
    text.len() <= MAX_LABEL_BYTES && is_printable(text)
}

/// True if `text` has no control character.
pub fn is_printable(text: &str) -> bool {
    !text.contains(char::is_control)
}

/// Makes a label of any text: control characters become `?`, and of a long text the end is kept,
/// where the name of a program is.
pub fn to_label(text: &str) -> String {
    const CUT: &str = "...";
    let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.len() <= MAX_LABEL_BYTES {
        return text;
    }
    let least = text.len() - (MAX_LABEL_BYTES - CUT.len());
    let from = (least..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    format!("{CUT}{}", &text[from..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short_and_printable() {
        assert!(is_label("numpy job 7") && is_label("ü") && is_label(""));
        assert!(!is_label("\u{1b}[2J") && !is_label("a\nb") && !is_label("\u{9b}31m"));
        assert!(!is_label(&"x".repeat(MAX_LABEL_BYTES + 1)));
        for text in ["a\u{1b}b", "/bin/true", &"é".repeat(100), &format!("/{}/run", "d".repeat(90))]
        {
            assert!(is_label(&to_label(text)), "{text}");
        }
        assert!(to_label(&format!("/{}/run", "d".repeat(90))).ends_with("/run"));
    }
}
