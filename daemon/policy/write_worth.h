// What it is worth to write a block to a disk that does not last for ever: how sure it is that somebody reads it there.
// Pure.
#pragma once

#include <cstdint>

#include "daemon/policy/eviction_order.h"
#include "daemon/policy/reuse_classes.h"

namespace kvartal::policy {

enum class WriteWorth : uint8_t {
  kAny,     // nothing is known for it
  kLikely,  // blocks like it are used again often enough
  kProven,  // it was used again itself, or its conversation goes on
};

// `classes`: of its tenant; nullptr: nobody has learnt anything.
WriteWorth WriteWorthOf(const BlockTraits& traits, const ReuseClasses* classes);

}  // namespace kvartal::policy
