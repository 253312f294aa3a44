//! How the bytes that a fuzzer makes become a hint. Also read by the test that replays the corpus.

/// What an input's first byte means.
enum Mode {
    /// The rest as it is, over a distrusted ingress.
    Untrusted,
    /// Each byte 0x7f becomes 16,384 letters, up to five times.
    Long,
    /// More than 1 MiB of blanks behind the rest.
    TooLong,
    /// The rest as it is.
    Plain,
}

impl Mode {
    fn of(byte: u8) -> Self {
        match byte {
            0xa0 => Mode::Untrusted,
            0xa1 => Mode::Long,
            0xa2 => Mode::TooLong,
            _ => Mode::Plain,
        }
    }
}

/// A hint, and whether its ingress is trusted.
pub fn prepared(data: &[u8]) -> (Vec<u8>, bool) {
    let Some((first, rest)) = data.split_first() else { return (Vec::new(), true) };
    match Mode::of(*first) {
        Mode::Untrusted => (rest.to_vec(), false),
        Mode::Plain => (rest.to_vec(), true),
        Mode::TooLong => {
            let mut raw = rest.to_vec();
            raw.resize(raw.len() + (1 << 20) + 1, b' ');
            (raw, true)
        }
        Mode::Long => {
            let mut raw = Vec::new();
            let mut times = 0;
            for byte in rest {
                if *byte == 0x7f && times < 5 {
                    times += 1;
                    raw.resize(raw.len() + 16_384, b'x');
                } else {
                    raw.push(*byte);
                }
            }
            (raw, true)
        }
    }
}
