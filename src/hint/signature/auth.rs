//! Where a text's top-level member `auth` and its parts lie.
//!
//! Never does: look at the values of the parts beyond their kind, or at any other member.

use std::ops::Range;

use crate::hint::scan::{Container, Integers, Lanes, Number, Scalar, Sink, Text};

/// The parts of `auth`, as offsets into the text.
#[derive(Debug, Clone, Default)]
pub struct Auth {
    pub key_id: Option<Text>,
    pub algorithm: Option<Text>,
    pub expiry: Option<Number>,
    pub audience: Option<Text>,
    pub nonce: Option<Text>,
    pub mac: Option<Text>,
    /// The member `mac` with one of the commas beside it.
    pub mac_cut: Range<usize>,
}

/// The parts that there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    KeyId,
    Algorithm,
    Expiry,
    Audience,
    Nonce,
    Mac,
}

const PARTS: [(&[u8], Part); 6] = [
    (b"key_id", Part::KeyId),
    (b"alg", Part::Algorithm),
    (b"exp", Part::Expiry),
    (b"aud", Part::Audience),
    (b"nonce", Part::Nonce),
    (b"mac", Part::Mac),
];

/// The sink that finds it.
pub struct AuthFinder<'i> {
    input: &'i [u8],
    auth: Auth,
    depth: usize,
    /// Members named `auth` at the top.
    found: usize,
    /// Something about `auth` is not as it must be.
    is_odd: bool,
    /// The value that comes next at the top is that of `auth`.
    is_next: bool,
    is_inside: bool,
    part: Option<Part>,
    /// The last comma between two parts.
    comma: Option<usize>,
    /// `mac` was just read: the comma behind it goes with it.
    is_cut_open: bool,
}

impl<'i> AuthFinder<'i> {
    /// Begins at the input's first byte.
    pub fn new(input: &'i [u8]) -> Self {
        Self {
            input,
            auth: Auth::default(),
            depth: 0,
            found: 0,
            is_odd: false,
            is_next: false,
            is_inside: false,
            part: None,
            comma: None,
            is_cut_open: false,
        }
    }

    /// The one `auth` there is, if it consists of known parts of the right kinds, each once.
    pub fn finish(self) -> Option<Auth> {
        (self.found == 1 && !self.is_odd).then_some(self.auth)
    }

    /// Whether there is an `auth` at all.
    pub fn has_any(&self) -> bool {
        self.found > 0
    }

    fn place_text(&mut self, part: Part, text: Text) {
        let place = match part {
            Part::KeyId => &mut self.auth.key_id,
            Part::Algorithm => &mut self.auth.algorithm,
            Part::Audience => &mut self.auth.audience,
            Part::Nonce => &mut self.auth.nonce,
            Part::Mac => &mut self.auth.mac,
            Part::Expiry => {
                self.is_odd = true;
                return;
            }
        };
        self.is_odd |= place.is_some();
        *place = Some(text);
        if part == Part::Mac {
            self.auth.mac_cut.end = text.end + 1;
            self.is_cut_open = true;
        }
    }
}

impl Sink for AuthFinder<'_> {
    fn open(&mut self, _at: usize, container: Container) {
        if self.depth == 1 && self.is_next {
            self.is_inside = container == Container::Object;
            self.is_odd |= !self.is_inside;
        } else if self.is_inside {
            // No part is a container.
            self.is_odd = true;
        }
        // The text itself may be an array; nothing in it has a name at the top then.
        self.depth += 1;
    }

    fn close(&mut self, _at: usize, _container: Container) {
        self.depth -= 1;
        if self.depth == 1 && self.is_inside {
            self.is_inside = false;
            if self.is_cut_open {
                self.is_cut_open = false;
                if let Some(comma) = self.comma {
                    self.auth.mac_cut.start = comma;
                }
            }
        }
    }

    fn name(&mut self, name: Text) {
        if self.depth == 1 {
            self.is_next = name.equals(self.input, b"auth");
            self.found += usize::from(self.is_next);
            self.is_odd |= self.found > 1;
        } else if self.is_inside && self.depth == 2 {
            let known = PARTS.iter().find(|(known, _)| name.equals(self.input, known));
            self.part = known.map(|(_, part)| *part);
            self.is_odd |= self.part.is_none();
            if self.part == Some(Part::Mac) {
                self.auth.mac_cut.start = name.start - 1;
            }
        }
    }

    fn scalar(&mut self, scalar: Scalar) {
        if self.depth == 1 {
            self.is_odd |= self.is_next;
            return;
        }
        if !self.is_inside || self.depth != 2 {
            return;
        }
        match (self.part, scalar) {
            (Some(Part::Expiry), Scalar::Number(number)) => {
                self.is_odd |= self.auth.expiry.is_some();
                self.auth.expiry = Some(number);
            }
            (Some(part), Scalar::Text(text)) => self.place_text(part, text),
            _ => self.is_odd = true,
        }
    }

    /// Elements of an array are no parts.
    fn integers<L: Lanes>(&mut self, _input: &[u8], _run: Integers) {}

    fn comma(&mut self, at: usize) {
        if !self.is_inside || self.depth != 2 {
            return;
        }
        if self.is_cut_open {
            self.is_cut_open = false;
            self.auth.mac_cut.end = at + 1;
        }
        self.comma = Some(at);
    }
}
