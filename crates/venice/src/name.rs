//! Names of users and nodes as arguments.

/// A name that says something, checked while arguments are read: what is empty is mostly a variable of a
/// script that was never set, and means nobody, not everybody.
pub fn check(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("it is empty: write a name".to_string()),
        false => Ok(text.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_something() {
        assert_eq!(check("node7").as_deref(), Ok("node7"));
        for empty in ["", " ", "\t"] {
            assert!(check(empty).unwrap_err().contains("empty"));
        }
    }
}
