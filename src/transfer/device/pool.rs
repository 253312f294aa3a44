//! Blocks in device memory, and staging that the host's processors and the device reach: copies between
//! the two run while others work, and are asked about.
//!
//! Block id i lies at the device's address `base + i * block_bytes`. A copy owns its staging while it
//! runs, and gives it back when it is done; then its bytes are in their place. Dropping a copy waits for
//! it. Copies of one pool are done in the order in which they were begun.
//!
//! Guards: an id outside of the pool is never turned into an address; staging that a device may still
//! touch is never given back or used again: where a failed device cannot say, it is leaked. What may be
//! *accessed* when is not known here: a source gathers only from blocks that are pinned, a destination
//! scatters only into blocks that are lent.
//! Never does: wait, but in a drop and after a failure.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::driver::{DeviceDriver, DeviceError, Event};
use super::plan::{plan, Direction, Plan};
use crate::transfer::memory::{BadPool, BlockMemory};
use crate::transfer::transport::Segment;

/// Room for a launch's table behind the bytes of a staging buffer.
const TABLE_BYTES: usize = 64 << 10;
/// Lengths of buffers are multiples of this, so that most can be used again for other runs.
const BUFFER_UNIT_BYTES: usize = 128 << 10;
/// Most bytes of buffers that are kept for later: they are slow to get.
const MAX_SPARE_BYTES: usize = 128 << 20;
/// What tables and bytes of staging are aligned to.
const ALIGNMENT: usize = 16;

/// A pool of blocks in device memory.
pub struct DevicePool {
    home: Arc<Home>,
    base: u64,
    block_bytes: usize,
    block_count: usize,
}

/// Where staging comes from and goes back to.
struct Home {
    driver: Arc<dyn DeviceDriver>,
    spare: Mutex<Vec<Buffer>>,
}

/// Memory that the device reaches, and an event for the copy that has it.
struct Buffer {
    memory: *mut u8,
    bytes: usize,
    event: Event,
}

// SAFETY: memory that is this buffer's alone, wherever it is.
unsafe impl Send for Buffer {}

/// Staging. Dropping it gives it back for later use.
pub struct PinnedStaging {
    home: Arc<Home>,
    /// `None` only while it is dropped.
    buffer: Option<Buffer>,
    len: usize,
}

// SAFETY: a shared reference gives nothing but a slice of bytes.
unsafe impl Sync for PinnedStaging {}

/// A copy that was begun.
pub struct RunningCopy {
    /// `None` when it was seen to be done, or to have failed.
    staging: Option<PinnedStaging>,
}

impl DevicePool {
    /// A pool at a device's address.
    ///
    /// # Safety
    /// `base` is the address of `block_bytes * block_count` bytes that the driver's device reaches, and
    /// that stay valid as long as the pool and its copies. Whoever else has this memory does not write
    /// blocks that are pinned in the reuse tree, and does not touch blocks that are lent to a prefetch:
    /// not after the moment that [`DeviceDriver::follow_host`] waits for.
    pub unsafe fn new(
        driver: Arc<dyn DeviceDriver>,
        base: u64,
        block_bytes: usize,
        block_count: usize,
    ) -> Result<Self, BadPool> {
        if base == 0 || block_bytes == 0 || block_count == 0 {
            return Err(BadPool::Empty);
        }
        let bytes = block_bytes.checked_mul(block_count).ok_or(BadPool::TooLarge)?;
        let end = base.checked_add(bytes as u64);
        if bytes > isize::MAX as usize || end.is_none() || block_count > i32::MAX as usize {
            return Err(BadPool::TooLarge);
        }
        let home = Arc::new(Home { driver, spare: Mutex::default() });
        Ok(Self { home, base, block_bytes, block_count })
    }

    fn address(&self, id: i32) -> Option<u64> {
        let slot = usize::try_from(id).ok().filter(|slot| *slot < self.block_count)?;
        Some(self.base + (slot * self.block_bytes) as u64)
    }

    /// Staging of so many bytes, whatever they are. `None` without memory.
    pub fn staging(&self, len: usize) -> Option<PinnedStaging> {
        let bytes = len.checked_add(ALIGNMENT + TABLE_BYTES)?;
        let spare = {
            let mut spare = self.home.spare.lock();
            let fitting = spare.iter().position(|buffer| buffer.bytes >= bytes);
            fitting.map(|index| spare.swap_remove(index))
        };
        let buffer = match spare {
            Some(buffer) => buffer,
            None => self.home.new_buffer(bytes.checked_next_multiple_of(BUFFER_UNIT_BYTES)?)?,
        };
        Some(PinnedStaging { home: Arc::clone(&self.home), buffer: Some(buffer), len })
    }

