//! Draws JSON text: well-formed but for a few pieces that are wrong on purpose, and at every limit
//! that admission knows.

use super::draw::Draw;

/// How blanks are strewn.
#[derive(Clone, Copy)]
enum Blanks {
    None,
    /// One space behind each comma and colon, as Python's json module writes them.
    Python,
    /// Any, anywhere.
    Any,
}

/// Numbers at the limits and beyond them, and texts that are no numbers.
const NUMBERS: [&str; 44] = [
    "0",
    "7",
    "-1",
    "18446744073709551615",
    "18446744073709551616",
    "18446744073709551609",
    "18446744073709551620",
    "18399999999999999999",
    "17999999999999999999",
    "20000000000000000000",
    "99999999999999999999",
    "100000000000000000000",
    "9999999999999999999",
    "-9223372036854775808",
    "-9223372036854775809",
    "-9223372036854775807",
    "-10000000000000000000",
    "-0",
    "1e308",
    "1e309",
    "-1e309",
    "1E+308",
    "1.7976931348623157e308",
    "1.7976931348623158e308",
    "1.7976931348623159e308",
    "17976931348623158079372897140530341507993413271003782693617377898044496829276475094664901797\
     7587207096330286416692887910946555547851940402630657488671505820681908902000708383676273854845\
     8177115317644757302700698555713669596228429148198608349364752927190741684443655107043427115596\
     99508093042880177904174497792.0",
    "0.000000000000000000001e330",
    "0e99999999999999999999",
    "1e-99999999999999999999",
    "0.0",
    "2.5",
    "1e5",
    "123456.789e-5",
    "01",
    "00",
    "1.",
    ".5",
    "-",
    "+1",
    "1e",
    "1e+",
    "0x1",
    "NaN",
    "-Infinity",
];

/// Where UTF-8 changes its length or ends, and right beside that.
const CHARACTERS: [&[u8]; 26] = [
    b"\x7f",
    b"\xc2\x80",
    b"\xdf\xbf",
    b"\xe0\xa0\x80",
    b"\xe2\x82\xac",
    b"\xed\x9f\xbf",
    b"\xee\x80\x80",
    b"\xef\xbf\xbf",
    b"\xf0\x90\x80\x80",
    b"\xf0\x9f\x98\x80",
    b"\xf4\x8f\xbf\xbf",
    b"\xef\xbb\xbf",
    b"\x80",
    b"\xbf",
    b"\xc0\x80",
    b"\xc1\xbf",
    b"\xc2",
    b"\xe0\x9f\xbf",
    b"\xe2\x82",
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"\xf0\x8f\xbf\xbf",
    b"\xf0\x9f\x98",
    b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80",
    b"\xff",
];

/// How many of [`CHARACTERS`] are characters.
const GOOD_CHARACTERS: usize = 12;

const ESCAPES: [&str; 26] = [
    "\\\"",
    "\\\\",
    "\\/",
    "\\b",
    "\\f",
    "\\n",
    "\\r",
    "\\t",
    "\\u0000",
    "\\u001f",
    "\\u001F",
    "\\u000a",
    "\\u0022",
    "\\u005c",
    "\\u0061",
    "\\u00e9",
    "\\uFFFF",
    "\\ud83d\\ude00",
    "\\uDBFF\\uDFFF",
    "\\ud800",
    "\\udc00",
    "\\ud800\\n",
    "\\ud800\\ud800",
    "\\u12",
    "\\x",
    "\\u+123",
];

/// How many of [`ESCAPES`] are escapes.
const GOOD_ESCAPES: usize = 19;

/// A text that is being drawn.
pub struct Json<'c, 'd> {
    pub draw: &'c mut Draw<'d>,
    pub out: Vec<u8>,
    blanks: Blanks,
    /// Whether pieces may be wrong.
    may_be_wrong: bool,
    /// Containers open here.
    depth: usize,
    /// Inside a string, where it may be made longer.
    pub pad_at: Option<usize>,
}

impl<'c, 'd> Json<'c, 'd> {
    /// Begins a text.
    pub fn new(draw: &'c mut Draw<'d>) -> Self {
        let blanks = draw.one_of(&[Blanks::None, Blanks::None, Blanks::Python, Blanks::Any]);
        let may_be_wrong = draw.once_in(3);
        Self { draw, out: Vec::new(), blanks, may_be_wrong, depth: 0, pad_at: None }
    }

    /// True one time in so many, in texts that may be wrong.
    pub fn wrong_once_in(&mut self, times: usize) -> bool {
        self.may_be_wrong && self.draw.once_in(times)
    }

