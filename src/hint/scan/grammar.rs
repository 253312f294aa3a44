//! The grammar of RFC 8259 as one loop: a value begins, a value has ended, and again.

use super::{
    runs, text, Container, ContainerStack, NotJson, Number, Scalar, ScanError, Sink, Text,
};

/// Reads `input` as exactly one JSON text and tells `sink` all of it. `stack` is scratch.
///
/// A sink's calls keep to the grammar even where the text breaks it later: each `name` lies in an
/// object, each `close` follows its `open`.
pub fn scan<S: Sink>(
    input: &[u8],
    stack: &mut ContainerStack,
    sink: &mut S,
) -> Result<(), ScanError> {
    stack.clear();
    let mut reader = Reader { input, at: 0, sink };
    loop {
        // A value begins.
        match reader.token()? {
            b'{' => {
                reader.open(stack, Container::Object)?;
                if reader.token()? != b'}' {
                    reader.name()?;
                    continue;
                }
                reader.close(stack, Container::Object);
            }
            b'[' => {
                reader.open(stack, Container::Array)?;
                if reader.token()? != b']' {
                    continue;
                }
                reader.close(stack, Container::Array);
            }
            first => reader.scalar(first)?,
        }
        // A value has ended, and perhaps the containers around it.
        loop {
            let Some(container) = stack.top() else { return Ok(reader.end()?) };
            match (reader.token()?, container) {
                (b',', Container::Array) => {
                    reader.comma();
                    reader.integers();
                }
                (b',', Container::Object) => {
                    reader.comma();
                    reader.name()?;
                }
                (b']', Container::Array) | (b'}', Container::Object) => {
                    reader.close(stack, container);
                    continue;
                }
                _ => return Err(NotJson.into()),
            }
            break;
        }
    }
}

struct Reader<'i, 's, S> {
    input: &'i [u8],
    at: usize,
    sink: &'s mut S,
}

impl<S: Sink> Reader<'_, '_, S> {
    /// The next byte that is no blank, without passing it.
    #[inline(always)]
    fn token(&mut self) -> Result<u8, NotJson> {
        let byte = *self.input.get(self.at).ok_or(NotJson)?;
        // Nothing in JSON but blanks is that small.
        if byte > b' ' {
            return Ok(byte);
        }
        self.skip_blanks();
        self.input.get(self.at).copied().ok_or(NotJson)
    }

    fn skip_blanks(&mut self) {
        // One blank is the usual case.
        let mut end = self.at;
        while end < self.at + 2 && self.input.get(end).is_some_and(|byte| runs::is_blank(*byte)) {
            end += 1;
        }
        if end == self.at + 2 {
            end = runs::blanks_end(self.input, end);
        }
        if end > self.at {
            self.sink.blanks(self.at..end);
            self.at = end;
        }
    }

    #[inline(always)]
    fn open(&mut self, stack: &mut ContainerStack, container: Container) -> Result<(), ScanError> {
        // As many as half of all bytes can be closed again: bounds the stack.
        if stack.len() > self.input.len() / 2 {
            return Err(NotJson.into());
        }
        stack.push(container)?;
        self.sink.open(self.at, container);
        self.at += 1;
        Ok(())
    }

    #[inline(always)]
    fn close(&mut self, stack: &mut ContainerStack, container: Container) {
        stack.pop();
        self.sink.close(self.at, container);
        self.at += 1;
    }

    #[inline(always)]
    fn comma(&mut self) {
        self.sink.comma(self.at);
        self.at += 1;
    }

    /// A member's name and the colon after it.
    #[inline]
    fn name(&mut self) -> Result<(), NotJson> {
        if self.token()? != b'"' {
            return Err(NotJson);
        }
        let name = self.text()?;
        self.sink.name(name);
        if self.token()? != b':' {
            return Err(NotJson);
        }
        self.at += 1;
        Ok(())
    }

    #[inline(always)]
    fn scalar(&mut self, first: u8) -> Result<(), NotJson> {
        let at = self.at;
        let scalar = match first {
            b'-' | b'0'..=b'9' => Scalar::Number(Number::read(self.input, at)?),
            b'"' => Scalar::Text(self.text()?),
            b't' if self.input[at..].starts_with(b"true") => Scalar::True(at),
            b'f' if self.input[at..].starts_with(b"false") => Scalar::False(at),
            b'n' if self.input[at..].starts_with(b"null") => Scalar::Null(at),
            _ => return Err(NotJson),
        };
        self.at = scalar.end();
        self.sink.scalar(scalar);
        Ok(())
    }

    /// Elements that are integers, each with at most one blank before and a comma right behind it,
    /// as far as they go; what comes next is read as any element.
    #[inline]
    fn integers(&mut self) {
        loop {
            let start = match self.input.get(self.at..self.at + 2) {
                Some([b'1'..=b'9', _]) => self.at,
                Some([b' ', b'1'..=b'9']) => self.at + 1,
                _ => return,
            };
            let end = runs::digits_end(self.input, start + 1);
            if self.input.get(end) != Some(&b',') {
                return;
            }
            if start > self.at {
                self.sink.blanks(self.at..start);
            }
            self.sink.integer(start..end);
            self.sink.comma(end);
            self.at = end + 1;
        }
    }

    /// The string whose opening quote is here.
    #[inline]
    fn text(&mut self) -> Result<Text, NotJson> {
        let start = self.at + 1;
        let mut escaped = false;
        let mut at = start;
        loop {
            at = runs::plain_end(self.input, at);
            match *self.input.get(at).ok_or(NotJson)? {
                b'"' => break,
                b'\\' => {
                    escaped = true;
                    let (end, character) = text::escape(self.input, at)?;
                    self.sink.escape(start, at..end, character);
                    at = end;
                }
                0x80.. => {
                    let end = runs::non_ascii_end(self.input, at);
                    std::str::from_utf8(&self.input[at..end]).map_err(|_| NotJson)?;
                    at = end;
                }
                // A control character.
                _ => return Err(NotJson),
            }
        }
        self.at = at + 1;
        Ok(Text { start, end: at, escaped })
    }

    /// Nothing may follow the text but blanks.
    fn end(&mut self) -> Result<(), NotJson> {
        self.skip_blanks();
        if self.at == self.input.len() {
            Ok(())
        } else {
            Err(NotJson)
        }
    }
}