    /// Begins to copy `pieces` of each of these blocks, all of it where there are none, into staging,
    /// part by part, or out of it. On an error nothing runs, and nothing that was written counts.
    pub fn begin(
        &self,
        direction: Direction,
        ids: &[i32],
        pieces: Option<&[Range<usize>]>,
        staging: PinnedStaging,
    ) -> Result<RunningCopy, DeviceError> {
        let whole = 0..self.block_bytes;
        let pieces = pieces.unwrap_or(std::slice::from_ref(&whole));
        let part_bytes = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let blocks: Option<Vec<u64>> = ids.iter().map(|id| self.address(*id)).collect();
        let driver = &*self.home.driver;
        let room = if driver.has_kernels() { TABLE_BYTES } else { 0 };
        let plan = blocks
            .filter(|_| part_bytes.checked_mul(ids.len()) == Some(staging.len))
            .and_then(|blocks| plan(&blocks, self.block_bytes, pieces, room))
            .ok_or(DeviceError::NoPlan)?;
        // From here on the device may touch the staging: dropping this waits.
        let mut copy = RunningCopy { staging: Some(staging) };
        let begun = copy.begin(direction, &plan);
        if let Err(error) = begun {
            // Begun in part, perhaps, and its event was not recorded.
            copy.staging.take().into_iter().for_each(PinnedStaging::given_up);
            return Err(error);
        }
        Ok(copy)
    }
}

// SAFETY: no block is said to lie anywhere in the host's memory.
unsafe impl BlockMemory for DevicePool {
    fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    fn block(&self, _id: i32) -> Option<Segment> {
        None
    }

    fn contains(&self, id: i32) -> bool {
        self.address(id).is_some()
    }

    fn device(&self) -> Option<&DevicePool> {
        Some(self)
    }
}

impl Home {
    fn new_buffer(&self, bytes: usize) -> Option<Buffer> {
        let event = self.driver.create_event().ok()?;
        match self.driver.allocate(bytes) {
            Ok(memory) => {
                // SAFETY: just allocated, as long as that. Cleared once, so that it is never read
                // before it was written.
                unsafe { memory.write_bytes(0, bytes) };
                Some(Buffer { memory, bytes, event })
            }
            Err(_) => {
                self.driver.destroy_event(event);
                None
            }
        }
    }

    fn free(&self, buffer: Buffer) {
        // SAFETY: from `allocate`; only buffers that no copy has get here.
        unsafe { self.driver.free(buffer.memory) };
        self.driver.destroy_event(buffer.event);
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for buffer in std::mem::take(self.spare.get_mut()) {
            self.free(buffer);
        }
    }
}

impl PinnedStaging {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        let buffer = self.buffer();
        // SAFETY: at least that long, initialised, and nobody else's: a copy that runs owns its staging.
        unsafe { std::slice::from_raw_parts(buffer.memory, self.len) }
    }

    /// Where it lies.
    pub fn segment(&mut self) -> Segment {
        Segment { data: self.buffer().memory, len: self.len }
    }

    fn buffer(&self) -> &Buffer {
        self.buffer.as_ref().expect("there until it is dropped")
    }

    /// Ends a copy of which the device does not say when it is done: with all it was asked, it is. A
    /// device that does not say even that has failed; what it may still touch is let go of.
    fn given_up(mut self) {
        if self.home.driver.wait_for_all().is_err() {
            self.buffer = None;
        }
    }
}

impl Drop for PinnedStaging {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        let mut spare = self.home.spare.lock();
        let kept: usize = spare.iter().map(|buffer| buffer.bytes).sum();
        if kept + buffer.bytes <= MAX_SPARE_BYTES {
            spare.push(buffer);
        } else {
            drop(spare);
            self.home.free(buffer);
        }
    }
}

impl RunningCopy {
    fn begin(&self, direction: Direction, plan: &Plan) -> Result<(), DeviceError> {
        let Some(staging) = &self.staging else { return Ok(()) };
        let driver = &*staging.home.driver;
        let Buffer { memory, event, .. } = *staging.buffer();
        driver.follow_host()?;
        match plan {
            Plan::Copies(copies) => {
                for copy in copies {
                    // SAFETY: the plan moves bytes of blocks that are in the pool, and of staging that
                    // is as long as its parts; both stay until the event is seen, or waited for.
                    unsafe { driver.copy(direction, *copy, memory)? };
                }
            }
            Plan::Kernel(launch) => {
                // SAFETY: behind the staging's bytes, where buffers have room for the longest table that
                // was allowed, aligned; nobody else has it.
                let table = unsafe {
                    let table = memory.add(staging.len.next_multiple_of(ALIGNMENT)).cast::<u64>();
                    let numbers = &launch.table;
                    std::ptr::copy_nonoverlapping(numbers.as_ptr(), table, numbers.len());
                    table
                };
                // SAFETY: as above; the table stays as long as the staging.
                unsafe { driver.launch(direction, launch, table, memory)? };
            }
        }
        driver.record(event)
    }

    /// `None` while it runs; then its staging, once: all bytes are in their place. An error: they are
    /// not, and will not be.
    pub fn poll(&mut self) -> Option<Result<PinnedStaging, DeviceError>> {
        let staging = self.staging.take()?;
        match staging.home.driver.is_done(staging.buffer().event) {
            Ok(true) => Some(Ok(staging)),
            Ok(false) => {
                self.staging = Some(staging);
                None
            }
            Err(error) => {
                staging.given_up();
                Some(Err(error))
            }
        }
    }
}

impl Drop for RunningCopy {
    fn drop(&mut self) {
        let Some(staging) = self.staging.take() else { return };
        if staging.home.driver.wait(staging.buffer().event).is_err() {
            staging.given_up();
        }
    }
}