    /// Writes this as it is.
    pub fn push(&mut self, text: impl AsRef<[u8]>) {
        self.out.extend_from_slice(text.as_ref());
    }

    /// Blanks, if they may stand anywhere.
    pub fn blank(&mut self) {
        if let Blanks::Any = self.blanks {
            let blanks =
                ["", "", "", " ", "\n", "\t\r", "  ", "                                     "];
            let chosen = self.draw.one_of(&blanks);
            self.push(chosen);
        }
    }

    fn punctuation(&mut self, byte: u8) {
        self.blank();
        self.out.push(byte);
        if let Blanks::Python = self.blanks {
            self.out.push(b' ');
        }
        self.blank();
    }

    /// A comma between two items, for all but the first.
    pub fn comma(&mut self, index: usize) {
        if index > 0 {
            self.punctuation(b',');
        }
    }

    /// A name, perhaps spelled with escapes, and its colon.
    pub fn name(&mut self, name: &str) {
        self.word_string(name);
        self.punctuation(b':');
    }

    /// A string that says this, perhaps spelled with escapes.
    pub fn word_string(&mut self, text: &str) {
        self.out.push(b'"');
        match self.draw.below(8) {
            7 if !text.is_empty() => {
                let place = self.draw.below(text.len());
                for (at, byte) in text.bytes().enumerate() {
                    if at == place && byte.is_ascii() {
                        let upper = self.draw.once_in(2);
                        let escape =
                            if upper { format!("\\u{byte:04X}") } else { format!("\\u{byte:04x}") };
                        self.push(escape);
                    } else {
                        self.out.push(byte);
                    }
                }
            }
            _ => self.push(text),
        }
        self.out.push(b'"');
    }

    /// Any string.
    pub fn string(&mut self) {
        self.out.push(b'"');
        if self.pad_at.is_none() || self.draw.once_in(4) {
            self.pad_at = Some(self.out.len());
        }
        for _ in 0..self.draw.below(5) {
            match self.draw.below(6) {
                0 | 1 => {
                    let len =
                        self.draw.one_of(&[1, 3, 7, 8, 9, 15, 23, 31, 32, 33, 40, 63, 64, 65]);
                    let letter = self.draw.one_of(b"ax ~{[,:0");
                    self.out.resize(self.out.len() + len, letter);
                }
                2 | 3 => {
                    let wrong = self.wrong_once_in(8);
                    let known = if wrong { ESCAPES.len() } else { GOOD_ESCAPES };
                    let escape = self.draw.one_of(&ESCAPES[..known]);
                    self.push(escape);
                }
                4 => {
                    let wrong = self.wrong_once_in(8);
                    let known = if wrong { CHARACTERS.len() } else { GOOD_CHARACTERS };
                    let character = self.draw.one_of(&CHARACTERS[..known]);
                    self.push(character);
                }
                _ => {
                    if self.wrong_once_in(8) {
                        let control = self.draw.below(0x20) as u8;
                        self.out.push(control);
                    } else {
                        self.out.push(b'a' + self.draw.below(26) as u8);
                    }
                }
            }
        }
        self.out.push(b'"');
    }

    /// Any number, or a text that is nearly one.
    pub fn number(&mut self) {
        match self.draw.below(4) {
            0 => {
                let digits = 1 + self.draw.below(22);
                self.digits(digits);
            }
            1 => {
                // Around 2^64-1.
                let last = self.draw.below(10_000);
                self.push(format!("1844674407370955{last:04}"));
            }
            2 => {
                let (whole, fraction) = (1 + self.draw.below(6), 1 + self.draw.below(40));
                self.digits(whole);
                self.out.push(b'.');
                let digit = b'0' + self.draw.below(10) as u8;
                self.out.resize(self.out.len() + fraction, digit);
                if self.draw.once_in(2) {
                    let exponent = self.draw.below(640);
                    self.push(format!("e{}", exponent as i32 - 320));
                }
            }
            _ => {
                let good = 33;
                let known = if self.wrong_once_in(4) { NUMBERS.len() } else { good };
                let number = self.draw.one_of(&NUMBERS[..known]);
                self.push(number);
            }
        }
    }

    fn digits(&mut self, count: usize) {
        let first = b'1' + self.draw.below(9) as u8;
        let rest = b'0' + self.draw.below(10) as u8;
        self.out.push(first);
        self.out.resize(self.out.len() + count - 1, rest);
    }

