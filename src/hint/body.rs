//! A whole HTTP request body: the hint taken out of it and judged.
//!
//! What a server does before its schema validation: finds the top-level member `kv_hints`, judges
//! its value, and goes on with a body that has no such member any more.
//!
//! Guards: whoever parses the body after us must not see a hint that was not judged. So a body is
//! refused unless it is one strict JSON object (RFC 8259, strict UTF-8, no byte order mark), the
//! name is compared after unescaping, and of several such members all are removed and none is used.
//! Never does: judge the rest of the body by the rules for hints (its depth, its numbers, its
//! repeated names are its reader's business), change a byte that is not the member or its comma.

use std::collections::TryReserveError;
use std::ops::Range;

use super::admission::{admit, Ingress, Verdict};
use super::scan::{scan_at, Container, Integers, Lanes, NotJson, Scalar, ScanError, Sink, Text};
use super::scratch::Scratch;

/// The member of a request body that holds the hint.
pub(super) const MEMBER: &[u8] = b"kv_hints";

/// Why a body is refused; there is no body to go on with then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Over the cap.
    #[error("expected a body of at most {max_bytes} bytes, found {found_bytes}: send less")]
    TooLong {
        /// The cap.
        max_bytes: usize,
        /// The body's length.
        found_bytes: usize,
    },
    /// Not one MessagePack map with string keys.
    #[error("expected one MessagePack map with string keys as the body, found something else: send that")]
    NotAMap,
    /// Not one strict JSON object.
    #[error("expected one strict JSON object as the body, found something else: send valid JSON")]
    NotAnObject,
    /// Memory could not be had.
    #[error("no memory for the body without its hint")]
    NoMemory(#[from] TryReserveError),
}

/// A body that was taken apart.
#[derive(Debug)]
pub struct SplitBody {
    /// What the hint came to.
    pub verdict: Verdict,
    /// The body without it.
    pub body: Vec<u8>,
}

/// Judges the hint of a request body and takes it out.
pub fn admit_body(
    body: &[u8],
    max_bytes: usize,
    ingress: Ingress<'_>,
    scratch: &mut Scratch,
) -> Result<SplitBody, BodyError> {
    let (hints, rest) = split(body, max_bytes, scratch)?;
    let verdict = match hints {
        Hints::None => Verdict::Absent,
        Hints::One { start, end } => admit(&body[start..end], ingress, scratch)?,
        Hints::Several { .. } => verdict_on_several(ingress),
    };
    Ok(SplitBody { verdict, body: rest })
}

/// None of several hints is the hint, whatever they say.
pub(super) fn verdict_on_several(ingress: Ingress<'_>) -> Verdict {
    match ingress.is_trusted() {
        true => Verdict::Malformed,
        false => Verdict::Untrusted,
    }
}

/// Where the hints of a body lie, and the body without them.
pub(super) fn split(
    body: &[u8],
    max_bytes: usize,
    scratch: &mut Scratch,
) -> Result<(Hints, Vec<u8>), BodyError> {
    if body.len() > max_bytes {
        return Err(BodyError::TooLong { max_bytes, found_bytes: body.len() });
    }
    let mut splice = Splice::new(body)?;
    scan_at(scratch.width, body, &mut scratch.stack, &mut splice).map_err(|error| match error {
        ScanError::NotJson(NotJson) => BodyError::NotAnObject,
        ScanError::NoMemory(error) => BodyError::NoMemory(error),
    })?;
    if !splice.is_object {
        return Err(BodyError::NotAnObject);
    }
    Ok(splice.finish())
}

/// The values of the members named [`MEMBER`].
#[derive(Debug, Clone, Copy)]
pub(super) enum Hints {
    None,
    One {
        start: usize,
        end: usize,
    },
    Several {
        /// Where the second one's member begins.
        second: usize,
    },
}

/// A top-level member that is being read.
#[derive(Clone, Copy)]
struct OpenMember {
    /// Its name's opening quote.
    start: usize,
    value_start: usize,
    is_hint: bool,
}

