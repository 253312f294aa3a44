//! Buffers for what is received, used again: new memory costs more than receiving into it.
//!
//! A buffer goes back to its pool when the last view into it ends, on whatever thread that is.
//!
//! Guards: the pool keeps a bounded number of bounded buffers. Memory that cannot be had is an
//! error. A buffer taken again shows what was in it before only to whoever fills it.

use std::collections::TryReserveError;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Buffers kept for later.
const KEPT_BUFFERS: usize = 4;

/// A larger buffer is given back to the system.
const KEPT_BYTES: usize = 64 << 20;

/// Where buffers come from and go to.
#[derive(Debug, Clone, Default)]
pub struct BufferPool {
    kept: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// A buffer of some length, to be filled.
#[derive(Debug)]
pub struct PooledBuffer {
    /// At least `len` bytes: it never shrinks, so that nothing is zeroed twice.
    bytes: Vec<u8>,
    len: usize,
    pool: BufferPool,
}

impl BufferPool {
    /// A buffer of `len` bytes, whatever they are.
    pub fn take(&self, len: usize) -> Result<PooledBuffer, TryReserveError> {
        let mut bytes = self.take_best(len);
        if bytes.len() < len {
            // What is in it is not needed: a fresh one is not copied into.
            bytes.clear();
            bytes.try_reserve_exact(len)?;
            bytes.resize(len, 0);
        }
        Ok(PooledBuffer { bytes, len, pool: self.clone() })
    }

    /// The smallest that is long enough, else the longest.
    fn take_best(&self, len: usize) -> Vec<u8> {
        let mut kept = self.kept.lock();
        let best = (0..kept.len()).min_by_key(|index| {
            let found = kept[*index].len();
            if found >= len {
                (false, found)
            } else {
                (true, usize::MAX - found)
            }
        });
        best.map(|index| kept.swap_remove(index)).unwrap_or_default()
    }
}

impl PooledBuffer {
    /// The bytes to fill.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    /// Filled: from here on it does not change, and views may be taken.
    pub fn freeze(self) -> Bytes {
        if self.len == 0 {
            return Bytes::new();
        }
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.is_empty() || bytes.len() > KEPT_BYTES {
            return;
        }
        let mut kept = self.pool.kept.lock();
        if kept.len() < KEPT_BUFFERS && kept.try_reserve(1).is_ok() {
            kept.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_when_the_last_view_ends() {
        let pool = BufferPool::default();
        let mut first = pool.take(1000).expect("memory");
        first.as_mut_slice().fill(7);
        let place = first.as_ref().as_ptr();
        let view = first.freeze().slice(10..20);
        let other = pool.take(1000).expect("memory");
        assert_ne!(other.as_ref().as_ptr(), place, "the first one is still looked at");
        assert_eq!(view, [7; 10].as_slice());
        drop(view);
        let again = pool.take(500).expect("memory");
        assert_eq!(again.as_ref().as_ptr(), place);
        assert_eq!(again.as_ref().len(), 500);
    }

    #[test]
    fn the_best_fitting_buffer_is_taken_and_few_are_kept() {
        let pool = BufferPool::default();
        let taken: Vec<_> = (1..=KEPT_BUFFERS + 3).map(|size| pool.take(size * 100)).collect();
        drop(taken);
        assert_eq!(pool.kept.lock().len(), KEPT_BUFFERS);
        assert_eq!(pool.take(150).expect("memory").bytes.len(), 200);
        assert!(pool.take(100_000).expect("memory").as_mut_slice().len() == 100_000);
        drop(pool.take(KEPT_BYTES + 1).expect("memory"));
        assert!(pool.kept.lock().iter().all(|bytes| bytes.len() <= KEPT_BYTES));
    }
}