    /// Elements that are integers, which admission reads many at once, with others among them.
    fn integers(&mut self) {
        let count = 2 + self.draw.below(24);
        let odd_at = if self.draw.once_in(3) { self.draw.below(count) } else { count };
        let kind = self.draw.below(4);
        self.open(b'[');
        for index in 0..count {
            self.comma(index);
            if index == odd_at {
                self.value(1);
                continue;
            }
            match kind {
                0 => self.digits(20.min(17 + index % 4)),
                1 => self.push(format!("1844674407370955{:04}", 1000 + index * 27)),
                2 => self.push((index * 7919).to_string()),
                _ => self.number(),
            }
        }
        self.close(b']');
    }

    fn open(&mut self, bracket: u8) {
        self.out.push(bracket);
        self.depth += 1;
        self.blank();
    }

    fn close(&mut self, bracket: u8) {
        self.blank();
        self.out.push(bracket);
        self.depth -= 1;
    }

    /// Containers inside each other until about 200 are open.
    fn deep(&mut self) {
        let target = 197 + self.draw.below(7);
        let levels = target.saturating_sub(self.depth);
        let kind = self.draw.below(3);
        let is_object = |level: usize| kind == 1 || (kind == 2 && level & 1 == 0);
        for level in 0..levels {
            self.push(if is_object(level) { "{\"a\":" } else { "[" });
        }
        let innermost = if is_object(levels.wrapping_sub(1)) {
            self.draw.one_of(&["1", "\"b\"", "null"])
        } else {
            self.draw.one_of(&["", "1", "null"])
        };
        self.push(innermost);
        for level in (0..levels).rev() {
            self.push(if is_object(level) { "}" } else { "]" });
        }
    }

    /// An object of many names, perhaps one of them twice.
    fn names(&mut self) {
        let count = 1 + self.draw.below(40);
        let twice = if self.draw.once_in(3) { self.draw.below(count) } else { count };
        let style = self.draw.below(3);
        self.open(b'{');
        for index in 0..count {
            self.comma(index);
            let index = if index + 1 == count && twice < count { twice } else { index };
            match style {
                0 => self.name(&format!("n{index}")),
                1 => self.name(&format!("a long name with a common beginning {index}")),
                _ => self.name(&"k".repeat(index)),
            }
            self.out.push(b'0');
        }
        self.close(b'}');
    }

    /// Any object, of at most so many levels.
    pub fn object(&mut self, levels: usize) {
        self.open(b'{');
        let count = if levels == 0 { 0 } else { self.draw.below(5) };
        for index in 0..count {
            self.comma(index);
            if self.draw.once_in(3) {
                self.string();
                self.punctuation(b':');
            } else {
                let names =
                    ["a", "b", "c", "", "protocol_version", "kv_hints", "payload", "\u{e9}"];
                let name = self.draw.one_of(&names);
                self.name(name);
            }
            self.value(levels - 1);
        }
        self.close(b'}');
    }

    /// Any value, of at most so many levels.
    pub fn value(&mut self, levels: usize) {
        match self.draw.below(16) {
            0..=2 => self.string(),
            3..=5 => self.number(),
            6 => {
                let known = if self.wrong_once_in(4) { 6 } else { 3 };
                let word =
                    self.draw.one_of(&["null", "true", "false", "nul", "True", "falsee"][..known]);
                self.push(word);
            }
            7 | 8 if levels > 0 => self.integers(),
            9 | 10 if levels > 0 => self.object(levels),
            11 | 12 if levels > 0 => {
                self.open(b'[');
                for index in 0..self.draw.below(5) {
                    self.comma(index);
                    self.value(levels - 1);
                }
                self.close(b']');
            }
            13 if levels > 0 => self.names(),
            14 if levels > 0 && self.draw.once_in(3) => self.deep(),
            _ => self.push("{}"),
        }
    }
}

/// Bytes of a text changed here and there.
pub fn damage(draw: &mut Draw<'_>, out: &mut Vec<u8>) {
    for _ in 0..1 + draw.below(2) {
        let at = draw.below(out.len().max(1));
        match draw.below(5) {
            0 if at < out.len() => {
                out.remove(at);
            }
            1 => out.truncate(at),
            2 => out.insert(at, draw.one_of(b"\"\\{}[],: \n0-.eE\0\x1f\x80\xff")),
            3 if at < out.len() => out[at] ^= 1 << draw.below(8),
            _ => {
                let end = (at + 1 + draw.below(32)).min(out.len());
                let piece = out[at..end].to_vec();
                out.splice(at..at, piece);
            }
        }
    }
}
