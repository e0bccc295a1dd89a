//! Names of users and nodes on the command line.

/// Checks a name while arguments are read. An empty name is an error: it is mostly a script's unset
/// variable, and must not mean every user.
pub fn check(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("empty name".to_string()),
        false => Ok(text.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_name_is_refused() {
        assert_eq!(check("node7").as_deref(), Ok("node7"));
        for empty in ["", " ", "\t"] {
            assert!(check(empty).unwrap_err().contains("empty"));
        }
    }
}
