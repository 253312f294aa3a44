//! A device that is none: its memory is the test's, its queue runs when the test says so, it fails at
//! the call that the test chose, and it finds out who touches memory that is gone.

// Each test file uses its part of this.
#![allow(dead_code)]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use kvhints::transfer::device::driver::{DeviceDriver, DeviceError, Event};
use kvhints::transfer::device::plan::{Copy, Direction, Launch, Plan, THREADS};
use parking_lot::Mutex;

/// What a launch does, thread by thread, as `kernels.cu` says it.
///
/// # Safety
/// As for [`DeviceDriver::launch`].
pub unsafe fn interpret(
    direction: Direction,
    launch: &Launch,
    table: *const u64,
    staging: *mut u8,
) {
    // SAFETY: the caller's promise.
    let number = |index: u64| unsafe { table.add(index as usize).read() };
    for x in 0..u64::from(launch.grid.0) {
        for y in 0..u64::from(launch.grid.1) {
            for thread in 0..u64::from(THREADS) {
                let first = y * u64::from(THREADS) + thread;
                let step = u64::from(launch.grid.1) * u64::from(THREADS);
                let mut unit = x;
                while unit < launch.block_count * launch.piece_count {
                    let (block, piece) = (unit / launch.piece_count, unit % launch.piece_count);
                    let at = launch.block_count + 3 * piece;
                    let in_block = number(block) + number(at);
                    let in_staging = block * launch.part_bytes + number(at + 2);
                    let mut word = first;
                    while word < number(at + 1) / launch.word_bytes {
                        let offset = word * launch.word_bytes;
                        let device = (in_block + offset) as *mut u8;
                        // SAFETY: the caller's promise.
                        unsafe {
                            let host = staging.add((in_staging + offset) as usize);
                            move_bytes(direction, device, host, launch.word_bytes as usize);
                        }
                        word += step;
                    }
                    unit += u64::from(launch.grid.0);
                }
            }
        }
    }
}

/// # Safety
/// Both are memory of so many bytes, aligned to as much.
unsafe fn move_bytes(direction: Direction, device: *mut u8, host: *mut u8, bytes: usize) {
    let (from, to) = match direction {
        Direction::Gather => (device, host),
        Direction::Scatter => (host, device),
    };
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy(from, to, bytes) };
}

/// Carries a whole plan out at once, with something that runs launches.
///
/// # Safety
/// As for [`DeviceDriver::copy`] and [`DeviceDriver::launch`].
pub unsafe fn carry_out(
    direction: Direction,
    plan: &Plan,
    staging: *mut u8,
    launched: &dyn Fn(Direction, &Launch, *const u64, *mut u8),
) {
    match plan {
        Plan::Copies(copies) => {
            for copy in copies {
                // SAFETY: the caller's promise.
                unsafe {
                    let host = staging.add(copy.staging_offset);
                    move_bytes(direction, copy.device as *mut u8, host, copy.bytes);
                }
            }
        }
        Plan::Kernel(launch) => launched(direction, launch, launch.table.as_ptr(), staging),
    }
}

/// Something in the queue.
#[derive(Debug, Clone)]
enum Work {
    Follow,
    Copy(Direction, Copy, usize),
    Launch(Direction, Launch, usize, usize),
    Record(Event),
}

/// What was asked, in order; the queue's work carries no addresses here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Follow,
    Copy(Direction),
    Launch(Direction),
    Record,
}

#[derive(Default)]
struct Inner {
    queue: VecDeque<Work>,
    /// Whether an event's last moment has come.
    events: BTreeMap<usize, bool>,
    /// Address and length of what is allocated.
    allocated: BTreeMap<usize, usize>,
    last_event: usize,
    asked: Vec<Asked>,
    calls: usize,
    fails_at: usize,
    stays_failed: bool,
    has_failed: bool,
    is_dead: bool,
    runs_at_once: bool,
    waits: usize,
    violations: Vec<String>,
}

