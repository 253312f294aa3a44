//! Walks over MessagePack values without looking into them.
//!
//! Guards: lengths that the bytes cannot hold; text that is no UTF-8; the byte that means nothing.
//! Never does: recurse or remember: of all containers that are open only how many values they
//! still want together.

use rmp::Marker;

/// The bytes are not the MessagePack they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotMsgpack;

/// Bytes that are read from the front.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'r> {
    rest: &'r [u8],
}

impl<'r> Reader<'r> {
    /// Begins at the first byte.
    pub fn new(bytes: &'r [u8]) -> Self {
        Self { rest: bytes }
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// How many members the map has that begins here.
    pub fn map_header(&mut self) -> Result<usize, NotMsgpack> {
        match self.marker()? {
            Marker::FixMap(len) => Ok(usize::from(len)),
            Marker::Map16 => self.length::<2>(),
            Marker::Map32 => self.length::<4>(),
            _ => Err(NotMsgpack),
        }
    }

    /// The string that begins here.
    pub fn string(&mut self) -> Result<&'r [u8], NotMsgpack> {
        let len = match self.marker()? {
            Marker::FixStr(len) => usize::from(len),
            Marker::Str8 => self.length::<1>()?,
            Marker::Str16 => self.length::<2>()?,
            Marker::Str32 => self.length::<4>()?,
            _ => return Err(NotMsgpack),
        };
        self.text(len)
    }

    /// Passes the value that begins here, whatever it is.
    pub fn skip(&mut self) -> Result<(), NotMsgpack> {
        // Never more than the bytes that are left: each value takes one at least.
        let mut due: usize = 1;
        while due > 0 {
            due -= 1;
            let inside = self.skip_head()?;
            due =
                due.checked_add(inside).filter(|due| *due <= self.rest.len()).ok_or(NotMsgpack)?;
        }
        Ok(())
    }

    /// Passes a value that is no container, or a container's head: how many values are inside.
    fn skip_head(&mut self) -> Result<usize, NotMsgpack> {
        let payload = match self.marker()? {
            Marker::FixPos(_) | Marker::FixNeg(_) => 0,
            Marker::Null | Marker::True | Marker::False => 0,
            Marker::U8 | Marker::I8 => 1,
            Marker::U16 | Marker::I16 => 2,
            Marker::U32 | Marker::I32 | Marker::F32 => 4,
            Marker::U64 | Marker::I64 | Marker::F64 => 8,
            Marker::FixStr(len) => return self.text(usize::from(len)).map(|_| 0),
            Marker::Str8 => return self.long_text::<1>(),
            Marker::Str16 => return self.long_text::<2>(),
            Marker::Str32 => return self.long_text::<4>(),
            Marker::Bin8 => self.length::<1>()?,
            Marker::Bin16 => self.length::<2>()?,
            Marker::Bin32 => self.length::<4>()?,
            // An extension has a byte for its type before its data.
            Marker::FixExt1 => 1 + 1,
            Marker::FixExt2 => 1 + 2,
            Marker::FixExt4 => 1 + 4,
            Marker::FixExt8 => 1 + 8,
            Marker::FixExt16 => 1 + 16,
            Marker::Ext8 => self.length::<1>()?.saturating_add(1),
            Marker::Ext16 => self.length::<2>()?.saturating_add(1),
            Marker::Ext32 => self.length::<4>()?.saturating_add(1),
            Marker::FixArray(len) => return Ok(usize::from(len)),
            Marker::Array16 => return self.length::<2>(),
            Marker::Array32 => return self.length::<4>(),
            Marker::FixMap(len) => return Ok(usize::from(len) * 2),
            Marker::Map16 => return Ok(self.length::<2>()? * 2),
            Marker::Map32 => return Ok(self.length::<4>()?.saturating_mul(2)),
            Marker::Reserved => return Err(NotMsgpack),
        };
        self.take(payload).map(|_| 0)
    }

    fn marker(&mut self) -> Result<Marker, NotMsgpack> {
        Ok(Marker::from_u8(self.take(1)?[0]))
    }

    /// A length of `N` bytes, big-endian.
    fn length<const N: usize>(&mut self) -> Result<usize, NotMsgpack> {
        let bytes = self.take(N)?;
        Ok(bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
    }

    fn long_text<const N: usize>(&mut self) -> Result<usize, NotMsgpack> {
        let len = self.length::<N>()?;
        self.text(len).map(|_| 0)
    }

    fn text(&mut self, len: usize) -> Result<&'r [u8], NotMsgpack> {
        let text = self.take(len)?;
        std::str::from_utf8(text).map(str::as_bytes).map_err(|_| NotMsgpack)
    }

    fn take(&mut self, len: usize) -> Result<&'r [u8], NotMsgpack> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(NotMsgpack)?;
        self.rest = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_value_is_passed_and_a_short_one_is_not() {
        let kinds: [(&[u8], usize); 26] = [
            (b"\x00", 1),
            (b"\xff", 1),
            (b"\xc0", 1),
            (b"\xc3", 1),
            (b"\xcc\x01", 2),
            (b"\xd1\x01\x02", 3),
            (b"\xca\0\0\0\0", 5),
            (b"\xcf\0\0\0\0\0\0\0\0", 9),
            (b"\xa2ab", 3),
            (b"\xd9\x02ab", 4),
            (b"\xda\0\x02ab", 5),
            (b"\xdb\0\0\0\x02ab", 7),
            (b"\xc4\x02\xff\xff", 4),
            (b"\xc5\0\x02\xff\xff", 5),
            (b"\xc6\0\0\0\x02\xff\xff", 7),
            (b"\xd4\x01\xff", 3),
            (b"\xd8\x010123456789abcdef", 18),
            (b"\xc7\x02\x01\xff\xff", 5),
            (b"\xc8\0\x02\x01\xff\xff", 6),
            (b"\xc9\0\0\0\x02\x01\xff\xff", 8),
            (b"\x92\x01\x91\xc0", 4),
            (b"\xdc\0\x02\x01\x02", 5),
            (b"\xdd\0\0\0\x02\x01\x02", 7),
            (b"\x82\xa1a\x01\xc0\x80", 6),
            (b"\xde\0\x01\x01\x02", 5),
            (b"\xdf\0\0\0\x01\x01\x02", 7),
        ];
        for (bytes, len) in kinds {
            assert_eq!(bytes.len(), len);
            let mut longer = bytes.to_vec();
            longer.push(0);
            let mut reader = Reader::new(&longer);
            assert_eq!((reader.skip(), reader.left()), (Ok(()), 1), "{bytes:x?}");
            for short in 0..len {
                assert_eq!(Reader::new(&bytes[..short]).skip(), Err(NotMsgpack), "{bytes:x?}");
            }
        }
    }

    #[test]
    fn lies_and_depth_cost_nothing() {
        for lie in [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"] {
            assert_eq!(Reader::new(lie).skip(), Err(NotMsgpack));
        }
        assert_eq!(Reader::new(b"\xc1").skip(), Err(NotMsgpack));
        assert_eq!(Reader::new(b"\xa2\xff\xff").skip(), Err(NotMsgpack));
        let mut deep = vec![0x91; 1 << 20];
        deep.push(0xc0);
        assert_eq!(Reader::new(&deep).skip(), Ok(()));
    }
}
