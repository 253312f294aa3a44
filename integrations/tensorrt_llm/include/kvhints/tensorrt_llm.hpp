// kvhints beside TensorRT-LLM's batch manager: all of the adapter. docs/integration.md maps the host's calls
// to it and says how to switch over.
//
// Templates over the host's own types, which they never include. C++17; nothing is needed but kvhints.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef KVHINTS_TENSORRT_LLM_HPP
#define KVHINTS_TENSORRT_LLM_HPP

#include "tensorrt_llm/cache_transceiver.hpp"
#include "tensorrt_llm/eviction_policy.hpp"
#include "tensorrt_llm/hints.hpp"
#include "tensorrt_llm/host.hpp"
#include "tensorrt_llm/host_pins.hpp"
#include "tensorrt_llm/names.hpp"
#include "tensorrt_llm/reuse_mirror.hpp"

#endif  // KVHINTS_TENSORRT_LLM_HPP