/// The device.
pub struct FakeDevice {
    has_kernels: bool,
    inner: Mutex<Inner>,
    /// Called when somebody begins to wait.
    when_waited_for: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl FakeDevice {
    pub fn new(has_kernels: bool) -> Arc<Self> {
        let (inner, when_waited_for) = (Mutex::default(), Mutex::default());
        Arc::new(Self { has_kernels, inner, when_waited_for })
    }

    /// What is to be looked at when somebody begins to wait for the device.
    pub fn when_waited_for(&self, look: impl Fn() + Send + 'static) {
        *self.when_waited_for.lock() = Some(Box::new(look));
    }

    /// From now on everything is done as soon as it is asked, or only when told to.
    pub fn runs_at_once(&self, at_once: bool) {
        let mut inner = self.inner.lock();
        inner.runs_at_once = at_once;
        if at_once {
            inner.run(usize::MAX);
        }
    }

    /// Does the next so many things.
    pub fn run(&self, count: usize) {
        self.inner.lock().run(count);
    }

    /// What waits in the queue.
    pub fn pending(&self) -> usize {
        self.inner.lock().queue.len()
    }

    /// The n-th call from here on that can fail does, and all after it where it `stays` so.
    pub fn fails_at(&self, call: usize, stays: bool) {
        let mut inner = self.inner.lock();
        (inner.fails_at, inner.stays_failed) = (inner.calls + call, stays);
    }

    pub fn has_failed(&self) -> bool {
        self.inner.lock().has_failed
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.inner.lock().asked.clone()
    }

    pub fn waits(&self) -> usize {
        self.inner.lock().waits
    }

    pub fn allocations(&self) -> usize {
        self.inner.lock().allocated.len()
    }

    /// Nothing was touched that was gone, and an event was never asked about that is none.
    pub fn assert_clean(&self) {
        assert_eq!(self.inner.lock().violations, Vec::<String>::new());
    }
}

impl Inner {
    /// One call that can fail.
    fn call(&mut self, name: &'static str) -> Result<(), DeviceError> {
        self.calls += 1;
        if self.calls == self.fails_at {
            self.has_failed = true;
            if self.stays_failed {
                // A device that fails for good does nothing any more.
                self.is_dead = true;
                self.queue.clear();
            }
        } else if !self.is_dead {
            return Ok(());
        }
        Err(DeviceError::Refused { call: name, code: 700 })
    }

    fn ask(&mut self, asked: Asked, work: Work) {
        self.asked.push(asked);
        self.queue.push_back(work);
        if self.runs_at_once {
            self.run(usize::MAX);
        }
    }

    fn is_allocated(&self, address: usize, bytes: usize) -> bool {
        let before = self.allocated.range(..=address).next_back();
        before.is_some_and(|(start, len)| address + bytes <= start + len)
    }

    fn run(&mut self, count: usize) {
        for _ in 0..count {
            let Some(work) = self.queue.pop_front() else { return };
            match work {
                Work::Follow => {}
                Work::Record(event) => {
                    self.events.insert(event.0, true);
                }
                Work::Copy(direction, copy, staging) => {
                    let place = staging + copy.staging_offset;
                    if !self.is_allocated(place, copy.bytes) {
                        self.violations.push(format!("{direction:?} of staging that is gone"));
                        continue;
                    }
                    let device = copy.device as *mut u8;
                    // SAFETY: staging is there, as was just looked up, and the test's device memory
                    // outlives the device.
                    unsafe { move_bytes(direction, device, place as *mut u8, copy.bytes) };
                }
                Work::Launch(direction, launch, table, staging) => {
                    let bytes = (launch.block_count * launch.part_bytes) as usize;
                    let table_bytes = launch.table.len() * 8;
                    if !self.is_allocated(staging, bytes) || !self.is_allocated(table, table_bytes)
                    {
                        self.violations.push(format!("{direction:?} of staging that is gone"));
                        continue;
                    }
                    // SAFETY: as above.
                    unsafe {
                        interpret(direction, &launch, table as *const u64, staging as *mut u8);
                    }
                }
            }
        }
    }

