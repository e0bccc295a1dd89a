//! A table of a report, rendered as text and as HTML.

use venice_measure::report::table;

/// A titled table: the first columns are text, the others figures.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReportTable {
    pub(crate) title: String,
    pub(crate) head: Vec<String>,
    /// Number of leading text columns.
    pub(crate) texts: usize,
    pub(crate) rows: Vec<Vec<String>>,
    /// Explanations below the table.
    pub(crate) notes: Vec<String>,
}

impl ReportTable {
    pub(crate) fn new(title: impl Into<String>, head: &[&str], texts: usize) -> Self {
        let head = head.iter().map(|text| (*text).to_owned()).collect();
        Self { title: title.into(), head, texts, ..Self::default() }
    }

    /// Renders it for a terminal.
    pub(crate) fn text(&self) -> String {
        let head: Vec<&str> = self.head.iter().map(String::as_str).collect();
        let mut rows = table(&head, self.texts);
        for row in &self.rows {
            rows.add_row(row);
        }
        let notes: String = self.notes.iter().map(|note| format!("  {note}\n")).collect();
        format!("{}\n{rows}\n{notes}", self.title)
    }

    /// Renders it for a page.
    pub(crate) fn html(&self) -> String {
        let class = |column: usize| if column < self.texts { "" } else { " class=\"figure\"" };
        let cells = |tag: &str, row: &[String]| -> String {
            let each = row.iter().enumerate();
            each.map(|(at, text)| format!("<{tag}{}>{}</{tag}>", class(at), escaped(text)))
                .collect()
        };
        let body: String =
            self.rows.iter().map(|row| format!("<tr>{}</tr>\n", cells("td", row))).collect();
        let notes: String =
            self.notes.iter().map(|note| format!("<p>{}</p>\n", escaped(note))).collect();
        format!(
            "<h2>{}</h2>\n<div class=\"table\"><table>\n<thead><tr>{}</tr></thead>\n<tbody>\n{body}\
             </tbody>\n</table></div>\n{notes}",
            escaped(&self.title),
            cells("th", &self.head),
        )
    }
}

/// Escapes text between tags.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::xml;

    #[test]
    fn both_forms_have_every_cell() {
        let mut table = ReportTable::new("Latency <of> all", &["name", "64 B"], 1);
        table.rows.push(vec!["a & b".into(), "1.00 µs".into()]);
        table.notes.push("measured today".into());
        let text = table.text();
        assert!(text.contains("a & b") && text.contains("1.00 µs") && text.contains("today"));
        let texts = xml::texts(&table.html()).unwrap();
        assert_eq!(
            texts,
            ["Latency <of> all", "name", "64 B", "a & b", "1.00 µs", "measured today"]
        );
    }
}
