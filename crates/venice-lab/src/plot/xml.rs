//! A minimal XML parser that checks that a document is well formed.

/// Returns the texts between the tags, entities resolved.
///
/// # Errors
/// With the first violation in the document.
pub(crate) fn texts(document: &str) -> Result<Vec<String>, String> {
    let mut open: Vec<&str> = Vec::new();
    let mut texts = Vec::new();
    let mut rest = document;
    while let Some(start) = rest.find('<') {
        let text = &rest[..start];
        if text.contains('>') {
            return Err(format!("a bare > in {text:?}"));
        }
        let text = resolve(text)?;
        if !text.trim().is_empty() {
            texts.push(text.trim().to_owned());
        }
        let end = start + tag_length(&rest[start..])?;
        let tag = &rest[start + 1..end - 1];
        rest = &rest[end..];
        if let Some(name) = tag.strip_prefix('/') {
            let opened = open.pop();
            if opened != Some(name.trim()) {
                return Err(format!("</{name}> closes {opened:?}"));
            }
        } else if !tag.starts_with(['?', '!']) && !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap_or_default());
        }
    }
    match open.pop() {
        Some(name) => Err(format!("<{name}> is not closed")),
        None => Ok(texts),
    }
}

/// Returns the bytes up to and with the `>` that ends the tag, ignoring any inside an attribute's
/// quotes.
fn tag_length(tag: &str) -> Result<usize, String> {
    let mut quote = None;
    for (at, letter) in tag.char_indices().skip(1) {
        match (quote, letter) {
            (None, '>') => return Ok(at + 1),
            (None, '"' | '\'') => quote = Some(letter),
            (Some(opened), letter) if opened == letter => quote = None,
            (_, '<') => return Err(format!("a < inside the tag {:?}", &tag[..at])),
            _ => {}
        }
    }
    Err("a tag without an end".to_owned())
}

fn resolve(text: &str) -> Result<String, String> {
    let mut parts = text.split('&');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, after) = part.split_once(';').ok_or(format!("a bare & before {part:?}"))?;
        out.push(match name {
            "lt" => '<',
            "gt" => '>',
            "amp" => '&',
            "quot" => '"',
            "apos" | "#39" => '\'',
            other => return Err(format!("unknown entity &{other};")),
        });
        out.push_str(after);
    }
    Ok(out)
}

#[test]
fn violations_are_detected() {
    assert_eq!(texts("<a b=\"x>y\"><c/>1 &lt; 2</a>").unwrap(), ["1 < 2"]);
    for wrong in ["<a>", "<a></b>", "<a>&x;</a>", "<a>&</a>", "<a", "<a <b>"] {
        assert!(texts(wrong).is_err(), "{wrong}");
    }
}
