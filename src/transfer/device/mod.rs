//! Blocks in memory of a device, which the host's processors cannot reach.
//!
//! | file | what |
//! |---|---|
//! | `pool` | the pool, staging that the device reaches, and copies between the two that run while others work |
//! | `plan` | which copies, or which launch of which kernel, move parts of blocks: a pure function |
//! | `driver` | the port: what is asked of a device |
//! | `cuda` | its adapter: CUDA, opened at run time |
//! | `kernels.cu`, `kernels.ptx` | the kernels, and what the library carries of them |

pub mod cuda;
pub mod driver;
pub mod plan;
pub mod pool;
