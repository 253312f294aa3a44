//! Texts from outside, made fit to be shown.
//!
//! Guards: texts of a hint are quoted, escaped and cut, so that no hint can write to a terminal
//! what it likes, or without end.

/// Longest text of a hint or of configuration that is shown, in characters.
pub const SHOWN_CHARS: usize = 160;
/// Most items of one list that are shown.
pub const SHOWN_ITEMS: usize = 16;

/// Nothing that a terminal would obey. Quotes and backslashes stay.
pub fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\'' | '\\' => printable.push(c),
            _ => printable.extend(c.escape_debug()),
        }
    }
    printable
}

/// Whether the text is shown as it is: it has nothing that a terminal would obey.
pub fn is_printable(text: &str) -> bool {
    text.chars().all(|c| matches!(c, '"' | '\'' | '\\') || c.escape_debug().eq([c]))
}

/// Escaped, and cut.
pub fn shown(text: &str) -> String {
    let cut: String = text.chars().take(SHOWN_CHARS).collect();
    let more = if cut.len() < text.len() { "..." } else { "" };
    format!("{}{more}", cut.escape_debug())
}

/// The same in quotes.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", shown(text))
}

/// JSON in which only ASCII stands, and none of it a control character: all else is escaped.
pub fn ascii_json(value: &serde_json::Value) -> String {
    let json = value.to_string();
    let mut ascii = String::with_capacity(json.len());
    for c in json.chars() {
        if (' '..='~').contains(&c) {
            ascii.push(c);
        } else {
            // Outside of strings there is none such.
            for unit in c.encode_utf16(&mut [0; 2]) {
                ascii.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    ascii
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_plain_ascii_is_in_json_and_it_says_the_same() {
        let text: String = ('\0'..='\u{2100}').chain(['\u{feff}', '\u{1f600}']).collect();
        let value = serde_json::json!({ &text: [text] });
        let json = ascii_json(&value);
        assert!(json.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).ok(), Some(value));
    }

    #[test]
    fn what_a_terminal_obeys_is_not_printable() {
        for text in ["\u{1b}[31m", "\u{7f}", "\u{9b}31m", "\u{202e}", "\u{2066}", "\r", "\u{feff}"]
        {
            assert!(!is_printable(text), "{text:?}");
            assert!(is_printable(&printable(text)), "{text:?}");
        }
        assert!(is_printable("{\"a\\\\b\":'\u{e9}'}"));
    }
}
