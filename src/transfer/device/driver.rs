//! The port to a device: memory that it and the host's processors reach, copies and kernels in one
//! queue, and events that say when these are done.
//!
//! All that is asked of one driver runs one after the other, in the order asked, while the caller goes
//! on. An adapter is CUDA; tests have another one, whose queue runs when they say so.
//!
//! Guards: nothing here waits for the device but what is called so.
//! Never does: know what blocks are.

use super::plan::{Copy, Direction, Launch};

/// Why a device did not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// There is no device, or not what it takes to use one.
    #[error("no CUDA device can be used here: {0}")]
    Unavailable(String),
    /// An address that the host gave is none of a device.
    #[error("the pool is not in memory of one CUDA device: {0}")]
    NotDeviceMemory(String),
    /// Blocks or pieces that are not in the pool, staging of another length, or no memory to plan.
    #[error("these blocks cannot be copied: outside of the pool, or out of memory")]
    NoPlan,
    /// The device or its driver refused, or failed earlier.
    #[error("CUDA said {code} to {call}")]
    Refused {
        /// What was called.
        call: &'static str,
        /// What it returned.
        code: i32,
    },
}

/// A moment in a driver's queue; which one is said by recording it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event(pub usize);

/// A device's queue.
///
/// # Safety
/// What [`DeviceDriver::allocate`] gives is memory of that many bytes that is nobody else's, aligned to
/// 16 bytes, at the same address for the host's processors and for the device, until it is freed. When
/// [`DeviceDriver::is_done`] says yes or [`DeviceDriver::wait`] says all is well, nothing that was asked
/// before the event was last recorded touches memory any more, and its writes are seen by all.
pub unsafe trait DeviceDriver: Send + Sync {
    /// Host memory that the device reaches.
    fn allocate(&self, bytes: usize) -> Result<*mut u8, DeviceError>;

    /// Gives it back.
    ///
    /// # Safety
    /// It came from `allocate`, and nothing that was asked and is not done touches it.
    unsafe fn free(&self, memory: *mut u8);

    /// A new event.
    fn create_event(&self) -> Result<Event, DeviceError>;

    /// Ends an event that `create_event` made.
    fn destroy_event(&self, event: Event);

    /// Whether [`DeviceDriver::launch`] can be asked for.
    fn has_kernels(&self) -> bool;

    /// What is asked from here on begins only when the host's own work is done, as far as the host said
    /// what to wait for.
    fn follow_host(&self) -> Result<(), DeviceError>;

    /// Copies between a device and staging that begins at `staging`.
    ///
    /// # Safety
    /// Both sides are memory of that many bytes until the copy is done; until then nobody writes what
    /// is read, and nobody touches what is written.
    unsafe fn copy(
        &self,
        direction: Direction,
        copy: Copy,
        staging: *mut u8,
    ) -> Result<(), DeviceError>;

    /// Runs a kernel over staging that begins at `staging`; its table lies at `table`.
    ///
    /// # Safety
    /// As for [`DeviceDriver::copy`], for all that the launch moves, and for the table.
    unsafe fn launch(
        &self,
        direction: Direction,
        launch: &Launch,
        table: *const u64,
        staging: *mut u8,
    ) -> Result<(), DeviceError>;

    /// Makes the event mean this moment: everything asked before it.
    fn record(&self, event: Event) -> Result<(), DeviceError>;

    /// Whether the event's moment has come. An error means that the device has failed and does nothing
    /// any more.
    fn is_done(&self, event: Event) -> Result<bool, DeviceError>;

    /// Waits for the event's moment.
    fn wait(&self, event: Event) -> Result<(), DeviceError>;

    /// Waits for everything that was asked.
    fn wait_for_all(&self) -> Result<(), DeviceError>;
}