/// The sink that copies a body without its hints.
struct Splice<'b> {
    body: &'b [u8],
    out: Vec<u8>,
    /// From here on the body is not copied yet.
    copied_to: usize,
    depth: usize,
    is_object: bool,
    member: Option<OpenMember>,
    /// The hint just read, until the next comma or the end says which comma goes with it.
    cut: Option<Range<usize>>,
    /// Where in `out` the comma behind the last kept member will be, if no kept member followed.
    dangling_comma: Option<usize>,
    hints: Hints,
}

impl<'b> Splice<'b> {
    fn new(body: &'b [u8]) -> Result<Self, TryReserveError> {
        let mut out = Vec::new();
        out.try_reserve_exact(body.len())?;
        Ok(Self {
            body,
            out,
            copied_to: 0,
            depth: 0,
            is_object: false,
            member: None,
            cut: None,
            dangling_comma: None,
            hints: Hints::None,
        })
    }

    /// Copies up to `cut` and leaves it out.
    fn leave_out(&mut self, cut: Range<usize>) {
        self.out.extend_from_slice(&self.body[self.copied_to..cut.start]);
        self.copied_to = cut.end;
    }

    fn value_starts(&mut self, at: usize) {
        if self.depth == 1 {
            if let Some(member) = &mut self.member {
                member.value_start = at;
            }
        }
    }

    fn value_ended(&mut self, end: usize) {
        if self.depth != 1 {
            return;
        }
        let Some(member) = self.member.take() else { return };
        if !member.is_hint {
            self.dangling_comma = None;
            return;
        }
        self.cut = Some(member.start..end);
        self.hints = match self.hints {
            Hints::None => Hints::One { start: member.value_start, end },
            Hints::One { .. } => Hints::Several { second: member.start },
            several => several,
        };
    }

    /// The hints, and the body without them.
    fn finish(mut self) -> (Hints, Vec<u8>) {
        self.out.extend_from_slice(&self.body[self.copied_to..]);
        (self.hints, self.out)
    }
}