    fn is_done(&mut self, event: Event) -> bool {
        match self.events.get(&event.0) {
            Some(is_done) => *is_done,
            None => {
                self.violations.push("a question about an event that is none".to_owned());
                true
            }
        }
    }
}

// SAFETY: memory comes from the allocator, with room for alignment; work is done when it is popped.
unsafe impl DeviceDriver for FakeDevice {
    fn allocate(&self, bytes: usize) -> Result<*mut u8, DeviceError> {
        let mut inner = self.inner.lock();
        inner.call("allocate")?;
        let words = vec![0u128; bytes.div_ceil(16)].into_boxed_slice();
        let memory = Box::into_raw(words).cast::<u8>();
        inner.allocated.insert(memory as usize, bytes);
        Ok(memory)
    }

    unsafe fn free(&self, memory: *mut u8) {
        let mut inner = self.inner.lock();
        match inner.allocated.remove(&(memory as usize)) {
            None => inner.violations.push("memory freed that is none".to_owned()),
            Some(bytes) => {
                let words =
                    std::ptr::slice_from_raw_parts_mut(memory.cast::<u128>(), bytes.div_ceil(16));
                // SAFETY: made so by `allocate`, and not freed before.
                drop(unsafe { Box::from_raw(words) });
            }
        }
    }

    fn create_event(&self) -> Result<Event, DeviceError> {
        let mut inner = self.inner.lock();
        inner.call("create_event")?;
        inner.last_event += 1;
        let event = inner.last_event;
        inner.events.insert(event, true);
        Ok(Event(event))
    }

    fn destroy_event(&self, event: Event) {
        let mut inner = self.inner.lock();
        if inner.events.remove(&event.0).is_none() {
            inner.violations.push("an event destroyed that is none".to_owned());
        }
    }

    fn has_kernels(&self) -> bool {
        self.has_kernels
    }

    fn follow_host(&self) -> Result<(), DeviceError> {
        let mut inner = self.inner.lock();
        inner.call("follow_host")?;
        inner.ask(Asked::Follow, Work::Follow);
        Ok(())
    }

    unsafe fn copy(
        &self,
        direction: Direction,
        copy: Copy,
        staging: *mut u8,
    ) -> Result<(), DeviceError> {
        let mut inner = self.inner.lock();
        inner.call("copy")?;
        inner.ask(Asked::Copy(direction), Work::Copy(direction, copy, staging as usize));
        Ok(())
    }

    unsafe fn launch(
        &self,
        direction: Direction,
        launch: &Launch,
        table: *const u64,
        staging: *mut u8,
    ) -> Result<(), DeviceError> {
        let mut inner = self.inner.lock();
        inner.call("launch")?;
        let work = Work::Launch(direction, launch.clone(), table as usize, staging as usize);
        inner.ask(Asked::Launch(direction), work);
        Ok(())
    }

    fn record(&self, event: Event) -> Result<(), DeviceError> {
        let mut inner = self.inner.lock();
        inner.call("record")?;
        inner.events.insert(event.0, false);
        inner.ask(Asked::Record, Work::Record(event));
        Ok(())
    }

    fn is_done(&self, event: Event) -> Result<bool, DeviceError> {
        let mut inner = self.inner.lock();
        inner.call("is_done")?;
        Ok(inner.is_done(event))
    }

    fn wait(&self, event: Event) -> Result<(), DeviceError> {
        if let Some(look) = &*self.when_waited_for.lock() {
            look();
        }
        let mut inner = self.inner.lock();
        inner.call("wait")?;
        inner.waits += 1;
        while !inner.is_done(event) {
            assert!(!inner.queue.is_empty(), "a wait without an end");
            inner.run(1);
        }
        Ok(())
    }

    fn wait_for_all(&self) -> Result<(), DeviceError> {
        let mut inner = self.inner.lock();
        inner.call("wait_for_all")?;
        inner.waits += 1;
        inner.run(usize::MAX);
        Ok(())
    }
}

impl Drop for FakeDevice {
    fn drop(&mut self) {
        // What was leaked on purpose, because a failed device might touch it.
        for (memory, bytes) in std::mem::take(&mut self.inner.get_mut().allocated) {
            let words = std::ptr::slice_from_raw_parts_mut(memory as *mut u128, bytes.div_ceil(16));
            // SAFETY: made so by `allocate`, and not freed before.
            drop(unsafe { Box::from_raw(words) });
        }
    }
}