impl Sink for Splice<'_> {
    fn open(&mut self, at: usize, container: Container) {
        self.value_starts(at);
        if self.depth == 0 {
            self.is_object = container == Container::Object;
        }
        self.depth += 1;
    }

    fn close(&mut self, at: usize, _container: Container) {
        self.depth -= 1;
        self.value_ended(at + 1);
        if self.depth == 0 {
            // The last member was a hint: the comma before it goes, if a member was kept at all.
            if let Some(cut) = self.cut.take() {
                self.leave_out(cut);
                if let Some(comma) = self.dangling_comma {
                    self.out.remove(comma);
                }
            }
        }
    }

    fn name(&mut self, name: Text) {
        if self.depth == 1 {
            let is_hint = name.equals(self.body, MEMBER);
            self.member = Some(OpenMember { start: name.start - 1, value_start: 0, is_hint });
        }
    }

    fn scalar(&mut self, scalar: Scalar) {
        self.value_starts(scalar.start());
        self.value_ended(scalar.end());
    }

    /// Elements of an array are copied with what is around them.
    fn integers<L: Lanes>(&mut self, _input: &[u8], _run: Integers) {}

    fn comma(&mut self, at: usize) {
        if self.depth != 1 {
            return;
        }
        match self.cut.take() {
            Some(cut) => {
                self.leave_out(cut);
                self.leave_out(at..at + 1);
            }
            None => self.dangling_comma = Some(self.out.len() + (at - self.copied_to)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(body: &str) -> Result<(String, String), BodyError> {
        let mut scratch = Scratch::new(7);
        let split = admit_body(body.as_bytes(), 1 << 20, Ingress::InProcess, &mut scratch)?;
        let verdict = format!("{:?}", split.verdict);
        let word = verdict.split('(').next().unwrap_or_default().to_owned();
        Ok((word, String::from_utf8(split.body).expect("UTF-8 stays UTF-8")))
    }

    const HINT: &str = r#"{"protocol_version":"0.1","message_id":"m","actions":[]}"#;

    #[test]
    fn the_member_and_one_comma_go_and_all_else_stays() {
        for (body, rest) in [
            (r#"{"kv_hints":@}"#, "{}"),
            (r#"{"kv_hints":@,"a":1}"#, r#"{"a":1}"#),
            (r#"{"a":1,"kv_hints":@}"#, r#"{"a":1}"#),
            (r#"{"a":1,"kv_hints":@,"b":2}"#, r#"{"a":1,"b":2}"#),
            (r#" { "a" : 1 , "kv_hints" : @ } "#, r#" { "a" : 1   } "#),
            (r#" { "kv_hints" : @ , "a" : 1 } "#, r#" {   "a" : 1 } "#),
            (r#"{"a":{"kv_hints":1},"kv_hint\u0073":@}"#, r#"{"a":{"kv_hints":1}}"#),
            (r#"{"a":[1,2],"kv_hints":@,"c":"\/"}"#, r#"{"a":[1,2],"c":"\/"}"#),
        ] {
            let outcome = split(&body.replace('@', HINT)).expect("an object");
            assert_eq!(outcome, ("Admitted".to_owned(), rest.to_owned()), "{body}");
            let null = split(&body.replace('@', "null")).expect("an object");
            assert_eq!(null, ("Absent".to_owned(), rest.to_owned()), "{body}");
        }
    }

    #[test]
    fn of_several_none_is_used_and_all_go() {
        for (body, rest) in [
            (r#"{"kv_hints":@,"kv_hints":@}"#, "{}"),
            (r#"{"kv_hints":null,"kv_hints":null}"#, "{}"),
            (r#"{"a":1,"kv_hints":@,"kv_\u0068ints":@}"#, r#"{"a":1}"#),
            (r#"{"kv_hints":@,"a":1,"kv_hints":@}"#, r#"{"a":1}"#),
            (r#"{"kv_hints":@,"a":1,"kv_hints":@,"b":[]}"#, r#"{"a":1,"b":[]}"#),
            (r#"{"a":1,"kv_hints":@,"b":2,"kv_hints":@,"kv_hints":@}"#, r#"{"a":1,"b":2}"#),
        ] {
            let outcome = split(&body.replace('@', HINT)).expect("an object");
            assert_eq!(outcome, ("Malformed".to_owned(), rest.to_owned()), "{body}");
        }
    }

    #[test]
    fn a_body_without_a_hint_stays_as_it_is() {
        for body in ["{}", " {\n} ", r#"{"a":[{"kv_hints":1}],"KV_HINTS":2,"a":NAN"#] {
            match split(body) {
                Ok((verdict, rest)) => {
                    assert_eq!((verdict.as_str(), rest.as_str()), ("Absent", body));
                }
                Err(error) => {
                    assert_eq!((error, body.contains("NAN")), (BodyError::NotAnObject, true))
                }
            }
        }
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(5000), "]".repeat(5000));
        assert_eq!(split(&deep).expect("an object").1, deep);
    }

    #[test]
    fn what_is_no_strict_object_is_refused() {
        for body in [
            "",
            " ",
            "null",
            "[]",
            "1",
            "\"a\"",
            "{",
            "{}{}",
            "{} x",
            "\u{feff}{}",
            "{'a':1}",
            r#"{"a":NaN}"#,
            r#"{"a":1,}"#,
            r#"{"a":"\ud800"}"#,
            r#"{"a":01}"#,
            "{\"a\":\"\t\"}",
            r#"{"kv_hints":{"a":1,},"b":1}"#,
            r#"{/**/}"#,
        ] {
            assert_eq!(split(body).err(), Some(BodyError::NotAnObject), "{body}");
        }
        let too_long = format!("{{}}{}", " ".repeat(1 << 20));
        assert!(matches!(split(&too_long), Err(BodyError::TooLong { .. })));
    }

    #[test]
    fn untrusted_hints_go_too() {
        let mut scratch = Scratch::new(7);
        for body in [r#"{"kv_hints":{{"#, r#"{"kv_hints":1}"#, r#"{"kv_hints":1,"kv_hints":2}"#] {
            let ingress = Ingress::Http { trusted: false };
            match admit_body(body.as_bytes(), 1 << 20, ingress, &mut scratch) {
                Ok(SplitBody { verdict, body }) => {
                    assert!(matches!(verdict, Verdict::Untrusted));
                    assert_eq!(body, b"{}");
                }
                Err(error) => assert_eq!((error, body.len()), (BodyError::NotAnObject, 14)),
            }
        }
    }
}
